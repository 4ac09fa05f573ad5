from common import *
import threading
import time

q = tf.FIFOQueue(1, tf.int32)
take = q.dequeue()
with session() as s:
    show("a step's limit", lambda: s.run(take, options=tf.RunOptions(timeout_in_ms=200)))
    print("continues", s.run(tf.constant(3)))
with session(operation_timeout_in_ms=200) as s:
    show("a session's limit", lambda: s.run(take))
s = session()
# The master has the session from here on.
s.run(tf.constant(1))
failed = []


def wait():
    try:
        s.run(take)
    except tf.errors.OpError as e:
        failed.append(type(e).__name__)


thread = threading.Thread(target=wait)
thread.start()
time.sleep(0.5)
s.close()
thread.join(20)
print("closed under a step", failed)

from common import *

rng = np.random.RandomState(1)
data = rng.randn(64, 3).astype(np.float32)
truth = data @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.25
optimizers = [
    ("sgd", lambda: tf.train.GradientDescentOptimizer(0.1)),
    ("momentum", lambda: tf.train.MomentumOptimizer(0.05, 0.9)),
    ("nesterov", lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True)),
    ("adam", lambda: tf.train.AdamOptimizer(0.1)),
    ("adagrad", lambda: tf.train.AdagradOptimizer(0.5)),
    ("adadelta", lambda: tf.train.AdadeltaOptimizer(1.0, epsilon=1e-2)),
    ("rmsprop", lambda: tf.train.RMSPropOptimizer(0.05, centered=True)),
    ("ftrl", lambda: tf.train.FtrlOptimizer(0.5)),
]
for resource in (False, True):
    for name, make in optimizers:
        graph = tf.Graph()
        with graph.as_default(), session(graph) as s:
            x, t = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
            w = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer(), use_resource=resource)
            b = tf.get_variable("b", [1], initializer=tf.zeros_initializer(), use_resource=resource)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - t))
            rate = tf.train.get_or_create_global_step()
            train = make().minimize(loss, global_step=rate)
            s.run(tf.global_variables_initializer())
            losses = [s.run([loss, train], {x: data, t: truth})[0] for _ in range(20)]
            print(name, resource, ["%.4f" % l for l in losses[::5]], s.run(rate))
graph = tf.Graph()
with graph.as_default(), session(graph) as s:
    table = tf.get_variable("table", [10, 2], initializer=tf.ones_initializer())
    rows = tf.placeholder(tf.int32, [None])
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, rows)))
    train = tf.train.AdagradOptimizer(0.5).minimize(loss)
    clipped, norm = tf.clip_by_global_norm(tf.gradients(loss, [table]), 1.0)
    s.run(tf.global_variables_initializer())
    print("norm %.4f" % s.run(norm, {rows: [1, 1, 3]}))
    for _ in range(3):
        s.run(train, {rows: [1, 1, 3]})
    print(s.run(table).tolist())

"""Shared by all programs: the client, the target, and printing of values and errors."""

import os
import re
import sys

import numpy as np
import tensorflow.compat.v1 as tf

TARGET = sys.argv[1]
SCRATCH = os.environ["SCRATCH"]
np.set_printoptions(precision=4, suppress=True)
tf.disable_eager_execution()


def session(graph=None, **config):
    """Returns a session with its own variables."""
    config.setdefault("isolate_session_state", True)
    return tf.Session(TARGET, graph=graph, config=tf.ConfigProto(**config))


def show(label, f):
    """Prints the result of `f`, or its error: code, node, message."""
    try:
        print(label, "->", f())
    except tf.errors.OpError as e:
        message = e.message.split("Recent warning and error logs")[0]
        message = message.split("\nOriginal stack trace")[0]
        # The client prepends the location where the node was created.
        # TensorArrays have the number of those that the process made before; loops that are compiled make none.
        message = re.sub(r"(TensorArray \w+?)_\d+", r"\1_N", message)
        lines = [l for l in message.splitlines() if l.strip()]
        skip = ("Graph execution error", "Detected at node", "Node:", "    File ", "File ")
        lines = [l.strip() for l in lines if not l.strip().startswith(skip)]
        # The rest describes the resource manager's tables.
        lines = [l.split(" Debug info:")[0] for l in lines]
        print(label, "->", type(e).__name__, e.error_code, e.op.name if e.op else None, lines)

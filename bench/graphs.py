"""GraphDefs of scalar Add and Mul without foldable constants."""

import random

import numpy as np
import tensorflow as tf

WIDTH = 50
NUMPY = {"float": np.float32, "int32": np.int32}
ENUM = {"float": tf.float32.as_datatype_enum, "int32": tf.int32.as_datatype_enum}


class Writer:
    """A GraphDef being built, all of one dtype; `x` and `h` are its placeholders."""

    def __init__(self, dtype):
        self.graph = tf.compat.v1.GraphDef()
        self.graph.versions.producer = tf.version.GRAPH_DEF_VERSION
        self.dtype = dtype
        for name in ("x", "h"):
            node = self.graph.node.add(name=name, op="Placeholder")
            node.attr["dtype"].type = ENUM[dtype]
            node.attr["shape"].shape.SetInParent()

    def node(self, op, *inputs, name=None):
        name = name or f"n{len(self.graph.node)}"
        node = self.graph.node.add(name=name, op=op, input=inputs)
        node.attr["T"].type = ENUM[self.dtype]
        if op == "AddN":
            node.attr["N"].i = len(inputs)
        return name

    def halve_or_add(self, i, left, right):
        """Alternates between multiplying by h (a half) and adding, so that values stay finite."""
        return self.node("Mul", left, "h") if i % 2 else self.node("AddV2", left, right)


def chain(dtype, count):
    """A chain: every node reads the previous one."""
    out = Writer(dtype)
    last = "x"
    for i in range(count - 1):
        last = out.halve_or_add(i, last, "x")
    out.node("Mul", last, "h", name="y")
    return out.graph


def fan_out(dtype, count):
    """A fan: every node reads the placeholders, and one reads them all."""
    out = Writer(dtype)
    found = [out.halve_or_add(i, "x", "h") for i in range(count - 1)]
    out.node("AddN", *found, name="y")
    return out.graph


def layers(dtype, count):
    """Layers of 50 nodes, each with two inputs from random nodes of the previous layer."""
    out, rng = Writer(dtype), random.Random(count)
    before, made, level = ["x", "h"], 0, 0
    while made < count - 1:
        size = min(WIDTH, count - 1 - made)
        before = [out.halve_or_add(level, rng.choice(before), rng.choice(before)) for _ in range(size)]
        made += size
        level += 1
    out.node("AddN", *before, name="y")
    return out.graph


KINDS = {"chain": chain, "fan-out": fan_out, "layers": layers}


def feeds(dtype):
    """Returns values for the placeholders."""
    half = 0.5 if dtype == "float" else 3
    return {"x:0": NUMPY[dtype](1), "h:0": NUMPY[dtype](half)}

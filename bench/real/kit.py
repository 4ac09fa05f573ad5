"""What the files of models share: their registry and random inputs."""

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

FAMILIES = [
    "layers", "recurrent", "vision", "detection", "speech", "text", "recommend", "decoding", "quantized",
    "chance", "algebra", "pipelines", "sparse", "sessions", "training", "arrays",
]

MODELS = {}


@dataclass
class Case:
    """A program with feeds, or a graph with the steps of a session."""

    program: Any = None
    feeds: list = field(default_factory=list)
    tracked: list = field(default_factory=list)
    graph: Any = None
    steps: list = field(default_factory=list)


def model(make):
    """Registers a function that returns (program, feeds) or (program, feeds, objects to save)."""
    def case():
        program, feeds, *tracked = make()
        return Case(program=program, feeds=feeds, tracked=tracked[0] if tracked else [])

    MODELS[f"{make.__module__.split('.')[-1]}/{make.__name__}"] = case
    return make


def session(make):
    """Registers a function that builds a graph and returns the steps of a session: (fetches, feeds)."""
    def case():
        graph = tf.Graph()
        with graph.as_default():
            steps = make()
        named = lambda x: [named(y) for y in x] if isinstance(x, (list, tuple)) else x if isinstance(x, str) else x.name
        return Case(graph=graph.as_graph_def(), steps=[
            (named(fetches), {named(key): value for key, value in feeds.items()}) for fetches, feeds in steps])

    MODELS[f"{make.__module__.split('.')[-1]}/{make.__name__}"] = case
    return make


def names():
    for family in FAMILIES:
        importlib.import_module(f"real.{family}")
    return list(MODELS)


def make(name):
    return MODELS[name]()


def normal(*shape, seed=0, dtype="float32"):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def uniform(*shape, seed=0, dtype="float32"):
    return np.random.default_rng([seed, *shape]).random(shape).astype(dtype)


def integers(low, high, *shape, seed=0, dtype="int32"):
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def words(*values):
    return np.array(values, object)

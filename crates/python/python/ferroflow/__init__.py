"""Runs TensorFlow graphs without TensorFlow.

>>> import numpy as np
>>> import ferroflow
>>> graph = '''
...     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
...     node { name: 'y' op: 'Square' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }'''
>>> session = ferroflow.Session(graph)
>>> session.run("y:0", {"x:0": np.array([1.0, 2.0, 3.0], np.float32)})
array([1., 4., 9.], dtype=float32)

Models are loaded from files, and called with arrays:

>>> model = ferroflow.load(saved_model)
>>> model
<ferroflow.Model: a SavedModel with signatures [...'serving_default']>
>>> model(features=np.ones((2, 4), np.float32))["output_0"].shape
(2, 3)

Ops run one by one, by their names:

>>> ferroflow.ops.MatMul([[1.0, 2.0]], [[3.0], [4.0]])
array([[11.]], dtype=float32)

Errors are exceptions with TensorFlow's codes:

>>> ferroflow.ops.MatMul([[1.0, 2.0]], [[3.0]])
Traceback (most recent call last):
    ...
ferroflow.errors.InvalidArgumentError: ...
"""

from . import errors, ops
from ._ferroflow import (
    Checkpoint,
    Model,
    Op,
    Session,
    Signature,
    Step,
    Tensor,
    __version__,
    compile,
    load,
    tensor,
)
from ._types import ModelInfo, ProgressBar, TensorSpec, inspect

__all__ = [
    "Checkpoint",
    "Model",
    "ModelInfo",
    "Op",
    "ProgressBar",
    "Session",
    "Signature",
    "Step",
    "Tensor",
    "TensorSpec",
    "__version__",
    "compile",
    "errors",
    "from_tf",
    "inspect",
    "load",
    "ops",
    "tensor",
]


def __getattr__(name):
    if name == "from_tf":
        from ._tensorflow import from_tf

        globals()["from_tf"] = from_tf
        return from_tf
    raise AttributeError(f"module 'ferroflow' has no attribute '{name}'")

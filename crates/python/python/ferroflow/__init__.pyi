from collections.abc import Callable
from typing import Any

from . import errors as errors
from . import ops as ops
from ._ferroflow import Checkpoint as Checkpoint
from ._ferroflow import Model as Model
from ._ferroflow import Op as Op
from ._ferroflow import Session as Session
from ._ferroflow import Signature as Signature
from ._ferroflow import Step as Step
from ._ferroflow import Tensor as Tensor
from ._ferroflow import __version__ as __version__
from ._ferroflow import compile as compile
from ._ferroflow import load as load
from ._ferroflow import tensor as tensor
from ._types import ModelInfo as ModelInfo
from ._types import ProgressBar as ProgressBar
from ._types import TensorSpec as TensorSpec
from ._types import inspect as inspect

def from_tf(fn: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]: ...

from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from ._ferroflow import Path

class TensorSpec(NamedTuple):
    name: str
    dtype: Any
    shape: tuple[int | None, ...] | None

class ModelInfo:
    kind: str
    signatures: dict[str, tuple[dict[str, TensorSpec], dict[str, TensorSpec]]]
    nodes: int
    parameters: int
    parameter_bytes: int
    ops: dict[str, int]
    unsupported: dict[str, int]
    variables: dict[str, TensorSpec]

class ProgressBar:
    def __init__(self, file: TextIO | None = None) -> None: ...
    def __call__(self, stage: str, seconds: float, done: bool) -> None: ...

def inspect(path: Path, *, tags: Sequence[str] = ()) -> ModelInfo: ...

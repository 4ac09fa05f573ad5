"""Types that are plain Python."""

import collections
import sys

from . import _ferroflow


class TensorSpec(collections.namedtuple("TensorSpec", ["name", "dtype", "shape"])):
    """The name, dtype and shape of a tensor.

    An unknown dimension is None, and so is `shape` if the rank is unknown.
    """

    __slots__ = ()


def results(op, names):
    """Returns the class of an op's results."""
    return collections.namedtuple(op, names, rename=True)


class ModelInfo(
    collections.namedtuple(
        "ModelInfo",
        "kind signatures nodes parameters parameter_bytes ops unsupported variables",
        defaults=[{}],
    )
):
    """What `inspect` finds; printed, it is a report."""

    __slots__ = ()

    def __str__(self):
        lines = [self.kind]
        for name, (inputs, outputs) in self.signatures.items():
            lines.append(f"signature {name}:")
            for what, tensors in ("inputs", inputs), ("outputs", outputs):
                lines.append(f"  {what}:")
                lines += [f"    {key}  {t.dtype}{_shape(t.shape)}" for key, t in tensors.items()]
        for name, t in self.variables.items():
            lines.append(f"  {name}  {t.dtype}{_shape(t.shape)}")
        lines.append(f"nodes: {self.nodes}")
        lines.append(f"parameters: {self.parameters} ({self.parameter_bytes / 1e6:.1f} MB)")
        for title, ops in ("ops", self.ops), ("not supported yet", self.unsupported):
            if ops:
                lines.append(f"{title}:")
                ordered = sorted(ops.items(), key=lambda item: (-item[1], item[0]))
                lines += [f"  {op:<32} {n:>6}" for op, n in ordered]
        return "\n".join(lines)


def _shape(shape):
    if shape is None:
        return "<unknown>"
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"


def inspect(path, *, tags=()):
    """Describes a model or checkpoint: signatures, ops, parameters, unsupported ops.

    >>> import ferroflow
    >>> info = ferroflow.inspect(saved_model)
    >>> info.kind, info.unsupported
    ('SavedModel', {})
    >>> inputs, outputs = info.signatures["serving_default"]
    >>> inputs["features"].shape
    (None, 4)
    """
    return ModelInfo(**_ferroflow.inspect(path, tags=list(tags)))


class ProgressBar:
    """Shows the progress of `load` and `compile` in the terminal.

    >>> import ferroflow
    >>> model = ferroflow.load(saved_model, progress=ferroflow.ProgressBar())
    """

    def __init__(self, file=None):
        self.file = file or sys.stderr

    def __call__(self, stage, seconds, done):
        if not self.file.isatty():
            return
        if done:
            self.file.write(f"\r{stage}: {seconds:.1f} s\n")
        else:
            width, at = 20, int(seconds * 10) % 20
            bar = "".join("#" if i == at else "." for i in range(width))
            self.file.write(f"\r{stage} [{bar}] {seconds:.1f} s")
        self.file.flush()

"""Paths of the models that the tests use."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAVED = ROOT / "crates/runtime/tests/saved_models"
DIGITS = ROOT / "examples/digits"
DATA = pathlib.Path(__file__).resolve().parent / "data"


def identity(dtype):
    """The text of a graph that returns what it is fed."""
    return (
        f"node {{ name: 'x' op: 'Placeholder' attr {{ key: 'dtype' value {{ type: {dtype} }} }} }}"
        f"node {{ name: 'y' op: 'Identity' input: 'x' attr {{ key: 'T' value {{ type: {dtype} }} }} }}"
    )


SQUARE = """
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } }
      attr { key: 'shape' value { shape { dim { size: -1 } dim { size: 3 } } } } }
    node { name: 'y' op: 'Square' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }"""

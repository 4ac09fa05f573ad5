"""Writes the signatures of every op TensorFlow registers to one text file.

Usage: python oracle/opdefs.py [OUT]     (default crates/ops/rows/opdefs.txt)

The grammar of a line is given at the top of oracle/README.md.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.python.client import pywrap_tf_session

DEFAULT_OUT = Path(__file__).resolve().parents[1] / "crates/ops/rows/opdefs.txt"

FLAGS = [
    ("is_stateful", "stateful"),
    ("is_commutative", "commutative"),
    ("is_aggregate", "aggregate"),
    ("allows_uninitialized_input", "uninit"),
    ("is_distributed_communication", "distributed"),
]


def type_name(number):
    """Converts DT_FLOAT to float, DT_FLOAT_REF to float_ref."""
    return types_pb2.DataType.Name(number)[3:].lower()


def quote(raw):
    """Formats a single-quoted string; bytes outside printable ASCII become \\xNN."""
    out = []
    for byte in raw:
        char = chr(byte)
        if char in "'\\":
            out.append("\\" + char)
        elif 32 <= byte < 127:
            out.append(char)
        elif char == "\n":
            out.append("\\n")
        elif char == "\t":
            out.append("\\t")
        else:
            out.append(f"\\x{byte:02x}")
    return "'" + "".join(out) + "'"


def number(value):
    """Formats the shortest text that reads back as the same float32."""
    text = np.format_float_positional(np.float32(value), unique=True, trim="0")
    if len(text) > 20:
        text = np.format_float_scientific(np.float32(value), unique=True, trim="0")
    return text


def shape_text(shape):
    if shape.unknown_rank:
        return "unknown"
    return "[" + ",".join(str(d.size) for d in shape.dim) + "]"


def tensor_text(tensor):
    """Formats tensor(dtype,shape,[flat values])."""
    array = tf.make_ndarray(tensor)
    values = ",".join(str(x) for x in array.reshape(-1).tolist())
    return f"tensor({type_name(tensor.dtype)},{shape_text(tensor.tensor_shape)},[{values}])"


def value_text(value):
    """Formats an AttrValue, the text after `=`."""
    kind = value.WhichOneof("value")
    if kind == "i":
        return str(value.i)
    if kind == "f":
        return number(value.f)
    if kind == "b":
        return "true" if value.b else "false"
    if kind == "s":
        return quote(value.s)
    if kind == "type":
        return type_name(value.type)
    if kind == "shape":
        return shape_text(value.shape)
    if kind == "list":
        items = value.list
        parts = (
            [str(x) for x in items.i]
            + [number(x) for x in items.f]
            + ["true" if x else "false" for x in items.b]
            + [quote(x) for x in items.s]
            + [type_name(x) for x in items.type]
            + [shape_text(x) for x in items.shape]
            + [tensor_text(x) for x in items.tensor]
        )
        if items.func:
            raise ValueError("a list of functions as a default has no notation")
        return "[" + ",".join(parts) + "]"
    if kind == "tensor":
        return tensor_text(value.tensor)
    if kind == "func" and not value.func.attr:
        return value.func.name or "''"
    raise ValueError(f"a default of kind {kind} has no notation")


def arg_text(arg):
    if arg.type_list_attr:
        body = f"list({arg.type_list_attr})"
    else:
        body = arg.type_attr or type_name(arg.type)
        if arg.number_attr:
            body = f"{arg.number_attr}*{body}"
    if arg.is_ref:
        body = f"Ref({body})"
    return f"{arg.name}: {body}"


def attr_text(attr):
    out = f"{attr.name}: {attr.type}"
    if attr.has_minimum:
        out += f" >= {attr.minimum}"
    if attr.HasField("allowed_values"):
        items = attr.allowed_values.list
        parts = [type_name(x) for x in items.type] + [quote(x) for x in items.s]
        out += " {" + ",".join(parts) + "}"
    if attr.HasField("default_value"):
        out += " = " + value_text(attr.default_value)
    return out


def op_text(op):
    ins = ", ".join(arg_text(a) for a in op.input_arg)
    outs = ", ".join(arg_text(a) for a in op.output_arg)
    attrs = "; ".join(attr_text(a) for a in op.attr)
    flags = [word for field, word in FLAGS if getattr(op, field)]
    arrow = " ".join(part for part in (ins, "->", outs) if part)
    sections = [op.name, arrow, attrs, " ".join(flags)]
    return " | ".join(sections).rstrip()


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUT
    ops = op_def_pb2.OpList()
    ops.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    # Python-side custom ops never appear here: only what the C++ registry holds.
    lines = [op_text(op) for op in sorted(ops.op, key=lambda op: op.name)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f"# TensorFlow {tf.__version__}\n" + "\n".join(lines) + "\n")
    print(f"{len(lines)} ops -> {out}")


if __name__ == "__main__":
    main()

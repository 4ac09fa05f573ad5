"""Runs every case in TensorFlow and writes the rows that kernels are tested with.

Usage: python oracle/rows.py [FAMILY...]     (default: all of oracle/cases)

Each case of oracle/cases/<family>.py becomes one line of crates/ops/rows/<family>.jsonl;
oracle/README.md describes the format. Inputs are fed through placeholders of unknown shape, so
nothing is folded and what refuses a bad input is the kernel.
"""

import base64
import importlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Ops that only oneDNN has kernels for, some with constant filters; a run of them has no other family.
ONEDNN_FAMILIES = {"quantized_fused"}
FILTERS_ARE_CONSTANT = bool(set(sys.argv[1:]) & ONEDNN_FAMILIES)
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1" if FILTERS_ARE_CONSTANT else "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

from casekit import NUMPY

HERE = Path(__file__).resolve().parent
ROWS = HERE.parent / "crates/ops/rows"
TOL = {"float": 1e-5, "complex64": 1e-5, "double": 1e-11, "complex128": 1e-11,
       "half": 2e-3, "bfloat16": 2e-2}
NAME_OF = {np.dtype(v): k for k, v in NUMPY.items()}
TO_ENUM = {k: getattr(types_pb2, f"DT_{k.upper()}") for k in NUMPY}
UNSUPPORTED = ("No OpKernel was registered", "is not in the list of allowed values",
               "input data type is not supported")
# Their shape functions reject inputs of unknown rank.
KNOWN_SHAPES = {"ApproxTopK", "ParallelConcat", "SpaceToBatchND", "BatchToSpaceND"}


class Skip(Exception):
    """TensorFlow has no CPU kernel for these types."""


def dtype_name(array):
    dtype = np.asarray(array).dtype
    if dtype.names:
        return dtype.names[0]
    return "string" if dtype.kind in "OSU" else NAME_OF[dtype]


# --- attributes ---------------------------------------------------------------------------


def shape_proto(dims):
    """Returns a TensorShapeProto for a list with -1 for unknown, or None for unknown rank."""
    dims = dims if dims is None else [None if d == -1 else d for d in dims]
    return tf.TensorShape(dims).as_proto()


def set_attr(proto, kind, value):
    """Stores a Python value under an attribute of the declared kind."""
    if kind.startswith("list("):
        inner = kind[5:-1]
        proto.list.SetInParent()
        for item in value:
            if inner == "int":
                proto.list.i.append(item)
            elif inner == "float":
                proto.list.f.append(item)
            elif inner == "bool":
                proto.list.b.append(item)
            elif inner == "string":
                proto.list.s.append(item.encode())
            elif inner == "type":
                proto.list.type.append(TO_ENUM[item])
            elif inner == "shape":
                proto.list.shape.append(shape_proto(item))
            else:
                raise ValueError(kind)
    elif kind == "int":
        proto.i = value
    elif kind == "float":
        proto.f = value
    elif kind == "bool":
        proto.b = value
    elif kind == "string":
        proto.s = value if isinstance(value, bytes) else value.encode()
    elif kind == "type":
        proto.type = TO_ENUM[value]
    elif kind == "shape":
        proto.shape.CopyFrom(shape_proto(value))
    elif kind == "tensor":
        proto.tensor.CopyFrom(tf.make_tensor_proto(value))
    else:
        raise ValueError(kind)


def type_json(number):
    return {"type": types_pb2.DataType.Name(number)[3:].lower()}


def shape_json(shape):
    return {"shape": None if shape.unknown_rank else [d.size for d in shape.dim]}


def attr_json(value):
    """Returns an AttrValue in the explicit form of the rows."""
    kind = value.WhichOneof("value")
    if kind == "i":
        return {"i": value.i}
    if kind == "f":
        return {"f": real(np.float32(value.f))}
    if kind == "b":
        return {"b": value.b}
    if kind == "s":
        if value.s.isascii():
            return {"s": value.s.decode()}
        return {"b64": base64.b64encode(value.s).decode()}
    if kind == "type":
        return type_json(value.type)
    if kind == "shape":
        return shape_json(value.shape)
    if kind == "tensor":
        return {"tensor": tensor_json(tf.make_ndarray(value.tensor))}
    if kind == "list":
        items = value.list
        return {"list": [{"i": x} for x in items.i]
                + [{"f": real(np.float32(x))} for x in items.f]
                + [{"b": x} for x in items.b]
                + [{"s": x.decode()} for x in items.s]
                + [type_json(x) for x in items.type]
                + [shape_json(x) for x in items.shape]}
    raise ValueError(kind)


# --- tensors ------------------------------------------------------------------------------


def real(x):
    """Returns the JSON form of a NumPy real: a number that reads back exactly, or a string."""
    if np.isnan(x):
        return "nan"
    if np.isinf(x):
        return "inf" if x > 0 else "-inf"
    return float(str(x))  # NumPy prints the fewest digits that identify x


def tensor_json(array):
    # NumPy's own strings lose trailing zeros.
    array = np.asarray(array, object if isinstance(array, bytes) else None)
    name = dtype_name(array)
    flat = array.reshape(-1)
    if array.dtype.names:
        data = [int(x[0]) for x in flat]
    elif name == "string":
        data = [{"b64": base64.b64encode(x if isinstance(x, bytes) else x.encode()).decode()}
                for x in flat]
    elif name == "bool" or array.dtype.kind in "iu":
        data = flat.tolist()
    elif array.dtype.kind == "c":
        data = [[real(x.real), real(x.imag)] for x in flat]
    elif name in ("half", "bfloat16"):
        data = [real(x) for x in flat.astype(np.float32)]
    else:
        data = [real(x) for x in flat]
    return {"dtype": name, "shape": list(array.shape), "data": data}


# --- running ------------------------------------------------------------------------------


def node_and_feeds(case, op_def):
    """Returns the NodeDef of a case with its inferred attributes, and its flat inputs."""
    graph_def = tf.compat.v1.GraphDef()
    node = graph_def.node.add(name="op", op=case.op)
    kinds = {attr.name: attr.type for attr in op_def.attr}
    attrs, flat = dict(case.attrs), []
    if len(case.inputs) != len(op_def.input_arg):
        raise ValueError(f"{case.op} takes {len(op_def.input_arg)} inputs")
    for arg, given in zip(op_def.input_arg, case.inputs):
        arrays = list(given) if isinstance(given, (list, tuple)) else [np.asarray(given)]
        flat += [np.asarray(x) for x in arrays]
        if arg.type_attr:
            attrs.setdefault(arg.type_attr, dtype_name(arrays[0]) if arrays else "float")
        if arg.number_attr:
            attrs.setdefault(arg.number_attr, len(arrays))
        if arg.type_list_attr:
            attrs.setdefault(arg.type_list_attr, [dtype_name(x) for x in arrays])
    for name in sorted(attrs, key=list(kinds).index):
        set_attr(node.attr[name], kinds[name], attrs[name])
    for index, array in enumerate(flat):
        if index == 1 and FILTERS_ARE_CONSTANT:
            constant = graph_def.node.add(name=f"in{index}", op="Const")
            constant.attr["dtype"].type = TO_ENUM[dtype_name(array)]
            number = tf.as_dtype(TO_ENUM[dtype_name(array)])
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array.view(np.int8), number, array.shape))
            node.input.append(f"in{index}")
            continue
        feed = graph_def.node.add(name=f"in{index}", op="Placeholder")
        feed.attr["dtype"].type = TO_ENUM[dtype_name(array)]
        if case.op in KNOWN_SHAPES:
            feed.attr["shape"].shape.CopyFrom(shape_proto(array.shape))
        node.input.append(f"in{index}")
    producer = tf.version.GRAPH_DEF_VERSION
    if op_def.HasField("deprecation"):
        producer = op_def.deprecation.version - 1
    graph_def.versions.producer = producer
    return graph_def, node, flat


def session_config():
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, use_per_session_threads=False
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


def execute(graph_def, flat, outputs):
    """Runs the node; returns its outputs or (code, message)."""
    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
            with tf.compat.v1.Session(graph=graph, config=CONFIG) as session:
                op = graph.get_operation_by_name("op")
                # Copies: InplaceAdd and others overwrite what they are fed.
                feeds = {f"in{i}:0": np.array(x) for i, x in enumerate(flat)
                         if graph.get_operation_by_name(f"in{i}").type == "Placeholder"}
                values = session.run([t.name for t in op.outputs], feeds)
                # Fetched quantized numbers are plain integers.
                return [v.view(NUMPY[t.dtype.name]).reshape(v.shape) if t.dtype.is_quantized else v
                        for v, t in zip(values, op.outputs)], None
    except tf.errors.OpError as error:
        return None, (error.error_code, error.message)
    except ValueError as error:
        return None, (3, str(error))


def refusal(code, message):
    """Returns the stable part of TensorFlow's message: one line, without the node's name."""
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    if lines[0].startswith("Graph execution error"):
        lines = lines[lines.index("Node: 'op'") + 1:]
    line = lines[0].split("[[")[0].split(" for '{{node")[0].split("{{node")[0]
    if "_arg_in" in line:  # a feed's inner name
        line = line.split("_arg_in")[1].split(" ", 1)[1]
    # Protocol buffers vary the blanks of these messages on purpose.
    line = line.split("parsing JSON: ")[0]
    # What XLA's compiler says is preceded by places in its program.
    line = line.rpartition(", \"op\"]): ")[2]
    return {"code": code, "contains": line.strip()}


def channels_first(row, which):
    """Re-writes a channels-last row as channels-first."""
    inputs, outputs = which
    for side, chosen in (("inputs", inputs), ("outputs", outputs)):
        for index in chosen:
            t = row[side][index]
            rank = len(t["shape"])
            data = np.empty(len(t["data"]), dtype=object)
            data[:] = t["data"]
            perm = (0, rank - 1, *range(1, rank - 1))
            moved = data.reshape(t["shape"]).transpose(perm)
            row[side][index] = {"dtype": t["dtype"], "shape": list(moved.shape),
                                "data": moved.reshape(-1).tolist()}
    for name, value in row["attrs"].items():
        if name in ("strides", "ksize", "dilations"):
            items = value["list"]
            value["list"] = [items[0], items[-1], *items[1:-1]]
        if name == "explicit_paddings" and value["list"]:
            items = value["list"]
            value["list"] = items[:2] + items[-2:] + items[2:-2]
    row["attrs"]["data_format"] = {"s": "NCHW" if rank == 4 else "NCDHW"}
    return row


def row_of(case):
    op_def = op_def_registry.get(case.op)
    graph_def, node, flat = node_and_feeds(case, op_def)
    outputs, error = execute(graph_def, flat, op_def)
    if error and not case.fails:
        if any(words in error[1] for words in UNSUPPORTED):
            raise Skip(case.op)
        raise RuntimeError(f"{case.op} {case.attrs}: {error[1]}")
    if case.fails and not error:
        raise RuntimeError(f"{case.op} {case.attrs}: ran, and should have failed")
    if case.fails and any(words in error[1] for words in UNSUPPORTED):
        raise Skip(case.op)
    row = {
        "op": case.op,
        "attrs": {name: attr_json(node.attr[name]) for name in sorted(node.attr)},
        "inputs": [tensor_json(x) for x in flat],
    }
    if error:
        row["error"] = refusal(*error)
        return row
    for index in case.unchecked:
        blank = b"" if dtype_name(outputs[index]) == "string" else 0
        outputs[index] = np.full_like(outputs[index], blank)
    row["outputs"] = [tensor_json(x) for x in outputs]
    if case.unchecked:
        row["unchecked"] = list(case.unchecked)
    row["tol"] = case.tol
    if case.tol is None:
        row["tol"] = max([TOL.get(t["dtype"], 0) for t in row["outputs"]], default=0)
    if case.nchw:
        row = channels_first(row, case.nchw)
    return row


CONFIG = session_config()


def main():
    wanted = sys.argv[1:] or sorted({p.stem for p in (HERE / "cases").glob("[a-z]*.py")} - ONEDNN_FAMILIES)
    if ONEDNN_FAMILIES & set(wanted) and not ONEDNN_FAMILIES >= set(wanted):
        sys.exit(f"run these alone: {', '.join(sorted(ONEDNN_FAMILIES))}")
    ROWS.mkdir(parents=True, exist_ok=True)
    troubled = False
    for family in wanted:
        cases = importlib.import_module(f"cases.{family}").cases()
        lines, ops, skipped = [], set(), {}
        for case in cases:
            try:
                row = row_of(case)
            except Skip:
                skipped[case.op] = skipped.get(case.op, 0) + 1
                continue
            except RuntimeError as error:
                print(f"  {str(error)[:400]}")
                troubled = True
                continue
            ops.add(case.op)
            lines.append(json.dumps(row, separators=(",", ":")))
        text = "\n".join(dict.fromkeys(lines)) + "\n"
        (ROWS / f"{family}.jsonl").write_text(text)
        print(f"{family}: {len(lines)} rows, {len(ops)} ops, {len(text) // 1024} KiB;"
              f" no CPU kernel: {skipped}")
    sys.exit(troubled)


if __name__ == "__main__":
    main()

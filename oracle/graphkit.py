"""Shared by the graph cases: builders of graphs, and the steps to run them with.

A case is a function that gets a `Build`, makes a graph under `tf.Graph().as_default()` and says
which steps are run. `@case` enters it; forms "v1" and "v2" build it twice: with Switch, Merge and
Enter nodes and TensorArrays, and with If, While and TensorLists.
"""

import base64
import json
import threading
import time
import zlib
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import graph_util_impl, meta_graph

import rows

v1 = tf.compat.v1
raw = tf.raw_ops

CASES = []


@dataclass
class Step:
    """One run of the session.

    error: a part of the message that TensorFlow must give; None when the step succeeds.
    background: runs on its own thread while the steps after it do; it is awaited last.
    """

    fetches: list
    feeds: dict
    targets: list
    error: str | None
    background: bool
    timeout_ms: int | None
    tol: float | None


@dataclass
class Build:
    """The steps of a case, and a GraphDef when it is not that of the default graph.

    short_names: whether nodes that no step mentions lose their names.
    asked: the graph that TensorFlow runs in its place, where it cannot run the case's own.
    n_devices: how many CPUs the session has; with several, nodes keep their devices.
    placed: why the results depend on the devices of the nodes, if they do.
    """

    form: str
    steps: list = field(default_factory=list)
    short_names: bool = False
    graph_def: object = None
    asked: object = None
    n_devices: int = 1
    placed: str = ""

    def feed(self, dtype, shape=(), name=None):
        """Adds a placeholder."""
        return v1.placeholder(dtype, shape, name=name)

    def step(self, fetches=(), feeds=None, targets=(), error=None, background=False,
             timeout_ms=None, tol=None):
        """Adds a run that feeds {tensor or name: value} and fetches tensors (or names)."""
        fetches = fetches if isinstance(fetches, (list, tuple)) else [fetches]
        targets = targets if isinstance(targets, (list, tuple)) else [targets]
        feeds = {name_of(k): v for k, v in (feeds or {}).items()}
        self.steps.append(Step([name_of(f) for f in fetches], feeds,
                               [name_of(t) for t in targets], error, background, timeout_ms, tol))


def name_of(thing):
    return thing if isinstance(thing, str) else thing.name


def case(*forms, name=None):
    """Registers a case, built once in each form."""

    def enter(fn):
        for form in forms:
            CASES.append((f"{name or fn.__name__}/{form}", form, fn))
        return fn

    return enter


# --- making the graph small and reproducible ------------------------------------------------


def rename_functions(graph_def):
    """Renames functions to f0, f1, …: TensorFlow's names depend on what the process created before."""
    names = {f.signature.name: f"f{i}" for i, f in enumerate(graph_def.library.function)}

    def attrs(of):
        for value in of.values():
            for func in [value.func] if value.HasField("func") else value.list.func:
                func.name = names.get(func.name, func.name)
                attrs(func.attr)

    def nodes(of):
        for node in of:
            node.op = names.get(node.op, node.op)
            attrs(node.attr)

    nodes(graph_def.node)
    for gradient in graph_def.library.gradient:
        gradient.function_name = names[gradient.function_name]
        gradient.gradient_func = names[gradient.gradient_func]
    for f in graph_def.library.function:
        f.signature.name = names[f.signature.name]
        nodes(f.node_def)


def base36(n):
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return digits[n] if n < 36 else base36(n // 36) + digits[n % 36]


def rename_nodes(graph_def, kept):
    """Renames nodes to a letter and a number, except for those of `kept`."""

    def rename(nodes, names):
        for node in nodes:
            node.name = names[node.name]
            inputs = []
            for text in node.input:
                mark, rest = ("^", text[1:]) if text[0] == "^" else ("", text)
                name, *port = rest.split(":")
                inputs.append(mark + ":".join([names.get(name, name), *port]))
            del node.input[:]
            node.input.extend(inputs)

    frames = {}
    for node in graph_def.node:
        if "frame_name" in node.attr:
            frame = node.attr["frame_name"].s
            node.attr["frame_name"].s = frames.setdefault(frame, f"f{len(frames)}".encode())
    names = {n.name: n.name if n.name in kept else f"n{base36(i)}"
             for i, n in enumerate(graph_def.node)}
    rename(graph_def.node, names)
    for f in graph_def.library.function:
        names = {n.name: f"n{base36(i)}" for i, n in enumerate(f.node_def)}
        arguments = {a.name: f"a{i}" for i, a in enumerate(f.signature.input_arg)}
        rename(f.node_def, names | arguments)
        for arg in f.signature.input_arg:
            arg.name = arguments[arg.name]
        outputs = {a.name: f"r{i}" for i, a in enumerate(f.signature.output_arg)}
        values = {}
        for key, value in f.ret.items():
            name, *port = value.split(":")
            values[outputs[key]] = ":".join([(names | arguments)[name], *port])
        f.ret.clear()
        f.ret.update(values)
        for arg in f.signature.output_arg:
            arg.name = outputs[arg.name]
        values = {k: names[v] for k, v in f.control_ret.items()}
        f.control_ret.clear()
        f.control_ret.update(values)


def cleaned(graph_def, devices=False):
    """Removes parts that engines ignore: debug info, inferred shapes, defaults."""
    out = v1.GraphDef()
    out.CopyFrom(graph_def)
    rename_functions(out)
    for f in out.library.function:
        for key in [k for k in f.attr if k not in ("_noinline",)]:
            del f.attr[key]
        for arg in f.arg_attr.values():
            arg.attr.pop("_output_shapes", None)
            arg.attr.pop("_user_specified_name", None)
        f.signature.ClearField("description")
    for node in [*out.node, *(n for f in out.library.function for n in f.node_def)]:
        for key in ("_output_shapes", "_num_original_outputs", "_read_only_resource_inputs",
                    "_stateful_parallelism", "_class", "config_proto", "_collective_manager_ids",
                    "executor_type", "_has_manual_control_dependencies"):
            node.attr.pop(key, None)
        node.ClearField("experimental_debug_info")
        if node.op != "NoOp" and not devices:
            node.ClearField("device")
    out.ClearField("debug_info")
    meta = v1.MetaGraphDef()
    meta.graph_def.CopyFrom(out)
    meta_graph.strip_graph_default_valued_attrs(meta)
    return meta.graph_def


def graph_field(graph_def, plain):
    """Encodes the graph as hexadecimal digits, or compressed if the file as a whole is not."""
    data = graph_def.SerializeToString(deterministic=True)
    if plain:
        return {"hex": data.hex()}
    return {"graph": base64.b64encode(zlib.compress(data, 9)).decode()}


# --- running TensorFlow ---------------------------------------------------------------------


def session_config(n_devices=1):
    config = v1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=4,
                            device_count={"CPU": n_devices})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


def run_step(session, step):
    """Returns the step's expectation in the file's form."""
    options = v1.RunOptions(timeout_in_ms=step.timeout_ms or 0)
    options.experimental.collective_graph_key = 1
    graph = session.graph
    targets = [graph.get_operation_by_name(t) for t in step.targets]
    try:
        got, _ = session.run((step.fetches, targets), step.feeds, options=options)
    except tf.errors.OpError as error:
        if step.error is None or step.error not in error.message:
            raise RuntimeError(f"expected {step.error!r}, got {error.message}") from None
        # An empty text stands for any error: TensorFlow's depends on its internals.
        return {"error": {"code": error.error_code if step.error else 0, "contains": step.error}}
    if step.error is not None:
        raise RuntimeError(f"ran, expected {step.error!r}: {got}")
    outputs = [rows.tensor_json(x) for x in got]
    tol = step.tol
    if tol is None:
        tol = max([rows.TOL.get(t["dtype"], 0) for t in outputs], default=0)
    return {"outputs": outputs, "tol": tol}


def answered(build, graph_def):
    """Runs all steps in one session."""
    answers = [None] * len(build.steps)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph, config=session_config(build.n_devices)) as session:
            threads = []

            def run(i, step):
                try:
                    answers[i] = run_step(session, step)
                except Exception as error:  # reported below, on the main thread
                    answers[i] = error

            for i, step in enumerate(build.steps):
                if step.background:
                    thread = threading.Thread(target=run, args=(i, step))
                    thread.start()
                    threads.append(thread)
                    time.sleep(0.3)
                else:
                    run(i, step)
            for thread in threads:
                thread.join()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def line_of(name, form, fn, plain=False):
    """Returns a line of the file: the graph, its steps and TensorFlow's results."""
    tf.compat.v1.reset_default_graph()
    (v1.enable_control_flow_v2 if form == "v2" else v1.disable_control_flow_v2)()
    np.random.seed(7)
    v1.set_random_seed(7)
    with tf.Graph().as_default() as graph:
        build = Build(form)
        fn(build)
    graph_def = cleaned(build.graph_def or graph.as_graph_def(), build.n_devices > 1)
    if build.short_names:
        used = [n for s in build.steps for n in (*s.fetches, *s.feeds, *s.targets)]
        used = {n.split(":")[0] for n in used}
        graph_def = graph_util_impl.extract_sub_graph(graph_def, sorted(used))
        rename_nodes(graph_def, used)
    steps = []
    for step, answer in zip(build.steps, answered(build, build.asked or graph_def)):
        out = {"feeds": {k: rows.tensor_json(typed(graph_def, k, x))
                         for k, x in step.feeds.items()}}
        if step.fetches:
            out["fetches"] = step.fetches
        if step.targets:
            out["targets"] = step.targets
        if step.background:
            out["background"] = True
        if step.timeout_ms:
            out["timeout_ms"] = step.timeout_ms
        steps.append(out | answer)
    placed = {"placed": build.placed} if build.placed else {}
    return json.dumps({"name": name, **placed, **graph_field(graph_def, plain), "steps": steps},
                      separators=(",", ":"))


def typed(graph_def, name, value):
    """Converts a fed value to the dtype of its placeholder."""
    for node in graph_def.node:
        if node.name == name.split(":")[0] and "dtype" in node.attr:
            return np.asarray(value, tf.dtypes.as_dtype(node.attr["dtype"].type).as_numpy_dtype)
    return np.asarray(value)

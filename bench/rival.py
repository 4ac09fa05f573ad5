"""Times a frozen graph in TensorFlow, ONNX Runtime or OpenVINO in a fresh process, and prints JSON.

Usage: python bench/rival.py MODEL.pb --feeds F.npz --fetch NAME... [--threads N] [--seconds S]
           [--init OP] [--target OP] [--engine session|function|ort|openvino] [--no-optimize] [--once]

The JSON has the keys of `ferroflow bench --json`: load_s, first_s, median_s, min_s, p99_s, runs,
nodes, peak_rss_mb. load_s starts after the import of the library.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np


def read_graph(path):
    from tensorflow.core.framework import graph_pb2

    return graph_pb2.GraphDef.FromString(path.read_bytes())


def session(options, feeds):
    """A compiled call of a Session, with all arguments bound."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=options.threads, inter_op_parallelism_threads=options.threads)
    if options.no_optimize:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
    graph_def = read_graph(options.model)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    opened = tf.compat.v1.Session(graph=graph, config=config)
    fed = [graph.get_tensor_by_name(name) for name in feeds]
    fetched = [graph.get_tensor_by_name(name) for name in options.fetch]
    if options.init:
        opened.run(options.init)
    fetched += [graph.get_operation_by_name(name) for name in options.target]
    run = opened.make_callable(fetched, feed_list=fed)
    values = list(feeds.values())
    return (lambda: run(*values)), len(graph_def.node)


def function(options, feeds):
    """A call of a ConcreteFunction on existing tensors."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    graph_def = read_graph(options.model)
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
    call = wrapped.prune([wrapped.graph.get_tensor_by_name(name) for name in feeds],
                         [wrapped.graph.get_tensor_by_name(name) for name in options.fetch])
    values = [tf.constant(x) for x in feeds.values()]
    return (lambda: [x.numpy() for x in call(*values)]), len(graph_def.node)


def onnx_runtime(options, feeds):
    """The graph converted by tf2onnx, in an inference session."""
    import onnxruntime
    import tf2onnx

    model, _ = tf2onnx.convert.from_graph_def(
        read_graph(options.model), input_names=list(feeds), output_names=options.fetch, opset=18)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    opened = onnxruntime.InferenceSession(model.SerializeToString(), settings,
                                          providers=["CPUExecutionProvider"])
    return (lambda: opened.run(options.fetch, feeds)), len(model.graph.node)


def openvino_model(options, feeds):
    """The graph read by OpenVINO, compiled for latency and for the shapes of the feeds."""
    import openvino

    core = openvino.Core()
    model = core.read_model(options.model)
    model.reshape({name: openvino.PartialShape(list(x.shape)) for name, x in feeds.items()})
    compiled = core.compile_model(model, "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": options.threads, "NUM_STREAMS": 1,
        # TensorFlow's precision: without this it computes in bfloat16 where the processor can.
        "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    wanted = [compiled.output(name) for name in options.fetch]

    def run():
        request.infer(feeds)
        return [request.get_tensor(output).data for output in wanted]

    return run, len(model.get_ops())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--feeds", type=Path, required=True)
    parser.add_argument("--fetch", action="append", required=True)
    parser.add_argument("--init", action="append", default=[], help="ops to run once before")
    parser.add_argument("--target", action="append", default=[], help="ops to run besides the fetches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--engine", choices=["session", "function", "ort", "openvino"], default="session")
    parser.add_argument("--no-optimize", action="store_true")
    parser.add_argument("--once", action="store_true", help="load, answer once, end")
    options = parser.parse_args()
    with np.load(options.feeds) as stored:
        feeds = {key: stored[key] for key in stored.files if not key.startswith("out/")}
    make = {"session": session, "function": function, "ort": onnx_runtime,
            "openvino": openvino_model}[options.engine]
    if options.engine == "ort":
        import tf2onnx  # noqa: F401  not part of loading
    elif options.engine == "openvino":
        import openvino  # noqa: F401  not part of loading
    else:
        import tensorflow as tf

        if options.engine == "session":
            tf.compat.v1.disable_eager_execution()

    begin = time.perf_counter()
    run, nodes = make(options, feeds)
    loaded = time.perf_counter()
    run()
    answered = time.perf_counter()
    times = []
    if not options.once:
        for _ in range(3):
            run()
        end = time.perf_counter() + options.seconds
        while time.perf_counter() < end or len(times) < 5:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    times = np.array(times or [answered - loaded])
    print(json.dumps({
        "load_s": loaded - begin,
        "first_s": answered - loaded,
        "median_s": float(np.median(times)),
        "min_s": float(times.min()),
        "p99_s": float(np.quantile(times, 0.99)),
        "runs": len(times),
        "nodes": nodes,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))


if __name__ == "__main__":
    main()

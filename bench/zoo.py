"""Builds the benchmark's networks and freezes each to a GraphDef.

Usage: python bench/zoo.py DIR [NAME...]

Writes DIR/<name>.pb, DIR/<name>.json (inputs and outputs) and DIR/<name>.b<N>.npz (feeds by tensor
name, TensorFlow's answers under out/<tensor name>) for every tf.keras.applications network and the
networks of bench/zoo_extra.py and bench/zoo_more.py. All weights are random and seeded, so nothing is downloaded. Each
batch normalization gets the statistics its input really has, shaken a little, and scales, offsets
and biases are random: activations keep a sane size, answers differ between inputs and classes, and
an optimization that folds wrongly shows. Images whose answer hangs on the rounding of their last bit are drawn
again. Existing files are kept. bench/zoo_ops.txt receives the
counts of the ops in DIR.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

HERE = Path(__file__).resolve().parent
FIRST = ["MobileNetV2", "ResNet50", "EfficientNetB0", "InceptionV3", "bert_tiny", "bert_base", "mlp"]
EXTRA = ["bert_tiny", "bert_base", "mlp", "lstm", "lstm_while", "resnet18_fused"]
LARGE = 250_000_000
BATCHES = {"lstm": (1, 3, 8), "lstm_while": (1, 3, 8)}


def all_names():
    import tensorflow as tf

    import zoo_more

    found = [name for name in dir(tf.keras.applications) if name[0].isupper()]
    return FIRST + EXTRA[3:] + sorted(set(found) - set(FIRST)) + list(zoo_more.MODELS)


def images(rng, count, shape, low, high):
    """Generates smooth color patterns of varied contrast with some noise, all different."""
    import numpy as np
    import tensorflow as tf

    height, width, channels = shape
    coarse = rng.normal(size=(count, 5, 5, channels)) + 0.3 * rng.normal(size=(count, 1, 1, channels))
    smooth = tf.image.resize(coarse, (height, width), method="bicubic").numpy()
    smooth *= rng.uniform(0.8, 1.1, (count, 1, 1, 1))
    pattern = smooth + 0.2 * rng.normal(size=(count, height, width, channels))
    unit = 1 / (1 + np.exp(-pattern))
    return (low + (high - low) * unit).astype(np.float32)


def randomize(model, rng):
    """Draws every weight, by a distribution that depends on the variable's name."""
    import numpy as np

    for layer in model.layers:
        values = []
        for variable in layer.weights:
            name, shape = variable.name, tuple(variable.shape)
            if "kernel" in name:
                depthwise = "depthwise" in name or type(layer).__name__ == "DepthwiseConv2D"
                fan_in = np.prod(shape[:2]) if depthwise else np.prod(shape[:-1])
                value = rng.normal(0, np.sqrt(2 / fan_in), shape)
            elif name == "gamma" and type(layer).__name__ == "LayerScale":
                value = rng.uniform(0.1, 0.4, shape)
            elif name == "gamma":
                value = rng.uniform(0.7, 1.3, shape)
            elif name in ("beta", "bias"):
                value = rng.normal(0, 0.1, shape)
            else:
                value = variable.numpy()
            values.append(value)
        if values:
            layer.set_weights(values)


def damp_branches(model):
    """Scales down residual branches, as training does: a deep network of random branches of full
    size is chaotic, the last bit of its input decides the answer."""
    for layer in model.layers:
        if type(layer).__name__ != "Add":
            continue
        for tensor in layer.input:
            before = tensor._keras_history.operation
            while type(before).__name__ == "Dropout":
                before = before.input._keras_history.operation
            if type(before).__name__ == "BatchNormalization":
                before.gamma.assign(before.gamma * 0.25)


def calibrate(model, batch, rng):
    """Sets the statistics of each batch normalization to those of its input, then shakes them."""
    import tensorflow as tf

    norms = []
    for layer in model.layers:
        if type(layer).__name__ == "BatchNormalization":
            norms.append((layer, layer.momentum))
            layer.momentum = 0.0
        elif type(layer).__name__ == "Dropout":
            layer.rate = 0.0
    if not norms:
        return
    tf.function(lambda x: model(x, training=True))(batch)
    for layer, momentum in norms:
        layer.momentum = momentum
        mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
        layer.moving_mean.assign(mean + rng.normal(0, 0.05, mean.shape) * variance**0.5)
        layer.moving_variance.assign(variance * rng.uniform(0.9, 1.1, mean.shape) + 1e-3)


def spread_logits(model, batch):
    """Scales the classifier so that scores are not saturated."""
    import numpy as np
    import tensorflow as tf

    last = model.layers[-1]
    if type(last).__name__ == "Dense":
        before = tf.keras.Model(model.input, last.input)
        # One image at a time: large networks would not fit into memory otherwise.
        features = np.concatenate([before(image[None], training=False).numpy() for image in batch])
        logits = features.reshape(len(batch), -1) @ last.kernel.numpy()
        last.kernel.assign(last.kernel * (2.0 / logits.std(1).max()))


def application(name):
    """Returns one of tf.keras.applications, its inputs, and a generator of feeds."""
    import numpy as np
    import tensorflow as tf

    model = getattr(tf.keras.applications, name)(weights=None)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    kinds = {type(layer).__name__ for layer in model.layers}
    low, high = (0, 255) if kinds & {"Rescaling", "Normalization"} else (-1, 1)
    declared = model.input_shape[1:]
    shape = tuple(side or 224 for side in declared)  # some accept any size
    randomize(model, rng)
    damp_branches(model)
    size = 3 if shape[0] > 400 else 8
    calibrate(model, images(rng, size, shape, low, high), rng)
    spread_logits(model, images(rng, 16, shape, low, high))
    spec = [tf.TensorSpec((None, *declared), tf.float32, name="x")]

    def feeds(count):
        return [images(rng, count, shape, low, high)]

    return (lambda x: {"probabilities": model(x, training=False)}), spec, feeds


def freeze(call, spec, lower):
    """Returns the frozen GraphDef and callable of a function of tensors to named tensors."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    function = tf.function(lambda *xs: {k: tf.identity(v, name=k) for k, v in call(*xs).items()})
    concrete = function.get_concrete_function(*spec)
    weights = sum(variable.shape.num_elements() for variable in concrete.variables)
    if weights >= LARGE:
        # Keras compiles some convolutions separately, where they would not be inlined.
        plain, tf.function = tf.function, lambda *of, jit_compile=None, **more: plain(*of, **more)
        concrete = plain(function.python_function).get_concrete_function(*spec)
        tf.function = plain
        return InPlace(concrete, len(spec))
    return convert_variables_to_constants_v2(concrete, lower_control_flow=lower)


class InPlace:
    """Returns a function with its variables, and its GraphDef with constants instead: TensorFlow's own way
    takes more copies of the weights than fit into 24 GB."""

    def __init__(self, concrete, count):
        self.concrete, self.graph = concrete, self
        self.inputs, self.outputs = concrete.inputs[:count], concrete.outputs

    def __call__(self, *arrays):
        return list(self.concrete(*arrays).values())

    def as_graph_def(self):
        import tensorflow as tf

        from tensorflow.python.framework import convert_to_constants

        captured = {inner.op.name: outer for outer, inner in self.concrete.graph.captures}
        variables = {name: name for name, value in captured.items() if value.dtype == tf.resource}
        given = convert_to_constants._run_inline_graph_optimization(self.concrete, True, True)
        # Inlined calls pass variables on.
        handed_on = {n.name: n.input[0].split(":")[0] for n in given.node
                     if n.op == "Identity" and n.attr["T"].type == tf.resource.as_datatype_enum}
        for name in handed_on:
            source = name
            while source in handed_on:
                source = handed_on[source]
            variables[name] = source
        out = tf.compat.v1.GraphDef()
        out.versions.CopyFrom(given.versions)
        for node in given.node:
            reads = node.op == "ReadVariableOp"
            if node.name in variables and not reads:
                continue
            source = variables[node.input[0].split(":")[0]] if reads else node.name
            if source not in captured:
                assert not any(i.split(":")[0] in variables for i in node.input), node
                out.node.add().CopyFrom(node)
                continue
            value = captured[source]
            if reads:
                value = tf.raw_ops.ReadVariableOp(resource=value, dtype=node.attr["dtype"].type)
            constant = out.node.add(name=node.name, op="Const")
            constant.attr["dtype"].type = value.dtype.as_datatype_enum
            proto = constant.attr["value"].tensor
            proto.dtype = value.dtype.as_datatype_enum
            proto.tensor_shape.CopyFrom(value.shape.as_proto())
            proto.tensor_content = value.numpy().tobytes()
        return out


def build(directory, name):
    """Builds, freezes and runs one network."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(zlib.crc32(name.encode()))
    if name in EXTRA:
        import zoo_extra

        call, spec, feeds = zoo_extra.build(name)
    elif name[0].islower():
        import zoo_more

        call, spec, feeds = zoo_more.build(name)
    else:
        call, spec, feeds = application(name)
    frozen = freeze(call, spec, lower=name != "lstm_while")
    dtype_names = {tf.float32: "float", tf.int32: "int32", tf.bool: "bool"}
    outputs = [tensor.name for tensor in frozen.outputs]
    about = {
        "inputs": [
            {"name": tensor.name, "shape": [-1 if d is None else d for d in tensor.shape],
             "dtype": dtype_names[tensor.dtype]}
            for tensor in frozen.inputs
        ],
        "outputs": outputs,
    }
    for count in BATCHES.get(name, (1, 3)):
        arrays, answers = steady(frozen, feeds, count)
        stored = {t.name: x for t, x in zip(frozen.inputs, arrays)}
        stored |= {f"out/{key}": x for key, x in zip(outputs, answers)}
        np.savez(directory / f"{name}.b{count}.npz", **stored)
        if count == 3:
            report(name, answers)
    (directory / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    part = directory / f"{name}.part"
    part.write_bytes(frozen.graph.as_graph_def().SerializeToString(deterministic=True))
    part.rename(directory / f"{name}.pb")


def steady(frozen, feeds, count):
    """Returns feeds, and results that do not depend on rounding: random weights may make a network whose result for
    some image moves by more than a comparison allows when the image's last bits change."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(count)

    def shaken(x):
        if x.dtype != np.float32:
            return x
        return (x * (1 + 1e-7 * rng.choice([-1, 1], x.shape))).astype(np.float32)

    run = lambda arrays: [np.asarray(x) for x in frozen(*[tf.constant(x) for x in arrays])]
    for _ in range(12):
        arrays = feeds(count)
        answers = run(arrays)
        moved = [abs(a - b).max() / abs(a).max() for a, b in zip(answers, run([shaken(x) for x in arrays]))]
        if max(moved) <= 3e-5:
            return arrays, answers
        print(f"rounding moves the answer by {max(moved):.1e}: other images", flush=True)
    raise RuntimeError("no images whose answer can be compared")


def report(name, answers):
    """Returns how much the results differ between inputs and within one; neither may be near zero."""
    for x in answers:
        peak = abs(x).max()
        print(f"{name}: {x.shape} peak {peak:.3g}, spread over inputs {x.std(0).mean() / peak:.3g},"
              f" over elements {x.reshape(len(x), -1).std(1).mean() / peak:.3g}", flush=True)


def histogram(directory):
    """Counts the ops of all graphs, function bodies included."""
    from tensorflow.core.framework import graph_pb2

    nodes, models = collections.Counter(), collections.Counter()
    names = sorted(directory.glob("*.pb"))
    for path in names:
        graph = graph_pb2.GraphDef.FromString(path.read_bytes())
        found = collections.Counter(node.op for node in graph.node)
        for function in graph.library.function:
            found.update(node.op for node in function.node_def)
        nodes.update(found)
        models.update(found.keys())
    lines = ["# op, nodes, networks", f"# {' '.join(path.stem for path in names)}"]
    lines += [f"{op} {nodes[op]} {models[op]}" for op in sorted(nodes)]
    (HERE / "zoo_ops.txt").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", action="store_true", help="build here, not in a fresh process")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.one:
        build(options.directory, options.names[0])
        return
    failed = []
    for name in options.names or all_names():
        if not (options.directory / f"{name}.pb").exists():
            command = [sys.executable, __file__, str(options.directory), name, "--one"]
            if subprocess.run(command).returncode:
                failed.append(name)
    histogram(options.directory)
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()

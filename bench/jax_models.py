"""Times models of Flax that jax2tf exports as SavedModels, in TensorFlow, which compiles their StableHLO with XLA, and here.

Usage: python bench/jax_models.py [--ferroflow PATH] [--rounds N] [NAME...]

Needs jax, flax and tensorflow. One thread; milliseconds, the best of rounds taken in turn.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["JAX_PLATFORMS"] = "cpu"

import flax.linen as nn
import jax
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class Block(nn.Module):
    width: int
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        norm = lambda: nn.BatchNorm(use_running_average=True)
        y = nn.relu(norm()(nn.Conv(self.width, (3, 3), (self.stride, self.stride), use_bias=False)(x)))
        y = norm()(nn.Conv(self.width, (3, 3), use_bias=False)(y))
        if x.shape != y.shape:
            x = nn.Conv(self.width, (1, 1), (self.stride, self.stride), use_bias=False)(x)
        return nn.relu(y + x)


class ResNet18(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(64, (7, 7), (2, 2), use_bias=False)(x)
        x = nn.max_pool(nn.relu(nn.BatchNorm(use_running_average=True)(x)), (3, 3), (2, 2), "SAME")
        for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
            x = Block(width, stride)(x)
        return nn.Dense(1000)(x.mean((1, 2)))


class Layer(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x, mask=None):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads)(y, y, mask=mask)
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class ViT(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(384, (16, 16), (16, 16))(x)
        x = x.reshape(x.shape[0], -1, 384) + self.param("places", nn.initializers.normal(), (1, 196, 384))
        for _ in range(6):
            x = Layer(6)(x)
        return nn.Dense(1000)(nn.LayerNorm()(x).mean(1))


class Language(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(1000, 256)(tokens) + self.param("places", nn.initializers.normal(), (1, 64, 256))
        mask = nn.make_causal_mask(tokens)
        for _ in range(4):
            x = Layer(8)(x, mask)
        return nn.Dense(1000)(nn.LayerNorm()(x))


class Lstm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.RNN(nn.LSTMCell(128))(x)[:, -1])


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = nn.relu(nn.Dense(512)(x))
        return nn.Dense(10)(x)


# The shape and the dtype of the input, and its open dimensions as jax2tf takes them.
MODELS = {
    "resnet18": (ResNet18(), (1, 224, 224, 3), np.float32, "b, _, _, _"),
    "vit": (ViT(), (1, 224, 224, 3), np.float32, None),
    "language": (Language(), (2, 64), np.int32, None),
    "lstm": (Lstm(), (8, 32, 64), np.float32, None),
    "mlp": (Mlp(), (32, 784), np.float32, "b, _"),
}


def export(name, folder):
    """Saves a model; returns its input."""
    model, shape, dtype, poly = MODELS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(dtype) if dtype == np.float32 else rng.integers(0, 1000, shape).astype(dtype)
    weights = jax.tree_util.tree_map(np.asarray, model.init(jax.random.PRNGKey(0), x))
    program = jax2tf.convert(model.apply, polymorphic_shapes=[None, poly], with_gradient=False)
    module = tf.Module()
    module.weights = tf.nest.map_structure(lambda a: tf.Variable(a, trainable=False), weights)
    module.list = tf.nest.flatten(module.weights)
    spec = tf.TensorSpec([None if poly else shape[0], *shape[1:]], dtype, name="x")
    run = tf.function(lambda x: {"y": program(module.weights, x)}, autograph=False, input_signature=[spec])
    tf.saved_model.save(module, folder, signatures={"serving_default": run})
    return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--ferroflow", default="target/release/ferroflow")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| model | TensorFlow | Ferroflow | ratio | difference |\n|---|--:|--:|--:|--:|")
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            x = export(name, f"{folder}/model")
            feeds = Path(folder) / "feeds.npz"
            np.savez(feeds, x=x)
            signature = tf.saved_model.load(f"{folder}/model").signatures["serving_default"]
            given = tf.constant(x)
            expected = signature(x=given)["y"].numpy()

            def step():
                start = time.perf_counter()
                signature(x=given)["y"].numpy()
                return time.perf_counter() - start

            model = [options.ferroflow, "bench", f"{folder}/model", "--feed", f"x=@{feeds}:x", "--fetch", "y", "--threads", "1"]
            theirs, ours = [], []
            for _ in range(options.rounds):
                theirs.append(sorted(step() for _ in range(max(5, int(0.4 / step()))))[2])
                result = subprocess.run([*model, "--json"], capture_output=True, check=True)
                ours.append(json.loads(result.stdout)["median_s"])
            out = Path(folder) / "out.npz"
            subprocess.run([options.ferroflow, "run", *model[2:7], "--out", out], check=True,
                           capture_output=True)
            got = np.load(out)
            got = got[got.files[0]]
            difference = np.abs(got - expected).max() / np.abs(expected).max()
            print(f"| {name} | {min(theirs) * 1e3:.2f} | {min(ours) * 1e3:.2f} | {min(theirs) / min(ours):.2f} | {difference:.0e} |")


if __name__ == "__main__":
    main()

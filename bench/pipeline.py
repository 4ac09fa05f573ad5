"""Times an input pipeline in TensorFlow and Ferroflow, in turn: JPEG files are read, decoded, augmented, shuffled, batched
and prefetched; images a second.

Usage: python bench/pipeline.py [--images 512] [--size 320x240] [--batch 32] [--threads 1,2] [--seconds S] [--rounds N]
                                [--ferroflow PATH]

Both run the same graph: a one-shot iterator over the dataset, of whose batch the mean is fetched. The files are photographs
in kind, smooth shapes with noise, at quality 90 with halved chroma. For each number of threads, both are bound to as many
processors: a session of TensorFlow with one thread has others for its datasets, and uses 1.9 processors.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np

from common import call, heading, last_json, parser, table

SIDE = 224


def write_images(tf, folder, count, width, height):
    """Writes JPEG files of smooth shapes with noise; returns their names."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[0:height, 0:width]
    names = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        pixels = tf.compat.v1.placeholder(tf.uint8, [height, width, 3])
        encoded = tf.io.encode_jpeg(pixels, quality=90)
        for i in range(count):
            wave = rng.uniform(0.005, 0.08, (3, 2))
            image = np.stack([np.sin(x * a + y * b + i) for a, b in wave], -1) * 90 + 128
            image += rng.normal(0, 9, image.shape)
            names.append(str(folder / f"{i}.jpg"))
            data = session.run(encoded, {pixels: np.clip(image, 0, 255).astype(np.uint8)})
            Path(names[-1]).write_bytes(data)
    return names


def build(tf, names, batch):
    """Returns the graph of the pipeline and the name of what is fetched."""
    def load(name):
        image = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        image = tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), [SIDE + 32, SIDE + 32])
        image = tf.image.random_crop(image, [SIDE, SIDE, 3], seed=1)
        image = tf.image.random_flip_left_right(image, seed=2)
        image = tf.image.random_brightness(image, 0.2, seed=3)
        return tf.image.random_contrast(image, 0.8, 1.2, seed=4)

    with tf.Graph().as_default() as graph:
        files = tf.data.Dataset.from_tensor_slices(names).repeat().shuffle(1024, seed=5)
        images = files.map(load, num_parallel_calls=tf.data.AUTOTUNE).shuffle(128, seed=6)
        batches = images.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        images = tf.compat.v1.data.make_one_shot_iterator(batches).get_next()
        mean = tf.reduce_mean(images, name="mean")
    return graph, mean.name


def theirs(tf, graph, fetch, threads, seconds):
    """Returns TensorFlow's seconds for each batch."""
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        run = session.make_callable(fetch)
        for _ in range(8):
            run()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            run()
            count += 1
        return (time.perf_counter() - begin) / count


def ours(binary, path, fetch, threads, seconds):
    """Returns Ferroflow's seconds for each batch; the last one may end after the time."""
    figures = last_json(call([binary, "bench", path, "--fetch", fetch, "--threads", threads, "--seconds", seconds, "--json"]))
    return seconds / figures["runs"]


def main():
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=512)
    options.add_argument("--size", default="320x240")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--threads", default="1,2")
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("--rounds", type=int, default=2)
    options = options.parse_args()
    threads = [int(n) for n in options.threads.split(",")]
    if len(threads) == 1:
        print(json.dumps({"row": measured(options, threads[0])}))
        return
    # Sessions of one process share their threads: each number has a process of its own.
    rows = [last_json(call([sys.executable, __file__, *sys.argv[1:], "--threads", n]))["row"] for n in threads]
    print(heading(), "\n")
    print(table(["processors", "TensorFlow, images/s", "Ferroflow", "ratio"], rows))


def measured(options, threads):
    """Returns the row of a number of processors."""
    import tensorflow as tf

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    width, height = (int(n) for n in options.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        names = write_images(tf, folder, options.images, width, height)
        graph, fetch = build(tf, names, options.batch)
        path = folder / "pipeline.pb"
        path.write_bytes(graph.as_graph_def().SerializeToString())
        a = b = float("inf")
        for _ in range(options.rounds):
            a = min(a, theirs(tf, graph, fetch, threads, options.seconds))
            b = min(b, ours(options.ferroflow, path, fetch, threads, options.seconds))
        return [threads, *(f"{options.batch / s:.0f}" for s in (a, b)), f"{a / b:.2f}"]


if __name__ == "__main__":
    main()

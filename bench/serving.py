"""Measures `ferroflow serve`: tiny requests, ResNet50, batching, and FastAPI with TensorFlow.

Usage: python bench/serving.py target/release/ferroflow --clients target/release/examples/serving_clients
           [--models FOLDER] [--seconds N] [--only tiny,start,batching,fastapi]

Prints a table. Clients take little: `cargo build --release -p ferroflow-serving --example serving_clients`. FastAPI is
measured where `fastapi` and `uvicorn` are installed. Everything runs on this machine, one after the other.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", PYTHONHASHSEED="0")
FASTAPI = """
import sys
import numpy as np, tensorflow as tf, uvicorn
from fastapi import FastAPI, Request
app = FastAPI()
f = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
@app.post("/v1/models/tiny:predict")
async def predict(request: Request):
    x = np.array((await request.json())["instances"], np.float32)
    return {"predictions": f(x=tf.constant(x))["y"].numpy().tolist()}
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
"""


def write_models(folder):
    """Writes the SavedModels that are missing."""
    names = ("tiny", "mlp", "deep", "mobilenet", "resnet50")
    if all((folder / n / "1/saved_model.pb").is_file() for n in names):
        return
    import numpy as np
    import tensorflow as tf

    class Tiny(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def __call__(self, x):
            return {"y": x * 0.5 + 2.0}

    class Mlp(tf.Module):
        def __init__(self, n_layers):
            super().__init__()
            random = np.random.default_rng(0)
            make = lambda: tf.Variable(random.normal(0, 0.06, (256, 256)).astype(np.float32))
            self.layers = [make() for _ in range(n_layers)]

        @tf.function(input_signature=[tf.TensorSpec([None, 256], tf.float32, "x")])
        def __call__(self, x):
            for w in self.layers:
                x = tf.nn.relu(x @ w)
            return {"y": x}

    # The weights of the one take 4 MB, which caches hold, those of the other 67 MB, which are read from memory for each row.
    for name, model in (("tiny", Tiny()), ("mlp", Mlp(16)), ("deep", Mlp(256))):
        tf.saved_model.save(model, str(folder / name / "1"), signatures=model.__call__)
    def answer(net):
        return lambda x: {"y": net(x, training=False)}

    applications = tf.keras.applications
    for name, build in (("mobilenet", applications.MobileNetV2), ("resnet50", applications.ResNet50)):
        net = build(weights=None)
        # tf.saved_model.save writes variables of Keras 3 that TensorFlow's own loader does not restore.
        archive = tf.keras.export.ExportArchive()
        archive.track(net)
        spec = tf.TensorSpec([None, 224, 224, 3], tf.float32, "x")
        archive.add_endpoint("serve", answer(net), input_signature=[spec])
        archive.write_out(str(folder / name / "1"))


class Server:
    def __init__(self, binary, folder, models, *flags):
        named = [f"--model={m}={folder / m}" for m in models]
        command = [binary, "serve", "--port=0", "--rest-api-port=0", "--host=127.0.0.1", *named, *flags]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = [self.process.stdout.readline().split()[-1] for _ in range(2)]
        self.grpc, self.rest = lines[0], lines[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def memory(self):
        """Resident and private memory, MB."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        kb = lambda key: sum(int(n) for n in re.findall(rf"^{key}:\s+(\d+)", text, re.M))
        return kb("Rss") / 1024, (kb("Private_Dirty")) / 1024


def load(clients, protocol, address, model, dims, n, seconds, rate=None):
    address = address.removeprefix("http://")
    command = [clients, protocol, address, model, "x", dims, str(n), str(seconds), *([] if rate is None else [str(rate)])]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.match(r"(\d+) requests/s, p50 (\d+) us, p99 (\d+) us", done.stdout)
    if not found:
        print(f"{' '.join(command)}: {done.stdout}{done.stderr}"[:500], file=sys.stderr)
        return 0, 0, 0
    return tuple(map(int, found.groups()))


def report(name, figures, extra=""):
    rate, p50, p99 = figures
    print(f"| {name} | {rate} | {p50} | {p99} | {extra} |", flush=True)


def tiny(args, folder):
    with Server(args.server, folder, ["tiny"]) as s:
        for protocol, address in (("grpc", s.grpc), ("rest", s.rest)):
            for n in (1, 16):
                figures = load(args.clients, protocol, address, "tiny", "1", n, args.seconds)
                report(f"tiny, {protocol}, {n} connections", figures)
            half = load(args.clients, protocol, address, "tiny", "1", n, args.seconds, figures[0] / 2)
            report(f"tiny, {protocol}, {n} connections, half load", half)


def first_answer(server, size):
    row = "[" + ",".join(["[" + ",".join(["[0.5,0.5,0.5]"] * size) + "]"] * size) + "]"
    body = f'{{"instances": [{row}]}}'.encode()
    prepared = urllib.request.Request(server.rest + "/v1/models/resnet50:predict", body)
    with urllib.request.urlopen(prepared) as answer:
        answer.read()
    return time.perf_counter() - server.began


def start(args, folder):
    with tempfile.TemporaryDirectory() as cache:
        for name, flags in (
            ("without cache", []),
            ("filling the cache", [f"--compiled-cache={cache}"]),
            ("from cache", [f"--compiled-cache={cache}"]),
        ):
            with Server(args.server, folder, ["resnet50"], *flags) as s:
                ready = time.perf_counter() - s.began
                try:
                    answered = first_answer(s, 224)
                except urllib.error.HTTPError as e:
                    print(f"| ResNet50 start {name}: {e.read()[:200]} | | | | |", flush=True)
                    break
                print(f"| ResNet50 start {name}: ready {ready * 1e3:.0f} ms, first answer (REST, 150,528 numbers) {answered * 1e3:.0f} ms | | | | |", flush=True)
    with tempfile.TemporaryDirectory() as many:
        for i in range(10):
            os.symlink(folder / "tiny", Path(many) / f"m{i}")
        with Server(args.server, Path(many), [f"m{i}" for i in range(10)]) as s:
            resident, private = s.memory()
            print(f"| ten tiny models idle: {resident:.0f} MB resident, {private:.0f} MB of it written | | | | |", flush=True)
    with Server(args.server, folder, ["resnet50"]) as s:
        figures = load(args.clients, "grpc", s.grpc, "resnet50", "1,224,224,3", 1, args.seconds)
        report("ResNet50, grpc, 1 connection", figures)


def batching(args, folder):
    config = folder / "batching.config"
    for model, dims, rows, timeout in (
        ("mlp", "1,256", 32, 2000),
        ("deep", "1,256", 32, 2000),
        ("mobilenet", "1,224,224,3", 16, 20000),
    ):
        config.write_text(
            f"max_batch_size {{ value: {rows} }} batch_timeout_micros {{ value: {timeout} }} "
            "max_enqueued_batches { value: 100 } num_batch_threads { value: 2 }"
        )
        rates = []
        for name, flags in (
            ("unbatched", []),
            ("batched", ["--enable-batching", f"--batching-parameters-file={config}"]),
            ("adaptive", ["--adaptive-batching"]),
        ):
            with Server(args.server, folder, [model], *flags) as s:
                figures = load(args.clients, "grpc", s.grpc, model, dims, 64, args.seconds)
            rates.append(figures[0])
            report(f"{model}, grpc, 64 connections, {name}", figures, f"{figures[0] / max(1, rates[0]):.2f} ×")


def fastapi(args, folder):
    try:
        import fastapi as _  # noqa: F401
        import uvicorn as _  # noqa: F401
    except ImportError:
        print("| FastAPI is not installed | | | | |")
        return
    command = [sys.executable, "-c", FASTAPI, str(folder / "tiny/1"), "18777"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            time.sleep(0.5)
            try:
                urllib.request.urlopen("http://127.0.0.1:18777/docs").read()
                break
            except OSError:
                pass
        figures = load(args.clients, "rest", "127.0.0.1:18777", "tiny", "1", 16, args.seconds)
        report("tiny, FastAPI + uvicorn + TensorFlow, 16 connections", figures)
    finally:
        process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("--clients", required=True)
    parser.add_argument("--models", type=Path, default=Path("bench/.serving"))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", default="tiny,start,batching,fastapi")
    args = parser.parse_args()
    folder = args.models.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_models(folder)
    print("| what | requests/s | p50 µs | p99 µs | |\n|---|--:|--:|--:|---|", flush=True)
    for name in args.only.split(","):
        {"tiny": tiny, "start": start, "batching": batching, "fastapi": fastapi}[name](args, folder)


if __name__ == "__main__":
    main()

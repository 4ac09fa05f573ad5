"""Mixed load on `ferroflow serve` while versions come and go; no good request may fail and the memory must stay flat.

    python interop/serving_soak.py --server target/release/ferroflow [--minutes 30]

Good clients of both protocols run next to clients that hang, disconnect and send rubbish. Every 20 seconds a new version
replaces the last one; every third one is broken. Installs grpcio, in a virtual environment of its own, where it is
missing. Prints figures each minute; ends with 1 if a good request failed, if the server died, or if its memory, threads
or open files grew in the last third of the time.
"""

import argparse
import errno
import gzip
import http.client
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import venv

try:
    import grpc
except ImportError:
    grpc = None

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../crates/serving/tests/models/half")
SWAP = 20
PREDICT = "/tensorflow.serving.PredictionService/Predict"


def with_grpc():
    """Runs this program again in a virtual environment that has grpcio."""
    folder = os.path.join(tempfile.gettempdir(), "ferroflow-soak-venv")
    python = os.path.join(folder, "bin/python")
    if not os.path.exists(os.path.join(folder, "ready")):
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "grpcio"], check=True)
        open(os.path.join(folder, "ready"), "w").close()
    os.execv(python, [python, *sys.argv])


class World:
    def __init__(self, grpc_at, rest_at):
        self.grpc_at, self.rest_at = grpc_at, rest_at
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.counts, self.failures = {}, []

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + n

    def fail(self, what):
        with self.lock:
            self.failures.append(what)
        print("FAILED:", what[:1000], flush=True)

    def connect(self, address):
        host, port = address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=30)


def field(number, data):
    """A length-delimited field of a message."""
    size, n = b"", len(data)
    while n > 127:
        size, n = size + bytes([n & 127 | 128]), n >> 7
    return bytes([number << 3 | 2]) + size + bytes([n]) + data


def predict_request(values):
    """A PredictRequest of the model `half`."""
    tensor = b"\x08\x01" + field(2, field(2, b"\x08" + bytes([len(values)]))) + field(4, struct.pack(f"<{len(values)}f", *values))
    return field(1, field(1, b"half")) + field(2, field(1, b"x") + field(2, tensor))


def expected(values):
    """The answers of the two versions."""
    return [[v / 2 + plus for v in values] for plus in (2, 3)]


def good_rest(world, pick):
    connection = http.client.HTTPConnection(world.rest_at, timeout=60)

    def ask(method, path, body=None, **headers):
        if body is not None and pick.random() < 0.2:
            body, headers = gzip.compress(body.encode()), {"Content-Encoding": "gzip"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text)

    while not world.stop.is_set():
        values = [pick.randrange(64) * 1.0 for _ in range(pick.choice([1, 2, 3, 30]))]
        try:
            match pick.randrange(6):
                case 0:
                    got = ask("POST", "/v1/models/half:predict", json.dumps({"instances": values}))["predictions"]
                    assert got in expected(values), got
                case 1:
                    got = ask("POST", "/v1/models/half:predict", json.dumps({"inputs": {"x": values}}))["outputs"]
                    assert got in expected(values), got
                case 2:
                    body = {"signature_name": "regress", "examples": [{"x": v} for v in values]}
                    got = ask("POST", "/v1/models/half:regress", json.dumps(body))["results"]
                    assert len(got) == len(values), got
                case 3:
                    body = {"signature_name": "classify", "examples": [{"x": v} for v in values]}
                    got = ask("POST", "/v1/models/half:classify", json.dumps(body))["results"]
                    assert [c[0][0] for c in got] == ["yes"] * len(values), got
                case 4:
                    states = ask("GET", "/v1/models/half")["model_version_status"]
                    assert any(s["state"] == "AVAILABLE" for s in states), states
                case _:
                    assert "signature_def" in ask("GET", "/v1/models/half/metadata")["metadata"]
            world.count("good REST")
        except Exception as e:
            world.fail(f"REST: {type(e).__name__} {e}")
            connection.close()
            time.sleep(1)


def good_grpc(world, pick):
    channel = grpc.insecure_channel(world.grpc_at)
    predict = channel.unary_unary(PREDICT)
    while not world.stop.is_set():
        large = pick.random() < 0.05
        values = [1.0] * 120 if large else [pick.randrange(64) * 1.0 for _ in range(3)]
        try:
            answer = predict(predict_request(values), timeout=60)
            floats = [struct.pack(f"<{len(values)}f", *e) for e in expected(values)]
            assert any(f in answer for f in floats), answer
            world.count("good gRPC")
        except Exception as e:
            world.fail(f"gRPC: {type(e).__name__} {e}")
            time.sleep(1)


BAD = (
    ("half:predict", b"rubbish", 400),
    ("half:predict", b'{"instances": [[1], [2, 3]]}', 400),
    ("half:predict", b'{"instances": ["a"]}', 400),
    ("half:predict", b'{"instances": [{"b64": "a==="}]}', 400),
    ("half:predict", b'{"instances": [' + b"[" * 5000, 400),
    ("half:predict", b'{"signature_name": "no", "instances": [1]}', 400),
    ("half:predict", b" " * 3_000_000, 413),
    ("half/versions/999999:predict", b'{"instances": [1]}', 404),
    ("nope:predict", b'{"instances": [1]}', 404),
    ("half:explain", b"{}", 400),
)


def bad_rest(world, pick):
    while not world.stop.is_set():
        path, body, status = pick.choice(BAD)
        connection = http.client.HTTPConnection(world.rest_at, timeout=60)
        try:
            connection.request("POST", f"/v1/models/{path}", body)
            got = connection.getresponse().status
            if got != status:
                world.fail(f"{path} {body[:60]}: {got} instead of {status}")
            world.count("bad REST")
        except OSError:
            # The server closes the connection of a body that it refuses before it is read.
            if status != 413:
                world.fail(f"{path} {body[:60]}: no response")
        connection.close()
        time.sleep(0.02)


def bad_grpc(world, pick):
    while not world.stop.is_set():
        # A new channel each time: the options keep channels from sharing a connection.
        with grpc.insecure_channel(world.grpc_at, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            predict = channel.unary_unary(PREDICT)
            for _ in range(20):
                good = predict_request([1.0, 2.0])
                match pick.randrange(3):
                    case 0:
                        message = bytes(pick.randrange(256) for _ in range(pick.randrange(1, 60)))
                    case 1:
                        message = good[: pick.randrange(1, len(good))]
                    case _:
                        call = predict.future(good)
                        call.cancel()
                        world.count("cancelled gRPC")
                        continue
                try:
                    predict(message, timeout=60)
                except grpc.RpcError as e:
                    if e.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED):
                        world.fail(f"bad gRPC {message}: {e.code()} {e.details()}")
                world.count("bad gRPC")
        time.sleep(0.1)


def rude(world, pick):
    """Hangs, disconnects and sends rubbish on both ports."""
    held = []
    body = b'{"instances": [1]}'
    head = b"POST /v1/models/half:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    while not world.stop.is_set():
        try:
            stream = world.connect(pick.choice([world.rest_at, world.rest_at, world.grpc_at]))
            whole = pick.choice([head + body, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"\x16\x03\x01\x02\x00\x01",
                                 bytes(pick.randrange(256) for _ in range(200))])
            stream.sendall(whole[: pick.randrange(len(whole) + 1)])
            match pick.randrange(4):
                case 0:
                    held.append((stream, time.time() + pick.uniform(1, 20)))
                    world.count("hung")
                case 1:
                    # Closes with a reset.
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    stream.close()
                    world.count("reset")
                case 2:
                    stream.shutdown(socket.SHUT_WR)
                    stream.settimeout(0.2)
                    try:
                        stream.recv(1000)
                    except TimeoutError:
                        pass
                    stream.close()
                    world.count("half closed")
                case _:
                    stream.close()
                    world.count("closed")
        except (ConnectionError, BrokenPipeError):
            pass
        except OSError as e:
            # The server may have closed the connection first.
            if e.errno != errno.ENOTCONN:
                world.fail(f"connection: {e}")
        for entry in [h for h in held if time.time() > h[1]]:
            entry[0].close()
            held.remove(entry)
        time.sleep(0.02)
    for stream, _ in held:
        stream.close()


def swap(world, folder):
    """Replaces the version, now and then by one that is broken."""
    version = 1
    while not world.stop.wait(SWAP):
        version += 1
        aside = os.path.join(folder, "incoming")
        shutil.copytree(os.path.join(MODEL, str(1 + version % 2)), aside)
        is_broken = version % 3 == 0
        if is_broken:
            with open(os.path.join(aside, "saved_model.pb"), "r+b") as f:
                f.truncate(100)
        os.rename(aside, os.path.join(folder, str(version)))
        if not is_broken and not await_version(world, version):
            world.fail(f"version {version} does not serve")
        if not is_broken:
            for name in os.listdir(folder):
                if name.isdigit() and int(name) < version:
                    shutil.rmtree(os.path.join(folder, name))
        world.count("broken versions" if is_broken else "swapped versions")


def await_version(world, version):
    for _ in range(60):
        connection = http.client.HTTPConnection(world.rest_at, timeout=60)
        connection.request("GET", f"/v1/models/half/versions/{version}")
        if b'"AVAILABLE"' in connection.getresponse().read():
            return True
        time.sleep(0.25)
    return False


def sample(pid):
    """Resident megabytes, threads and open files."""
    with open(f"/proc/{pid}/status") as f:
        status = dict(line.split(":", 1) for line in f)
    return int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd"))


def start(binary, folder):
    parameters = os.path.join(os.path.dirname(folder), "batching.config")
    with open(parameters, "w") as f:
        f.write("max_batch_size { value: 128 } batch_timeout_micros { value: 500 } max_enqueued_batches { value: 100 }")
    process = subprocess.Popen(
        [binary, "serve", "--port=0", "--rest-api-port=0", "--host=127.0.0.1", f"--model=half={folder}", "--enable-batching",
         f"--batching-parameters-file={parameters}", "--max-message-bytes=2000000", "--max-num-load-retries=1"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    found = {}
    for line in process.stdout:
        if line.startswith(("GRPC", "REST")):
            found[line.split()[0]] = line.split()[1].removeprefix("http://")
        if len(found) == 2:
            return process, World(found["GRPC"], found["REST"])
    sys.exit("no server")


def is_flat(name, values, factor, slack):
    third = len(values) // 3
    before, last = max(values[third : 2 * third]), max(values[2 * third :])
    flat = last <= max(before * factor, before + slack)
    print(f"{name}: at most {before:.1f} in the second third, {last:.1f} in the last{'' if flat else ': IT GREW'}")
    return flat


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    parser.add_argument("--minutes", type=float, default=30)
    args = parser.parse_args()
    if grpc is None:
        with_grpc()
    root = tempfile.mkdtemp()
    folder = os.path.join(root, "half")
    shutil.copytree(os.path.join(MODEL, "1"), os.path.join(folder, "1"))
    server, world = start(args.server, folder)
    if not await_version(world, 1):
        sys.exit("the model does not serve")
    roles = [good_rest, good_rest, good_grpc, good_grpc, bad_rest, bad_grpc, rude]
    threads = [threading.Thread(target=role, args=(world, random.Random(i))) for i, role in enumerate(roles)]
    threads.append(threading.Thread(target=swap, args=(world, folder)))
    for thread in threads:
        thread.start()
    begin, samples, minute = time.time(), [], 0
    while time.time() < begin + 60 * args.minutes and server.poll() is None:
        samples.append(sample(server.pid))
        if time.time() > begin + 60 * minute:
            memory, n_threads, files = samples[-1]
            print(f"minute {minute}: {memory:.1f} MB, {n_threads} threads, {files} files; {world.counts}", flush=True)
            minute += 1
        time.sleep(1)
    alive = server.poll() is None
    world.stop.set()
    for thread in threads:
        thread.join()
    server.send_signal(signal.SIGTERM)
    drained = server.wait(60) == 0 if alive else False
    shutil.rmtree(root)
    memory, n_threads, files = zip(*samples)
    flat = [is_flat("MB", memory, 1.05, 4), is_flat("threads", n_threads, 1.1, 4), is_flat("files", files, 1.2, 30)]
    print(f"{world.counts}; {len(world.failures)} failures; the server {'lives' if alive else 'died'}"
          f" and {'drained' if drained else 'did not drain'}")
    sys.exit(not (alive and drained and all(flat) and not world.failures))


if __name__ == "__main__":
    main()

"""Runs every program against TensorFlow's server and against Ferroflow's; their outputs must agree."""

import argparse
import concurrent.futures
import difflib
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
QUIET = dict(
    os.environ,
    TF_CPP_MIN_LOG_LEVEL="3",
    CUDA_VISIBLE_DEVICES="",
    TF_ENABLE_ONEDNN_OPTS="0",
    PYTHONHASHSEED="0",
)
STOCK = """
import tensorflow as tf
config = tf.compat.v1.ConfigProto()
config.device_count["CPU"] = 2
server = tf.distribute.Server({"localhost": ["127.0.0.1:0"]}, config=config)
print("TARGET", server.target.decode() if isinstance(server.target, bytes) else server.target, flush=True)
server.join()
"""


def start(command):
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=QUIET
    )
    for line in process.stdout:
        if line.startswith("TARGET"):
            return process, line.split()[1]
    sys.exit(f"no server: {' '.join(command)}")


def run(program, target):
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "programs", program), target],
            capture_output=True,
            text=True,
            env=dict(QUIET, SCRATCH=scratch),
            timeout=300,
        )
        out = done.stdout.replace(scratch, "SCRATCH").replace(target, "TARGET")
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-15:])
        out += f"ended with {done.returncode}\n{tail}\n"
    return out, done.returncode


def resets(program):
    """Returns whether a program closes all sessions of its master."""
    with open(os.path.join(HERE, "programs", program)) as file:
        return "Session.reset(" in file.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    parser.add_argument("programs", nargs="*", help="file names below programs/; default all")
    args = parser.parse_args()
    names = args.programs or sorted(
        n for n in os.listdir(os.path.join(HERE, "programs")) if n[0].isdigit()
    )
    stock, stock_target = start([sys.executable, "-c", STOCK])
    ours, our_target = start([args.server, "server", "--port", "0", "--cpus", "2"])
    bad = 0
    both = lambda name: (run(name, stock_target), run(name, our_target))
    try:
        # Two at a time; those that reset their master, which closes the sessions of others, alone.
        alone = [name for name in names if resets(name)]
        shared = [name for name in names if name not in alone]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = dict(zip(shared, pool.map(both, shared)))
        results.update((name, both(name)) for name in alone)
        for name in names:
            (expected, code), (got, _) = results[name]
            same = expected == got and code == 0
            print(f"{'ok  ' if same else 'FAIL'} {name} ({len(expected.splitlines())} lines)", flush=True)
            if not same:
                bad += 1
                diff = difflib.unified_diff(
                    expected.splitlines(), got.splitlines(), "TensorFlow", "Ferroflow", lineterm=""
                )
                print("\n".join(f"    {line}" for line in diff) or f"    {expected}")
    finally:
        stock.kill()
        ours.kill()
    sys.exit(f"{bad} of {len(names)} programs differ" if bad else 0)


if __name__ == "__main__":
    main()

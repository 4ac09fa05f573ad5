"""Runs the examples and tests of the crate `tensorflow` (tensorflow/rust) against Ferroflow's library.

    cargo xtask dist target/dist
    python interop/bindings/rust.py target/dist

Needs cargo, pkg-config and crates.io. The crate is taken from the registry as it is and built with its own build
script, which finds the library by pkg-config. Prints a line for each example and each set of features; ends with an
error if one fails.
"""

import os
import re
import shutil
import subprocess
import sys

VERSION = "0.21.0"
# The examples that come with their models, and a line that their output has.
EXAMPLES = {
    "addition": r"^42$",
    "regression": r"^Checking w: expected 0\.1, got 0\.1\d*\. Success!$",
    "regression_savedmodel": r"^Checking w: expected 0\.1, got 0\.1\d*\. Success!$",
    "regression_checkpoint": r"Success!",
    "xor": r"[Ss]uccess|0\.\d+",
}
FEATURES = [[], ["eager", "ndarray", "tensorflow_unstable"]]


def crate(work):
    """Returns a copy of the crate's sources as they are in the registry."""
    there = os.path.join(work, f"tensorflow-{VERSION}")
    if os.path.isdir(there):
        return there
    fetch = os.path.join(work, "fetch")
    os.makedirs(os.path.join(fetch, "src"), exist_ok=True)
    with open(os.path.join(fetch, "Cargo.toml"), "w") as file:
        file.write(
            '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n'
            f'[dependencies]\ntensorflow = "={VERSION}"\n'
        )
    open(os.path.join(fetch, "src/lib.rs"), "w").close()
    vendor = ["cargo", "vendor", "--quiet", "--versioned-dirs", "vendor"]
    subprocess.run(vendor, cwd=fetch, check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(os.path.join(fetch, "vendor", f"tensorflow-{VERSION}"), there)
    # Its own workspace, without the lock of the vendored sources.
    with open(os.path.join(there, "Cargo.toml"), "a") as file:
        file.write("\n[workspace]\n")
    return there


def main(dist):
    dist = os.path.abspath(dist)
    work = os.path.join(os.path.dirname(dist), "bindings-rust")
    os.makedirs(work, exist_ok=True)
    lib = os.path.join(dist, "lib")
    env = dict(
        os.environ,
        PKG_CONFIG_PATH=os.path.join(lib, "pkgconfig"),
        LD_LIBRARY_PATH=lib,
        CARGO_TARGET_DIR=os.path.join(work, "target"),
        RUSTFLAGS="-Awarnings",
    )
    folder = crate(work)
    failed = []
    for example, line in EXAMPLES.items():
        run = ["cargo", "run", "--quiet", "--example", example]
        done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True)
        good = done.returncode == 0 and re.search(line, done.stdout, re.M)
        print(f"{'ok    ' if good else 'FAILED'} example {example}", flush=True)
        if not good:
            failed.append(example)
            print(done.stdout[-2000:] + done.stderr[-2000:])
    for features in FEATURES:
        name = ",".join(features) or "default"
        test = ["cargo", "test", "--quiet", "--lib", "--features", name]
        test = test if features else test[:-2]
        done = subprocess.run(test, cwd=folder, env=env, capture_output=True, text=True)
        counts = re.search(r"(\d+) passed; (\d+) failed", done.stdout)
        good = done.returncode == 0 and counts
        print(f"{'ok    ' if good else 'FAILED'} tests {name}: {counts and counts[0]}", flush=True)
        if not good:
            failed.append(name)
            print(done.stdout[-4000:] + done.stderr[-2000:])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])

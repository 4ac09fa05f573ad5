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

import common

VERSION = "0.21.0"
# The examples that come with their models, and a line that their output has; none may have another one.
CHECKED = r"^Checking w: expected 0\.1, got 0\.(1|09999)\d*\. Success!$"
EXAMPLES = {
    "addition": r"^42$",
    "regression": CHECKED,
    "regression_savedmodel": CHECKED,
    "regression_checkpoint": r"Success!",
    "xor": r"[Ss]uccess|0\.\d+",
}
# As in the crate's own CI.
FEATURES = [
    [],
    ["eager"],
    ["ndarray"],
    ["tensorflow_unstable"],
    ["eager", "ndarray", "tensorflow_unstable"],
]


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
    dist, lib, work = common.folder(dist, "rust")
    env = dict(
        os.environ,
        PKG_CONFIG_PATH=os.path.join(lib, "pkgconfig"),
        LD_LIBRARY_PATH=lib,
        CARGO_TARGET_DIR=os.path.join(work, "target"),
        RUSTFLAGS="-Awarnings",
    )
    place = crate(work)
    report = common.Report()
    for example, line in EXAMPLES.items():
        command = ["cargo", "run", "--quiet", "--example", example]
        good, output = common.run(command, cwd=place, env=env)
        good = good and re.search(line, output, re.M) and "FAIL" not in output
        report.line(good, f"example {example}", output)
    for features in FEATURES:
        command = ["cargo", "test", "--quiet", "--lib"]
        if features:
            command += ["--features", ",".join(features)]
        good, output = common.run(command, cwd=place, env=env)
        counts = re.search(r"(\d+) passed; (\d+) failed", output)
        name = "+".join(features) or "default"
        report.line(good and counts, f"tests {name}: {counts and counts[0]}", output)
    report.end()


if __name__ == "__main__":
    main(*sys.argv[1:])

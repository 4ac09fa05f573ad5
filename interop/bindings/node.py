"""Runs `@tensorflow/tfjs-node` with Ferroflow's library in the place of TensorFlow's.

    cargo xtask dist target/dist
    python interop/bindings/node.py target/dist

Needs node with its headers, npm, a C++ compiler and the npm registry. The package is installed without its own
download of libtensorflow; its addon is built from its sources with our headers. `node/check.js` compares ops, Keras
layers models and a SavedModel.
"""

import json
import os
import shutil
import sys

import common

PACKAGE = "@tensorflow/tfjs-node"
VERSION = "4.22.0"
HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "../../crates/runtime/tests/saved_models/keras_mlp")


def node_gyp():
    """Returns the node-gyp that comes with npm."""
    good, root = common.run(["npm", "root", "--global"])
    script = os.path.join(root.splitlines()[-1], "npm/node_modules/node-gyp/bin/node-gyp.js")
    return ["node", script] if good and os.path.exists(script) else ["node-gyp"]


def build(dist, lib, place):
    """Builds the addon; returns whether it worked, and the output."""
    deps = os.path.join(place, "deps")
    shutil.rmtree(deps, ignore_errors=True)
    shutil.copytree(os.path.join(dist, "include"), os.path.join(deps, "include"))
    os.symlink(lib, os.path.join(deps, "lib"))
    command = node_gyp() + ["rebuild", "--module_name=tfjs_binding", "--napi_build_version=8", "--napi_version=8"]
    command.append(f"--module_path={os.path.join(place, 'lib/napi-v8')}")
    # The headers that are installed with node, so that none are downloaded.
    good, prefix = common.run(["node", "-p", "path.dirname(path.dirname(process.execPath))"])
    if good and os.path.isdir(os.path.join(prefix.strip(), "include/node")):
        command.append(f"--nodedir={prefix.strip()}")
    return common.run(command, cwd=place)


def main(dist):
    dist, lib, work = common.folder(dist, "node")
    report = common.Report()
    with open(os.path.join(work, "package.json"), "w") as file:
        json.dump({"name": "check", "private": True}, file)
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", f"{PACKAGE}@{VERSION}"]
    good, output = common.run(install, cwd=work)
    if not good:
        report.line(False, f"npm install {PACKAGE}", output)
        report.end()
    place = os.path.join(work, "node_modules", PACKAGE)
    good, output = build(dist, lib, place)
    report.line(good, "addon", output)
    if good:
        shutil.copy(os.path.join(HERE, "node/check.js"), work)
        good, output = common.run(["node", "check.js", os.path.abspath(MODEL)], cwd=work)
        print(output, end="")
        report.line(good, "all checks in JavaScript", output)
    report.end()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs the tests of Go's bindings against Ferroflow's library.

    cargo xtask dist target/dist
    python interop/bindings/go.py target/dist [--graft DIR] [--tensorflow DIR]

github.com/wamuir/graft comes from the module proxy, or from a git directory. TensorFlow's own package is not a module:
it needs a git directory of TensorFlow 2.21, whose protos are compiled with protoc. With a directory, Go's protobuf
module comes from GOPATH, where Debian's golang-google-protobuf-dev puts it. Needs go, a C compiler and our headers
only.
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import tarfile

import common

GRAFT = "github.com/wamuir/graft"
TENSORFLOW = "github.com/tensorflow/tensorflow/tensorflow/go"
SYSTEM = "/usr/share/gocode"
# Where imports of TensorFlow's protos are found, and the files from which on they are followed.
PROTO_ROOTS = ["", "third_party/xla/", "third_party/xla/third_party/tsl/"]
FIRST_PROTOS = ["tensorflow/core/protobuf/saved_model.proto", "tensorflow/core/protobuf/config.proto"]
# Data of the tests.
TESTDATA = ["tensorflow/go", "tensorflow/cc/saved_model/testdata/half_plus_two"]


def unpack(repository, to, paths=()):
    """Writes files of a git directory."""
    archive = ["git", f"--git-dir={repository}", "archive", "HEAD", *paths]
    data = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(to, filter="data")


def protos(repository, to):
    """Writes the protos that the first ones import; returns their names as imports have them."""
    found, queue = {}, list(FIRST_PROTOS)
    while queue:
        name = queue.pop()
        if name in found or name.startswith("google/protobuf/"):
            continue
        for root in PROTO_ROOTS:
            show = ["git", f"--git-dir={repository}", "show", f"HEAD:{root}{name}"]
            done = subprocess.run(show, capture_output=True, text=True)
            if done.returncode == 0:
                break
        else:
            raise FileNotFoundError(name)
        text = done.stdout
        # Protos without a Go package, and the one whose package would import itself, get one of their own.
        if "/go/core/" not in text or name.endswith("/graph_debug_info.proto"):
            package = os.path.splitext(os.path.basename(name))[0]
            line = f'option go_package = "{TENSORFLOW}/core/framework/{package}_go_proto";\n'
            text = re.sub(r"^option go_package.*;\n", "", text, flags=re.M)
            text = re.sub(r"^(package [\w.]+;\n)", lambda m: m[1] + line, text, count=1, flags=re.M)
        found[name] = text
        queue += re.findall(r'^import (?:public )?"([^"]+)"', text, re.M)
    for name, text in found.items():
        path = os.path.join(to, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    return sorted(found)


def test(report, name, packages, place, env):
    """Runs the tests of packages; reports how many passed."""
    command = ["go", "test", "-count=1", "-v", *packages]
    good, output = common.run(command, cwd=place, env=env)
    count = {verdict: len(re.findall(rf"^--- {verdict}: ", output, re.M)) for verdict in ("PASS", "FAIL", "SKIP")}
    failed = re.findall(r"^--- FAIL: (\S+)", output, re.M)
    report.line(good and count["PASS"], f"{name}: {count} {' '.join(failed)}", output)


def graft(report, repository, work, env):
    if repository is None:
        place = os.path.join(work, "module")
        os.makedirs(place, exist_ok=True)
        if not os.path.exists(os.path.join(place, "go.mod")):
            common.run(["go", "mod", "init", "check"], cwd=place, env=env)
        good, output = common.run(["go", "get", f"{GRAFT}/tensorflow@latest"], cwd=place, env=env)
        if not good:
            report.skipped(GRAFT, "the module proxy does not have it: " + (output.splitlines() or [""])[-1])
            return
        test(report, GRAFT, [f"{GRAFT}/tensorflow/..."], place, env)
        return
    place = os.path.join(work, "gopath/src", GRAFT)
    unpack(repository, place)
    env = dict(env, GO111MODULE="off", GOPATH=os.path.join(work, "gopath") + ":" + SYSTEM)
    test(report, GRAFT, ["./tensorflow/..."], place, env)


def tensorflow(report, repository, work, env):
    if repository is None:
        report.skipped(TENSORFLOW, "give a git directory of TensorFlow with --tensorflow")
        return
    path = os.path.join(work, "gopath-tensorflow")
    shutil.rmtree(path, ignore_errors=True)
    base = os.path.join(path, "src/github.com/tensorflow/tensorflow")
    unpack(repository, base, TESTDATA)
    env = dict(env, GO111MODULE="off", GOPATH=path + ":" + SYSTEM)
    raw, tools = os.path.join(work, "protos"), os.path.join(work, "bin")
    names = protos(repository, raw)
    plugin = ["go", "build", "-o", f"{tools}/protoc-gen-go", "google.golang.org/protobuf/cmd/protoc-gen-go"]
    good, output = common.run(plugin, env=env)
    if good:
        env = dict(env, PATH=tools + ":" + env["PATH"])
        good, output = common.run(["protoc", f"-I{raw}", f"--go_out={path}/src", *names], env=env)
    if not good:
        report.line(False, f"{TENSORFLOW}: protos", output)
        return
    test(report, TENSORFLOW, ["./tensorflow/go", "./tensorflow/go/op"], base, env)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dist")
    parser.add_argument("--graft")
    parser.add_argument("--tensorflow")
    options = parser.parse_args()
    dist, lib, work = common.folder(options.dist, "go")
    env = dict(
        os.environ,
        CGO_CFLAGS=f"-w -I{dist}/include",
        CGO_LDFLAGS=f"-L{lib}",
        LD_LIBRARY_PATH=lib,
        GOCACHE=os.path.join(work, "cache"),
        GOFLAGS="",
    )
    report = common.Report()
    graft(report, options.graft, work, env)
    tensorflow(report, options.tensorflow, work, env)
    report.end()


if __name__ == "__main__":
    main()

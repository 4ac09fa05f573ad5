"""Runs OCaml programs against Ferroflow's library.

    cargo xtask dist target/dist
    python interop/bindings/ocaml.py target/dist [--tensorflow-ocaml DIR]

`ocaml/check.ml` calls the library by ctypes: a graph, its gradient and its copy, a SavedModel, an eager op, errors.
tensorflow-ocaml is not in Debian: it needs a git directory of it. Its core, its graphs and the examples that need no
data are built by dune; its tests, written for ppx_expect, run with `ocaml/expectations.ml`. Needs Debian's ocaml,
ocaml-findlib and libctypes-ocaml-dev; tensorflow-ocaml also ocaml-dune, libdune-ocaml-dev, libbase-ocaml-dev and
libstdio-ocaml-dev.
"""

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import tarfile

import common

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "../../crates/runtime/tests/saved_models/keras_mlp")
# Examples that need no data, and a line that their output has. `save_and_load` is not among them: it passes strings in
# the layout of TensorFlow before 2.4, which ends it with TensorFlow's library, too.
EXAMPLES = {
    "basics/forty_two": r"^42\.0+$",
    "basics/linear_regression": r"^0\.000\d+$",
    "load/load": r"^1 0\.\d+",
}
# Base had variants of its own until 0.12.
RENAMED = {"`Fst": "First", "`Snd": "Second", "${<}": "%{deps}"}


def numbers(values):
    return ",".join(repr(float(value)) for value in values)


def check(report, library, work):
    """Builds and runs `check.ml`."""
    program = os.path.join(work, "check")
    shutil.copy(os.path.join(HERE, "ocaml/check.ml"), work)
    build = ["ocamlfind", "ocamlopt", "-thread", "-package", "ctypes.foreign", "-linkpkg", "check.ml", "-o", program]
    good, output = common.run(build, cwd=work)
    if not good:
        report.line(False, "check.ml compiles", output)
        return
    with open(os.path.join(MODEL, "expected.json")) as file:
        cases = [case for case in json.load(file) if case.get("signature") == "serving_default"]
    for case in cases:
        features, expected = case["inputs"]["features"], case["outputs"]["output_0"]
        rows = features["shape"][0]
        command = [program, library, MODEL, str(rows), numbers(features["data"]), numbers(expected["data"])]
        good, output = common.run([*command, str(case["tol"])])
        print(output, end="")
        report.line(good, f"check.ml with {rows} rows", output)


def tests(place):
    """Writes the tests so that they need no preprocessor."""
    folder = os.path.join(place, "tests")
    shutil.copy(os.path.join(HERE, "ocaml/expectations.ml"), folder)
    with open(os.path.join(folder, "operator_tests.ml")) as file:
        text = file.read()
    text = text.replace("let%expect_test _ =", "let () =")
    text = re.sub(r"\[%expect\s*(\{\|.*?\|\})\]", r"Expectations.expect \1", text, flags=re.S)
    with open(os.path.join(folder, "operator_tests.ml"), "w") as file:
        file.write(f"let () = Expectations.start ()\n{text}\nlet () = Expectations.finish ()\n")
    with open(os.path.join(folder, "dune"), "w") as file:
        file.write("(executables (names operator_tests gradient_tests) (libraries unix stdio tensorflow))\n")


def tensorflow_ocaml(report, repository, lib, work):
    """Builds tensorflow-ocaml, and runs its tests and examples."""
    place = os.path.join(work, "tensorflow-ocaml")
    shutil.rmtree(place, ignore_errors=True)
    archive = ["git", f"--git-dir={repository}", "archive", "HEAD"]
    data = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(place, filter="data")
    for folder, _, names in os.walk(os.path.join(place, "src/graph")):
        for name in names:
            path = os.path.join(folder, name)
            with open(path) as file:
                text = file.read()
            for old, new in RENAMED.items():
                text = text.replace(old, new)
            with open(path, "w") as file:
                file.write(text)
    tests(place)
    programs = {f"examples/{name}": pattern for name, pattern in EXAMPLES.items()}
    programs |= {"tests/operator_tests": r"^(\d+) of \1 expectations$", "tests/gradient_tests": ""}
    env = dict(os.environ, LIBTENSORFLOW=lib, LD_LIBRARY_PATH=lib, TF_CPP_MIN_LOG_LEVEL="3")
    good, output = common.run(["dune", "build", *[f"{name}.exe" for name in programs]], cwd=place, env=env)
    report.line(good, "tensorflow-ocaml builds", output)
    if not good:
        return
    for name, pattern in programs.items():
        # Examples name their files from the root.
        good, output = common.run([os.path.join(place, f"_build/default/{name}.exe")], cwd=place, env=env)
        found = re.search(pattern, output, re.M)
        report.line(good and found, f"tensorflow-ocaml {name}: {found[0] if found else ''}", output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist")
    parser.add_argument("--tensorflow-ocaml", metavar="DIR")
    options = parser.parse_args()
    dist, lib, work = common.folder(options.dist, "ocaml")
    report = common.Report()
    check(report, os.path.join(lib, "libtensorflow.so.2"), work)
    if options.tensorflow_ocaml:
        tensorflow_ocaml(report, options.tensorflow_ocaml, lib, work)
    else:
        report.skipped("tensorflow-ocaml", "give a git directory of it with --tensorflow-ocaml")
    report.end()


if __name__ == "__main__":
    main()

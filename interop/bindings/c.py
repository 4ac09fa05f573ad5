"""Runs C programs against Ferroflow's library: the examples, threads that do everything, and bad input, compared with
TensorFlow's own library.

    cargo xtask dist target/dist
    python interop/bindings/c.py target/dist [--stock DIR | --asan] [--soak SECONDS] [--threads 8]

Needs a C compiler. DIR is the folder of TensorFlow's Python package, which has `libtensorflow_cc.so.2`; without it bad
input must only end without a signal. Lines that differ on purpose are listed in ANY and CODES. With --asan the programs
run under AddressSanitizer, which sees the memory of the library, too: it allocates by malloc.
"""

import argparse
import difflib
import os
import re
import subprocess

import common

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "../../crates/runtime/tests/saved_models/keras_mlp")
EXAMPLES = {"minimal": "3 + 2 = 5", "eager": ""}
ASAN = ["-fsanitize=address", "-fno-omit-frame-pointer"]
# The status of a program in which AddressSanitizer found something.
FOUND = 99
# Lines, by case and label, that differ on purpose: nothing of them is compared, or only the code of the error.
ANY = {
    "op_device/code": "devices that do not exist are ignored",
    "op_foreign/op": "TensorFlow takes a node of another graph as an input",
    "op_foreign/input of another graph": "the same",
    "attr_lists/floats of ints": "TensorFlow does not compare the kinds of lists",
    "evaluation/output 4": "TensorFlow does not look at the output's number",
    "eager_attrs/shape": "TensorFlow takes a dimension of -5",
    "eager_handles/dim": "TensorFlow reads behind the dimensions of a scalar",
    "eager_handles/dim 0": "the same",
    "import_bytes/50": "TensorFlow writes a shorter GraphDef",
}
CODES = {
    "op_wrong_attr/int for type": "kinds of attrs have words of their own",
    "op_wrong_attr/dtype 99": "the same",
    "op_attr_out_of_range/padding and length": "the same",
    "op_inputs/empty list": "constraints of attrs end the line otherwise",
    "op_shapes/add": "broadcasting has words of its own",
    "import_maps/output 4": "the node is named with its prefix",
    "import_texts/min consumer": "the product has another name",
    "eager_ops/one of two": "counts of eager inputs have words of their own",
    "eager_ops/types": "the op is named, as TensorFlow's Python does",
    "eager_ops/two of one": "counts of eager inputs have words of their own",
    "eager_attrs/device": "no dump of the op",
}
# TensorFlow adds a note on tf.contrib.
WORDS = [
    (re.compile(r" Note that if you are loading a saved graph which used ops from tf\.contrib.*?first accessed\."), ""),
]


def stub(work):
    """Links a library of the same name whose functions have no version, so that a program runs with either library."""
    with open(os.path.join(HERE, "../../crates/capi/exports.txt")) as file:
        text = "".join(f"void {name}(void) {{}}\n" for name in file.read().split())
    source = os.path.join(work, "stub.c")
    with open(source, "w") as file:
        file.write(text)
    library = os.path.join(work, "libstub.so")
    common.run(["cc", "-w", "-shared", "-fPIC", "-Wl,-soname,libtensorflow.so.2", source, "-o", library])
    return ["-Wl,-z,lazy", f"-L{work}", "-lstub"]


def compiled(name, source, dist, flags, work):
    """Compiles a program."""
    program = os.path.join(work, name)
    good, output = common.run(["cc", "-w", "-g", "-O1", source, f"-I{dist}/include", *flags, "-o", program])
    return program if good else None, output


def environment(folder, leaks=True):
    """Returns the variables of a program that uses the library of a folder."""
    asan = f"detect_leaks={int(leaks)}:exitcode={FOUND}"
    return dict(
        os.environ, LD_LIBRARY_PATH=folder, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", ASAN_OPTIONS=asan
    )


def stock_folder(stock, work):
    """Returns a folder in which TensorFlow's library has the name that programs ask for."""
    place = os.path.join(work, "stock")
    os.makedirs(place, exist_ok=True)
    for name, target in (
        ("libtensorflow.so.2", "libtensorflow_cc.so.2"),
        ("libtensorflow_framework.so.2", "libtensorflow_framework.so.2"),
    ):
        path = os.path.join(place, name)
        if os.path.lexists(path):
            os.remove(path)
        os.symlink(os.path.abspath(os.path.join(stock, target)), path)
    return place


def said(program, case, folder):
    """Returns what a case says; the last line tells how a killed program ended."""
    # Cases end where they are refused, without deleting what they made.
    env = environment(folder, leaks=False)
    done = subprocess.run([program, case], capture_output=True, env=env, timeout=120)
    text = done.stdout.decode(errors="backslashreplace")
    for pattern, words in WORDS:
        text = pattern.sub(words, text)
    lines = text.splitlines()
    if done.returncode < 0:
        lines.append(f"killed by signal {-done.returncode}")
    if done.returncode == FOUND:
        lines.append("killed by AddressSanitizer: " + done.stderr.decode(errors="backslashreplace"))
    return lines


def comparable(case, lines):
    """Returns the lines that are compared; lines that begin with a space or tab, or are empty, go on with an error."""
    kept, rule = [], None
    for line in lines:
        label = re.match(r"([\w :-]+?)(: -?\d+| = )", line)
        if label and not line[0].isspace():
            key = f"{case}/{label[1]}"
            rule = "any" if key in ANY else "code" if key in CODES else None
            if rule != "any":
                kept.append(label[0] if rule == "code" else line)
        elif rule is None:
            kept.append(line)
    return kept


def differs(case, ours, stock):
    """Returns the lines that differ. What TensorFlow does not survive may end in any way."""
    if stock and stock[-1].startswith("killed"):
        survived = len(stock) - 1
        ours, stock = ours[:survived], stock[:survived]
    ours, stock = comparable(case, ours), comparable(case, stock)
    return list(difflib.unified_diff(stock, ours, "TensorFlow", "Ferroflow", lineterm="", n=0))[2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--stock", metavar="DIR")
    kinds.add_argument("--asan", action="store_true")
    parser.add_argument("--soak", type=float, default=10, metavar="SECONDS")
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    dist, lib, work = common.folder(options.dist, "c-asan" if options.asan else "c")
    flags = ASAN if options.asan else []
    report = common.Report()
    programs = {name: (f"../../examples/c/{name}.c", [], expected) for name, expected in EXAMPLES.items()}
    soak = [str(options.threads), str(options.soak), os.path.abspath(MODEL)]
    programs["soak"] = ("soak.c", soak, "rounds")
    for name, (source, arguments, expected) in programs.items():
        link = [*flags, f"-L{lib}", "-ltensorflow", "-pthread"]
        program, output = compiled(name, os.path.join(HERE, source), dist, link, work)
        if program:
            good, output = common.run([program, *arguments], env=environment(lib))
        title = f"{options.soak:g} s of {options.threads} threads: {output.strip()}" if name == "soak" else f"example {name}"
        report.line(program and good and expected in output, title, output)
    program, output = compiled("bad_input", os.path.join(HERE, "bad_input.c"), dist, [*flags, *stub(work)], work)
    report.line(program, "bad input compiles", output)
    if not program:
        report.end()
    stock = options.stock and stock_folder(options.stock, work)
    for case in said(program, "--list", lib):
        ours = said(program, case, lib)
        if stock:
            wrong = differs(case, ours, said(program, case, stock))
        else:
            wrong = [line for line in ours if line.startswith("killed")]
        report.line(not wrong, f"bad input {case}", "\n".join(wrong))
    report.end()


if __name__ == "__main__":
    main()

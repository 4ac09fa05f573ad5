"""Has TensorFlow import and run the graphs that `crates/runtime/tests/builder.rs` writes.

Usage: python oracle/builder.py
"""

from pathlib import Path

import tensorflow as tf
from google.protobuf import text_format

FOLDER = Path(__file__).parent.parent / "crates/runtime/tests/builder"


def main():
    for path in sorted(FOLDER.glob("*.pbtxt")):
        text = path.read_text()
        rows = [tuple(map(int, r.split())) for r in text.splitlines()[0].split(":")[1].split(",")]
        graph_def = text_format.Parse(text, tf.compat.v1.GraphDef())
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            for x, y in rows:
                got = session.run("y:0", {"x:0": x})
                assert got == y, f"{path.name}: y({x}) is {got}, not {y}"
        print(f"{path.name}: {len(rows)} values as TensorFlow {tf.__version__} has them")


if __name__ == "__main__":
    main()

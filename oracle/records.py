"""Record and event files between TensorFlow and Ferroflow.

    python oracle/records.py            writes crates/model/tests/records.json: files that TensorFlow wrote
    python oracle/records.py read       has TensorFlow and TensorBoard read files that Ferroflow writes
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from written import written_by

HERE = Path(__file__).resolve().parent
RECORDS = [b"", b"one", bytes(range(256)), b"x" * 5000]


def write():
    out = {"tensorflow": tf.__version__, "records": [r.hex() for r in RECORDS], "files": {}}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("NONE", "ZLIB", "GZIP"):
            path = f"{folder}/{kind}"
            options = tf.io.TFRecordOptions(compression_type="" if kind == "NONE" else kind)
            with tf.io.TFRecordWriter(path, options) as writer:
                for record in RECORDS:
                    writer.write(record)
            out["files"][kind] = Path(path).read_bytes().hex()
    path = HERE.parent / "crates/model/tests/records.json"
    path.write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(f"{len(out['files'])} files, {path.stat().st_size // 1024} KiB")


def read(folder):
    for kind in ("NONE", "ZLIB", "GZIP"):
        found = tf.data.TFRecordDataset(str(folder / kind), "" if kind == "NONE" else kind)
        found = [r.numpy() for r in found]
        assert found == RECORDS, kind
    files = sorted((folder / "run").glob("*tfevents*"))
    assert len(files) == 1, files
    events = list(tf.compat.v1.train.summary_iterator(str(files[0])))
    assert events[0].file_version == "brain.Event:2"
    scalars = [(e.step, v.tag, round(v.simple_value, 3)) for e in events for v in e.summary.value]
    assert scalars == [(0, "loss", 2.5), (1, "loss", 1.25), (1, "accuracy", 0.5)], scalars
    graphs = [tf.compat.v1.GraphDef.FromString(e.graph_def) for e in events if e.graph_def]
    assert [n.name for n in graphs[0].node] == ["x"], graphs
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("no tensorboard here")
    else:
        run = EventAccumulator(str(folder / "run")).Reload()
        tags = run.Tags()
        assert set(tags["scalars"]) == {"loss", "accuracy"} and tags["graph"], tags
        assert [(e.step, e.value) for e in run.Scalars("loss")] == [(0, 2.5), (1, 1.25)]
        print("TensorBoard reads the run")
    print("TensorFlow", tf.__version__, "reads the records and events")


if __name__ == "__main__":
    read(written_by("ferroflow-model", "write_files_for_tensorflow")) if sys.argv[1:] == ["read"] else write()

"""Writes what TensorFlow's CreateSummaryDbWriter leaves in a database.

Usage: python oracle/summary_database.py

Writes crates/runtime/tests/summary_database.json: `writes`, the ops in order, each with its inputs after the writer,
and the `code` of the error if it fails; `queries`, the statements with TensorFlow's `rows`. Ids and times differ from
run to run, so that the queries join by ids and leave them out. TensorFlow reserves rows for tensors; those without a
dtype are left out.
"""

import json
import os
import sqlite3
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, summary_pb2
from tensorflow.core.util import event_pb2

from rows import tensor_json

OUT = Path(__file__).resolve().parent.parent / "crates/runtime/tests/summary_database.json"
raw = tf.raw_ops


def step(n):
    return np.int64(n)


def metadata(plugin, content=b"", **fields):
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return summary_pb2.SummaryMetadata(plugin_data=data, **fields).SerializeToString()


def graph():
    g = graph_pb2.GraphDef()
    g.versions.producer = 21
    g.node.add(name="a", op="Placeholder", device="/cpu:0")
    g.node.add(name="b", op="Split", input=["a"])
    n = g.node.add(name="c", op="AddV2", input=["b:1", "a:0", "^b"])
    n.attr["T"].type = 1
    return g


def event(n, time, **fields):
    return event_pb2.Event(wall_time=time, step=n, **fields).SerializeToString()


def values():
    value = summary_pb2.Summary.Value
    histogram = summary_pb2.HistogramProto(bucket_limit=[-1.0, 2.0], bucket=[3.0, 4.0])
    image = summary_pb2.Summary.Image(width=2, height=5, encoded_image_string=b"png")
    audio = summary_pb2.Summary.Audio(encoded_audio_string=b"wav")
    t = tf.make_tensor_proto(np.array([1, -2], np.int32))
    return summary_pb2.Summary(value=[
        value(tag="e/scalar", simple_value=0.5),
        value(tag="e/histo", histo=histogram),
        value(tag="e/image", image=image),
        value(tag="e/audio", audio=audio),
        value(tag="e/tensor", tensor=t),
        value(tag="e/nothing"),
    ])


BAD_HISTOGRAM = summary_pb2.Summary(value=[summary_pb2.Summary.Value(
    tag="e/bad", histo=summary_pb2.HistogramProto(bucket_limit=[1.0], bucket=[1.0, 2.0]))])
BAD_GRAPH = graph_pb2.GraphDef(node=[node_def_pb2.NodeDef(name="a", op="Id", input=["missing"])])
BAD_SLOT = graph_pb2.GraphDef(node=[node_def_pb2.NodeDef(name="a", op="Id", input=["a:x"])])
RED = np.array([255, 0, 0, 255], np.uint8)
TEXTS = np.array([[b"a", b"b\0c"], [b"", b"d"]], object)

WRITES = [
    ("WriteScalarSummary", [step(1), b"s", np.float32(0.25)], {}),
    ("WriteScalarSummary", [step(2), b"s", np.float64(0.5)], {}),
    ("WriteScalarSummary", [step(2), b"s", np.int64(-7)], {}),
    ("WriteScalarSummary", [step(3), b"s", np.array([1.5, 2.5], np.float16)], {}),
    ("WriteScalarSummary", [step(4), b"s", tf.constant(1.0, tf.bfloat16)], {}),
    ("WriteScalarSummary", [step(-5), b"t", np.uint8(200)], {}),
    ("WriteSummary", [step(1), np.arange(6, dtype=np.float32).reshape(2, 3), b"w",
                      metadata("p", b"\1\2", display_name="shown", summary_description="*text*")], {}),
    ("WriteSummary", [step(2), b"one\0two", b"w", b""], {}),
    ("WriteSummary", [step(3), TEXTS, b"w", metadata("other")], {}),
    ("WriteSummary", [step(3), TEXTS[:1], b"w", b""], {}),
    ("WriteSummary", [step(4), np.zeros([0, 2], np.float32), b"w", b""], {}),
    ("WriteSummary", [step(5), np.array([True]), b"w", b""], {}),
    ("WriteSummary", [step(6), np.float32(1), b"w", b"\xff"], {}),
    ("WriteSummary", [step(7), np.array([1 + 2j], np.complex64), b"w", b""], {}),
    ("WriteHistogramSummary", [step(1), b"h", np.array([1.0, 2.0, 2.5, -3.0], np.float32)], {}),
    ("WriteHistogramSummary", [step(2), b"h", np.array([np.nan], np.float32)], {}),
    ("WriteImageSummary", [step(1), b"i", np.zeros([2, 3, 4, 1], np.uint8), RED], {"max_images": 2}),
    ("WriteAudioSummary", [step(1), b"a", np.zeros([1, 8, 2], np.float32), np.float32(8000)],
     {"max_outputs": 1}),
    ("WriteRawProtoSummary", [step(9), values().SerializeToString()], {}),
    ("WriteRawProtoSummary", [step(9), BAD_HISTOGRAM.SerializeToString()], {}),
    ("WriteGraphSummary", [step(1), graph().SerializeToString()], {}),
    ("WriteGraphSummary", [step(1), BAD_GRAPH.SerializeToString()], {}),
    ("WriteGraphSummary", [step(1), BAD_SLOT.SerializeToString()], {}),
    ("ImportEvent", [event(20, 12.5, summary=values())], {}),
    ("ImportEvent", [event(21, 13.5, file_version="brain.Event:2")], {}),
    ("ImportEvent", [event(22, 11.5, graph_def=graph().SerializeToString())], {}),
    ("ImportEvent", [event(23, 11.5, graph_def=b"\xff")], {}),
    ("FlushSummaryWriter", [], {}),
    ("CloseSummaryWriter", [], {}),
]
TABLES = ["Ids", "Descriptions", "Tensors", "TensorStrings", "Tags", "Runs", "Experiments", "Users", "Graphs", "Nodes",
          "NodeInputs"]
QUERIES = [
    "SELECT name, tbl_name, type FROM sqlite_master ORDER BY type, name",
    "PRAGMA application_id",
    "PRAGMA user_version",
    *(f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{t}') ORDER BY cid" for t in TABLES),
    *(f"SELECT l.name, l.\"unique\", l.partial, i.seqno, i.name FROM pragma_index_list('{t}') AS l, "
      f"pragma_index_info(l.name) AS i ORDER BY l.name, i.seqno" for t in TABLES),
    "SELECT user_name, email FROM Users",
    "SELECT experiment_name, is_watching, user_name, started_time < e.inserted_time FROM Experiments AS e, Users AS u "
    "WHERE u.user_id = e.user_id",
    "SELECT run_name, experiment_name, started_time IN (11.5, 12.5), started_time, finished_time >= r.inserted_time "
    "FROM (SELECT * FROM Runs) AS r, (SELECT experiment_id, experiment_name FROM Experiments) AS e "
    "WHERE r.experiment_id = e.experiment_id",
    "SELECT tag_name, display_name, plugin_name, hex(plugin_data), description, run_name FROM Tags AS t, Descriptions "
    "AS d, Runs AS r WHERE d.id = t.tag_id AND r.run_id = t.run_id ORDER BY tag_name",
    "SELECT tag_name, step, dtype, shape, hex(data), computed_time < 100 FROM Tensors, Tags WHERE series = tag_id AND "
    "dtype IS NOT NULL ORDER BY tag_name, step",
    "SELECT tag_name, step, idx, CASE WHEN plugin_name = 'images' AND idx = 2 THEN length(s.data) > 0 ELSE hex(s.data) "
    "END FROM TensorStrings AS s, Tensors AS t, Tags WHERE tensor_rowid = t.rowid AND series = tag_id ORDER BY "
    "tag_name, step, idx",
    "SELECT run_name, hex(graph_def) FROM Graphs AS g, Runs AS r WHERE g.run_id = r.run_id",
    "SELECT node_id, node_name, op, device, hex(node_def) FROM Nodes AS n, Graphs AS g WHERE n.graph_id = g.graph_id "
    "ORDER BY node_id",
    "SELECT node_id, idx, input_node_id, input_node_idx, is_control FROM NodeInputs AS n, Graphs AS g WHERE n.graph_id "
    "= g.graph_id ORDER BY node_id, idx",
    "SELECT count(*) FROM Graphs",
    "SELECT (SELECT count(*) FROM Ids WHERE id IN (SELECT tag_id FROM Tags)) = (SELECT count(*) FROM Tags)",
    "SELECT max(id) <= 8388607 FROM Ids",
]


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "summaries.db")
        handle = raw.SummaryWriter(shared_name="w", container="")
        raw.CreateSummaryDbWriter(writer=handle, db_uri=path, experiment_name="an experiment", run_name="a run",
                                  user_name="a user")
        writes = []
        for op, inputs, attrs in WRITES:
            names = [arg.name for arg in op_inputs(op)]
            row = {"op": op, "attrs": attrs, "inputs": [tensor_json(x.numpy() if hasattr(x, "numpy") else x) for x in inputs]}
            try:
                getattr(raw, op)(writer=handle, **dict(zip(names, inputs)), **attrs)
            except tf.errors.OpError as e:
                row["code"] = e.error_code
            writes.append(row)
        with sqlite3.connect(path) as database:
            queries = [{"sql": sql, "rows": [list(row) for row in database.execute(sql)]} for sql in QUERIES]
    with OUT.open("w") as file:
        file.write('{"tensorflow": "%s",\n "writes": [\n' % tf.__version__)
        file.write(",\n".join(json.dumps(row) for row in writes))
        file.write('],\n "queries": [\n')
        file.write(",\n".join(json.dumps(row) for row in queries))
        file.write("]}\n")
    print(f"{OUT.name}: {len(writes)} writes, {len(queries)} queries")


def op_inputs(op):
    from tensorflow.python.framework import op_def_registry
    return list(op_def_registry.get(op).input_arg)[1:]


main()

"""Has TensorFlow read a run and SavedModels that Ferroflow's `train` writes: `python oracle/read_training.py`."""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from written import written_by


def read_run(folder):
    files = sorted(folder.glob("*tfevents*"))
    assert len(files) == 1, files
    events = list(tf.compat.v1.train.summary_iterator(str(files[0])))
    assert events[0].file_version == "brain.Event:2"
    graphs = [tf.compat.v1.GraphDef.FromString(e.graph_def) for e in events if e.graph_def]
    assert len(graphs) == 1 and any(n.name == "line/kernel" for n in graphs[0].node)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graphs[0], name="")
    scalars = {}
    for event in events:
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    assert [round(v, 6) for _, v in scalars["learning_rate"]] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]
    assert [s for s, _ in scalars["loss"]] == [2, 4, 6, 8, 10, 12], scalars["loss"]
    assert [s for s, _ in scalars["epoch_error"]] == [4, 8, 12], scalars
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("no tensorboard here")
    else:
        run = EventAccumulator(str(folder)).Reload()
        assert set(run.Tags()["scalars"]) == set(scalars) and run.Tags()["graph"], run.Tags()
        print("TensorBoard reads the run")


def serve(folder, **inputs):
    model = tf.saved_model.load(str(folder))
    call = model.signatures["serving_default"]
    return {k: v.numpy() for k, v in call(**{k: tf.constant(v) for k, v in inputs.items()}).items()}


def main():
    folder = written_by("ferroflow-train", "write_training_for_tensorflow")
    read_run(folder / "run")
    out = serve(folder / "model", words=["moon", "sun", "earth"])
    assert out["ids"].tolist() == [1, 0, -1] and out["shift"] == 0.5, out
    assert (folder / "model/assets/words.txt").is_file()
    out = serve(folder / "dropping", x=np.ones((3, 4), "float32"))
    assert out["y"].shape == (3, 50) and (out["y"] != 0).all(), out
    print("TensorFlow", tf.__version__, "reads the run and serves the models")


if __name__ == "__main__":
    main()

"""Has TensorFlow read checkpoints that Ferroflow writes: `python oracle/read_checkpoint.py`."""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from written import written_by

EVERY = Path(__file__).resolve().parent.parent / "crates/model/tests/bundles/every"


def tensors(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}


def main():
    out = written_by("ferroflow-model", "write_files_for_tensorflow")
    ours, theirs = tensors(out / "every"), tensors(EVERY)
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    types = tf.train.load_checkpoint(str(out / "old")).get_variable_to_dtype_map()
    for name, dtype in types.items():
        old = tf.raw_ops.Restore(file_pattern=str(out / "old"), tensor_name=name, dt=dtype).numpy()
        assert (old == theirs[name]).all(), name
    assert len(types) >= 50, types
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and ours[name].tobytes() == value.tobytes() or \
            (ours[name] == value).all(), name
    grid = tensors(out / "sliced")["grid"]
    assert (grid == np.arange(12, dtype=np.float32).reshape(4, 3)).all(), grid
    part = tf.raw_ops.RestoreV2(prefix=str(out / "sliced"), tensor_names=["grid"],
                                shape_and_slices=["4 3 1,2:1,2"], dtypes=[tf.float32])[0]
    assert (part.numpy() == [[4, 5], [7, 8]]).all(), part
    merged = tensors(out / "merged")
    assert merged == {"x0": 0.0, "x1": 1.0, "x2": 2.0}, merged
    many = tensors(out / "many")
    assert len(many) == 20000 and all(
        (v == [int(k.split("/")[1]), -int(k.split("/")[1])]).all() for k, v in many.items())
    state = tf.train.get_checkpoint_state(str(out))
    assert state.model_checkpoint_path == str(out / "merged"), state
    assert tf.train.latest_checkpoint(str(out)) == str(out / "merged")
    print(f"TensorFlow {tf.__version__} reads all of {len(theirs) + 4 + len(many)} tensors")


if __name__ == "__main__":
    main()

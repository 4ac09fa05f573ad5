"""Runs an example that writes files for TensorFlow to read."""

import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def written_by(package):
    """Returns the directory that the example `write_for_tensorflow` of `package` filled."""
    folder = Path(tempfile.mkdtemp(prefix="ferroflow-"))
    command = ["cargo", "run", "--quiet", "--package", package, "--example", "write_for_tensorflow"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True)
    return folder

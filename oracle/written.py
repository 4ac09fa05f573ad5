"""Runs an example that writes files for TensorFlow to read."""

import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def written_by(package, example):
    """Returns the directory that `example` of `package` filled."""
    folder = Path(tempfile.mkdtemp(prefix="ferroflow-"))
    command = ["cargo", "run", "--quiet", "--package", package, "--example", example]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True)
    return folder

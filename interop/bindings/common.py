"""What the scripts of this folder share."""

import os
import subprocess
import sys


class Report:
    """Prints a line for each check; the exit status is that of the worst one."""

    def __init__(self):
        self.failed = False

    def line(self, good, name, detail=""):
        print(f"{'ok    ' if good else 'FAILED'} {name}", flush=True)
        if not good:
            self.failed = True
            print(detail[-4000:])

    def skipped(self, name, why):
        print(f"skip   {name}: {why}", flush=True)

    def end(self):
        sys.exit(1 if self.failed else 0)


def folder(dist, binding):
    """Returns the folder of `cargo xtask dist`, its libraries, and one for the work of a script."""
    dist = os.path.abspath(dist)
    if not os.path.exists(os.path.join(dist, "lib/libtensorflow.so.2")):
        sys.exit(f"{dist} has no lib/libtensorflow.so.2: run `cargo xtask dist {dist}`")
    work = os.path.join(os.path.dirname(dist), f"bindings-{binding}")
    os.makedirs(work, exist_ok=True)
    return dist, os.path.join(dist, "lib"), work


def run(command, **options):
    """Runs a command; returns whether it succeeded, and its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", **options)
    except FileNotFoundError as error:
        return False, str(error)
    return done.returncode == 0, done.stdout + done.stderr

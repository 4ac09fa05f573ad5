"""Runs all tests: the unit tests, the examples of the docstrings and the tour."""

import doctest
import faulthandler
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import common  # noqa: E402
import ferroflow  # noqa: E402
from ferroflow import _ferroflow, _types, errors, ops  # noqa: E402

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def suite():
    tests = unittest.defaultTestLoader.discover(str(HERE))
    given = {"saved_model": str(common.SAVED / "keras_mlp")}
    for module in ferroflow, errors, ops, _types, _ferroflow:
        tests.addTests(doctest.DocTestSuite(module, extraglobs=given, optionflags=FLAGS))
    tour = common.ROOT / "examples/python/tour.md"
    given = {"ROOT": common.ROOT}
    tests.addTests(doctest.DocFileSuite(str(tour), module_relative=False, globs=given, optionflags=FLAGS))
    return tests


if __name__ == "__main__":
    # A test that hangs shows where.
    faulthandler.dump_traceback_later(300, exit=True)
    result = unittest.TextTestRunner(verbosity=1).run(suite())
    sys.exit(not result.wasSuccessful())

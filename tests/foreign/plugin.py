"""A pytest plugin for other libraries' tests: it puts our functions in the place of theirs, counts the calls, and writes down the results.

test_foreign.py starts pytest with it. FOREIGN_RUN names the run, and FOREIGN_RESULTS the file: JSON, a list of records.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import time
import types
import unittest.mock
from pathlib import Path

import pytest
from runs import RUNS

from kullback._patching import Patch

gc.disable()  # to save CPU time: the process is short, and ends with the tests
RUN = RUNS[os.environ["FOREIGN_RUN"]]
suites, records = {}, {}


def _random_keys(key):
    import jax

    key = jax.random.PRNGKey(key) if isinstance(key, int) else key
    while True:
        key, next_key = jax.random.split(key)
        yield next_key


# Some of distrax' test files import these two, which are not installed. The tests of KL use no more of haiku than this.
sys.modules.setdefault("mock", unittest.mock)
sys.modules.setdefault("haiku", types.SimpleNamespace(PRNGSequence=_random_keys))


def pytest_collection_modifyitems(config, items):
    for item in list(items):
        found = [(suite, suite.name_of(item)) for suite in RUN.suites if suite.name_of(item)]
        if not found:
            items.remove(item)
            continue
        ((suite, name),) = found
        suites[item.nodeid] = suite
        records[item.nodeid] = {"suite": suite.package, "name": name, "outcome": "passed", "calls": 0, "message": "", "seconds": 0.0}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    record = records[item.nodeid]

    def count(function):
        # A new function for each test: jax.jit does not trace again what it has traced before, and a call would not be seen.
        @functools.wraps(function)
        def counting(*args, **kwargs):
            record["calls"] += 1
            return function(*args, **kwargs)

        return counting

    replacements = suites[item.nodeid].replacements(count)
    start = time.process_time()
    with Patch([*replacements, *_held_by_test(item, replacements)]).patched():
        done = yield
    record["seconds"] = time.process_time() - start
    return done


def _held_by_test(item, replacements):
    """Replacements for functions that the test's own module has imported directly. Parameters of the test are replaced at once."""
    ours = {id(getattr(module, name)): function for module, name, function in replacements}
    if hasattr(item, "callspec"):
        item.callspec.params.update({key: ours[id(x)] for key, x in item.callspec.params.items() if id(x) in ours})
    return [(item.module, name, ours[id(x)]) for name, x in vars(item.module).items() if id(x) in ours]


def pytest_runtest_logreport(report):
    """Called for each phase of a test and for each of its subtests. A failure overrides a skip."""
    record = records[report.nodeid]
    if report.outcome != "passed" and record["outcome"] != "failed":
        record.update(outcome=report.outcome, message=str(report.longrepr))


def pytest_sessionfinish():
    Path(os.environ["FOREIGN_RESULTS"]).write_text(json.dumps(list(records.values())))

"""One fixture runs each test on every framework, eager and compiled. A framework that cannot be imported is an error, never a skip."""

from __future__ import annotations

import gc
import os
from collections import Counter

import numpy as np
import pytest
import torch

from frameworks import ALL

if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker a core already: threads of theirs would wait for one another.
    torch.set_num_threads(1)

# They need a GPU, or Triton's interpreter: test_kl_loss.py runs them in that.
collect_ignore = ["gpu"]


def pytest_collection_finish():
    """What frameworks and tests have made by now stays: the collector need not look at it again, nor come as often as to small heaps."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 20, 20)


def pytest_terminal_summary(terminalreporter, config):
    """Beside pytest's slowest tests (--durations), the slowest files."""
    if not config.getoption("durations"):
        return
    seconds, tests = Counter(), Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "duration")):
        seconds[report.location[0]] += report.duration
        tests[report.location[0]] += report.when == "call"
    terminalreporter.write_sep("=", "slowest files")
    for name, total in seconds.most_common(15):
        terminalreporter.write_line(f"{total:6.1f}s {tests[name]:5d} tests  {name}")


@pytest.fixture(params=ALL, ids=repr)
def framework(request):
    return request.param


@pytest.fixture(params=[f for f in ALL if f.differentiable], ids=repr)
def differentiable(request):
    return request.param


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(20260401)

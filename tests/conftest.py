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


@pytest.fixture(scope="module")
def spark():
    """A real one, on this machine."""
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    # Java's second compiler pays off after minutes; its threads are a core that others need.
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    builder = SparkSession.builder.master("local[2]").appName("kullback tests")
    for name, text in settings.items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    # Not UTC, as users' sessions are not: nothing may depend on it.
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield session
    session.stop()

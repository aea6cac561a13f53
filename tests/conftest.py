"""One fixture runs each test on every framework, eager and compiled. A framework that cannot be imported is an error, never a skip.

`--frameworks numpy,torch`, or the variable KULLBACK_TEST_FRAMEWORKS, selects frameworks. A test that imports another one is then skipped.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

# They need a GPU, or Triton's interpreter: test_kl_loss.py runs them in that.
collect_ignore = ["gpu"]
HERE = str(Path(__file__).parent)


# Fixtures that start Java or Chromium, build the site, or start processes of torch.distributed: as slow as a compiler.
EXPENSIVE = {"spark", "browser", "site", "measured"}


class Unselected:
    """An import hook: frameworks that were not selected look as if they were not installed, and tests that import one are skipped."""

    def __init__(self, libraries):
        self.libraries = libraries

    def find_spec(self, name, path=None, target=None):
        library = name.partition(".")[0]
        if library not in self.libraries:
            return None
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            if frame.f_globals.get("__name__") == "importlib.util":
                return None  # its find_spec only asks whether a library is installed. The file may be called "<frozen ...>"
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(HERE):
            pytest.skip(f"needs {self.libraries[library]}, which --frameworks leaves out", allow_module_level=True)
        raise ModuleNotFoundError(f"No module named {name!r}: --frameworks leaves out {self.libraries[library]}", name=name)


def pytest_addoption(parser):
    parser.addoption("--frameworks", help="test these only, for example numpy,torch (default: KULLBACK_TEST_FRAMEWORKS, or all)")
    parser.addoption("--quick-xla", action="store_true", help="XLA does not optimise, and compiles in 40% of the time")


def pytest_configure(config):
    if config.getoption("frameworks"):
        os.environ["KULLBACK_TEST_FRAMEWORKS"] = config.getoption("frameworks")  # processes that tests start see it too
    from frameworks import LIBRARIES, QUICK_XLA, selected

    if config.getoption("quick_xla"):
        os.environ.update(QUICK_XLA)
    try:
        left_out = {library: name for name in set(LIBRARIES) - set(selected()) for library in LIBRARIES[name]}
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if left_out:
        sys.meta_path.insert(0, Unselected(left_out))


def pytest_report_header():
    return f"frameworks: {os.environ.get('KULLBACK_TEST_FRAMEWORKS') or 'all'}"


def pytest_collection_modifyitems(config, items):
    """Tests that start a process with a framework carry the mark `needs`, since they do not import it themselves."""
    from frameworks import Framework, selected

    chosen = set(selected())
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        missing = {name for mark in item.iter_markers("needs") for name in mark.args}
        missing = (missing | {value.library for value in parameters if isinstance(value, Framework)}) - chosen
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(sorted(missing))}, which --frameworks leaves out"))
        if EXPENSIVE & set(getattr(item, "fixturenames", ())):
            item.add_marker("compiler")
        if any(isinstance(value, Framework) and value.compiled for value in parameters):
            item.add_marker("compiler")


def pytest_collection_finish():
    """Memory that frameworks and tests hold by now stays. The collector need not look at it again, and may come less often."""
    if "PYTEST_XDIST_WORKER" in os.environ and "torch" in sys.modules:
        # Each core has a worker already. Threads would wait for one another.
        sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 20, 20)


def pytest_runtest_setup():
    if "torch._inductor.dtype_propagation" in sys.modules:
        from frameworks import quicken_inductor

        quicken_inductor()
    if "jax._src.interpreters.mlir" in sys.modules:
        from frameworks import quicken_jax

        quicken_jax()


GIGABYTE = 2**30
# Importing all frameworks takes 1.4 GB, and a file of JAX's tests adds as much in compiled programs.
allowed = 2 * GIGABYTE


def pytest_runtest_teardown(item, nextitem):
    """Drop compiled programs and graphs once they fill memory. They used to reach six gigabytes in each worker."""
    global allowed
    if sys.platform != "linux" or _resident() < allowed:
        return
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps freed memory otherwise
    allowed = max(allowed, _resident() + GIGABYTE / 2)  # what could not be dropped is not tried again at once


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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


@pytest.hookimpl(tryfirst=True)  # before the marks of a test, so that the framework stands first in its name
def pytest_generate_tests(metafunc):
    marked = {name for mark in metafunc.definition.iter_markers("parametrize") for name in _names(mark.args[0])}
    for name in {"framework", "differentiable"} & set(metafunc.fixturenames) - marked:
        from frameworks import ALL

        metafunc.parametrize(name, [f for f in ALL if f.differentiable or name == "framework"], ids=repr)


def _names(names):
    return re.split(r"\s*,\s*", names.strip()) if isinstance(names, str) else names


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

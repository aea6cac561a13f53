"""Other libraries' own tests, with our functions in the place of theirs.

The test files come with the installed wheels. `runs.py` selects the tests, `plugin.py` replaces the functions, and `accepted.py`
lists the differences that we keep. A test fails here that neither passes nor is listed, that is listed and passes, or that never
calls our functions. `pytest -s` shows the counts.

The wheels of JAX, numpyro, TFP, TensorFlow, tinygrad and torchmetrics contain no tests of KL. PyTorch's wheel contains samples, references
and checks, which `torch_samples.py` runs. The files test_ops, test_modules, test_nn and test_distributions (`TestKL`) are in PyTorch's
repository only.

Some tests that are in repositories only were run by hand by 19 November 2026: JAX, TFP, and PyTorch's TestKL, test_modules and test_nn.
On that day 101 of the 108 cases of numpyro's `test_kl_` passed (commit 0b935d48). One of the others has a Delta with a log_density, which
we refuse. Three pair Kumaraswamy with Beta, for which numpyro cuts a series and we raise NoClosedForm. Three compare sums in float32 and
differ by one unit in the last place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from accepted import ACCEPTED
from runs import HERE, RUNS, is_selected

from frameworks import QUICK_XLA


def judge(packages, records, accepted):
    """Sentences on the tests, list entries and suites of a run that are wrong."""
    wrong, seen, used = [], {record["suite"] for record in records}, set()
    for record in records:
        listed = [start for start in accepted if record["name"].startswith(start)]
        used.update(listed)
        if listed and record["outcome"] == "passed":
            wrong.append(f"{record['name']} passes, and accepted.py lists it: remove the entry")
        elif not listed and record["outcome"] != "passed":
            wrong.append(f"{record['name']} {record['outcome']}: {record['message']}")
        elif not record["calls"]:
            wrong.append(f"{record['name']} {record['outcome']} without a call of our functions")
    wrong += [f"no test of {package} was found" for package in packages if package not in seen]
    stale = [start for start in accepted if start not in used and start.partition("/")[0] in packages]
    return wrong + [f"accepted.py lists {start}, and no test has that name" for start in stale]


@pytest.mark.compiler
@pytest.mark.parametrize("name", RUNS)
def test_foreign(name, tmp_path):
    run, path = RUNS[name], tmp_path / "results.json"
    suites = [suite for suite in run.suites if all(map(is_selected, suite.needs))]
    if not suites:
        pytest.skip("needs a framework that --frameworks leaves out")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment.update(QUICK_XLA | run.environment, FOREIGN_RUN=name, FOREIGN_RESULTS=str(path), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Neither our configuration nor our conftest: tests of SciPy come with a conftest of their own.
    options = ["-q", "-c", os.devnull, "--rootdir", str(HERE), "--confcutdir", str(HERE), "-W", "ignore", "--tb", "short"]
    files = [str(file) for suite in suites for file in suite.paths]
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", *options, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stdout[-5000:] + done.stderr[-5000:]  # 1: some tests have failed
    records = json.loads(path.read_text())
    packages = {suite.package for suite in suites}
    for package in sorted(packages):
        own = [record for record in records if record["suite"] == package]
        outcomes = Counter(record["outcome"] for record in own)
        calls, seconds = (sum(record[key] for record in own) for key in ("calls", "seconds"))
        print(
            f"{package:14} {outcomes['passed']:4} passed {outcomes['failed']:3} failed {calls:5} calls of ours {seconds:5.1f} s of CPU time"
        )
    wrong = judge(packages, records, ACCEPTED)
    assert not wrong, "\n".join(wrong)


def test_judgement():
    """Each way to be wrong is found."""

    def record(name, outcome="passed", calls=1):
        return {"suite": "them", "name": f"them/{name}", "outcome": outcome, "calls": calls, "message": "why"}

    accepted = {"them/known": "a reason"}
    known = record("known[1]", "failed")
    assert judge({"them"}, [record("a"), known], accepted) == []
    for records, sentence in [
        ([record("a", "failed"), known], "them/a failed: why"),
        ([record("a", "skipped"), known], "them/a skipped: why"),
        ([record("a", calls=0), known], "them/a passed without a call of our functions"),
        ([record("known[1]", "failed", calls=0)], "them/known[1] failed without a call of our functions"),
        ([record("known[1]")], "them/known[1] passes, and accepted.py lists it: remove the entry"),
        ([record("a")], "accepted.py lists them/known, and no test has that name"),
    ]:
        assert judge({"them"}, records, accepted) == [sentence]
    assert judge({"them", "others"}, [known], accepted) == ["no test of others was found"]

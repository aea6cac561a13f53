"""Which record `compare` returns, as mypy infers it in a user's script."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from kullback._compare.models import compare_models
from kullback._compare.signatures import ModelOptions, TableOptions
from kullback._compare.tables import compare_tables

SCRIPT = """
from pathlib import Path
import numpy as np
import kullback as kb

class Frame:
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

def calls(profile: kb.Profile) -> None:
    rows = np.zeros((2, 3))
"""
MODELS, TABLES = "kullback._compare.record.ModelComparison", "kullback._compare.tables.record.TableComparison"
CALLS = {
    'rows, rows, form="logits"': MODELS,
    '[[0.5, 0.5]], "a.npy"': MODELS,
    "((0.5, 0.5),), ((0.5, 0.5),)": MODELS,
    '"a.npy", rows, top=3': MODELS,
    '"a.npy", "b.npy", form="logits", tokens="t.npy"': MODELS,
    '"a.npy", "b.npy", progress=lambda done, total: None': MODELS,
    '"a", Path("b"), base=2': f"{MODELS} | {TABLES}",
    '"a.csv", "b.csv", columns=["x"], base=2': TABLES,
    '"a.csv", "b.csv", prior=0, progress=True': TABLES,
    'Frame(), Frame(), pairs=["x:y"]': TABLES,
    'profile, "b.csv"': TABLES,
    "Frame(), profile, prior=0": TABLES,
}
WRONG = {'"a.npy", "b.npy", fomr="logits"': "Unexpected keyword", 'rows, rows, columns=["x"]': "No overload variant"}


@pytest.mark.compiler
def test_mypy_infers_the_record_that_compare_returns(tmp_path):
    begin = SCRIPT.count("\n")
    lines = [f"    reveal_type(kb.compare({call}))" for call in CALLS] + [f"    kb.compare({call})" for call in WRONG]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path), str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        place, _, said = line.partition(" ")
        if place.startswith("script.py:"):
            number = int(place.split(":")[1])
            found[number] = found.get(number, "") + said
    for i, told in enumerate([*(f'"{kind}"' for kind in CALLS.values()), *WRONG.values()]):
        assert told in found.pop(begin + i + 1), done.stdout
    assert not found


@pytest.mark.parametrize(("function", "options"), [(compare_models, ModelOptions), (compare_tables, TableOptions)])
def test_checkers_know_all_options(function, options):
    """In their order too, in which errors list them."""
    known = [name for name, of in inspect.signature(function).parameters.items() if of.kind is of.KEYWORD_ONLY]
    assert list(options.__annotations__) == known

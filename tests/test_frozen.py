"""Public names with their parameters, saved records and the modules that an import loads stay as they are.

`python tests/frozen.py` rewrites the two lists.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import frozen
from frameworks import needed_by

NAMES, PICKLES = frozen.NAMES.read_text().splitlines(), frozen.PICKLES.read_text().splitlines()


def _needs(path):
    """The mark of the framework that a public module imports."""
    name = path.split(".")[1] if "." in path else ""
    return [pytest.mark.needs(*needed_by(f"import {name}"))] if name in frozen.SURFACES else []


@pytest.mark.parametrize("module", [pytest.param(name, marks=_needs(name)) for name in frozen.MODULES])
def test_public_names_and_their_parameters(module):
    inner = tuple(f"{name}." for name in frozen.MODULES if name.startswith(f"{module}."))
    lines = [line for line in NAMES if line.startswith(f"{module}.") and not line.startswith(inner)]
    assert lines == frozen.names(module)


def test_records_schemas_and_rules():
    assert [line for line in NAMES if not line.startswith("kullback.")] == frozen.others()


@pytest.mark.parametrize("line", [pytest.param(line, marks=_needs(line)) for line in PICKLES])
def test_pickles_that_users_have_saved_still_load(line):
    public, _, saved = line.partition(" = ")
    module, _, name = saved.rpartition(".")
    assert pickle.loads(f"c{module}\n{name}\n.".encode()) is frozen.found(public)


def test_every_class_has_its_path_in_pickles():
    known = {line.partition(" = ")[0] for line in PICKLES}
    assert {line.partition("(")[0] for line in NAMES if line.startswith("kullback.distributions.")} <= known
    assert set(frozen.RETURNED) <= known


def test_import_loads_numpy_and_nothing_else():
    """`tests/test_architecture.py` has the time that the import takes."""
    command = [
        sys.executable,
        "-c",
        "import sys, kullback; print(*{name.split('.')[0] for name in sys.modules})",
    ]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    others = set(loaded) - set(sys.stdlib_module_names)
    assert {name for name in others if not name.startswith("_")} == {"kullback", "numpy"}

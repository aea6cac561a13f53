"""kullback.keras on each Keras backend. A process has one backend, so keras_script.py runs the checks (keras_*.py) once for each."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BACKENDS = ("tensorflow", "jax", "torch")
FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "keras_script.py"
CHECKS = [
    (backend, node.name)
    for backend in BACKENDS
    for name in ("function", "objects", "training", "patching")
    for node in ast.parse((FOLDER / f"keras_{name}.py").read_text()).body
    if isinstance(node, ast.FunctionDef)
    and node.name.startswith("check_")
    and (backend == "tensorflow" or not node.name.startswith("check_tensorflow_"))
]


def _python(backend: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=900, env=environment)


def _results(backend: str, folder: Path) -> dict[str, str | None]:
    """Of the one run of the script on this backend, whichever of pytest's processes asks first."""
    path = folder / f"keras-{backend}.json"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            done = _python(backend, str(SCRIPT), str(path))
            assert path.exists(), done.stderr[-5000:]
    found = json.loads(path.read_text())
    assert found["backend"] == backend
    return found["results"]


@pytest.mark.parametrize(("backend", "check"), CHECKS, ids=lambda value: value.removeprefix("check_"))
def test_keras(backend, check, tmp_path_factory):
    # Under pytest-xdist each process has a folder of its own in one that they share.
    folder = tmp_path_factory.getbasetemp()
    results = _results(backend, folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    assert results[check] is None, results[check]


def test_a_saved_model_needs_the_import_which_loads_no_other_framework(tmp_path):
    """Keras loads no package that a file names; it says that the class is missing, and after the import it is not."""
    save = f"""
import keras, kullback.keras as kk
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
model.compile("sgd", loss=kk.losses.KLDivergence(from_logits=True), metrics=[kk.metrics.KLDivergence(from_logits=True)])
model.save({str(tmp_path / "model.keras")!r})
"""
    done = _python("torch", "-c", save)
    assert done.returncode == 0, done.stderr
    load = f"""
import sys, keras
path = {str(tmp_path / "model.keras")!r}
try:
    keras.saving.load_model(path)
except Exception as error:
    print("losses.KLDivergence" in str(error))
before = set(sys.modules)
import kullback.keras
print(*set(sys.modules) - before)
model = keras.saving.load_model(path)
print(model.loss.from_logits, type(model.loss).__module__)
"""
    done = _python("torch", "-c", load)
    assert done.returncode == 0, done.stderr
    without, loaded, after = done.stdout.splitlines()
    assert without == "True"
    assert after == "True kullback.keras.losses"
    loaded = {name.split(".")[0] for name in loaded.split()}
    assert "kullback" in loaded
    assert not loaded & {"tensorflow", "jax", "tinygrad", "torchmetrics", "optax"}

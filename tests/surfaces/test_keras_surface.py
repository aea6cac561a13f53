"""kullback.keras on each Keras backend. A process has one backend, so keras_script.py runs the checks (keras_*.py) once for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks import QUICK_XLA

BACKENDS = ("tensorflow", "jax", "torch")
SCRIPT = Path(__file__).resolve().parents[1] / "scripts/keras_script.py"


def _python(backend: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", **QUICK_XLA}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SCRIPT.parents[1] / "helpers"), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=900, env=environment)


# Keras is installed beside TensorFlow.
@pytest.mark.compiler
@pytest.mark.parametrize("backend", [pytest.param(name, marks=pytest.mark.needs("tensorflow", name)) for name in BACKENDS])
def test_keras(backend, tmp_path):
    path = tmp_path / "results.json"
    done = _python(backend, str(SCRIPT), str(path))
    assert path.exists(), done.stderr[-5000:]
    found = json.loads(path.read_text())
    assert found["backend"] == backend
    assert len(found["results"]) > 20
    failed = {check: error for check, error in found["results"].items() if error is not None}
    assert not failed, "\n".join(f"{check}: {error}" for check, error in failed.items())


@pytest.mark.compiler
@pytest.mark.needs("tensorflow", "jax")
def test_a_saved_model_needs_the_import_which_loads_no_other_framework(tmp_path):
    """Keras loads no package that a file names; it says that the class is missing, and after the import it is not."""
    save = f"""
import keras, kullback.keras as kk
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
model.compile("sgd", loss=kk.losses.KLDivergence(from_logits=True), metrics=[kk.metrics.KLDivergence(from_logits=True)])
model.save({str(tmp_path / "model.keras")!r})
"""
    done = _python("jax", "-c", save)
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
    done = _python("jax", "-c", load)
    assert done.returncode == 0, done.stderr
    without, loaded, after = done.stdout.splitlines()
    assert without == "True"
    assert after == "True kullback.keras.losses"
    loaded = {name.split(".")[0] for name in loaded.split()}
    assert "kullback" in loaded
    assert not loaded & {"tensorflow", "torch", "tinygrad", "torchmetrics", "optax"}

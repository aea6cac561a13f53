"""Processes that have Triton. It must not be in this one: TensorFlow and Triton, loaded in this order, end a process (each brings its own
LLVM), so Triton is kept in a folder apart (`make test` makes it)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def run_with_triton(*command: str, **variables: str) -> str:
    """What a Python process with these arguments prints."""
    triton = Path(os.environ.get("KULLBACK_TRITON", Path(sys.prefix) / "triton"))
    assert triton.is_dir(), f"no Triton in {triton}: pip install --no-deps --target {triton} triton"
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(triton), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": path, **variables}, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interpret(*names: str) -> str:
    """What pytest says of files of tests/gpu, with kernels in Triton's interpreter: its variable must be set before Triton is imported."""
    options = ["-q", "-p", "triton_interpreter", "-p", "no:cacheprovider", "-k", "not only_on_a_gpu"]
    return run_with_triton("-m", "pytest", *options, *(str(TESTS / "gpu" / name) for name in names), TRITON_INTERPRET="1")

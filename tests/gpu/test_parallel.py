"""A rank's part of `kl_loss(group=)` in Triton kernels: two ranks, on one GPU, or with TRITON_INTERPRET=1 on none. Exchanges go over gloo.

python -m pytest tests/gpu
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/parallel_script.py"
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@pytest.fixture(scope="module")
def measured():
    done = subprocess.run([sys.executable, str(SCRIPT), "2", "triton", DEVICE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in done.stdout.splitlines()]


def test_values_and_gradients(measured):
    rows = [row for row in measured if " torch." in row[0]]
    assert len(rows) == 2 * (3 * 2 + 1)
    for case, _, _, value, beside, slope, beside_slope, _ in rows:
        # The contract of the kernels' arithmetic; of gradients, twice the rounding of their dtype on top.
        assert max(float(value), float(beside)) <= 1e-5, case
        assert max(float(slope), float(beside_slope)) <= 1e-5 + (2 * 2**-8 if "bfloat16" in case else 0), case


def test_linear(measured):
    rows = [row for row in measured if row[0].startswith("linear")]
    assert len(rows) == 2 * 2
    for case, _, _, *errors in rows:
        assert max(map(float, errors)) <= 1e-5, case


def test_sparse_teachers(measured):
    rows = [row for row in measured if row[0].startswith("sparse")]
    assert len(rows) == 2 * (4 + 1)
    for case, _, _, *errors in rows:
        assert max(map(float, errors)) <= 1e-5, case


def test_edges(measured):
    rows = [row for row in measured if row[0].startswith("absent") or row[0] == "valid"]
    assert len(rows) == 2 * 2
    for case, _, _, *errors in rows:
        assert max(map(float, errors)) <= 1e-5, case
    for _, _, _, nan, error in (row for row in measured if row[0] == "invalid"):
        assert nan == "True True False True False False"
        assert float(error) <= 1e-5

"""`kl_loss` with the vocabulary spread over 2 and 4 processes (gloo): the numbers of one device, and a few numbers a row that travel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kullback.losses import kl_loss
from with_triton import interpret

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/parallel_script.py"
DIRECTIONS = ["forward", "reverse", "js", "skew", "reverse_skew"]


@pytest.fixture(scope="module", params=[2, 4])
def measured(request):
    done = subprocess.run([sys.executable, str(SCRIPT), str(request.param)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines()]
    found = {(case, int(rank)): numbers for case, _, rank, *numbers in rows}
    assert len(found) == len(rows)
    assert {rank for _, rank in found} == set(range(request.param))
    return found


def _of(measured, case):
    rows = [numbers for (name, _), numbers in measured.items() if name == case]
    assert len(rows) == len({rank for _, rank in measured})
    return rows


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    # float32: what was asked for; float64 loses 8 of its digits in the definition that is the truth here. A gradient in bfloat16 is rounded
    # to 8 bits, half a unit in the last place of each element.
    ("case", "value_bound", "slope_bound", "beside_bound"),
    [
        ("torch.float32 apart", 1e-6, 1e-6, 1e-6),
        ("torch.float32 close", 1e-6, 1e-6, 1e-6),
        ("torch.float32 shifted", 1e-6, 1e-6, 1e-6),
        ("torch.float64 apart", 1e-12, 1e-12, 1e-12),
        ("torch.bfloat16 apart", 1e-6, 2**-8, 2**-8),
    ],
)
def test_values_and_gradients(measured, direction, case, value_bound, slope_bound, beside_bound):
    for row in _of(measured, f"{direction} {case}"):
        value, beside, slope, beside_slope, largest = map(float, row)
        assert value <= value_bound
        assert beside <= value_bound  # the same call on one device
        assert slope <= slope_bound
        assert beside_slope <= beside_bound
        assert largest < 1e-8 if "close" in case else largest > 1e-6


@pytest.mark.parametrize("case", ["weights", "plain"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
def test_reductions_weights_and_temperatures(measured, reduction, case):
    for row in _of(measured, f"{reduction} torch.float32 {case}"):
        assert max(map(float, row[:4])) <= 1e-6


def test_edges(measured):
    for direction in DIRECTIONS:
        assert all(float(error) <= 1e-6 for (error,) in _of(measured, f"absent {direction}"))
    for beside, error in _of(measured, "valid"):
        assert float(beside) == 0
        assert float(error) <= 1e-6
    for nan, error in _of(measured, "invalid"):
        assert nan == "True True False True False False"
        assert float(error) <= 1e-6


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_linear(measured, direction):
    """Value and gradients to hidden states, weight and bias, of a projection whose rows lie on ranks."""
    for name in ("logits", "hidden"):
        for value, *slopes in _of(measured, f"linear {name} {direction}"):
            assert max(map(float, [value, *slopes])) <= 1e-6


def test_sparse_teachers(measured):
    """Value and gradient of every tail; then with the projection, in chunks of tokens, float64."""
    cases = {case for case, _ in measured if case.startswith("sparse")}
    assert len(cases) == 10 + 2
    for case in cases:
        for value, slope in _of(measured, case):
            bound = 1e-12 if "linear" in case else 1e-6
            assert float(value) <= bound, case
            assert float(slope) <= bound, case


@pytest.mark.parametrize("direction", ["forward", "js", "skew"])
@pytest.mark.parametrize("which", ["one", "each"])
def test_temperatures_that_learn(measured, which, direction):
    for value, slope in _of(measured, f"learns {which} {direction}"):
        assert float(value) <= 1e-6
        # A sum of both signs over 300 categories, in float32: the array contract of gradients.
        assert float(slope) <= 1e-5


@pytest.mark.parametrize(("direction", "last"), [("forward", 1), ("js", 2), ("skew", 3)])
def test_what_travels(measured, direction, last):
    """The largest of both; three masses; one to three sums: numbers a row, of which there are 6. Before that, on CPUs, one mark and its
    negative, so that ranks that were called differently raise instead of waiting for ever. Nothing in backward, no other collective."""
    for sizes, backward, seen in _of(measured, f"collectives {direction}"):
        assert list(map(int, sizes.split())) == [2, 2 * 6, 3 * 6, last * 6]
        assert int(backward) == 0
        assert int(seen) == 4


def test_dtensors(measured):
    cases = {case for case, _ in measured if case.startswith("DTensor") and case != "DTensor mistakes"}
    # Three directions, and a temperature that learns.
    assert len(cases) == 4 * (5 if ("forward torch.float32 apart", 3) in measured else 3)
    for case in cases:
        for value, slope in _of(measured, case):
            assert float(value) <= 1e-6, case
            assert float(slope) <= (1e-5 if "learns" in case else 1e-6), case


def test_mistakes_raise_on_every_rank(measured):
    assert _of(measured, "mistakes") == _of(measured, "DTensor mistakes")
    assert set(map(tuple, _of(measured, "mistakes"))) == {("all raised",)}


@pytest.mark.compiler
def test_kernels_in_tritons_interpreter():
    assert "15 passed" in interpret("test_parallel.py", "test_losses.py")


def test_a_group_needs_pytorch_and_torch_distributed():
    x = torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match="not initialised"):
        kl_loss(student=x, teacher=x, group=object())
    with pytest.raises(TypeError, match="these are NumPy arrays"):
        kl_loss(student=np.zeros(3), teacher=np.zeros(3), group=object())


@pytest.mark.parametrize("valid", [0, -1, 4, 2.0, True])
def test_valid_must_be_a_number_of_categories(valid):
    with pytest.raises(ValueError, match=r"valid is .*from 1 to the 3 there are"):
        kl_loss(student=torch.zeros(2, 3), teacher=torch.zeros(2, 2), valid=valid)

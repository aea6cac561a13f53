"""kullback and kullback.jax on arrays sharded over a mesh: the same numbers, and nothing gathered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks import QUICK_XLA
from jax_pairs import ELEMENTWISE, EVERY

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/jax_mesh_script.py"


@pytest.fixture(scope="module")
def on_a_mesh():
    # The tests look at the traffic between devices. Other tests cover the arithmetic.
    flags = "--xla_force_host_platform_device_count=8 " + QUICK_XLA["XLA_FLAGS"]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stderr
    rows = [line.split("|") for line in run.stdout.splitlines()]
    return [
        (name, what, mesh, kind, float(worst), [(op, int(size)) for op, size in (x.split(":") for x in seen.split(";") if x)])
        for name, what, mesh, kind, worst, seen in rows
    ]


SHARDED = ["kl of probs", "kl of logits", "kl_divergence where", *EVERY]
LOSSES = ["kl_loss", "kl_loss reverse", "kl_loss js"]
LINEAR = ["linear_kl by 4", "linear_kl by 16"]
ACCELERATED = ["kl_loss accelerated", "kl_loss js accelerated", "kl_loss bfloat16"]


def test_a_mesh_changes_no_number(on_a_mesh):
    # Value and gradient on two meshes, of two functions on a third, of the losses on one; shard_map, and the control.
    assert len(on_a_mesh) == len(SHARDED) * 2 * 2 + 2 * 2 + (len(LOSSES) + len(LINEAR) + len(ACCELERATED) + 1) * 2 + 2
    for name, what, mesh, kind, worst, _ in on_a_mesh:
        # Formulas of accelerators keep their contract, 1e-5; a gradient in bfloat16 may round the other way, by a unit in the last place.
        # So may sums of 4096 products of both signs, in another order.
        rounded = name in ACCELERATED or (name in LINEAR and what == "gradient")
        bound = 1e-6 if not rounded else 2**-7 if (name, what) == ("kl_loss bfloat16", "gradient") else 1e-5
        assert worst < bound, (name, what, mesh, kind)


@pytest.mark.parametrize("name", SHARDED + LOSSES)
def test_a_mesh_gathers_nothing(on_a_mesh, name):
    """One number a row travels, never an array, nor a shard of one (8192 numbers)."""
    rows = [row for row in on_a_mesh if row[0] == name]
    assert len(rows) >= (2 if name in LOSSES else 4)
    for _, what, mesh, kind, _, seen in rows:
        assert not [op for op, _ in seen if op != "all-reduce"], (what, mesh, kind, seen)
        assert all(size <= 16 for _, size in seen), (what, mesh, kind, seen)
        if what == "value" and name not in ELEMENTWISE:
            assert seen  # the sums do cross devices


@pytest.mark.parametrize("name", LINEAR)
def test_linear_kl_gathers_nothing(on_a_mesh, name):
    """Of 16 tokens of width 8 and 4096 categories: one number a token at a time, and what ranks add up of a gradient: that to the hidden
    states; where tokens lie on several devices too, that to a device's part of the weight."""
    rows = [row for row in on_a_mesh if row[0] == name]
    assert len(rows) == 2
    for _, _, mesh, _, _, seen in rows:
        assert {op for op, _ in seen} == {"all-reduce"}, seen
        largest = {"8": 4 * 8, "2x4": 4096 // 4 * 8}[mesh]
        assert max(size for _, size in seen) == largest, seen
        assert {size for _, size in seen} <= {1, 4, 8, 16, 4 * 8, 8 * 8, largest}, seen


@pytest.mark.parametrize("name", ACCELERATED)
def test_formulas_of_accelerators_gather_nothing(on_a_mesh, name):
    """Of 16 rows over 2 x 4 devices: one number a row at a time."""
    rows = [row for row in on_a_mesh if row[0] == name]
    assert len(rows) == (4 if name == "kl_loss bfloat16" else 2)
    for _, what, mesh, kind, _, seen in rows:
        assert seen
        assert {op for op, _ in seen} == {"all-reduce"}
        assert all(size <= 16 for _, size in seen), (what, mesh, kind, seen)


def test_a_gather_would_be_seen(on_a_mesh):
    (seen,) = (row[-1] for row in on_a_mesh if row[0] == "gather")
    assert seen == [("all-gather", 16 * 4096)]

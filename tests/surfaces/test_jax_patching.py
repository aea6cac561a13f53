"""What kullback.jax.patched reaches in JAX and optax, and what it does not; its promises are in test_patching.py."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import kullback.jax as kj

INF = math.inf


def test_patched_reaches_what_optax_calls_itself():
    x, t = jnp.array([-INF, 0.0]), jnp.array([0.0, 1.0])
    with kj.patched(), pytest.warns(DeprecationWarning, match="generalized_kl_divergence"):
        assert optax.convex_kl_divergence(x, t) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert math.isnan(optax.convex_kl_divergence(x, t))


by_name = optax.kl_divergence  # as `from optax import kl_divergence` does


def test_out_of_reach_imported_by_name():
    x, t = jnp.array([-INF, 0.0]), jnp.array([0.0, 1.0])
    with kj.patched():
        assert math.isnan(by_name(x, t))
    assert "imported by name" in kj.patched.__doc__


def test_out_of_reach_what_is_traced():
    x, t = jnp.array([-INF, 0.0]), jnp.array([0.0, 1.0])

    def make():
        return jax.jit(lambda x, t: optax.kl_divergence(x, t))

    before, inside, cleared = make(), make(), make()
    assert math.isnan(before(x, t))
    assert math.isnan(cleared(x, t))
    with kj.patched():
        assert math.isnan(before(x, t))  # traced before: theirs
        assert inside(x, t) == 0.0
        assert before(x[None], t[None]) == 0.0  # another shape is another trace
    assert inside(x, t) == 0.0  # traced inside: ours, after the block too
    with kj.patched():
        jax.clear_caches()
        assert cleared(x, t) == 0.0
    jax.clear_caches()
    for word in ("traced", "jax.clear_caches()"):
        assert word in kj.patched.__doc__


def _run(code):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_without_optax():
    code = """
import sys
sys.modules["optax"] = None  # as if not installed
import jax, jax.numpy as jnp, kullback.jax as kj
original = jax.scipy.special.rel_entr
with kj.patched():
    print(jax.scipy.special.rel_entr is kj.rel_entr)
print(jax.scipy.special.rel_entr is original)
print(float(kj.kl_divergence(jnp.array([-jnp.inf, 0.0]), jnp.array([0.0, 1.0]))))
"""
    assert _run(code) == ["True", "True", "0.0"]


def test_optax_is_imported_by_patching_and_not_before():
    code = """
import sys, kullback.jax as kj
print("optax" in sys.modules)
kj.install()
import optax
print(optax.losses.kl_divergence is kj.kl_divergence)
"""
    assert _run(code) == ["False", "True"]

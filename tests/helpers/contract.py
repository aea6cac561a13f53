"""What the tests of the array contract share: on which frameworks a rule is tried, and what is close enough.

What a compiler may change runs on every framework, several results behind one compiled function; what is decided before an array is
touched runs on the eager ones. How exact results are is `test_exactness`'s business; bounds here come from there.
"""

from __future__ import annotations

import contextlib

import ml_dtypes
import numpy as np
import pytest

from frameworks import ALL, EVERY, WITH_INDUCTOR
from oracle import VALUE_BOUND

# conftest.py skips tests of those that are not selected.
BY_NAME = {f.name: f for f in EVERY}
# tinygrad and the compilers run where they could make a difference. (JAX without jit compiles each operation once for each shape: tests
# that share shapes share that, while jit would compile every function anew.)
EAGER = [f for f in ALL if not f.compiled and f.name != "tinygrad"]
SLOW = ("torch-compiled", "tinygrad", "tinygrad-jit")
on_fast = pytest.mark.parametrize("framework", [f for f in ALL if f.name not in SLOW], ids=repr)
with_inductor = pytest.mark.parametrize("framework", WITH_INDUCTOR, ids=repr)
on_eager = pytest.mark.parametrize("framework", EAGER, ids=repr)
on_eager_gradients = pytest.mark.parametrize("framework", [f for f in EAGER if f.differentiable], ids=repr)

K = 4


def double(framework):
    """JAX's float64 is a switch, which must be on while arrays are made and while the function runs."""
    if framework.name != "jax-jit-x64":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)


def compute(framework, function, *arrays):
    """What a function that returns a list returns, in NumPy."""
    with double(framework):
        return [framework.numpy(x) for x in framework.transform(function)(*map(framework.array, arrays))]


def run_half(framework, function, *arrays):
    """tinygrad does not take NumPy's bfloat16: cast there."""
    if framework.name == "tinygrad" and arrays[0].dtype == ml_dtypes.bfloat16:
        import tinygrad

        return framework.run(lambda *xs: function(*(x.cast(tinygrad.dtypes.bfloat16) for x in xs)), *(a.astype(np.float32) for a in arrays))
    return framework.run(function, *arrays)


def widest(framework):
    return np.float64 if framework.double else np.float32


def close(found, truth, dtype, scale=1.0):
    """Within the bound of the contract for values; `scale` multiplies it where several such values are combined. Below 1e-40 the oracle
    itself, at 50 digits, rounds."""
    np.testing.assert_allclose(found, truth, rtol=scale * VALUE_BOUND[dtype], atol=1e-40)


def rows_of(function, *arrays):
    """A function of single rows over the broadcast batch."""
    arrays = np.broadcast_arrays(*arrays)
    return np.array([function(*(a[i] for a in arrays)) for i in np.ndindex(arrays[0].shape[:-1])]).reshape(arrays[0].shape[:-1])


def probabilities(rng, *shape):
    return rng.dirichlet(np.full(shape[-1], 1.5), shape[:-1])


FORMS = {
    "probs": lambda p: p,
    "log_probs": np.log,
    "logits": lambda p: np.log(p) + 7.0,
    "counts": lambda p: p * 250.0,
}

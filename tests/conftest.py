"""One fixture runs each test on every framework, eager and compiled. A framework that cannot be imported is an error, never a skip."""

from __future__ import annotations

import numpy as np
import pytest

from frameworks import ALL

# They need a GPU, or Triton's interpreter: test_kl_loss.py runs them in that.
collect_ignore = ["gpu"]


@pytest.fixture(params=ALL, ids=repr)
def framework(request):
    return request.param


@pytest.fixture(params=[f for f in ALL if f.differentiable], ids=repr)
def differentiable(request):
    return request.param


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(20260401)

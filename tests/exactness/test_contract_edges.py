"""The array contract at the edges: zeros, infinities, NaN, equal inputs, near certainty, sums that are off."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kullback as kb
import oracle
from contract import (
    FORMS,
    K,
    close,
    on_eager,
    probabilities,
    rows_of,
    widest,
)
from frameworks import ALL


@pytest.mark.parametrize("framework", [f for f in ALL if f.name != "torch-compiled"], ids=repr)  # that one in test_errors
def test_zeros_and_nan_in_probabilities(framework):
    nan, inf, ln2 = math.nan, math.inf, math.log(2)
    rows = [
        ([0.0, 0.5, 0.5], [0.5, 0.25, 0.25], ln2),  # p = 0 adds nothing
        ([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], inf),  # q = 0 < p
        ([0.5, 0.5, 0.0], [0.25, 0.75, 0.0], math.log(4 / 3) / 2),  # both 0
        ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], inf),  # disjoint
        ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], 0.0),
        ([nan, 0.5, 0.5], [0.5, 0.25, 0.25], nan),
        ([0.5, 0.5, 0.0], [0.5, 0.5, nan], nan),  # at p = 0
        ([0.5, 0.5, 0.0], [0.0, nan, 0.5], nan),  # beside inf
        ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5], ln2 / 4),
    ]
    dtype = widest(framework)
    p, q = (np.array([row[i] for row in rows], dtype) for i in (0, 1))
    close(framework.run(kb.kl, p, q), [row[2] for row in rows], dtype)


def test_zeros_and_nan_in_logits(framework):
    nan, inf, ln2 = math.nan, math.inf, math.log(2)
    e = math.e
    rows = [
        ([-inf, 0.0, 0.0], [ln2, 0.0, 0.0], ln2),
        ([0.0, 0.0, -inf], [0.0, -inf, -inf], inf),
        ([0.0, 0.0, -inf], [0.0, math.log(3), -inf], math.log(4 / 3) / 2),
        ([0.0, -inf, -inf], [-inf, -inf, 0.0], inf),
        ([nan, 0.0, 0.0], [0.0, 0.0, 0.0], nan),
        ([0.0, 0.0, -inf], [0.0, 0.0, nan], nan),
        ([0.0, 0.0, -inf], [-inf, nan, 0.0], nan),
        ([0.0, 1.0, -1e9], [1.0, 0.0, -1e9], (e - 1) / (e + 1)),  # a mask that is not -inf: p = (1, e)/(1 + e), q the reverse
        ([0.0, 0.0, -1e9], [0.0, 0.0, 0.0], math.log(1.5)),
        ([0.0, 0.0, 0.0], [0.0, 0.0, -3e4], 1e4 - math.log(1.5)),  # far, but no inf
    ]
    dtype = widest(framework)
    a, b = (np.array([row[i] for row in rows], dtype) for i in (0, 1))
    close(framework.run(lambda a, b: kb.kl(a, b, form="logits"), a, b), [row[2] for row in rows], dtype)


@on_eager
@pytest.mark.parametrize("form", ["log_probs", "counts"])
def test_zeros_in_other_forms(framework, form):
    p, q = np.array([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0]]), np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        x, y = (np.log(z) if form == "log_probs" else 8 * z for z in (p, q))
    close(
        framework.run(lambda x, y: kb.kl(x, y, form=form), x.astype(np.float32), y.astype(np.float32)), [math.log(2), math.inf], np.float32
    )


@on_eager
@pytest.mark.parametrize("name", ["entropy", "cross_entropy", "js", "jeffreys", "renyi"])
def test_nan_stays_in_its_row(framework, name):
    options = {"order": 0.5} if name == "renyi" else {}
    function = getattr(kb, name)
    p = np.array([[0.5, 0.5], [math.nan, 0.5], [0.0, 1.0], [0.5, 0.5]], np.float32)
    q = np.array([[0.25, 0.75], [0.5, 0.5], [0.0, 1.0], [0.5, math.nan]], np.float32)
    arguments = (p,) if name == "entropy" else (p, q)
    found = framework.run(lambda *xs: function(*xs, **options), *arguments)
    np.testing.assert_array_equal(np.isnan(found), [False, True, False, name != "entropy"])


@on_eager
def test_entropy_and_cross_entropy_of_zeros(framework):
    p, q = np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), np.array([[0.5, 0.5], [1.0, 0.0]], np.float32)
    close(framework.run(lambda p: kb.entropy(p, base=2), p), [0, 1], np.float32)
    close(framework.run(lambda p, q: kb.cross_entropy(p, q, base=2), p, q), [1, math.inf], np.float32)


@on_eager
def test_entropy_near_certainty(framework):
    """-(1 - e) log(1 - e) - e log e, whose first term a naive 1 - e would lose."""
    dtype = widest(framework)
    p = np.array([[1.0, 1e-6], [1.0, 1e-10], [1.0, 1e-30]], dtype)
    close(framework.run(kb.entropy, p), rows_of(oracle.entropy, p), dtype)
    a = np.array([[0.0, -12.0], [0.0, -40.0], [50.0, -20.0]], dtype)
    close(framework.run(lambda a: kb.entropy(a, form="logits"), a), rows_of(lambda x: oracle.entropy(x, "logits"), a), dtype)


@on_eager
def test_never_negative(framework, rng):
    p = probabilities(rng, 3000, 7)
    step = 10.0 ** rng.uniform(-9, -2, (3000, 1))
    q = p * np.exp(step * rng.normal(size=p.shape))
    q /= q.sum(1, keepdims=True)
    p, q = p.astype(np.float32), q.astype(np.float32)
    a, b = np.log(p), np.log(q) + 30
    for name, options in (("kl", {}), ("js", {}), ("jeffreys", {}), ("renyi", {"order": 0.5}), ("renyi", {"order": 3.0})):
        function = getattr(kb, name)
        assert (framework.run(lambda x, y, f=function, o=options: f(x, y, **o), p, q) >= 0).all(), (name, "probs")
        assert (framework.run(lambda x, y, f=function, o=options: f(x, y, form="logits", **o), a, b) >= 0).all(), (name, "logits")
    assert (framework.run(kb.kl_div, p, q) >= 0).all()


@on_eager
def test_kl_is_cross_entropy_less_entropy(framework, rng):
    dtype = widest(framework)
    p, q = (probabilities(rng, 40, 7).astype(dtype) for _ in range(2))
    kl, cross, entropy = (framework.run(f, p, q) for f in (kb.kl, kb.cross_entropy, lambda p, q: kb.entropy(p)))
    # Rounding of the larger terms.
    np.testing.assert_allclose(cross - entropy, kl, atol=4 * np.finfo(dtype).eps * cross.max(), rtol=0)


@on_eager
@pytest.mark.parametrize("form", FORMS)
def test_equal_inputs_give_exactly_zero(framework, form, rng):
    x = FORMS[form](probabilities(rng, 40, 7)).astype(np.float32)
    for f in (kb.kl, kb.js, kb.jeffreys, *(lambda x, y, o=o, **kw: kb.renyi(x, y, order=o, **kw) for o in (0.2, 2.0))):
        assert not framework.run(lambda x, y, f=f: f(x, y, form=form), x, x).any()


def test_inputs_are_normalised(rng):
    """Sums off by less than 1e-3, and any sum for counts and logits: the divergence of the normalised pair."""
    p, q = probabilities(rng, K), probabilities(rng, K)
    truth = oracle.kl(p, q).value
    close(kb.kl(p * 1.0009, q * 0.9992), truth, np.float64)
    close(kb.kl(p * 1e6, q * 3, form="counts"), truth, np.float64)
    close(kb.kl(p * 1e6, q * 3, check=False), truth, np.float64)
    close(kb.kl(np.log(p) + 40, np.log(q) - 7, form="logits"), truth, np.float64)

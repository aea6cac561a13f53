"""What holds for all distributions: hypothesis looks for counterexamples, on NumPy and on eager PyTorch.

Tolerances are multiples of U, the rounding of float64: the inputs of two calls that are equal in exact arithmetic
(permuted, merged, multiplied out) differ by a few units in the last place, which moves a divergence D by at most a few U·(1 + D)
times the largest log-ratio, here below 40.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kullback as kb
from oracle import VALUE_BOUND

U = 2.0**-52
ROUNDING = 200 * U

settings.register_profile("fixed", derandomize=True, max_examples=40, deadline=None, database=None)
settings.load_profile("fixed")


def on_numpy(function, *arrays, **options):
    return np.asarray(function(*arrays, **options))


def on_torch(function, *arrays, **options):
    return function(*map(torch.tensor, arrays), **options).numpy()


pytestmark = pytest.mark.parametrize("call", [on_numpy, on_torch])


SIZE = st.integers(2, 8)
# Weights over 15 orders of magnitude: log-ratios up to 35, and nearly equal categories.
WEIGHT = st.floats(-17.0, 17.0, allow_nan=False).map(math.exp)


def _normal(weights):
    return np.array(weights) / math.fsum(weights)


@st.composite
def distributions(draw, count, size=None, zeros=False):
    k = draw(SIZE) if size is None else size
    found = []
    for _ in range(count):
        weights = draw(st.lists(WEIGHT, min_size=k, max_size=k))
        if zeros:
            kept = draw(st.lists(st.booleans(), min_size=k, max_size=k).filter(any))
            weights = [w if keep else 0.0 for w, keep in zip(weights, kept)]
        found.append(_normal(weights))
    return found


@st.composite
def close_pairs(draw):
    """P, and Q within a relative step of 1e-9 to 1 of it."""
    (p,) = draw(distributions(1))
    step = 10.0 ** draw(st.floats(-9.0, 0.0))
    tilt = draw(st.lists(st.floats(-1.0, 1.0), min_size=len(p), max_size=len(p)))
    return p, _normal(list(p * np.exp(step * np.array(tilt))))


DIVERGENCES = {
    "kl": kb.kl,
    "js": kb.js,
    "js(mix=0.1)": lambda p, q, **options: kb.js(p, q, mix=0.1, **options),
    "jeffreys": kb.jeffreys,
    "renyi(order=0.3)": lambda p, q, **options: kb.renyi(p, q, order=0.3, **options),
    "renyi(order=0.5)": lambda p, q, **options: kb.renyi(p, q, order=0.5, **options),
    "renyi(order=3)": lambda p, q, **options: kb.renyi(p, q, order=3.0, **options),
}
each_divergence = pytest.mark.parametrize("name", DIVERGENCES)


@each_divergence
@given(pair=st.one_of(distributions(2), distributions(2, zeros=True), close_pairs()))
def test_never_negative(call, name, pair):
    assert call(DIVERGENCES[name], *pair) >= 0.0


@each_divergence
@given(pair=close_pairs())
def test_zero_if_and_only_if_equal(call, name, pair):
    p, q = pair
    divergence = DIVERGENCES[name]
    assert call(divergence, p, p) == 0.0
    # Compared as the numbers they are: 1e-9 apart relative to p is far beyond rounding, and gives 1e-19 or so, not 0.
    if np.abs(q / p - 1).max() > 1e-12 and np.abs(q - p).max() > 1e-12:
        assert call(divergence, p, q) > 0.0


@pytest.mark.parametrize("function", [*DIVERGENCES.values(), kb.cross_entropy], ids=[*DIVERGENCES, "cross_entropy"])
@given(data=st.data())
def test_order_of_categories_does_not_matter(call, function, data):
    p, q = data.draw(distributions(2))
    order = data.draw(st.permutations(range(len(p))))
    value = call(function, p, q)
    assert call(function, p[order], q[order]) == pytest.approx(value, rel=ROUNDING, abs=U)


@each_divergence
@given(data=st.data())
def test_constants_added_to_logits_do_not_matter(call, name, data):
    """Logits and constants are multiples of 1/64, so that adding is exact: what is left is our own error, within the contract's."""
    k = data.draw(SIZE)
    grid = st.integers(-640, 640).map(lambda n: n / 64)
    a, b = (np.array(data.draw(st.lists(grid, min_size=k, max_size=k))) for _ in range(2))
    shift_a, shift_b = (data.draw(st.integers(-64_000, 64_000)) / 64 for _ in range(2))
    value = call(DIVERGENCES[name], a, b, form="logits")
    assert call(DIVERGENCES[name], a + shift_a, b + shift_b, form="logits") == pytest.approx(value, rel=VALUE_BOUND[np.float64], abs=0.0)


@each_divergence
@given(data=st.data())
def test_merging_categories_never_increases(call, name, data):
    """Data processing inequality, for a map of categories to fewer ones."""
    p, q = data.draw(distributions(2, zeros=data.draw(st.booleans())))
    target = data.draw(st.lists(st.integers(0, 2), min_size=len(p), max_size=len(p)))
    merged = [np.bincount(target, weights=z, minlength=3) for z in (p, q)]
    fine, coarse = call(DIVERGENCES[name], p, q), call(DIVERGENCES[name], *merged)
    # Merging adds, which rounds: the coarse pair is the coarsening of one within U of the fine pair.
    assert coarse <= fine + ROUNDING * (1 + fine)


@pytest.mark.parametrize("name", ["kl", "jeffreys", "renyi(order=0.3)", "renyi(order=0.5)", "renyi(order=3)"])
@given(first=distributions(2, size=3), second=distributions(2, size=4))
def test_products_add_up(call, name, first, second):
    """KL(P1×P2‖Q1×Q2) = KL(P1‖Q1) + KL(P2‖Q2), and likewise for these."""
    joint = [np.outer(x, y) for x, y in zip(first, second)]
    total = call(DIVERGENCES[name], *first) + call(DIVERGENCES[name], *second)
    assert call(DIVERGENCES[name], *joint, axis=(0, 1)) == pytest.approx(total, rel=ROUNDING, abs=U)


@pytest.mark.parametrize("name", ["kl", "js", "js(mix=0.1)", "jeffreys", "renyi(order=0.3)", "renyi(order=0.5)"])
@given(four=distributions(4, size=4, zeros=True), t=st.floats(0.0, 1.0))
def test_jointly_convex(call, name, four, t):
    """D(tP1 + (1-t)P2 ‖ tQ1 + (1-t)Q2) <= t D(P1‖Q1) + (1-t) D(P2‖Q2). Rényi of order at most 1 is jointly convex too."""
    p1, p2, q1, q2 = four
    mixed = call(DIVERGENCES[name], t * p1 + (1 - t) * p2, t * q1 + (1 - t) * q2)
    d1, d2 = call(DIVERGENCES[name], p1, q1), call(DIVERGENCES[name], p2, q2)
    bound = (t * d1 if t > 0 else 0.0) + ((1 - t) * d2 if t < 1 else 0.0)
    assert mixed <= bound + ROUNDING * (1 + bound)


@given(pair=st.one_of(distributions(2, zeros=True), close_pairs()))
def test_symmetric_ones_are_symmetric_and_js_is_bounded(call, pair):
    p, q = pair
    for function in (kb.js, kb.jeffreys):
        assert call(function, p, q) == pytest.approx(call(function, q, p), rel=ROUNDING, abs=U * U)
    assert call(kb.js, p, q) <= math.log(2) * (1 + 4 * U)
    assert call(kb.js, p, q, base=2) <= 1 + 4 * U
    # js(p, q, mix=w) is js(q, p, mix=1-w): the weight belongs to Q
    assert call(kb.js, p, q, mix=0.25) == pytest.approx(call(kb.js, q, p, mix=0.75), rel=ROUNDING, abs=U * U)


@given(pair=st.one_of(distributions(2), distributions(2, zeros=True), close_pairs()))
def test_renyi_does_not_decrease_in_its_order(call, pair):
    orders = (0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 10.0, math.inf)
    values = [float(call(kb.renyi, *pair, order=order)) for order in orders]
    for lower, higher in pairwise(values):
        assert higher == math.inf if lower == math.inf else lower <= higher + ROUNDING * (1 + lower)
    assert values[orders.index(1.0)] == pytest.approx(float(call(kb.kl, *pair)), rel=VALUE_BOUND[np.float64])


@given(pair=st.one_of(distributions(2), distributions(2, zeros=True), close_pairs()))
def test_pinsker(call, pair):
    """KL >= 2 TV^2, TV = half the sum of |p - q|; nearly an equality for close pairs of two categories."""
    p, q = pair
    variation = math.fsum(np.abs(p - q)) / 2
    # |p - q| is exact to U of p, so TV^2 to U TV.
    assert call(kb.kl, p, q) >= 2 * variation**2 - ROUNDING * variation


@given(data=st.data())
def test_counts_may_be_scaled(call, data):
    k = data.draw(SIZE)
    count = st.integers(0, 10**6)
    x, y = (np.array(data.draw(st.lists(count, min_size=k, max_size=k).filter(any)), float) for _ in range(2))
    by_x, by_y = (data.draw(st.integers(2, 1000)) for _ in range(2))  # exact products
    for divergence in (kb.kl, kb.js, kb.cross_entropy):
        value = call(divergence, x, y, form="counts")
        again = call(divergence, x * by_x, y * by_y, form="counts")
        assert again == value or again == pytest.approx(value, rel=ROUNDING, abs=U)
    probs = call(kb.kl, x / x.sum(), y / y.sum())
    assert probs == call(kb.kl, x, y, form="counts") or probs == pytest.approx(call(kb.kl, x, y, form="counts"), rel=ROUNDING, abs=40 * U)


@given(pair=distributions(2))
def test_chain_of_definitions(call, pair):
    """Independent formulas: entropy + kl = cross-entropy; js from its definition; Jeffreys from two KLs."""
    p, q = pair
    kl, h, ce = call(kb.kl, p, q), call(kb.entropy, p), call(kb.cross_entropy, p, q)
    assert ce == pytest.approx(-math.fsum(p * np.log(q)), rel=ROUNDING)
    assert h == pytest.approx(-math.fsum(p * np.log(p)), rel=ROUNDING, abs=U)
    assert kl == pytest.approx(math.fsum(p * np.log(p / q)), abs=ROUNDING * (1 + ce))
    assert call(kb.jeffreys, p, q) == pytest.approx(kl + call(kb.kl, q, p), rel=ROUNDING, abs=U * U)
    for w in (0.5, 0.25):  # the weight of Q
        m = (1 - w) * p + w * q
        assert call(kb.js, p, q, mix=w) == pytest.approx((1 - w) * call(kb.kl, p, m) + w * call(kb.kl, q, m), abs=ROUNDING)

"""Comparisons of numbers of every kind: sizes, offsets, signs, types; compiled and not. Each row must be right, or left undecided."""

from __future__ import annotations

import numpy as np
import pytest

from dumps import softmax, truth
from kullback._compare.comparison import compare_batch
from kullback._kernels import comparison, compiled
from kullback._kernels.comparison import compare_rows

# What a row's figures promise.
PROMISE = 1e-5


@pytest.fixture(autouse=True, params=["compiled", "numpy"])
def kernel(request, monkeypatch):
    """As if there were more rows: few would be taken in float64. And as installed, or on a machine without a compiler."""
    monkeypatch.setattr(comparison, "SMALL", 0)
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "kernels", None)
    else:
        assert compiled.kernels is not None
    return request.param


def test_likeliest_categories_among_zeros_of_either_sign(rng):
    """Found by their bits, of which one is the sign."""
    p, q = (softmax(rng.standard_normal((40, 60))).astype(np.float32) for _ in "pq")
    p[:, 4] = q[:, 9] = -0.0
    q[:20, 4] = p[:20, 9] = 0.0
    found = compare_rows(p, q, ("probs", "probs"), (5e-1, 5e-1))
    np.testing.assert_array_equal(found.top_p, p.argmax(1))
    np.testing.assert_array_equal(found.top_q, q.argmax(1))
    np.testing.assert_allclose(found.log_p, np.log(p.max(1) / p.sum(1)), atol=1e-6)


def test_signs_and_nan_among_probabilities(rng):
    """In some rows of a block, after others: these are not decided, and the others as they are by themselves."""
    p, q = (softmax(2.0 * rng.standard_normal((200, 60))).astype(np.float32) for _ in "pq")
    ordinary = compare_rows(p, q, ("probs", "probs"), (1e-3, 1e-3))
    p[50, 3], q[60, 3], p[70, 3], q[70, 3] = -0.01, -0.01, -0.01, -0.012
    p[80, 3], q[90, 3], p[100, 5], q[110, 5] = np.nan, np.nan, -np.nan, -np.nan
    p[120, 7] = q[121, 7] = -0.0
    strange, zero = [50, 60, 70, 80, 90, 100, 110], [120, 121]
    others = np.setdiff1d(np.arange(200), strange + zero)
    found = compare_rows(p, q, ("probs", "probs"), (1e-1, 1e-1))
    assert not found.decided[strange].any()
    assert found.decided[others].all()
    for one, other in zip(found, ordinary):
        np.testing.assert_array_equal(one[others], other[others])
    np.testing.assert_array_equal(found.top_p[others], p[others].argmax(1))
    np.testing.assert_array_equal(found.top_p[zero], p[zero].argmax(1))
    np.testing.assert_array_equal(found.top_q[zero], q[zero].argmax(1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shifts", [(0, 50, 0, -95), (0, -95, 0, 95), (50, 0, -95, 0), (-30, 0, 30, 300), (0, 17, 0, -17)])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3, 1.5])
def test_logits_of_any_size(rng, dtype, shifts, noise):
    categories = 300
    shift = np.repeat(np.array(shifts, float), 25)[:, None]
    x = (2.0 * rng.standard_normal((100, categories)) + shift).astype(dtype)
    y = (x + noise * rng.standard_normal(x.shape)).astype(dtype)
    token = rng.integers(categories, size=100)
    found = compare_batch(x, y, ("logits", "logits"), (False, False), token)
    p, q = softmax(x), softmax(y)
    for values, right in zip(found[:3], truth(p, q)):
        np.testing.assert_allclose(values, right, rtol=PROMISE, atol=1e-17)
    # float32 logits of this size: their own rounding is not in p and q, that of their differences is.
    bound = 1e-6 * (1.0 + np.abs(shift[:, 0]))
    for values, side in ((found.log_p, p), (found.log_q, q)):
        assert (np.abs(values - np.log(side[np.arange(100), token]).astype(float)) <= bound).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.5, 3.0, -10.0, 30.0])
@pytest.mark.parametrize("noise", [1e-3, 0.02, 0.1, 0.3, 0.7, 2.0])
def test_logits_that_are_off_by_a_constant(rng, monkeypatch, kernel, dtype, shift, noise):
    """As those of two models are. Compiled, none of them is left to float64, which would take several times as long."""
    if kernel == "compiled":
        monkeypatch.setattr(comparison, "_in_float64", None)
    x = 2.0 * rng.standard_normal((40, 3001))
    y = x + noise * rng.standard_normal(x.shape) + shift
    x, y = (x + 5.0).astype(dtype), (y + 5.0).astype(dtype)
    token = rng.integers(3001, size=40)
    found = compare_rows(x, y, ("logits", "logits"), (1e-3, 1e-3), token)
    p, q = softmax(x), softmax(y)
    assert found.decided.all()
    for values, right in zip(found[:3], truth(p, q)):
        np.testing.assert_allclose(values, right, rtol=PROMISE, atol=1e-17)
    for values, side in ((found.log_p, p), (found.log_q, q)):
        # Weights are sums of float32.
        np.testing.assert_allclose(values, np.log(side[np.arange(40), token]).astype(float), atol=1e-6)


@pytest.mark.parametrize("form", ["logits", "probs", "counts"])
@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("f4", "f8"), ("f8", "f4")])
def test_float64(rng, monkeypatch, kernel, form, dtypes):
    if kernel == "compiled":
        monkeypatch.setattr(comparison, "_in_float64", None)
    x = 2.0 * rng.standard_normal((60, 700))
    y = x + np.repeat([0.003, 0.3, 1.0], 20)[:, None] * rng.standard_normal(x.shape)
    if form != "logits":
        x, y = (softmax(side).astype(float) for side in (x, y))
    if form == "counts":
        x, y = 50.0 * x, 50.0 * y
    x, y = (side.astype(dtype) for side, dtype in zip((x, y), dtypes))
    wide = [side.astype(np.longdouble) for side in (x, y)]
    p, q = (softmax(side) if form == "logits" else side / side.sum(1, keepdims=True) for side in wide)
    found = compare_rows(x, y, (form, form), (1e-3, 1e-3))
    assert found.decided.all()
    np.testing.assert_array_equal(found.top_p, x.argmax(1))
    np.testing.assert_array_equal(found.top_q, y.argmax(1))
    for values, right in zip(found[:3], truth(p, q)):
        np.testing.assert_allclose(values, right, rtol=PROMISE)


@pytest.mark.parametrize("small", [1e-43, 1e-40, 1e-60, 1e-200])
def test_float64_that_float32_has_not(rng, small):
    """Probabilities too small for it, and with them ratios too small or too large."""
    p, q = (softmax(rng.standard_normal((50, 300))).astype(float) for _ in "pq")
    p[:20, 5] = q[10:30, 7] = small
    q[30:] = p[30:] * np.exp(0.08 * rng.standard_normal((20, 300)))
    p[30:, 5], q[30:, 5] = 1.05 * small, 1e-5
    found = compare_rows(p, q, ("probs", "probs"), (5e-2, 5e-2))
    wide = [side.astype(np.longdouble) for side in (p, q)]
    assert found.decided.all()
    for values, right in zip(found[:3], truth(*(side / side.sum(1, keepdims=True) for side in wide))):
        np.testing.assert_allclose(values, right, rtol=PROMISE)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("noise", [1e-6, 1e-4, 0.01, 1.0])
def test_few_numbers_have_more_digits(rng, monkeypatch, dtype, noise):
    monkeypatch.undo()
    x = rng.standard_normal((30, 100)).astype(dtype)
    y = (x + noise * rng.standard_normal(x.shape)).astype(dtype)
    found = compare_batch(x, y, ("logits", "logits"), (False, False), None)
    for values, right in zip(found[:3], truth(softmax(x), softmax(y))):
        np.testing.assert_allclose(values, right, rtol=1e-10, atol=1e-18)  # the error of a sum in extended precision


@pytest.mark.parametrize("ratio", [1e-6, 0.01, 0.1, 3.0, 1e3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_whose_sums_differ(rng, dtype, ratio):
    x = np.exp(rng.standard_normal((60, 500)))
    y = ratio * x * np.exp(np.repeat([0.01, 0.3, 1.0], 20)[:, None] * rng.standard_normal(x.shape))
    x, y = x.astype(dtype), y.astype(dtype)
    wide = [side.astype(np.longdouble) for side in (x, y)]
    expected = truth(*(side / side.sum(1, keepdims=True) for side in wide))
    found = compare_rows(x, y, ("counts", "counts"), (1e-3, 1e-3))
    assert found.decided.all()
    for values, right in zip(found[:3], expected):
        np.testing.assert_allclose(values, right, rtol=PROMISE)


@pytest.mark.parametrize("scale", [1e-38, 1e-42, 1e-200, 1e30, 1e200])
@pytest.mark.parametrize("noise", [1e-3, 0.08, 0.5])
def test_counts_of_any_size(rng, kernel, scale, noise):
    x = scale * np.exp(rng.standard_normal((60, 500)))
    y = x * np.exp(noise * rng.standard_normal(x.shape))
    wide = [side.astype(np.longdouble) for side in (x, y)]
    found = compare_rows(x, y, ("counts", "counts"), (1e-3, 1e-3))
    for values, right in zip(found[:3], truth(*(side / side.sum(1, keepdims=True) for side in wide))):
        np.testing.assert_allclose(values[found.decided], right[found.decided], rtol=PROMISE)
    assert found.decided.mean() > 0.9 or (kernel, noise) == ("numpy", 1e-3)  # which float64 has too few digits for


def test_large_float64_logits(rng):
    """The largest, rounded to float32, may be a hundred off. Another mistake would be to lose, beside it, the logarithm of a sum."""
    for level in (1e6, 2.0**31 + 160.0, 1e12):
        x = level + 2.0 * rng.standard_normal((60, 500))
        for y in (x + 0.5 * rng.standard_normal(x.shape), x - level + 1e-3 * rng.standard_normal(x.shape)):
            found = compare_batch(x, y, ("logits", "logits"), (False, False), None)
            for values, right in zip(found[:3], truth(softmax(x), softmax(y))):
                np.testing.assert_allclose(values, right, rtol=PROMISE)
    x = np.full((60, 300), -1e30, np.float32)
    np.testing.assert_allclose(compare_rows(x, x.copy(), ("logits", "logits"), (1e-3, 1e-3)).log_p, -np.log(300.0), rtol=1e-6)


@pytest.mark.parametrize("categories", [17, 1000])
@pytest.mark.parametrize("noise", [1e-6, 1e-5, 1e-4])
def test_close_rows_of_float32_that_one_side_makes_infinite(rng, categories, noise):
    """Q lacks a category of which P has e^-40: no kernel decides them, and JS is as small as ever."""
    x = rng.standard_normal((60, categories))
    y = x + noise * rng.standard_normal(x.shape)
    x[:, 0], y[:, 0] = -40.0, -np.inf
    x, y = x.astype(np.float32), y.astype(np.float32)
    found = compare_batch(x, y, ("logits", "logits"), (False, False), None)
    assert np.isinf(found.kl_pq).all()
    p, q = softmax(x), softmax(y)
    d = np.where(np.isinf(y), 0, y.astype(np.longdouble) - x)  # log(q/p) but for a constant
    d -= (p * d).sum(1, keepdims=True)
    # Half of each KL to the middle is d^2/16 but for d^3, less than 1e-3 of it; and what P has alone is e^-40 log(2)/2.
    expected = (p * d**2).sum(1) / 8 + p[:, 0] * np.log(2.0) / 2
    np.testing.assert_allclose(found.js, expected.astype(float), rtol=2 * noise)
    if noise == 1e-4:  # where extended precision has enough digits
        np.testing.assert_allclose(found.js, truth(p, q)[2], rtol=PROMISE)


@pytest.mark.parametrize(("level", "noise"), [(1e6, 1e-10), (1e3, 1e-9), (15.0, 1e-10)])
def test_differences_that_float64_rounds(rng, level, noise):
    x = level + rng.standard_normal((60, 100))
    y = (x - level) + noise * rng.standard_normal(x.shape)
    found = compare_batch(x, y, ("logits", "logits"), (False, False), None)
    p, d = softmax(x), y.astype(np.longdouble) - (x - level)  # which is exact
    d -= (p * d).sum(1, keepdims=True)
    np.testing.assert_allclose(found.kl_pq, (p * d**2).sum(1) / 2, rtol=PROMISE)  # but for d^3, less than 1e-9 of it


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i8", "?", ">f4", ">f8", ">f2", "f2"])
def test_numbers_of_any_kind(rng, dtype):
    for form, low in (("counts", 1), ("logits", 0)):
        x, y = (rng.integers(low, 2 if dtype == "?" else 120, (30, 40)).astype(dtype) for _ in "pq")
        if dtype == "?" and form == "counts":
            y[:, ::2] = x[:, ::2] = False
        found = compare_batch(x, y, (form, form), (False, False), None)
        wide = [side.astype(np.longdouble) for side in (x, y)]
        p, q = (softmax(side) if form == "logits" else side / side.sum(1, keepdims=True) for side in wide)
        np.testing.assert_array_equal(found.top_q, wide[1].argmax(1))
        for values, right in zip(found[:3], truth(p, q)):
            np.testing.assert_allclose(values, right, rtol=PROMISE, atol=1e-17)


def test_equal_rows_without_any_count_are_not_decided(kernel):
    x = np.full((40, 30), 2.0, np.float32)
    x[7] = 0.0
    found = compare_rows(x, x, ("counts", "counts"), (1e-3, 1e-3))
    assert not found.decided[7]
    assert found.decided.sum() == (39 if kernel == "compiled" else 0)  # of nothing but rounding errors

"""The options of the array contract: base, axis, keepdims, reductions, weights, temperature, prior; with gradients."""

from __future__ import annotations

import math

import ml_dtypes
import mpmath as mp
import numpy as np
import pytest

import kullback as kb
import oracle
from contract import (
    BY_NAME,
    EAGER,
    K,
    close,
    compute,
    on_eager,
    on_eager_gradients,
    probabilities,
    rows_of,
    run_half,
    widest,
)
from oracle import GRADIENT_BOUND

# --- unit, axes, shapes ---


@on_eager
def test_base(framework):
    p, q = np.array([[1.0, 0.0]], np.float32), np.array([[0.5, 0.5]], np.float32)
    for base, one in ((2, 1.0), (None, math.log(2)), (10, math.log10(2)), (4.0, 0.5)):
        close(framework.run(lambda p, q, base=base: kb.kl(p, q, base=base), p, q), [one], np.float32)
        close(framework.run(lambda q, base=base: kb.entropy(q, base=base), q), [one], np.float32)
        close(framework.run(lambda p, q, base=base: kb.cross_entropy(p, q, base=base), p, q), [one], np.float32)
        close(framework.run(lambda p, q, base=base: kb.renyi(p, q, order=2.0, base=base), p, q), [one], np.float32)
    close(framework.run(lambda p, q: kb.kl(p, q, base=2, reduction="mean"), p, q), 1.0, np.float32)


@on_eager
@pytest.mark.parametrize(
    ("axis", "moved"),
    [
        (-1, (0, 1, 2)), (2, (0, 1, 2)), (0, (1, 2, 0)), (-2, (0, 2, 1)),
        ((0, 2), (1, 0, 2)), ((-1, 0), (1, 0, 2)), ([1, 2], (0, 1, 2)), ((0, 1, 2), (0, 1, 2)),
    ],
    ids=str,
)  # fmt: skip
def test_axis(framework, axis, moved, rng):
    x, y = rng.gamma(2.0, size=(2, 3, 4)).astype(np.float32), rng.gamma(2.0, size=(2, 3, 4)).astype(np.float32)
    count = len(axis) if not isinstance(axis, int) else 1
    flat = [z.transpose(moved).reshape(*(z.shape[i] for i in moved[: 3 - count]), -1) for z in (x, y)]
    kept = [1 if i in moved[3 - count :] else n for i, n in enumerate(x.shape)]
    pairs = (
        (kb.kl, lambda x, y: oracle.kl(x, y).value),
        (kb.js, oracle.js),
        (lambda x, y, **kw: kb.entropy(x, **kw), lambda x, y: oracle.entropy(x)),
        (kb.cross_entropy, lambda x, y: oracle.kl(x, y).value + oracle.entropy(x)),
    )
    results = compute(
        framework, lambda x, y: [f(x, y, axis=axis, form="counts", keepdims=k) for f, _ in pairs for k in (False, True)], x, y
    )
    for (_, truth), found, keeping in zip(pairs, results[::2], results[1::2]):
        expected = rows_of(truth, *flat)
        assert found.shape == expected.shape
        close(found, expected, np.float32)
        assert keeping.shape == tuple(kept)
        close(keeping.reshape(expected.shape), expected, np.float32)


def test_batch_broadcasting_weights_and_reductions(framework, rng):
    """(3, 1, K) against (4, K), weights over the last batch axis and over both; batchmean divides by 3, whatever the weights.
    (Weighted means in Inductor's code: test_every_function.)"""
    p, q = probabilities(rng, 3, 1, K).astype(np.float32), probabilities(rng, 4, K).astype(np.float32)
    truth = rows_of(lambda x, y: oracle.kl(x, y).value, p, q)
    p[1] = math.nan  # weight 0
    fractional = np.array([[0.5], [0.0], [2.0]], np.float32)
    last = np.array([1, 0, 1, 1])

    def every(p, q, w):
        return [kb.kl(p, q, weights=w), kb.kl(p, q, weights=w, reduction="batchmean")]

    none, batchmean = compute(framework, every, p, q, fractional)
    assert none.shape == (3, 4)
    assert none.dtype == batchmean.dtype == np.float32
    assert batchmean.shape == ()
    weighted = fractional * truth
    close(none, weighted, np.float32)
    close(batchmean, weighted.sum() / 3, np.float32, scale=2)
    if framework in EAGER:
        found = framework.run(lambda p, q, w: kb.kl(p, q, weights=w, reduction="mean"), p, q, fractional)
        close(found, weighted.sum() / (4 * fractional.sum()), np.float32, scale=2)
        p[1] = p[0]
        truth[1] = truth[0]
        plain = [framework.run(lambda p, q, r=r: kb.kl(p, q, reduction=r), p, q) for r in ("none", "sum", "mean", "batchmean")]
        for found, expected in zip(plain, (truth, truth.sum(), truth.mean(), truth.sum() / 3)):
            close(found, expected, np.float32, scale=2)
        found = framework.run(lambda p, q, w: kb.kl(p, q, weights=w, reduction="mean"), p, q, last)
        close(found, (truth * last).sum() / (3 * 3), np.float32, scale=2)


@on_eager
def test_reductions_of_one_distribution(framework, rng):
    p, q = probabilities(rng, K).astype(np.float32), probabilities(rng, K).astype(np.float32)
    truth = oracle.kl(p, q).value
    for reduction in ("none", "sum", "mean", "batchmean"):
        found = framework.run(lambda p, q, r=reduction: kb.kl(p, q, reduction=r), p, q)
        assert found.shape == ()
        close(found, truth, np.float32)
        # A single weight: the mean does not see it, the others multiply.
        found = framework.run(lambda p, q, r=reduction: kb.kl(p, q, reduction=r, weights=0.5), p, q)
        close(found, truth if reduction == "mean" else truth / 2, np.float32)
    assert framework.run(lambda p, q: kb.kl(p, q, keepdims=True), p, q).shape == (1,)


@on_eager
@pytest.mark.parametrize("name", ["kl", "entropy", "cross_entropy", "js", "jeffreys", "renyi"])
def test_reductions_and_weights_of_every_function(framework, name, rng):
    function = getattr(kb, name)
    options = {"order": 0.5} if name == "renyi" else {}
    p, q = probabilities(rng, 3, K).astype(np.float32), probabilities(rng, 3, K).astype(np.float32)
    arrays = (p,) if name == "entropy" else (p, q)
    rows = framework.run(lambda *xs: function(*xs, **options), *arrays).astype(np.float64)
    w = np.array([0.5, 0.0, 3.0])
    for array in arrays:
        array[1] = [math.nan, math.inf, -math.inf, -5]
    expected = {"none": w * rows, "sum": w @ rows, "mean": w @ rows / 3.5, "batchmean": w @ rows / 3}
    for reduction, truth in expected.items():
        found = framework.run(lambda *xs, r=reduction: function(*xs, weights=w.tolist(), reduction=r, **options), *arrays)
        close(found, truth, np.float32)
        zero = framework.run(lambda *xs, r=reduction: function(*xs, weights=[0, 0, 0], reduction=r, **options), *arrays)
        assert not zero.any(), "all weights zero: 0"
        assert zero.shape == found.shape


# --- weights and temperature, with gradients ---


def _kl_mpf(temperature, a, b):
    def logs(row):
        scaled = [mp.mpf(float(v)) / temperature for v in row]
        total = mp.log(mp.fsum(mp.exp(v) for v in scaled))
        return [v - total for v in scaled]

    return oracle.kl_mpf(logs(a), logs(b))


def test_gradients_under_weights_and_a_learnable_temperature(differentiable, rng):
    a, b = rng.normal(size=(4, K)).astype(np.float32), rng.normal(size=(4, K)).astype(np.float32)
    t, w = np.array([0.5, 1.0, 1.0, 3.0], np.float32), np.array([1.0, 0.0, 0.0, 0.5], np.float32)
    a[1], b[1] = math.nan, math.inf
    a[2], b[2] = -math.inf, [math.inf, -math.inf, math.nan, 0]
    used = [0, 3]
    share = w / w.sum()

    def loss(a, b, t):
        return kb.kl(a, b, form="logits", temperature=t, weights=w, reduction="mean")

    to_a, to_b, to_t = differentiable.gradients(loss, a, b, t)
    for row in (1, 2):
        assert not to_a[row].any()
        assert not to_b[row].any()
        assert to_t[row] == 0
    for row in used:
        truth = oracle.kl(a[row], b[row], "logits", temperature=float(t[row]))
        np.testing.assert_allclose(to_a[row], share[row] * truth.to_x, atol=GRADIENT_BOUND[np.float32] * np.abs(truth.to_x).max())
        np.testing.assert_allclose(to_b[row], share[row] * truth.to_y, atol=GRADIENT_BOUND[np.float32] * np.abs(truth.to_y).max())
        slope = oracle.central_difference(lambda v, row=row: _kl_mpf(v[0], a[row], b[row]), t[row : row + 1])[0]
        assert to_t[row] == pytest.approx(share[row] * slope, rel=GRADIENT_BOUND[np.float32])


@on_eager_gradients
@pytest.mark.parametrize("form", ["probs", "logits"])
@pytest.mark.parametrize("name", ["kl", "cross_entropy", "js", "jeffreys", "renyi"])
def test_gradients_are_zero_where_the_weight_is(framework, form, name, rng):
    options = {"order": 2.0} if name == "renyi" else {}
    function = getattr(kb, name)
    p, q = probabilities(rng, 3, K).astype(np.float32), probabilities(rng, 3, K).astype(np.float32)
    if form == "logits":
        p, q = np.log(p), np.log(q)
    clean = framework.gradients(lambda p, q: function(p, q, form=form, **options), p, q)
    p[1], q[1] = [math.nan, math.inf, -math.inf, -5], math.nan
    for w in ([2.0, 0.0, 1.0], [0.0, 0.0, 0.0]):
        for found, full in zip(framework.gradients(lambda p, q, w=w: function(p, q, form=form, weights=w, **options), p, q), clean):
            np.testing.assert_allclose(found, np.array(w)[:, None] * full, rtol=GRADIENT_BOUND[np.float32])
        assert np.isfinite(
            framework.gradients(lambda p, q, w=w: function(p, q, form=form, weights=w, reduction="mean", **options), p, q)
        ).all()


@on_eager_gradients
def test_gradient_to_weights_is_the_divergence(framework, rng):
    p, q = probabilities(rng, 3, K).astype(np.float32), probabilities(rng, 3, K).astype(np.float32)
    _, _, found = framework.gradients(lambda p, q, w: kb.kl(p, q, weights=w, reduction="sum"), p, q, np.array([1.0, 2.0, 0.5], np.float32))
    close(found, rows_of(lambda x, y: oracle.kl(x, y).value, p, q), np.float32)


@on_eager
@pytest.mark.parametrize("form", ["logits", "log_probs"])
def test_temperature(framework, form, rng):
    """Divides both sides; no T² factor. One number, or one a row; log-probabilities must sum to 1 before, not after."""
    dtype = widest(framework)
    a, b = (np.log(probabilities(rng, 3, K)).astype(dtype) for _ in range(2))
    t = np.array([0.25, 1.0, 4.0], dtype)
    for given, each in ((2.0, [2.0] * 3), (2, [2.0] * 3), (t, t), (t.tolist(), t), (np.float32(2), [2.0] * 3)):
        truth = [oracle.kl(x, y, form, temperature=float(s)).value for x, y, s in zip(a, b, each)]
        close(framework.run(lambda a, b, g=given: kb.kl(a, b, form=form, temperature=g), a, b), truth, dtype)
    assert not np.allclose(truth, 4 * np.array(truth))
    found = framework.run(lambda a, b, t: kb.kl(a, b, form=form, temperature=t), a, b, t)
    close(found, [oracle.kl(x, y, form, temperature=float(s)).value for x, y, s in zip(a, b, t)], dtype)
    scaled = (a / dtype(2), b / dtype(2))
    close(
        framework.run(lambda a: kb.entropy(a, form=form, temperature=2.0), a),
        rows_of(lambda x: oracle.entropy(x, "logits"), scaled[0]),
        dtype,
    )
    close(
        framework.run(lambda a, b: kb.js(a, b, form=form, temperature=2.0), a, b),
        rows_of(lambda x, y: oracle.js(x, y, "logits"), *scaled),
        dtype,
    )
    close(
        framework.run(lambda a, b: kb.cross_entropy(a, b, form=form, temperature=2.0), a, b),
        rows_of(lambda x, y: oracle.kl(x, y, "logits").value + oracle.entropy(x, "logits"), *scaled), dtype,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow", "tinygrad"])
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_temperature_and_weights_are_not_rounded_to_half_precision(name, half):
    framework = BY_NAME[name]
    a, b = np.array([[1.0, 2.0, 3.0]], half), np.array([[0.0, 2.0, 1.0]], half)
    truth = oracle.kl(a[0], b[0], "logits", temperature=0.7).value
    close(run_half(framework, lambda a, b: kb.kl(a, b, form="logits", temperature=0.7), a, b), [truth], np.float32)
    truth = oracle.kl(a[0], b[0], "logits").value
    close(run_half(framework, lambda a, b: kb.kl(a, b, form="logits", weights=[0.1]), a, b), [0.1 * truth], np.float32)


# --- prior ---


@on_eager
def test_prior(framework):
    x, y = np.array([[3.0, 1.0, 0.0]], np.float32), np.array([[0.0, 2.0, 2.0]], np.float32)
    # Counts: half a count each: (3.5, 1.5, 0.5)/5.5 against (0.5, 2.5, 2.5)/5.5.
    by_hand = (3.5 * math.log(7) + 1.5 * math.log(0.6) + 0.5 * math.log(0.2)) / 5.5
    close(framework.run(lambda x, y: kb.kl(x, y, form="counts", prior=0.5), x, y), [by_hand], np.float32)
    # Probabilities: a share of 0.3 of uniform: 0.7 (3/4, 1/4, 0) + 0.1 = (0.625, 0.275, 0.1) against (0.1, 0.45, 0.45).
    by_hand = 0.625 * math.log(6.25) + 0.275 * math.log(0.275 / 0.45) + 0.1 * math.log(0.1 / 0.45)
    close(framework.run(lambda x, y: kb.kl(x, y, prior=0.3), x / 4, y / 4), [by_hand], np.float32)
    mixed = framework.run(lambda x, y: kb.kl(x, y, form=("counts", "probs"), prior=0.5), x, y / 4)
    # (3.5, 1.5, 0.5)/5.5 against 0.5 (0, 1/2, 1/2) + 1/6
    by_hand = sum(p / 5.5 * math.log(p / 5.5 / q) for p, q in zip((3.5, 1.5, 0.5), (1 / 6, 5 / 12, 5 / 12)))
    close(mixed, [by_hand], np.float32)
    assert framework.run(lambda x, y: kb.kl(x, y, form="counts"), x, y)[0] == math.inf, "never by default"
    assert framework.run(lambda x, y: kb.kl(x, y, form="counts", prior=0), x, y)[0] == math.inf
    assert framework.run(lambda x, y: kb.kl(x, y, prior=1), x / 4, y / 4)[0] == 0, "nothing but uniform"
    close(framework.run(lambda x, y: kb.entropy(x, form="counts", prior=2), x, y), [oracle.entropy(x[0] + 2)], np.float32)


@on_eager
def test_prior_over_several_axes_and_empty_counts(framework):
    x = np.array([[[1.0, 0.0], [0.0, 1.0]]], np.float32)
    zero = np.zeros((1, 2, 2), np.float32)
    found = framework.run(lambda x, y: kb.kl(x, y, axis=(1, 2), form="counts", prior=1), x, zero)
    close(found, [oracle.kl(np.array([2.0, 1.0, 1.0, 2.0]), np.ones(4)).value], np.float32)
    found = framework.run(lambda x, y: kb.kl(x / 2, y, axis=(1, 2), prior=0.4), x, zero + np.float32(0.25))
    close(found, [oracle.kl(np.array([0.4, 0.1, 0.1, 0.4]), np.full(4, 0.25)).value], np.float32)

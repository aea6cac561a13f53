"""Weights: below 0 and NaN are refused wherever they go in, or NaN where nobody can look; sums of weights that overflow; mixed dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpmath import mp

import kullback as kb
import kullback.torch
import oracle
from frameworks import Lazy
from kullback.losses import TopK, kl_loss, linear_kl

jax = Lazy("jax")
tf = Lazy("tensorflow")

P = np.array([[0.5, 0.5], [0.3, 0.7], [0.1, 0.9]])
Q = np.array([[0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
TOP = TopK(np.zeros((3, 1), int), np.full((3, 1), -1.0))
TORCH = [torch.tensor(x) for x in (P, Q)]
ENTRIES = {
    "kl": lambda w: kb.kl(P, Q, weights=w),
    "kl, mean": lambda w: kb.kl(P, Q, weights=w, reduction="mean"),
    "torch": lambda w: kb.kl(*TORCH, weights=w, reduction="mean"),
    "tensorflow": lambda w: kb.js(tf.constant(P), tf.constant(Q), weights=w),
    "entropy": lambda w: kb.entropy(P, weights=w),
    "cross_entropy": lambda w: kb.cross_entropy(P, Q, weights=w),
    "kl_loss": lambda w: kl_loss(student=P, teacher=Q, weights=w),
    "kl_loss, torch": lambda w: kl_loss(student=TORCH[0], teacher=TORCH[1], weights=w),
    "TopK": lambda w: kl_loss(student=P, teacher=TOP, weights=w),
    "linear_kl": lambda w: linear_kl(hidden=P, weight=Q[:2], teacher_logits=P, weights=w),
    "KLLoss": lambda w: kullback.torch.KLLoss()(student=TORCH[0], teacher=TORCH[1], weights=w),
    "KLMetric": lambda w: kullback.torch.KLMetric().update(*TORCH, w),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_weights_below_0_and_nan_are_refused(entry):
    """Regression: weights of 1, -1 and 2 gave a plausible mean."""
    for wrong, sentence in (([1.0, -1.0, 2.0], "-1 at 1"), ([1.0, 0.0, np.nan], "nan at 2"), ([np.inf, 1.0, 1.0], "inf at 0")):
        with pytest.raises(ValueError, match=f"^weights hold {sentence}: a weight must be a finite number of at least 0"):
            ENTRIES[entry](wrong)


def test_weights_of_more_axes_and_of_one_number():
    with pytest.raises(ValueError, match=r"^weights hold -2 at \(1, 2\)"):
        kb.kl(np.stack([P, P]), Q, weights=[[1, 1, 1], [1, 1, -2]])
    with pytest.raises(ValueError, match=r"^weights hold -0\.5: a weight"):
        kb.kl(P, Q, weights=-0.5)
    # Nobody looks, or may look: NaN for that row.
    assert np.isnan(kb.kl(P, Q, weights=[1.0, -1.0, 2.0], check=False)).tolist() == [False, True, False]
    found = jax.jit(lambda w: kb.kl(jax.numpy.asarray(P), Q, weights=w))(np.array([1.0, -1.0, np.nan]))
    assert np.isnan(found).tolist() == [False, True, True]
    each = torch.func.vmap(lambda w: kl_loss(student=TORCH[0], teacher=TORCH[1], weights=w))(torch.tensor([[1.0, -1, 2], [1, 0, 2]]))
    assert torch.isnan(each).tolist() == [True, False]


@pytest.mark.parametrize("scale", [1e308, 1e-310, 1e200, 2.0])
@pytest.mark.parametrize("entry", ["kl", "kl_loss"])
def test_a_mean_depends_on_quotients_of_weights_alone(entry, scale):
    """Regression: weights whose sum is inf gave a mean of 0, and subnormal ones lost their digits."""
    run = {
        "kl": lambda x, y, w: kb.kl(x, y, weights=w, form="logits", reduction="mean"),
        "kl_loss": lambda x, y, w: kl_loss(student=y, teacher=x, weights=w, impl="array"),
    }[entry]
    each = np.array([oracle.kl(x, y, "logits").value for x, y in zip(P, Q)])
    parts = np.array([1.0, 0.5, 0.25])
    for make in (np.asarray, torch.as_tensor):
        found = float(run(make(P), make(Q), make(parts * scale)))
        assert found == pytest.approx((each * parts).sum() / parts.sum(), rel=1e-12)  # the array contract
    w = torch.tensor(parts * scale, requires_grad=True)
    run(*TORCH, w).backward()
    # d/dw = (x - mean) / sum of w
    mean = (each * parts).sum() / parts.sum()
    with np.errstate(over="ignore"):
        truth = (each - mean) / parts.sum() / scale
    np.testing.assert_allclose(w.grad, truth, rtol=1e-10)  # x - mean cancels two digits


def _truth(p, q, weights=None):
    with mp.workdps(60):
        p, q = ([mp.mpf(float(v)) for v in x] for x in (p, q))
        total = mp.fsum(p), mp.fsum(q)
        return float(mp.fsum(a / total[0] * mp.log(a / total[0] * total[1] / b) for a, b in zip(p, q)))


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([1e-301, 2e-301], [1e14, 1e14]),
        ([1e14, 2e14], [1e-301, 1e-301]),
        ([1e308, 1.5e308], [1.0, 2.0]),
        ([1e308, 5e307], [5e-324, 1e-323]),
    ],
)
def test_counts_of_any_size(p, q):
    """Regression: NaN and inf where the quotient of two sums overflowed, and "p holds inf" where a sum did."""
    for make in (np.array, lambda x: torch.tensor(x, dtype=torch.float64)):
        assert float(kb.kl(make(p), make(q), form="counts")) == pytest.approx(_truth(p, q), rel=1e-12)  # the array contract
        x = np.array(p) / max(p)
        assert float(kb.entropy(make(p), form="counts")) == pytest.approx(np.log(x.sum()) - (x * np.log(x)).sum() / x.sum(), rel=1e-12)
    # Derivatives to log-counts do not depend on the scale: p (log p/q - KL) and q - p, of the normalised ones.
    x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (p, q))
    kb.kl(x, y, form="counts").backward()
    a, b = (np.array(v) / max(v) for v in (p, q))
    a, b = a / a.sum(), b / b.sum()
    np.testing.assert_allclose(x.grad * x.detach(), a * (np.log(a / b) - _truth(p, q)), rtol=1e-9)  # the difference cancels
    if min(q) > 1e-300:  # else the derivative itself exceeds the largest number
        np.testing.assert_allclose(y.grad * y.detach(), b - a, rtol=1e-9)


def test_probabilities_whose_sum_overflows_are_no_inf():
    with pytest.raises(ValueError, match=r"^p sums to inf, not 1"):
        kb.kl([1e308, 1e308], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"^p holds inf: probabilities are finite"):
        kb.kl([np.inf, 0.5], [0.5, 0.5])


MIXED = {
    "cross_entropy": (lambda p, q: kb.cross_entropy(p, q, form="logits"), lambda p, q: _cross(p, q)),
    "temperature": (lambda p, q: kb.kl(p, q, form="logits", temperature=0.9), lambda p, q: oracle.kl(p, q, "logits", 0.9).value),
    "weights": (lambda p, q: kb.kl(p, q, form="logits", weights=0.1), lambda p, q: 0.1 * oracle.kl(p, q, "logits").value),
    "softcap": (
        lambda p, q: kl_loss(student=q, teacher=p, softcap=3.0, impl="array"),
        lambda p, q: oracle.kl(*(3 * np.tanh(np.asarray(x, np.float64) / 3) for x in (p, q)), "logits").value,
    ),
}


def _cross(p, q):
    with mp.workdps(50):
        p, q = ([mp.exp(mp.mpf(float(v))) for v in x] for x in (p, q))
        return float(-mp.fsum(a / mp.fsum(p) * mp.log(b / mp.fsum(q)) for a, b in zip(p, q)))


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("narrow", [0, 1])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_float32_beside_float64_has_the_digits_of_float64(rng, name, narrow, make):
    """Regression: the entropy, the temperature and the softcap of the float32 side were computed in float32 (2e-9 to 1.6e-7 off)."""
    run, truth = MIXED[name]
    sides = list(rng.normal(size=(2, 5)))
    sides[narrow] = sides[narrow].astype(np.float32)
    found = run(*map(make, sides))
    assert "float64" in str(found.dtype)
    assert float(found) == pytest.approx(truth(*sides), rel=1e-13)

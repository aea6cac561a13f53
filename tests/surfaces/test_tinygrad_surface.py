"""kullback.tinygrad: PyTorch's kl_div, and the exact kl_divergence, entropy and cross_entropy, on Tensors, under TinyJit, in training.

Small arrays throughout: without clang, tinygrad interprets its kernels.
"""

from __future__ import annotations

import math
import shutil
import warnings
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tinygrad import Context, Tensor, TinyJit, dtypes
from tinygrad.nn.optim import SGD, Adam

import kullback.tinygrad as kt

pytestmark = pytest.mark.filterwarnings("ignore:reduction")
FLOAT32 = 1.2e-7  # two roundings: our own, and of the float64 truth to float32
P = np.array([[0.5, 0.3, 0.2], [0.1, 0.0, 0.9], [0.25, 0.5, 0.25]])
Q = np.array([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [0.125, 0.5, 0.375]])
Z = np.array([[0.3, -1.2, 0.8], [2.0, 0.0, -1.0], [0.5, -0.5, 0.0]])


def tensor(x, dtype=np.float32):
    return Tensor(np.asarray(x, dtype)).realize()


def softmax(z):
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def terms(p, log_q):
    """p (log p - log q) by hand, 0 at p = 0."""
    found = np.zeros(p.shape)
    there = p > 0
    found[there] = p[there] * (np.log(p[there]) - log_q[there])
    return found


def test_public_names():
    assert kt.__all__ == sorted(kt.__all__)
    for name in kt.__all__:
        assert ">>>" in getattr(kt, name).__doc__


# --- kl_div -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
def test_means_what_torch_means(reduction, log_target):
    # Neither is normalised.
    x, t = Z - 1, np.abs(Z) + 0.1
    t = np.log(t) if log_target else t
    ours = kt.kl_div(tensor(x, np.float64), tensor(t, np.float64), reduction, log_target)
    theirs = F.kl_div(torch.tensor(x), torch.tensor(t), reduction=reduction, log_target=log_target)
    assert ours.dtype == dtypes.float64
    # float64's rounding of nine terms, on both sides.
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-15, atol=2e-15)


@pytest.mark.parametrize("log_target", [False, True])
def test_sums_lose_no_digits(log_target):
    # P within 1e-3 of Q: the terms are a thousand times their sum.
    rng = np.random.default_rng(1)
    a = rng.normal(size=(3, 8))
    x, t = np.log(softmax(a + 1e-3 * rng.normal(size=a.shape))), softmax(a)
    x, t = x.astype(np.float32), (np.log(t) if log_target else t).astype(np.float32)
    with mpmath.workdps(50):
        truth = mpmath.mpf(0)
        for u, v in zip(map(mpmath.mpf, x.ravel().tolist()), map(mpmath.mpf, t.ravel().tolist())):
            truth += mpmath.exp(v) * (v - u) if log_target else v * (mpmath.log(v) - u)
        found = kt.kl_div(tensor(x), tensor(t), "sum", log_target).item()
        assert abs(mpmath.mpf(found) / truth - 1) < FLOAT32
        # As one would write it in tinygrad:
        t = tensor(t)
        plain = (t.exp() * (t - tensor(x)) if log_target else t * (t.log() - tensor(x))).sum().item()
        assert abs(mpmath.mpf(plain) / truth - 1) > 100 * FLOAT32


@pytest.mark.parametrize("log_target", [False, True])
def test_zeros_of_the_target(log_target):
    absent = -math.inf if log_target else 0.0
    x, t = tensor([[-1.0, -math.inf, -2.0]]), tensor([[0.0 if log_target else 1.0, absent, absent]])
    value = kt.kl_div(x, t, "none", log_target)
    assert value.tolist() == [[1.0, 0.0, 0.0]]
    value.sum().backward()
    assert x.grad.tolist() == [[-1.0, 0.0, 0.0]]
    assert t.grad.tolist() == [[2.0, 0.0, 0.0]]
    # As one would write it:
    assert math.isnan((t.exp() * (t - x) if log_target else t * (t.log() - x)).sum().item())


def test_nan_infinite_and_negative():
    value = kt.kl_div(tensor([math.nan, -1.0, -math.inf, -1.0]), tensor([0.0, math.nan, 0.5, -0.5]), "none").numpy()
    assert np.isnan(value).tolist() == [True, True, False, True]
    assert value[2] == math.inf


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("how", ["backward", "gradient"])
def test_gradients(how, log_target):
    x, t = np.log(Q), np.log(P + 0.1) if log_target else P + 0.1
    a, b = tensor(x, np.float64), tensor(t, np.float64)
    loss = kt.kl_div(a, b, "batchmean", log_target)
    if how == "backward":
        loss.backward()
        to_x, to_t = a.grad, b.grad
    else:
        to_x, to_t = loss.gradient(a, b)
    p = P + 0.1
    slope = np.log(p) - x + 1
    # One float64 exp or log of tinygrad on the way.
    np.testing.assert_allclose(to_x.numpy(), -p / 3, rtol=1e-14)
    np.testing.assert_allclose(to_t.numpy(), (slope * p if log_target else slope) / 3, rtol=1e-14)


def test_second_derivative():
    t = tensor(P[0], np.float64)
    (first,) = kt.kl_div(tensor(np.log(Q[0]), np.float64), t, "sum").gradient(t)
    (second,) = (first * tensor([1.0, -2.0, 3.0], np.float64)).sum().gradient(t)
    np.testing.assert_allclose(second.numpy(), [1.0, -2.0, 3.0] / P[0], rtol=1e-14)


def test_batchmean_divides_by_the_broadcast_batch():
    x, t = np.log(Q), P
    expected = terms(P, np.log(Q[:1]).repeat(3, 0)).sum() / 3
    for one in (tensor(x[:1]), tensor(x[0])):
        assert kt.kl_div(one, tensor(t), "batchmean").item() == pytest.approx(expected, rel=FLOAT32)


def test_dtypes_are_those_of_tinygrad():
    x = tensor(np.log(Q))
    truth = terms(np.eye(3), np.log(Q))
    # A one-hot is weakly typed, integers and booleans are numbers.
    for t in (Tensor([0, 1, 2]).one_hot(3), Tensor.eye(3, dtype=dtypes.int32), Tensor.eye(3, dtype=dtypes.bool), Tensor.eye(3)):
        value = kt.kl_div(x, t, "none")
        assert value.dtype == dtypes.float32
        np.testing.assert_allclose(value.numpy(), truth, rtol=FLOAT32)
    half = kt.kl_div(tensor(np.log(Q), np.float16), tensor(P, np.float16), "sum")
    assert half.dtype == dtypes.float16
    stored = terms(P.astype(np.float16).astype(float), np.log(Q).astype(np.float16).astype(float)).sum()
    assert half.numpy() == np.float16(stored)
    assert kt.kl_div(x, tensor(P, np.float64), "sum").dtype == dtypes.float64


def test_empty_and_single():
    for reduction in ("none", "sum", "mean", "batchmean"):
        for shape in ((0, 3), (3, 0), ()):
            x, t = np.full(shape, -1.0), np.full(shape, 0.5)
            theirs = F.kl_div(torch.tensor(x), torch.tensor(t), reduction=reduction)
            # tinygrad gives a number that was made as one no device, and computes those with clang, whatever the default device is.
            mine = (tensor(np.atleast_1d(each), np.float64).reshape(each.shape) for each in (x, t))
            ours = kt.kl_div(*mine, reduction)
            assert ours.shape == tuple(theirs.shape)
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-15)
    if shutil.which("clang"):
        assert kt.kl_div(Tensor(-1.0), Tensor(0.5), "sum").item() == pytest.approx(0.5 * (math.log(0.5) + 1), rel=FLOAT32)


def test_mean_warns():
    x, t = tensor(np.log(Q)), tensor(P)
    with pytest.warns(UserWarning, match="not the KL divergence: use 'batchmean'") as seen:
        kt.kl_div(x, t)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kt.kl_div(x, t, "batchmean")
        kt.kl_divergence(t, tensor(Q), reduction="mean")


def test_bad_input():
    x, t = tensor(Z), tensor(P)
    for function in (kt.kl_div, kt.kl_divergence, kt.cross_entropy):
        with pytest.raises(TypeError, match=function.__name__ + r"\(\): \w+ must be a tinygrad Tensor, not list: pass Tensor\(\w+\)"):
            function(x.tolist(), t)
        with pytest.raises(TypeError, match=r"must be a tinygrad Tensor, not ndarray"):
            function(x, P)
        with pytest.raises(TypeError, match=r"must be a tinygrad Tensor, not NoneType"):
            function(x, None)
    with pytest.raises(TypeError, match=r"entropy\(\): p must be a tinygrad Tensor, not float"):
        kt.entropy(0.5)
    # Of the type that Tensor.cross_entropy raises for the like.
    with pytest.raises(ValueError, match="reduction") as theirs:
        x.cross_entropy(t, reduction="average")
    for call in (kt.kl_div, kt.kl_divergence, kt.cross_entropy):
        with pytest.raises(type(theirs.value), match=r"reduction is 'average': it must be one of .*'batchmean'"):
            call(x, t, reduction="average")
    with pytest.raises(RuntimeError, match="shape") as theirs:
        x.cross_entropy(tensor(P[:, :2]))
    with pytest.raises(type(theirs.value), match=r"input has shape \(3, 3\) and target \(3, 2\), which do not broadcast"):
        kt.kl_div(x, tensor(P[:, :2]), "sum")
    with pytest.raises(RuntimeError, match=r"input is on .* and target on NPY: move one of them"):
        kt.kl_div(x, Tensor(P, device="NPY"), "sum")
    with pytest.raises(TypeError, match="temprature"):
        kt.kl_divergence(x, t, temprature=2.0)
    with pytest.raises(ValueError, match=r"p row 0 holds -1\.2"):
        kt.kl_divergence(x, t)


# --- the exact ones -----------------------------------------------------------------------------------------------------------------

REDUCE = {"none": lambda x: x, "mean": np.mean, "sum": np.sum, "batchmean": lambda x: x.sum() / len(x)}


@pytest.mark.parametrize("reduction", sorted(REDUCE))
def test_values_and_reductions(reduction):
    p, z = tensor(P, np.float64), tensor(Z, np.float64)
    log_q = np.log(softmax(Z))
    h = -terms(P, np.zeros(P.shape)).sum(-1)
    kl = terms(P, log_q).sum(-1)
    for found, truth in (
        (kt.kl_divergence(p, z, form=("probs", "logits"), reduction=reduction), kl),
        (kt.entropy(p, reduction=reduction), h),
        (kt.cross_entropy(p, z, form=("probs", "logits"), reduction=reduction), kl + h),
    ):
        # By hand the terms are rounded in float64, and they are of the size of their sum.
        np.testing.assert_allclose(found.numpy(), REDUCE[reduction](truth), rtol=1e-14)


def test_options_reach_kullback():
    p, q = tensor(P.T, np.float64), tensor(Q.T, np.float64)
    bits = terms(P, np.log(Q)).sum(-1) / math.log(2)
    weights = tensor([1.0, 0.0, 3.0], np.float64)
    found = kt.kl_divergence(p, q, axis=0, base=2, weights=weights, reduction="mean")
    assert found.item() == pytest.approx((bits[0] + 3 * bits[2]) / 4, rel=1e-14)
    assert kt.entropy(p, axis=0, keepdims=True).shape == (1, 3)
    soft = softmax(Z / 2)
    found = kt.cross_entropy(tensor(Z, np.float64), tensor(Z, np.float64), form="logits", temperature=2.0)
    np.testing.assert_allclose(found.numpy(), -(soft * np.log(soft)).sum(-1), rtol=1e-14)


def test_normalised_unlike_kl_div():
    p, q = tensor([3.0, 1.0]), tensor([2.0, 2.0])
    assert kt.kl_divergence(p, q, form="counts").item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=FLOAT32)
    assert kt.kl_div(q.log(), p, "sum").item() == pytest.approx(3 * math.log(1.5) + math.log(0.5), rel=FLOAT32)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_a_one_hot_is_that_of_tensor(reduction):
    z, labels = tensor(Z), Tensor([2, 0, 1]).realize()
    hot = labels.one_hot(3)
    found = kt.cross_entropy(hot, z, form=("probs", "logits"), reduction=reduction)
    assert found.dtype == dtypes.float32
    # tinygrad's float32 exp and log are off by up to 4e-6.
    np.testing.assert_allclose(found.numpy(), z.cross_entropy(labels, reduction=reduction).numpy(), rtol=1e-5)
    # A one-hot has no entropy.
    kl = kt.kl_divergence(hot, z, form=("probs", "logits"), reduction=reduction)
    np.testing.assert_allclose(kl.numpy(), found.numpy(), rtol=FLOAT32)


def test_cross_entropy_of_probabilities_and_on_another_axis():
    z = tensor(Z)
    soft = kt.cross_entropy(tensor(P), z, form=("probs", "logits"))
    np.testing.assert_allclose(soft.numpy(), z.cross_entropy(tensor(P), reduction="none").numpy(), rtol=1e-5)
    # [batch, classes, positions]: tinygrad's classes lie on axis 1.
    wide, p = tensor(np.stack([Z, -Z])), tensor(np.stack([P, Q]).transpose(0, 2, 1))
    ours = kt.cross_entropy(p, wide, form=("probs", "logits"), axis=1)
    np.testing.assert_allclose(ours.numpy(), wide.cross_entropy(p, reduction="none").numpy(), rtol=1e-5)


def test_cross_entropy_where_both_are_zero():
    z, p = tensor([[0.0, 0.0, -math.inf]]), tensor([[0.25, 0.75, 0.0]])
    assert math.isnan(z.cross_entropy(p).item())
    found = kt.cross_entropy(p, z, form=("probs", "logits"), reduction="mean")
    assert found.item() == pytest.approx(math.log(2), rel=FLOAT32)
    assert found.gradient(z)[0].numpy()[0] == pytest.approx([0.25, -0.25, 0.0], rel=FLOAT32)


# --- TinyJit and training -----------------------------------------------------------------------------------------------------------


def test_under_tinyjit():
    def all_of_them(p, q, z):
        found = [
            kt.kl_div(q.log(), p, "sum"),
            kt.kl_divergence(p, z, form=("probs", "logits"), reduction="mean"),
            kt.entropy(p, reduction="sum"),
            kt.cross_entropy(p, q, reduction="batchmean"),
        ]
        found.append(found[1].gradient(z)[0])
        return [x.realize() for x in found]

    jitted = TinyJit(all_of_them)
    # It runs eagerly, captures, and replays: on other numbers each time.
    for order in ([0, 1, 2], [1, 2, 0], [2, 1, 0], [0, 2, 1]):
        p, q, z = P[order], Q[[1, 0, 2]], Z[order[::-1]]
        literal, kl, entropy, cross, slope = [x.numpy() for x in jitted(*(tensor(x, np.float64) for x in (p, q, z)))]
        no_log = np.zeros(p.shape)
        assert literal == pytest.approx(terms(p, np.log(q)).sum(), rel=1e-14)
        assert kl == pytest.approx(terms(p, np.log(softmax(z))).sum(-1).mean(), rel=1e-14)
        assert entropy == pytest.approx(-terms(p, no_log).sum(), rel=1e-14)
        assert cross == pytest.approx(-(p * np.log(q)).sum() / 3, rel=1e-14)
        np.testing.assert_allclose(slope, (softmax(z) - p) / 3, rtol=1e-13, atol=1e-16)


def train(optimiser, loss, steps):
    @TinyJit
    @Context(TRAINING=1)
    def step():
        optimiser.zero_grad()
        value = loss().backward()
        return value.realize(*optimiser.schedule_step())

    return [step().item() for _ in range(steps)]


def test_training_minimises_a_kl():
    # P has a zero: its logit goes to -inf, slowly, and the loss to 0.
    p, logits = tensor(P), Tensor.zeros(3, 3).contiguous().realize()
    losses = train(SGD([logits], lr=3.0), lambda: kt.kl_divergence(p, logits, form=("probs", "logits"), reduction="mean"), 12)
    by_hand, z = [], np.zeros((3, 3))
    for _ in range(12):
        q = softmax(z)
        by_hand.append(terms(P, np.log(q)).sum(-1).mean())
        z -= 3.0 * (q - P) / 3
    # float32 logits and steps: a rounding each, and nothing here amplifies it.
    np.testing.assert_allclose(losses, by_hand, rtol=1e-5)
    np.testing.assert_allclose(logits.numpy(), z, atol=1e-5)
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < 0.1 * losses[0]


def test_training_with_kl_div_and_adam():
    p, logits = tensor(P), tensor(Z)
    losses = train(Adam([logits], lr=0.2), lambda: kt.kl_div(logits.log_softmax(-1), p, "batchmean"), 25)
    assert losses[0] == pytest.approx(terms(P, np.log(softmax(Z))).sum() / 3, rel=1e-5)  # tinygrad's log_softmax
    for last in (losses[-1], terms(P, np.log(softmax(logits.numpy().astype(float)))).sum() / 3):
        assert last < 0.1 * losses[0]

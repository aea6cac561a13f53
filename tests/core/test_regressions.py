"""Wrong numbers that were found once, each with the truth beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kullback as kb
import kullback.torch
import oracle
from frameworks import ALL, Lazy
from kullback import _calculus
from oracle import VALUE_BOUND

tf = Lazy("tensorflow")

INF = float("inf")


def _worst(found, truths):
    return np.max(np.abs(np.asarray(found, np.float64) / truths - 1))


def test_any_sum_with_a_small_kl(rng):
    """check=False: sums that differ 100-fold, in arrays large enough for the blocked kernel."""
    q = rng.random((40, 200))
    q /= q.sum(1, keepdims=True)
    p = (q * (1 + 1e-5 * rng.standard_normal(q.shape)) * 100).astype(np.float32)
    q = q.astype(np.float32)
    assert _worst(kb.kl(p, q, check=False), [oracle.kl(x, y).value for x, y in zip(p, q)]) <= VALUE_BOUND[np.float32]


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.float32, 85, 110), (np.float32, -42, -34), (np.float64, 600, 900)])
def test_logits_far_from_zero_with_a_temperature(rng, dtype, low, high):
    offset = rng.uniform(low, high, (80, 1))
    a = offset - 20 + rng.standard_normal((80, 64))
    b = a + rng.standard_normal(a.shape) * 0.1
    a[:, :2], b[:, :2] = offset, offset + [0.95, -0.95]
    a, b = a.astype(dtype), b.astype(dtype)
    truths = [oracle.kl(x, y, "logits", 1.3).value for x, y in zip(a, b)]
    assert _worst(kb.kl(a, b, form="logits", temperature=1.3), truths) <= VALUE_BOUND[dtype]


def test_entropy_across_memory():
    """NumPy adds float32 one by one along the first axis."""
    x = np.full((10**6, 3), 1e-6, np.float32)
    assert _worst(kb.entropy(x, axis=0), np.log(1e6)) <= VALUE_BOUND[np.float32]
    assert _worst(kb.cross_entropy(x, x, axis=0), np.log(1e6)) <= VALUE_BOUND[np.float32]


def test_subnormal_quotients_of_short_vectors():
    p, q = np.array([0.9, 0.1]), np.array([5e-324, 1.0])
    assert _worst(kb.kl(p, q), oracle.kl(p, q).value) <= VALUE_BOUND[np.float64]


def test_elementwise_terms_of_tiny_numbers():
    x, y = np.float32(1e-30), np.float32(1.6e-30)
    assert abs(kb.rel_entr(x, y) / (float(x) * np.log(float(x) / float(y))) - 1) < 3e-7  # a few units in the last place
    assert abs(kb.rel_entr(1e-300, 1.51e-300) / (1e-300 * np.log(1 / 1.51)) - 1) < 1e-15


def test_prior_on_float32_probabilities(rng):
    p = rng.dirichlet(np.ones(500)).astype(np.float32)
    q = (p * np.exp(1e-5 * rng.normal(size=500))).astype(np.float32)
    mixed = [0.9 * z.astype(np.float64) + 0.1 * z.astype(np.float64).sum() / 500 for z in (p, q)]
    value = kb.kl(p, q, prior=0.1)
    assert value.dtype == np.float32
    assert _worst(value, oracle.kl(*mixed).value) <= VALUE_BOUND[np.float32]


def _gradients(function, *arrays):
    arrays = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    return [g.numpy() for g in torch.autograd.grad(function(*arrays), arrays)]


def test_cross_entropy_of_a_one_hot_p_has_a_gradient_to_p():
    """By hand: d/dp_j = -log q_j - H(P, Q), H(P, Q) = -log 0.2."""
    to_p, _ = _gradients(kb.cross_entropy, [1.0, 0.0, 0.0], [0.2, 0.5, 0.3])
    np.testing.assert_allclose(to_p, -np.log([0.2, 0.5, 0.3]) + np.log(0.2), rtol=1e-14, atol=1e-16)


def test_renyi_at_zeros():
    """By hand: log max p/q of the normalised P is log(.5/.2) - log(sum p), so d/dp_3 = -1."""
    to_p, _ = _gradients(lambda p, q: kb.renyi(p, q, order=INF), [0.5, 0.5, 0.0], [0.2, 0.5, 0.3])
    np.testing.assert_allclose(to_p, [1.0, -1.0, -1.0], rtol=1e-14)
    to_p, _ = _gradients(lambda p, q: kb.renyi(p, q, order=2), [0.5, 0.5, 0.0], [0.2, 0.5, 0.3])
    assert abs(to_p[2] + 2) < 1e-14


def test_an_infinite_kl_has_no_made_up_gradient():
    to_p, to_q = _gradients(kb.kl, [0.5, 0.5], [1.0, 0.0])
    assert np.isnan(to_p).all()
    assert to_q[1] == -INF


def test_rows_left_to_the_general_formula_are_taken_together(monkeypatch, rng):
    """One at a time they cost 500 times as much."""
    calls = []
    general = _calculus._evaluate
    monkeypatch.setattr(_calculus, "_evaluate", lambda *args: calls.append(1) or general(*args))
    p = rng.dirichlet(np.ones(4), 20_000)
    assert (kb.kl(p, p) == 0).all()
    assert len(calls) < 50


def test_big_endian_arrays():
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert kb.kl(p.astype(">f8"), q.astype(">f8")) == kb.kl(p, q)


@pytest.mark.parametrize("framework", [f for f in ALL if not f.costly], ids=repr)  # compiled: among the invalid rows of test_errors
def test_a_negative_number_beside_a_zero(framework):
    """Sums are right and the quotient is not formed: nothing but the sign gives it away."""
    zero, negative = [0.0, 0.5, 0.5], [-0.25, 0.75, 0.5]
    found = framework.run(lambda p, q: kb.kl(p, q, check=False), np.array([zero, negative, zero]), np.array([negative, zero, zero]))
    assert np.isnan(found).tolist() == [True, True, False]


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_backward_of_an_empty_batch(form):
    x, y = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, 5)
    kb.kl(x, y, form=form).sum().backward()
    assert x.grad.shape == (0, 5)


@pytest.mark.compiler
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_known_only_when_compiled_code_runs():
    a, b, chosen = torch.randn(4, 6), torch.randn(4, 6), torch.tensor([True, False, True, True])
    compiled = torch.compile(lambda a, b, m: kb.kl(a[m], b[m], form="logits").sum(), fullgraph=True)
    p, q = a[chosen].log_softmax(-1), b[chosen].log_softmax(-1)
    torch.testing.assert_close(compiled(a, b, chosen), (p.exp() * (p - q)).sum())


def test_sizes_that_tensorflow_does_not_know_are_compared_when_it_runs():
    unknown = [tf.TensorSpec([None, None]), tf.TensorSpec([None, None])]
    function = tf.function(lambda p, q: kb.kl(p, q, form="logits"), input_signature=unknown)
    with pytest.raises(tf.errors.InvalidArgumentError, match="categories never broadcast"):
        function([[1.0]], [[0.2, 0.3, 0.5]])
    assert function([[1.0, 1.0]], [[0.2, 0.2], [0.3, 0.3]]).numpy().tolist() == [0.0, 0.0]


def test_literal_sums_over_any_strides(monkeypatch):
    """Neither one stride nor a copy of everything for every tile."""
    from kullback._kernels import cpu

    monkeypatch.setattr(cpu, "_LITERAL", 64)
    gathered = []
    pick = cpu._Rows.pick
    monkeypatch.setattr(cpu._Rows, "pick", lambda self, index: gathered.append(len(index)) or pick(self, index))
    x, t = torch.randn(30, 41).log_softmax(-1)[:, 1:], torch.rand(30, 41)[:, 1:]
    found = kullback.torch.kl_div(x, t, reduction="sum")
    np.testing.assert_allclose(found, (t.double() * (t.double().log() - x.double())).sum(), rtol=1e-7)
    assert sum(gathered) <= 2 * 30


@pytest.mark.parametrize(("side", "mask"), [("p", -1e4), ("p", -1e9), ("p", -3e38), ("q", -1e4), ("q", -1e9)])
def test_finite_logits_that_stand_for_absence(rng, side, mask):
    """e^x - 1 as x + (e^x - 1 - x) is 0 for -1e9, and 0.05 was found for a Renyi divergence of 0.09. -inf takes other formulas."""
    a = rng.standard_normal((3, 40)).astype(np.float32)
    b = a + 0.5 * rng.standard_normal(a.shape).astype(np.float32)
    functions = {"js": kb.js} | {order: lambda x, y, order=order, **form: kb.renyi(x, y, order=order, **form) for order in (0.3, 0.5, 0.9)}
    if side == "p":
        functions["kl"] = kb.kl
    for name, function in functions.items():
        found = []
        for low in (mask, -INF):
            x, y = (torch.tensor(z) for z in (a, b))
            (x if side == "p" else y)[:, 3:20] = low
            x.requires_grad_()
            y.requires_grad_()
            value = function(x, y, form="logits")
            found.append((value.detach(), *torch.autograd.grad(value.sum(), (x, y))))
        for one, right in zip(*found):
            # float32's rounding, of sums of 40 numbers near 1 or less.
            torch.testing.assert_close(one, right, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")

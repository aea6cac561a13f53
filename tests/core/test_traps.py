"""Traps that other implementations fell into: each shows the other library's wrong number, and that ours is right.

If the first half of a test fails, the other library has been repaired: drop that half, keep ours.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F

import kullback as kb
import oracle
from frameworks import ALL, Lazy
from oracle import GRADIENT_BOUND, VALUE_BOUND

jax = Lazy("jax")
special = Lazy("jax.scipy.special")
jnp = Lazy("jax.numpy")
keras = Lazy("keras")
optax = Lazy("optax")


def _relative(found, truth):
    return abs(float(found) / truth - 1)


# --- clipping and epsilons -------------------------------------------------------------------------------------------------------


def test_clipping_makes_infinity_finite():
    p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    assert float(keras.losses.kl_divergence(p, q)) == pytest.approx(7.37, abs=0.4)  # 0.5 log(0.5 / 1e-7) + ...
    assert kb.kl(p, q) == math.inf
    assert kb.kl(torch.tensor(p), torch.tensor(q)) == math.inf


def test_clipping_spoils_many_categories():
    """1e5 categories around 1e-5, a quarter of them below Keras' 1e-7."""
    rng = np.random.default_rng(7)
    p, q = (np.exp(-4 * rng.random(100_000) ** 0.5 * rng.choice([0.2, 3.0], 100_000)) for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    truth = math.fsum(p * np.log(p / q))
    keras_error = _relative(keras.losses.kl_divergence(p, q), truth)
    assert keras_error > 1e-3
    # The float64 reference is itself good to 1e-13 or so at a KL of order 1.
    assert _relative(kb.kl(p, q), truth) < 1e-11


# --- F.kl_div --------------------------------------------------------------------------------------------------------------------


def test_gradient_at_target_zero():
    log_q = torch.tensor([0.3, 0.7]).log()
    target = torch.tensor([0.0, 1.0], requires_grad=True)
    F.kl_div(log_q, target, reduction="sum").backward()
    assert not torch.isfinite(target.grad).all()
    p = torch.tensor([0.0, 1.0], requires_grad=True)
    kb.kl(p, torch.tensor([0.3, 0.7])).backward()
    assert p.grad[0] == 0.0
    assert torch.isfinite(p.grad).all()


def test_softmax_behind_an_underflowing_probability_stays_finite():
    """softmax([0, -200]) is (1, 0) in float32; what arrives at its logits must be finite: 0, since nothing there can change."""
    q = torch.tensor([0.3, 0.7])

    def to_logits(loss):
        logits = torch.tensor([0.0, -200.0], requires_grad=True)
        p = logits.softmax(0)
        assert p[1] == 0.0
        loss(p).backward()
        return logits.grad

    assert to_logits(lambda p: F.kl_div(q.log(), p, reduction="sum")).isnan().any()
    ours = {
        "kl": lambda p: kb.kl(p, q),
        "js": lambda p: kb.js(p, q),
        "cross_entropy": lambda p: kb.cross_entropy(p, q),
        "entropy": kb.entropy,
    }
    for name, loss in ours.items():
        assert to_logits(loss).tolist() == [0.0, 0.0], name
    # As the second argument too, where it is finite.
    assert to_logits(lambda p: kb.kl(torch.tensor([1.0, 0.0]), p)).tolist() == [0.0, 0.0]


def test_log_target_with_minus_infinity():
    log_p, log_q = torch.tensor([0.0, -math.inf]), torch.tensor([0.5, 0.5]).log()
    assert F.kl_div(log_q, log_p, reduction="sum", log_target=True).isnan()
    assert kb.kl(log_p, log_q, form="log_probs").item() == pytest.approx(math.log(2), rel=1e-6)


def test_point_mass_against_uniform_is_log_2():
    """Masking the categories where p = 0 gives 0 in the forms without cancellation; the part of Q there counts."""
    for p, q, form in (([1.0, 0.0], [0.5, 0.5], "probs"), ([0.0, -math.inf], [0.0, 0.0], "logits"), ([3, 0], [7, 7], "counts")):
        assert kb.kl(p, q, form=form) == pytest.approx(math.log(2), rel=1e-15)
        value = kb.kl(torch.tensor(p), torch.tensor(q), form=form)
        assert value.item() == pytest.approx(math.log(2), rel=1e-6)


def test_batchmean_under_broadcasting():
    """One prediction against four targets: PyTorch divides by the prediction's batch of 1, so its 'mean' is the sum."""
    log_q = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log()
    p = torch.tensor([[0.3, 0.3, 0.4], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
    rows = [oracle.kl(row.numpy(), log_q[0].exp().numpy()).value for row in p]
    assert F.kl_div(log_q, p, reduction="batchmean").item() == pytest.approx(sum(rows), rel=1e-12)
    ours = kb.kl(p, log_q, form=("probs", "log_probs"), reduction="batchmean")
    assert ours.item() == pytest.approx(sum(rows) / 4, rel=1e-12)


def test_small_divergences_have_the_wrong_sign_or_size_in_float32():
    rng = np.random.default_rng(0)
    wrong_sign = 0
    for step in (1e-3, 1e-4, 1e-5):
        for _ in range(5):
            p = rng.dirichlet(np.ones(1000)).astype(np.float32)
            q = (p * np.exp(step * rng.normal(size=1000))).astype(np.float32)
            q /= q.sum()
            truth = oracle.kl(p, q).value
            theirs = F.kl_div(torch.tensor(q).log(), torch.tensor(p), reduction="sum").item()
            wrong_sign += theirs < 0
            if step < 1e-4:
                assert abs(theirs / truth - 1) > 1
            ours = kb.kl(torch.tensor(p), torch.tensor(q)).item()
            assert _relative(ours, truth) <= VALUE_BOUND[np.float32]
    assert wrong_sign >= 3


def test_bfloat16_logits_keep_their_sign():
    """A vocabulary of bfloat16 logits, computed from what they are: F.kl_div in bfloat16 is off by more than the value itself."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(20_000, generator=generator)
    b = (a + 0.05 * torch.randn(20_000, generator=generator)).bfloat16()
    a = a.bfloat16()
    x, y = a.double(), b.double()
    truth = float((x.softmax(0) * (x.log_softmax(0) - y.log_softmax(0))).sum())  # 1e-3 in float64: good to 1e-12
    theirs = F.kl_div(b.log_softmax(0), a.log_softmax(0), reduction="sum", log_target=True).item()
    assert abs(theirs / truth - 1) > 0.5
    ours = kb.kl(a, b, form="logits")
    assert ours.dtype == torch.float32
    assert _relative(ours, truth) <= VALUE_BOUND[np.float32]


# --- rel_entr and kl_div of other libraries --------------------------------------------------------------------------------------


def test_nan_is_not_swallowed():
    theirs = special.rel_entr(jnp.array([math.nan, 0.5]), jnp.array([0.5, 0.5]))
    assert not np.isnan(theirs[0])
    assert np.isnan(kb.rel_entr(jnp.array([math.nan, 0.5]), jnp.array([0.5, 0.5]))).tolist() == [True, False]
    for x, y in (([math.nan, 0.5], [0.5, 0.5]), ([0.5, 0.5], [math.nan, 0.5])):
        assert np.isnan(kb.kl_div(np.array(x), np.array(y))).tolist() == [True, False]
        assert np.isnan(kb.kl(np.array([x, [0.5, 0.5]]), np.array([y, [0.5, 0.5]]))).tolist() == [True, False]


def test_both_zero_add_nothing():
    p, q = jnp.array([0.0, 0.4, 0.6]), jnp.array([0.0, 0.5, 0.5])
    assert np.isnan(optax.losses.kl_divergence(jnp.log(q), p))
    expected = oracle.kl(np.asarray(p), np.asarray(q)).value
    assert _relative(kb.kl(p, q), expected) <= VALUE_BOUND[np.float32]
    found = jax.grad(lambda q: kb.kl(p, q))(q)
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(1.0)  # more of Q where P is not: 1 - p/q = 1


def test_denormal_denominator():
    truth = math.log(1.0) - math.log(1e-310) - 1.0 + 1e-310
    assert scipy.special.kl_div(1.0, 1e-310) == math.inf
    assert _relative(kb.kl_div(1.0, 1e-310), truth) < 1e-12
    assert _relative(kb.rel_entr(1.0, 1e-310), truth + 1) < 1e-12


def test_kl_div_of_close_numbers_does_not_cancel():
    x, y = 1.0, 1.0 + 1e-9
    d = y - x
    truth = d * d / 2 - d**3 / 3
    assert abs(float(scipy.special.kl_div(x, y)) / truth - 1) > 1e-3
    assert _relative(kb.kl_div(x, y), truth) < 1e-12


# --- logits ----------------------------------------------------------------------------------------------------------------------


def test_padding_of_minus_infinity_under_reverse_kl():
    """Student and teacher share a padded vocabulary; KL(student‖teacher) is finite, and so must be the student's gradient."""
    student = torch.tensor([1.0, 0.2, -0.5, -math.inf], requires_grad=True)
    teacher = torch.tensor([0.3, 0.9, -1.0, -math.inf])
    plain = (student.softmax(0) * (student.log_softmax(0) - teacher.log_softmax(0))).nansum()
    plain.backward()
    assert student.grad.isnan().any()  # finite loss, NaN gradient
    assert plain.isfinite()
    student.grad = None
    loss = kb.kl(student, teacher, form="logits")
    loss.backward()
    truth = oracle.kl(student.detach().numpy()[:3], teacher.numpy()[:3], "logits")
    assert _relative(loss.detach(), truth.value) <= VALUE_BOUND[np.float32]
    assert oracle.relative_error(student.grad[:3].numpy(), truth.to_x) <= GRADIENT_BOUND[np.float32]
    assert student.grad[3] == 0.0


@pytest.mark.parametrize("reverse", [False, True])
def test_masks_of_minus_a_billion(reverse):
    """-1e9 where others write -inf: the masked categories hold nothing, and cost nothing."""
    a, b = np.array([1.0, 0.2, -0.5]), np.array([0.3, 0.9, -1.0])
    x, y = (torch.tensor(np.append(z, -1e9), dtype=torch.float32).requires_grad_() for z in ((b, a) if reverse else (a, b)))
    loss = kb.kl(x, y, form="logits")
    loss.backward()
    truth = oracle.kl(x.detach().numpy()[:3], y.detach().numpy()[:3], "logits")
    assert _relative(loss.detach(), truth.value) <= VALUE_BOUND[np.float32]
    assert oracle.relative_error(x.grad[:3].numpy(), truth.to_x) <= GRADIENT_BOUND[np.float32]
    assert oracle.relative_error(y.grad[:3].numpy(), truth.to_y) <= GRADIENT_BOUND[np.float32]
    assert x.grad[3] == y.grad[3] == 0.0


def test_constant_added_to_the_logits_of_one_side():
    """Q's logits carry +100, so b - a rounds at 4e-6, and KL of 5e-11 drowns unless the rounding error is carried along."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=1000).astype(np.float32)
    b = (a.astype(np.float64) + 1e-5 * rng.normal(size=1000) + 100).astype(np.float32)
    truth = oracle.kl(a, b, "logits").value
    assert 1e-11 < truth < 1e-10
    x, y = torch.tensor(a), torch.tensor(b)
    theirs = F.kl_div(y.log_softmax(0), x.log_softmax(0), reduction="sum", log_target=True).item()
    assert abs(theirs / truth - 1) > 0.5
    for ours in (kb.kl(x, y, form="logits"), kb.kl(a, b, form="logits"), jax.jit(lambda x, y: kb.kl(x, y, form="logits"))(a, b)):
        assert _relative(ours, truth) <= VALUE_BOUND[np.float32]


def test_gradient_to_a_peaked_p_beside_a_broad_q():
    """p = softmax([0, -14]): every automatic form takes the difference of two numbers near 8e-7 as one of numbers near 1."""
    logits, q = np.array([0.0, -14.0], np.float32), np.array([0.5, 0.5], np.float32)
    truth = oracle.kl(logits, np.log(q), "logits").to_x
    x = torch.tensor(logits, requires_grad=True)
    log_p = x.log_softmax(0)
    (log_p.exp() * (log_p - torch.tensor(q).log())).sum().backward()
    assert oracle.relative_error(x.grad.numpy(), truth) > 1e-3
    x.grad = None
    kb.kl(x, torch.zeros(2), form="logits").backward()
    assert oracle.relative_error(x.grad.numpy(), truth) <= GRADIENT_BOUND[np.float32]
    found = jax.grad(lambda x: kb.kl(x, jnp.zeros(2), form="logits"))(jnp.asarray(logits))
    assert oracle.relative_error(found, truth) <= GRADIENT_BOUND[np.float32]


def test_gradient_of_half_precision_is_not_rounded_before_the_loss():
    """bfloat16 logits of a student near its teacher: softmax in bfloat16 first puts the gradient off by several per cent."""
    rng = np.random.default_rng(2)
    a = torch.tensor(rng.normal(size=500)).bfloat16()
    b = (a.double() + 0.05 * torch.tensor(rng.normal(size=500))).bfloat16()
    truth = (b.double().softmax(0) - a.double().softmax(0)).numpy()
    theirs = b.clone().requires_grad_()
    F.kl_div(theirs.log_softmax(0), a.softmax(0), reduction="sum").backward()
    assert oracle.relative_error(theirs.grad.double().numpy(), truth) > 0.03
    ours = b.clone().requires_grad_()
    kb.kl(a, ours, form="logits").backward()
    # rounded once, to 8 bits, at the end
    assert oracle.relative_error(ours.grad.double().numpy(), truth) < 2.0**-8


def test_known_gradients_of_both_directions():
    """pi = softmax(0, 1, 2), ref = softmax(1, 0, 0): the two directions differ in value and gradient."""
    pi, ref = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    forward, backward = kb.kl(pi, ref, form="logits"), kb.kl(ref, pi, form="logits")
    assert forward.item() == pytest.approx(0.6290185589, abs=5e-11)
    assert backward.item() == pytest.approx(0.7964534624, abs=5e-11)
    (to_forward,), (to_backward,) = torch.autograd.grad(forward, pi), torch.autograd.grad(backward, pi)
    assert to_forward.tolist() == pytest.approx([-0.22374216, -0.11873731, 0.34247948], abs=5e-9)
    assert to_backward.tolist() == pytest.approx([-0.48608631, 0.03278691, 0.45329940], abs=5e-9)


@pytest.mark.parametrize("framework", [f for f in ALL if not f.costly], ids=repr)  # the others: test_exactness, to more digits
def test_the_published_kl_of_two_normals(framework):
    """KL(N(0,1)‖N(1,1.5)) = log 1.5 + (1 + 1)/(2·1.5²) − 1/2 = 0.3499, from log-densities on a fine grid, which need no normalising."""
    x = np.linspace(-12, 12, 2401, dtype=np.float32)
    value = framework.run(lambda a, b: kb.kl(a, b, form="logits"), -(x**2) / 2, -((x - 1) ** 2) / (2 * 1.5**2))
    assert abs(float(value) - 0.3499) < 5e-5  # the published digits

"""`kl_loss` as JAX runs it on accelerators, here on a CPU: against float64, under jit, vmap, derivatives and sharding."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kullback._ops import jax as jax_ops
from kullback.losses import kl_loss

DIRECTIONS = ("forward", "reverse", "js", "skew", "reverse_skew")
MIX = 0.3
ROWS, COLUMNS = 6, 700


@pytest.fixture(autouse=True)
def as_on_an_accelerator(monkeypatch):
    from kullback._kernels import rows_jax

    seen = []
    original = rows_jax.values
    monkeypatch.setattr(rows_jax, "values", lambda *args: seen.append(1) or original(*args))
    monkeypatch.setattr(jax_ops, "on_accelerator", lambda x: True)
    yield
    assert seen  # the formulas that are meant were the ones that ran


def _options(direction):
    return {"direction": direction} | ({} if direction in ("forward", "reverse") else {"mix": MIX})


def _truth(student, teacher, direction, temperature=1.0):
    """By definition, in float64, and its gradients to both."""
    # e^-10000 is 0, and its gradient is, not NaN.
    s, t = (torch.tensor(np.maximum(np.asarray(x, np.float64), -1e4), requires_grad=True) for x in (student, teacher))
    log_s, log_t = (torch.log_softmax(x / temperature, -1) for x in (s, t))

    def kl(log_p, log_q):
        there = log_p > -math.inf
        return torch.where(there, log_p.exp() * (torch.where(there, log_p, 0.0) - torch.where(there, log_q, 0.0)), 0.0).sum(-1)

    def mixed(log_p, log_q):
        return torch.logaddexp(log_p + math.log(MIX), log_q + math.log1p(-MIX))

    value = {
        "forward": lambda: kl(log_t, log_s),
        "reverse": lambda: kl(log_s, log_t),
        "js": lambda: MIX * kl(log_t, mixed(log_t, log_s)) + (1 - MIX) * kl(log_s, mixed(log_t, log_s)),
        "skew": lambda: kl(log_t, mixed(log_t, log_s)),
        "reverse_skew": lambda: kl(log_s, mixed(log_s, log_t)),
    }[direction]()
    value.sum().backward()
    return value.detach().numpy(), s.grad.numpy(), t.grad.numpy()


def _all_directions(temperature=1.0):
    """Value of each row, and gradients of 8192 times the sum to both, of every direction: one compilation."""

    def each(direction, s, t):
        value = kl_loss(student=s, teacher=t, reduction="none", temperature=temperature, **_options(direction))
        return 8192 * value.sum(), value  # as for float16, which would underflow

    return jax.jit(
        lambda s, t: {d: jax.value_and_grad(lambda s, t, d=d: each(d, s, t), argnums=(0, 1), has_aux=True)(s, t) for d in DIRECTIONS}
    )


def _far(found, truth):
    return (np.linalg.norm(np.asarray(found, np.float64) - truth, axis=-1) / np.linalg.norm(truth, axis=-1)).max()


@pytest.mark.parametrize(
    ("dtype", "temperature", "rounding"),
    # One pass for the normalisers; two; two, of numbers whose differences round.
    [(jnp.bfloat16, 1.0, 2.0**-8), (jnp.float16, 2.0, 2.0**-11), (jnp.float32, 0.9, 2.0**-24)],
    ids=["bfloat16", "float16", "float32"],
)
def test_values_and_gradients(rng, dtype, temperature, rounding):
    run = _all_directions(temperature)
    for distance, shift in ((0.5, 0.0), (3.0, 0.0), (1e-4, 0.0), (0.01, 50.0)):
        teacher = jnp.asarray(2 * rng.normal(size=(ROWS, COLUMNS)), dtype)
        student = jnp.asarray(np.asarray(teacher, np.float64) + distance * rng.normal(size=(ROWS, COLUMNS)) + shift, dtype)
        if distance == 1e-4 and dtype != jnp.float32:
            # Numbers that differ in a few places by one spacing.
            student = np.asarray(teacher).copy()
            student[:, ::97] = np.nextafter(student[:, ::97], np.asarray(np.inf, student.dtype))
            if temperature == 1.0:
                # The first category says nothing about the others.
                teacher, student[:, 0] = teacher.at[:, 0].set(-20.0), -12.0
            student = jnp.asarray(student)
        for direction, ((_, value), (to_s, to_t)) in run(student, teacher).items():
            truth, s_truth, t_truth = _truth(student, teacher, direction, temperature)
            np.testing.assert_allclose(value, truth, rtol=1e-5, err_msg=direction)  # the contract of these losses
            # Twice the rounding of the output, and the contract of the arithmetic.
            assert max(_far(to_s, 8192 * s_truth), _far(to_t, 8192 * t_truth)) <= 2 * rounding + 1e-5, (direction, distance)
            if distance == 1e-4:
                assert truth.min() < 1e-7
    # Finite numbers that stand for absent categories. bfloat16 gave wrong numbers for the first two rows. float16 lost digits. A
    # multiple that overflows gave NaN.
    lowest = float(jnp.finfo(dtype).min)
    teacher, student = (np.array(2 * rng.normal(size=(ROWS, COLUMNS))) for _ in range(2))
    teacher[0], student[1] = lowest, lowest  # everywhere: such a row is uniform
    for row, of_student in ((2, lowest), (3, lowest / 64)):
        teacher[row, :300], student[row, :300] = lowest, of_student
    student, teacher = (jnp.asarray(x, dtype) for x in (student, teacher))
    for direction, ((_, value), (to_s, to_t)) in run(student, teacher).items():
        truth, s_truth, t_truth = _truth(student, teacher, direction, temperature)
        np.testing.assert_allclose(value, truth, rtol=1e-5, err_msg=direction)
        assert max(_far(to_s, 8192 * s_truth), _far(to_t, 8192 * t_truth)) <= 2 * rounding + 1e-5, direction


def test_edges_and_weights(rng):
    run = jax.jit(
        lambda s, t, w: {
            d: jax.value_and_grad(lambda s, t, d=d: kl_loss(student=s, teacher=t, weights=w, **_options(d)), argnums=(0, 1))(s, t)
            for d in ("forward", "js", "skew")
        }
    )
    student, teacher = (rng.normal(size=(ROWS, 50)).astype(np.float32) for _ in range(2))
    student[0], teacher[0] = np.nan, -np.inf  # weight 0: may hold anything
    student[1, 30:], teacher[1, 30:] = -np.inf, -np.inf
    weights = np.array([0.0, 1.0, 2.0, 0.5, 1.0, 1.0], np.float32)
    for direction, (value, gradients) in run(student, teacher, weights).items():
        each, *truths = _truth(student[1:], teacher[1:], direction)
        assert value == pytest.approx((each * weights[1:]).sum() / weights.sum(), rel=1e-5)
        for found, truth in zip(gradients, truths):
            assert (np.asarray(found)[0] == 0).all()
            assert (np.asarray(found)[1, 30:] == 0).all()
            assert _far(found[1:], truth * (weights[1:] / weights.sum())[:, None]) <= 1e-5
    # Only one side has a category, and rows that are no distributions.
    for dtype in (jnp.float32, jnp.bfloat16):
        a, b = jnp.zeros((5, 3), dtype), jnp.zeros((5, 3), dtype)
        a = a.at[0, 0].set(-jnp.inf).at[1, 0].set(jnp.nan).at[2].set(-jnp.inf).at[3, 1].set(jnp.inf)
        forward, reverse = jax.jit(lambda a, b: [kl_loss(student=a, teacher=b, reduction="none", direction=d) for d in DIRECTIONS[:2]])(
            a, b
        )
        assert np.isposinf(forward[0])
        assert np.isnan(forward[1:4]).all()
        assert forward[4] == 0
        assert reverse[0] == pytest.approx(math.log(1.5), rel=1e-6)


def test_vmap_padded_vocabularies_and_learned_temperatures(rng):
    teacher, student = rng.normal(size=(2, 3, 4, 30)).astype(np.float32)
    options = {"direction": "js", "mix": MIX, "temperature": 1.5}
    run = jax.jit(jax.vmap(lambda s, t: kl_loss(student=s[..., :20], teacher=t, valid=20, **options)))
    padded = np.concatenate([teacher[..., :20], np.full((3, 4, 10), -np.inf, np.float32)], -1)
    truth = [_truth(s, t, "js", 1.5)[0].mean() for s, t in zip(student[..., :20], teacher[..., :20])]
    np.testing.assert_allclose(run(student, padded), truth, rtol=1e-5)
    np.testing.assert_allclose(run(student, teacher), truth, rtol=1e-5)
    with pytest.raises(ValueError, match=r"student has 20 categories and teacher 30, .* pass valid=20 \(a compiled function cannot look"):
        jax.vmap(lambda s, t: kl_loss(student=s[..., :20], teacher=t, **options))(student, padded)
    slope = jax.jit(jax.grad(lambda T, s, t: kl_loss(student=s, teacher=t, temperature=T)))(1.5, student, teacher)
    step = 1e-5
    truth = [_truth(student, teacher, "forward", 1.5 + h)[0].mean() for h in (step, -step)]
    assert slope == pytest.approx((truth[0] - truth[1]) / (2 * step), rel=1e-4)  # the central difference keeps five digits


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_second_derivatives_both_modes(rng, dtype):
    student, teacher = (jnp.asarray(rng.normal(size=(1, 5)), dtype).astype(jnp.float32) for _ in range(2))
    f = lambda s: kl_loss(student=s.astype(dtype), teacher=teacher.astype(dtype), reduction="sum")  # noqa: E731
    hessian = jax.jit(jax.hessian(f))(student)[0, :, 0]
    q = np.exp(np.asarray(student[0], np.float64))
    q /= q.sum()
    # Through a cast to bfloat16 derivatives are rounded to 8 bits, twice.
    np.testing.assert_allclose(hessian, np.diag(q) - np.outer(q, q), atol=1e-6 if dtype == jnp.float32 else 2**-7)

"""tinygrad: derivatives of both orders against mpmath, TinyJit, constants, no compiler, and where the check steps aside."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from tinygrad import Context, Tensor, TinyJit, dtypes

import kullback as kb
import oracle
from cases import CASES, ONE_EACH, close, close_hessian, options, points, truth
from oracle import GRADIENT_BOUND, VALUE_BOUND

DIRECTION = np.array([0.7, -1.3, 0.4, 1.1, 0.2, -0.9])
# Each second derivative takes tinygrad 3 to 10 s to schedule and compile.
SECOND_ORDER = [("kl", "logits"), ("kl", "probs"), ("entropy", "logits"), ("rel_entr", "elementwise"), ("kl_div", "elementwise")]


def _tensor(x):
    return Tensor(np.asarray(x)).realize()


@pytest.mark.parametrize(("name", "form"), SECOND_ORDER)
def test_derivatives_of_both_orders(name, form):
    xs, ys = points(form)
    z = _tensor(np.concatenate([xs, ys], axis=-1))
    value = CASES[name].call(z[:, :3], z[:, 3:], **options(form))
    value = value.sum(-1) if form == "elementwise" else value
    (first,) = value.sum().gradient(z)
    (second,) = (first * Tensor(DIRECTION)).sum().gradient(z)
    for row, v, f, s in zip(zip(xs, ys), value.numpy(), first.numpy(), second.numpy()):
        expected = truth(name, form, *row)
        close(v, expected.value, VALUE_BOUND[np.float64])
        close(f, expected.gradient, GRADIENT_BOUND[np.float64])
        close_hessian(name, form, s, row, DIRECTION)


def test_backward_of_all_in_float32():
    """One graph, backward() from the sum of all; leaves collect float32 gradients."""
    a, b = points("logits", np.float32)
    x, y = _tensor(a), _tensor(b)
    values = [CASES[name].call(x, y, form="logits") for name in ONE_EACH]
    sum(v.sum() for v in values).backward()
    rows = list(zip(a, b))
    for name, v in zip(ONE_EACH, values):
        assert v.dtype == dtypes.float32
        close(v.numpy(), [truth(name, "logits", *row).value for row in rows], VALUE_BOUND[np.float32])
    for i, row in enumerate(rows):
        expected = sum(truth(name, "logits", *row).gradient for name in ONE_EACH)
        assert x.grad.dtype == y.grad.dtype == dtypes.float32
        close(np.concatenate([x.grad.numpy()[i], y.grad.numpy()[i]]), expected, GRADIENT_BOUND[np.float32])


@pytest.mark.skipif(os.environ.get("DEV") == "PYTHON", reason="nothing is unrolled where kernels are interpreted")
@pytest.mark.parametrize(("form", "dtype"), [("logits", np.float32), ("probs", np.float64)])
def test_unrolled_and_vectorised_kernels(form, dtype):
    """As tinygrad compiles unless told otherwise, which the other tests do (see frameworks.py)."""
    xs, ys = points(form, dtype)
    with Context(NOOPT=0):
        x, y = _tensor(xs), _tensor(ys)
        value = kb.kl(x, y, form=form)
        slopes = [g.numpy() for g in value.sum().gradient(x, y)]
        value = value.numpy()
    for row, v, to_x, to_y in zip(zip(xs, ys), value, *slopes):
        expected = truth("kl", form, *row)
        close(v, expected.value, VALUE_BOUND[dtype])
        close(np.concatenate([to_x, to_y]), expected.gradient, GRADIENT_BOUND[dtype])


def test_training_loop_under_tinyjit_converges():
    """Gradient descent on the logits of Q; the optimum is P itself, where KL is 0."""
    target = _tensor(np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]], np.float32))
    logits = Tensor(np.zeros((2, 4), np.float32)).realize()

    @TinyJit
    def step():
        loss = kb.kl(target, logits, form=("probs", "logits"), reduction="sum")
        (slope,) = loss.gradient(logits)
        Tensor.realize(loss, logits.assign(logits - 2.0 * slope))
        return loss

    losses = [step().item() for _ in range(60)]
    p = target.numpy().astype(np.float64)
    first = float((p * np.log(p * 4)).sum())  # Q starts uniform
    assert losses[0] == pytest.approx(first, rel=1e-5)
    assert all(later <= earlier for earlier, later in pairwise(losses))
    assert 0 <= losses[-1] < 1e-8  # below the rounding (1e-7) of the terms that a plain float32 sum would add


def test_constants_and_lazy_tensors():
    """Tensors that were never realised, some without a device, beside ones that are."""
    q = np.array([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])
    uniform = np.full(3, 1 / 3)
    expected = [truth("kl", "probs", uniform, row) for row in q]
    constant, y = Tensor.full((3,), 1 / 3, dtype=dtypes.float64), _tensor(q)
    value = kb.kl(constant, y)
    close(value.numpy(), [e.value for e in expected], VALUE_BOUND[np.float64])
    close(value.sum().gradient(y)[0].numpy(), [e.gradient[3:] for e in expected], GRADIENT_BOUND[np.float64])
    both = kb.kl(constant, Tensor.full((2, 3), 1 / 3, dtype=dtypes.float64))
    assert both.numpy().tolist() == [0.0, 0.0]
    lazy = kb.kl(_tensor(q) * 0.5 + Tensor.full((3,), 1 / 6, dtype=dtypes.float64), y)
    close(lazy.numpy(), [truth("kl", "probs", row / 2 + 1 / 6, row).value for row in q], VALUE_BOUND[np.float64])


@pytest.mark.parametrize(("name", "form"), [("kl", "logits"), ("kl", "probs"), ("cross_entropy", "probs"), ("jeffreys", "probs")])
def test_same_tensor_on_both_sides(name, form):
    x = _tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]])
    value = CASES[name].call(x, x, form=form)
    (found,) = value.sum().gradient(x)
    if name == "cross_entropy":  # of P with itself: the entropy
        expected = [truth("entropy", form, row, row) for row in x.numpy()]
        close(value.numpy(), [e.value for e in expected], VALUE_BOUND[np.float64])
        close(found.numpy(), [e.gradient[:3] for e in expected], GRADIENT_BOUND[np.float64])
    else:
        assert np.abs(value.numpy()).max() == 0.0
        assert np.abs(found.numpy()).max() <= 1e-15


def test_same_tensor_as_probabilities_and_as_logits():
    """tinygrad passes it once: the derivatives of both roles must be added, and here neither is 0."""
    x = np.array([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]])
    t = _tensor(x)
    (found,) = kb.kl(t, t, form=("probs", "logits")).sum().gradient(t)
    rows = [oracle.kl(row, row, ("probs", "logits")) for row in x]
    close(found.numpy(), [row.to_x + row.to_y for row in rows], GRADIENT_BOUND[np.float64])


_WITHOUT_COMPILER = """
import numpy as np
from tinygrad import Device, Tensor
import kullback as kb

assert Device.DEFAULT == "PYTHON", Device.DEFAULT
a = np.array([[0.3, -1.2, 0.8], [2.0, 0.0, -1.0]], np.float32)
b = np.array([[1.1, 0.2, -0.7], [2.001, -0.002, -1.0003]], np.float32)
x, y = Tensor(a).realize(), Tensor(b).realize()
value = kb.kl(x, y, form="logits")
gradient = value.sum().gradient(y)[0]
wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (wide_a, wide_b))
assert np.allclose(value.numpy(), (p * np.log(p / q)).sum(-1), rtol=5e-6, atol=1e-12), value.numpy()
assert np.allclose(gradient.numpy(), q - p, rtol=1e-5, atol=1e-9), gradient.numpy()
assert np.allclose(kb.js(x.softmax(-1), y.softmax(-1)).numpy(), kb.js(p, q), rtol=1e-3)
try:
    kb.kl(Tensor([0.5, -0.5, 1.0]).realize(), Tensor([0.2, 0.3, 0.5]).realize())
except ValueError as error:
    assert "-0.5" in str(error)
else:
    raise AssertionError("an invalid row was accepted")
print("done")
"""


def test_device_without_a_compiler():
    """tinygrad's PYTHON device interprets kernels: nothing may depend on clang."""
    env = {**os.environ, "DEV": "PYTHON", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", _WITHOUT_COMPILER], capture_output=True, text=True, env=env, timeout=300)
    assert done.stdout.strip().endswith("done"), done.stderr[-3000:]


# --- where the value check steps aside -------------------------------------------------------------------------------------------

VALID = [[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]]
INVALID = [[0.2, 0.3, 0.5], [0.1, -0.6, 0.3]]
OTHER = [[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]]


@pytest.mark.parametrize("name", ["kl", "entropy", "cross_entropy", "jeffreys"])
def test_check_steps_aside_while_tinyjit_captures_and_replays(name):
    jitted = TinyJit(lambda p, q: CASES[name].call(p, q).realize())
    valid, invalid, other = (_tensor(np.array(z, np.float32)) for z in (VALID, INVALID, OTHER))
    with pytest.raises(ValueError, match=r"p row 1 holds -0\.6"):
        CASES[name].call(invalid, other)
    assert not np.isnan(jitted(valid, other).numpy()).any()  # runs eagerly
    for _ in range(2):  # captures, then replays
        assert np.isnan(jitted(invalid, other).numpy()).tolist() == [False, True]
    assert not np.isnan(jitted(valid, other).numpy()).any()  # nothing was baked in


def test_first_call_of_tinyjit_is_eager_and_raises():
    invalid, other = (_tensor(np.array(z, np.float32)) for z in (INVALID, OTHER))
    with pytest.raises(ValueError, match=r"p row 1 holds -0\.6"):
        TinyJit(lambda p, q: kb.kl(p, q).realize())(invalid, other)
    assert np.isnan(kb.kl(invalid, other, check=False).numpy()).tolist() == [False, True]

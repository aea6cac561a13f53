"""The Triton kernels that take a row in slices, and logits where single precision is short, against float64: on a GPU, or interpreted.

python -m pytest tests/gpu
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from by_definition import DEVICE, DIRECTIONS, INTERPRETED, close, kl_and_gradient, logits, options, reference

from kullback.losses import kl_loss


def test_rows_that_rise_far_above_their_first_tile():
    """Their sums would overflow relative to it."""
    student, teacher = logits(2, 5000, 0.5, torch.float32)
    student[0, 4000] += 200
    teacher[:, 4500] += 150
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    torch.testing.assert_close(found.double(), reference(student, teacher, "forward"), rtol=1e-5, atol=0)


@pytest.mark.parametrize("direction", ["forward", "js", "skew"])
def test_rows_whose_first_tile_is_absent(direction):
    """And the others so low that they would underflow relative to 0."""
    student, teacher = logits(2, 2600, 0.5, torch.float32)
    for x in (student, teacher):
        x[0] -= 200
        x[:, :2100] = -math.inf  # a tile is 2048 columns on a GPU, 128 here
    exact = student.double().clamp_min(-1e4).requires_grad_()
    truth = reference(exact, teacher.double().clamp_min(-1e4), direction)
    truth.sum().backward()
    found = kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="none", **options(direction))
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)
    found.sum().backward()
    close(student.grad, exact.grad, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("weights", [None, "given"])
def test_what_the_teacher_has_less_than_float32_of(dtype, weights):
    """The student's share there counts in full: in the value, and in the gradient, of the one row and not of others."""
    student, teacher = logits(3, 600, 0.5, dtype)
    teacher[0, 500], teacher[1, 20:40], student[1, 30:50] = -200.0, -math.inf, -math.inf
    teacher[1, 40:50] = -math.inf
    given = None if weights is None else torch.ones(3, device=DEVICE)
    truth_student = student.double().requires_grad_()
    truth = reference(truth_student, teacher, "forward")
    (gradient,) = torch.autograd.grad(truth.mean(), truth_student)
    found = kl_loss(student=student, teacher=teacher, reduction="none", weights=given, impl="triton")
    torch.testing.assert_close(found.double(), truth.detach(), rtol=1e-5, atol=0)
    kl_loss(student=student.requires_grad_(), teacher=teacher, weights=given, impl="triton").backward()
    close(student.grad, gradient, dtype)


@pytest.mark.parametrize("direction", DIRECTIONS[1:])
@pytest.mark.parametrize("case", ["ordinary", "a quarter absent", "first column low", "student padded", "another mix"])
def test_other_directions_over_several_slices(direction, case, monkeypatch):
    """Where the constant side, and in a mixture either, lacks categories; where pivots are far off; and shares that take other kernels."""
    if case == "another mix":
        monkeypatch.setattr("by_definition.MIX", 0.95)
    rows, columns = (1, 1100) if INTERPRETED else (3, 100_000)
    student, teacher = logits(rows, columns, 0.5, torch.bfloat16)
    if case == "a quarter absent":
        (student if direction == "reverse" else teacher)[:, columns // 4 : columns // 2] = -math.inf
    elif case == "first column low":
        student[:, 0], teacher[:, 0] = -250, -300
    elif case == "student padded":
        student = torch.cat([student, torch.full((rows, 600), -math.inf, dtype=student.dtype, device=DEVICE)], 1)
    exact = student[:, :columns].double().clamp_min(-1e4).requires_grad_()
    truth = reference(exact, teacher.double().clamp_min(-1e4), direction).mean()
    truth.backward()
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, **options(direction))
    found.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-5)
    close(student.grad[:, :columns], exact.grad, torch.bfloat16)
    assert (student.grad[:, columns:] == 0).all()


@pytest.mark.parametrize(("kind", "w"), [("js", 0.2), ("js", 0.5), ("js", 0.8), ("skew", 0.6), ("skew", 0.9), ("skew", 0.99)])
@pytest.mark.parametrize("of_q", [True, False])
def test_polynomials_near_equal_probabilities(kind, w, of_q):
    """Of all shares that take them, as far as they are used, beside the definitions in float64, which lose 1e-12 to cancellation."""
    from kullback._kernels import mixed_triton

    assert mixed_triton.takes(kind, w)
    v2 = np.delete(np.linspace(-1, 1, 73), 36) * mixed_triton._NEAR.value
    v = v2 * math.log(2)
    log_m = np.log1p(w * np.expm1(v))
    ratio = -w * np.expm1(v) / (1 + w * np.expm1(v))
    if kind == "js":
        value, slope = -(1 - w) * log_m - w * np.exp(v) * (log_m - v), -w * (log_m - v) if of_q else -(1 - w) * log_m
    else:
        value, slope = w * np.expm1(v) - log_m, -w * ratio if of_q else -log_m - (1 - w) * ratio
    found = mixed_triton.series(kind, w, of_q)
    a, b = (np.polynomial.Polynomial(part)(v2) for part in (found[:6], found[6:]))
    np.testing.assert_allclose(a * v2**2, value, rtol=5e-6)  # half of what a value may be off by
    np.testing.assert_allclose(b * v2, slope, rtol=2e-5)  # at the end of the range; by norm it is below the 1e-5 of float32 gradients


ROWS_OF_SEVERAL_SLICES = {
    # And whether the fused gradient is promised to be that close: where the peak has all but 1e-9 of P and Q, what the normalisers'
    # rounding changes is more than the gradient.
    "close": True,
    "one category has nearly all": False,
    "different ones have": True,
    "shifted": True,
    "first column low": True,
    "first column high": True,
    "a quarter absent from P": True,
    "a quarter absent from both": True,
    "Q mostly elsewhere": True,
    "P mostly elsewhere": True,
    "equal": True,
}


# Of float32 the interpreter, which takes seconds, has the case where its differences round.
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.bfloat16) for case in ROWS_OF_SEVERAL_SLICES]
    + [(case, torch.float32) for case in ROWS_OF_SEVERAL_SLICES if case == "shifted" or not INTERPRETED],
    ids=str,
)
def test_rows_of_several_slices(case, dtype):
    rows, columns = (1, 1100) if INTERPRETED else (3, 100_000)
    generator = torch.Generator().manual_seed(1)
    teacher = 2 * torch.randn(rows, columns, generator=generator)
    student = teacher + 0.3 * torch.randn(rows, columns, generator=generator)
    quarter = slice(columns // 4, columns // 2)
    if case == "close":
        student = teacher + 1e-2 * torch.randn(rows, columns, generator=generator)
    elif case == "one category has nearly all":
        teacher[:, columns // 2] += 22
        student = teacher + 0.05 * torch.randn(rows, columns, generator=generator)
    elif case == "different ones have":
        teacher[:, 7] += 40
        student[:, columns // 3] += 60
    elif case == "shifted":
        student = teacher + 100 + 0.1 * torch.randn(rows, columns, generator=generator)
    elif case == "first column low":
        teacher[:, 0], student[:, 0] = -300, -250
    elif case == "first column high":
        teacher[:, 0], student[:, 0] = 14, 13.5
    elif case == "a quarter absent from P":
        teacher[:, quarter] = -math.inf
    elif case == "a quarter absent from both":
        teacher[:, quarter] = student[:, quarter] = -math.inf
    elif case == "Q mostly elsewhere":
        student[:, quarter] += 15
    elif case == "P mostly elsewhere":
        teacher[:, quarter] += 15
    else:
        student = teacher.clone()
    student, teacher = student.to(DEVICE, dtype), teacher.to(DEVICE, dtype)
    truth, gradient = kl_and_gradient(student, teacher)
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)
    value = kl_loss(student=student.requires_grad_(), teacher=teacher, impl="triton")
    torch.testing.assert_close(value.detach().double(), truth.mean(), rtol=1e-5, atol=0)
    value.backward()
    if case == "equal":
        assert not student.grad.any()
    elif ROWS_OF_SEVERAL_SLICES[case]:
        # 2e-4 for float32: sums of exponentials round, by some 1e-6, and q − p is near p/100 here.
        close(rows * student.grad.double(), gradient, dtype, 2e-4)


@pytest.mark.parametrize(("dtype", "mask"), [(torch.float32, -1e9), (torch.bfloat16, torch.finfo(torch.bfloat16).min)], ids=str)
@pytest.mark.parametrize("side", ["student", "teacher", "both"])
def test_finite_numbers_that_stand_for_absent_categories(dtype, mask, side):
    """In the first place, and in all of a slice of the interpreter's: v + φ(v) cancels, and multiples overflow."""
    student, teacher = logits(1, 640, 0.5, dtype)
    masked = slice(128, 256)
    for x in {"student": [student], "teacher": [teacher], "both": [student, teacher]}[side]:
        x[:, 0] = x[:, masked] = mask
    truth, gradient = kl_and_gradient(student, teacher)
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    value = kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="sum", impl="triton")
    if truth < 1e37:
        torch.testing.assert_close(torch.stack([found[0], value.detach()]).double(), truth.repeat(2), rtol=1e-5, atol=0)
    else:
        assert min(found, value) > 1e37  # or inf, on the way
    value.backward()
    close(student.grad, gradient, dtype)
    if side == "both":
        assert not student.grad[:, masked].any()
    else:
        close(student.grad[:, masked], gradient[:, masked], dtype)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("dtype", "mask", "temperature"), [(torch.bfloat16, -1e9, 0.9), (torch.float16, -65504.0, 2.0), (torch.float32, -1e9, 2.0)], ids=str
)
def test_rows_that_a_finite_number_masks_everywhere(dtype, mask, temperature, direction):
    """Such a row is uniform. Half precision gave wrong numbers without a word. float32 gave wrong gradients, or NaN."""
    student, teacher = logits(4, 150, 0.5, dtype)
    teacher[[0, 2, 3]] = mask
    student[[1, 2]] = mask
    student[3, 40:] = mask
    exact = student.double().requires_grad_()
    truth = reference(exact, teacher, direction, temperature)
    (gradient,) = torch.autograd.grad(truth.sum(), exact)
    given = options(direction) | {"student": student, "teacher": teacher, "temperature": temperature}
    truth = truth.detach()
    for reduction, right in (("sum", truth.sum()), ("none", truth)):  # value and gradient at once, or one after the other
        learns = student.clone().requires_grad_()
        value = kl_loss(reduction=reduction, **{**given, "student": learns})
        torch.testing.assert_close(value.detach().double(), right, rtol=1e-5, atol=1e-7)  # atol: two equal rows
        value.sum().backward()
        rows = [0, 1, 3]
        close(learns.grad[rows], gradient[rows], dtype)
        assert learns.grad[2].abs().max() <= 1e-7


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_side_far_below_the_other(direction):
    """Lanes beyond the end of a row gave NaN, where Q's logits lay 90 and more below P's."""
    student, teacher = logits(2, 150, 0.5, torch.float32)
    low, high = student - 200, teacher
    for s, t in ((low, high), (high, low)):
        exact = s.double().requires_grad_()
        truth = reference(exact, t, direction).sum()
        truth.backward()
        s = s.clone().requires_grad_()
        value = kl_loss(student=s, teacher=t, reduction="sum", **options(direction))
        torch.testing.assert_close(value.detach().double(), truth.detach(), rtol=1e-5, atol=0)
        value.backward()
        close(s.grad, exact.grad, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_lowest_number_where_p_has_little(dtype):
    """KL was inf for 1e30, and its gradient NaN: log2(q/p) is beyond float32, and log(q/p) is not."""
    student, teacher = logits(2, 150, 0.5, dtype)
    teacher[:, 40:50], student[:, 40:50] = torch.finfo(dtype).min, -20.0
    exact = student.double().requires_grad_()
    truth = reference(exact, teacher, "reverse").sum()
    truth.backward()
    assert 1e27 < truth < 1e32
    value = kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="sum", **options("reverse"))
    torch.testing.assert_close(value.detach().double(), truth.detach(), rtol=1e-5, atol=0)
    value.backward()
    close(student.grad, exact.grad, dtype)


def test_a_category_that_only_q_lacks_is_infinite_however_small_p_is():
    """As in array operations: e⁻³⁰⁰ is 0 in float32, which must not become NaN or 0 on the way. One of a slice, and all of one."""
    for absent in (slice(3, 4), slice(128, 256)):
        student, teacher = logits(2, 300, 0.5, torch.float32)
        teacher[0, absent], student[0, absent] = -300.0, -math.inf
        expected, _ = kl_and_gradient(student, teacher)
        assert torch.isinf(expected).tolist() == [True, False]
        found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
        student.requires_grad_()
        each = kl_loss(student=student, teacher=teacher, weights=torch.tensor([1.0, 0.0], device=DEVICE), impl="triton")
        assert each.item() == math.inf
        each.backward()
        assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize(("shift", "distance"), [((300.0, 0.0), 1e-2), ((3000.0, 3000.0), 0.1)])
def test_gradients_of_logits_far_from_0(shift, distance):
    """What rounding takes from large normalisers, 1e-5 and more, is not taken from the gradient."""
    student, teacher = logits(2, 600, 0.0, torch.float32)
    student = student + distance * torch.randn(2, 600, generator=torch.Generator().manual_seed(3)).to(DEVICE) + shift[0]
    teacher = teacher + shift[1]
    _, gradient = kl_and_gradient(student, teacher)
    kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="sum", impl="triton").backward()
    # What sums of exponentials are off by, under 1e-6, is as much of p, and q − p is near p·distance.
    close(student.grad, gradient, torch.float32, 1e-6 / distance + 1e-5)


def test_slices_wait_for_each_other_only_where_all_of_them_run(monkeypatch):
    """On small GPUs rows of many slices get two launches: a program that waits for one that finds no room would wait for ever."""
    from types import SimpleNamespace

    from kullback._kernels import slices_triton

    monkeypatch.setattr(slices_triton, "INTERPRETED", False)
    for processors, most in ((132, 64), (5, 10)):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, n=processors: SimpleNamespace(multi_processor_count=n))
        assert slices_triton._at_once("cuda") == most


def test_more_rows_than_a_launch_takes(monkeypatch):
    from kullback._kernels import slices_triton

    monkeypatch.setattr(slices_triton, "_ROWS", 2)
    student, teacher = logits(5, 40, 0.5, torch.float32)
    truth, gradient = kl_and_gradient(student, teacher)
    value = kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="sum", impl="triton")
    torch.testing.assert_close(value.detach().double(), truth.sum(), rtol=1e-5, atol=0)
    value.backward()
    close(student.grad, gradient, torch.float32)

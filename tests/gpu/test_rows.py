"""Losses of rows of logits in Triton, against float64: on a GPU, or with TRITON_INTERPRET=1 on none.

python -m pytest tests/gpu
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from by_definition import DEVICE, DIRECTIONS, INTERPRETED, ROUNDING, close, logits, options, reference

from kullback.losses import kl_loss


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("dtype", "columns"),
    # A step of the interpreted kernels is 128 columns: fewer, exactly, more; the dtypes differ in loads and stores only.
    [(torch.bfloat16, 1), (torch.bfloat16, 127), (torch.float32, 128), (torch.float32, 300), (torch.float16, 300)],
    ids=str,
)
def test_values_and_gradients(direction, dtype, columns):
    student, teacher = logits(3, columns, 0.5, dtype)
    truth_student, truth_teacher = (x.double().requires_grad_() for x in (student, teacher))
    truth = reference(truth_student, truth_teacher, direction, 2.0)
    upstream = torch.tensor([1.0, -2.0, 0.5], device=DEVICE)
    truth.backward(upstream.double())
    student.requires_grad_()
    teacher.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, temperature=2.0, reduction="none", **options(direction))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), truth.detach(), rtol=1e-5, atol=1e-30)
    found.backward(upstream)
    if columns > 1:
        close(student.grad, truth_student.grad, dtype)
        close(teacher.grad, truth_teacher.grad, dtype)
    else:
        # p = q = 1, but for the rounding of their normalisers.
        assert (student.grad.abs() <= 2.0**-23).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_small_divergences(direction):
    """bf16 numbers that differ in a few places by one spacing: KL near 1e-8."""
    student, teacher = logits(4, 400, 0.0, torch.bfloat16)
    bits = student.view(torch.int16)
    bits[:, ::97] += torch.where(torch.arange(5, device=DEVICE) % 2 == 0, 1, -1).to(torch.int16)
    truth = reference(student, teacher, direction)
    assert 1e-10 < truth.max() < 1e-5
    found = kl_loss(student=student, teacher=teacher, reduction="none", **options(direction))
    np.testing.assert_allclose(found.double().cpu(), truth.cpu(), rtol=1e-5)
    assert (found >= 0).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_small_divergences_of_uneven_rows(direction):
    """A few categories have most of the mass: the errors of their exponentials do not cancel. Value and gradient at once."""
    generator = torch.Generator().manual_seed(3)
    rows, columns = (1, 700) if INTERPRETED else (3, 20_000)
    teacher = 6 * torch.randn(rows, columns, generator=generator)
    student = (teacher + 2e-4 * torch.randn(rows, columns, generator=generator)).to(DEVICE)
    teacher = teacher.to(DEVICE)
    exact = student.double().requires_grad_()
    truth = reference(exact, teacher, direction).sum()
    truth.backward()
    assert 1e-9 < truth < 2e-7
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, reduction="sum", **options(direction))
    found.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-5)
    if direction != "forward":  # which docs/losses.md excepts
        close(student.grad, exact.grad, torch.float32, 1e-4)  # of log(q/p) ~ 1e-4, float32 has that


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("peak", [7.0, 15.0])
def test_gradients_where_one_category_has_nearly_all_the_mass(dtype, peak):
    """All but 5e-4 or 2e-7 of it: there the gradient is as small, and must be as exact."""
    rows = 1 if INTERPRETED else 4
    teacher = torch.randn(rows, 600, generator=torch.Generator().manual_seed(0))
    teacher[:, 300] = peak + math.log(600)
    student = teacher + 0.3 * torch.randn(rows, 600, generator=torch.Generator().manual_seed(1))
    student, teacher = (x.to(dtype).to(DEVICE) for x in (student, teacher))
    for direction in DIRECTIONS:
        exact = [x.double().requires_grad_() for x in (student, teacher)]
        reference(*exact, direction).sum().backward()
        given = [x.clone().requires_grad_() for x in (student, teacher)]
        kl_loss(student=given[0], teacher=given[1], reduction="none", **options(direction)).sum().backward()
        for x, e in zip(given, exact):
            error = (x.grad.double() - e.grad).norm(dim=-1) / e.grad.norm(dim=-1)
            # Exponentials that are good to 2ε of themselves, of numbers up to 30: as much of what is left of p, whose logarithm is taken.
            assert (error <= 2 * ROUNDING[dtype] + 1e-4).all(), (direction, error)


@pytest.mark.parametrize(
    ("reduction", "direction"), [("mean", "forward"), ("sum", "forward"), ("batchmean", "forward"), *(("mean", d) for d in DIRECTIONS[1:])]
)
def test_the_fused_gradient(reduction, direction):
    student, teacher = logits(6, 200, 0.5, torch.bfloat16)
    weights = torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 0.5]], device=DEVICE)
    student, teacher = student.reshape(2, 3, 200), teacher.reshape(2, 3, 200)
    exact = student.double().requires_grad_()
    each = reference(exact, teacher, direction)
    total = (each * weights).sum()
    truth = {"mean": total / weights.sum(), "sum": total, "batchmean": total / 2}[reduction]
    truth.backward()
    student[0, 1] = math.nan  # weight 0: may hold anything
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, weights=weights, reduction=reduction, **options(direction))
    torch.testing.assert_close(found.double(), truth.detach(), rtol=1e-5, atol=0)
    (first,) = torch.autograd.grad(found, student, retain_graph=True)
    (again,) = torch.autograd.grad(found, student, 3 * torch.ones_like(found), retain_graph=True)
    (third,) = torch.autograd.grad(found, student)
    rows = [0, 2, 3, 4, 5]
    close(first.reshape(6, 200)[rows], exact.grad.reshape(6, 200)[rows], torch.bfloat16)
    close(again.reshape(6, 200)[rows], 3 * exact.grad.reshape(6, 200)[rows], torch.bfloat16)
    assert torch.equal(first, third)
    assert (first[0, 1] == 0).all()


def test_without_gradients_none_is_computed(monkeypatch):
    from kullback._kernels import rows_triton

    monkeypatch.setattr(rows_triton.FusedLoss, "apply", None)
    student, teacher = logits(2, 30, 0.5, torch.float32)
    with torch.no_grad():
        value = kl_loss(student=student.requires_grad_(), teacher=teacher, impl="triton")
    assert value.item() == pytest.approx(reference(student.detach(), teacher, "forward").mean().item(), rel=1e-5)


def test_float16_with_a_loss_scale():
    """It comes with backward: a share of a mean that was rounded to float16 before would be 0, or have few digits."""
    student, teacher = logits(4, 40, 0.01, torch.float16)
    shares = torch.full((4,), 2.0**-13, device=DEVICE)
    exact = student.double().requires_grad_()
    (65536 * (shares * reference(exact, teacher, "forward")).sum()).backward()
    student.requires_grad_()
    (65536 * kl_loss(student=student, teacher=teacher, weights=shares, reduction="sum", impl="triton")).backward()
    close(student.grad, exact.grad, torch.float16, 1e-4)  # KL is near 1e-4: 1e-6 of p is 1e-4 of q − p


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_what_has_weight_0_reaches_no_derivative(reduction):
    """Nor second ones; be it the logits or the temperature."""
    student, teacher = logits(3, 40, 0.5, torch.float32)
    weights, temperature = (torch.tensor(x, device=DEVICE) for x in ([1.0, 0.0, 0.0], [2.0, 0.0, 1.0]))
    student[2, 5], found = math.nan, {}
    for impl in ("triton", "array"):
        for twice in (False, True):
            x = student.clone().requires_grad_()
            loss = kl_loss(student=x, teacher=teacher, weights=weights, temperature=temperature, reduction=reduction, impl=impl)
            (g,) = torch.autograd.grad(loss.sum(), x, create_graph=twice)
            found[impl, twice] = torch.autograd.grad(g[0, :7].sum(), x)[0] if twice else g
    for twice in (False, True):
        assert not found["triton", twice][1:].any()
        torch.testing.assert_close(found["triton", twice], found["array", twice], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rows_without_a_value_have_no_fused_gradient(direction):
    """NaN among the logits; and, of KL(student‖teacher), what the teacher lacks, however little the student has of it."""
    student, teacher = logits(3, 600 if INTERPRETED else 20_000, 0.5, torch.float32)
    student[1, 400], student[2, 7], teacher[2, 7] = math.nan, -300.0, -math.inf
    student.requires_grad_()
    loss = kl_loss(student=student, teacher=teacher, reduction="sum", **options(direction))
    loss.backward()
    assert torch.isnan(loss)
    assert torch.isfinite(student.grad[0]).all()
    assert torch.isnan(student.grad[1]).all()
    assert (torch.isnan if direction == "reverse" else torch.isfinite)(student.grad[2]).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_temperature_that_is_none(temperature, reduction):
    student, teacher = logits(2, 30, 0.5, torch.float32)
    with pytest.raises(ValueError, match="must be positive"):
        kl_loss(student=student.requires_grad_(), teacher=teacher, temperature=temperature, reduction=reduction, impl="triton")


def test_temperatures_that_are_none_make_nan():
    student, teacher = logits(3, 30, 0.5, torch.float32)
    temperature = torch.tensor([2.0, 0.0, -1.0], device=DEVICE)
    found = kl_loss(student=student, teacher=teacher, temperature=temperature, reduction="none", impl="triton")
    assert found[0].item() == pytest.approx(reference(student, teacher, "forward", 2.0)[0].item(), rel=1e-5)
    assert torch.isnan(found[1:]).all()


def tensor(numbers):
    return torch.tensor(numbers, device=DEVICE)


@pytest.mark.parametrize(("make", "direction"), [(list, "forward"), (np.array, "js"), (tensor, "reverse"), (tensor, "forward")])
def test_one_temperature_and_weight_a_row(make, direction):
    """Of whatever they are made of; and of the wrong shape, in the words of the array operations."""
    student, teacher = (x.reshape(2, 3, 130) for x in logits(6, 130, 0.5, torch.float32))
    temperatures, weights = [[1.0, 2.0, 4.0], [1.0, 3.0, 1.5]], [1.0, 0.0, 2.0]
    exact = student.double().requires_grad_()
    each = reference(exact, teacher, direction, torch.tensor(temperatures, device=DEVICE, dtype=torch.float64)[..., None])
    w = torch.tensor(weights, device=DEVICE).expand(2, 3)
    truth = (each * w).sum() / w.sum()
    truth.backward()
    student[:, 1] = math.nan
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, temperature=make(temperatures), weights=make(weights), **options(direction))
    found.backward()
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)
    close(student.grad[:, ::2], exact.grad[:, ::2], torch.float32)
    assert (student.grad[:, 1] == 0).all()
    for name in ("temperature", "weights"):
        with pytest.raises(ValueError, match=rf"^{name} has shape \(2,\): it must broadcast to the batch shape, \(2, 3\)$"):
            kl_loss(student=student, teacher=teacher, **{name: make([1.0, 2.0])}, **options(direction))
    with pytest.raises(RuntimeError, match=r"student and teacher have different batches, \(2, 3\) and \(3,\)"):
        kl_loss(student=student, teacher=teacher[0], **options(direction))


def test_a_first_upstream_other_than_one():
    student, teacher = logits(3, 200, 0.5, torch.float32)
    exact = student.double().requires_grad_()
    (5 * reference(exact, teacher, "forward").mean()).backward()
    student.requires_grad_()
    (5 * kl_loss(student=student, teacher=teacher, impl="triton")).backward()
    close(student.grad, exact.grad, torch.float32)


def test_weights_that_learn():
    student, teacher = logits(3, 50, 0.5, torch.float32)
    weights = torch.tensor([1.0, 2.0, 0.5], device=DEVICE, requires_grad=True)
    kl_loss(student=student.requires_grad_(), teacher=teacher, weights=weights, impl="triton").backward()
    each = reference(student.detach(), teacher, "forward")
    w = weights.detach().double()
    # Σwx/Σw by hand: (x − its value) / Σw.
    torch.testing.assert_close(weights.grad.double(), (each - (w * each).sum() / w.sum()) / w.sum(), rtol=1e-4, atol=1e-7)


def test_all_weights_zero():
    student, teacher = logits(2, 50, 0.5, torch.float32)
    student.requires_grad_()
    value = kl_loss(student=student, teacher=teacher, weights=torch.zeros(2, device=DEVICE), impl="triton")
    value.backward()
    assert value == 0
    assert (student.grad == 0).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_absent_categories(direction):
    """−inf in both (a padded vocabulary) changes nothing; in one, the value is that of the definition, and no gradient is NaN."""
    student, teacher = logits(2, 60, 0.5, torch.float32)
    alone = kl_loss(student=student, teacher=teacher, reduction="none", **options(direction))
    padded = [torch.cat([x, torch.full((2, 90), -math.inf, device=DEVICE)], -1).requires_grad_() for x in (student, teacher)]
    found = kl_loss(student=padded[0], teacher=padded[1], reduction="none", **options(direction))
    torch.testing.assert_close(found, alone, rtol=1e-6, atol=0)
    found.sum().backward()
    assert all(torch.isfinite(x.grad).all() and (x.grad[:, 60:] == 0).all() for x in padded)
    longer = kl_loss(student=student, teacher=padded[1].detach(), reduction="none", **options(direction))
    torch.testing.assert_close(longer, alone, rtol=1e-6, atol=0)
    one = teacher.clone()
    one[:, 3] = -math.inf
    value = kl_loss(student=student.requires_grad_(), teacher=one, reduction="none", **options(direction))
    expected = reference(student.detach(), one, direction)
    assert torch.isinf(expected).all() == (direction == "reverse")
    torch.testing.assert_close(value.double().detach(), expected, rtol=1e-5, atol=0)
    if direction != "reverse":
        value.sum().backward()
        assert torch.isfinite(student.grad).all()


def test_rows_that_are_no_distributions_are_nan_and_leave_others_alone():
    student, teacher = logits(4, 130, 0.5, torch.float32)
    expected = reference(student, teacher, "forward")
    student[0, 5], student[1], teacher[2, 7] = math.nan, -math.inf, math.inf
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    assert torch.isnan(found[:3]).all()
    assert found[3].item() == pytest.approx(expected[3].item(), rel=1e-5)
    # The gradient to either side is NaN there too, whichever of them it is that is none.
    for direction in DIRECTIONS:
        sides = [x.clone().requires_grad_() for x in (student, teacher)]
        kl_loss(student=sides[0], teacher=sides[1], reduction="none", **options(direction)).sum().backward()
        assert all(torch.isnan(x.grad[:3]).all() and torch.isfinite(x.grad[3]).all() for x in sides)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_an_infinite_divergence_has_no_derivative_to_its_first_argument(direction):
    """As in array operations; that to the second remains."""
    found = []
    for impl in ("triton", "array"):
        student, teacher = logits(2, 40, 0.5, torch.float32)
        (student if direction == "forward" else teacher)[0, 3] = -math.inf
        sides = [x.requires_grad_() for x in (student, teacher)]
        kl_loss(student=student, teacher=teacher, direction=direction, reduction="none", impl=impl).sum().backward()
        found.append([x.grad for x in (sides if direction == "forward" else sides[::-1])])
    for one, right in zip(*found):
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert torch.isnan(found[0][1][0]).all()


def test_strides_shapes_and_shifts():
    student, teacher = logits(8, 96, 0.5, torch.float32)
    expected = reference(student, teacher, "forward").float()
    for arrange in (
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x, x], -1)[:, :96],
        lambda x: torch.stack([x, x], 1)[:, 0],
        lambda x: x.repeat_interleave(2, -1)[:, ::2],
    ):
        found = kl_loss(student=arrange(student), teacher=arrange(teacher), reduction="none", impl="triton")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    found = kl_loss(student=student.reshape(2, 2, 2, 96), teacher=teacher.reshape(2, 2, 2, 96), reduction="none", impl="triton")
    torch.testing.assert_close(found.reshape(8), expected, rtol=1e-5, atol=0)
    shifted = student + 100
    found = kl_loss(student=shifted, teacher=teacher, reduction="none", impl="triton")
    torch.testing.assert_close(found.double(), reference(shifted, teacher, "forward"), rtol=1e-5, atol=0)
    assert kl_loss(student=student[0], teacher=teacher[0], impl="triton").item() == pytest.approx(expected[0].item(), rel=1e-5)
    assert kl_loss(student=student[:0], teacher=teacher[:0], impl="array", reduction="sum") == 0


def test_second_derivatives():
    student, teacher = logits(2, 40, 0.5, torch.float32)
    vector = torch.randn(2, 40, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for reduction in ("none", "mean"):
        found = []
        for impl in ("triton", "array"):
            x = student.clone().requires_grad_()
            (g,) = torch.autograd.grad(kl_loss(student=x, teacher=teacher, reduction=reduction, impl=impl).sum(), x, create_graph=True)
            found.append(torch.autograd.grad((g * vector).sum(), x)[0])
        # Softmax's Hessian times the vector, by hand.
        q = torch.softmax(student.double(), -1)
        by_hand = q * vector - q * (q * vector).sum(-1, keepdim=True)
        by_hand = by_hand / (2 if reduction == "mean" else 1)
        for one in found:
            torch.testing.assert_close(one.double(), by_hand, rtol=1e-4, atol=1e-6)


def test_kl_uses_the_kernels(monkeypatch):
    import kullback as kb
    from kullback._kernels import rows_triton

    calls = []
    original = rows_triton.values
    monkeypatch.setattr(rows_triton, "values", lambda *args, **options: calls.append(1) or original(*args, **options))
    student, teacher = logits(3, 200, 1e-4, torch.float32)
    exact = [x.double().requires_grad_() for x in (teacher, student)]
    truth = reference(exact[1], exact[0], "forward", 1.5)
    truth.sum().backward()
    sides = [x.requires_grad_() for x in (teacher, student)]
    if INTERPRETED:  # tensors on the CPU have a kernel of their own
        spec_value = rows_triton.kl(sides[0].detach(), sides[1].detach(), torch.full((1, 1), 1 / 1.5))[:, 0]
    else:
        spec_value = kb.kl(*sides, form="logits", temperature=1.5)
        spec_value.sum().backward()
        close(sides[1].grad, exact[1].grad, torch.float32)
        close(sides[0].grad, exact[0].grad, torch.float32)
    assert calls
    # KL near 1e-9, of which float64 by definition keeps 7 digits.
    torch.testing.assert_close(spec_value.double().detach(), truth.detach(), rtol=5e-6, atol=0)


def test_only_on_a_gpu_no_synchronisation_compile_and_graphs():
    student, teacher = logits(64, 1000, 0.5, torch.bfloat16)
    student.requires_grad_()
    kl_loss(student=student, teacher=teacher, impl="triton").backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        kl_loss(student=student, teacher=teacher, impl="triton", temperature=2.0).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    compiled = torch.compile(lambda s, t: kl_loss(student=s, teacher=t))
    assert compiled(student, teacher).item() == pytest.approx(kl_loss(student=student, teacher=teacher).item(), rel=1e-5)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(kl_loss(student=student, teacher=teacher), student)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        (captured,) = torch.autograd.grad(kl_loss(student=student, teacher=teacher), student)
    with torch.no_grad():
        student.copy_(student * 0.5)
    graph.replay()
    (expected,) = torch.autograd.grad(kl_loss(student=student, teacher=teacher), student)
    assert torch.equal(captured, expected)

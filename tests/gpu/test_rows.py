"""The Triton kernels over rows of logits, against float64: on a GPU, or with TRITON_INTERPRET=1 on none.

python -m pytest --noconftest tests/gpu
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from kullback.losses import kl_loss

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DIRECTIONS = ["forward", "reverse", "js", "skew", "reverse_skew"]
MIX = 0.3
# Half of the spacing of numbers next to 1.
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def _reference(student, teacher, direction, temperature=1.0):
    """By definition, in float64, which is exact enough: KL 1e-8 leaves 8 digits of float64's 16."""
    log_s, log_t = (torch.log_softmax(x.double() / temperature, -1) for x in (student, teacher))

    def kl(log_p, log_q):
        p = log_p.exp()
        return torch.where(p > 0, p * (log_p - torch.where(p > 0, log_q, 0.0)), 0.0).sum(-1)

    def mixed(log_p, log_q):
        return torch.logaddexp(log_p + math.log(MIX), log_q + math.log1p(-MIX))

    return {
        "forward": lambda: kl(log_t, log_s),
        "reverse": lambda: kl(log_s, log_t),
        "js": lambda: MIX * kl(log_t, mixed(log_t, log_s)) + (1 - MIX) * kl(log_s, mixed(log_t, log_s)),
        "skew": lambda: kl(log_t, mixed(log_t, log_s)),
        "reverse_skew": lambda: kl(log_s, mixed(log_s, log_t)),
    }[direction]()


def _options(direction):
    return {"direction": direction, "impl": "triton"} | ({} if direction in ("forward", "reverse") else {"mix": MIX})


def _logits(rows, columns, distance, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    teacher = (2 * torch.randn(rows, columns, generator=generator)).to(dtype)
    student = (teacher.double() + distance * torch.randn(rows, columns, generator=generator, dtype=torch.float64)).to(dtype)
    return student.to(DEVICE), teacher.to(DEVICE)


def _close(found, truth, dtype, arithmetic=1e-5):
    # Twice the rounding of the output, row by row and by norm.
    error = (found.double() - truth).norm(dim=-1) / truth.norm(dim=-1)
    assert (error <= 2 * ROUNDING[dtype] + arithmetic).all(), error  # 1e-5: the contract of the arithmetic, which is float32


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("dtype", "columns"),
    # A step of the interpreted kernels is 128 columns: fewer, exactly, more; the dtypes differ in loads and stores only.
    [(torch.bfloat16, 1), (torch.bfloat16, 127), (torch.float32, 128), (torch.float32, 300), (torch.float16, 300)],
    ids=str,
)
def test_values_and_gradients(direction, dtype, columns):
    student, teacher = _logits(3, columns, 0.5, dtype)
    truth_student, truth_teacher = (x.double().requires_grad_() for x in (student, teacher))
    truth = _reference(truth_student, truth_teacher, direction, 2.0)
    upstream = torch.tensor([1.0, -2.0, 0.5], device=DEVICE)
    truth.backward(upstream.double())
    student.requires_grad_()
    teacher.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, temperature=2.0, reduction="none", **_options(direction))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), truth.detach(), rtol=1e-5, atol=1e-30)
    found.backward(upstream)
    if columns > 1:
        _close(student.grad, truth_student.grad, dtype)
        _close(teacher.grad, truth_teacher.grad, dtype)
    else:
        # p = q = 1, but for the rounding of their normalisers.
        assert (student.grad.abs() <= 2.0**-23).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_small_divergences(direction):
    """bf16 numbers that differ in a few places by one spacing: KL near 1e-8."""
    student, teacher = _logits(4, 400, 0.0, torch.bfloat16)
    bits = student.view(torch.int16)
    bits[:, ::97] += torch.where(torch.arange(5, device=DEVICE) % 2 == 0, 1, -1).to(torch.int16)
    truth = _reference(student, teacher, direction)
    assert 1e-10 < truth.max() < 1e-5
    found = kl_loss(student=student, teacher=teacher, reduction="none", **_options(direction))
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
    truth = _reference(exact, teacher, direction).sum()
    truth.backward()
    assert 1e-9 < truth < 2e-7
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, reduction="sum", **_options(direction))
    found.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-5)
    if direction != "forward":  # which docs/losses.md excepts
        _close(student.grad, exact.grad, torch.float32, 1e-4)  # of log(q/p) ~ 1e-4, float32 has that


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
        _reference(*exact, direction).sum().backward()
        given = [x.clone().requires_grad_() for x in (student, teacher)]
        kl_loss(student=given[0], teacher=given[1], reduction="none", **_options(direction)).sum().backward()
        for x, e in zip(given, exact):
            error = (x.grad.double() - e.grad).norm(dim=-1) / e.grad.norm(dim=-1)
            # Exponentials that are good to 2ε of themselves, of numbers up to 30: as much of what is left of p, whose logarithm is taken.
            assert (error <= 2 * ROUNDING[dtype] + 1e-4).all(), (direction, error)


@pytest.mark.parametrize(
    ("reduction", "direction"), [("mean", "forward"), ("sum", "forward"), ("batchmean", "forward"), *(("mean", d) for d in DIRECTIONS[1:])]
)
def test_the_fused_gradient(reduction, direction):
    student, teacher = _logits(6, 200, 0.5, torch.bfloat16)
    weights = torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 0.5]], device=DEVICE)
    student, teacher = student.reshape(2, 3, 200), teacher.reshape(2, 3, 200)
    exact = student.double().requires_grad_()
    each = _reference(exact, teacher, direction)
    total = (each * weights).sum()
    truth = {"mean": total / weights.sum(), "sum": total, "batchmean": total / 2}[reduction]
    truth.backward()
    student[0, 1] = math.nan  # weight 0: may hold anything
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, weights=weights, reduction=reduction, **_options(direction))
    torch.testing.assert_close(found.double(), truth.detach(), rtol=1e-5, atol=0)
    (first,) = torch.autograd.grad(found, student, retain_graph=True)
    (again,) = torch.autograd.grad(found, student, 3 * torch.ones_like(found), retain_graph=True)
    (third,) = torch.autograd.grad(found, student)
    rows = [0, 2, 3, 4, 5]
    _close(first.reshape(6, 200)[rows], exact.grad.reshape(6, 200)[rows], torch.bfloat16)
    _close(again.reshape(6, 200)[rows], 3 * exact.grad.reshape(6, 200)[rows], torch.bfloat16)
    assert torch.equal(first, third)
    assert (first[0, 1] == 0).all()


def test_without_gradients_none_is_computed(monkeypatch):
    from kullback._kernels import rows_triton

    monkeypatch.setattr(rows_triton.FusedLoss, "apply", None)
    student, teacher = _logits(2, 30, 0.5, torch.float32)
    with torch.no_grad():
        value = kl_loss(student=student.requires_grad_(), teacher=teacher, impl="triton")
    assert value.item() == pytest.approx(_reference(student.detach(), teacher, "forward").mean().item(), rel=1e-5)


def test_rows_that_rise_far_above_their_first_tile():
    """Their sums would overflow relative to it."""
    student, teacher = _logits(2, 5000, 0.5, torch.float32)
    student[0, 4000] += 200
    teacher[:, 4500] += 150
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    torch.testing.assert_close(found.double(), _reference(student, teacher, "forward"), rtol=1e-5, atol=0)


@pytest.mark.parametrize("direction", ["forward", "js", "skew"])
def test_rows_whose_first_tile_is_absent(direction):
    """And the others so low that they would underflow relative to 0."""
    student, teacher = _logits(2, 2600, 0.5, torch.float32)
    for x in (student, teacher):
        x[0] -= 200
        x[:, :2100] = -math.inf  # a tile is 2048 columns on a GPU, 128 here
    exact = student.double().clamp_min(-1e4).requires_grad_()
    truth = _reference(exact, teacher.double().clamp_min(-1e4), direction)
    truth.sum().backward()
    found = kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="none", **_options(direction))
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)
    found.sum().backward()
    _close(student.grad, exact.grad, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("weights", [None, "given"])
def test_what_the_teacher_has_less_than_float32_of(dtype, weights):
    """The student's share there counts in full: in the value, and in the gradient, of the one row and not of others."""
    student, teacher = _logits(3, 600, 0.5, dtype)
    teacher[0, 500], teacher[1, 20:40], student[1, 30:50] = -200.0, -math.inf, -math.inf
    teacher[1, 40:50] = -math.inf
    given = None if weights is None else torch.ones(3, device=DEVICE)
    truth_student = student.double().requires_grad_()
    truth = _reference(truth_student, teacher, "forward")
    (gradient,) = torch.autograd.grad(truth.mean(), truth_student)
    found = kl_loss(student=student, teacher=teacher, reduction="none", weights=given, impl="triton")
    torch.testing.assert_close(found.double(), truth.detach(), rtol=1e-5, atol=0)
    kl_loss(student=student.requires_grad_(), teacher=teacher, weights=given, impl="triton").backward()
    _close(student.grad, gradient, dtype)


@pytest.mark.parametrize("direction", DIRECTIONS[1:])
@pytest.mark.parametrize("case", ["ordinary", "a quarter absent", "first column low", "student padded", "another mix"])
def test_other_directions_over_several_slices(direction, case, monkeypatch):
    """Where the constant side, and in a mixture either, lacks categories; where pivots are far off; and shares that take other kernels."""
    if case == "another mix":
        monkeypatch.setattr(f"{__name__}.MIX", 0.95)
    rows, columns = (1, 1100) if INTERPRETED else (3, 100_000)
    student, teacher = _logits(rows, columns, 0.5, torch.bfloat16)
    if case == "a quarter absent":
        (student if direction == "reverse" else teacher)[:, columns // 4 : columns // 2] = -math.inf
    elif case == "first column low":
        student[:, 0], teacher[:, 0] = -250, -300
    elif case == "student padded":
        student = torch.cat([student, torch.full((rows, 600), -math.inf, dtype=student.dtype, device=DEVICE)], 1)
    exact = student[:, :columns].double().clamp_min(-1e4).requires_grad_()
    truth = _reference(exact, teacher.double().clamp_min(-1e4), direction).mean()
    truth.backward()
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, **_options(direction))
    found.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-5)
    _close(student.grad[:, :columns], exact.grad, torch.bfloat16)
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


def _exact(student, teacher):
    """KL(T‖S) and its gradient to the student's logits, in float64 without cancellation: Σ p φ(v), q where p is absent."""
    student, teacher = student.double(), teacher.double()
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    v = torch.where(p > 0, log_q - log_p, 0.0)
    phi = torch.where(v.abs() < 1e-2, v * v * (1 / 2 + v * (1 / 6 + v * (1 / 24 + v / 120))), torch.expm1(v) - v)
    kl = torch.where(p > 0, torch.where(v > 30, q - p - p * v, p * phi), q)
    return kl.sum(-1), torch.where(p > 0, torch.where(v.abs() < 1, p * torch.expm1(v), q - p), q)


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
    truth, gradient = _exact(student, teacher)
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)
    value = kl_loss(student=student.requires_grad_(), teacher=teacher, impl="triton")
    torch.testing.assert_close(value.detach().double(), truth.mean(), rtol=1e-5, atol=0)
    value.backward()
    if case == "equal":
        assert not student.grad.any()
    elif ROWS_OF_SEVERAL_SLICES[case]:
        # 2e-4 for float32: sums of exponentials round, by some 1e-6, and q − p is near p/100 here.
        _close(rows * student.grad.double(), gradient, dtype, 2e-4)


@pytest.mark.parametrize(("dtype", "mask"), [(torch.float32, -1e9), (torch.bfloat16, torch.finfo(torch.bfloat16).min)], ids=str)
@pytest.mark.parametrize("side", ["student", "teacher", "both"])
def test_finite_numbers_that_stand_for_absent_categories(dtype, mask, side):
    """In the first place, and in all of a slice of the interpreter's: v + φ(v) cancels, and multiples overflow."""
    student, teacher = _logits(1, 640, 0.5, dtype)
    masked = slice(128, 256)
    for x in {"student": [student], "teacher": [teacher], "both": [student, teacher]}[side]:
        x[:, 0] = x[:, masked] = mask
    truth, gradient = _exact(student, teacher)
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    value = kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="sum", impl="triton")
    if truth < 1e37:
        torch.testing.assert_close(torch.stack([found[0], value.detach()]).double(), truth.repeat(2), rtol=1e-5, atol=0)
    else:
        assert min(found, value) > 1e37  # or inf, on the way
    value.backward()
    _close(student.grad, gradient, dtype)
    if side == "both":
        assert not student.grad[:, masked].any()
    else:
        _close(student.grad[:, masked], gradient[:, masked], dtype)


def test_a_category_that_only_q_lacks_is_infinite_however_small_p_is():
    """As in array operations: e⁻³⁰⁰ is 0 in float32, which must not become NaN or 0 on the way. One of a slice, and all of one."""
    for absent in (slice(3, 4), slice(128, 256)):
        student, teacher = _logits(2, 300, 0.5, torch.float32)
        teacher[0, absent], student[0, absent] = -300.0, -math.inf
        expected = kl_loss(student=student, teacher=teacher, reduction="none", impl="array")
        assert torch.isinf(expected).tolist() == [True, False]
        found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
        student.requires_grad_()
        each = kl_loss(student=student, teacher=teacher, weights=torch.tensor([1.0, 0.0], device=DEVICE), impl="triton")
        assert each.item() == math.inf
        each.backward()
        assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize(("shift", "distance"), [((300.0, 0.0), 1e-2), ((3000.0, 3000.0), 0.1)])
def test_gradients_of_logits_far_from_0(shift, distance):
    """What rounding takes from large normalisers, 1e-5 and more, is not taken from the gradient."""
    student, teacher = _logits(2, 600, 0.0, torch.float32)
    student = student + distance * torch.randn(2, 600, generator=torch.Generator().manual_seed(3)).to(DEVICE) + shift[0]
    teacher = teacher + shift[1]
    _, gradient = _exact(student, teacher)
    kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="sum", impl="triton").backward()
    # What sums of exponentials are off by, under 1e-6, is as much of p, and q − p is near p·distance.
    _close(student.grad, gradient, torch.float32, 1e-6 / distance + 1e-5)


def test_float16_with_a_loss_scale():
    """It comes with backward: a share of a mean that was rounded to float16 before would be 0, or have few digits."""
    student, teacher = _logits(4, 40, 0.01, torch.float16)
    shares = torch.full((4,), 2.0**-13, device=DEVICE)
    exact = student.double().requires_grad_()
    (65536 * (shares * _reference(exact, teacher, "forward")).sum()).backward()
    student.requires_grad_()
    (65536 * kl_loss(student=student, teacher=teacher, weights=shares, reduction="sum", impl="triton")).backward()
    _close(student.grad, exact.grad, torch.float16, 1e-4)  # KL is near 1e-4: 1e-6 of p is 1e-4 of q − p


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_what_has_weight_0_reaches_no_derivative(reduction):
    """Nor second ones; be it the logits or the temperature."""
    student, teacher = _logits(3, 40, 0.5, torch.float32)
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
    student, teacher = _logits(3, 600 if INTERPRETED else 20_000, 0.5, torch.float32)
    student[1, 400], student[2, 7], teacher[2, 7] = math.nan, -300.0, -math.inf
    student.requires_grad_()
    loss = kl_loss(student=student, teacher=teacher, reduction="sum", **_options(direction))
    loss.backward()
    assert torch.isnan(loss)
    assert torch.isfinite(student.grad[0]).all()
    assert torch.isnan(student.grad[1]).all()
    assert (torch.isnan if direction == "reverse" else torch.isfinite)(student.grad[2]).all()


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
    student, teacher = _logits(5, 40, 0.5, torch.float32)
    truth, gradient = _exact(student, teacher)
    value = kl_loss(student=student.requires_grad_(), teacher=teacher, reduction="sum", impl="triton")
    torch.testing.assert_close(value.detach().double(), truth.sum(), rtol=1e-5, atol=0)
    value.backward()
    _close(student.grad, gradient, torch.float32)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_temperature_that_is_none(temperature, reduction):
    student, teacher = _logits(2, 30, 0.5, torch.float32)
    with pytest.raises(ValueError, match="must be positive"):
        kl_loss(student=student.requires_grad_(), teacher=teacher, temperature=temperature, reduction=reduction, impl="triton")


def test_temperatures_that_are_none_make_nan():
    student, teacher = _logits(3, 30, 0.5, torch.float32)
    temperature = torch.tensor([2.0, 0.0, -1.0], device=DEVICE)
    found = kl_loss(student=student, teacher=teacher, temperature=temperature, reduction="none", impl="triton")
    assert found[0].item() == pytest.approx(_reference(student, teacher, "forward", 2.0)[0].item(), rel=1e-5)
    assert torch.isnan(found[1:]).all()


def tensor(numbers):
    return torch.tensor(numbers, device=DEVICE)


@pytest.mark.parametrize(("make", "direction"), [(list, "forward"), (np.array, "js"), (tensor, "reverse"), (tensor, "forward")])
def test_one_temperature_and_weight_a_row(make, direction):
    """Of whatever they are made of; and of the wrong shape, in the words of the array operations."""
    student, teacher = (x.reshape(2, 3, 130) for x in _logits(6, 130, 0.5, torch.float32))
    temperatures, weights = [[1.0, 2.0, 4.0], [1.0, 3.0, 1.5]], [1.0, 0.0, 2.0]
    exact = student.double().requires_grad_()
    each = _reference(exact, teacher, direction, torch.tensor(temperatures, device=DEVICE, dtype=torch.float64)[..., None])
    w = torch.tensor(weights, device=DEVICE).expand(2, 3)
    truth = (each * w).sum() / w.sum()
    truth.backward()
    student[:, 1] = math.nan
    student.requires_grad_()
    found = kl_loss(student=student, teacher=teacher, temperature=make(temperatures), weights=make(weights), **_options(direction))
    found.backward()
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)
    _close(student.grad[:, ::2], exact.grad[:, ::2], torch.float32)
    assert (student.grad[:, 1] == 0).all()
    for name in ("temperature", "weights"):
        with pytest.raises(ValueError, match=rf"^{name} has shape \(2,\): it must broadcast to the batch shape, \(2, 3\)$"):
            kl_loss(student=student, teacher=teacher, **{name: make([1.0, 2.0])}, **_options(direction))
    with pytest.raises(RuntimeError, match=r"student and teacher have different batches, \(2, 3\) and \(3,\)"):
        kl_loss(student=student, teacher=teacher[0], **_options(direction))


def test_a_first_upstream_other_than_one():
    student, teacher = _logits(3, 200, 0.5, torch.float32)
    exact = student.double().requires_grad_()
    (5 * _reference(exact, teacher, "forward").mean()).backward()
    student.requires_grad_()
    (5 * kl_loss(student=student, teacher=teacher, impl="triton")).backward()
    _close(student.grad, exact.grad, torch.float32)


def test_weights_that_learn():
    student, teacher = _logits(3, 50, 0.5, torch.float32)
    weights = torch.tensor([1.0, 2.0, 0.5], device=DEVICE, requires_grad=True)
    kl_loss(student=student.requires_grad_(), teacher=teacher, weights=weights, impl="triton").backward()
    each = _reference(student.detach(), teacher, "forward")
    w = weights.detach().double()
    # Σwx/Σw by hand: (x − its value) / Σw.
    torch.testing.assert_close(weights.grad.double(), (each - (w * each).sum() / w.sum()) / w.sum(), rtol=1e-4, atol=1e-7)


def test_all_weights_zero():
    student, teacher = _logits(2, 50, 0.5, torch.float32)
    student.requires_grad_()
    value = kl_loss(student=student, teacher=teacher, weights=torch.zeros(2, device=DEVICE), impl="triton")
    value.backward()
    assert value == 0
    assert (student.grad == 0).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_absent_categories(direction):
    """−inf in both (a padded vocabulary) changes nothing; in one, the value is that of the definition, and no gradient is NaN."""
    student, teacher = _logits(2, 60, 0.5, torch.float32)
    alone = kl_loss(student=student, teacher=teacher, reduction="none", **_options(direction))
    padded = [torch.cat([x, torch.full((2, 90), -math.inf, device=DEVICE)], -1).requires_grad_() for x in (student, teacher)]
    found = kl_loss(student=padded[0], teacher=padded[1], reduction="none", **_options(direction))
    torch.testing.assert_close(found, alone, rtol=1e-6, atol=0)
    found.sum().backward()
    assert all(torch.isfinite(x.grad).all() and (x.grad[:, 60:] == 0).all() for x in padded)
    longer = kl_loss(student=student, teacher=padded[1].detach(), reduction="none", **_options(direction))
    torch.testing.assert_close(longer, alone, rtol=1e-6, atol=0)
    one = teacher.clone()
    one[:, 3] = -math.inf
    value = kl_loss(student=student.requires_grad_(), teacher=one, reduction="none", **_options(direction))
    expected = _reference(student.detach(), one, direction)
    assert torch.isinf(expected).all() == (direction == "reverse")
    torch.testing.assert_close(value.double().detach(), expected, rtol=1e-5, atol=0)
    if direction != "reverse":
        value.sum().backward()
        assert torch.isfinite(student.grad).all()


def test_rows_that_are_no_distributions_are_nan_and_leave_others_alone():
    student, teacher = _logits(4, 130, 0.5, torch.float32)
    expected = _reference(student, teacher, "forward")
    student[0, 5], student[1], teacher[2, 7] = math.nan, -math.inf, math.inf
    found = kl_loss(student=student, teacher=teacher, reduction="none", impl="triton")
    assert torch.isnan(found[:3]).all()
    assert found[3].item() == pytest.approx(expected[3].item(), rel=1e-5)
    # The gradient to either side is NaN there too, whichever of them it is that is none.
    for direction in DIRECTIONS:
        sides = [x.clone().requires_grad_() for x in (student, teacher)]
        kl_loss(student=sides[0], teacher=sides[1], reduction="none", **_options(direction)).sum().backward()
        assert all(torch.isnan(x.grad[:3]).all() and torch.isfinite(x.grad[3]).all() for x in sides)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_an_infinite_divergence_has_no_derivative_to_its_first_argument(direction):
    """As in array operations; that to the second remains."""
    found = []
    for impl in ("triton", "array"):
        student, teacher = _logits(2, 40, 0.5, torch.float32)
        (student if direction == "forward" else teacher)[0, 3] = -math.inf
        sides = [x.requires_grad_() for x in (student, teacher)]
        kl_loss(student=student, teacher=teacher, direction=direction, reduction="none", impl=impl).sum().backward()
        found.append([x.grad for x in (sides if direction == "forward" else sides[::-1])])
    for one, right in zip(*found):
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert torch.isnan(found[0][1][0]).all()


def test_strides_shapes_and_shifts():
    student, teacher = _logits(8, 96, 0.5, torch.float32)
    expected = _reference(student, teacher, "forward").float()
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
    torch.testing.assert_close(found.double(), _reference(shifted, teacher, "forward"), rtol=1e-5, atol=0)
    assert kl_loss(student=student[0], teacher=teacher[0], impl="triton").item() == pytest.approx(expected[0].item(), rel=1e-5)
    assert kl_loss(student=student[:0], teacher=teacher[:0], impl="array", reduction="sum") == 0


def test_second_derivatives():
    student, teacher = _logits(2, 40, 0.5, torch.float32)
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
    student, teacher = _logits(3, 200, 1e-4, torch.float32)
    exact = [x.double().requires_grad_() for x in (teacher, student)]
    truth = _reference(exact[1], exact[0], "forward", 1.5)
    truth.sum().backward()
    sides = [x.requires_grad_() for x in (teacher, student)]
    if INTERPRETED:  # tensors on the CPU have a kernel of their own
        spec_value = rows_triton.kl(sides[0].detach(), sides[1].detach(), torch.full((1, 1), 1 / 1.5))[:, 0]
    else:
        spec_value = kb.kl(*sides, form="logits", temperature=1.5)
        spec_value.sum().backward()
        _close(sides[1].grad, exact[1].grad, torch.float32)
        _close(sides[0].grad, exact[0].grad, torch.float32)
    assert calls
    # KL near 1e-9, of which float64 by definition keeps 7 digits.
    torch.testing.assert_close(spec_value.double().detach(), truth.detach(), rtol=5e-6, atol=0)


def test_only_on_a_gpu_no_synchronisation_compile_and_graphs():
    student, teacher = _logits(64, 1000, 0.5, torch.bfloat16)
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

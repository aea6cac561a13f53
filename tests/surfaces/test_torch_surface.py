"""kullback.torch: drop-ins for F.kl_div and nn.KLDivLoss, the unsurprising KLLoss, and what patching reaches."""

from __future__ import annotations

import inspect
import math
import pickle
import warnings

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import sample_inputs_kl_div

import kullback as kb
import kullback.torch as kt

ORIGINAL = F.kl_div
pytestmark = pytest.mark.filterwarnings("ignore:reduction")


def exact(x, t, log_target=False):
    """Σ t (log t - x) in 50 digits, of the numbers as they are stored."""
    with mpmath.workdps(50):
        total = mpmath.mpf(0)
        for a, b in zip(x.double().flatten().tolist(), t.double().flatten().tolist()):
            if log_target:
                total += mpmath.exp(b) * (mpmath.mpf(b) - mpmath.mpf(a)) if b > -math.inf else 0
            elif b > 0:
                total += mpmath.mpf(b) * (mpmath.log(b) - mpmath.mpf(a))
        return total


def close_to_torch(ours, theirs):
    # Where torch is well conditioned: its own rounding, a few units in the last place of the largest term.
    torch.testing.assert_close(ours, theirs)


# --- the drop-in --------------------------------------------------------------------------------------------------------------------


def _samples(dtype, requires_grad=False):
    return list(sample_inputs_kl_div(None, "cpu", dtype, requires_grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_sample_of_torch_itself(dtype):
    samples = _samples(dtype)
    assert len(samples) > 10
    for sample in samples:
        args = (sample.input, *sample.args)
        ours, theirs = kt.kl_div(*args, **sample.kwargs), F.kl_div(*args, **sample.kwargs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if sample.kwargs.get("reduction") == "batchmean" and sample.input.dim() and sample.input.shape[0] != _batch(args):
            theirs = theirs * (sample.input.shape[0] / _batch(args))
        if dtype in (torch.bfloat16, torch.float16):
            # torch rounds every step to three or four digits; float64 of the same numbers, rounded once, is what we return.
            theirs = ORIGINAL(*(x.double() for x in args), **sample.kwargs).to(dtype)
            assert torch.equal(ours, theirs)
        else:
            close_to_torch(ours, theirs)


def _batch(args):
    return torch.broadcast_shapes(args[0].shape, args[1].shape)[0]


def test_gradcheck_and_gradgradcheck_on_every_sample():
    for sample in _samples(torch.float64, requires_grad=True):

        def function(x, t, kwargs=sample.kwargs):
            return kt.kl_div(x, t, **kwargs)

        x, t = sample.input.detach().requires_grad_(), sample.args[0].detach().requires_grad_()
        if t.numel() and not sample.kwargs.get("log_target"):
            assert t.min() > 0
        assert torch.autograd.gradcheck(function, (x, t), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, (x, t))


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_signature_and_legacy_arguments(reduction, log_target):
    ours, theirs = ([(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()] for f in (kt.kl_div, ORIGINAL))
    assert ours == theirs
    assert inspect.signature(torch.nn.KLDivLoss) == inspect.signature(kt.KLDivLoss)
    x, t = torch.randn(3, 4).log_softmax(-1), torch.randn(3, 4).softmax(-1)
    t = t.log() if log_target else t
    loss = kt.KLDivLoss(reduction=reduction, log_target=log_target)
    close_to_torch(loss(x, t), torch.nn.KLDivLoss(reduction=reduction, log_target=log_target)(x, t))
    assert isinstance(loss, torch.nn.KLDivLoss)
    assert repr(loss) == "KLDivLoss()"
    for legacy in ({"size_average": False}, {"size_average": True}, {"reduce": False}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            close_to_torch(kt.kl_div(x, t, log_target=log_target, **legacy), ORIGINAL(x, t, log_target=log_target, **legacy))


def test_warns_as_torch_does():
    x, t = torch.randn(2, 3).log_softmax(-1), torch.randn(2, 3).softmax(-1)
    with pytest.warns(UserWarning, match="batchmean") as seen:
        kt.kl_div(x, t)
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match="deprecated"):
        kt.kl_div(x, t, size_average=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kt.kl_div(x, t, reduction="batchmean")
        kt.kl_div(x, t, reduction="sum")


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_sums_lose_no_digits(kind, log_target):
    # P within 1e-4 of Q: the terms are 1e4 times their sum, and torch keeps three or four digits.
    g = torch.Generator().manual_seed(1)
    a = torch.randn(20, 500, generator=g)
    x = (a + 1e-3 * torch.randn(20, 500, generator=g)).log_softmax(-1)
    t = a.log_softmax(-1) if log_target else a.softmax(-1)
    function = kt.kl_div if kind == "eager" else torch.compile(kt.kl_div, fullgraph=True)
    with mpmath.workdps(50):
        truth = exact(x, t, log_target)
        error = abs(mpmath.mpf(function(x, t, reduction="sum", log_target=log_target).item()) / truth - 1)
        theirs = abs(mpmath.mpf(ORIGINAL(x, t, reduction="sum", log_target=log_target).item()) / truth - 1)
    assert error < 1e-7  # rounded once to float32
    assert theirs > (2e-7 if log_target else 1e-5)  # with the logarithms given, less is lost


def test_large_arrays_agree_with_float64_by_hand():
    # Past the size of one tile, on several threads, in every layout.
    g = torch.Generator().manual_seed(2)
    x, t = torch.randn(7, 60_001, generator=g).log_softmax(-1), torch.randn(7, 60_001, generator=g).softmax(-1)
    t[:, ::17] = 0
    x[:, ::34] = -math.inf
    # numpy, element by element
    by_hand = np.zeros(x.shape)
    there = t.numpy() > 0
    by_hand[there] = t.numpy()[there].astype(float) * (np.log(t.numpy()[there].astype(float)) - x.numpy()[there].astype(float))
    for a, b, expected in (
        (x, t, by_hand),
        (x.T, t.T, by_hand.T),
        (x[:, ::2], t[:, ::2], by_hand[:, ::2]),
        (x.reshape(7, 1, -1), t.reshape(7, 1, -1), by_hand.reshape(7, 1, -1)),
    ):
        np.testing.assert_allclose(kt.kl_div(a, b, reduction="none").numpy(), expected.astype(np.float32), rtol=1e-7)
        assert kt.kl_div(a, b, reduction="sum").item() == pytest.approx(math.fsum(expected.ravel()), rel=1e-7)
    broadcast = kt.kl_div(x[0].clamp_min(-50), t, reduction="none")
    np.testing.assert_allclose(broadcast.numpy()[0], kt.kl_div(x[0].clamp_min(-50), t[0], reduction="none").numpy(), rtol=1e-7)


@pytest.mark.parametrize("log_target", [False, True])
def test_zeros_of_the_target(log_target):
    absent = -math.inf if log_target else 0.0
    x = torch.tensor([[-1.0, -math.inf, -2.0]], requires_grad=True)
    t = torch.tensor([[0.0 if log_target else 1.0, absent, absent]], requires_grad=True)
    value = kt.kl_div(x, t, reduction="none", log_target=log_target)
    assert value.tolist() == [[1.0, 0.0, 0.0]]
    gx, gt = torch.autograd.grad(value.sum(), (x, t), create_graph=True)
    assert gx.tolist() == [[-1.0, 0.0, 0.0]]
    assert gt.tolist() == [[2.0, 0.0, 0.0]]
    second = torch.autograd.grad(gt.sum() + gx.sum(), (x, t))
    assert all(g.isfinite().all() for g in second)
    # torch's own
    theirs = ORIGINAL(x, t, reduction="none", log_target=log_target)
    assert theirs.isnan().any()


def test_nan_infinite_and_negative():
    nan, inf = math.nan, math.inf
    x = torch.tensor([nan, -1.0, -inf, -1.0])
    t = torch.tensor([0.0, nan, 0.5, -0.5])
    value = kt.kl_div(x, t, reduction="none")
    assert value[:2].isnan().all()
    assert value[2] == inf
    assert value[3].isnan()
    torch.testing.assert_close(value, ORIGINAL(x, t, reduction="none"), equal_nan=True)


def test_batchmean_divides_by_the_broadcast_batch():
    x, t = torch.randn(1, 4).log_softmax(-1), torch.randn(5, 4).softmax(-1)
    full = kt.kl_div(x.expand(5, 4), t, reduction="batchmean")
    torch.testing.assert_close(kt.kl_div(x, t, reduction="batchmean"), full)
    torch.testing.assert_close(kt.kl_div(x[0], t, reduction="batchmean"), full)
    torch.testing.assert_close(full, ORIGINAL(x.expand(5, 4), t, reduction="batchmean"))


def test_bad_input_raises_what_torch_raises():
    x, t = torch.randn(3, 4), torch.rand(3, 4)
    cases = [
        (lambda f: f(x, torch.rand(3, 5), reduction="sum"), r"shape \(3, 4\) and target \(3, 5\)"),
        (lambda f: f(x, t, reduction="average"), "'batchmean'"),
        (lambda f: f(x, t, reduction=None), "None"),
        (lambda f: f(x, t.long(), reduction="sum"), r"target has dtype torch.int64.*target\.float\(\)"),
        (lambda f: f(x.to(torch.complex64), t, reduction="sum"), r"input has dtype torch.complex64.*input\.real"),
        (lambda f: f(x.tolist(), t, reduction="sum"), "input must be a Tensor, not list"),
        (lambda f: f(x, None, reduction="sum"), "target must be a Tensor, not NoneType"),
        (lambda f: f(x.to("meta"), t, reduction="sum"), "input is on meta and target on cpu"),
    ]
    for call, message in cases:
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            call(ORIGINAL)
        with pytest.raises(type(theirs.value), match=message):
            call(kt.kl_div)


def test_result_dtype_is_that_of_torch():
    kinds = [torch.tensor(-1.0, dtype=d) for d in (torch.float32, torch.float64, torch.bfloat16)]
    kinds += [x.expand(2, 3) for x in kinds]
    for x in kinds:
        for t in kinds:
            assert kt.kl_div(x, t.abs(), reduction="sum").dtype == torch.result_type(x, t)


def test_empty_and_scalar():
    for reduction in ("none", "sum", "mean", "batchmean"):
        for x, t in (
            (torch.zeros(0, 3), torch.zeros(0, 3)),
            (torch.zeros(3, 0), torch.zeros(3, 0)),
            (torch.tensor(-1.0), torch.tensor(0.5)),
        ):
            ours, theirs = kt.kl_div(x, t, reduction=reduction), ORIGINAL(x, t, reduction=reduction)
            torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_transforms():
    x, t = torch.randn(3, 4, dtype=torch.float64).log_softmax(-1), torch.randn(3, 4, dtype=torch.float64).softmax(-1)

    def loss(x, t):
        return kt.kl_div(x, t, reduction="batchmean")

    torch.testing.assert_close(
        torch.func.grad(loss, (0, 1))(x, t), torch.func.grad(lambda x, t: ORIGINAL(x, t, reduction="batchmean"), (0, 1))(x, t)
    )
    per_row = torch.func.vmap(lambda x, t: kt.kl_div(x, t, reduction="sum"))(x, t)
    torch.testing.assert_close(per_row, ORIGINAL(x, t, reduction="none").sum(-1))
    hessian = torch.func.hessian(lambda t: kt.kl_div(x[0], t, reduction="sum"))(t[0])
    torch.testing.assert_close(hessian, torch.diag(1 / t[0]))
    _, change = torch.func.jvp(loss, (x, t), (torch.ones_like(x), torch.zeros_like(t)))
    torch.testing.assert_close(change, -t.sum() / 3)


def test_compiled_and_exported():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = kt.KLDivLoss(reduction="batchmean")

        def forward(self, x, t):
            return self.loss(x.log_softmax(-1), t)

    x, t = torch.randn(3, 4), torch.randn(3, 4).softmax(-1)
    expected = ORIGINAL(x.log_softmax(-1), t, reduction="batchmean")
    compiled = torch.compile(Model(), fullgraph=True)
    close_to_torch(compiled(x, t), expected)
    close_to_torch(torch.export.export(Model(), (x, t)).module()(x, t), expected)
    # A small and a large call of one compiled function.
    x = torch.randn(8, 50_000, requires_grad=True)
    t = torch.randn(8, 50_000).softmax(-1)
    compiled(x, t).backward()
    torch.testing.assert_close(x.grad, (x.detach().softmax(-1) - t) / 8)


def test_a_tensor_subclass_may_take_over():
    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return "taken" if func is kt.kl_div else super().__torch_function__(func, types, args, kwargs or {})

    x, t = torch.randn(2, 3).as_subclass(Tagged), torch.rand(2, 3)
    assert kt.kl_div(x, t, reduction="sum") == "taken"


def test_autocast_returns_float32():
    x, t = torch.randn(2, 3).log_softmax(-1).bfloat16(), torch.randn(2, 3).softmax(-1).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert kt.kl_div(x, t, reduction="sum").dtype == ORIGINAL(x, t, reduction="sum").dtype == torch.float32
    assert kt.kl_div(x, t, reduction="sum").dtype == torch.bfloat16


# --- KLLoss -------------------------------------------------------------------------------------------------------------------------


def _textbook(p, q):
    return (p * (p.log() - q.log())).sum(-1)


def test_kl_loss_direction_forms_and_reduction():
    g = torch.Generator().manual_seed(3)
    teacher, student = (torch.randn(4, 5, 6, generator=g, dtype=torch.float64) for _ in range(2))
    p, q = teacher.softmax(-1), student.softmax(-1)
    torch.testing.assert_close(kt.KLLoss()(student=student, teacher=teacher), _textbook(p, q).mean())
    torch.testing.assert_close(kt.KLLoss(direction="reverse")(student=student, teacher=teacher), _textbook(q, p).mean())
    torch.testing.assert_close(kt.KLLoss(form=("logits", "probs"))(student=student, teacher=p), _textbook(p, q).mean())
    torch.testing.assert_close(kt.KLLoss(form=("logits", "probs"), direction="reverse")(student=student, teacher=p), _textbook(q, p).mean())
    torch.testing.assert_close(kt.KLLoss(reduction="none", form="probs")(student=q, teacher=p), _textbook(p, q))
    torch.testing.assert_close(
        kt.KLLoss(reduction="batchmean", form="log_probs")(student=q.log(), teacher=p.log()), _textbook(p, q).sum() / 4
    )
    soft_p, soft_q = (teacher / 3).softmax(-1), (student / 3).softmax(-1)
    torch.testing.assert_close(
        kt.KLLoss(temperature=3.0, scale_t2=True)(student=student, teacher=teacher), 9 * _textbook(soft_p, soft_q).mean()
    )
    mask = torch.tensor([1, 1, 0, 1, 0])
    torch.testing.assert_close(kt.KLLoss()(student=student, teacher=teacher, weights=mask), _textbook(p, q)[:, mask.bool()].mean())


def test_kl_loss_as_a_module():
    loss = kt.KLLoss(temperature=2.0)
    assert "temperature=2.0" in repr(loss)
    assert pickle.loads(pickle.dumps(loss)).temperature == 2.0
    student, teacher = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    loss(student=student, teacher=teacher).backward()
    torch.testing.assert_close(student.grad, ((student.detach() / 2).softmax(-1) - (teacher / 2).softmax(-1)) / 2 / 4)
    with pytest.raises(TypeError):
        loss(student, teacher)
    with pytest.raises(ValueError, match="direction is 'up'"):
        kt.KLLoss(direction="up")
    with pytest.raises(ValueError, match="reduction is 'average'"):
        kt.KLLoss(reduction="average")
    with pytest.raises(ValueError, match="form"):
        kt.KLLoss(form="scores")
    with pytest.raises(ValueError, match="one temperature"):
        kt.KLLoss(temperature=torch.tensor([1.0, 2.0]), scale_t2=True)
    compiled = torch.compile(loss, fullgraph=True)
    torch.testing.assert_close(compiled(student=student, teacher=teacher), loss(student=student, teacher=teacher))


# --- patching (its promises are in test_patching.py) --------------------------------------------------------------------------------


def _gradient_at_zero():
    t = torch.tensor([[1.0, 0.0]], requires_grad=True)
    existing(torch.tensor([[-1.0, -1.0]]), t).backward()
    return t.grad[0, 1].item()


existing = torch.nn.KLDivLoss(reduction="batchmean")


def test_patched_reaches_functions_and_existing_modules():
    assert math.isnan(_gradient_at_zero()) or math.isinf(_gradient_at_zero())
    with kt.patched():
        assert F.kl_div is kt.kl_div
        assert _gradient_at_zero() == 0.0
    assert F.kl_div is ORIGINAL


def test_lazily_cloned_tensors_are_only_read():
    """Regression: both were copied, which `torch.nn.functional.kl_div` does not do either. Handing memory to NumPy counts as writing."""
    p, log_q = torch.tensor([[0.5, 0.25, 0.25]]).expand(100, 3).clone(), torch.full((100, 3), 1 / 3).log()
    calls = {
        "theirs": lambda p, log_q: F.kl_div(log_q, p, reduction="sum"),
        "kl_div": lambda p, log_q: kt.kl_div(log_q, p, reduction="sum"),
        "kl_div of elements": lambda p, log_q: kt.kl_div(log_q, p, reduction="none").sum(),
        "kl": lambda p, log_q: kb.kl(p, log_q, form=("probs", "log_probs"), reduction="sum"),
        "weights": lambda p, log_q: kb.kl(p, log_q, form=("probs", "log_probs"), weights=2 * p[:, 0], reduction="sum"),
        "of one form": lambda p, log_q: kb.kl(p, log_q.exp(), reduction="sum"),
        "one row": lambda p, log_q: 100 * kb.kl(p[0], log_q.exp()[0]),
    }
    expected = 100 * (math.log(3) - 1.5 * math.log(2))
    for name, call in calls.items():
        lazy = [torch._lazy_clone(x) for x in (p, log_q)]
        assert call(*lazy).item() == pytest.approx(expected, rel=1e-6), name  # float32
        assert all(map(torch._C._is_cow_tensor, lazy)), name
    with pytest.raises(ValueError, match="row 0 sums to 2"):
        kb.kl(lazy[0] * 2, lazy[0])
    assert torch._C._is_cow_tensor(lazy[0])

"""`kl_loss(inplace=True)` and `kullback.torch.KLLoss` in the Triton kernels, against float64: on a GPU, or interpreted."""

from __future__ import annotations

import math
import os

import pytest
import torch

import kullback.torch
from kullback.losses import kl_loss

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def _logits(dtype=torch.float32, rows=4, columns=200):
    generator = torch.Generator().manual_seed(2)
    teacher = (2 * torch.randn(rows, columns, generator=generator)).to(dtype)
    student = (teacher + 0.5 * torch.randn(rows, columns, generator=generator)).to(dtype)
    return student.to(DEVICE), teacher.to(DEVICE)


def _truth(student, teacher, direction="forward", weights=None):
    """The mean by definition, in float64, and its gradient to the student."""
    exact = student.double().clone().requires_grad_()
    log_s, log_t = torch.log_softmax(exact, -1), torch.log_softmax(teacher.double(), -1)
    log_m = torch.logaddexp(log_s, log_t) - math.log(2)
    kl = lambda a, b: (a.exp() * (a - b)).sum(-1)  # noqa: E731
    each = {
        "forward": lambda: kl(log_t, log_s),
        "reverse": lambda: kl(log_s, log_t),
        "js": lambda: (kl(log_t, log_m) + kl(log_s, log_m)) / 2,
    }[direction]()
    weights = torch.ones_like(each) if weights is None else weights.double()
    value = (each * weights).sum() / weights.sum()
    value.backward()
    return value.detach(), exact.grad


@pytest.mark.parametrize(("direction", "dtype"), [("forward", torch.float32), ("reverse", torch.float32), ("js", torch.bfloat16)], ids=str)
def test_in_place(direction, dtype):
    weight = torch.eye(200, device=DEVICE, dtype=dtype).requires_grad_()
    start, teacher = _logits(dtype)
    student = start @ weight  # no leaf: the logits of a model, whose multiplication has not saved them
    rows = torch.tensor([1.0, 0.0, 2.0, 1.0], device=DEVICE)
    expected, slope = _truth(student.detach(), teacher, direction, rows)
    loss = kl_loss(student=student, teacher=teacher, direction=direction, weights=rows, inplace=True)
    torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(student.detach().double(), (start @ weight).detach().double())  # not yet
    (5 * loss).backward()
    # They hold the gradient now, rounded to their dtype.
    bound = 1e-5 if dtype == torch.float32 else 2 * 2.0**-8
    assert (student.detach().double() - 5 * slope).norm() <= bound * (5 * slope).norm()
    torch.testing.assert_close(weight.grad, start.t() @ student.detach())


def test_in_place_takes_no_memory_for_the_gradient(monkeypatch):
    student, teacher = _logits()
    student.requires_grad_()
    (slope,) = torch.autograd.grad(kl_loss(student=student, teacher=teacher, inplace=True), student)
    assert slope.data_ptr() == student.data_ptr()


def test_what_needs_the_logits_again_raises():
    overwritten = "modified by an inplace operation"
    student, teacher = (x.requires_grad_(i == 0) for i, x in enumerate(_logits()))
    logits = student * 1.0
    loss = kl_loss(student=logits, teacher=teacher, inplace=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=overwritten):
        loss.backward()
    logits = student * 1.0
    both = kl_loss(student=logits, teacher=teacher, inplace=True) + kl_loss(student=logits, teacher=teacher, direction="js", inplace=True)
    with pytest.raises(RuntimeError, match=overwritten):
        both.backward()
    logits = student * 1.0
    with pytest.raises(RuntimeError, match=overwritten):  # the square saves its argument
        ((logits**2).sum() * 0.0 + kl_loss(student=logits, teacher=teacher, inplace=True)).backward()
    logits = student * 1.0
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(kl_loss(student=logits, teacher=teacher, inplace=True), logits, create_graph=True)
    # One that has saved what it made of them does not: both gradients arrive.
    student.grad = None
    logits = student * 1.0
    (torch.log_softmax(logits, -1)[:, 0].sum() + kl_loss(student=logits, teacher=teacher, inplace=True)).backward()
    p = torch.softmax(student.detach().double(), -1)
    other = torch.zeros_like(p)
    other[:, 0] = 1.0
    torch.testing.assert_close(student.grad.double(), other - p + _truth(student.detach(), teacher)[1], rtol=1e-4, atol=1e-6)


def test_where_it_cannot_be():
    student, teacher = _logits()
    for options, words in (
        ({"softcap": 5.0}, "nothing to overwrite"),
        ({"valid": 100}, "whole rows"),
        ({"impl": "array"}, "impl is array"),
    ):
        with pytest.raises(RuntimeError, match=words):
            kl_loss(student=student, teacher=teacher, inplace=True, **options)
    with pytest.raises(RuntimeError, match="side by side"):
        kl_loss(student=student.t(), teacher=teacher.t(), inplace=True)
    with pytest.raises(RuntimeError, match="share memory"):
        kl_loss(student=student, teacher=student, inplace=True)
    with pytest.raises(RuntimeError, match="needs CUDA tensors"):
        kl_loss(student=student.double(), teacher=teacher.double(), inplace=True)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_module_uses_the_kernels(direction, monkeypatch):
    from kullback._kernels import rows_triton

    seen = []
    for name in ("values", "differentiate"):
        original = getattr(rows_triton, name)
        monkeypatch.setattr(rows_triton, name, lambda *a, name=name, original=original, **k: seen.append(name) or original(*a, **k))
    student, teacher = _logits()
    expected, slope = _truth(student, teacher, direction)
    student.requires_grad_()
    value = kullback.torch.KLLoss(direction=direction, base=2)(student=student, teacher=teacher)
    value.backward()
    torch.testing.assert_close(value.detach().double(), expected / math.log(2), rtol=1e-5, atol=0)
    assert (student.grad.double() - slope / math.log(2)).norm() <= 1e-5 * slope.norm()
    assert seen == ["differentiate"]  # value and gradient at once


@pytest.mark.parametrize("direction", ["forward", "reverse", "js"])
def test_valid(direction):
    """Columns from there on count for nothing, whatever they hold; the gradient is 0 there. Also where one side is padded more."""
    student, teacher = _logits()
    expected, slope = _truth(student[:, :150], teacher[:, :150], direction)
    student[:, 150:], teacher[:, 160:] = math.nan, 1e30
    student.requires_grad_()
    for shape in ((4, 200), (2, 2, 200)):
        for end in (200, 180):
            student.grad = None
            loss = kl_loss(
                student=student.reshape(shape), teacher=teacher.reshape(shape)[..., :end], direction=direction, valid=150, impl="triton"
            )
            torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-5, atol=0)
            (2 * loss).backward()
            assert (student.grad[:, 150:] == 0).all()
            assert (student.grad[:, :150].double() - 2 * slope).norm() <= 1e-5 * (2 * slope).norm()


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")
def test_padding_inside_a_cuda_graph():
    # A regression: the search for logits beside the padding waited for the GPU, which aborts a capture.
    student, teacher = _logits()
    padded = torch.cat([teacher, torch.full_like(teacher[:, :8], -math.inf)], 1)
    expected = kl_loss(student=student, teacher=padded)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = kl_loss(student=student, teacher=padded)
    graph.replay()
    torch.testing.assert_close(loss, expected)
    padded[0, -1] = 0.0  # no padding any more
    graph.replay()
    assert loss.isnan()

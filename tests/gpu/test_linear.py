"""`losses.linear_kl` in Triton, against float64: on a GPU, or with TRITON_INTERPRET=1 on none.

python -m pytest tests/gpu
"""

from __future__ import annotations

import math

import pytest
import torch
from by_definition import DEVICE, DIRECTIONS, INTERPRETED, MIX, reference

from kullback._kernels import linear_torch
from kullback.losses import linear_kl

TOKENS, WIDTH, TEACHER_WIDTH, VOCABULARY = 4, 16, 24, 130
WEIGHTS = [1.0, 0.0, 2.0, 0.5]


def _reference(student, teacher, direction, softcap=None):
    if softcap is not None:
        student, teacher = (softcap * torch.tanh(x / softcap) for x in (student, teacher))
    return reference(student, teacher, direction)


def _inputs(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def make(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)

    student = [make(TOKENS, WIDTH), make(VOCABULARY, WIDTH) / 4, make(VOCABULARY)]
    teacher = [make(TOKENS, TEACHER_WIDTH), make(VOCABULARY, TEACHER_WIDTH) / 4, make(VOCABULARY)]
    return student, teacher


def _distance(found, truth):
    return ((found.double() - truth).norm() / truth.norm()).item()


def _run(direction, softcap, from_hidden, again):
    student, teacher = _inputs(torch.float32)
    exact = [x.double().requires_grad_() for x in student]
    t = teacher[0].double() @ teacher[1].double().T + teacher[2].double()
    weights = torch.tensor(WEIGHTS, device=DEVICE)
    each = _reference(0.5 * (exact[0] @ exact[1].T + exact[2]), 0.5 * t, direction, softcap)
    truth = (each * weights).sum() / weights.sum()
    wanted = torch.autograd.grad(truth, exact)
    student[0][1] = math.nan  # weight 0: may hold anything
    learnt = [x.requires_grad_() for x in student]
    mix = {} if direction in ("forward", "reverse") else {"mix": MIX}
    source = dict(zip(("teacher_hidden", "teacher_weight", "teacher_bias"), teacher)) if from_hidden else {"teacher_logits": t.float()}
    found = linear_kl(
        hidden=learnt[0], weight=learnt[1], bias=learnt[2], direction=direction, weights=weights, softcap=softcap, logit_scale=0.5,
        impl="triton", **source, **mix,
    )  # fmt: skip
    # float32 matmuls over 24 products, and the kernels' own 1e-5.
    assert found.item() == pytest.approx(truth.item(), rel=2e-5)
    for factor in (2.0, 3.0) if again else (1.0,):
        gradients = torch.autograd.grad(found, learnt, factor * torch.ones_like(found), retain_graph=True)
        for one, right in zip(gradients, wanted):
            assert _distance(one, factor * right) < 2e-5


@pytest.mark.parametrize(("direction", "softcap"), [*((d, None) for d in DIRECTIONS), ("forward", 2.0), ("reverse_skew", 2.0)])
def test_values_and_gradients(direction, softcap):
    # The first direction has a kernel of its own, and so has a softcap on logits that are not ours to overwrite.
    for from_hidden in (True, False) if direction == "forward" else (True,):
        _run(direction, softcap, from_hidden, again=False)


@pytest.mark.parametrize("plan", [linear_torch.Plan(2, 2, True), linear_torch.Plan(1, 3, False)], ids=["chunks", "blocks"])
def test_chunks_and_graphs_used_twice(monkeypatch, plan):
    monkeypatch.setattr(linear_torch, "plan", lambda *args, **options: plan)
    _run("forward", None, from_hidden=False, again=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("accumulate", ["float32", "weight"])
def test_half_precision_is_no_worse_than_pytorch(monkeypatch, dtype, accumulate):
    monkeypatch.setattr(linear_torch, "plan", lambda *args, float32, **options: linear_torch.Plan(2, 2, float32))
    student, teacher = _inputs(dtype)
    t = (teacher[0] @ teacher[1].T).detach()
    exact = [x.double().requires_grad_() for x in student[:2]]
    wanted = torch.autograd.grad(_reference(exact[0] @ exact[1].T, t.double(), "forward").mean(), exact)
    eager = [x.clone().requires_grad_() for x in student[:2]]
    usual = torch.nn.functional.kl_div(
        (eager[0] @ eager[1].T).float().log_softmax(-1), t.float().log_softmax(-1), log_target=True, reduction="batchmean"
    )
    theirs = torch.autograd.grad(usual, eager)
    learnt = [x.requires_grad_() for x in student[:2]]
    ours = torch.autograd.grad(
        linear_kl(hidden=learnt[0], weight=learnt[1], teacher_logits=t, accumulate=accumulate, impl="triton"), learnt
    )
    better = torch.autograd.grad(
        linear_kl(hidden=learnt[0], weight=learnt[1], teacher_logits=t, logit_dtype="float32", softcap=1e6, impl="triton"), learnt
    )
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    for one, two, other, right in zip(ours, better, theirs, wanted):
        # Derivatives are rounded to 16 bits, once more behind the softcap, and the result. The interpreter cuts: a whole spacing, twice.
        assert _distance(two, right) <= (4 if INTERPRETED else 1) * rounding
        # Theirs and ours are two draws from the same distribution, hence 1.2; the interpreter cuts digits off where a GPU rounds, twice as
        # much; added up in 16 bits, blocks round once each.
        allowed = (2.4 if INTERPRETED else 1.2) * _distance(other, right) + (3 * rounding if accumulate == "weight" else 0)
        assert _distance(one, right) <= allowed


@pytest.mark.skipif(INTERPRETED, reason="whole matmuls of a GPU's library")
def test_only_on_a_gpu_an_odd_vocabulary_is_no_worse_than_pytorch():
    """Its matmuls are cut into what is aligned and the rest, which rounds once more."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 64, generator=generator).bfloat16().to(DEVICE) for n in (300, 5003))
    weight /= 4
    teacher = torch.randn(300, 5003, generator=generator).bfloat16().to(DEVICE)
    found = []
    for dtype, loss in (
        (torch.float64, lambda h, w: _reference(h @ w.T, teacher.double(), "forward").mean()),
        (torch.bfloat16, lambda h, w: _reference(h @ w.T, teacher, "forward").mean()),
        (torch.bfloat16, lambda h, w: linear_kl(hidden=h, weight=w, teacher_logits=teacher, impl="triton")),
    ):
        inputs = [x.to(dtype, copy=True).requires_grad_() for x in (hidden, weight)]
        found.append(torch.autograd.grad(loss(*inputs), inputs))
    for right, theirs, ours in zip(*found):
        # Nearly all of either comes from logits rounded to bfloat16, the same on both sides: over so many numbers, not a tenth more.
        assert _distance(ours, right) <= 1.1 * _distance(theirs, right)


def test_float16_gradients_of_a_mean_do_not_vanish():
    """The mean's factor, 1/70000, times a derivative of 1e-4 is below the smallest number of float16."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 8, generator=generator).half().to(DEVICE) for n in (3, 140))
    teacher = torch.randn(3, 140, generator=generator).half().to(DEVICE)
    exact = weight.double().requires_grad_()
    weights = torch.full((3,), 1 / 70000, device=DEVICE)
    scale = 65536.0
    (wanted,) = torch.autograd.grad(scale / 70000 * _reference(hidden.double() @ exact.T, teacher.double(), "forward").sum(), exact)
    weight.requires_grad_()
    loss = linear_kl(hidden=hidden, weight=weight, teacher_logits=teacher, weights=weights, reduction="sum", impl="triton")
    (found,) = torch.autograd.grad(scale * loss, weight)
    assert _distance(found, wanted) < 4 * 2.0**-11  # logits, derivatives, product, and the scale: four roundings


def test_no_reduction_padding_and_masks():
    student, _ = _inputs(torch.float32)
    teacher = torch.randn(TOKENS, VOCABULARY + 10, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    teacher[:, VOCABULARY:] = -math.inf
    temperature = torch.linspace(0.5, 2, TOKENS).to(DEVICE)
    upstream = torch.linspace(-1, 1, TOKENS).to(DEVICE)
    exact = [x.double().requires_grad_() for x in student[:2]]
    truth = _reference((exact[0] @ exact[1].T) / temperature[:, None], teacher[:, :VOCABULARY].double() / temperature[:, None], "forward")
    wanted = torch.autograd.grad(truth, exact, upstream.double())
    learnt = [x.requires_grad_() for x in student[:2]]
    found = linear_kl(
        hidden=learnt[0].reshape(1, TOKENS, WIDTH), weight=learnt[1], teacher_logits=teacher[None], temperature=temperature,
        reduction="none", impl="triton",
    )  # fmt: skip
    assert found.shape == (1, TOKENS)
    torch.testing.assert_close(found[0].double(), truth, rtol=2e-5, atol=0)
    for one, right in zip(torch.autograd.grad(found, learnt, upstream[None]), wanted):
        assert _distance(one, right) < 2e-5
    wanted = torch.autograd.grad(_reference(exact[0] @ exact[1].T, teacher[:, :VOCABULARY].double(), "forward").sum(), exact)
    total = linear_kl(hidden=learnt[0], weight=learnt[1], teacher_logits=teacher, reduction="none", impl="triton").sum()
    for one, right in zip(torch.autograd.grad(total, learnt), wanted):
        assert _distance(one, right) < 2e-5
    nothing = linear_kl(
        hidden=learnt[0], weight=learnt[1], teacher_logits=teacher, weights=torch.zeros(TOKENS, device=DEVICE), impl="triton"
    )
    assert nothing == 0
    assert all((g == 0).all() for g in torch.autograd.grad(nothing, learnt))


def test_without_gradients_none_is_computed(monkeypatch):
    monkeypatch.setattr(linear_torch.Loss, "apply", None)
    student, _ = _inputs(torch.float32)
    teacher = torch.zeros(TOKENS, VOCABULARY, device=DEVICE)
    with torch.no_grad():
        value = linear_kl(hidden=student[0].requires_grad_(), weight=student[1], teacher_logits=teacher, impl="triton")
    truth = _reference(student[0].detach().double() @ student[1].double().T, teacher.double(), "forward").mean()
    assert value.item() == pytest.approx(truth.item(), rel=2e-5)


def test_only_on_a_gpu_memory_synchronisation_and_graphs():
    tokens, width, vocabulary = 4096, 512, 32000
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator).bfloat16().cuda().requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=generator) / 16).bfloat16().cuda().requires_grad_()
    teacher = torch.randn(tokens, vocabulary, device="cuda").bfloat16()

    def step():
        return torch.autograd.grad(linear_kl(hidden=hidden, weight=weight, teacher_logits=teacher), (hidden, weight))

    first = step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    gradients = hidden.numel() * 2 + weight.numel() * 2
    assert torch.cuda.max_memory_allocated() - before <= gradients + 4 * weight.numel() + (257 << 20)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(captured, first))


@pytest.mark.parametrize("direction", ["forward", "js"])
def test_gradients_over_logits_of_several_slices(direction, monkeypatch):
    """They take the logits' place, the first column included, which all slices of a row read; in several launches too."""
    from kullback._kernels import slices_triton

    monkeypatch.setattr(slices_triton, "_AT_ONCE", 1)
    columns = 1100 if INTERPRETED else 20_000  # slices are of 512 and of 8192
    generator = torch.Generator().manual_seed(0)
    hidden, weight, teacher = (torch.randn(*shape, generator=generator).to(DEVICE) for shape in ((2, 8), (columns, 8), (2, columns)))
    exact = hidden.double().requires_grad_()
    truth = _reference(exact @ weight.double().t(), teacher.double(), direction).mean()
    truth.backward()
    mix = {} if direction == "forward" else {"mix": MIX}
    found = linear_kl(hidden=hidden.requires_grad_(), weight=weight, teacher_logits=teacher, impl="triton", direction=direction, **mix)
    found.backward()
    assert found.item() == pytest.approx(truth.item(), rel=1e-5)
    assert _distance(hidden.grad, exact.grad) < (1e-5 if INTERPRETED else 2e-3)  # matmuls in TF32 or float32

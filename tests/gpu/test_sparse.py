"""Sparse teachers in Triton, in `kl_loss` and `linear_kl`, against float64: on a GPU, or with TRITON_INTERPRET=1 on none.

python -m pytest tests/gpu
"""

from __future__ import annotations

import math
import os

import pytest
import torch

from kullback._kernels import linear_torch
from kullback.losses import TopK, kl_loss, linear_kl

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
MIX = 0.3
ROWS, COLUMNS, K = 3, 200, 5
CASES = [
    *(("bucket", d) for d in ("forward", "reverse", "js", "skew", "reverse_skew")),
    ("renormalize", "reverse"), ("renormalize_teacher", "skew"), ("ignore", "forward"), ("uniform", "forward"),
]  # fmt: skip


def _reference(student, at, logs, tail, direction):
    """By definition, in float64."""
    q = student.double().softmax(-1)
    p = logs.double().exp()
    chosen = q.gather(-1, at)
    if tail == "ignore":
        return (p * (p / chosen).log()).sum(-1)
    if tail == "uniform":
        even = (1 - p.sum(-1, keepdim=True)) / (q.shape[-1] - K)
        t = even.expand(q.shape).scatter(-1, at, p)
        return (t * (t / q).log()).sum(-1)
    rest = q.scatter(-1, at, 0.0).sum(-1, keepdim=True)
    t = torch.cat([p, 1 - p.sum(-1, keepdim=True)], -1) if tail == "bucket" else p / p.sum(-1, keepdim=True)
    s = chosen / chosen.sum(-1, keepdim=True) if tail == "renormalize" else torch.cat([chosen, rest], -1)
    if t.shape[-1] < s.shape[-1]:
        t = torch.nn.functional.pad(t, (0, 1))

    def kl(p, q):
        return torch.where(p > 0, p * (torch.where(p > 0, p, 1.0) / q).log(), 0.0).sum(-1)

    if direction == "js":
        m = MIX * t + (1 - MIX) * s
        return MIX * kl(t, m) + (1 - MIX) * kl(s, m)
    first, second = (t, s) if direction in ("forward", "skew") else (s, t)
    return kl(first, MIX * first + (1 - MIX) * second if "skew" in direction else second)


def _inputs(dtype=torch.float32, columns=COLUMNS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    student = (2 * torch.randn(ROWS, columns, generator=generator)).to(dtype).to(DEVICE)
    teacher = 2 * torch.randn(ROWS, columns, generator=generator).double()
    logs, at = teacher.log_softmax(-1).topk(K)
    return student, at.to(DEVICE), logs.float().to(DEVICE)


def _options(direction):
    return {"direction": direction, "impl": "triton"} | ({} if direction in ("forward", "reverse") else {"mix": MIX})


@pytest.mark.parametrize(("tail", "direction"), CASES)
def test_values_and_gradients(tail, direction):
    student, at, logs = _inputs()
    exact = student.double().requires_grad_()
    truth = _reference(exact / 2, at, logs, tail, direction)
    upstream = torch.tensor([1.0, -2.0, 0.5], device=DEVICE)
    truth.backward(upstream.double())
    student.requires_grad_()
    top = TopK(at, logs, tail, temperature=2.0)
    found = kl_loss(student=student, teacher=top, temperature=2.0, reduction="none", **_options(direction))
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-7)  # 1e-7: "ignore" has no sign, and may be near 0
    found.backward(upstream)
    assert (student.grad - exact.grad).norm() < 1e-5 * exact.grad.norm()


@pytest.mark.parametrize("distance", [1e-2, 1e-4])
def test_small_divergences(distance):
    generator = torch.Generator().manual_seed(0)
    teacher = 2 * torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64)
    student = (teacher + distance * torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64)).float().to(DEVICE)
    logs, at = (x.to(DEVICE) for x in teacher.log_softmax(-1).topk(K))
    logs = logs.float()
    q, p = student.double().softmax(-1), logs.double().exp()
    p = torch.cat([p, 1 - p.sum(-1, keepdim=True)], -1)
    change = torch.cat([q.gather(-1, at), q.scatter(-1, at, 0.0).sum(-1, keepdim=True)], -1) / p - 1
    truth = (p * (change - torch.log1p(change))).sum(-1)  # all terms ≥ 0, in float64
    found = kl_loss(student=student, teacher=TopK(at, logs), reduction="none", impl="triton")
    assert truth.max() < distance**2
    # The rest is a float32 number, off by 2ε of itself: 2ε·√KL of the result.
    assert ((found.double() - truth).abs() <= 1e-5 * truth + 2 * 2.0**-24 * truth.sqrt()).all()


def test_a_rest_that_subtraction_cannot_find_and_rows_that_rise_late():
    student, at, logs = _inputs()
    student[0, at[0]] += 60  # the others hold 1e-26 of this row
    student[1, 180] += 200
    for row in (0, 1):
        truth = _reference(student, at, logs, "bucket", "forward")[row]
        found = kl_loss(student=student, teacher=TopK(at, logs), reduction="none", impl="triton")[row]
        assert found.item() == pytest.approx(truth.item(), rel=1e-5)


def test_a_student_that_lacks_the_k_and_the_first_tile():
    student, at, logs = _inputs(columns=2600)
    student[:, :2100] = -math.inf  # a tile is 2048 columns on a GPU, 128 here
    student[1] -= 150
    at[:2] = torch.arange(K, device=DEVICE)  # absent
    at[2] = torch.arange(2500, 2500 + K, device=DEVICE)
    truth = _reference(student, at, logs, "bucket", "js")
    found = kl_loss(student=student, teacher=TopK(at, logs), reduction="none", **_options("js"))
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=0)


def test_an_even_spread_over_what_the_student_lacks():
    student, at, logs = _inputs()
    top = TopK(at, logs, "uniform")
    with pytest.raises(RuntimeError, match="tail='uniform' has a kernel for direction='forward' only"):
        kl_loss(student=student, teacher=top, direction="reverse", impl="triton")
    assert torch.isfinite(kl_loss(student=student, teacher=top, direction="reverse"))
    expected = _reference(student, at, logs, "uniform", "forward")
    student[0, at[0, 0]] = -math.inf  # one of the k: infinite already in the bucket
    student[1, next(i for i in range(COLUMNS) if i not in at[1])] = -math.inf
    found = kl_loss(student=student, teacher=top, reduction="none", impl="triton")
    assert torch.isinf(found[:2]).all()
    assert found[2].item() == pytest.approx(expected[2].item(), rel=1e-5)
    logs[0, 0] = -math.inf  # neither has it: nothing to be infinite about
    assert torch.isfinite(kl_loss(student=student, teacher=top, reduction="none", impl="triton")[0])


def test_bfloat16_strides_masks_and_invalid_rows():
    student, at, logs = _inputs(torch.bfloat16)
    truth = _reference(student, at, logs, "bucket", "forward")
    wide = torch.stack([student, student], -1)[..., 0]
    found = kl_loss(student=wide.reshape(1, ROWS, COLUMNS), teacher=TopK(at[None], logs[None]), reduction="none", impl="triton")
    torch.testing.assert_close(found[0].double(), truth, rtol=1e-5, atol=0)
    student, at = student.clone(), at.clone()
    student[0] = math.nan
    at[0] = -100
    student.requires_grad_()
    weights = torch.tensor([0.0, 1.0, 3.0], device=DEVICE)
    value = kl_loss(student=student, teacher=TopK(at, logs), weights=weights, impl="triton")
    value.backward()
    assert value.item() == pytest.approx((truth[1] + 3 * truth[2]).item() / 4, rel=1e-5)
    assert (student.grad[0] == 0).all()
    assert torch.isfinite(student.grad).all()
    if DEVICE == "cuda":  # nobody looks there: a NaN says it
        at[1, 2] = COLUMNS
        assert torch.isnan(kl_loss(student=student, teacher=TopK(at, logs), reduction="none", impl="triton")[1])


@pytest.mark.parametrize(
    ("tail", "direction", "softcap"), [("uniform", "forward", None), ("ignore", "forward", 3.0), ("bucket", "js", None)]
)
def test_fused_with_the_projection(monkeypatch, tail, direction, softcap):
    monkeypatch.setattr(linear_torch, "plan", lambda *args, **options: linear_torch.Plan(2, 2, True))
    _, at, logs = _inputs(columns=140)
    generator = torch.Generator().manual_seed(2)
    hidden, weight = (torch.randn(n, 8, generator=generator).to(DEVICE) for n in (ROWS, 140))
    exact = [x.double().requires_grad_() for x in (hidden, weight)]
    logits = exact[0] @ exact[1].T
    truth = _reference(logits if softcap is None else softcap * torch.tanh(logits / softcap), at, logs, tail, direction).mean()
    wanted = torch.autograd.grad(truth, exact)
    learnt = [x.requires_grad_() for x in (hidden, weight)]
    found = linear_kl(hidden=learnt[0], weight=learnt[1], teacher=TopK(at, logs, tail), softcap=softcap, **_options(direction))
    assert found.item() == pytest.approx(truth.item(), rel=2e-5)
    for one, right in zip(torch.autograd.grad(found, learnt), wanted):
        assert (one - right).norm() < 2e-5 * right.norm()


@pytest.mark.parametrize("tail", ["bucket", "uniform"])
def test_second_derivatives(tail):
    student, at, logs = _inputs(columns=40)
    vector = torch.randn(ROWS, 40, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    found = []
    for x, options in ((student, {"impl": "triton"}), (student.double(), {"impl": "array"})):
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(kl_loss(student=x, teacher=TopK(at, logs, tail), **options), x, create_graph=True)
        found.append(torch.autograd.grad((g * vector).sum(), x)[0])
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()


def test_only_on_a_gpu_no_synchronisation():
    student, at, logs = _inputs(torch.bfloat16)
    student.requires_grad_()
    kl_loss(student=student, teacher=TopK(at, logs), impl="triton").backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        kl_loss(student=student, teacher=TopK(at, logs), impl="triton").backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

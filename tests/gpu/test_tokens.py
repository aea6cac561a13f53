"""`losses.token_terms` in Triton, against float64: on a GPU, or with TRITON_INTERPRET=1 on none.

python -m pytest tests/gpu
"""

from __future__ import annotations

import math
import os

import pytest
import torch

from kullback.losses import token_terms

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
ROWS, COLUMNS = 3, 200


def _reference(x, y, tokens, temperature):
    logp, logq = (z.double().div(temperature).log_softmax(-1) for z in (x, y))
    of_token, of_token_ref = (z.gather(-1, tokens[:, None])[:, 0] for z in (logp, logq))
    l = of_token_ref - of_token
    return of_token, of_token_ref, (logp.exp() * (logp - logq)).sum(-1), -l, l * l / 2, torch.expm1(l) - l


def _inputs(dtype, distance):
    generator = torch.Generator().manual_seed(0)
    x = (2 * torch.randn(ROWS, COLUMNS, generator=generator)).to(dtype)
    y = (x.double() + distance * torch.randn(ROWS, COLUMNS, generator=generator)).to(dtype)
    return x.to(DEVICE), y.to(DEVICE), torch.tensor([0, 150, 199], device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(dtype):
    x, y, tokens = _inputs(dtype, 0.5)
    exact = x.double().requires_grad_()
    truth = _reference(exact, y, tokens, 1.5)
    # Every output has an upstream gradient of its own, and every row another.
    upstream = torch.linspace(-1, 1, 5 * ROWS, dtype=torch.float64, device=DEVICE).reshape(5, ROWS)
    learnt = [truth[0], *truth[2:]]
    torch.autograd.backward(learnt, list(upstream))
    x.requires_grad_()
    found = token_terms(x, y, tokens, temperature=1.5, impl="triton")
    for one, right in zip(found, truth):
        torch.testing.assert_close(one.double(), right, rtol=1e-5, atol=1e-6)  # atol: log-ratios near 0 are differences of float32
    torch.autograd.backward([found.logp, *found[2:]], [u.float() for u in upstream])
    rounding = 2.0**-24 if dtype == torch.float32 else 2.0**-8
    assert (x.grad - exact.grad).norm() < (2 * rounding + 1e-5) * exact.grad.norm()


def test_small_ratios_keep_their_digits():
    x, y, tokens = _inputs(torch.float32, 1e-3)
    truth = _reference(x, y, tokens, 1.0)
    found = token_terms(x, y, tokens, impl="triton")
    assert truth[5].max() < 1e-5
    # log r of size 1e-3, good to 1e-7·|log of the sums| or so: 5e-4 of k3; from the difference of log-probs it would be 5e-3.
    for i in (2, 5):
        torch.testing.assert_close(found[i].double(), truth[i], rtol=5e-4, atol=0)


def test_masks_and_absent_tokens():
    x, y, tokens = _inputs(torch.float32, 0.5)
    x[2], tokens[2] = math.nan, -100
    y[1, 150] = -math.inf
    x.requires_grad_()
    terms = token_terms(x, y, tokens, mask=torch.tensor([1, 1, 0], device=DEVICE), impl="triton")
    assert all(t[2] == 0 for t in terms)
    assert all(t[1] == math.inf for t in terms[2:])
    sum(t[[0, 2]].sum() for t in terms).backward()
    assert (x.grad[2] == 0).all()
    assert torch.isfinite(x.grad[0]).all()


def test_second_derivatives():
    x, y, tokens = _inputs(torch.float32, 0.5)
    found = []
    for z, impl in ((x, "triton"), (x.double(), "array")):
        z = z.clone().requires_grad_()
        terms = token_terms(z, y, tokens, impl=impl)
        (g,) = torch.autograd.grad((terms.kl + terms.k3).sum(), z, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), z)[0])
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()


def test_only_on_a_gpu_no_synchronisation():
    x, y, tokens = _inputs(torch.bfloat16, 0.5)
    x.requires_grad_()

    def step():
        terms = token_terms(x, y, tokens, impl="triton")
        (terms.kl + terms.k3).sum().backward()

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ratios_keep_their_digits_far_from_the_first_category(dtype):
    """What the first category says about the normalisers is far off, and differs between policy and reference."""
    generator = torch.Generator().manual_seed(0)
    y = 2 * torch.randn(ROWS, 600, generator=generator)
    y[:, 7] += 12.0
    x = y + 1e-2 * torch.randn(ROWS, 600, generator=generator)
    y[:, 0], x[:, 0] = -8.0, -2.0
    x, y, tokens = x.to(dtype).to(DEVICE), y.to(dtype).to(DEVICE), torch.tensor([7, 7, 8], device=DEVICE)
    exact = x.double().requires_grad_()
    truth = _reference(exact, y, tokens, 1.0)
    truth[2].sum().backward()
    x.requires_grad_()
    found = token_terms(x, y, tokens, impl="triton")
    # A few times ε of the largest of the logits' exponentials, which are what the normalisers' ratio is made of.
    torch.testing.assert_close(found.k1.double(), truth[3].detach(), rtol=1e-5, atol=2e-8)
    found.kl.sum().backward()
    error = (x.grad.double() - exact.grad).norm(dim=-1) / exact.grad.norm(dim=-1)
    assert (error <= 2 * (2.0**-24 if dtype == torch.float32 else 2.0**-8) + 1e-5).all(), error

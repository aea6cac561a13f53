"""On a GPU: exact values and gradients, results that stay on the device, no look at the values, compiled too. CI has none and says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kullback as kb
import kullback.torch
import oracle
from oracle import GRADIENT_BOUND, VALUE_BOUND

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
STEPS = (2e-7, 1e-6, 1e-4, 1e-2, 0.3, 1.0, 4.0, 30.0, 1e3)


def _data(form, dtype, size):
    rng = np.random.default_rng((len(form), size))
    rows = []
    for i, step in enumerate(STEPS if form == "logits" else STEPS[:6]):
        a = rng.normal(size=size) * (1.0, 5.0)[i % 2]
        b = a + step * rng.normal(size=size)
        if form == "logits":
            rows.append((a, b + (0, 100, -100)[i % 3]))
        else:
            rows.append(tuple(np.exp(z) / np.exp(z).sum() * off for z, off in ((a, 1.0), (b, (1.0, 1.0009)[i % 2]))))
    pairs = [(x.astype(dtype), y.astype(dtype)) for x, y in rows]
    truths = [oracle.kl(x, y, form) for x, y in pairs]
    kept = [i for i, t in enumerate(truths) if t.value > 1e-14]
    return np.stack([pairs[i][0] for i in kept]), np.stack([pairs[i][1] for i in kept]), [truths[i] for i in kept]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("size", [2, 1000])
@pytest.mark.parametrize("form", ["logits", "probs"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_torch(dtype, form, size, compiled):
    x, y, truths = _data(form, dtype, size)
    function = lambda x, y: kb.kl(x, y, form=form)  # noqa: E731
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, dynamic=False)
    x, y = (torch.tensor(z, device="cuda", requires_grad=True) for z in (x, y))
    value = function(x, y)
    assert value.is_cuda
    truth = np.array([t.value for t in truths])
    error = np.abs(value.detach().cpu().numpy() - truth) / truth
    assert error.max() <= VALUE_BOUND[dtype], f"{error.max():.1e}"
    found = torch.autograd.grad(value.sum(), (x, y))
    for g, expected in zip(found, ([t.to_x for t in truths], [t.to_y for t in truths])):
        for row, e in zip(g.cpu().numpy(), expected):
            assert oracle.relative_error(row, e) <= GRADIENT_BOUND[dtype]


def test_torch_does_not_look_unless_asked():
    bad = torch.tensor([[0.5, 0.5], [3.0, 4.0]], device="cuda")
    good = torch.tensor([0.5, 0.5], device="cuda")
    assert kb.kl(bad, good).isnan().tolist() == [False, True]
    with pytest.raises(ValueError, match="p row 1 sums to 7"):
        kb.kl(bad, good, check=True)
    with torch.cuda.device(0):
        torch.cuda.set_sync_debug_mode("error")  # a hidden copy to the host would raise
        try:
            kb.kl(bad, good, reduction="mean", weights=good)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_torch_joins_lists_and_bfloat16():
    logits = torch.tensor([[0.0, 1.0, 2.0]], device="cuda", dtype=torch.bfloat16)
    value = kb.kl(logits, [1.0, 0.0, 0.0], form="logits")
    assert value.is_cuda
    assert value.dtype == torch.float32
    assert abs(value.item() - 0.6290185589) < 5e-7  # a unit in the last place is 6e-8


def test_cuda_graph():
    x, y = (torch.randn(4, 50, device="cuda") for _ in range(2))
    kb.kl(x, y, form="logits")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kb.kl(x, y, form="logits")
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    truth = [oracle.kl(a, b, "logits").value for a, b in zip(x.cpu().numpy(), y.cpu().numpy())]
    assert oracle.relative_error(out.cpu().numpy(), truth) <= VALUE_BOUND[np.float32]


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("log_target", [False, True])
def test_torch_drop_in(log_target, compiled):
    rng = np.random.default_rng(5)
    a = rng.normal(size=(3, 1000)).astype(np.float32)
    x = torch.tensor(a + 1e-3 * rng.normal(size=a.shape).astype(np.float32), device="cuda").log_softmax(-1).requires_grad_()
    t = torch.tensor(a, device="cuda").log_softmax(-1)
    t = (t if log_target else t.exp()).requires_grad_()
    function = torch.compile(kullback.torch.kl_div, fullgraph=True) if compiled else kullback.torch.kl_div
    value = function(x, t, reduction="batchmean", log_target=log_target)
    # The terms as stored, added up by NumPy in float64.
    x64, t64 = (z.detach().cpu().numpy().astype(np.float64) for z in (x, t))
    weight, log_t = (np.exp(t64), t64) if log_target else (t64, np.log(t64))
    expected = (weight * (log_t - x64)).sum() / 3
    assert value.is_cuda
    assert value.item() == pytest.approx(expected, rel=1e-6)
    to_x, to_t = torch.autograd.grad(value, (x, t))
    np.testing.assert_allclose(to_x.cpu().numpy(), -weight / 3, rtol=1e-6)
    excess = (log_t - x64 + 1.0) / 3 * (weight if log_target else 1.0)
    np.testing.assert_allclose(to_t.cpu().numpy(), excess, rtol=2e-6)


@pytest.mark.parametrize("size", [2, 1000, 100_000])
@pytest.mark.parametrize("form", ["logits", "probs"])
def test_jax(form, size):
    jax = pytest.importorskip("jax")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("JAX sees no GPU here")
    x, y, truths = _data(form, np.float32, min(size, 1000))
    if size > 1000:  # 100 copies of each category leave the KL of logits as it was
        x, y = np.tile(x, 100), np.tile(y, 100)
        if form == "probs":
            x, y = x / np.float32(128), y / np.float32(128)  # a power of two: exact
            truths = [oracle.kl(a[:1000], b[:1000], form) for a, b in zip(x, y)]
    value = jax.jit(lambda x, y: kb.kl(x, y, form=form, check=False))(x, jax.numpy.asarray(y))
    truth = np.array([t.value for t in truths])
    error = np.abs(np.asarray(value) - truth) / truth
    assert error.max() <= VALUE_BOUND[np.float32], f"{error.max():.1e}"


def test_jax_drop_in():
    jax = pytest.importorskip("jax")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("JAX sees no GPU here")
    from kullback.jax import kl_divergence

    rng = np.random.default_rng(6)
    a = rng.normal(size=(3, 1000)).astype(np.float32)
    x = jax.nn.log_softmax(jax.numpy.asarray(a + 1e-3 * rng.normal(size=a.shape).astype(np.float32)))
    t = jax.nn.softmax(jax.numpy.asarray(a))
    x64, t64 = np.asarray(x, np.float64), np.asarray(t, np.float64)
    value = jax.jit(kl_divergence)(x, t)
    assert {d.platform for d in value.devices()} == {"gpu"}
    np.testing.assert_allclose(np.asarray(value), (t64 * (np.log(t64) - x64)).sum(-1), rtol=1e-6)
    to_x, to_t = jax.jit(jax.grad(lambda x, t: kl_divergence(x, t).sum(), argnums=(0, 1)))(x, t)
    np.testing.assert_allclose(np.asarray(to_x), -t64, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(to_t), np.log(t64) + 1.0 - x64, rtol=2e-6)

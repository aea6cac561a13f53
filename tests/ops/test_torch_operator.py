"""kullback::on_host, the operator that compiled PyTorch code calls on large CPU arrays."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

import kullback as kb
from kullback._ops import torch as torch_ops

LOGITS = ("kl", 0.0, "logits logits", [1], [1e-3, 1e-3], False)


@pytest.fixture(autouse=True)
def called(monkeypatch):
    """Every size goes through the operator; the list counts its calls."""
    monkeypatch.setattr(torch_ops, "_CALL_FROM", 0)
    torch._dynamo.reset()
    calls = []
    function = torch_ops.host_function[0]
    monkeypatch.setattr(torch_ops, "host_function", [lambda *args: calls.append(1) or function(*args)])
    return calls


def by_hand(a, b):
    p, log_p, log_q = a.double().softmax(-1), a.double().log_softmax(-1), b.double().log_softmax(-1)
    return (p * (log_p - log_q)).sum(-1)


@pytest.mark.parametrize(("dynamic", "backend"), [(False, "inductor"), (True, "aot_eager")])  # sizes are symbols in tracing
def test_value_and_gradients(called, dynamic, backend):
    a, b = torch.randn(6, 40), torch.randn(6, 40, requires_grad=True)
    function = torch.compile(lambda a, b: kb.kl(a, b, form="logits"), fullgraph=True, dynamic=dynamic, backend=backend)
    value = function(a, b)
    assert called
    torch.testing.assert_close(value, by_hand(a, b.detach()).float())
    value.sum().backward()
    torch.testing.assert_close(b.grad, b.detach().softmax(-1) - a.softmax(-1))


def test_under_vmap_and_grad(called):
    a, b = torch.randn(3, 6, 40), torch.randn(40)
    # The operator's own rules are used in tracing: no need to wait for Inductor.
    traced = partial(torch.compile, fullgraph=True, backend="aot_eager")
    function = traced(torch.func.vmap(lambda a, b: kb.kl(a, b, form="logits"), in_dims=(0, None)))
    torch.testing.assert_close(function(a, b), by_hand(a, b.expand_as(a)).float())
    assert called
    slope = traced(torch.func.grad(lambda b: kb.kl(a[0, 0], b, form="logits")))(b)
    torch.testing.assert_close(slope, b.softmax(-1) - a[0, 0].softmax(-1))


def test_temperature_axis_and_strides(called):
    a, b = torch.randn(40, 6).T, torch.randn(12, 40)[::2]
    function = torch.compile(lambda a, b: kb.kl(a, b, form="logits", temperature=2.0), fullgraph=True)
    torch.testing.assert_close(function(a, b), by_hand(a / 2, b / 2).float())
    function = torch.compile(lambda a, b: kb.kl(a, b, form="logits", axis=0), fullgraph=True)
    torch.testing.assert_close(function(a.T, b.T), by_hand(a, b).float())
    assert len(called) == 2


def test_invalid_rows_are_nan(called):
    p = torch.tensor([[0.5, 0.5], [3.0, 4.0]])
    value = torch.compile(lambda p: kb.kl(p, torch.tensor([0.5, 0.5])), fullgraph=True, backend="aot_eager")(p)
    assert value[0] == 0
    assert math.isnan(value[1])
    assert called


@pytest.mark.parametrize("form", ["probs", "log_probs", "logits"])
def test_rows_that_compiled_code_cannot_do_are_completed(called, form, rng):
    """Far apart, as close as KL 1e-6, an empty category on each side and on both, and no distribution: by the formula in float64."""
    a = rng.normal(size=(9, 256))
    b = a + np.array([1.0, 1.0, 1.0, 1.0, 1e-3, 1.0, 1.0, 1.0, 1.0])[:, None] * rng.normal(size=a.shape)
    a[5, :3] = b[6, 7:9] = -np.inf
    a[7, 9] = b[7, 9] = -np.inf
    log_a, log_b = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (a, b))
    if form != "logits":
        log_b[8] += 0.1
    x, y = (
        torch.tensor(np.exp(z) if form == "probs" else z if form == "log_probs" else z + 3.0, dtype=torch.float32) for z in (log_a, log_b)
    )
    backend = "aot_eager" if form == "log_probs" else "inductor"  # whose C++ takes seconds
    value = torch.compile(lambda x, y: kb.kl(x, y, form=form), fullgraph=True, backend=backend)(x, y)
    p, q = (z.double() if form == "probs" else z.double().softmax(-1) for z in (x, y))
    p, q = (z / z.sum(-1, keepdim=True) for z in (p, q))
    expected = torch.where(p > 0, p * (p / q).log(), 0.0).sum(-1)
    if form != "logits":
        expected[8] = math.nan
    assert len(called) == 1
    # float64 by the usual formula is good to 1e-10 at KL 1e-6; rounded to float32.
    torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=0.0, equal_nan=True)


def test_a_single_row_is_completed_too(called, rng):
    a = torch.tensor(rng.normal(size=256), dtype=torch.float32)
    b = a + 1e-3 * torch.tensor(rng.normal(size=256), dtype=torch.float32)
    function = torch.compile(lambda a, b: kb.kl(a, b, form="logits"), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(function(a, b), by_hand(a, b).float(), rtol=2e-6, atol=0.0)
    assert called


def test_export_does_not_call_it(called):
    class Model(torch.nn.Module):
        def forward(self, a, b):
            return kb.kl(a, b, form="logits")

    a, b = torch.randn(3, 40), torch.randn(3, 40)
    exported = torch.export.export(Model(), (a, b))
    assert not any("on_host" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(a, b), by_hand(a, b).float())
    assert not called


def test_small_arrays_stay_with_inductor(called, monkeypatch):
    monkeypatch.setattr(torch_ops, "_CALL_FROM", 1000)
    a, b = torch.randn(3, 40), torch.randn(3, 40)
    function = torch.compile(lambda a, b: kb.kl(a, b, form="logits"), fullgraph=True)
    torch.testing.assert_close(function(a, b), by_hand(a, b).float())
    assert not called


def test_the_rules_of_operators(rng):
    a, b = (torch.tensor(rng.normal(size=(3, 40)).astype(np.float32)) for _ in "ab")
    torch.library.opcheck(torch_ops._on_host, (a, b, None, None, *LOGITS))
    torch.library.opcheck(torch_ops._on_host, (a, b, None, torch.tensor([[math.nan], [1.0], [2.0]]), *LOGITS))
    torch.library.opcheck(torch_ops._on_host, (a.double(), b, torch.full((3, 1), 0.5, dtype=torch.float64), None, *LOGITS))

"""Derivatives by the blocked CPU kernel, which plain PyTorch tensors use: against mpmath, in every layout, at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import kullback as kb
import oracle
from kullback._kernels import cpu
from oracle import GRADIENT_BOUND

STEPS = (2e-7, 1e-5, 1e-3, 0.1, 1.0, 4.0, 40.0)


def gradients(x, y, form, **options):
    x, y = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    value = kb.kl(x, y, form=form, **options).sum()
    return [g.numpy() for g in torch.autograd.grad(value, (x, y))]


def rows(form, dtype, size, rng):
    for i, step in enumerate(STEPS if form == "logits" else STEPS[:5]):
        a = rng.normal(size=size) * (1.0, 8.0)[i % 2]
        b = a + step * rng.normal(size=size)
        if form == "logits":
            yield a.astype(dtype), (b + (0, 100, -3000)[i % 3]).astype(dtype)
        else:
            x, y = (np.exp(z) / np.exp(z).sum() for z in (a, b))
            yield x.astype(dtype), (y * (1.0, 1.0009)[i % 2]).astype(dtype)


@pytest.mark.parametrize("size", [2, 30, 1000])
@pytest.mark.parametrize("form", ["logits", "probs"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_exact(form, size, dtype, rng):
    seen = 0
    for x, y in rows(form, dtype, size, rng):
        truth = oracle.kl(x, y, form)
        if truth.value < 1e-14:
            continue
        seen += 1
        for found, expected in zip(gradients(x, y, form), (truth.to_x, truth.to_y)):
            assert oracle.relative_error(found, expected) <= GRADIENT_BOUND[dtype]
    assert seen >= 3


def test_one_category_holds_nearly_everything():
    # q - p of that category is 1e-13 of either: as a difference it would keep three digits in float64.
    x, y = np.array([0, -30, -31, -29.5], np.float32), np.array([0, -30.5, -30, -29], np.float32)
    truth = oracle.kl(x, y, "logits")
    for found, expected in zip(gradients(x, y, "logits"), (truth.to_x, truth.to_y)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_layouts(form, rng, monkeypatch):
    monkeypatch.setattr(cpu, "_LITERAL", 64)  # many tiles
    monkeypatch.setattr(cpu, "_THREADS_FROM", 0)  # on all threads
    x, y = (rng.normal(size=(4, 5, 6)).astype(np.float32) for _ in "xy")
    if form == "probs":
        x, y = (np.exp(z) / np.exp(z).sum((0, 2), keepdims=True) for z in (x, y))
    views = {
        "an axis in front": (x, y, (0, 2)),
        "reversed": (x[::-1], y[::-1], (0, 2)),
        "transposed": (x.transpose(2, 1, 0), y.transpose(2, 1, 0), (0, 2)),
    }
    for name, (a, b, axis) in views.items():
        a, b = np.ascontiguousarray(a) if name == "reversed" else a, np.ascontiguousarray(b) if name == "reversed" else b
        found = gradients(a, b, form, axis=axis)
        for i in range(5):
            truth = oracle.kl(a[:, i].ravel(), b[:, i].ravel(), form)
            for g, expected in zip(found, (truth.to_x, truth.to_y)):
                assert oracle.relative_error(g[:, i].ravel(), expected) <= GRADIENT_BOUND[np.float32], name


def test_broadcast_batch(rng):
    x, y = rng.normal(size=(3, 1, 7)).astype(np.float32), rng.normal(size=(2, 7)).astype(np.float32)
    to_x, to_y = gradients(x, y, "logits")
    truths = [[oracle.kl(x[i, 0], y[j], "logits") for j in range(2)] for i in range(3)]
    np.testing.assert_allclose(to_x[:, 0], [sum(t.to_x for t in row) for row in truths], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(to_y, [sum(row[j].to_y for row in truths) for j in range(2)], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("temperature", [0.3, 7.0])
def test_temperature(temperature, rng):
    a, b = (rng.normal(size=40).astype(np.float32) for _ in "ab")
    x, y, t = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True), torch.tensor(temperature, requires_grad=True)
    found = torch.autograd.grad(kb.kl(x, y, form="logits", temperature=t), (x, y, t))
    stored = float(np.float32(temperature))
    truth = oracle.kl(a, b, "logits", temperature=stored)

    def of_temperature(values):
        (v,) = values
        logs = [[z / v for z in oracle.exact(side)] for side in (a, b)]
        totals = [oracle.mp.log(oracle.mp.fsum(map(oracle.mp.exp, side))) for side in logs]
        return oracle.kl_mpf(*([z - total for z in side] for side, total in zip(logs, totals)))

    to_t = oracle.central_difference(of_temperature, np.array([stored]))
    for g, expected in zip(found, (truth.to_x, truth.to_y, to_t[0])):
        assert oracle.relative_error(g.numpy(), expected) <= GRADIENT_BOUND[np.float32]


def test_absent_categories(rng):
    a, b = (rng.normal(size=(3, 50)).astype(np.float32) for _ in "ab")
    a[:, ::5] = -math.inf
    b[:, ::10] = -math.inf
    to_x, to_y = gradients(a, b, "logits")
    for i in range(3):
        present = a[i] > -math.inf
        truth = oracle.kl(np.exp(a[i].astype(np.float64)), np.exp(b[i].astype(np.float64)), "probs")
        p = np.exp(a[i].astype(np.float64))
        p /= p.sum()
        np.testing.assert_allclose(to_x[i], np.where(present, truth.to_x * np.exp(a[i].astype(np.float64)), 0.0), rtol=1e-4, atol=1e-7)
        q = np.exp(b[i].astype(np.float64))
        np.testing.assert_allclose(to_y[i], q / q.sum() - p, rtol=1e-5, atol=1e-8)


def test_zeros_of_probabilities():
    x, y = np.array([[0.5, 0.5, 0.0, 0.0]], np.float32), np.array([[0.25, 0.5, 0.25, 0.0]], np.float32)
    to_x, to_y = gradients(x, y, "probs")
    truth = oracle.kl(x[0], y[0], "probs")
    np.testing.assert_allclose(to_x[0], truth.to_x, rtol=1e-6)
    np.testing.assert_allclose(to_y[0], truth.to_y, rtol=1e-6)
    # q = 0 < p: the value is inf; a good row beside it is untouched.
    both_x, both_y = np.concatenate([x, x]), np.concatenate([y, y[:, ::-1]])
    to_x2, to_y2 = gradients(both_x, both_y, "probs")
    np.testing.assert_array_equal(to_x2[0], to_x[0])
    np.testing.assert_array_equal(to_y2[0], to_y[0])
    assert np.isnan(to_x2[1]).any()
    assert to_y2[1, 0] == -math.inf


def test_what_is_not_needed_is_not_computed(rng, monkeypatch):
    seen = []
    run = cpu.run_gradients
    monkeypatch.setattr(cpu, "run_gradients", lambda *args: seen.append(args[3]) or run(*args))
    x, y = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    kb.kl(x, y, form="logits").sum().backward()
    assert seen == [(False, True, False)]
    torch.testing.assert_close(y.grad, y.detach().softmax(-1) - x.softmax(-1))


def test_a_graph_of_the_gradient_takes_the_general_formula(rng):
    y = torch.randn(5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, dtype=torch.float64)
    (g,) = torch.autograd.grad(kb.kl(x, y, form="logits"), y, create_graph=True)
    q = y.detach().softmax(-1)
    second = torch.stack([torch.autograd.grad(g[i], y, retain_graph=True)[0] for i in range(5)])
    torch.testing.assert_close(second, torch.diag(q) - torch.outer(q, q))

"""One pair without a batch runs on Python's floats, with derivatives of its own: they must be those of the general way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributions as td

import kullback as kb
from kullback import distributions
from kullback._distributions import objects
from truth_rows import PAIRS, ROWS
from truths import condition


def _gradients(pair, given):
    """Derivatives to all parameters, and whether they are those of floats."""
    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in given]
    n = len(ROWS[pair][0][0])
    value = kb.kl(getattr(distributions, pair[0])(*inputs[:n]), getattr(distributions, pair[1])(*inputs[n:]))
    found = torch.autograd.grad(value.sum(), inputs, allow_unused=True)
    return np.array([np.zeros(x.shape) if g is None else g.numpy() for x, g in zip(inputs, found)]), "_Number" in type(
        value.grad_fn
    ).__name__


def test_derivatives_of_every_pair():
    """Two evaluations of a formula, forward and in reverse, of floats and of tensors, which `test_torch_gradients_are_right` holds to
    differences of values. What they subtract in another order is small beside the largest."""
    taken, wrong = 0, {}
    for pair in PAIRS:
        if condition(*(getattr(distributions, name) for name in pair)) is not None:
            continue  # to parameters that must be equal a derivative has no meaning
        rows = np.array([[*row[0], *row[1]] for row in ROWS[pair]])
        all_of_them, on_floats = _gradients(pair, list(rows.T))
        assert not on_floats
        for row, general in zip(rows, all_of_them.T):
            found, on_floats = _gradients(pair, list(row))
            taken += on_floats
            if not np.abs(found - general) @ np.abs(row) <= 1e-9 * np.abs(general) @ np.abs(row):
                wrong[pair] = (row, found, general)
    assert not wrong
    assert taken > 900  # of a thousand


def test_normal():
    given = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.3, 1.5, -0.2, 0.8)]
    m, s, n, t = given
    value = kb.kl(td.Normal(m, s), td.Normal(n, t))
    value.backward(retain_graph=True)
    m, s, n, t = (x.item() for x in given)
    truth = [(m - n) / t**2, s / t**2 - 1 / s, (n - m) / t**2, 1 / t - (s**2 + (m - n) ** 2) / t**3]
    assert [x.grad.item() for x in given] == pytest.approx(truth, rel=1e-14)
    # Of second order.
    (slope,) = torch.autograd.grad(value, given[1], create_graph=True)
    assert slope.item() == pytest.approx(truth[1], rel=1e-14)
    second = torch.autograd.grad(slope, given, allow_unused=True)
    assert [0.0 if x is None else x.item() for x in second] == pytest.approx([0.0, 1 / t**2 + 1 / s**2, 0.0, -2 * s / t**3], rel=1e-13)


@pytest.mark.parametrize("family", [td.Gamma, td.Beta])
def test_second_derivatives(family):
    given = tuple(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (2.0, 1.5, 3.0, 0.7))
    assert torch.autograd.gradgradcheck(lambda a, b, c, d: kb.kl(family(a, b), family(c, d)), given)


def test_parameters_mixed_dtypes_and_constants():
    rate = torch.nn.Parameter(torch.tensor(2.0))
    value = kb.kl(td.Exponential(rate), td.Exponential(torch.tensor(3.0, dtype=torch.float64)))
    assert value.dtype == torch.float64
    value.backward()
    assert rate.grad.dtype == torch.float32
    assert rate.grad.item() == pytest.approx(1 / 2 - 3 / 4, rel=1e-6)
    with torch.no_grad():
        assert not kb.kl(td.Exponential(rate), td.Exponential(3.0)).requires_grad


def test_no_general_way_is_taken(monkeypatch):
    def refuse(found):
        raise AssertionError("the general way")

    monkeypatch.setattr(objects, "_evaluate", refuse)
    for family in (td.Normal, td.Gamma, td.Beta, td.Laplace):
        given = [torch.tensor(x, requires_grad=True) for x in (2.0, 1.5, 3.0, 0.7)]
        kb.kl(family(*given[:2]), family(*given[2:])).backward()
        assert all(x.grad.isfinite() for x in given)

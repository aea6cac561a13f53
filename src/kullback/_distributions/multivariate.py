"""Closed forms of vectors and categories."""

from __future__ import annotations

from typing import Any

from .._divergences import kl
from .families import Bernoulli, BernoulliLogits, Categorical, MultivariateNormal
from .registry import closed_form
from .special import gap

Array = Any


@closed_form(Categorical, Categorical)
def _categorical(ops: Any, p: Any, q: Any) -> Array:
    return kl(p.values, q.values, form=(p.form, q.form))


@closed_form(BernoulliLogits, BernoulliLogits)
def _bernoulli_logits(ops: Any, p: Any, q: Any) -> Array:
    zero = (p.logits + q.logits) * 0.0
    return kl(*(ops.stack([x + zero, zero]) for x in (p.logits, q.logits)), form="logits", axis=0)


def _both(ops: Any, x: Any, zero: Array) -> tuple[Array, str]:
    """The two categories of a Bernoulli distribution, and their form."""
    if isinstance(x, BernoulliLogits):
        return ops.stack([x.logits + zero, zero]), "logits"
    return ops.stack([x.probs + zero, 1.0 - x.probs + zero]), "probs"


@closed_form(Bernoulli, BernoulliLogits)
@closed_form(BernoulliLogits, Bernoulli)
def _bernoulli_mixed(ops: Any, p: Any, q: Any) -> Array:
    zero = (next(iter(p.parameters().values())) + next(iter(q.parameters().values()))) * 0.0
    (x, x_form), (y, y_form) = _both(ops, p, zero), _both(ops, q, zero)
    return kl(x, y, form=(x_form, y_form), axis=0, check=False)


@closed_form(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(ops: Any, p: Any, q: Any) -> Array:
    # With M = L_q⁻¹ L_p: Σ_i (m_ii - 1 - log m_ii) + ½ |M - I|² + ½ |L_q⁻¹ Δ|², since log det is a sum over the diagonals
    # and ½ (|M|² - d) = ½ |M - I|² + Σ (m_ii - 1). M - I = L_q⁻¹ (L_p - L_q), without cancellation.
    change = ops.solve_lower(q.scale_tril, p.scale_tril - q.scale_tril)
    shift = ops.solve_lower(q.scale_tril, ops.expand(p.loc - q.loc, (len((p.loc - q.loc).shape),)))
    diagonals = [ops.diagonal(x) for x in (p.scale_tril, q.scale_tril)]
    last = (len(change.shape) - 2, len(change.shape) - 1)
    squares = ops.squeeze(ops.sum(change * change, last), last) + ops.squeeze(ops.sum(shift * shift, last), last)
    gaps = gap(ops, *diagonals)
    axis = (len(gaps.shape) - 1,)
    return ops.squeeze(ops.sum(gaps, axis), axis) + 0.5 * squares

"""Closed forms of categories, and of counts of them: the array formulas do the work."""

from __future__ import annotations

import math
from typing import Any

from ..._divergences import kl
from ..._pairs import expm1
from ..families import Categorical, Multinomial, OrderedLogistic, StoppingRatioLogistic
from ..registry import closed_form

Array = Any


@closed_form(Categorical, Categorical)
def _categorical(ops: Any, p: Any, q: Any) -> Array:
    return kl(p.values, q.values, form=(p.form, q.form))


@closed_form(Multinomial, Multinomial)
def _multinomial(ops: Any, p: Any, q: Any) -> Array:
    # Counts that sum to another number: inf.
    value = p.total_count * kl(p.values, q.values, form=(p.form, q.form))
    return ops.where(p.total_count == q.total_count, ops.where(p.total_count == 0.0, 0.0, value), math.inf)


def _log_sigmoids(ops: Any, x: Array) -> tuple[Array, Array]:
    """log of 1/(1 + e^-x) and of 1/(1 + e^x)."""
    up = x > 0.0
    rest = ops.log1p(ops.exp(ops.where(up, -x, x)))
    return -(ops.where(up, 0.0, -x) + rest), -(ops.where(up, x, 0.0) + rest)


def _ordered(ops: Any, x: Any) -> Array:
    """Log-probabilities, categories first. log(sigmoid(b) - sigmoid(a)) = log sigmoid(b) + log sigmoid(-a) + log(1 - e^(a - b))."""
    z = x.cutpoints - ops.expand(x.loc, (len(x.loc.shape),))
    below, above = _log_sigmoids(ops, z)
    size = z.shape[-1]
    middle = [below[..., i] + above[..., i - 1] + ops.log(-expm1(ops, z[..., i - 1] - z[..., i])) for i in range(1, size)]
    return ops.stack([below[..., 0], *middle, above[..., size - 1]])


def _stopping(ops: Any, x: Any) -> Array:
    z = x.cutpoints - ops.expand(x.loc, (len(x.loc.shape),))
    stop, go = _log_sigmoids(ops, z)
    rows: list[Array] = []
    reached: Any = 0.0
    for i in range(z.shape[-1]):
        rows.append(reached + stop[..., i])
        reached = reached + go[..., i]
    return ops.stack([*rows, reached])


@closed_form(OrderedLogistic, OrderedLogistic)
def _ordered_logistic(ops: Any, p: Any, q: Any) -> Array:
    return _logs(ops, _ordered(ops, p), _ordered(ops, q))


@closed_form(StoppingRatioLogistic, StoppingRatioLogistic)
def _stopping_ratio_logistic(ops: Any, p: Any, q: Any) -> Array:
    return _logs(ops, _stopping(ops, p), _stopping(ops, q))


def _logs(ops: Any, p: Array, q: Array) -> Array:
    """Categories first; batches aligned from the right."""
    rank = max(len(p.shape), len(q.shape))
    p, q = (ops.expand(x, tuple(range(1, 1 + rank - len(x.shape)))) for x in (p, q))
    return kl(p, q, form="logits", axis=0, check=False)

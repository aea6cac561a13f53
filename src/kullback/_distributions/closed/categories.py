"""Closed forms of categories, and of counts of them: the array formulas do the work."""

from __future__ import annotations

import math
from typing import Any

from ..._divergences import kl
from ..._pairs import expm1
from .. import families as f
from ..registry import closed_form

Array = Any


@closed_form(f.Categorical, f.Categorical)
def _categorical(ops: Any, p: Any, q: Any) -> Array:
    return kl(p.values, q.values, form=(p.form, q.form))


@closed_form(f.Multinomial, f.Multinomial)
def _multinomial(ops: Any, p: Any, q: Any) -> Array:
    # Counts that sum to another number: inf.
    value = p.total_count * kl(p.values, q.values, form=(p.form, q.form))
    return ops.where(p.total_count == q.total_count, ops.where(p.total_count == 0.0, 0.0, value), math.inf)


def _log_sigmoids(ops: Any, x: Array) -> tuple[Array, Array]:
    """log of 1/(1 + e^-x) and of 1/(1 + e^x)."""
    up = x > 0.0
    rest = ops.log1p(ops.exp(ops.where(up, -x, x)))
    return -(ops.where(up, 0.0, -x) + rest), -(ops.where(up, x, 0.0) + rest)


def _cutpoints(ops: Any, x: Any) -> Array:
    return x.cutpoints - ops.expand(x.loc, (-1,))


def ordered_logs(ops: Any, x: Any) -> Array:
    """Logarithms of the probabilities: log(sigmoid(b) - sigmoid(a)) = log sigmoid(b) + log sigmoid(-a) + log(1 - e^(a - b))."""
    z = _cutpoints(ops, x)
    below, above = _log_sigmoids(ops, z)
    middle = below[..., 1:] + above[..., :-1] + ops.log(-expm1(ops, z[..., :-1] - z[..., 1:]))
    return ops.join_last(ops.join_last(below[..., :1], middle), above[..., -1:])


def stopping_logs(ops: Any, x: Any) -> Array:
    stop, go = _log_sigmoids(ops, _cutpoints(ops, x))
    reached = ops.sums_before(go)
    return ops.join_last(reached + stop, reached[..., -1:] + go[..., -1:])


@closed_form(f.OrderedLogistic, f.OrderedLogistic)
def _ordered_logistic(ops: Any, p: Any, q: Any) -> Array:
    return kl(ordered_logs(ops, p), ordered_logs(ops, q), form="logits", check=False)


@closed_form(f.StoppingRatioLogistic, f.StoppingRatioLogistic)
def _stopping_ratio_logistic(ops: Any, p: Any, q: Any) -> Array:
    return kl(stopping_logs(ops, p), stopping_logs(ops, q), form="logits", check=False)

"""Closed forms of counts."""

from __future__ import annotations

import math
from typing import Any

from .families import Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson
from .registry import closed_form
from .special import gap

Array = Any


def weighted_gap(ops: Any, y: Array, x: Array, difference: Array | None = None) -> Array:
    """x (y/x - 1 - log(y/x)) = y - x - x log(y/x) >= 0; y where x = 0, inf where y = 0 < x."""
    absent, lost = x == 0.0, (y == 0.0) & (x > 0.0)
    bad = absent | lost
    difference = (y - x) if difference is None else difference
    inside = gap(ops, ops.where(bad, 1.0, y), ops.where(bad, 1.0, x), ops.where(bad, 0.0, difference))
    return ops.where(lost, math.inf, ops.where(absent, y, x * inside))


def bernoulli_kl(ops: Any, p: Array, q: Array) -> Array:
    return weighted_gap(ops, q, p) + weighted_gap(ops, 1.0 - q, 1.0 - p, p - q)


@closed_form(Bernoulli, Bernoulli)
def _bernoulli(ops: Any, p: Any, q: Any) -> Array:
    return bernoulli_kl(ops, p.probs, q.probs)


@closed_form(Geometric, Geometric)
def _geometric(ops: Any, p: Any, q: Any) -> Array:
    # As many Bernoulli trials as are expected until the first success.
    return bernoulli_kl(ops, p.probs, q.probs) / p.probs


@closed_form(NegativeBinomial, NegativeBinomial)
def _negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    equal = p.total_count == q.total_count
    return ops.where(equal, p.total_count * (bernoulli_kl(ops, p.probs, q.probs) / (1.0 - p.probs)), math.nan)


@closed_form(Binomial, Binomial)
def _binomial(ops: Any, p: Any, q: Any) -> Array:
    # More trials than Q can have: inf, unless none of them can succeed. Fewer: no closed form, NaN.
    value = p.total_count * bernoulli_kl(ops, p.probs, q.probs)
    more = (p.total_count > q.total_count) & (p.probs > 0.0)
    return ops.where(p.total_count == q.total_count, value, ops.where(more, math.inf, math.nan))


@closed_form(Poisson, Poisson)
def _poisson(ops: Any, p: Any, q: Any) -> Array:
    return weighted_gap(ops, q.rate, p.rate)

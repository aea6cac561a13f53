"""The point mass: -log of Q's probability of it where Q is discrete, inf where Q is continuous and where P is not that point.

Other libraries answer -log of Q's *density* there, which depends on the unit x is measured in: it is no divergence.
"""

from __future__ import annotations

import math
from typing import Any

from ..._divergences import kl
from .. import families as f
from ..curves import square
from ..registry import closed_form
from ..special import log_gamma
from .counts import BERNOULLI, BINOMIAL, GEOMETRIC, NEGATIVE, failure_of, success_of

Array = Any


@closed_form(f.Delta, f.Delta)
def _delta(ops: Any, p: Any, q: Any) -> Array:
    distance = square(p.value - q.value)
    # Equal infinities are no number apart.
    return ops.where(p.value == q.value, ops.where(ops.isnan(distance), 0.0, distance), ops.where(ops.isnan(distance), distance, math.inf))


def _choose(ops: Any, n: Array, k: Array) -> Array:
    return log_gamma(ops, n + 1.0) - log_gamma(ops, k + 1.0) - log_gamma(ops, n - k + 1.0)


def _times(ops: Any, k: Array, probability: Array) -> Array:
    """k log(probability), 0 for k = 0."""
    none = k == 0.0
    return ops.where(none, 0.0, k * ops.log(ops.where(none, 1.0, probability)))


def _log_mass(ops: Any, q: Any, k: Array) -> Array:
    """log Q{k}, for a k that Q can take."""
    if isinstance(q, f.Poisson):
        return _times(ops, k, q.rate) - q.rate - log_gamma(ops, k + 1.0)
    success, failure = success_of(ops, q), failure_of(ops, q)
    if isinstance(q, GEOMETRIC):
        return ops.log(success) + _times(ops, k, failure)
    if isinstance(q, NEGATIVE):
        ways = log_gamma(ops, k + q.total_count) - log_gamma(ops, k + 1.0) - log_gamma(ops, q.total_count)
        return ways + _times(ops, q.total_count, failure) + _times(ops, k, success)
    if isinstance(q, BERNOULLI):
        return _times(ops, k, success) + _times(ops, 1.0 - k, failure)
    return _choose(ops, q.total_count, k) + _times(ops, k, success) + _times(ops, q.total_count - k, failure)


def _rounded(ops: Any, x: Array) -> Array:
    """Is x a whole number? sin²(π x) is of the size of its rounding."""
    return square(ops.sin(math.pi * x)) <= 1e-20 * (1.0 + square(x))


def _possible(ops: Any, q: Any, k: Array) -> Array:
    can = _rounded(ops, k) & (k >= 0.0)
    if isinstance(q, BERNOULLI):
        return can & (k <= 1.0)
    return can & (k <= q.total_count) if isinstance(q, BINOMIAL) else can


def _delta_counts(ops: Any, p: Any, q: Any) -> Array:
    can = _possible(ops, q, p.value)
    return ops.where(can, -_log_mass(ops, q, ops.where(can, p.value, 0.0)), math.inf)


def _counts_delta(ops: Any, p: Any, q: Any) -> Array:
    # 0 where P is that point with certainty.
    can = _possible(ops, p, q.value)
    certain = can & (_log_mass(ops, p, ops.where(can, q.value, 0.0)) == 0.0)
    return ops.where(certain, 0.0 * q.value, math.inf)


for _family in (*BERNOULLI, *BINOMIAL, f.Poisson, *GEOMETRIC, *NEGATIVE):
    closed_form(f.Delta, _family)(_delta_counts)
    closed_form(_family, f.Delta)(_counts_delta)


def _one_hot(ops: Any, index: Array, like: Array) -> tuple[Array, Array]:
    """1 at the category of that number and 0 elsewhere, and 0 where there is no such category, or NaN where the number is."""
    numbers = ops.astype(ops.asarray([float(i) for i in range(like.shape[-1])], like), like.dtype)
    column = ops.expand(index, (-1,))
    hot = ops.astype(numbers == column, like.dtype)
    last = (-1,)
    # Where there is none, all of them: any will do that the formula takes.
    there = ops.max(hot, last)
    return ops.where(there == 0.0, 1.0, hot), ops.where(ops.isnan(index), index, ops.squeeze(there, last))


def _of_category(ops: Any, there: Array, value: Array) -> Array:
    return ops.where(ops.isnan(there), there, ops.where(there == 0.0, math.inf, value))


@closed_form(f.Delta, f.Categorical)
def _delta_categorical(ops: Any, p: Any, q: Any) -> Array:
    hot, there = _one_hot(ops, p.value, q.values)
    return _of_category(ops, there, kl(hot, q.values, form=("probs", q.form), check=False))


@closed_form(f.Categorical, f.Delta)
def _categorical_delta(ops: Any, p: Any, q: Any) -> Array:
    # 0 where P is that category with certainty, else inf.
    hot, there = _one_hot(ops, q.value, p.values)
    return _of_category(ops, there, kl(p.values, hot, form=(p.form, "probs"), check=False))

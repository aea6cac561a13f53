"""KL of two laws on the integers, added up, with a bound for what is left out that is proven, not extrapolated."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ._law import Law, seen
from ._terms import EPSILON, terms

Array = Any
_BLOCK = 1 << 18  # numbers at a time


class Sum(NamedTuple):
    value: Array
    bound: Array
    terms: int


def can_sum(p: Law, q: Law) -> bool:
    """Is everything finite, or is it known how P falls off and how steeply Q does?"""
    if not (p.discrete and q.discrete and p.is_scalar and q.is_scalar):
        return False
    if not (np.all(np.isfinite(p.low)) and np.all(np.isfinite(q.low))):
        return False
    if np.all(np.isfinite(p.high)):
        return True
    return p.tail is not None and (q.tail is not None or bool(np.all(np.isfinite(q.high))))


def sum_kl(p: Law, q: Law, shape: tuple[int, ...], tol: float, budget: int) -> Sum | None:
    """Σ p log(p/q) - p + q over the integers, whose terms are all ≥ 0. None where the budget is too small.

    What lies beyond k adds at most Σ p |log(p/q)| + Σ q there. With steps p(j+1)/p(j) ≤ ρ < 1 from k on, and |log| of the steps of p and q
    at most a + b log(j+1) together, p(k+i) ≤ p(k) ρ^i and |log(p/q)|(k+i) ≤ |log(p/q)|(k) + i (a + b log(k+1)) + b i²/(2 (k+1)), since
    log(k+1+i) ≤ log(k+1) + i/(k+1): three geometric sums.
    """
    size = max(1, math.prod(shape))
    start = float(min(np.min(p.low), np.min(q.low)))
    ends = [np.max(p.high), np.max(q.high)]
    total, rounding = np.zeros(shape), np.zeros(shape)
    mass_q = np.zeros(shape)
    done, block = 0, 256
    total = np.where(exceeds(p, q, shape), math.inf, total)
    while True:
        stop = min(start + block, max(ends) + 1.0)
        if max(abs(start), abs(stop)) > 2.0**53:
            return None  # floats there are more than 1 apart
        k = np.arange(start, stop)
        x = k.reshape(-1, *(1,) * len(shape)) + np.zeros(shape)
        log_p, log_q = p.log_prob(x), q.log_prob(x)
        log_q = seen(q, x, log_p, log_q)
        found = terms(log_p, log_q, p.magnitude(x) + q.magnitude(x))
        total = total + np.where(np.isnan(log_p), math.nan, found.gap).sum(0)
        rounding = rounding + found.gap_rounding.sum(0)
        mass_q = mass_q + found.q.sum(0)
        done += len(k)
        last = stop - 1.0
        rest = _rest_of_p(p, q, last, log_p[-1], log_q[-1]) + _rest_of_q(q, last, found.q[-1], mass_q)
        small = rest <= np.maximum(tol * total, 4.0 * EPSILON if q.tail is None else EPSILON * EPSILON)
        if np.all(small | ~np.isfinite(total)):
            return Sum(total, np.where(np.isinf(total), 0.0, rest + rounding), done)
        if stop > max(ends) or done * size > budget:
            return None
        start, block = stop, min(block * 2, max(256, _BLOCK // size))


def exceeds(p: Law, q: Law, shape: tuple[int, ...]) -> Array:
    """Has P mass just beyond the last number Q can be? By its logarithm: the mass itself may be too small for a float."""
    ends = np.broadcast_to(np.where(np.isfinite(q.high), q.high + 1.0, q.low), shape)
    return (
        (np.broadcast_to(p.log_prob(ends[None]), (1, *shape))[0] > -math.inf)
        & (np.broadcast_to(p.high, shape) >= ends)
        & np.isfinite(q.high)
    )


def _rest_of_p(p: Law, q: Law, k: float, log_p: Array, log_q: Array) -> Array:
    ended = (k >= p.high) if p.tail is None else (k >= p.high) | (p.tail.ratio(k) == 0.0)
    if np.all(ended):
        return np.zeros(np.shape(log_p))
    if p.tail is None or q.tail is None:
        return np.where(ended, 0.0, math.inf)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        rho = p.tail.ratio(k)
        a, b = (x + y for x, y in zip(p.tail.steep(k), q.tail.steep(k)))
        level = np.abs(log_p - log_q)
        s0 = rho / (1.0 - rho)
        s1, s2 = s0 / (1.0 - rho), s0 * (1.0 + rho) / (1.0 - rho) ** 2
        beyond = np.exp(log_p) * (level * s0 + (a + b * math.log(k + 1.0)) * s1 + 0.5 * b / (k + 1.0) * s2)
        # Nothing is left where p has reached 0 by rounding: below 1e-300, and falling.
        beyond = np.where(np.isnan(beyond) & (rho < 1.0) & (np.exp(log_p) == 0.0), 0.0, beyond)
    return np.where(ended, 0.0, np.where(rho < 1.0, beyond, math.inf))


def _rest_of_q(q: Law, k: float, last: Array, mass: Array) -> Array:
    by_mass = np.maximum(1.0 - mass, 0.0) + 64.0 * EPSILON
    if q.tail is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            rho = q.tail.ratio(k)
            by_mass = np.where(rho < 1.0, np.minimum(by_mass, last * rho / (1.0 - rho)), by_mass)
    return np.where(k >= q.high, 0.0, by_mass)

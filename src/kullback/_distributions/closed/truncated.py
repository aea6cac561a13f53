"""Truncated normal distributions: no framework has all of erfc and its inverse Mills ratio to the last digit, so the integrals are
Gauss-Legendre sums over that part of the interval where the density is not negligible. Good to 1e-12, and differentiable.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..._pairs import phi
from .. import families as f
from ..curves import square
from ..registry import closed_form

Array = Any

_NODES, _WEIGHTS = (x.tolist() for x in np.polynomial.legendre.leggauss(64))
# exp(-x²/2) at x² = top² + 2·_RANGE is e^-_RANGE of what it is at `top`.
_RANGE = 40.0


def _reach(ops: Any, x: Any, low: Array, high: Array) -> tuple[Array, Array]:
    """The ends in units of the scale, the far ones brought to where the density is negligible."""
    # Infinite ones by themselves: the derivative of a quotient of theirs would be NaN.
    a, b = (ops.where(ops.isnan(end * 0.0), end, (ops.where(ops.isnan(end * 0.0), x.loc, end) - x.loc) / x.scale) for end in (low, high))
    # The point of the interval nearest to the mean, from which the density falls off.
    top_right, top_left = ops.where(a > 0.0, a, 0.0), ops.where(b < 0.0, b, 0.0)
    right, left = _root(ops, square(top_right) + 2.0 * _RANGE), -_root(ops, square(top_left) + 2.0 * _RANGE)
    return ops.where(a > left, a, left), ops.where(b < right, b, right)


def _root(ops: Any, x: Array) -> Array:
    return ops.exp(0.5 * ops.log(x))


def _along(ops: Any, x: Array) -> Array:
    """With an axis for the nodes."""
    return ops.expand(x, (-1,))


def _constants(ops: Any, x: Array) -> tuple[Array, Array]:
    return tuple(ops.astype(ops.asarray(numbers, x), x.dtype) for numbers in (_NODES, _WEIGHTS))


class _Quadrature(NamedTuple):
    """Nodes over [a, b], the weights times the density there relative to its largest, where that is, and half the width."""

    z: Array
    weights: Array
    top: Array
    half: Array


def _quadrature(ops: Any, a: Array, b: Array) -> _Quadrature:
    top = ops.where(a > 0.0, a, ops.where(b < 0.0, b, 0.0))
    half = 0.5 * (b - a)
    nodes, weights = _constants(ops, half)
    z = _along(ops, 0.5 * (a + b)) + _along(ops, half) * nodes
    peak = _along(ops, top)
    return _Quadrature(z, weights * ops.exp(-0.5 * ((z - peak) * (z + peak))), top, half)


def _sum(ops: Any, x: Array) -> Array:
    axis = (-1,)
    return ops.squeeze(ops.sum(x, axis), axis)


def _log_mass(ops: Any, x: Any, low: Array, high: Array) -> Array:
    """log ∫ exp(-z²/2) dz over the interval, in units of the scale; -inf where it is empty."""
    a, b = _reach(ops, x, low, high)
    some = b > a
    rule = _quadrature(ops, ops.where(some, a, 0.0), ops.where(some, b, 1.0))
    return ops.where(some, ops.log(rule.half * _sum(ops, rule.weights)) - 0.5 * square(rule.top), -math.inf)


def _truncated_kl(ops: Any, p: Any, q: Any) -> Array:
    """
    With z and y the nodes in units of P and of Q, d = (z² - y²)/2 = log(q/p) up to a constant, and u = d - E[d]:
    KL = log E[e^u] + log(mass of Q / its mass inside P's interval). Where P and Q are close the first is log(1 + E[φ(u)]), and what Q has
    outside is computed as such; else it is from the masses and E[d].
    """
    inside = (p.low >= q.low) & (p.high <= q.high)
    proper = (p.high > p.low) & (q.high > q.low)
    good = inside & proper
    p_low, p_high = ops.where(good, p.low, p.loc - p.scale), ops.where(good, p.high, p.loc + p.scale)
    low, high = ops.where(good, q.low, p_low), ops.where(good, q.high, p_high)
    rule = _quadrature(ops, *_reach(ops, p, p_low, p_high))
    mass = _sum(ops, rule.weights)
    # y = z r + s, r = σ_p/σ_q, s = Δ/σ_q: y - z = z (r - 1) + s, without cancellation.
    ratio, less, shift = p.scale / q.scale, (p.scale - q.scale) / q.scale, _along(ops, (p.loc - q.loc) / q.scale)
    d = -0.5 * (rule.z * _along(ops, less) + shift) * (rule.z * (_along(ops, ratio) + 1.0) + shift)
    mean = _sum(ops, rule.weights * d) / mass
    u = d - _along(ops, mean)
    axis = (-1,)
    close = ops.squeeze(ops.max(u * u, axis), axis) < 1.0
    spread = _sum(ops, rule.weights * phi(ops, ops.where(_along(ops, close), u, 0.0))) / mass
    outside = ops.exp(_log_mass(ops, q, low, p_low)) + ops.exp(_log_mass(ops, q, p_high, high))
    within = ops.exp(ops.where(close, _log_mass(ops, q, p_low, p_high), 0.0))
    near = ops.log1p(spread) + ops.log1p(ops.where(close, outside, 0.0) / within)
    far = _log_mass(ops, q, low, high) - _log_mass(ops, p, p_low, p_high) - ops.log(ratio) - mean
    return ops.where(proper, ops.where(inside, ops.where(close, near, far), math.inf), math.nan)


def _whole(ops: Any, x: Any) -> Any:
    """A Normal distribution is truncated nowhere."""
    if isinstance(x, f.TruncatedNormal):
        return x
    zero = x.loc * 0.0
    return f.TruncatedNormal(x.loc, x.scale, zero - math.inf, zero + math.inf)


@closed_form(f.TruncatedNormal, f.TruncatedNormal)
@closed_form(f.TruncatedNormal, f.Normal)
@closed_form(f.Normal, f.TruncatedNormal)
def _truncated(ops: Any, p: Any, q: Any) -> Array:
    return _truncated_kl(ops, _whole(ops, p), _whole(ops, q))


@closed_form(f.Uniform, f.TruncatedNormal)
def _uniform_truncated(ops: Any, p: Any, q: Any) -> Array:
    # E[z²]/2 + log(mass of Q's interval) - log(width in units of Q's scale)
    inside = (p.low >= q.low) & (p.high <= q.high) & (p.high > p.low)
    low, high = ops.where(inside, p.low, q.loc), ops.where(inside, p.high, q.loc + q.scale)
    q_low, q_high = ops.where(inside, q.low, low), ops.where(inside, q.high, high)
    width, middle = (high - low) / q.scale, (0.5 * (low + high) - q.loc) / q.scale
    value = 0.5 * (square(width) / 12.0 + square(middle)) + _log_mass(ops, q, q_low, q_high) - ops.log(width)
    proper = (p.high > p.low) & (q.high > q.low)
    return ops.where(proper, ops.where(inside, value, math.inf), math.nan)


@closed_form(f.TruncatedNormal, f.Uniform)
def _truncated_uniform(ops: Any, p: Any, q: Any) -> Array:
    inside = (p.low >= q.low) & (p.high <= q.high) & (p.high > p.low)
    low, high = ops.where(inside, p.low, p.loc), ops.where(inside, p.high, p.loc + p.scale)
    a, b = _reach(ops, p, low, high)
    rule = _quadrature(ops, a, b)
    squares = _sum(ops, rule.weights * rule.z * rule.z) / _sum(ops, rule.weights)
    width = ops.where(inside, q.high - q.low, p.scale)
    value = ops.log(width / p.scale) - _log_mass(ops, p, low, high) - 0.5 * squares
    proper = (p.high > p.low) & (q.high > q.low)
    return ops.where(proper, ops.where(inside, value, math.inf), math.nan)

"""Closed forms on the real line. Each is a sum of terms ≥ 0 (`special`), unless it says why not. Gumbel's are in `gammas`."""

from __future__ import annotations

import math
from typing import Any

from ..._pairs import phi
from .. import families as f
from ..curves import Bessel, absolute, any_phi, mean_distance, sinhc, square
from ..registry import closed_form, in_float32
from ..special import gap
from .gammas import Power, power_kl

Array = Any


def _scales(ops: Any, p: Array, q: Array) -> Array:
    """(r² - 1)/2 - log r for r = p/q: KL between normal distributions of one mean."""
    change = (p - q) / q
    return 0.5 * square(change) + gap(ops, p, q, change=change)


@closed_form(f.Normal, f.Normal)
@closed_form(f.LogNormal, f.LogNormal)
@closed_form(f.LogitNormal, f.LogitNormal)
@in_float32
def _normal(ops: Any, p: Any, q: Any) -> Array:
    return _scales(ops, p.scale, q.scale) + 0.5 * square((p.loc - q.loc) / q.scale)


@closed_form(f.NormalLogScale, f.NormalLogScale)
def _normal_log_scale(ops: Any, p: Any, q: Any) -> Array:
    return 0.5 * (any_phi(ops, 2.0 * (p.log_scale - q.log_scale)) + square((p.loc - q.loc) / ops.exp(q.log_scale)))


@closed_form(f.NormalLogScale, f.Normal)
def _log_scale_normal(ops: Any, p: Any, q: Any) -> Array:
    return _scales(ops, ops.exp(p.log_scale), q.scale) + 0.5 * square((p.loc - q.loc) / q.scale)


@closed_form(f.Normal, f.NormalLogScale)
def _normal_to_log_scale(ops: Any, p: Any, q: Any) -> Array:
    scale = ops.exp(q.log_scale)
    return _scales(ops, p.scale, scale) + 0.5 * square((p.loc - q.loc) / scale)


@closed_form(f.HalfNormal, f.Normal)
def _half_normal_normal(ops: Any, p: Any, q: Any) -> Array:
    # E[x] = σ√(2/π). For Q centred at 0 that of the half lines, and log 2.
    mean = (p.scale * math.sqrt(2.0 / math.pi) - 0.5 * q.loc) / q.scale
    return _scales(ops, p.scale, q.scale) + math.log(2.0) - q.loc / q.scale * mean


@closed_form(f.Laplace, f.Laplace)
def _laplace(ops: Any, p: Any, q: Any) -> Array:
    # With r = b_p/b_q and x = |Δ|/b_p: (r - 1 - log r) + r (e^-x - 1 + x)
    distance = absolute(ops, p.loc - q.loc) / p.scale
    return gap(ops, p.scale, q.scale) + p.scale / q.scale * phi(ops, -distance)


@closed_form(f.Laplace, f.Normal)
def _laplace_normal(ops: Any, p: Any, q: Any) -> Array:
    # Variance 2 b²; its entropy lacks (log π - 1)/2 to that of the normal distribution of the same variance.
    ratio = p.scale / q.scale
    return 0.5 * (gap(ops, 2.0 * ratio * ratio, ratio * 0.0 + 1.0) + square((p.loc - q.loc) / q.scale)) + 0.5 * (math.log(math.pi) - 1.0)


@closed_form(f.Normal, f.Laplace)
def _normal_laplace(ops: Any, p: Any, q: Any) -> Array:
    # -log(2πe σ²)/2 + log(2b) + E|x - μ|/b: with u = √(2/π) σ/b, the mean distance for one location, (u - 1 - log u) + 1/2 - log(π/2),
    # and more of it the farther apart.
    u = math.sqrt(2.0 / math.pi) * (p.scale / q.scale)
    distance = mean_distance(ops, (p.loc - q.loc) / p.scale) - math.sqrt(2.0 / math.pi)
    return gap(ops, u, u * 0.0 + 1.0) + p.scale / q.scale * distance + (0.5 - math.log(math.pi / 2.0))


@closed_form(f.Exponential, f.Laplace)
def _exponential_laplace(ops: Any, p: Any, q: Any) -> Array:
    # u = 1/(rate b): (u - 1 - log u) + log 2, and for a location of m = rate loc: -u m where m <= 0, else u (m - 2 + 2 e^-m).
    m = p.rate * q.loc
    u = 1.0 / (p.rate * q.scale)
    right = m > 0.0
    inside = ops.where(right, m, 0.0)
    # m - 2 + 2 e^-m = 2 φ(-m) - m
    more = ops.where(right, 2.0 * phi(ops, -inside) - inside, -m)
    return gap(ops, u, u * 0.0 + 1.0) + math.log(2.0) + u * more


def _cauchy_scales(ops: Any, p: Array, q: Array, distance: Array) -> Array:
    # log(((γ_p + γ_q)² + Δ²) / (4 γ_p γ_q)), one quotient at a time: the product might underflow.
    return ops.log1p(0.25 * ((p - q) / p * ((p - q) / q) + distance / p * (distance / q)))


@closed_form(f.Cauchy, f.Cauchy)
def _cauchy(ops: Any, p: Any, q: Any) -> Array:
    return _cauchy_scales(ops, p.scale, q.scale, p.loc - q.loc)


@closed_form(f.HalfCauchy, f.HalfCauchy)
def _half_cauchy(ops: Any, p: Any, q: Any) -> Array:
    # No more than that of the whole Cauchy distributions: both densities are doubled.
    return _cauchy_scales(ops, p.scale, q.scale, 0.0)


@closed_form(f.HalfCauchy, f.Cauchy, when="a location of 0")
def _half_cauchy_cauchy(ops: Any, p: Any, q: Any) -> Array:
    # Of one location only; else NaN, and there is no closed form.
    return ops.where(q.loc == 0.0, _cauchy_scales(ops, p.scale, q.scale, 0.0) + math.log(2.0), math.nan)


@closed_form(f.Logistic, f.Logistic, when="equal scales")
def _logistic(ops: Any, p: Any, q: Any) -> Array:
    # Of one scale: 2 (x coth x - 1) = 2 x L'(x), x = Δ/(2 scale), L = log(sinh(x)/x). Else NaN.
    x = 0.5 * ((p.loc - q.loc) / q.scale)
    return ops.where(p.scale == q.scale, 2.0 * x * sinhc(ops, x).slope, math.nan)


_CENTRED = "equal locations, or power 2 of Q"


def _generalized(power: Array, scale: Array) -> Power:
    """|x - loc|, as a power of a gamma variable."""
    zero = power * 0.0
    return Power((zero + 1.0) / power, power, zero + 1.0, zero + 1.0, zero + scale, zero)


@closed_form(f.GeneralizedNormal, f.GeneralizedNormal, when=_CENTRED)
def _generalized_normal(ops: Any, p: Any, q: Any) -> Array:
    # Of one location: that of the distances to it. Or Q normal: their variance and distance. Else NaN.
    same = p.loc == q.loc
    difference = (p.power - q.power) / (p.power * q.power)
    value = power_kl(ops, "x", _generalized(p.power, p.scale), _generalized(q.power, q.scale), difference)
    squares = square((p.loc - q.loc) / q.scale)
    return ops.where(same, value, ops.where(q.power == 2.0, value + squares, math.nan))


def _as_generalized(ops: Any, x: Any) -> tuple[Array, Power]:
    """Location, and the rest; Normal(loc, s) has power 2 and rate 1/2, Laplace power 1."""
    if isinstance(x, f.GeneralizedNormal):
        return x.loc, _generalized(x.power, x.scale)
    two = isinstance(x, f.Normal)
    zero = x.scale * 0.0
    power = zero + (2.0 if two else 1.0)
    return x.loc, Power((zero + 1.0) / power, power, zero + 1.0, zero + (0.5 if two else 1.0), zero + x.scale, zero)


@closed_form(f.GeneralizedNormal, f.Normal)
@closed_form(f.GeneralizedNormal, f.Laplace, when="equal locations")
@closed_form(f.Normal, f.GeneralizedNormal, when=_CENTRED)
@closed_form(f.Laplace, f.GeneralizedNormal, when=_CENTRED)
def _generalized_mixed(ops: Any, p: Any, q: Any) -> Array:
    (p_loc, first), (q_loc, second) = _as_generalized(ops, p), _as_generalized(ops, q)
    value = power_kl(ops, "x", first, second, (first.n - second.n) / (first.n * second.n))
    if isinstance(q, f.Normal):
        return value + 0.5 * square((p_loc - q_loc) / q.scale)
    normal = second.n == 2.0
    squares = square((p_loc - q_loc) / q.scale)
    return ops.where(p_loc == q_loc, value, ops.where(normal, value + squares, math.nan))


_CIRCLE = Bessel(0.0)


@closed_form(f.VonMises, f.VonMises)
def _von_mises(ops: Any, p: Any, q: Any) -> Array:
    # The remainder of log I_0, and κ_q A(κ_p) (1 - cos Δ).
    slope = _CIRCLE.both(ops, p.concentration)[1]
    turn = square(ops.sin(0.5 * (p.loc - q.loc)))
    return _CIRCLE.remainder(ops, p.concentration, q.concentration) + 2.0 * q.concentration * slope * turn

"""Closed forms on the real line, on the half line and on intervals. Each is a sum of terms ≥ 0 (`special`), unless it says why not."""

from __future__ import annotations

import math
from typing import Any

from .._divergences import kl
from .._pairs import phi
from .families import (
    Beta,
    Cauchy,
    Dirichlet,
    Exponential,
    Gamma,
    GammaScale,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    InverseGaussian,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    Uniform,
    Weibull,
)
from .registry import closed_form
from .special import gamma_gap, gap, log_ratio, product_difference

Array = Any
_EULER = 0.57721566490153286


def _square(x: Array) -> Array:
    return x * x


def any_phi(ops: Any, x: Array) -> Array:
    """e^x - 1 - x for any x."""
    large = x > 1.0
    safe = ops.where(large, x, 1.0)
    return ops.where(large, ops.exp(safe) - 1.0 - safe, phi(ops, ops.where(large, 0.0, x)))


def log_gamma_remainder(ops: Any, a: Array, b: Array, difference: Array) -> Array:
    """log Γ(b) - log Γ(a) - ψ(a) (b - a) >= 0."""
    return b * gap(ops, a, b, -difference) + gamma_gap(ops, a, b, difference)


def _gumbel_kl(ops: Any, p_scale: Array, q_scale: Array, shift: Array) -> Array:
    """r = p_scale/q_scale: log Γ(r) + γ (r - 1) + [e^w - 1 - w], w = log Γ(1 + r) - shift; the first is the remainder of log Γ at 1."""
    change = (p_scale - q_scale) / q_scale
    r, one = p_scale / q_scale, change * 0.0 + 1.0
    # log Γ(1 + r) as its value and slope at 2, and a remainder: accurate near r = 1.
    log_gamma = log_gamma_remainder(ops, one + 1.0, one + r, change) + (1.0 - _EULER) * change
    return log_gamma_remainder(ops, one, r, change) + any_phi(ops, log_gamma - shift)


def _scales(ops: Any, p: Array, q: Array) -> Array:
    """(r² - 1)/2 - log r for r = p/q: KL between normal distributions of one mean."""
    change = (p - q) / q
    return 0.5 * _square(change) + gap(ops, p, q)


@closed_form(Normal, Normal)
@closed_form(LogNormal, LogNormal)
def _normal(ops: Any, p: Any, q: Any) -> Array:
    return _scales(ops, p.scale, q.scale) + 0.5 * _square((p.loc - q.loc) / q.scale)


@closed_form(HalfNormal, HalfNormal)
def _half_normal(ops: Any, p: Any, q: Any) -> Array:
    return _scales(ops, p.scale, q.scale)


@closed_form(Laplace, Laplace)
def _laplace(ops: Any, p: Any, q: Any) -> Array:
    # With r = b_p/b_q and x = |Δ|/b_p: (r - 1 - log r) + r (e^-x - 1 + x)
    distance = p.loc - q.loc
    distance = ops.where(distance < 0.0, -distance, distance) / p.scale
    return gap(ops, p.scale, q.scale) + p.scale / q.scale * phi(ops, -distance)


def _cauchy_scales(ops: Any, p: Array, q: Array, distance: Array) -> Array:
    # log(((γ_p + γ_q)² + Δ²) / (4 γ_p γ_q)), one quotient at a time: the product might underflow.
    return ops.log1p(0.25 * ((p - q) / p * ((p - q) / q) + distance / p * (distance / q)))


@closed_form(Cauchy, Cauchy)
def _cauchy(ops: Any, p: Any, q: Any) -> Array:
    return _cauchy_scales(ops, p.scale, q.scale, p.loc - q.loc)


@closed_form(Gumbel, Gumbel)
def _gumbel(ops: Any, p: Any, q: Any) -> Array:
    return _gumbel_kl(ops, p.scale, q.scale, (p.loc - q.loc) / q.scale)


@closed_form(Exponential, Exponential)
def _exponential(ops: Any, p: Any, q: Any) -> Array:
    return gap(ops, q.rate, p.rate)


def _gamma_kl(ops: Any, a: Array, rate_p: Array, b: Array, rate_q: Array) -> Array:
    # With u the ratio of the means, b (u - 1 - log u) + what log Γ adds to x log x.
    first, second = rate_q * a, rate_p * b
    return b * gap(ops, first, second, product_difference(ops, rate_q, a, rate_p, b)) + gamma_gap(ops, a, b)


@closed_form(Gamma, Gamma)
def _gamma(ops: Any, p: Any, q: Any) -> Array:
    return _gamma_kl(ops, p.concentration, p.rate, q.concentration, q.rate)


@closed_form(GammaScale, GammaScale)
def _gamma_scale(ops: Any, p: Any, q: Any) -> Array:
    return _gamma_kl(ops, p.concentration, q.scale, q.concentration, p.scale)


@closed_form(InverseGamma, InverseGamma)
def _inverse_gamma(ops: Any, p: Any, q: Any) -> Array:
    return _gamma_kl(ops, p.concentration, p.scale, q.concentration, q.scale)


@closed_form(HalfCauchy, HalfCauchy)
def _half_cauchy(ops: Any, p: Any, q: Any) -> Array:
    # No more than that of the whole Cauchy distributions: both densities are doubled.
    return _cauchy_scales(ops, p.scale, q.scale, 0.0)


@closed_form(Pareto, Pareto)
def _pareto(ops: Any, p: Any, q: Any) -> Array:
    # inf where P reaches below Q; else (α_q/α_p - 1 - log(α_q/α_p)) + α_q log(m_p/m_q)
    inside = p.scale >= q.scale
    value = gap(ops, q.concentration, p.concentration) + q.concentration * log_ratio(ops, ops.where(inside, p.scale, q.scale), q.scale)
    return ops.where(inside, value, math.inf)


@closed_form(Weibull, Weibull)
def _weibull(ops: Any, p: Any, q: Any) -> Array:
    # -log x is Gumbel, of location -log(scale) and scale 1/concentration.
    return _gumbel_kl(ops, q.concentration, p.concentration, q.concentration * log_ratio(ops, q.scale, p.scale))


@closed_form(InverseGaussian, InverseGaussian)
def _inverse_gaussian(ops: Any, p: Any, q: Any) -> Array:
    # E[1/x] = 1/μ + 1/λ: [λ_q/λ_p - 1 - log(λ_q/λ_p)]/2 + λ_q (μ_p - μ_q)² / (2 μ_p μ_q²)
    shift = (p.loc - q.loc) / q.loc
    return 0.5 * (gap(ops, q.concentration, p.concentration) + q.concentration / p.loc * _square(shift))


@closed_form(Uniform, Uniform)
def _uniform(ops: Any, p: Any, q: Any) -> Array:
    # log of the ratio of the widths, whose difference is accurate where the ends are close.
    inside = (p.low >= q.low) & (p.high <= q.high)
    width = p.high - p.low
    inside = inside & (width > 0.0)
    proper = (width > 0.0) & (q.high > q.low)
    excess = (q.high - p.high) + (p.low - q.low)
    value = ops.where(inside, ops.log1p(ops.where(inside, excess, 0.0) / ops.where(inside, width, 1.0)), math.inf)
    return ops.where(proper, value, math.nan)


def dirichlet_kl(ops: Any, alpha: Array, beta: Array) -> Array:
    """Along the last axis. With a + b = Σ etc.: Σβ · KL(β/Σβ‖α/Σα), Bregman's chain rule for x log x, and what log Γ adds."""
    axes = (len(alpha.shape) - 1,)
    total_p, total_q = ops.sum(alpha, axes), ops.sum(beta, axes)
    own = ops.sum(gamma_gap(ops, alpha, beta), axes)
    total = gamma_gap(ops, total_p, total_q, ops.sum(beta - alpha, axes))
    shape = kl(beta, alpha, axis=-1, keepdims=True, check=False)
    return ops.squeeze(total_q * shape + (own - total), axes)


@closed_form(Dirichlet, Dirichlet)
def _dirichlet(ops: Any, p: Any, q: Any) -> Array:
    alpha, beta = ops.broadcast([p.concentration, q.concentration])
    return dirichlet_kl(ops, alpha, beta)


@closed_form(Beta, Beta)
def _beta(ops: Any, p: Any, q: Any) -> Array:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    total_p, total_q = a + b, c + d
    # Σβ · KL(β/Σβ‖α/Σα) of two categories: with x = (a (c + d) - c (a + b)) = a d - b c
    cross = product_difference(ops, a, d, b, c)
    shape = c * gap(ops, a * total_q, c * total_p, cross) + d * gap(ops, b * total_q, d * total_p, -cross)
    own = gamma_gap(ops, a, c) + gamma_gap(ops, b, d)
    return shape + (own - gamma_gap(ops, total_p, total_q, (c - a) + (d - b)))

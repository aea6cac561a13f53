"""Closed forms on the half line, other than of powers of gamma variables (`gammas`)."""

from __future__ import annotations

import math
from typing import Any

from .. import families as f
from ..curves import log1p_remainder, square
from ..registry import closed_form
from ..special import gap, log_ratio, stirling_excess

Array = Any


@closed_form(f.Pareto, f.Pareto)
def _pareto(ops: Any, p: Any, q: Any) -> Array:
    # inf where P reaches below Q; else (α_q/α_p - 1 - log(α_q/α_p)) + α_q log(m_p/m_q)
    inside = p.scale >= q.scale
    value = gap(ops, q.concentration, p.concentration) + q.concentration * log_ratio(ops, ops.where(inside, p.scale, q.scale), q.scale)
    return ops.where(inside, value, math.inf)


def gamma_cross(ops: Any, k: Array, rate: Array, mean: Array, jensen: Array, mean_log: Array) -> Array:
    """-E[log q] for Q = Gamma(k, rate) and any P on the half line, less E[log x]: `jensen` is log E[x] - E[log x] >= 0.

    k gap(rate E[x]/k) + k jensen + E[log x] + log(2π/k)/2 + what log Γ(k) has beyond Stirling's formula: for large k nothing cancels.
    """
    stirling = 0.5 * (math.log(2.0 * math.pi) - ops.log(k)) + stirling_excess(ops, k)
    return k * (gap(ops, rate * mean, k) + jensen) + mean_log + stirling


@closed_form(f.Pareto, f.Gamma)
def _pareto_gamma(ops: Any, p: Any, q: Any) -> Array:
    # inf where P has no mean. E[log x] = log m + 1/α, entropy log(m/α) + 1 + 1/α.
    finite = p.concentration > 1.0
    alpha = ops.where(finite, p.concentration, 2.0)
    mean = p.scale * (alpha / (alpha - 1.0))
    jensen = log1p_remainder(ops, -1.0 / alpha)
    cross = gamma_cross(ops, q.concentration, q.rate, mean, jensen, ops.log(p.scale) + 1.0 / alpha)
    return ops.where(finite, cross + ops.log(alpha) - ops.log(p.scale) - 1.0 - 1.0 / alpha, math.inf)


@closed_form(f.Pareto, f.Exponential)
def _pareto_exponential(ops: Any, p: Any, q: Any) -> Array:
    finite = p.concentration > 1.0
    alpha = ops.where(finite, p.concentration, 2.0)
    reach = p.scale * q.rate
    return ops.where(finite, ops.log(alpha) - ops.log(reach) - 1.0 - 1.0 / alpha + reach * (alpha / (alpha - 1.0)), math.inf)


@closed_form(f.Pareto, f.Normal)
def _pareto_normal(ops: Any, p: Any, q: Any) -> Array:
    # inf where P has no variance, which is m² α/((α - 1)² (α - 2)).
    finite = p.concentration > 2.0
    alpha = ops.where(finite, p.concentration, 3.0)
    spread = p.scale / (alpha - 1.0)
    mean = (p.scale - q.loc + spread) / q.scale
    variance = square(spread / q.scale) * (alpha / (alpha - 2.0))
    # entropy log(m/α) + 1 + 1/α
    value = (
        0.5 * (square(mean) + variance) + 0.5 * math.log(2.0 * math.pi) + ops.log(q.scale / p.scale) + ops.log(alpha) - 1.0 - 1.0 / alpha
    )
    return ops.where(finite, value, math.inf)


@closed_form(f.InverseGaussian, f.InverseGaussian)
def _inverse_gaussian(ops: Any, p: Any, q: Any) -> Array:
    # E[1/x] = 1/μ + 1/λ: [λ_q/λ_p - 1 - log(λ_q/λ_p)]/2 + λ_q (μ_p - μ_q)² / (2 μ_p μ_q²)
    shift = (p.loc - q.loc) / q.loc
    return 0.5 * (gap(ops, q.concentration, p.concentration) + q.concentration / p.loc * square(shift))

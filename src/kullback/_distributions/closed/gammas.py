"""Laws of powers of a gamma variable, of their inverses and logarithms: one formula for all pairs of them, and for them beside normal ones.

y = rate · (v/scale)^(n/d) ~ Gamma(k, 1), where v is x, 1/x, e^x or e^-x, the same for both distributions; KL does not see the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from .. import families as f
from ..curves import any_phi, log1p_remainder, square
from ..families import Record
from ..registry import closed_form
from ..special import (
    digamma,
    gamma_entropy_gap,
    gamma_gap,
    gap,
    is_quick,
    log_gamma_entropy_gap,
    log_gamma_remainder,
    log_ratio,
    parameter_difference,
    product_difference,
    stirling_excess,
    trigamma,
)

Array = Any
_EULER = 0.57721566490153286


class Power(NamedTuple):
    """k, the power n/d, rate, and where it lies: `scale` of x (or of 1/x), or `loc` of x = ± log v."""

    k: Array
    n: Array
    d: Array
    rate: Array
    scale: Array
    loc: Array


def _power(k: Array, n: Any = 1.0, d: Any = 1.0, rate: Any = 1.0, scale: Any = 1.0, loc: Any = 0.0) -> Power:
    # A number beside arrays of any dtype: all the formulas see are arrays.
    zero = k * 0.0
    return Power(k, *(zero + x for x in (n, d, rate, scale, loc)))


# By v, and for each family how it is such a law.
POWERS: dict[str, dict[type[Record], Callable[[Any], Power]]] = {
    "x": {
        f.Gamma: lambda g: _power(g.concentration, rate=g.rate),
        f.GammaScale: lambda g: _power(g.concentration, scale=g.scale),
        f.Exponential: lambda g: _power(g.rate * 0.0 + 1.0, rate=g.rate),
        f.Chi2: lambda g: _power(0.5 * g.df, rate=0.5),
        f.GeneralizedGamma: lambda g: _power(g.concentration, n=g.power, scale=g.scale),
        f.Weibull: lambda g: _power(g.concentration * 0.0 + 1.0, n=g.concentration, scale=g.scale),
        f.HalfNormal: lambda g: _power(g.scale * 0.0 + 0.5, n=2.0, rate=0.5, scale=g.scale),
        f.Rayleigh: lambda g: _power(g.scale * 0.0 + 1.0, n=2.0, rate=0.5, scale=g.scale),
        f.Maxwell: lambda g: _power(g.scale * 0.0 + 1.5, n=2.0, rate=0.5, scale=g.scale),
        f.Chi: lambda g: _power(0.5 * g.df, n=2.0, rate=0.5),
        f.Nakagami: lambda g: _power(g.concentration, n=2.0, rate=g.concentration / g.spread),
    },
    "1/x": {
        f.InverseGamma: lambda g: _power(g.concentration, scale=g.scale),
        f.InverseWeibull: lambda g: _power(g.concentration * 0.0 + 1.0, n=g.concentration, scale=g.scale),
        f.Levy: lambda g: _power(g.scale * 0.0 + 0.5, rate=0.5, scale=g.scale),
    },
    "e^x": {
        f.ExpGamma: lambda g: _power(g.concentration, rate=g.rate),
        f.ExpGammaLog: lambda g: _power(g.concentration, loc=-g.log_rate),
    },
    "e^-x": {
        f.Gumbel: lambda g: _power(g.scale * 0.0 + 1.0, d=g.scale, loc=g.loc),
        f.Moyal: lambda g: _power(g.scale * 0.0 + 0.5, d=g.scale, rate=0.5, loc=g.loc),
        f.ExpInverseGamma: lambda g: _power(g.concentration, rate=g.scale),
        f.ExpInverseGammaLog: lambda g: _power(g.concentration, loc=g.log_scale),
    },
}


def gamma_kl(ops: Any, a: Array, rate_p: Array, b: Array, rate_q: Array) -> Array:
    """Gamma(a, rate_p) ‖ Gamma(b, rate_q)."""
    if is_quick(ops):
        # The plain sum, R(a, b) + a (r - 1) - b log r, r = rate_q/rate_p, where it is good enough.
        value, size = ops.log_gamma_remainder(a, b)
        more, less = a * ((rate_q - rate_p) / rate_p), b * log_ratio(ops, rate_q, rate_p)
        return ops.refine(value + (more - less), size + (abs(more) + abs(less)), partial(_gamma_kl, ops), a, rate_p, b, rate_q)
    return _gamma_kl(ops, a, rate_p, b, rate_q)


def _gamma_kl(ops: Any, a: Array, rate_p: Array, b: Array, rate_q: Array) -> Array:
    # With u the ratio of the means, b (u - 1 - log u) + what log Γ adds to x log x.
    first, second = rate_q * a, rate_p * b
    return b * gap(ops, first, second, parameter_difference(ops, rate_q, a, rate_p, b)) + gamma_gap(ops, a, b)


@closed_form(f.Gamma, f.Gamma)
@closed_form(f.ExpGamma, f.ExpGamma)
def _gamma(ops: Any, p: Any, q: Any) -> Array:
    return gamma_kl(ops, p.concentration, p.rate, q.concentration, q.rate)


@closed_form(f.GammaLog, f.GammaLog)
@closed_form(f.GammaLog, f.Gamma)
@closed_form(f.Gamma, f.GammaLog)
def _gamma_log(ops: Any, p: Any, q: Any) -> Array:
    # The KL of the logarithms of the variables is the same. There the logarithm of the rate is a location, and is not rounded.
    first, second = (POWERS["e^x"][f.ExpGammaLog if isinstance(x, f.GammaLog) else f.ExpGamma](x) for x in (p, q))
    return power_kl(ops, "e^x", first, second)


@closed_form(f.GammaScale, f.GammaScale)
def _gamma_scale(ops: Any, p: Any, q: Any) -> Array:
    return gamma_kl(ops, p.concentration, q.scale, q.concentration, p.scale)


@closed_form(f.InverseGamma, f.InverseGamma)
@closed_form(f.ExpInverseGamma, f.ExpInverseGamma)
def _inverse_gamma(ops: Any, p: Any, q: Any) -> Array:
    return gamma_kl(ops, p.concentration, p.scale, q.concentration, q.scale)


@closed_form(f.Exponential, f.Exponential)
def _exponential(ops: Any, p: Any, q: Any) -> Array:
    return gap(ops, q.rate, p.rate)


@closed_form(f.HalfNormal, f.HalfNormal)
@closed_form(f.Rayleigh, f.Rayleigh)
@closed_form(f.Maxwell, f.Maxwell)
def _one_scale(ops: Any, p: Any, q: Any) -> Array:
    # Gamma laws of x² of one concentration k: k gap(r²), and gap(r²) = (r - 1)² + 2 gap(r).
    k = {f.HalfNormal: 0.5, f.Rayleigh: 1.0, f.Maxwell: 1.5}[type(p)]
    return k * (square((p.scale - q.scale) / q.scale) + 2.0 * gap(ops, p.scale, q.scale))


@closed_form(f.Levy, f.Levy)
def _levy(ops: Any, p: Any, q: Any) -> Array:
    return 0.5 * gap(ops, q.scale, p.scale)


def _gumbel_kl(ops: Any, p_scale: Array, q_scale: Array, shift: Array) -> Array:
    """r = p_scale/q_scale: log Γ(r) + γ (r - 1) + [e^w - 1 - w], w = log Γ(1 + r) - shift; the first is the remainder of log Γ at 1."""
    change = (p_scale - q_scale) / q_scale
    r, one = p_scale / q_scale, change * 0.0 + 1.0
    # log Γ(1 + r) as its value and slope at 2, and a remainder: accurate near r = 1.
    log_gamma = log_gamma_remainder(ops, one + 1.0, one + r, change) + (1.0 - _EULER) * change
    return log_gamma_remainder(ops, one, r, change) + any_phi(ops, log_gamma - shift)


@closed_form(f.Gumbel, f.Gumbel)
def _gumbel(ops: Any, p: Any, q: Any) -> Array:
    return _gumbel_kl(ops, p.scale, q.scale, (p.loc - q.loc) / q.scale)


@closed_form(f.Weibull, f.Weibull)
def _weibull(ops: Any, p: Any, q: Any) -> Array:
    # -log x is Gumbel, of location -log(scale) and scale 1/concentration.
    return _gumbel_kl(ops, q.concentration, p.concentration, q.concentration * log_ratio(ops, q.scale, p.scale))


@closed_form(f.InverseWeibull, f.InverseWeibull)
def _inverse_weibull(ops: Any, p: Any, q: Any) -> Array:
    return _gumbel_kl(ops, q.concentration, p.concentration, q.concentration * log_ratio(ops, p.scale, q.scale))


def _log_scales(ops: Any, v: str, p: Power, q: Power) -> Array:
    """log of the ratio of the scales of v, times Q's power, and of that of the rates."""
    power = q.n / q.d
    rates = log_ratio(ops, q.rate, p.rate)
    if v == "e^x" or v == "e^-x":
        return power * (p.loc - q.loc if v == "e^x" else q.loc - p.loc) + rates
    up, down = (p.scale, q.scale) if v == "x" else (q.scale, p.scale)
    # The two may cancel, as for Normal(0, √½) and exp(-x²), whose rates are 1/2 and 1: where the power is 1 or 2, one logarithm of both.
    square = power == 2.0
    one = (power == 1.0) | square
    for x in (up, down, p.rate, q.rate):  # products of three must not overflow, nor vanish
        one = one & (x < 1e12) & (x > 1e-12)
    left, right = ops.where(square & one, up * q.rate, q.rate), ops.where(square & one, down * p.rate, p.rate)
    safe = [ops.where(one, x, 1.0) for x in (left, up, right, down)]
    together = log_ratio(ops, safe[0] * safe[1], safe[2] * safe[3], product_difference(ops, *safe))
    return ops.where(one, together, power * log_ratio(ops, up, down) + rates)


def power_kl(ops: Any, v: str, p: Power, q: Power, difference: Array | None = None) -> Array:
    """
    With r the ratio of the powers (Q's over P's), c = r - 1, m = E[y_q] under P and R the remainder of log Γ:
    KL = k_q φ(log(m/k_q)) + gamma_gap(k_p, k_q) + gap(r) + c (k_q - k_p)/k_p + k_q R(k_p + 1, k_p + r),
    log(m/k_q) = n_q log(scale_p/scale_q) + log(rate_q/rate_p^r) + [R(k_p + 1, k_p + r) + c ψ(k_p + 1)] - log(k_q/k_p).
    `difference` is k_q - k_p. All of second order; what is negative is the product alone.
    Derived from E[log y_p] = ψ(k_p) and E[y_p^r] = Γ(k_p + r)/Γ(k_p).
    """
    h = (q.k - p.k) if difference is None else difference
    # `barrier`: what is used more than once, tinygrad would else write out each time.
    c = ops.barrier(product_difference(ops, q.n, p.d, q.d, p.n) / (q.d * p.n))
    r = 1.0 + c
    next_k = p.k + 1.0
    rest = ops.barrier(log_gamma_remainder(ops, next_k, p.k + r, c))
    log_scales = _log_scales(ops, v, p, q) - c * ops.log(p.rate)
    log_mean = log_scales + (rest + c * digamma(ops, next_k)) - log_ratio(ops, q.k, p.k, h)
    return q.k * any_phi(ops, log_mean) + gamma_gap(ops, p.k, q.k, h) + (gap(ops, r, r * 0.0 + 1.0, c) + c * (h / p.k)) + q.k * rest


# Laws whose KL with a law of the same family is simpler, and stands above.
_SIMPLER = (
    f.Gamma, f.GammaScale, f.ExpGamma, f.InverseGamma, f.ExpInverseGamma, f.Exponential, f.HalfNormal,
    f.Rayleigh, f.Maxwell, f.Levy, f.Nakagami, f.Weibull, f.InverseWeibull, f.Gumbel,
)  # fmt: skip
# Gamma distributions under four names. The pairs of these stand below.
_GAMMAS = (f.Gamma, f.GammaScale, f.Exponential, f.Chi2)


def _register_powers() -> None:
    apart = {(x, x) for x in _SIMPLER} | {(x, y) for x in _GAMMAS for y in _GAMMAS}
    for v, laws in POWERS.items():
        for first, as_p in laws.items():
            for second, as_q in laws.items():
                if (first, second) in apart:
                    continue

                def function(ops: Any, p: Any, q: Any, v: str = v, as_p: Any = as_p, as_q: Any = as_q) -> Array:
                    return power_kl(ops, v, as_p(p), as_q(q))

                function.__doc__ = power_kl.__doc__
                closed_form(first, second)(function)


_register_powers()


def _rate(ops: Any, g: Any) -> tuple[Array, Array, Array]:
    """Concentration, and the rate as a quotient."""
    if isinstance(g, f.Exponential):
        one = g.rate * 0.0 + 1.0
        return one, g.rate, one
    if isinstance(g, f.Chi2):
        return 0.5 * g.df, g.df * 0.0 + 0.5, g.df * 0.0 + 1.0
    if isinstance(g, f.Nakagami):  # of x²
        return g.concentration, g.concentration, g.spread
    if isinstance(g, f.GammaScale):
        return g.concentration, g.concentration * 0.0 + 1.0, g.scale
    return g.concentration, g.rate, g.rate * 0.0 + 1.0


def _gammas(ops: Any, p: Any, q: Any) -> Array:
    # As _gamma, with rates that are quotients: rate_q a - rate_p b = (n_q d_p a - n_p d_q b)/(d_p d_q); the products' errors count.
    (a, p_up, p_down), (b, q_up, q_down) = _rate(ops, p), _rate(ops, q)
    left, right = q_up * p_down, p_up * q_down
    left_error = product_difference(ops, q_up, p_down, left, left * 0.0 + 1.0)
    right_error = product_difference(ops, p_up, q_down, right, right * 0.0 + 1.0)
    difference = product_difference(ops, left, a, right, b) + (left_error * a - right_error * b)
    return b * gap(ops, left * a, right * b, difference) + gamma_gap(ops, a, b)


closed_form(f.Nakagami, f.Nakagami)(_gammas)
for _first in _GAMMAS:
    for _second in _GAMMAS:
        if (_first, _second) not in ((f.Gamma, f.Gamma), (f.GammaScale, f.GammaScale), (f.Exponential, f.Exponential)):
            closed_form(_first, _second)(_gammas)


def _register_normals() -> None:
    """log v of a LogNormal variable (or a Normal one itself) is normal too."""
    for v, laws in POWERS.items():
        normal: Any = f.LogNormal if v in ("x", "1/x") else f.Normal
        for family, as_power in laws.items():

            def from_normal(ops: Any, p: Any, q: Any, v: str = v, as_power: Any = as_power) -> Array:
                return _normal_power(ops, v, p, as_power(q))

            def to_normal(ops: Any, p: Any, q: Any, v: str = v, as_power: Any = as_power) -> Array:
                return _power_normal(ops, v, as_power(p), q)

            from_normal.__doc__, to_normal.__doc__ = _normal_power.__doc__, _power_normal.__doc__
            closed_form(normal, family)(from_normal)
            closed_form(family, normal)(to_normal)


def _mean_log(ops: Any, v: str, mean: Array, x: Power) -> Array:
    """mean of log(v/scale) for log x (or x) of this mean."""
    if v == "x":
        return mean - ops.log(x.scale)
    if v == "1/x":
        return ops.log(x.scale) - mean
    return mean - x.loc if v == "e^x" else x.loc - mean


def _normal_power(ops: Any, v: str, p: Any, q: Power) -> Array:
    """With E[y] = rate exp(n μ + n² σ²/2), KL = k φ(log(E[y]/k)) + gap(k n² σ²)/2 + stirling_excess(k)."""
    n = q.n / q.d
    spread = square(n * p.scale)
    log_mean = n * _mean_log(ops, v, p.loc, q) + 0.5 * spread + log_ratio(ops, q.rate, q.k)
    return q.k * any_phi(ops, log_mean) + 0.5 * gap(ops, q.k * spread, q.k * 0.0 + 1.0) + stirling_excess(ops, q.k)


def _power_normal(ops: Any, v: str, p: Power, q: Any) -> Array:
    """log y has mean ψ(k) and variance ψ'(k). With N a normal variable of that variance,
    KL = gap(variance/σ²)/2 + (distance of the means/σ)²/2 + (entropy of N - entropy of log y).
    The last term is `log_gamma_entropy_gap`."""
    n = p.n / p.d
    variance = trigamma(ops, p.k)
    mean = (digamma(ops, p.k) - ops.log(p.rate)) / n
    distance = mean + (-_mean_log(ops, v, q.loc, p))
    return 0.5 * (gap(ops, variance, square(n * q.scale)) + square(distance / q.scale)) + log_gamma_entropy_gap(ops, p.k)


_register_normals()


@closed_form(f.Gamma, f.Normal)
def _gamma_normal(ops: Any, p: Any, q: Any) -> Array:
    # gap(variance/σ²)/2 + (distance of the means/σ)²/2 + what the entropy lacks to a normal one's.
    k, rate = p.concentration, p.rate
    mean = product_difference(ops, k, k * 0.0 + 1.0, rate, q.loc) / (rate * q.scale)
    return 0.5 * (gap(ops, k, square(rate * q.scale)) + square(mean)) + gamma_entropy_gap(ops, k)


@closed_form(f.LogNormal, f.Normal)
def _log_normal_normal(ops: Any, p: Any, q: Any) -> Array:
    # The same; with v = σ_p², entropy lacks log(expm1(v)/v)/2 + v/2, expm1(v)/v = 1 + φ(v)/v.
    v = square(p.scale)
    over = any_phi(ops, v) / v
    mean = ops.exp(p.loc + 0.5 * v)
    variance = square(mean) * v * (1.0 + over)
    return 0.5 * (gap(ops, variance, square(q.scale)) + square((mean - q.loc) / q.scale)) + 0.5 * (ops.log1p(over) + v)


@closed_form(f.Gamma, f.Gumbel)
def _gamma_gumbel(ops: Any, p: Any, q: Any) -> Array:
    # E[exp(-x/β)] = (1 + v)^-k, v = 1/(rate β). With L = μ/β - k log(1 + v):
    # φ(L) + 1 + k (v - log(1 + v)) - log v - entropy of Gamma(k, 1).
    k, v = p.concentration, 1.0 / (p.rate * q.scale)
    log_mean = q.loc / q.scale - k * ops.log1p(v)
    entropy = 0.5 * (math.log(2.0 * math.pi * math.e) + ops.log(k)) - gamma_entropy_gap(ops, k)
    return any_phi(ops, log_mean) + 1.0 + k * log1p_remainder(ops, v) - ops.log(v) - entropy

"""Closed forms of distributions on an interval, with each other and with those on all of the line."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ..._divergences import kl
from ..._pairs import phi
from .. import families as f
from ..curves import absolute, log1p_remainder, sinhc, sinhc_remainder, square
from ..registry import closed_form
from ..special import (
    digamma,
    digamma_less_log,
    gamma_entropy_gap,
    gamma_entropy_gap_rest,
    gamma_gap,
    gap,
    is_direct,
    is_quick,
    log_ratio,
    parameter_difference,
    product_difference,
)
from .gammas import gamma_kl
from .positive import gamma_cross

Array = Any
_EULER = 0.57721566490153286
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


# --- Uniform ----------------------------------------------------------------------------------------------------------------------------


def _within(ops: Any, p: Any, value: Array, inside: Array) -> Array:
    """inf where P = Uniform is not inside, NaN where it is none."""
    return ops.where(p.high > p.low, ops.where(inside, value, math.inf), math.nan)


def _mean_log_less(ops: Any, low: Array, high: Array) -> Array:
    """E[log x] + 1 - log(high) = low log(high/low)/(high - low), on an interval of the half line; 0 where low = 0."""
    zero = low <= 0.0
    safe_low = ops.where(zero, 1.0, low)
    safe_high = ops.where(zero, 2.0, high)
    width = safe_high - safe_low
    return ops.where(zero, 0.0, safe_low * (log_ratio(ops, safe_high, safe_low) / ops.where(width > 0.0, width, 1.0)))


def _jensen(ops: Any, low: Array, high: Array) -> Array:
    """log E[x] - E[log x], with u = width/(low + high): 1 - [(1+u) log(1+u) - (1-u) log(1-u)]/(2u) = Σ u^2n/(2n (2n+1))."""
    u = (high - low) / (high + low)
    near = (u < 0.4) & (u > -0.4)
    y = square(ops.where(near, u, 0.0))
    series: Any = 0.0
    for n in range(18, 0, -1):
        series = (series + 1.0 / (2 * n * (2 * n + 1))) * y
    far = ops.where(near | (u > 1.0), 0.5, u)
    rest = 1.0 - far
    # (1 - u) log(1 - u) is 0 at u = 1.
    end = ops.where(rest > 0.0, rest * ops.log(ops.where(rest > 0.0, rest, 1.0)), 0.0)
    return ops.where(near, series, 1.0 - ((1.0 + far) * ops.log1p(far) - end) / (2.0 * far))


@closed_form(f.Uniform, f.Uniform)
def _uniform(ops: Any, p: Any, q: Any) -> Array:
    # log of the ratio of the widths, whose difference is accurate where the ends are close.
    inside = (p.low >= q.low) & (p.high <= q.high)
    width = p.high - p.low
    inside = inside & (width > 0.0)
    proper = (width > 0.0) & (q.high > q.low)
    excess = (q.high - p.high) + (p.low - q.low)
    value = ops.where(inside, ops.log1p(ops.where(inside, excess, 0.0) / ops.where(inside, width, 1.0)), math.inf)
    return ops.where(proper, value, math.nan)


def _log_width(ops: Any, p: Any) -> Array:
    width = p.high - p.low
    return ops.log(ops.where(width > 0.0, width, 1.0))


@closed_form(f.Uniform, f.Normal)
def _uniform_normal(ops: Any, p: Any, q: Any) -> Array:
    width, middle = p.high - p.low, 0.5 * (p.low + p.high)
    squares = square(width / q.scale) / 12.0 + square((middle - q.loc) / q.scale)
    return _within(ops, p, 0.5 * squares + _HALF_LOG_2PI - log_ratio(ops, ops.where(width > 0.0, width, 1.0), q.scale), width > 0.0)


@closed_form(f.Uniform, f.Laplace)
def _uniform_laplace(ops: Any, p: Any, q: Any) -> Array:
    width, middle = p.high - p.low, 0.5 * (p.low + p.high)
    safe = ops.where(width > 0.0, width, 1.0)
    # E|x - μ|: (left² + right²)/(2 width) where μ lies inside, else the distance to the middle.
    left, right = q.loc - p.low, p.high - q.loc
    inside = (left > 0.0) & (right > 0.0)
    distance = ops.where(inside, 0.5 * (left * (left / safe) + right * (right / safe)), absolute(ops, middle - q.loc))
    return _within(ops, p, distance / q.scale + math.log(2.0) - log_ratio(ops, safe, q.scale), width > 0.0)


@closed_form(f.Uniform, f.Exponential)
def _uniform_exponential(ops: Any, p: Any, q: Any) -> Array:
    return _within(ops, p, 0.5 * q.rate * (p.low + p.high) - ops.log(q.rate) - _log_width(ops, p), p.low >= 0.0)


@closed_form(f.Uniform, f.Gamma)
def _uniform_gamma(ops: Any, p: Any, q: Any) -> Array:
    inside = (p.low >= 0.0) & (p.high > p.low)
    low, high = ops.where(inside, p.low, 0.0), ops.where(inside, p.high, 1.0)
    mean = 0.5 * (low + high)
    jensen = _jensen(ops, low, high)
    return _within(ops, p, gamma_cross(ops, q.concentration, q.rate, mean, jensen, ops.log(mean) - jensen) - _log_width(ops, p), inside)


@closed_form(f.Uniform, f.Gumbel)
def _uniform_gumbel(ops: Any, p: Any, q: Any) -> Array:
    # E[exp(-x/β)] = exp(-low/β) (1 - e^-w)/w, w = width/β
    w = (p.high - p.low) / q.scale
    safe = ops.where(w > 0.0, w, 1.0)
    middle = (0.5 * (p.low + p.high) - q.loc) / q.scale
    power = ops.exp(-(p.low - q.loc) / q.scale) * ((safe - phi(ops, -safe)) / safe)
    return _within(ops, p, middle + power - ops.log(safe), w > 0.0)


@closed_form(f.Uniform, f.Pareto)
def _uniform_pareto(ops: Any, p: Any, q: Any) -> Array:
    # (α + 1) E[log(x/m)] - log α - log(width/m)
    inside = (p.low >= q.scale) & (p.high > p.low)
    low, high = ops.where(inside, p.low, q.scale), ops.where(inside, p.high, 2.0 * q.scale)
    # E[log(x/low)] = log(1 + u) - (u - log(1 + u))/u
    u = (high - low) / low
    mean = log_ratio(ops, low, q.scale) + (ops.log1p(u) - log1p_remainder(ops, u) / u)
    value = (q.concentration + 1.0) * mean - ops.log(q.concentration) - log_ratio(ops, high - low, q.scale)
    return _within(ops, p, value, inside)


@closed_form(f.Uniform, f.Beta)
def _uniform_beta(ops: Any, p: Any, q: Any) -> Array:
    # That of Beta(1, 1), and what the interval lacks: -log(width) - Σ (c - 1) (E[log x] + 1).
    inside = (p.low >= 0.0) & (p.high <= 1.0) & (p.high > p.low)
    low, high = ops.where(inside, p.low, 0.0), ops.where(inside, p.high, 1.0)
    a, b = q.concentration1, q.concentration0
    one = a * 0.0 + 1.0
    lacking = (1.0 - high) + low
    left = ops.log(high) + _mean_log_less(ops, low, high)
    right = ops.log1p(-low) + _mean_log_less(ops, 1.0 - high, 1.0 - low)
    value = beta_kl(ops, one, one, a, b) - ops.log1p(-lacking) - (a - 1.0) * left - (b - 1.0) * right
    return _within(ops, p, value, inside)


# --- Beta -------------------------------------------------------------------------------------------------------------------------------


def dirichlet_kl(ops: Any, alpha: Array, beta: Array) -> Array:
    """Along the last axis. With a + b = Σ etc.: Σβ · KL(β/Σβ‖α/Σα), Bregman's chain rule for x log x, and what log Γ adds."""
    if is_quick(ops):
        # The plain sum of the remainders of log Γ, where it is good enough.
        (own, size), (total, more) = (ops.log_gamma_remainder(x, y) for x, y in ((alpha, beta), (alpha.sum(-1), beta.sum(-1))))
        return ops.refine(own.sum(-1) - total, size.sum(-1) + more, partial(_dirichlet_kl, ops), alpha, beta)
    return _dirichlet_kl(ops, alpha, beta)


def _dirichlet_kl(ops: Any, alpha: Array, beta: Array) -> Array:
    axes = (-1,)
    total_p, total_q = ops.sum(alpha, axes), ops.sum(beta, axes)
    own = ops.sum(gamma_gap(ops, alpha, beta), axes)
    total = gamma_gap(ops, total_p, total_q, ops.sum(beta - alpha, axes))
    if is_direct(ops):
        # β_i gap(α_i Σβ/(β_i Σα)), which sum to it: what the sums lack in digits is of second order.
        first, second = alpha * total_q, beta * total_p
        shape = ops.sum(beta * gap(ops, first, second), axes)
    else:
        shape = total_q * kl(beta, alpha, axis=-1, keepdims=True, check=False)
    return ops.squeeze(shape + (own - total), axes)


@closed_form(f.Dirichlet, f.Dirichlet)
def _dirichlet(ops: Any, p: Any, q: Any) -> Array:
    alpha, beta = ops.broadcast([p.concentration, q.concentration])
    return dirichlet_kl(ops, alpha, beta)


def beta_kl(ops: Any, a: Array, b: Array, c: Array, d: Array) -> Array:
    if is_quick(ops):
        (first, size), (second, more), (total, most) = (ops.log_gamma_remainder(x, y) for x, y in ((a, c), (b, d), (a + b, c + d)))
        return ops.refine(first + (second - total), size + (more + most), partial(_beta_kl, ops), a, b, c, d)
    return _beta_kl(ops, a, b, c, d)


def _beta_kl(ops: Any, a: Array, b: Array, c: Array, d: Array) -> Array:
    total_p, total_q = a + b, c + d
    # Σβ · KL(β/Σβ‖α/Σα) of two categories: with x = (a (c + d) - c (a + b)) = a d - b c
    cross = parameter_difference(ops, a, d, b, c)
    shape = c * gap(ops, a * total_q, c * total_p, cross) + d * gap(ops, b * total_q, d * total_p, -cross)
    own = gamma_gap(ops, a, c) + gamma_gap(ops, b, d)
    return shape + (own - gamma_gap(ops, total_p, total_q, (c - a) + (d - b)))


@closed_form(f.Beta, f.Beta)
def _beta(ops: Any, p: Any, q: Any) -> Array:
    return beta_kl(ops, p.concentration1, p.concentration0, q.concentration1, q.concentration0)


@closed_form(f.Beta, f.Dirichlet)
@closed_form(f.Dirichlet, f.Beta)
def _beta_dirichlet(ops: Any, p: Any, q: Any) -> Array:
    # (x, 1 - x), of two categories.
    beta, dirichlet = (p, q) if isinstance(p, f.Beta) else (q, p)
    c = dirichlet.concentration
    if c.shape[-1] != 2:
        raise ValueError(f"a Beta distribution is a Dirichlet distribution of 2 categories, and the other has {c.shape[-1]}")
    both = (beta.concentration1, beta.concentration0), (c[..., 0], c[..., 1])
    (a, b), (c1, c0) = both if isinstance(p, f.Beta) else both[::-1]
    return beta_kl(ops, a, b, c1, c0)


@closed_form(f.Beta, f.Uniform)
def _beta_uniform(ops: Any, p: Any, q: Any) -> Array:
    one = p.concentration1 * 0.0 + 1.0
    inside = (q.low <= 0.0) & (q.high >= 1.0)
    excess = ops.where(inside, (q.high - 1.0) - q.low, 0.0)
    value = beta_kl(ops, p.concentration1, p.concentration0, one, one) + ops.log1p(excess)
    return ops.where(q.high > q.low, ops.where(inside, value, math.inf), math.nan)


@closed_form(f.Beta, f.Normal)
def _beta_normal(ops: Any, p: Any, q: Any) -> Array:
    # gap(variance/σ²)/2 + (distance of the means/σ)²/2 + what the entropy lacks to a normal one's:
    # with N = gamma_entropy_gap and n = a + b, N(a) + N(b) - N(n) + ψ(n) - log(n (n + 1))/2.
    # There the terms of order 1/n are (a - b)²/(3 a b n).
    a, b = p.concentration1, p.concentration0
    n = a + b
    variance = a / n * (b / n) / (n + 1.0)
    large = n > 20.0
    safe = ops.where(large, n, 20.0)
    over = 1.0 / safe
    # ψ(n) - log(n (n + 1))/2 + 1/n = (1/n - log(1 + 1/n))/2 - 1/(12 n²) + ...
    tail = (-over * over) * (
        1.0 / 12.0 - over * over * (1.0 / 120.0 - over * over * (1.0 / 252.0 - over * over * (1.0 / 240.0 - over * over / 132.0)))
    )
    series = square(a - b) / (3.0 * a * b * n) + 0.5 * log1p_remainder(ops, over) + tail
    for x, sign in ((a, 1.0), (b, 1.0), (n, -1.0)):
        series = series + sign * gamma_entropy_gap_rest(ops, x)
    direct = (
        gamma_entropy_gap(ops, a)
        + gamma_entropy_gap(ops, b)
        - gamma_entropy_gap(ops, n)
        + digamma(ops, n)
        - 0.5 * (ops.log(n) + ops.log(n + 1.0))
    )
    mean = product_difference(ops, a, n * 0.0 + 1.0, n, q.loc) / (n * q.scale)
    return 0.5 * (gap(ops, variance, square(q.scale)) + square(mean)) + ops.where(large, series, direct)


@closed_form(f.Beta, f.Gamma)
def _beta_gamma(ops: Any, p: Any, q: Any) -> Array:
    # That of Gamma(a, n) for P, n = a + b, and H(n) - H(b) + c (ψ(n) - log n), H the entropy of Gamma(·, 1), c of Q.
    a, b = p.concentration1, p.concentration0
    n = a + b
    entropies = 0.5 * log_ratio(ops, n, b, a) + gamma_entropy_gap(ops, b) - gamma_entropy_gap(ops, n)
    return gamma_kl(ops, a, n, q.concentration, q.rate) + entropies + q.concentration * digamma_less_log(ops, n)


@closed_form(f.Kumaraswamy, f.Kumaraswamy, when="equal concentration1")
def _kumaraswamy(ops: Any, p: Any, q: Any) -> Array:
    # Of one concentration1: -log(1 - x^a) is exponential of rate b. Else NaN.
    return ops.where(p.concentration1 == q.concentration1, gap(ops, q.concentration0, p.concentration0), math.nan)


@closed_form(f.Kumaraswamy, f.Uniform)
def _kumaraswamy_uniform(ops: Any, p: Any, q: Any) -> Array:
    # log(a b) + (a - 1) E[log x] + (b - 1) E[log(1 - x^a)], the means -(γ + ψ(b + 1))/a and -1/b.
    a, b = p.concentration1, p.concentration0
    harmonic = digamma(ops, b + 1.0) + _EULER
    inside = (q.low <= 0.0) & (q.high >= 1.0)
    value = ops.log(a) + ops.log(b) - (a - 1.0) * (harmonic / a) - (b - 1.0) / b + ops.log1p(ops.where(inside, (q.high - 1.0) - q.low, 0.0))
    return ops.where(q.high > q.low, ops.where(inside, value, math.inf), math.nan)


# --- ContinuousBernoulli: density ∝ e^(θ x), log-partition function θ/2 + L(θ/2), L = log(sinh(x)/x) ---


def _half_logits(ops: Any, x: Any) -> Array:
    if isinstance(x, f.ContinuousBernoulliLogits):
        return 0.5 * x.logits
    return 0.5 * log_ratio(ops, x.probs, 1.0 - x.probs, (x.probs - 0.5) * 2.0)


def _continuous_bernoulli(ops: Any, p: Any, q: Any) -> Array:
    a, b = _half_logits(ops, p), _half_logits(ops, q)
    if isinstance(p, f.ContinuousBernoulli) and isinstance(q, f.ContinuousBernoulli):
        # The difference of the logits, from probabilities: log of the ratio of the odds.
        odds_q, odds_p = q.probs * (1.0 - p.probs), p.probs * (1.0 - q.probs)
        return sinhc_remainder(ops, a, b, 0.5 * log_ratio(ops, odds_q, odds_p, q.probs - p.probs))
    return sinhc_remainder(ops, a, b, b - a)


def _cb_exponential(ops: Any, p: Any, q: Any) -> Array:
    # For θ = -e < -1: gap(rate/e) - (rate - e)/(exp(e) - 1) - log(1 - exp(-e)); else from mean and entropy.
    x = _half_logits(ops, p)
    steep = x < -0.5
    e = ops.where(steep, -2.0 * x, 1.0)
    small = ops.exp(-e)
    left = gap(ops, q.rate, e) - (q.rate - e) * (small / (1.0 - small)) - ops.log1p(-small)
    curve = sinhc(ops, x)
    return ops.where(steep, left, x * curve.slope - curve.value - ops.log(q.rate) + q.rate * (0.5 + 0.5 * curve.slope))


def _cb_normal(ops: Any, p: Any, q: Any) -> Array:
    x = _half_logits(ops, p)
    curve = sinhc(ops, x)
    squares = 0.25 * curve.curvature / square(q.scale) + square((0.5 + 0.5 * curve.slope - q.loc) / q.scale)
    return (x * curve.slope - curve.value) + _HALF_LOG_2PI + ops.log(q.scale) + 0.5 * squares


def _cb_uniform(ops: Any, p: Any, q: Any) -> Array:
    x = _half_logits(ops, p)
    inside = (q.low <= 0.0) & (q.high >= 1.0)
    value = sinhc_remainder(ops, x, x * 0.0, -x) + ops.log1p(ops.where(inside, (q.high - 1.0) - q.low, 0.0))
    return ops.where(q.high > q.low, ops.where(inside, value, math.inf), math.nan)


def _uniform_cb(ops: Any, p: Any, q: Any) -> Array:
    # L(x) - 2 x (middle - 1/2) - log(width)
    inside = (p.low >= 0.0) & (p.high <= 1.0) & (p.high > p.low)
    low, high = ops.where(inside, p.low, 0.0), ops.where(inside, p.high, 1.0)
    x = _half_logits(ops, q)
    value = sinhc(ops, x).value - x * (low - (1.0 - high)) - ops.log1p(-((1.0 - high) + low))
    return _within(ops, p, value, inside)


def _beta_cb(ops: Any, p: Any, q: Any) -> Array:
    # That to the uniform distribution, and L(x) - 2 x (mean - 1/2).
    a, b = p.concentration1, p.concentration0
    one, x = a * 0.0 + 1.0, _half_logits(ops, q)
    return beta_kl(ops, a, b, one, one) + sinhc(ops, x).value - x * ((a - b) / (a + b))


_CB = (f.ContinuousBernoulli, f.ContinuousBernoulliLogits)
for _family in _CB:
    closed_form(_family, f.Exponential)(_cb_exponential)
    closed_form(_family, f.Normal)(_cb_normal)
    closed_form(_family, f.Uniform)(_cb_uniform)
    closed_form(f.Uniform, _family)(_uniform_cb)
    closed_form(f.Beta, _family)(_beta_cb)
    for _other in _CB:
        closed_form(_family, _other)(_continuous_bernoulli)

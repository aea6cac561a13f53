"""Remainders without cancellation: what the closed forms of exponential families are made of.

KL between two members of a family is the remainder of its log-partition function after the tangent at P. Each remainder here is a sum of
terms that are all ≥ 0, or cancel by a small factor at most, so that it keeps its digits however close the two arguments are.
Written on the primitives alone (`exp`, `log`, `log1p`, `where`), since not every framework has lgamma or digamma.

Numbers that came as float32 and are computed in float64 differ by 6e-8 or not at all, so there the plain form of a remainder loses no digit
that float32 has, and costs a fifth: primitives with `direct` set ask for it.
"""

from __future__ import annotations

import math
from typing import Any

from .._pairs import log_quotient, near_log1p_remainder

Array = Any

# From here on the Stirling series below is good to 1e-13.
_LARGE = 10.0
_SHIFTS = 10
# Stirling: log Γ(x) = (x - 1/2) log x - x + log(2π)/2 + s(x), s(x) = Σ c_n / x^n over odd n.
_STIRLING = {1: 1 / 12, 3: -1 / 360, 5: 1 / 1260, 7: -1 / 1680, 9: 1 / 1188, 11: -691 / 360360}


def is_direct(ops: Any) -> bool:
    return getattr(ops, "direct", False)


def is_quick(ops: Any) -> bool:
    """May plain sums be taken where their error bounds allow it (`log_gamma_remainder` of these primitives, and `refine`)?"""
    return hasattr(ops, "refine")


def _direct_log_ratio(ops: Any, y: Array, x: Array, h: Array | None = None, change: Array | None = None) -> Array:
    """log(y/x) by one logarithm; h is y - x, `change` h/x."""
    if hasattr(ops, "choose"):
        change = (y - x if h is None else h) / x if change is None else change
        # Of a small quotient 1 + h/x has lost the digits.
        return ops.choose(
            change < -0.9, lambda y, x, _: ops.log(ops.astype(y, ops.float64) / x), lambda y, x, change: ops.log1p(change), y, x, change
        )
    # Of the larger over the smaller.
    h = y - x if h is None else h
    up = h >= 0.0
    value = ops.log1p(ops.where(up, h, -h) / ops.where(up, x, y))
    return ops.where(up, value, -value)


def log_ratio(ops: Any, y: Array, x: Array, difference: Array | None = None) -> Array:
    """log(y/x) of positive numbers, accurate relative to itself. `difference` is y - x, where the caller has it more accurately."""
    if is_direct(ops):
        return _direct_log_ratio(ops, y, x, difference)
    change = ((y - x) if difference is None else difference) / x
    near = (change < 1.0 / 3.0) & (change > -1.0 / 3.0)
    small = ops.where(near, change, 0.0)
    far = log_quotient(ops, ops.where(near, 1.0, y), ops.where(near, 1.0, x))
    return ops.where(near, small - near_log1p_remainder(ops, small), far)


def gap(ops: Any, y: Array, x: Array, difference: Array | None = None, change: Array | None = None) -> Array:
    """y/x - 1 - log(y/x) >= 0 of positive numbers: KL between exponential distributions of rates x and y.

    `difference` is y - x, where the caller has it more accurately, `change` that over x, where the caller has it.
    """
    if change is None:
        difference = (y - x) if difference is None else difference
        change = difference / x
    if is_direct(ops):
        wide = ops.astype(change, ops.float64)
        return ops.astype(wide - _direct_log_ratio(ops, y, x, difference, wide), change.dtype)
    near = (change < 1.0 / 3.0) & (change > -1.0 / 3.0)
    far = change - log_quotient(ops, ops.where(near, 1.0, y), ops.where(near, 1.0, x))
    return ops.where(near, near_log1p_remainder(ops, ops.where(near, change, 0.0)), far)


def product_difference(ops: Any, a: Array, b: Array, c: Array, d: Array) -> Array:
    """a b - c d, to the last digits of the larger: the products are formed exactly, from halves."""
    a_high, b_high, c_high, d_high = (ops.high(x) for x in (a, b, c, d))
    a_low, b_low, c_low, d_low = a - a_high, b - b_high, c - c_high, d - d_high
    first = a_high * b_high - c_high * d_high
    return ((first + (a_high * b_low - c_high * d_low)) + (a_low * b_high - c_low * d_high)) + (a_low * b_low - c_low * d_low)


def parameter_difference(ops: Any, a: Array, b: Array, c: Array, d: Array) -> Array:
    """a b - c d of parameters as they came: in float64, products of float32 numbers are exact."""
    return a * b - c * d if is_direct(ops) else product_difference(ops, a, b, c, d)


def gamma_gap(ops: Any, a: Array, b: Array, difference: Array | None = None) -> Array:
    """What log Γ adds to x log x: R(a, b) - (b log(b/a) - b + a) >= 0, with R(a, b) = log Γ(b) - log Γ(a) - ψ(a) (b - a).

    Shifted to A = a + N, B = b + N, where the Stirling series holds:
    R(a, b) = Σ_k gap((b+k)/(a+k)) + [B log(B/A) - B + A] + gap(B/A)/2 + remainder of s.
    """
    h = (b - a) if difference is None else difference
    if is_direct(ops):
        return _direct_gamma_gap(ops, a, b, h)
    small = (a < _LARGE) | (b < _LARGE)
    steps: Any = 0.0
    for k in range(_SHIFTS):
        steps = steps + gap(ops, b + float(k), a + float(k), h)
    shift = ops.where(small, a * 0.0 + float(_SHIFTS), 0.0)
    upper_a, upper_b = a + shift, b + shift
    # [B log(B/A) - B + A] - [b log(b/a) - b + a]: of second order where a and b are close, and else a difference of logarithms.
    near = (b < 4.0 * a) & (b > 0.25 * a)
    close = upper_b * gap(ops, upper_a, upper_b, -h) - b * gap(ops, a, b, -h)
    steps = steps + ops.where(near, close, upper_b * log_ratio(ops, upper_b, upper_a) - b * log_ratio(ops, b, a))
    return ops.where(small, steps, 0.0) + 0.5 * gap(ops, upper_b, upper_a, h) + _stirling_remainder(upper_a, upper_b, h)


# Below this, arguments are shifted by _DIRECT_SHIFT; from there on four terms of Stirling's series are good to 1e-8 of the whole.
_DIRECT_LARGE, _DIRECT_SHIFT = 5.0, 4.0


def _direct_gamma_gap(ops: Any, a: Array, b: Array, h: Array) -> Array:
    """
    The same with one logarithm for all steps: Σ_k gap((b+k)/(a+k)) = h P'(a)/P(a) - log(P(b)/P(a)), where
    P(x) = x (x+1) (x+2) (x+3) = y (y+2), y = x (x+3), and P(b) - P(a) = h (a+b+3) (y_a+y_b+2), exact as h is.
    B log(B/A) - B + A - [b log(b/a) - b + a] = B log(B/A) - b log(b/a), as B - A = b - a.
    """
    small = ops.astype((a < _DIRECT_LARGE) | (b < _DIRECT_LARGE), a.dtype)
    shift = _DIRECT_SHIFT * small
    upper_a, upper_b = a + shift, b + shift
    last = _direct_log_ratio(ops, upper_b, upper_a, h)
    y_a, y_b = a * (a + 3.0), b * (b + 3.0)
    product_a, product_b = y_a * (y_a + 2.0), y_b * (y_b + 2.0)
    product = _direct_log_ratio(ops, product_b, product_a, h * ((a + b) + 3.0) * ((y_a + y_b) + 2.0))
    slope = (a + 1.5) * (y_a + 1.0) * (4.0 / product_a)
    steps = (h * slope - product) + (upper_b * last - b * _direct_log_ratio(ops, b, a, h))
    # s(B) - s(A) - s'(A) h as in `_stirling_remainder`, written out: t_n = u² v (v^(n-1) + 2 u v^(n-2) + ... + n u^(n-1)).
    u, v = 1.0 / upper_a, 1.0 / upper_b
    uu, uv, vv = u * u, u * v, v * v
    third = vv + 2.0 * uv + 3.0 * uu
    fifth = vv * third + uu * (4.0 * uv + 5.0 * uu)
    seventh = vv * fifth + uu * uu * (6.0 * uv + 7.0 * uu)
    series = _STIRLING[1] + _STIRLING[3] * third + _STIRLING[5] * fifth + _STIRLING[7] * seventh
    change = h * u
    return small * steps + 0.5 * (change - last) + change * change * (v * series)


def _stirling_remainder(a: Array, b: Array, h: Array) -> Array:
    """s(b) - s(a) - s'(a) h: 1/b^n - 1/a^n + n h/a^(n+1) = h^2 t_n, with t_1 = a^-2 b^-1 and t_(n+1) = (t_n + (n+1) a^-(n+2))/b."""
    over_a, over_b = 1.0 / a, 1.0 / b
    power = over_a * over_a
    t = power * over_b
    total: Any = 0.0
    for n in range(1, max(_STIRLING) + 1):
        if n in _STIRLING:
            total = total + _STIRLING[n] * t
        power = power * over_a
        t = (t + (n + 1.0) * power) * over_b
    return h * h * total


def digamma(ops: Any, x: Array) -> Array:
    """ψ(x) for x > 0."""
    small = x < _LARGE
    steps: Any = 0.0
    for k in range(_SHIFTS):
        steps = steps + 1.0 / (x + float(k))
    upper = x + ops.where(small, x * 0.0 + float(_SHIFTS), 0.0)
    over = 1.0 / upper
    square = over * over
    series: Any = 0.0
    for n in sorted(_STIRLING, reverse=True):
        series = series * square - n * _STIRLING[n]
    return ops.log(upper) - 0.5 * over + series * square - ops.where(small, steps, 0.0)


def log_gamma(ops: Any, x: Array) -> Array:
    """log Γ(x) for x > 0."""
    small = x < _LARGE
    product: Any = 1.0
    for k in range(_SHIFTS):
        product = product * ops.where(small, x + float(k), 1.0)
    upper = x + ops.where(small, x * 0.0 + float(_SHIFTS), 0.0)
    over = 1.0 / upper
    series: Any = 0.0
    for n in sorted(_STIRLING, reverse=True):
        series = series * over * over + _STIRLING[n]
    return (upper - 0.5) * ops.log(upper) - upper + 0.5 * math.log(2.0 * math.pi) + series * over - ops.log(product)


def trigamma(ops: Any, x: Array) -> Array:
    """ψ'(x) for x > 0."""
    small = x < _LARGE
    steps: Any = 0.0
    for k in range(_SHIFTS):
        steps = steps + 1.0 / ((x + float(k)) * (x + float(k)))
    over = 1.0 / (x + ops.where(small, x * 0.0 + float(_SHIFTS), 0.0))
    square = over * over
    series: Any = 0.0
    for n in sorted(_STIRLING, reverse=True):
        series = series * square + n * (n + 1) * _STIRLING[n]
    return over + 0.5 * square + series * square * over + ops.where(small, steps, 0.0)


def log_gamma_remainder(ops: Any, a: Array, b: Array, difference: Array) -> Array:
    """R(a, b) = log Γ(b) - log Γ(a) - ψ(a) (b - a) >= 0."""
    return b * gap(ops, a, b, -difference) + gamma_gap(ops, a, b, difference)


def stirling_excess(ops: Any, x: Array) -> Array:
    """log Γ(x) - [(x - 1/2) log x - x + log(2π)/2] > 0."""
    small = x < _LARGE
    far = ops.where(small, _LARGE, x)
    near = ops.where(small, x, 1.0)
    series: Any = 0.0
    for n in sorted(_STIRLING, reverse=True):
        series = series / (far * far) + _STIRLING[n]
    direct = log_gamma(ops, near) - ((near - 0.5) * ops.log(near) - near + 0.5 * math.log(2.0 * math.pi))
    return ops.where(small, direct, series / far)


def gamma_entropy_gap(ops: Any, k: Array) -> Array:
    """log(2πe k)/2 - (k + log Γ(k) + (1 - k) ψ(k)) > 0: what the entropy of Gamma(k, 1) lacks to a normal one's, 1/(3k) + ..."""
    return 1.0 / (3.0 * k) + gamma_entropy_gap_rest(ops, k)


def gamma_entropy_gap_rest(ops: Any, k: Array) -> Array:
    """That less 1/(3k), of order 1/k²."""
    # With s from Stirling's series: 1/(2k) - s(k) - (1 - k) s'(k), s' = -Σ n c_n / k^(n+1).
    small = k < _LARGE
    far, near = ops.where(small, _LARGE, k), ops.where(small, k, 1.0)
    over = 1.0 / far
    square = over * over
    series: Any = 0.0
    for n in sorted(_STIRLING, reverse=True):
        # -(n + 1) c_n / k^n, whose first term is part of 1/(3k), and n c_n / k^(n+1)
        series = series * square + (n * _STIRLING[n] - (0.0 if n == 1 else (n + 1) * _STIRLING[n]) * far)
    entropy = near + log_gamma(ops, near) + (1.0 - near) * digamma(ops, near)
    direct = 0.5 * math.log(2.0 * math.pi * math.e) + 0.5 * ops.log(near) - entropy - 1.0 / (3.0 * near)
    return ops.where(small, direct, series * square)


def digamma_less_log(ops: Any, x: Array) -> Array:
    """ψ(x) - log x < 0, -1/(2x) - ... for large x."""
    small = x < _LARGE
    far, near = ops.where(small, _LARGE, x), ops.where(small, x, 1.0)
    over = 1.0 / far
    series: Any = 0.0
    for n in sorted(_STIRLING, reverse=True):
        series = series * over * over - n * _STIRLING[n]
    return ops.where(small, digamma(ops, near) - ops.log(near), series * over * over - 0.5 * over)


def log_gamma_entropy_gap(ops: Any, k: Array) -> Array:
    """The same of the law of log x, x ~ Gamma(k, 1), whose variance is ψ'(k): ψ(k) - log k + log(k ψ'(k))/2 + gamma_entropy_gap(k) > 0."""
    small = k < _LARGE
    far, near = ops.where(small, _LARGE, k), ops.where(small, k, 1.0)
    over = 1.0 / far
    square = over * over
    variance: Any = 0.0
    for n in sorted(_STIRLING, reverse=True):
        variance = variance * square + n * (n + 1) * _STIRLING[n]
    spread = ops.where(small, ops.log(near * trigamma(ops, near)), ops.log1p(0.5 * over + variance * square))
    return digamma_less_log(ops, k) + 0.5 * spread + gamma_entropy_gap(ops, k)

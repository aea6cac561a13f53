"""Two distributions, normalised, and the logarithm of their ratio, free of cancellation.

Everything a divergence needs is here: p, q, l = log(q/p) accurate relative to itself. So is KL(P‖Q), computed from terms that are
all ≥ 0. The functions evaluate; `textbook` gives the same quantities in a form whose derivatives are the plain ones.
No data-dependent branches, so that every compiler takes them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

Array = Any


class Spec(NamedTuple):
    """What to compute, without the arrays: hashable, made of numbers and strings, so that compilers can treat it as a constant."""

    kind: str
    parameter: float
    forms: tuple[str, ...]
    axes: tuple[int, ...]
    tolerances: tuple[float, ...]
    wide: bool


class Pair(NamedTuple):
    """Normalised p and q and their logarithms, log(q/p), and the masks of categories that only one side has.

    p and q may have underflown. log_ratio is log(q/p), cut off at ±ABSENT. It is ±ABSENT where only one side has the category, and 0 where
    neither has it. For finite logits, log(q/p) may overflow although p log(q/p) does not. `ratio` is log(q/p) divided by `unit`, and
    `centred` is `ratio` minus its mean under P. Neither overflows. `apart` and `apart_low`, what its rounding has lost, are `ratio` up to a
    constant: for differences between categories where log(q/p) is nearly the same.
    """

    p: Array
    q: Array
    log_p: Array
    log_q: Array
    log_ratio: Array
    ratio: Array
    centred: Array
    apart: Array
    apart_low: Array | float
    unit: Array | float
    only_p: Array
    only_q: Array


# Stands for an infinite log-ratio: exp(-ABSENT) is 0, and so is 0 * ABSENT (unlike 0 * inf).
ABSENT = 1e4

LOG_FORMS = ("logits", "log_probs")


def is_float32(ops: Any, x: Array) -> bool:
    return getattr(x, "dtype", None) == ops.float32  # Python's own floats have no dtype


def phi_near(ops: Any, x: Array) -> Array:
    """e^x - 1 - x for |x| <= 1, where the direct form cancels."""
    # x^2 (1/2! + x/3! + x^2/4! + ...), cut below half a unit in the last place.
    last = 11 if is_float32(ops, x) else 19
    series = x * (1.0 / math.factorial(last)) + 1.0 / math.factorial(last - 1)
    for n in range(last - 2, 1, -1):
        series = series * x + 1.0 / math.factorial(n)
    return x * x * series


def phi(ops: Any, x: Array) -> Array:
    """e^x - 1 - x for x <= 1, to a few units in the last place."""
    near = x > -1.0
    far = ops.where(near, -1.0, x)
    return ops.where(near, phi_near(ops, ops.where(near, x, 0.0)), (ops.exp(far) - 1.0) - far)


def expm1(ops: Any, x: Array) -> Array:
    """e^x - 1 for x <= 0. Compilers do not always keep the accuracy of the library function."""
    # Not x + phi(x), which cancels far from 0: of -1e9, which stands for absence in many a mask, nothing would be left.
    near = x > -1.0
    near_x = ops.where(near, x, 0.0)
    return ops.where(near, near_x + phi_near(ops, near_x), ops.exp(ops.where(near, -1.0, x)) - 1.0)


def bregman(ops: Any, p: Array, q: Array, log_ratio: Array) -> Array:
    """p log(p/q) - p + q >= 0 elementwise, given log(q/p)."""
    # = p phi(log(q/p)). Where q is much the larger, p phi would overflow or be 0 * inf, and the sum has nothing to cancel.
    return ops.where(
        log_ratio > 1.0,
        q - p * (1.0 + log_ratio),
        p * phi(ops, ops.where(log_ratio > 1.0, 0.0, log_ratio)),
    )


def two_diff(ops: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """x - y rounded, and the rounding error, exactly (Knuth)."""
    difference = ops.barrier(x - y)
    minus_y = ops.barrier(difference - x)
    return difference, (x - ops.barrier(difference - minus_y)) - (y + minus_y)


def scaled_below(ops: Any, x: Array, axes: Any, scale: Array | None) -> tuple[Array, Array]:
    """Largest entry, and the scaled distance to it, whose exponentials cannot overflow. All -inf or any +inf or NaN: NaN."""
    top = ops.stop_gradient(ops.max(x, axes))
    below = x - top
    return top, below if scale is None else below * scale


def any_of(ops: Any, condition: Array, p: Array, axes: Any) -> Array:
    """True for rows with a True in them, unless p has a NaN there (not every framework can reduce booleans)."""
    return ops.max(ops.where(condition, p * 0.0 + 1.0, 0.0), axes) > 0.0


def centre(ops: Any, p: Array, x: Array, axes: Any) -> Array:
    """x less its mean under p."""
    return x - ops.sum(p * x, axes)


def _log_of_sums(ops: Any, x: Array, y: Array, l: Array, either: Array, sum_x: Array, far: Array, axes: Any) -> Array:
    """log(Σy/Σx), relative to itself. Logarithms differ by l, or a number is absent on `either` side. Far from 0 the result is `far`."""
    # y - x = x (e^l - 1) for a small l, and Σy/Σx = 1 + Σ(y - x)/Σx.
    near = (l < 0.5) & (l > -0.5) & ~either
    near_l = ops.where(near, l, 0.0)
    change = ops.sum(ops.where(near, x * (near_l + phi_near(ops, near_l)), y - x), axes) / sum_x
    near = (change < 0.5) & (change > -0.5)
    return ops.where(near, ops.log1p(ops.where(near, change, 0.0)), far)


def _with_absent(ops: Any, log_ratio: Array, only_p: Array, only_q: Array, either: Array) -> Array:
    return ops.where(only_p, -ABSENT, ops.where(only_q, ABSENT, ops.where(either, 0.0, log_ratio)))


def _from_logs(ops: Any, a: Array, b: Array, axes: Any, scale: Array | None, only_kl: bool) -> Any:
    # d = b - a is log(q/p) up to a constant; u = d - E[d], E the mean under P.
    # KL = log E[e^u] = log(1 + S),  S = E[phi(u)]: no cancellation, all terms >= 0.
    # With d counted from the largest entries, p e^u = e^(b - top_b - E[d]) / za: that is used where u > 1 (p may be 0 where q is not).
    # A KL of 60 or more is large beside log(zb/za), and is that less E[d]: S would overflow.
    # A finite logit may be the lowest float there is. d, E[d] and u are therefore taken of a quarter of the logits, before the temperature,
    # and do not overflow. `unit` makes up for both.
    unit = 4.0 if scale is None else 4.0 * scale
    top_a, below_a = scaled_below(ops, a, axes, scale)
    top_b, below_b = scaled_below(ops, b, axes, scale)
    p_absent, q_absent = a == -math.inf, b == -math.inf
    only_p, only_q, either = q_absent & ~p_absent, p_absent & ~q_absent, p_absent | q_absent
    # Logits may carry a large constant on one side: b - a then rounds, so its error is carried along, and the difference of
    # the largest entries, close to that constant, is taken off before anything is averaged.
    apart, apart_low = two_diff(ops, 0.25 * ops.where(either, top_b, b), 0.25 * ops.where(either, top_a, a))
    top_d, top_error = two_diff(ops, 0.25 * top_b, 0.25 * top_a)
    d = (apart - top_d) + (apart_low - top_error)
    weight, weight_b = ops.exp(below_a), ops.exp(below_b)
    za, zb = ops.sum(weight, axes), ops.sum(weight_b, axes)
    p = weight / za
    mean = ops.sum(p * d, axes)
    log_za, log_zb = ops.log(za), ops.log(zb)
    centred, one = d - mean, 1.0 / unit
    if only_kl:
        far_apart = mean * unit < -60.0
        u = centred * unit
        above, below = p_absent | (u > 1.0), u < -1.0
        # p u is taken as (p unit) (u / unit), which does not overflow. Where KL is large, S only says whether KL is infinite.
        steep = p * ops.where(far_apart, 0.0, za * 0.0 + unit)
        power = ops.exp(ops.where(above, below_b - (ops.where(far_apart, -60.0, mean * unit) + log_za), ops.where(below, u, 0.0)))
        far = ops.where(above, power - steep * (one + centred), steep * ((power - 1.0) * one - centred))
        terms = ops.where(above | below, far, p * phi_near(ops, ops.where(above | below, 0.0, u)))
        # Mass that Q lacks makes the sum infinite, and a NaN anywhere makes it NaN.
        s = ops.sum(ops.where(only_p, math.inf, terms), axes)
        return ops.where(far_apart & (s < math.inf), (log_zb - log_za) - mean * unit, ops.log1p(s))
    # log(q/p) = d - log(zb/za), whatever KL is: u - KL would cancel where little mass has nearly all of KL, as beneath a mask.
    ratio = d - _log_of_sums(ops, weight, weight_b, d * unit, either, za, log_zb - log_za, axes) * one
    log_ratio = ratio * unit
    only_p_counts, only_q_counts = only_p | (log_ratio < -ABSENT), only_q | (log_ratio > ABSENT)
    log_ratio = _with_absent(ops, log_ratio, only_p_counts, only_q_counts, either)
    log_p, log_q = below_a - log_za, below_b - log_zb
    return Pair(p, ops.exp(log_q), log_p, log_q, log_ratio, ratio, centred, apart, apart_low, unit, only_p, only_q)


def _tiny(ops: Any, x: Array) -> tuple[float, float]:
    """Below the first number, quotients may over- or underflow: multiply by the second."""
    return (2.0**-60, 2.0**90) if is_float32(ops, x) else (2.0**-500, 2.0**600)


def log_quotient(ops: Any, y: Array, x: Array) -> Array:
    """log(y/x) for positive numbers."""
    if type(x) is float and x == y:  # the branch not taken, on Python's own floats: not to be paid for
        return 0.0
    # Where the quotient may over- or underflow, the two logarithms are so far apart that their difference keeps its digits.
    largest = 1.0 / _tiny(ops, x)[0]
    quotient = y / x
    far = (quotient > largest) | (quotient < 1.0 / largest)
    return ops.log(ops.where(far, y, quotient)) - ops.log(ops.where(far, x, x * 0.0 + 1.0))


def within_range(ops: Any, top: Array) -> Array:
    """A power of two for numbers of which `top` is the largest: their sum then does not overflow, and neither does a quotient of two sums.
    It is 1 unless they are very large or very small. (XLA would turn a division by `top` into a product with a subnormal number.)"""
    low, up, high, down = (2.0**-40, 2.0**100, 2.0**60, 2.0**-70) if is_float32(ops, top) else (2.0**-250, 2.0**750, 2.0**550, 2.0**-400)
    return ops.where(top < low, up, ops.where(top > high, down, top * 0.0 + 1.0))


def _log1p_remainder(ops: Any, x: Array) -> Array:
    """x - log(1 + x) >= 0 for |x| <= 1/3, where the direct form cancels."""
    if type(x) is float and x == 0.0:
        return 0.0
    if is_float32(ops, x):
        # x^2 (1/2 - x/3 + x^2/4 - ...): no division, which XLA makes the most expensive step of all.
        terms = [(-1.0) ** n / n for n in range(2, 16)]
        series = x * terms.pop() + terms.pop()
        while terms:
            series = series * x + terms.pop()
        return x * x * series
    # log(1+x) = 2 atanh(s), s = x/(2+x), |s| <= 1/5, and x - 2s = x s: x s - 2 s^3 (1/3 + s^2/5 + s^4/7 + ...)
    s = x / (2.0 + x)
    s2 = s * s
    last = 25
    series = s2 * (1.0 / (last + 2)) + 1.0 / last
    for n in range(last - 2, 1, -2):
        series = series * s2 + 1.0 / n
    return s * (x - 2.0 * s2 * series)


def _from_probs(ops: Any, p: Array, q: Array, axes: Any, only_kl: bool) -> Any:
    # x = (q/Q)/(p/P) - 1 = (q - r p)/(r p), r = Q/P. The difference q - r p must not be spoilt by rounding r p:
    # with r and p cut into halves all four products are exact. What r itself lacks is y = mean of x under P.
    # KL = sum p (x - log(1 + x)) over normalised p: second order term by term, all terms >= 0; where x is not small, q - p + p log(p/q).
    total_p, total_q = ops.sum(p, axes), ops.sum(q, axes)
    r = total_q / total_p
    r_high = ops.high(r)
    r_low = ops.high(r - r_high)
    p_high = ops.high(p)
    p_low = p - p_high
    excess = (((q - r_high * p_high) - r_high * p_low) - r_low * p_high) - r_low * p_low
    r = r_high + r_low
    y = ops.sum(excess, axes) / (r * total_p)
    p_absent, q_absent = p == 0.0, q == 0.0
    only_p, only_q, either = q_absent & ~p_absent, p_absent & ~q_absent, p_absent | q_absent
    safe_p, safe_q = ops.where(either, 1.0, p), ops.where(either, 1.0, q)
    tiny, scale = _tiny(ops, p)
    # Beside the sums: counts of 0.2 and 1e308 are within range, and their quotient is not.
    p_tiny, q_tiny = safe_p < tiny * total_p, safe_q < tiny * total_q
    inverse = 1.0 / (r * ops.where(p_tiny, safe_p * scale, safe_p))
    x = (ops.where(p_tiny, excess * scale, excess) * inverse - y) * (1.0 / (1.0 + y))
    near = (x < 1.0 / 3.0) & (x > -1.0 / 3.0) & ~either
    x = ops.where(near, x, 0.0)
    remainder = _log1p_remainder(ops, x)
    # The quotient itself, not 1 + x: of a small q the sum has lost the digits.
    shift = ops.where(p_tiny, math.log(scale) + p * 0.0, 0.0) - ops.where(q_tiny, math.log(scale) + q * 0.0, 0.0)
    far_ratio = (ops.log(ops.where(q_tiny, safe_q * scale, safe_q) * inverse) + shift) - ops.log1p(y)
    log_ratio = _with_absent(ops, ops.where(near, x - remainder, far_ratio), only_p, only_q, either)
    if only_kl:
        # Where P is absent the term is q; mass that Q lacks makes the sum infinite, and a NaN anywhere makes it NaN, as does what is
        # negative: cheaper than to look for that in a pass of its own.
        terms = ops.where(near, p * remainder, q * (1.0 / (r * (1.0 + y))) - p * (1.0 + log_ratio))
        return ops.sum(ops.where((p < 0.0) | (q < 0.0), math.nan, ops.where(only_p, math.inf, terms)), axes) / total_p
    log_p = ops.where(p_absent, -math.inf, ops.log(ops.where(p_absent, 1.0, p)) - ops.log(total_p))
    p, q = p / total_p, q / total_q
    centred = centre(ops, p, log_ratio, axes)
    return Pair(p, q, log_p, log_p + log_ratio, log_ratio, log_ratio, centred, log_ratio, 0.0, 1.0, only_p, only_q)


def _as_logs(ops: Any, x: Array, form: str) -> Array:
    return x if form in LOG_FORMS else ops.log(x)


def compute_dtype(ops: Any, spec: Spec, arrays: Any) -> Any:
    if spec.wide:
        return ops.widest(arrays[0])
    return ops.float64 if any(x.dtype == ops.float64 for x in arrays) else ops.float32


def result_dtype(ops: Any, arrays: Any) -> Any:
    return ops.float64 if any(x.dtype == ops.float64 for x in arrays) else ops.float32


def _compare(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None, only_kl: bool) -> Any:
    form_x, form_y = spec.forms
    if form_x not in LOG_FORMS and form_y not in LOG_FORMS:
        return _from_probs(ops, x, y, spec.axes, only_kl)
    return _from_logs(ops, _as_logs(ops, x, form_x), _as_logs(ops, y, form_y), spec.axes, scale, only_kl)


def pair(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> Pair:
    """The pair behind two arrays of a common float dtype and shape; `scale` is the inverse temperature."""
    return _compare(ops, spec, x, y, scale, False)


def kl(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> Array:
    """KL(P‖Q) of the same arrays."""
    return _compare(ops, spec, x, y, scale, True)


def textbook(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> tuple[Array, Array, Array, Array, Array]:
    """The same p and q, and log p, log q and log(q/p) of limited accuracy, whose automatic derivatives of any order are right."""
    form_x, form_y = spec.forms
    axes = spec.axes
    sides = []
    for z, form in ((x, form_x), (y, form_y)):
        if form in LOG_FORMS:
            # A finite logit, divided by the temperature, may be -inf.
            _, below = scaled_below(ops, z, axes, scale)
            absent, weight = below == -math.inf, ops.exp(below)
            total = ops.sum(weight, axes)
            sides.append((weight / total, ops.where(absent, 0.0, below) - ops.log(total), absent))
        else:
            total = ops.sum(z, axes)
            absent = z == 0.0
            sides.append((z / total, ops.log(ops.where(absent, 1.0, z)) - ops.log(total), absent))
    (p, log_p, p_absent), (q, log_q, q_absent) = sides
    ratio = ops.where(p_absent | q_absent, 0.0, log_q - log_p)
    return p, q, ops.where(p_absent, -math.inf, log_p), ops.where(q_absent, -math.inf, log_q), ratio


def attach(ops: Any, exact: Array, smooth: Array) -> Array:
    """The value of `exact` with the derivatives of `smooth`, which must be finite."""
    return ops.stop_gradient(exact) + (smooth - ops.stop_gradient(smooth))


def invalid(ops: Any, x: Array, form: str, axes: Any, tolerance: float, *, negative: bool = True) -> Array:
    """True for rows that are no distribution in this form (contract: wrong sum, all-zero counts, +inf, and, if asked, negative)."""
    if form == "logits":
        top = ops.max(x, axes)
        return ~((top < math.inf) & (top > -math.inf))
    total = ops.sum(ops.exp(x) if form == "log_probs" else x, axes)
    # Where any sum is accepted, there must be some mass all the same.
    by_sum = (total <= 1.0 + tolerance) & ((total >= 1.0 - tolerance) if tolerance < 1.0 else (total > 0.0))
    right = (total > 0.0) & (total < math.inf) if form == "counts" else by_sum
    if negative and form != "log_probs":
        right = right & (ops.min(x, axes) >= 0.0)
    return ~right

"""Two distributions, normalised, and the logarithm of their ratio, free of cancellation.

Everything a divergence needs is here: p, q, l = log(q/p) accurate relative to itself, and KL(P‖Q), computed from terms that are
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
    """Normalised p and q; log(q/p) (0 where both are absent, ±ABSENT where one is), and that less its mean under P; where only one
    is present; KL(P‖Q)."""

    p: Array
    q: Array
    log_ratio: Array
    centred: Array
    only_p: Array
    only_q: Array
    kl: Array


# Stands for an infinite log-ratio: exp(-ABSENT) is 0, and so is 0 * ABSENT (unlike 0 * inf).
ABSENT = 1e4

LOG_FORMS = ("logits", "log_probs")


def phi(ops: Any, x: Array) -> Array:
    """e^x - 1 - x for x <= 1, to a few units in the last place."""
    # Taylor for |x| < 1, where the direct form cancels: x^2/2 (1 + x/3 (1 + x/4 (...))), cut below half a unit in the last place.
    terms = 11 if x.dtype == ops.float32 else 19
    near = ops.where(x > -1.0, x, 0.0)
    series = near * (1.0 / terms) + 1.0
    for n in range(terms - 1, 2, -1):
        series = series * near * (1.0 / n) + 1.0
    far = ops.where(x > -1.0, -1.0, x)
    return ops.where(x > -1.0, 0.5 * near * near * series, (ops.exp(far) - 1.0) - far)


def expm1(ops: Any, x: Array) -> Array:
    """e^x - 1 for x <= 0. Compilers do not always keep the accuracy of the library function."""
    return x + phi(ops, x)


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


def softmax_parts(ops: Any, x: Array, axes: Any, scale: Array | None) -> tuple[Array, Array, Array]:
    """Largest entry, exp of the scaled distance to it, and the sum of that. All -inf or any +inf or NaN: NaN."""
    top = ops.stop_gradient(ops.max(x, axes))
    below = x - top
    weight = ops.exp(below if scale is None else below * scale)
    return top, weight, ops.sum(weight, axes)


def any_of(ops: Any, condition: Array, like: Array, axes: Any) -> Array:
    """True for rows with a True in them (not every framework can reduce booleans)."""
    return ops.max(ops.where(condition, like * 0.0 + 1.0, 0.0), axes) > 0.0


def _with_absent(ops: Any, log_ratio: Array, only_p: Array, only_q: Array, either: Array) -> Array:
    return ops.where(only_p, -ABSENT, ops.where(only_q, ABSENT, ops.where(either, 0.0, log_ratio)))


def _infinite_where(ops: Any, kl: Array, only_p: Array, totals: Array, axes: Any) -> Array:
    # A NaN anywhere makes the totals NaN, and NaN wins over inf.
    return ops.where(any_of(ops, only_p, totals, axes) & (totals > 0.0), math.inf, kl)


def _from_logs(ops: Any, a: Array, b: Array, axes: Any, scale: Array | None) -> Pair:
    # d = b - a is log(q/p) up to a constant; u = d - E[d], E the mean under P.
    # KL = log E[e^u] = log(1 + S),  S = E[phi(u)]: no cancellation, all terms >= 0.
    # Where u > 1, p e^u is taken from Q itself, as q (1 + S) (p may be 0 while q is not), which leaves a linear equation for S:
    # S = (sum_{u<=1} p phi(u) + sum_{u>1} [q - p (1 + u)]) / sum_{u<=1} q.
    # For KL > 1 the usual form log(zb/za) - E[d] is accurate and cannot overflow.
    top_a, weight_a, za = softmax_parts(ops, a, axes, scale)
    top_b, weight_b, zb = softmax_parts(ops, b, axes, scale)
    p, q = weight_a / za, weight_b / zb
    p_absent, q_absent = a == -math.inf, b == -math.inf
    only_p, only_q, either = q_absent & ~p_absent, p_absent & ~q_absent, p_absent | q_absent
    # Logits may carry a large constant on one side: b - a then rounds, so its error is carried along, and the difference of
    # the largest entries, close to that constant, is taken off before anything is averaged.
    d, d_error = two_diff(ops, ops.where(either, top_b, b), ops.where(either, top_a, a))
    top_d, top_error = two_diff(ops, top_b, top_a)
    d = (d - top_d) + (d_error - top_error)
    mean = ops.sum(p * d, axes)
    u = d - mean
    if scale is not None:
        u, mean = u * scale, mean * scale
    log_z_ratio = ops.log(zb) - ops.log(za)
    usual = log_z_ratio - mean
    above = p_absent | (u > 1.0)
    s = ops.sum(ops.where(above, q - p * (1.0 + u), p * phi(ops, ops.where(above, 0.0, u))), axes)
    s = s / ops.sum(ops.where(above, 0.0, q), axes)
    # Where P has mass that Q lacks, KL is infinite and the mean above means nothing, but other divergences still need log(q/p).
    direct = (usual > 1.0) | any_of(ops, only_p, za, axes)
    kl = ops.where(direct, usual, ops.log1p(s))
    # u - KL; but for large KL that cancels where q is close to p, and the difference of the log-probabilities does not.
    log_ratio = ops.where(direct, (d if scale is None else d * scale) - log_z_ratio, u - kl)
    log_ratio = _with_absent(ops, log_ratio, only_p, only_q, either)
    return Pair(p, q, log_ratio, u, only_p, only_q, _infinite_where(ops, kl, only_p, za + zb, axes))


def _from_probs(ops: Any, p: Array, q: Array, axes: Any) -> Pair:
    # x = (q/Q)/(p/P) - 1 = (q - r p)/(r p), r = Q/P, then l = log1p(x). The difference q - r p must not be spoilt by rounding r p:
    # with r and p cut into halves all four products are exact. What r itself lacks is y = mean of x under P.
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
    x = (excess / (r * safe_p) - y) / (1.0 + y)
    near = (x < 0.5) & (x > -0.5)
    direct = ops.log(safe_q) - ops.log(safe_p) - (ops.log(r) + ops.log1p(y))
    log_ratio = ops.where(near, ops.log1p(ops.where(near, x, 0.0)), direct)
    log_ratio = _with_absent(ops, log_ratio, only_p, only_q, either)
    p, q = p / total_p, q / total_q
    kl = ops.sum(bregman(ops, p, q, log_ratio), axes)
    return Pair(p, q, log_ratio, log_ratio + kl, only_p, only_q, _infinite_where(ops, kl, only_p, total_p + total_q, axes))


def _as_logs(ops: Any, x: Array, form: str) -> Array:
    return x if form in LOG_FORMS else ops.log(x)


def compute_dtype(ops: Any, spec: Spec, arrays: Any) -> Any:
    if spec.wide:
        return ops.widest(arrays[0])
    return ops.float64 if any(x.dtype == ops.float64 for x in arrays) else ops.float32


def result_dtype(ops: Any, arrays: Any) -> Any:
    return ops.float64 if any(x.dtype == ops.float64 for x in arrays) else ops.float32


def pair(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> Pair:
    """The pair behind two arrays of a common float dtype and shape; `scale` is the inverse temperature."""
    form_x, form_y = spec.forms
    if form_x not in LOG_FORMS and form_y not in LOG_FORMS:
        return _from_probs(ops, x, y, spec.axes)
    return _from_logs(ops, _as_logs(ops, x, form_x), _as_logs(ops, y, form_y), spec.axes, scale)


def textbook(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> tuple[Array, Array, Array]:
    """The same p and q, and a log(q/p) of limited accuracy whose automatic derivatives, of any order, are right."""
    form_x, form_y = spec.forms
    axes = spec.axes
    sides = []
    for z, form in ((x, form_x), (y, form_y)):
        if form in LOG_FORMS:
            top, weight, total = softmax_parts(ops, z, axes, scale)
            absent = z == -math.inf
            below = ops.where(absent, 0.0, z) - top
            sides.append((weight / total, (below if scale is None else below * scale) - ops.log(total), absent))
        else:
            total = ops.sum(z, axes)
            absent = z == 0.0
            sides.append((z / total, ops.log(ops.where(absent, 1.0, z)) - ops.log(total), absent))
    (p, log_p, p_absent), (q, log_q, q_absent) = sides
    return p, q, ops.where(p_absent | q_absent, 0.0, log_q - log_p)


def centre(ops: Any, p: Array, x: Array, axes: Any) -> Array:
    """x less its mean under p."""
    return x - ops.sum(p * x, axes)


def attach(ops: Any, exact: Array, smooth: Array) -> Array:
    """The value of `exact` with the derivatives of `smooth`, which must be finite."""
    return ops.stop_gradient(exact) + (smooth - ops.stop_gradient(smooth))


def invalid(ops: Any, x: Array, form: str, axes: Any, tolerance: float) -> Array:
    """True for rows that are no distribution in this form (contract: negative, wrong sum, all-zero counts, +inf)."""
    if form in LOG_FORMS:
        top = ops.max(x, axes)
        if form == "logits":
            return ~((top < math.inf) & (top > -math.inf))
        total = ops.sum(ops.exp(x), axes)
        return ~((total <= 1.0 + tolerance) & (total >= 1.0 - tolerance))
    total = ops.sum(x, axes)
    negative = ops.min(x, axes) < 0.0
    if form == "counts":
        return negative | ~((total > 0.0) & (total < math.inf))
    return negative | ~((total <= 1.0 + tolerance) & (total >= 1.0 - tolerance))

"""Divergences of rows of logits from a few sums a row, so that a row may lie in pieces on several devices, and compilers need few passes.

`statistics` takes three rounds of reductions (the largest, the masses, the divergence); `slopes` takes derivatives from its result, with
none. Between the rounds `largest` and `total`, where given, combine the pieces. Arithmetic in the dtype of the arrays; no framework's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._calculus import difference, mixture, skew_slopes
from .._pairs import ABSENT, Array, bregman, phi_near, two_diff

Combine = Callable[[Array], Array]


class Statistics(NamedTuple):
    """Of each row: the largest logits, both sums of exponentials relative to those, log of their ratio, the divergence, and what the
    derivatives subtract."""

    top_a: Array
    top_b: Array
    mass_a: Array
    mass_b: Array
    log_masses: Array
    value: Array
    for_p: Array
    for_q: Array


def _combined(ops: Any, combine: Combine | None, parts: tuple[Array, ...]) -> tuple[Array, ...]:
    """The parts over all pieces of the rows, in one exchange."""
    return parts if combine is None else tuple(combine(ops.stack(parts)))


def _relative(
    ops: Any, a: Array, b: Array, top_a: Array, top_b: Array, scale: Array | float | None
) -> tuple[Array, Array, Array, Array, Array]:
    """Both sides' scaled logits minus their largest, a quarter of the sides' difference, and the masks of absent categories.

    The difference is taken before the scale, and a constant that is added to one side costs it no digits."""
    p_absent, q_absent = a == -math.inf, b == -math.inf
    either = p_absent | q_absent
    # Quarters, since a finite logit may be the lowest float there is; and the scale may make it overflow.
    d, d_error = two_diff(ops, 0.25 * ops.where(either, top_b, b), 0.25 * ops.where(either, top_a, a))
    top_d, top_error = two_diff(ops, 0.25 * top_b, 0.25 * top_a)
    d = (d - top_d) + (d_error - top_error)
    below_a, below_b = a - top_a, b - top_b
    return (below_a, below_b, d, p_absent, q_absent) if scale is None else (below_a * scale, below_b * scale, d, p_absent, q_absent)


def _normalised(
    ops: Any, a: Array, b: Array, scale: Array | float | None, s: Statistics
) -> tuple[Array, Array, Array, Array, Array | float, Array]:
    """p, q, log(q/p) (±ABSENT where one of them is, and at most that), the same divided by a unit that keeps it from overflow, that unit,
    and where only p is there."""
    unit = 4.0 if scale is None else 4.0 * scale
    below_a, below_b, d, p_absent, q_absent = _relative(ops, a, b, s.top_a, s.top_b, scale)
    p, q = ops.exp(below_a) / s.mass_a, ops.exp(below_b) / s.mass_b
    only_p = q_absent & ~p_absent
    ratio = d - s.log_masses / unit
    l = ratio * unit
    far_below, far_above = only_p | (l < -ABSENT), (p_absent & ~q_absent) | (l > ABSENT)
    log_ratio = ops.where(far_below, -ABSENT, ops.where(far_above, ABSENT, ops.where(p_absent & q_absent, 0.0, l)))
    return p, q, log_ratio, ratio, unit, only_p


def statistics(
    ops: Any, kind: str, w: float, a: Array, b: Array, scale: Array | float | None, axes: Any,
    largest: Combine | None = None, total: Combine | None = None,
) -> Statistics:  # fmt: skip
    """Of P and Q with logits a and b: KL(P‖Q) ("kl"), and with M = (1 − w)P + wQ (1 − w)KL(P‖M) + w KL(Q‖M) ("js") or KL(P‖M) ("skew").
    Rows without any mass, or with +inf, are NaN."""
    top_a, top_b = _combined(ops, largest, (ops.max(a, axes), ops.max(b, axes)))
    bad = ~((top_a < math.inf) & (top_a > -math.inf) & (top_b < math.inf) & (top_b > -math.inf))
    # A piece of a row may be all absent, the row may not.
    top_a, top_b = (ops.stop_gradient(ops.where(bad, math.nan, top)) for top in (top_a, top_b))

    # log of the ratio of the masses, from their difference: relative to themselves they round at ε, and log(q/p) must be good to ε of
    # itself, which may be 1e-6. The difference of two exponentials is e^a (e^d − 1).
    below_a, below_b, d, p_absent, q_absent = _relative(ops, a, b, top_a, top_b, scale)
    d = d * (4.0 if scale is None else 4.0 * scale)
    weight_a, weight_b = ops.exp(below_a), ops.exp(below_b)
    near = (d < 0.5) & (d > -0.5) & ~(p_absent | q_absent)
    near_d = ops.where(near, d, 0.0)
    change = ops.where(near, weight_a * (near_d + phi_near(ops, near_d)), weight_b - weight_a)
    mass_a, mass_b, change = _combined(ops, total, (ops.sum(weight_a, axes), ops.sum(weight_b, axes), ops.sum(change, axes)))
    x = change / mass_a
    near = (x < 0.5) & (x > -0.5)
    log_masses = ops.where(near, ops.log1p(ops.where(near, x, 0.0)), ops.log(mass_b / mass_a))

    found = Statistics(top_a, top_b, mass_a, mass_b, log_masses, mass_a, mass_a, mass_a)
    p, q, log_ratio, ratio, unit, only_p = _normalised(ops, a, b, scale, found)
    if kind == "kl":
        beyond = ops.where(log_ratio == -ABSENT, (p * unit) * (-ABSENT / unit - ratio), 0.0)
        terms: tuple[Array, ...] = (ops.where(only_p, math.inf, bregman(ops, p, q, log_ratio) + beyond),)
    else:
        m, m_over_p, m_over_q = mixture(ops, p, q, log_ratio, w)
        in_p = bregman(ops, p, m, m_over_p)
        if kind == "js":
            terms = (in_p, bregman(ops, q, m, m_over_q))
        else:
            excess, slope = skew_slopes(ops, m_over_p, 1.0 - w, w)
            terms = (in_p, p * slope, q * excess)
    sums = _combined(ops, total, tuple(ops.sum(term, axes) for term in terms))
    sums = (ops.where(bad, math.nan, sums[0]), *sums[1:])
    if kind == "js":
        return found._replace(value=(1.0 - w) * sums[0] + w * sums[1], for_p=sums[0], for_q=sums[1])
    return found._replace(value=sums[0], for_p=sums[1 % len(sums)], for_q=sums[2 % len(sums)])


def slopes(
    ops: Any, kind: str, w: float, a: Array, b: Array, scale: Array | float | None, s: Statistics, needs: tuple[bool, ...]
) -> tuple[Array | None, Array | None]:  # fmt: skip
    """d value / d a and d b; None where not needed."""
    # As in `_calculus`, where the algebra stands; the sums are those of the statistics.
    p, q, log_ratio, ratio, unit, _ = _normalised(ops, a, b, scale, s)
    to_p, to_q = None, None
    if kind == "kl":
        if needs[0]:
            to_p = -((p * unit) * (ratio + ops.where(s.value < math.inf, s.value, math.nan) / unit))
        if needs[1]:
            to_q = difference(ops, p, q, log_ratio)
    else:
        _, m_over_p, m_over_q = mixture(ops, p, q, log_ratio, w)
        if kind == "js":
            to_p, to_q = -(1.0 - w) * p * (m_over_p + s.for_p), -w * q * (m_over_q + s.for_q)
        else:
            excess, slope = skew_slopes(ops, m_over_p, 1.0 - w, w)
            to_p, to_q = p * (slope - s.for_p), -w * q * (excess - s.for_q)
    found = [
        None if to_log is None or not need else to_log if scale is None else to_log * scale for to_log, need in zip((to_p, to_q), needs)
    ]
    return found[0], found[1]

"""Values and derivatives of every array quantity, in the two functions that the frameworks' `apply` takes.

`KINDS` holds one entry a divergence: its value, and its gradient with respect to log p and log q, each from a `Pair`.
How those reach the caller's arrays (logits, probabilities, a temperature) is the same for all and stands below them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ._kernels import cpu
from ._ops import numpy as numpy_ops
from ._ops import on_host
from ._pairs import (
    ABSENT,
    LOG_FORMS,
    Array,
    Pair,
    Spec,
    any_of,
    attach,
    bregman,
    centre,
    compute_dtype,
    expm1,
    invalid,
    is_float32,
    kl,
    log_quotient,
    pair,
    phi,
    phi_near,
    result_dtype,
    scaled_below,
    textbook,
    within_range,
)

# Which derivatives are asked for, where a framework knows; those that are not may be None.
Needs = tuple[bool, ...]
ALL = (True, True, True)
Slopes = tuple[Any, ...]


class Kind(NamedTuple):
    """`at_zero`: the derivative with respect to a probability that is 0 (per unit of normalised probability): to p; to q where p is 0 too;
    to q where p is not."""

    value: Callable[[Any, Pair, Any, float], Array] | None  # KL has one of its own
    log_gradients: Callable[[Any, Pair, Any, float, Needs], tuple[Array | None, Array | None]]
    at_zero: Callable[[float], tuple[float, float, float]]


def difference(ops: Any, p: Array, q: Array, log_ratio: Array) -> Array:
    """q - p without cancellation: the smaller one, times expm1 of minus the distance."""
    less = log_ratio < 0.0
    return ops.where(
        less,
        p * expm1(ops, ops.where(less, log_ratio, 0.0)),
        -(q * expm1(ops, -ops.where(less, 0.0, log_ratio))),
    )


def _apart_from(ops: Any, pr: Pair, there: Array, axes: Any) -> tuple[Array, Array]:
    """log(q/p), divided by the unit, less its value in one category out of those that are `there`; and where that is, or its equals are."""
    found = []
    for x in (pr.apart, pr.apart_low + 0.0 * pr.p):
        x = ops.stop_gradient(x)
        found.append(ops.max(ops.where(there, x, -math.inf), axes))
        there = there & (x == found[-1])
    return (pr.apart - found[0]) + (pr.apart_low - found[1]), there


def _likeliest(ops: Any, side: Array, axes: Any) -> Array:
    side = ops.stop_gradient(side)
    return side == ops.max(side, axes)


def _value_there(ops: Any, x: Array, there: Array, axes: Any) -> Array:
    return ops.max(ops.where(there, ops.stop_gradient(x), -math.inf), axes)


def _from_likeliest(ops: Any, pr: Pair, side: Array, axes: Any) -> tuple[Array, Array, Array]:
    """log(q/p) less its value in a likeliest category of P or Q, log(q/p), and that value."""
    apart, there = _apart_from(ops, pr, _likeliest(ops, side, axes), axes)
    l, l0 = pr.log_ratio, _value_there(ops, pr.log_ratio, there, axes)
    cut = (l >= ABSENT) | (l <= -ABSENT) | (l0 >= ABSENT) | (l0 <= -ABSENT)
    return attach(ops, ops.where(cut, l - l0, apart * pr.unit), l), l, l0  # l0 is constant, but not divided by the unit


# Kullback-Leibler. d/d log p = p (log(p/q) - KL) = -p (l - E[l]),  d/d log q = q - p.


def _kl_gradients(ops: Any, pr: Pair, axes: Any, _: float, needs: Needs) -> tuple[Array, Array]:
    # Where KL is infinite there is no derivative to p; that to log q remains.
    infinite = any_of(ops, pr.only_p, pr.p, axes)
    return -(pr.p * pr.unit * ops.where(infinite, math.nan, pr.centred)), difference(ops, pr.p, pr.q, pr.log_ratio)


# Jeffreys: KL(P‖Q) + KL(Q‖P) = sum (q - p) log(q/p), every term >= 0.


def _jeffreys(ops: Any, pr: Pair, axes: Any, _: float) -> Array:
    value = ops.sum(difference(ops, pr.p, pr.q, pr.log_ratio) * pr.unit * pr.ratio, axes)
    return ops.where(any_of(ops, pr.only_p | pr.only_q, pr.p, axes) & ~ops.isnan(value), math.inf, value)


def _jeffreys_gradients(ops: Any, pr: Pair, axes: Any, _: float, needs: Needs) -> tuple[Array, Array]:
    q_minus_p = difference(ops, pr.p, pr.q, pr.log_ratio)
    of_p, of_q = (
        side * pr.unit * centre(ops, side, _apart_from(ops, pr, _likeliest(ops, side, axes), axes)[0], axes) for side in (pr.p, pr.q)
    )
    return -of_p - q_minus_p, of_q + q_minus_p


# Jensen-Shannon, M = (1-w) P + w Q: (1-w) KL(P‖M) + w KL(Q‖M).
# log(m/p) = log1p(w expm1(l)) for l <= 0, and l + log(m/q) otherwise; log(m/q) = log1p((1-w) expm1(-l)).


def mixture(ops: Any, p: Array, q: Array, l: Array, w: float) -> tuple[Array, Array, Array]:
    """m, log(m/p), log(m/q), given log(q/p), which is finite."""
    m = (1.0 - w) * p + w * q
    if not 0.05 <= w <= 0.95:  # the sums below would cancel
        return m, _mixed(ops, l, l, l * 0.0, _rest(w), w)[0], _mixed(ops, -l, -l, l * 0.0, w, _rest(w))[0]
    less = l < 0.0
    change = expm1(ops, ops.where(less, l, -l))
    of_greater = ops.log1p(ops.where(less, w * change, (1.0 - w) * change))
    return m, ops.where(less, of_greater, l + of_greater), ops.where(less, of_greater - l, of_greater)


def _js(ops: Any, pr: Pair, axes: Any, w: float) -> Array:
    m, m_over_p, m_over_q = mixture(ops, pr.p, pr.q, pr.log_ratio, w)
    return ops.sum((1.0 - w) * bregman(ops, pr.p, m, m_over_p) + w * bregman(ops, pr.q, m, m_over_q), axes)


# d/d log p = -(1-w) p (log(m/p) - E[log(m/p)]). Where log(q/p) is nearly the same in all that P has, the difference cancels, unless taken
# of log(m/p) less its value c0 in one category, where log(q/p) is l0. With u = l - l0 and s the share of w Q in M there,
# log(m/p) - c0 = log((1-w + w e^l) / (1-w + w e^l0)) = log(1-s + s e^u) = log1p(s expm1(u)).


def _mixed(ops: Any, u: Array, l: Array, l0: Array, rest: float, share: float) -> tuple[Array, Array, Array]:
    """log(1-s + s e^u), 1 - s and s: see above, for `rest` = 1-w and `share` = w."""
    least = 2.0**-126 if is_float32(ops, l) else 2.0**-1022
    rest, share = max(rest, least), max(share, least)
    above = ops.where(l0 > 0.0, l0, 0.0)
    of_rest, of_share = rest * ops.exp(-above), share * ops.exp(l0 - above)
    total = of_rest + of_share
    of_rest, of_share, log_total = of_rest / total, of_share / total, ops.log(total)
    c0 = log_total + above
    few = of_share < 0.5  # the logarithm of the rest is then that of nearly 1
    first = ops.where(few, ops.log1p(-ops.where(few, of_share, 0.0)), math.log(rest) - c0)
    second = (math.log(share) + l) - c0
    # log1p(s expm1(u)) for a small u, and where s expm1(u) is small or close to -s for s < 1/2; else the sum of two exponentials.
    close, less = (u < 1.0) & (u > -1.0), first < second
    near = close | ops.where(u < 0.0, of_share < 0.5, (u < 80.0) & (second < 0.0))
    power = ops.exp(ops.where(near, ops.where(close, 0.0, u), ops.where(less, first - second, second - first)))
    close_u = ops.where(close, u, 0.0)
    change = of_share * ops.where(close, close_u + phi_near(ops, close_u), ops.where(near, power - 1.0, 0.0))
    log_mixed = ops.log1p(ops.where(near, change, power)) + ops.where(near, 0.0, ops.where(less, second, first))
    return log_mixed, of_rest, of_share


def _rest(w: float) -> float:
    """1 - w. If w has rounded to 1, this is the largest number that it may have been."""
    return max(1.0 - w, 2.0**-54)


def _js_gradients(ops: Any, pr: Pair, axes: Any, w: float, needs: Needs) -> tuple[Array | None, Array | None]:
    to_p, to_q = None, None
    if needs[0]:
        m_over_p = _mixed(ops, *_from_likeliest(ops, pr, pr.p, axes), 1.0 - w, w)[0]
        to_p = -(1.0 - w) * pr.p * centre(ops, pr.p, m_over_p, axes)
    if needs[1]:
        u, l, l0 = _from_likeliest(ops, pr, pr.q, axes)
        m_over_q = _mixed(ops, -u, -l, -l0, w, 1.0 - w)[0]
        to_q = -w * pr.q * centre(ops, pr.q, m_over_q, axes)
    return to_p, to_q


# Skewed KL, the same M: KL(P‖M). With r = p/m: d/dp = log r - (1-w)(r - 1) and d/dq = -w (r - 1), up to constants.


def _skew(ops: Any, pr: Pair, axes: Any, w: float) -> Array:
    m, m_over_p, _ = mixture(ops, pr.p, pr.q, pr.log_ratio, w)
    return ops.sum(bregman(ops, pr.p, m, m_over_p), axes)


def skew_slopes(ops: Any, c: Array, rest: Array | float, share: Array | float) -> tuple[Array, Array]:
    """r - 1 and log r - (1-w)(r - 1), given c = log(m/p), 1 - w and w. Given log(m/p) - c0, 1 - s and s as above instead: r/r0 - 1, with r0
    the value of r there, and the second less its value there."""
    # r is at most 1/(1-w), which may be large. Elsewhere both terms may be of first order in w, and their difference of second order.
    far = c < -1.0
    near_c = ops.where(far, 0.0, c)
    excess = ops.where(far, ops.exp(ops.where(far, -c, 0.0)) - 1.0, expm1(ops, -near_c))
    return excess, ops.where(far, -c - rest * excess, share * excess - phi(ops, -near_c))


def _skew_gradients(ops: Any, pr: Pair, axes: Any, w: float, needs: Needs) -> tuple[Array | None, Array | None]:
    to_p, to_q = None, None
    if needs[0]:
        c, of_p, of_q = _mixed(ops, *_from_likeliest(ops, pr, pr.p, axes), _rest(w), w)
        to_p = pr.p * centre(ops, pr.p, skew_slopes(ops, c, of_p, of_q)[1], axes)
    if needs[1]:
        # (1-w) r + w q/m = 1, and -w (r - r0) = w^2/(1-w) (q/m - q0/m0).
        u, l, l0 = _from_likeliest(ops, pr, pr.q, axes)
        c, of_q, of_p = _mixed(ops, -u, -l, -l0, w, _rest(w))
        to_q = (w / _rest(w)) * of_q * pr.q * centre(ops, pr.q, skew_slopes(ops, c, of_q, of_p)[0], axes)
    return to_p, to_q


# Rényi of order a: log(sum p^a q^g) / (a - 1), g = 1 - a. With l = log(q/p) and sum (q - p) = 0,
# sum p^a q^g = 1 + sum [p phi(g l) - g p phi(l)], second order term by term. For a < 1/2 P and Q change places, and a and g with them.


class _Powers(NamedTuple):
    """The powers p^a q^g of a row: log(p^a q^g) = (y + top) unit, y <= 0, and log_sum = log(sum p^a q^g) - top unit."""

    unit: float
    y: Array
    top: Array
    log_sum: Array


def _uncut(ops: Any, pr: Pair) -> Pair:
    """The pair with log(q/p) as it is, however large. Where log p or log q overflows, P or Q counts as absent."""
    if type(pr.unit) is float and pr.unit == 1.0:  # from probabilities: it is never cut off
        return pr
    no_p = pr.log_p == -math.inf
    l = ops.where(pr.only_p | no_p, pr.log_ratio, pr.ratio * pr.unit)
    lost = l == -math.inf
    return pr._replace(
        log_ratio=ops.where(lost, -ABSENT, l), only_p=pr.only_p | lost, only_q=pr.only_q | (no_p & (pr.log_ratio > 0.0))
    )  # fmt: skip


def _excess(ops: Any, p: Array, q: Array, l: Array, only_p: Array, log_power: Array, g: float, axes: Any) -> Array:
    """sum p^(1-g) q^g - 1 for g <= 1/2."""
    l = ops.where(l > ABSENT, ABSENT, l)  # p has underflown there
    h = g * l
    far = (h > 1.0) | only_p
    # Powers above e^20 count as e^20: a sum that large is taken from the logarithms.
    small = log_power < 20.0
    power = ops.where(small, ops.exp(ops.where(small, log_power, 0.0)) - p * (1.0 + h), math.exp(20.0))
    second_order = ops.where(far, power, p * phi(ops, ops.where(far, 0.0, h))) - g * bregman(ops, p, q, l)
    # Where q is far below p, e^h and e^l alone: h and g l are the same, and large numbers where a finite logit stands for absence.
    below = (l < -1.0) & (h <= 1.0)
    h_below, l_below = ops.where(below, h, 0.0), ops.where(below, l, 0.0)
    second_order = ops.where(below, p * (expm1(ops, h_below) - g * expm1(ops, l_below)), second_order)
    # Only P is there: -(1 - g) p, without the detour over l.
    return ops.sum(ops.where(only_p, (g - 1.0) * p, second_order), axes)


def _nothing(pr: Pair) -> Array:
    """Where P or Q is absent the product is 0."""
    return pr.only_p | pr.only_q | (pr.log_p == -math.inf)


def _powers(ops: Any, pr: Pair, axes: Any, order: float) -> _Powers:
    # An order times a logarithm may overflow; the divergence is no larger than the logarithm.
    nothing, unit = _nothing(pr), max(1.0, order - 1.0)
    log_p, log_q = ops.where(nothing, 0.0, pr.log_p), ops.where(nothing, 0.0, pr.log_q)
    about = order * log_p + (1.0 - order) * log_q if order <= 2.0 else log_p / unit - pr.log_ratio
    about = ops.where(nothing, -math.inf, about)
    top = ops.stop_gradient(ops.max(about, axes))
    # Beside l = -1e30, log p has rounded away. From one of the largest powers to the others, it counts:
    # log(p^a q^g) = log p + g l = log q - a l.
    apart, there = _apart_from(ops, pr, about == top, axes)
    log_side, factor = (log_q, -order) if order < 0.5 else (log_p, (1.0 - order) / unit)
    # Disjoint supports leave nothing to sum: top is -inf, and so is the logarithm.
    some = top > -math.inf
    first = ops.where(some, _value_there(ops, log_side, there, axes), 0.0)
    y = (log_side - first) / unit + factor * ops.where(nothing, 0.0, apart) * pr.unit
    y = ops.where(nothing, -math.inf, ops.where(y < math.inf, y, about - top))
    more = ops.stop_gradient(ops.max(y, axes))
    y = y - ops.where(some, more, 0.0)
    return _Powers(unit, y, ops.where(some, top + more, 0.0), ops.log(ops.sum(ops.exp(y * unit), axes)))


def _tilted(ops: Any, pr: Pair, side: Array, log_side: Array, factor: float, t: Array, log_t: Array, axes: Any) -> Array:
    """log(t/p) = g l - log(sum p e^(g l)), or log(t/q) = -a l - log(sum q e^(-a l)), with l less its value in a likeliest category."""
    nothing = _nothing(pr)
    h = factor * ops.where(nothing, 0.0, _apart_from(ops, pr, _likeliest(ops, side, axes), axes)[0]) * pr.unit
    # A share T of t lies where e^h is large: sum p e^h = (1 - sum of p there + sum of p (e^h - 1) elsewhere) / (1 - T).
    steep = h > 1.0
    share = ops.sum(ops.where(steep, t, 0.0), axes)
    change = ops.sum(ops.where(nothing | steep, -side, side * expm1(ops, ops.where(steep, 0.0, h))), axes)
    near = (change > -0.5) & (share < 0.5)
    log_sum = ops.log1p(ops.where(near, change, 0.0)) - ops.log1p(-ops.where(near, share, 0.0))
    far = log_t - ops.where(nothing, 0.0, log_side)
    return ops.where(nothing, -ABSENT, ops.where(near, ops.where(near, h, 0.0) - log_sum, far))


# Beyond this, only the largest p/q counts.
_HIGHEST_ORDER = 1e30


def _renyi(ops: Any, pr: Pair, axes: Any, order: float) -> Array:
    if order == 0.0:
        inside = ops.sum(ops.where(pr.only_q, 0.0, pr.q), axes)
        outside = ops.sum(ops.where(pr.only_q, pr.q, 0.0), axes)
        return -ops.where(outside < 0.5, ops.log1p(-outside), ops.log(inside))
    pr = _uncut(ops, pr)
    some_only_p = any_of(ops, pr.only_p, pr.p, axes)
    if order == math.inf:
        # At least 0, so that categories absent from both do no harm. A NaN must not be lost in the maximum.
        worst = ops.max(-pr.log_ratio, axes) + ops.sum(pr.p * 0.0, axes)
        return ops.where(some_only_p & ~ops.isnan(worst), math.inf, worst)
    order = min(order, _HIGHEST_ORDER)
    s = _powers(ops, pr, axes, order)
    if order < 0.5:
        t = _excess(ops, pr.q, pr.p, -pr.log_ratio, pr.only_q, (s.y + s.top) * s.unit, order, axes)
    else:
        t = _excess(ops, pr.p, pr.q, pr.log_ratio, pr.only_p, (s.y + s.top) * s.unit, 1.0 - order, axes)
    near = (t > -0.5) & (t < 1.0)
    far = s.top * (s.unit / (order - 1.0)) + s.log_sum / (order - 1.0)
    value = ops.where(near, ops.log1p(ops.where(near, t, 0.0)) / (order - 1.0), far)
    if order > 1.0:
        value = ops.where(some_only_p & ~ops.isnan(value), math.inf, value)
    return value + 0.0  # 0, not -0


def _renyi_gradients(ops: Any, pr: Pair, axes: Any, order: float, needs: Needs) -> tuple[Array | None, Array | None]:
    if order == 0.0:
        inside = ops.where(pr.only_q, 0.0, pr.q)
        return pr.p * 0.0, pr.q - inside / ops.sum(inside, axes)
    pr = _uncut(ops, pr)
    if order == math.inf:
        attained = (pr.log_ratio == ops.min(pr.log_ratio, axes)) & (pr.log_p > -math.inf)
        attained = ops.where(attained, pr.p * 0.0 + 1.0, 0.0)
        attained = attained / ops.sum(attained, axes)
        return attained - pr.p, pr.q - attained
    order = min(order, _HIGHEST_ORDER)
    # t = p^a q^g / sum: d/d log p = a/(a-1) (t - p),  d/d log q = q - t.
    s = _powers(ops, pr, axes, order)
    log_t = ops.where(_nothing(pr), 0.0, s.y * s.unit - s.log_sum)
    t = ops.where(_nothing(pr), 0.0, ops.exp(log_t))
    to_p, to_q = None, None
    if needs[0]:
        # The factor goes first: near order 1 it is large, and t - p small.
        factor = order / (order - 1.0)
        t_over_p = _tilted(ops, pr, pr.p, pr.log_p, 1.0 - order, t, log_t, axes)
        to_p = difference(ops, factor * pr.p, factor * t, ops.where(pr.only_p, -ABSENT, t_over_p))
    if needs[1]:
        t_over_q = _tilted(ops, pr, pr.q, pr.log_q, -order, t, log_t, axes)
        to_q = -difference(ops, pr.q, t, ops.where(pr.only_q, -ABSENT, t_over_q))
    return to_p, to_q


def _renyi_at_zero(order: float) -> tuple[float, float, float]:
    to_p = -1.0 if order == math.inf else -order / (order - 1.0) if order > 1.0 else 0.0
    return to_p, 1.0, -math.inf if order >= 1.0 else 0.0


KINDS = {
    # At p = 0 the derivative to p is -inf for the first three; the contract makes it 0. To q it is 1 - p/q.
    "kl": Kind(None, _kl_gradients, lambda _: (0.0, 1.0, -math.inf)),
    "jeffreys": Kind(_jeffreys, _jeffreys_gradients, lambda _: (0.0, 0.0, -math.inf)),
    "js": Kind(_js, _js_gradients, lambda _: (0.0, 0.0, 0.0)),
    "skew": Kind(_skew, _skew_gradients, lambda _: (0.0, 0.0, 0.0)),
    "renyi": Kind(_renyi, _renyi_gradients, _renyi_at_zero),
}


def evaluate(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> Array:
    """The divergence of each row, summed axes kept. Rows that are no distributions give NaN."""
    arrays = (x, y) if scale is None else (x, y, scale)
    views = [ops.host_view(array) for array in arrays]
    if not any(view is None for view in views):
        return ops.from_host(cpu.run(_evaluate, numpy_ops, spec, *views))
    if ops.call_host is not None and cpu.has_lanes(spec, scale):
        value = ops.call_host(spec, _draft, *arrays)
        if value is not None:
            return value
    if _has_kernel(ops, spec, *arrays):
        from ._kernels import rows_triton

        return rows_triton.kl(*arrays)
    return _evaluate(ops, spec, *arrays)


def _has_kernel(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> bool:
    return (
        ops.has_row_kernels is not None
        and spec.kind == "kl"
        and spec.forms == ("logits", "logits")
        and spec.axes == (len(x.shape) - 1,)
        and ops.has_row_kernels(x, y, scale)
    )


def _draft(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> Array | None:
    """Rows that compiled code can do by itself, NaN for others; None where it had better leave all to the kernel."""
    from ._kernels import draft_torch

    alike = spec.forms[0] == spec.forms[1] and x.dtype == y.dtype == ops.float32 and scale is None
    if alike and spec.axes == (len(x.shape) - 1,) and ops.divides(draft_torch.PIECE, x.shape[-1]):
        return draft_torch.kl(spec, x, y)
    return None


@on_host
def _evaluate_on_host(ops: Any, fields: Any, draft: Array | None, *arrays: Array) -> Array:
    spec = Spec(*fields)
    views = [ops.host_view(array) for array in arrays]
    if draft is None or any(view is None for view in views):
        return evaluate(ops, spec, *arrays)
    return ops.from_host(cpu.complete(_evaluate, numpy_ops, spec, ops.host_view(draft), *views))


def _summable(ops: Any, form: str, x: Array, axes: Any) -> tuple[Array, Array | float]:
    """Counts times a power of two, and that power, so that neither their sum nor a quotient of sums overflows. Other forms: as given."""
    if form != "counts":
        return x, 1.0
    factor = ops.stop_gradient(within_range(ops, ops.max(x, axes)))
    return x * factor, factor


def _evaluate(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> Array:
    out = result_dtype(ops, (x, y))
    dtype = compute_dtype(ops, spec, (x, y))
    x, y = ops.astype(x, dtype), ops.astype(y, dtype)
    if "counts" in spec.forms:
        x, y = (_summable(ops, form, z, spec.axes)[0] for form, z in zip(spec.forms, (x, y)))
    scale = None if scale is None else ops.astype(scale, dtype)
    of_pair = KINDS[spec.kind].value
    value = kl(ops, spec, x, y, scale) if of_pair is None else of_pair(ops, pair(ops, spec, x, y, scale), spec.axes, spec.parameter)
    bad = None
    for z, form, tolerance in zip((x, y), spec.forms, spec.tolerances):
        # KL of negative numbers is NaN by itself.
        wrong = invalid(ops, z, form, spec.axes, tolerance, negative=spec.kind != "kl")
        bad = wrong if bad is None else bad | wrong
    return ops.astype(ops.where(bad, math.nan, value), out)


def gradients(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None, *, needs: Needs = ALL) -> Slopes:
    """d evaluate / d each array: exact in value, and differentiable again."""
    arrays = (x, y) if scale is None else (x, y, scale)
    views = [ops.host_view(array) for array in arrays]
    if not any(view is None for view in views) and all(map(ops.is_constant, arrays)):
        found = cpu.run_gradients(_gradients, numpy_ops, spec, needs, *views)
        return tuple(None if slope is None else ops.from_host(slope) for slope in found)
    learns_scale = scale is not None and needs[2]
    if not learns_scale and _has_kernel(ops, spec, *arrays) and all(map(ops.is_constant, arrays)):
        from ._kernels import rows_triton

        return rows_triton.kl_gradients(x, y, scale, needs)
    return _gradients(ops, spec, x, y, scale, needs)


def _gradients(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None, needs: Needs) -> Slopes:
    dtype = compute_dtype(ops, spec, (x, y))
    axes = spec.axes
    (x, of_x), (y, of_y) = (_summable(ops, form, ops.astype(z, dtype), axes) for form, z in zip(spec.forms, (x, y)))
    scale = None if scale is None else ops.astype(scale, dtype)
    fixed_scale = None if scale is None else ops.stop_gradient(scale)
    exact = pair(ops, spec, ops.stop_gradient(x), ops.stop_gradient(y), fixed_scale)
    p, q, log_p, log_q, log_ratio = textbook(ops, spec, x, y, scale)
    unit = exact.unit if scale is None else 4.0 * scale
    ratio = log_ratio / unit
    # Where p is 0, log(q/p) may be near the largest float, and its multiples would overflow.
    centred = ops.where(exact.p == 0.0, 0.0, exact.centred)
    both = exact._replace(
        p=p,
        q=q,
        log_p=log_p,
        log_q=log_q,
        log_ratio=attach(ops, exact.log_ratio, log_ratio),
        ratio=attach(ops, exact.ratio, ratio),
        apart=attach(ops, exact.apart, ratio),
        # Centred once more: the mean of large numbers leaves a remainder, which matters here and not in the value.
        centred=attach(ops, centre(ops, exact.p, centred, axes), centre(ops, p, ops.where(exact.p == 0.0, 0.0, ratio), axes)),
        unit=unit,
    )
    kind = KINDS[spec.kind]
    learns_scale = scale is not None and needs[2]
    to_logs = [
        None if to_log is None else _balanced(ops, to_log, normalised, axes)
        for to_log, normalised in zip(
            kind.log_gradients(ops, both, axes, spec.parameter, tuple(need or learns_scale for need in needs)), (p, q)
        )
    ]
    p_zero, q_zero, q_lost = kind.at_zero(spec.parameter)
    at_zero = (p_zero, ops.where(exact.only_p, q_lost, q * 0.0 + q_zero))
    found = [
        _to_input(ops, form, z, to_log, normalised, zero, axes, scale, factor) if need else None
        for form, z, to_log, normalised, zero, need, factor in zip(
            spec.forms, (x, y), to_logs, (both.p, both.q), at_zero, needs, (of_x, of_y)
        )
    ]
    if scale is not None:
        found.append(sum(_to_scale(ops, z, to_log, axes) for z, to_log in zip((x, y), to_logs)) if learns_scale else None)
    return tuple(found)


def _balanced(ops: Any, to_log: Array, normalised: Array, axes: Any) -> Array:
    """Derivatives to logs sum to 0. That of a category with nearly all the mass is a difference of nearly equal numbers, unless taken
    as minus the sum of the others."""
    dominant = normalised > 0.5
    return ops.where(dominant, -ops.sum(ops.where(dominant, 0.0, to_log), axes), to_log)


def _to_input(
    ops: Any, form: str, x: Array, to_log: Array, normalised: Array, at_zero: Any, axes: Any, scale: Array | None, factor: Array | float
) -> Array:
    """From d/d log p to d/d the array given: logits, which `scale` multiplies; probabilities; or counts, which `factor` multiplies."""
    if form in LOG_FORMS:
        return to_log if scale is None else to_log * scale
    absent = x == 0.0
    found = ops.where(absent, at_zero, to_log / ops.where(absent, 1.0, normalised)) / ops.sum(x, axes)
    return found * factor if form == "counts" else found


def _to_scale(ops: Any, x: Array, to_log: Array, axes: Any) -> Array:
    # The gradient sums to 0, so logits may be taken relative to their largest.
    below = ops.where(x == -math.inf, 0.0, x - ops.max(x, axes))
    return ops.sum(to_log * below, axes)


# Entropy: -sum p log p;  d/d log p = -p (log p + H).


def _log_probability(ops: Any, spec: Spec, x: Array, scale: Array | None) -> tuple[Array, Array]:
    """p, and log p (0 where p is absent). log p near 0 comes from the mass of the others."""
    axes = spec.axes
    if spec.forms[0] in LOG_FORMS:
        top, below = scaled_below(ops, x, axes, scale)
        weight = ops.exp(below)
        absent = weight == 0.0  # its logarithm may be as large as floats go, and counts for nothing
        total = ops.sum(weight, axes)
        p, log_p = weight / total, ops.where(absent, 0.0, below) - ops.log(total)
    else:
        total, top = ops.sum(x, axes), ops.max(x, axes)
        absent = x == 0.0
        p, log_p = x / total, ops.log(ops.where(absent, 1.0, x)) - ops.log(total)
    others = ops.sum(ops.where(x == top, 0.0, p), axes)
    near_one = p > 0.5
    log_p = ops.where(near_one, ops.log1p(-ops.where(near_one, others, 0.0)), log_p)
    return p, ops.where(absent, 0.0, log_p)


def evaluate_entropy(ops: Any, spec: Spec, x: Array, scale: Array | None = None) -> Array:
    out = result_dtype(ops, (x,))
    x, _ = _summable(ops, spec.forms[0], ops.astype(x, compute_dtype(ops, spec, (x,))), spec.axes)
    scale = None if scale is None else ops.astype(scale, x.dtype)
    p, log_p = _log_probability(ops, spec, x, scale)
    bad = invalid(ops, x, spec.forms[0], spec.axes, spec.tolerances[0])
    return ops.astype(ops.where(bad, math.nan, ops.sum(-(p * log_p), spec.axes)), out)


def _shares(ops: Any, form: str, x: Array, axes: Any, scale: Array | None) -> tuple[Array, Array]:
    """p, and where x is absent."""
    if form not in LOG_FORMS:
        return x / ops.sum(x, axes), x == 0.0
    weight = ops.exp(scaled_below(ops, x, axes, scale)[1])
    return weight / ops.sum(weight, axes), x == -math.inf


def _costs(ops: Any, form: str, x: Array, axes: Any, scale: Array | None) -> Array:
    """-log p, counted from the likeliest category, so that nearly equal categories keep their digits. 0 or inf where x is absent."""
    if form in LOG_FORMS:
        return -scaled_below(ops, x, axes, scale)[1]
    top = ops.stop_gradient(ops.max(x, axes))
    top = ops.where(top > 0.0, top, 1.0)
    share = (x - top) / top
    near = share > -1.0 / 3.0  # XLA's float64 log1p loses two digits around -0.41
    return -ops.where(near, ops.log1p(ops.where(near, share, 0.0)), log_quotient(ops, ops.where(x == 0.0, top, x), top))


def _mean_gradient(ops: Any, form: str, x: Array, p: Array, cost: Array, axes: Any, factor: Array | float) -> Array:
    """The derivative of the mean cost under P to log p or, of probabilities and counts, to x. A constant in the costs cancels."""
    present = ops.where(p == 0.0, 0.0, cost)
    if form in LOG_FORMS:
        return _balanced(ops, p * centre(ops, p, present, axes), p, axes)
    return (cost - ops.sum(p * present, axes)) / ops.sum(x, axes) * factor


def entropy_gradients(ops: Any, spec: Spec, x: Array, scale: Array | None = None, *, needs: Needs = ALL) -> Slopes:
    form, axes = spec.forms[0], spec.axes
    x, factor = _summable(ops, form, ops.astype(x, compute_dtype(ops, spec, (x,))), axes)
    scale = None if scale is None else ops.astype(scale, x.dtype)
    p, absent = _shares(ops, form, x, axes, scale)
    cost = ops.where(absent, 0.0, _costs(ops, form, x, axes, scale))
    found = _mean_gradient(ops, form, x, p, cost, axes, factor)
    if form not in LOG_FORMS:
        return (ops.where(absent, 0.0, found),)
    return (found,) if scale is None else (found * scale, _to_scale(ops, x, found, axes))


# Cross-entropy: H(P) + KL(P‖Q), two sums of terms >= 0, so nothing cancels in the value. Their derivatives to P cancel where Q is nearly
# uniform. The derivatives to P are therefore those of the mean of -log q, and those to Q are those of KL.


def evaluate_cross_entropy(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None) -> Array:
    scales = () if scale is None else (scale,)
    kl = evaluate(ops, spec._replace(kind="kl"), x, y, *scales)
    # In the dtype of both: the entropy of a float32 P needs the digits of a float64 Q, too.
    return kl + evaluate_entropy(ops, spec, ops.astype(x, kl.dtype), *scales)


def cross_entropy_gradients(ops: Any, spec: Spec, x: Array, y: Array, scale: Array | None = None, *, needs: Needs = ALL) -> Slopes:
    learns_scale, axes = scale is not None and needs[2], spec.axes
    scales = () if scale is None else (scale,)
    to_y = None
    if needs[1] or learns_scale:
        to_y = gradients(ops, spec._replace(kind="kl"), x, y, *scales, needs=(False, True, False))[1]
    if not (needs[0] or learns_scale):
        return (None, to_y, None)[: 2 + len(scales)]
    dtype = compute_dtype(ops, spec, (x, y))
    (x, factor), (y, _) = (_summable(ops, form, ops.astype(z, dtype), axes) for form, z in zip(spec.forms, (x, y)))
    scale = None if scale is None else ops.astype(scale, dtype)
    p, p_absent = _shares(ops, spec.forms[0], x, axes, scale)
    cost, q_absent = _costs(ops, spec.forms[1], y, axes, scale), _absent(spec, y)
    # If P has a category that Q lacks, the value is infinite and the derivative to P does not exist.
    cost = ops.where(q_absent & ~p_absent, math.nan, ops.where(q_absent, 0.0, cost))
    if spec.forms[0] not in LOG_FORMS:
        cost = ops.where(x < 0.0, math.nan, cost)  # the row is no distribution, and its derivatives are NaN
    to_x = _mean_gradient(ops, spec.forms[0], x, p, cost, axes, factor)
    if spec.forms[0] not in LOG_FORMS:
        to_x = ops.where(p_absent & q_absent, 0.0, to_x)
    if scale is None:
        return to_x, to_y
    to_scale = _to_scale(ops, x, to_x, axes) + _to_scale(ops, y, to_y, axes) / scale if learns_scale else None
    return to_x * scale, to_y, to_scale


# Elementwise, SciPy's meaning: rel_entr = x log(x/y), kl_div = x log(x/y) - x + y;
# at x = 0 <= y they are 0 and y; outside x >= 0, y >= 0, and at y = 0 < x, inf. NaN stays.


def _elementwise_log_ratio(ops: Any, x: Array, y: Array, inside: Array) -> Array:
    """log(y/x) where both are positive, else 0."""
    x, y = ops.where(inside, x, 1.0), ops.where(inside, y, 1.0)
    change = (y - x) / x
    # XLA's float64 log1p loses two digits around -0.41.
    near = (change < 1.0 / 3.0) & (change > -1.0 / 3.0)
    return ops.where(near, ops.log1p(ops.where(near, change, 0.0)), log_quotient(ops, y, x))


def evaluate_elementwise(ops: Any, spec: Spec, x: Array, y: Array) -> Array:
    out = result_dtype(ops, (x, y))
    dtype = compute_dtype(ops, spec, (x, y))
    x, y = ops.astype(x, dtype), ops.astype(y, dtype)
    inside = (x > 0.0) & (y > 0.0)
    edge = (x == 0.0) & (y >= 0.0)
    log_ratio = _elementwise_log_ratio(ops, x, y, inside)
    if spec.kind == "rel_entr":
        value = ops.where(edge, 0.0, ops.where(inside, 0.0 - x * log_ratio, math.inf))  # 0, not -0
    else:
        value = ops.where(edge, y, ops.where(inside, bregman(ops, x, y, log_ratio), math.inf))
    return ops.astype(ops.where(ops.isnan(x) | ops.isnan(y), math.nan, value), out)


def elementwise_gradients(ops: Any, spec: Spec, x: Array, y: Array, *, needs: Needs = ALL) -> Slopes:
    dtype = compute_dtype(ops, spec, (x, y))
    x, y = ops.astype(x, dtype), ops.astype(y, dtype)
    inside = (x > 0.0) & (y > 0.0)
    edge = (x == 0.0) & (y >= 0.0)
    safe_x, safe_y = ops.where(inside, x, 1.0), ops.where(inside, y, 1.0)
    exact = _elementwise_log_ratio(ops, ops.stop_gradient(x), ops.stop_gradient(y), inside)
    log_ratio = attach(ops, exact, ops.log(safe_y) - ops.log(safe_x))
    unit = x * 0.0 + y * 0.0
    if spec.kind == "rel_entr":
        at_edge, to_x, to_y = unit, 1.0 - log_ratio, -(safe_x / safe_y)
    else:
        # 1 - x/y = (y - x)/y
        at_edge, to_x, to_y = unit + 1.0, -log_ratio, difference(ops, safe_x, safe_y, log_ratio) / safe_y
    outside = unit + math.nan
    return (
        ops.where(edge, 0.0, ops.where(inside, to_x, outside)),
        ops.where(edge, at_edge, ops.where(inside, to_y, outside)),
    )


# As PyTorch, optax and Keras write it, of a target t and the logarithm x of a prediction, neither normalised: t (log t - x), summed over
# axes or not. Where t = 0 the term is 0 whatever x is (unless NaN). Summed in float64, where there is one: the terms have both signs.


def _absent(spec: Spec, t: Array) -> Array:
    return t == (-math.inf if spec.forms[1] in LOG_FORMS else 0.0)


def _literal_weight(ops: Any, spec: Spec, t: Array) -> Array:
    return ops.exp(t) if spec.forms[1] in LOG_FORMS else t


def _literal_excess(ops: Any, spec: Spec, x: Array, t: Array) -> Array:
    """log t - x, 0 where t is absent."""
    absent = _absent(spec, t)
    log_t = ops.where(absent, 0.0, t) if spec.forms[1] in LOG_FORMS else ops.log(ops.where(absent, 1.0, t))
    return log_t - ops.where(absent & ~ops.isnan(x), 0.0, x)


def evaluate_literal(ops: Any, spec: Spec, x: Array, t: Array) -> Array:
    views = [ops.host_view(array) for array in (x, t)]
    if not any(view is None for view in views):
        return ops.from_host(cpu.run_literal(spec, *views))
    dtype = compute_dtype(ops, spec, (x, t))
    out = result_dtype(ops, (x, t))
    x, t = ops.astype(x, dtype), ops.astype(t, dtype)
    terms = _literal_weight(ops, spec, t) * _literal_excess(ops, spec, x, t)
    return ops.sum(terms, spec.axes) if spec.axes else ops.astype(terms, out)


def literal_gradients(ops: Any, spec: Spec, x: Array, t: Array, *, needs: Needs = ALL) -> Slopes:
    dtype = compute_dtype(ops, spec._replace(wide=False), (x, t))
    x, t = ops.astype(x, dtype), ops.astype(t, dtype)
    weight = _literal_weight(ops, spec, t)
    to_t = None
    if needs[1]:
        to_t = ops.where(_absent(spec, t), 0.0, _literal_excess(ops, spec, x, t) + 1.0)
        to_t = to_t * weight if spec.forms[1] in LOG_FORMS else to_t
    return -weight if needs[0] else None, to_t


# The same of a target x and a prediction y, both probabilities, as Keras writes it:
# Σ x log(x/y) = Σ (x log(x/y) - x + y) + Σ (x - y): the terms of the first sum are all >= 0, and of second order in those of the second,
# which are exact where x and y are close.  d/dx = log(x/y) + 1,  d/dy = -x/y.


def evaluate_literal_probs(ops: Any, spec: Spec, x: Array, y: Array) -> Array:
    absent = (x == 0.0) & ~ops.isnan(y)
    excess = evaluate_elementwise(ops, spec._replace(kind="kl_div"), x, ops.where(absent, 1.0, y))
    # SciPy's kl_div, which that is, gives inf for negative numbers.
    difference = ops.where((x < 0.0) | (y < 0.0), math.nan, x - y)
    first, second = (ops.sum(ops.astype(ops.where(absent, 0.0, z), ops.widest(z)), spec.axes) for z in (excess, difference))
    return ops.astype(first + second, y.dtype)


def literal_probs_gradients(ops: Any, spec: Spec, x: Array, y: Array, *, needs: Needs = ALL) -> Slopes:
    # 0 where x is, and where x/y overflows: behind a softmax that has underflown, an infinite one would make everything NaN.
    quarter = 2.0**1022 if y.dtype == ops.float64 else 2.0**126
    constant = (x == 0.0) | (y * quarter < x)
    x, y = ops.where(constant, 1.0, x), ops.where(constant, 1.0, y)
    return ops.where(constant, 0.0, ops.log(x) - ops.log(y) + 1.0), ops.where(constant, 0.0, -(x / y))

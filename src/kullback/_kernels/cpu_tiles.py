"""KL(P‖Q) of tiles: the arithmetic that the blocked CPU kernel does on pieces small enough for the cache.

A tile is a contiguous (n, L) piece of n rows. A `Lane` is one way to take it: `sums` reduces a tile to a few numbers a row, and `finish`,
for many tiles at once, to what `merge` needs, with NaN where its rounding errors would not do; the next lane is then tried.
NumPy only; no layout, no threads.

Accuracy. u is the unit roundoff of the lane's dtype. KL = E[phi(v)] and a little, phi(v) = e^v - 1 - v ~ v^2/2, all terms >= 0, with errors
of at most 2u|v| each (one ulp of expm1 or log). As E|v| <~ sqrt(2 KL), the relative error stays below 2u sqrt(2/KL): within bounds for
float32 while KL > 0.02. Below, float32 data are taken in float64, where that bound would be reached at 7e-20, and float64 data (2e-6) in
the general formula. For KL > 0.2 or so the usual difference of sums is good enough, and faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = Any

# Dot products are taken over pieces, whose sums are added in float64: BLAS adds a piece in eight lanes or more, which errs by some u.
PIECE = 256
# e^v is taken as e^a e^d up to here; beyond, from Q's own logits, since the roundings of a and of d add up in the exponent.
_STEEP = 10.0
_ONES = {np.dtype(t): np.ones(PIECE, t) for t in (np.float32, np.float64)}
_UNIT = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float64): 2.0**-53}


class Lane(NamedTuple):
    """sums(p, q, scale, buffer) -> (n,) arrays.  finish(lane, scale, *sums) -> an estimate of KL, and what `merge` takes.

    `least` is the smallest KL the lane may accept; `error` its absolute error, in units of the last place, that does not shrink with KL;
    `scaled`: may logits be multiplied by an inverse temperature?
    """

    dtype: Any
    least: float
    error: float
    sums: Callable[..., tuple[Array, ...]]
    finish: Callable[..., tuple[Array, ...]]
    scaled: bool = True


def _einsum_dot(x: Array, y: Array, out: Array | None = None) -> Array:
    return np.einsum("...i,...i->...", x, y, out=out)


_vecdot: Callable[..., Array] = getattr(np, "vecdot", _einsum_dot)  # NumPy 2


def _dot(x: Array, y: Array | None = None) -> Array:
    """Row sums of x y (of x alone for y None), in float64. Rows longer than PIECE must be a multiple of it."""
    n, length = x.shape
    if length <= PIECE:
        return _vecdot(x, _ONES[x.dtype][:length] if y is None else y)
    x = x.reshape(n, -1, PIECE)
    return np.add.reduce(_vecdot(x, _ONES[x.dtype] if y is None else y.reshape(x.shape)), 1, np.float64)


# --- probabilities ------------------------------------------------------------------------------------------------------------------
# KL = S/P + log1p(m) - m,  S = sum p g(q/p),  g(y) = y - 1 - log y >= 0,  m = Q/P - 1 with P, Q the sums.
# g is taken of the rounded y throughout: as g'(y) = 1 - 1/y, that rounding costs u |y - 1| only. y - 1 is exact near 1.


def _prob_sums(p: Array, q: Array, scale: None, buffer: Callable[..., Array]) -> tuple[Array, ...]:
    y = np.divide(q, p, out=buffer("y", p.shape, p.dtype))
    g = np.log(y, out=buffer("g", p.shape, p.dtype))
    deepest = np.fmin.reduce(g, 1)
    np.subtract(y, 1.0, out=y)
    np.subtract(y, g, out=g)
    s, lowest = _dot(p, g), np.minimum.reduce(p, 1)
    if np.isnan(s).any():
        # 0/0 or q/0, where the term is q itself. A negative q there has escaped the logarithm, which sees to all others.
        absent = p == 0.0
        np.copyto(g, 0.0, where=absent)
        s = _dot(p, g) + _dot(np.multiply(q, absent, out=y))
        lowest = np.minimum(lowest, np.minimum.reduce(q, 1))
    return s, _dot(p), _dot(q), lowest, deepest


def _two_prob_sums(p: Array, q: Array, scale: None, buffer: Callable[..., Array]) -> tuple[Array, ...]:
    """S as Q - P + sum p log(p/q): two passes less, and the error of each sum, some u, as it is."""
    y = np.divide(q, p, out=buffer("y", p.shape, p.dtype))
    total_p, total_q = _dot(p), _dot(q)
    s = total_q - total_p - _dot(p, np.log(y, out=y))
    return s, total_p, total_q, np.minimum.reduce(p, 1), np.fmin.reduce(y, 1)


def _finish_probs(lane: Lane, scale: None, s: Array, p: Array, q: Array, lowest: Array, deepest: Array) -> tuple[Array, ...]:
    # A subnormal q/p has lost digits.
    fine = (s >= lane.least * p) & (lowest >= 0.0) & ~(deepest < np.log(np.finfo(lane.dtype).tiny))
    return s / p, np.where(fine, s, np.nan), p, q


def merge_probs(spec: Any, s: Array, p: Array, q: Array) -> Array:
    """KL of rows from (rows, tiles) arrays. NaN: undecided."""
    s, p, q = (np.add.reduce(x, 1) for x in (s, p, q))
    m = (q - p) / p
    s = s / p
    value = s + (np.log1p(m) - m)
    # s - m^2/2 must not cancel: else the sums differ too much for so small a divergence. (For m far from 0 it is more than m^2/2.)
    fine = (m * m <= s) & (np.abs(m) <= 0.25) & (value < np.inf)
    for total, tolerance in zip((p, q), spec.tolerances):
        fine &= (total <= 1.0 + tolerance) & (total >= 1.0 - tolerance)
    return np.where(fine, value, np.nan)


# --- logits and log-probabilities ---------------------------------------------------------------------------------------------------
# d = b - a,  v = d - c with c ~ E[d], the mean under P (times the inverse temperature).  S = E[phi(v)],  m = E[v].
# Only e^a and expm1(v) are needed, e^b being e^a e^v. Errors in e^a then change P and Q alike, which changes KL by as much, relatively;
# an error h in d costs (q - p) h, that is h sqrt(2/KL): where |c| is large, h = u |c|.
#
# Tiles of a row, of weight w_j = z_j e^(top_j), merge around the common mean c: with t_j = c_j - c,
# S = sum w_j [e^(t_j) S_j + m_j expm1(t_j) + phi(t_j)] / sum w_j  and  m = 0, so that KL = log1p(S).


def _exp_below(x: Array, scale: Array | None, out: Array) -> tuple[Array, Array]:
    # `initial` keeps a tile of nothing but -inf from giving -inf - (-inf).
    top = np.maximum.reduce(x, 1, keepdims=True, initial=np.finfo(x.dtype).min)
    np.subtract(x, top, out=out)
    if scale is not None:
        np.multiply(out, scale, out=out)
    return top[:, 0], np.exp(out, out=out)


def _mean_difference(a: Array, b: Array, e: Array, out: Array) -> tuple[Array, Array, Array | None]:
    """d = b - a, 0 where a = -inf; its sum under e; and where a = -inf, if it was needed. b = -inf < a leaves -inf or NaN."""
    d = np.subtract(b, a, out=out)
    weighted = _dot(e, d)
    if not np.isnan(weighted).any():
        return d, weighted, None
    absent = a == -np.inf
    np.copyto(d, 0.0, where=absent)
    return d, _dot(e, d), absent


def _ratio_sums(a: Array, b: Array, scale: Array | None, buffer: Callable[..., Array]) -> tuple[Array, ...]:
    top, e = _exp_below(a, scale, buffer("e", a.shape, a.dtype))
    d, weighted, absent = _mean_difference(a, b, e, buffer("d", a.shape, a.dtype))
    z, largest = _dot(e), np.maximum.reduce(d, 1)
    if absent is not None:
        # What Q has where P has nothing is not seen here.
        largest = np.where((absent != (b == -np.inf)).any(1), np.nan, largest)
    c = (weighted / z).astype(a.dtype)
    np.subtract(d, c[:, None], out=d)
    if scale is not None:
        np.multiply(d, scale, out=d)
    f = np.expm1(d, out=buffer("f", a.shape, a.dtype))
    return _dot(e, np.subtract(f, d, out=f)), weighted, z, c, top, largest


def _finish_ratio(lane: Lane, scale: Any, s: Array, weighted: Array, z: Array, c: Array, top: Array, largest: Array) -> tuple[Array, ...]:
    m, c, top = (weighted - c * z) * scale, c * scale, top * scale
    kl = np.log1p(s / z)
    fine = (kl >= lane.least * (1.0 + np.abs(c) / 4.0) ** 2) & (largest * scale - c <= _STEEP)
    fine |= (z == 0.0) & (s >= 0.0)  # nothing of P in this tile
    return kl, np.where(fine, s, np.nan), m, z, c, top


# Where KL is large, or v may be, S comes from Q's own sum: z S = z_b e^(top_b - top_a - c) - z. Absolute error: 4u |c| and that of z_b/z_a:
# 4u, and u times the exponents that matter (<= 12) where these are differences, and rounded.


def _two_sums(a: Array, b: Array, scale: Array | None, buffer: Callable[..., Array]) -> tuple[Array, ...]:
    top, e = _exp_below(a, scale, buffer("e", a.shape, a.dtype))
    d, weighted, _ = _mean_difference(a, b, e, buffer("d", a.shape, a.dtype))
    z = _dot(e)
    top_b, f = _exp_below(b, scale, d)
    return weighted, z, _dot(f), top, top_b


def _two_plain_sums(a: Array, b: Array, scale: Array | None, buffer: Callable[..., Array]) -> tuple[Array, ...]:
    """The same with top_a = top_b = 0: two thirds of the passes, for logits that are not far from 0."""
    e, d = (buffer(name, a.shape, a.dtype) for name in "ed")
    np.exp(a if scale is None else np.multiply(a, scale, out=e), out=e)
    z, weighted = _dot(e), _mean_difference(a, b, e, d)[1]
    np.exp(b if scale is None else np.multiply(b, scale, out=d), out=d)
    zb = _dot(d)
    # What underflows (1e-38) must not count.
    z = np.where((z > 1e-20) & (zb > 1e-20), z, np.nan)
    return weighted, z, zb, 0.0 * z, 0.0 * z


def _finish_two(lane: Lane, scale: Any, weighted: Array, z: Array, zb: Array, top: Array, top_b: Array) -> tuple[Array, ...]:
    c, top, top_b = weighted / z * scale, top * scale, top_b * scale
    s = zb * np.exp(top_b - top - c) - z
    kl = np.log1p(s / z)
    fine = (kl >= lane.least * (1.0 + np.abs(c) * (4.0 / lane.error))) & (s < np.inf)
    return kl, np.where(fine, s, np.nan), 0.0 * z, z, c, top


def _any_sums(a: Array, b: Array, scale: Array | None, buffer: Callable[..., Array]) -> tuple[Array, ...]:
    """Element by element: a = -inf, and v that is large beside a small KL. Not in a hurry."""
    s1 = 1.0 if scale is None else scale
    absent = a == -np.inf
    top = np.maximum.reduce(a, 1, keepdims=True)
    top = np.where(top == -np.inf, 0.0, top)
    e = np.exp((a - top) * s1)
    z = np.add.reduce(e, 1, keepdims=True)
    d = np.where(absent, 0.0, b - a)
    weighted = np.add.reduce(e * d, 1, keepdims=True)
    c = weighted / np.where(z == 0.0, 1.0, z)
    v = (d - c) * s1
    above = absent | (v > 1.0)
    near = np.where(above, 0.0, v)
    # e^a phi(v) = e^b - e^a (1 + v)
    far = np.exp(np.where(above, ((b - top) - c) * s1, -np.inf)) - e * (1.0 + v)
    s = np.add.reduce(np.where(above, far, e * (np.expm1(near) - near)), 1)
    return s, weighted[:, 0], z[:, 0], c[:, 0], top[:, 0], c[:, 0]


def merge_logs(spec: Any, s: Array, m: Array, z: Array, c: Array, top: Array) -> Array:
    """KL of rows from (rows, tiles) arrays. NaN: undecided."""
    highest = np.maximum.reduce(np.where(z > 0.0, top, -np.inf), 1, keepdims=True)
    weight = np.exp(top - highest)
    total = np.add.reduce(weight * z, 1, keepdims=True)
    centre = np.add.reduce(weight * (z * c + m), 1, keepdims=True) / total
    t = c - centre
    e1 = np.expm1(t)
    value = np.log1p(np.add.reduce(weight * (np.exp(t) * s + e1 * m + z * (e1 - t)), 1) / total[:, 0])
    fine = (value >= 0.0) & (value < np.inf)
    log_total = highest[:, 0] + np.log(total[:, 0])
    for form, shift, tolerance in zip(spec.forms, (0.0, centre[:, 0] + value), spec.tolerances):
        if form == "log_probs":
            sum_of_exp = np.exp(log_total + shift)
            fine &= (sum_of_exp <= 1.0 + tolerance) & (sum_of_exp >= 1.0 - tolerance)
    return np.where(fine, value, np.nan)


# --- derivatives of KL, of float32 data ---------------------------------------------------------------------------------------------
# d/d log p = -p (l - E[l]),  d/d log q = q - p, as they stand: in float64 the cancellation costs 1e-16/|l|, and |l| >= 1e-7 or so for
# KL >= 1e-14. NaN (q = 0 < p, and what is no distribution) is left to the general formula.


def log_gradients(a: Array, b: Array, scale: Array | None, needs: Any, buffer: Any) -> list[Array | None]:
    """To logits (or log-probabilities), and to the inverse temperature. The arrays are buffers."""
    double = np.dtype(np.float64)
    # Logits less their largest, each side by itself: a constant on one side, as large as a mask's, would round away the other's digits.
    p, q = (
        np.subtract(x, np.maximum.reduce(x, 1, keepdims=True), out=buffer(name, a.shape, double), dtype=double)
        for name, x in (("p", a), ("q", b))
    )  # fmt: skip
    d = np.subtract(q, p, out=buffer("d", a.shape, double))
    np.copyto(d, 0.0, where=a == -np.inf)
    for out in (p, q):
        np.exp(out if scale is None else np.multiply(out, scale, out=out), out=out)
        out /= np.add.reduce(out, 1, keepdims=True)
    if scale is not None:
        d *= scale
    d -= _einsum_dot(p, d)[:, None]
    # The largest, whose derivative is a difference of nearly equal numbers, as minus the sum of the others.
    peaks = np.arange(len(a)), p.argmax(1)
    to_a = np.multiply(np.negative(p, out=buffer("to_a", a.shape, double)), d, out=d)
    to_b = np.subtract(q, p, out=p)
    for slope in (to_a, to_b):
        slope[peaks] = 0.0
        slope[peaks] = -np.add.reduce(slope, 1)
    to_scale = None
    if scale is not None:
        if needs[2]:
            below = [np.where(x == -np.inf, 0.0, x - np.maximum.reduce(x, 1, keepdims=True)) for x in (a, b)]
            to_scale = sum(_einsum_dot(slope, x) for slope, x in zip((to_a, to_b), below))[:, None]
        to_a *= scale
        to_b *= scale
    return [to_a, to_b, to_scale]


def prob_gradients(p: Array, q: Array, scale: Array | None, needs: Any, buffer: Any) -> list[Array | None]:
    """To probabilities p and q, which are divided by their sums."""
    double = np.dtype(np.float64)
    p, q = buffer.tile("p", p, double), buffer.tile("q", q, double)
    total_p, total_q = (np.add.reduce(x, 1, keepdims=True) for x in (p, q))
    absent = p == 0.0
    ratio = np.divide(p, q, out=buffer("ratio", p.shape, double))
    to_p = None
    if needs[0]:
        # l and E[l] up to the same constant
        to_p = np.log(ratio, out=buffer("to_p", p.shape, double))
        np.copyto(to_p, 0.0, where=absent)
        to_p -= _einsum_dot(p, to_p)[:, None] / total_p
        to_p /= total_p
        np.copyto(to_p, 0.0, where=absent)
    np.copyto(ratio, 0.0, where=absent)
    ratio *= total_q / total_p
    to_q = np.subtract(1.0, ratio, out=ratio)
    to_q /= total_q
    return [to_p, to_q]


# --- as written -------------------------------------------------------------------------------------------------------------------
# t (log t - x), t given as it is or by its logarithm.


def literal(x: Array, t: Array, form: str, buffer: Any) -> Array:
    """The terms, in float64, in a buffer."""
    double = np.dtype(np.float64)
    terms, given = buffer("terms", t.shape, double), buffer.tile("t", t, double)
    weight = np.exp(given, out=buffer("weight", t.shape, double)) if form == "log_probs" else given
    np.subtract(given if form == "log_probs" else np.log(given, out=terms), buffer.tile("x", x, double), out=terms)
    np.multiply(weight, terms, out=terms)
    absent = weight == 0.0
    if absent.any():
        # 0 (-inf): no term, unless it is a NaN of the caller's.
        np.copyto(terms, 0.0, where=absent & ~np.isnan(x))
    return terms


# Which lanes there are, for data of float32 and of float64, in the order in which they are tried.


def _first_order(dtype: Any, goal: float, error: float, sums: Any, finish: Any) -> Lane:
    """Absolute error u `error`, asked to be below half the goal."""
    return Lane(dtype, 2.0 * error * _UNIT[dtype] / goal, error, sums, finish)


def _second_order(dtype: Any, goal: float, sums: Any, finish: Any) -> Lane:
    """Relative error 2u sqrt(2/KL), asked to be below half the goal."""
    return Lane(dtype, 2.0 * float(4.0 * _UNIT[dtype] / goal) ** 2, 0.0, sums, finish)


def _prob_lanes(dtype: Any, goal: float) -> tuple[Lane, ...]:
    return (
        _first_order(dtype, goal, 4.0, _two_prob_sums, _finish_probs),
        _second_order(dtype, goal, _prob_sums, _finish_probs),
    )


def _log_lanes(dtype: Any, goal: float) -> tuple[Lane, ...]:
    return (
        # Logits far from 0, times a scale, round in the exponent.
        _first_order(dtype, goal, 4.0, _two_plain_sums, _finish_two)._replace(scaled=False),
        _second_order(dtype, goal, _ratio_sums, _finish_ratio),
        _first_order(dtype, goal, 16.0, _two_sums, _finish_two),
    )


_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# Relative error asked of a lane: half of what is promised (5e-6, 1e-12).
_GOAL = {_SINGLE: 2.5e-6, _DOUBLE: 5e-13}
PROB_LANES = {
    _SINGLE: _prob_lanes(_SINGLE, _GOAL[_SINGLE]) + _prob_lanes(_DOUBLE, _GOAL[_SINGLE]),
    _DOUBLE: _prob_lanes(_DOUBLE, _GOAL[_DOUBLE]),
}
LOG_LANES = {
    _SINGLE: _log_lanes(_SINGLE, _GOAL[_SINGLE]) + _log_lanes(_DOUBLE, _GOAL[_SINGLE]),
    _DOUBLE: _log_lanes(_DOUBLE, _GOAL[_DOUBLE]),
}
for _dtype, _goal in _GOAL.items():
    LOG_LANES[_dtype] += (_second_order(_DOUBLE, _goal, _any_sums, _finish_ratio),)

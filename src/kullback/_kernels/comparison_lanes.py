"""Three ways to take KL(P‖Q), KL(Q‖P) and JS of a tile of rows together, each with few passes and for the sizes its rounding errors allow.

A `Lane` reduces a tile to a few numbers a row (`logs` of logarithms, `probs` of probabilities), and `finish`, for many tiles at once, takes
them to the figures, and says which rows they are good for. All in float32, whose unit roundoff is U, but for what float64 numbers are
before they are rounded to it: their difference or ratio. No layout, no threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple

import numpy as np

from .comparison_tile import LARGEST, SHIFT, SUMS, C, Tile

Array = Any

U = 2.0**-24
_TINY = float(np.finfo(np.float32).tiny)

# Relative error asked of a lane: half of what is promised.
GOAL = 1e-5
# Of logarithms: e^v beyond this multiplies what was rounded, or lost, in v.
_STEEP = 20.0
# Logits of which the largest is within these need not be taken off before the exponential: the rounding of their products with log2(e)
# changes P and Q, alike, and so every figure, by no more than 3e-6 of itself.
_HIGH, _LOW = 40.0, -16.0
_HIGH_SQUARES = float(np.exp(2.0 * _HIGH))
# Squares below this may have lost digits to underflow of float32, where weights are as small as e^-16.
_SMALLEST = 1e-22
# And where weights add up to less than this, counts or a base that was rounded, the smaller of them have lost digits.
_LEAST_SUM = 1e-20


def _fast(name: str) -> bool:
    """Does NumPy have this function of float32 in vector instructions here? (`exp` and `log` it has nearly everywhere.)"""
    try:
        from numpy.lib.introspect import opt_func_info
    except ImportError:
        return False
    found = opt_func_info(func_name=f"^{name}$", signature="float32").get(name, {})
    return any(not kind["current"].startswith("baseline") for kind in found.values())


# Powers and logarithms to base 2 where they are faster: twice as fast, with AVX-512. Times _LOG_UNIT a logarithm is the natural one.
_log, _power, _LOG_UNIT = (np.log2, np.exp2, float(np.log(2.0))) if _fast("log2") and _fast("exp2") else (np.log, np.exp, 1.0)


class Figures(NamedTuple):
    """One entry a row. The logarithms of the sums of P's and Q's weights are base + log_z, which are apart since base may be huge."""

    kl_pq: Array
    kl_qp: Array
    js: Array
    base: tuple[Array, Array]
    log_z: tuple[Array, Array]
    fine: Array


class Lane(NamedTuple):
    """logs(x, y, places of x's largest, tile) and probs(x, y, tile) fill the tile's sums and marks. With `Room.numbers` of these,
    estimate(numbers) is KL(P||Q), roughly, and finish(numbers, logs) is all of it."""

    logs: Callable[..., None]
    probs: Callable[..., None]
    estimate: Callable[..., Array]
    finish: Callable[..., Figures]


# What is done between two passes over a tile holds the GIL, for which other threads wait: as little as may be in what follows, up to
# `finish`. A constant takes NumPy half as long if it is an array of no axes.
_TO_LOG_UNIT: Array = np.array(1.0 / _LOG_UNIT, np.float32)


def _scaled() -> bool:
    """Is e^x taken as a power of 2?"""
    return _LOG_UNIT != 1.0


def plain(tops: Array) -> bool:
    """May logits of which these are the largest be used as they are? Tiles see for themselves if some are too large."""
    return bool(np.minimum.reduce(tops) >= _LOW and np.maximum.reduce(tops) <= _HIGH)


def too_low(tops: Array, bases: Array) -> Array:
    """Rows that have been used as they are and should not have been."""
    return (tops < _LOW) & (bases == 0.0)


def _weights(x: Array, places: Array, t: Tile) -> None:
    """e = e^(x - base) in t.e; sum 0 of it."""
    log = x
    if not t.known.plain:
        t.base[:] = x[t.index, places]
        log = np.subtract(x, t.base[:, None], t.e)
    if _scaled():
        log = np.multiply(log, _TO_LOG_UNIT, t.e)
    elif log.dtype != np.float32:
        np.copyto(t.e, log, "same_kind")
        log = t.e
    _power(log, t.e)
    t.dot(0, t.E)


def _difference(x: Array, y: Array, places: Array, t: Tile) -> None:
    """d = y - x in t.v, or what is left without that of P's likeliest category."""
    if not t.known.centred:
        np.subtract(y, x, t.v)
        return
    t.shift[:] = y[t.index, places] - x[t.index, places]
    t.shift[~np.isfinite(t.shift)] = 0.0
    np.subtract(np.subtract(y, t.shift[:, None], t.known.wide(y.shape), dtype=np.float64), x, t.v)


def _weights_and_difference(x: Array, y: Array, places: Array, t: Tile, *, far: bool) -> Array:
    """The same, and d of `_difference`; sum 1 of e d. If `far`, d in _LOG_UNIT and f/e in t.f; sum 2 of f. Returns these sums, roughly."""
    _weights(x, places, t)
    _difference(x, y, places, t)
    if far:
        if _scaled():
            np.multiply(t.v, _TO_LOG_UNIT, t.v)
        _power(t.v, t.f)
    found = _weighted(t, far)
    squares = np.vdot(found, found)
    if squares <= _HIGH_SQUARES:
        return found
    # NaN, or more than sums are where no logit is above what may be used as it is.
    if t.known.plain:
        t.known.plain = False
        _weights(x, places, t)
        found = _weighted(t, far)
        squares = np.vdot(found, found)
    if np.isnan(squares):
        # -inf - (-inf): what neither has.
        absent = (x == -np.inf) & (y == -np.inf)
        np.copyto(t.v, 0.0, where=absent)
        if far:
            np.copyto(t.f, 1.0, where=absent)
        found = _weighted(t, far)
    return found


def _weighted(t: Tile, far: bool) -> Array:
    if far:
        t.dots(1, t.E)
        return t.rough(3)
    t.dot(1, t.E, t.V)
    return t.rough(2)


def _ratio(x: Array, y: Array, t: Tile) -> None:
    """y/x in t.f, 1 for 0/0. The lowest weight is no less than the smallest normal number where no y/x is subnormal, which would have lost
    digits, and no y negative; a negative x then makes a NaN of the logarithm. If Q's may be taken for not negative, the processor tells."""
    if t.known.positive:
        try:
            with np.errstate(under="raise", invalid="raise"):
                np.divide(y, x, t.f)
            t.lowest[:] = np.inf
            return
        except FloatingPointError:
            pass
    np.divide(y, x, t.f)
    t.lowest[:] = np.minimum.reduce(y, 1)
    if not np.minimum.reduce(t.lowest) > 0.0:
        absent = (x == 0.0) & (y == 0.0)
        np.copyto(t.f, 1.0, where=absent)
        t.lowest[:] = np.minimum.reduce(np.where(absent, np.inf, y), 1)


# --- KL above 0.06, or 0.15 where few pieces have all the weight: sums as the definitions have them ---------------------------------------
# d = log(f/e) of weights e, f with sums z, z k;  w = log(f/e + k):
#   KL(P||Q) = log k - E_P[d],   KL(Q||P) = E_Q[d] - log k,
#   JS = log 2 + (E_Q[d] + log k - (E_P + E_Q)[w])/2,   which an error in that k leaves alone: its derivative to k is 0.
# The errors are U times the logarithms' means, and some U of the sums, of f/e and of w, which are those of the pieces, by chance of either
# sign: no piece having more than a share h of the weight, some U sqrt(h). Where pieces repeat, all are of one sign: up to 3 U, in rows of 2
# to 64 values, and twice log k as much from differences d.
# From logits f is not needed: with m = e (f/e + k) = f + k e,  sum f d = sum m d - k sum e d  and  (E_P + E_Q)[w] = 2 E_M[w].
# sums, logarithms in _LOG_UNIT: z, z k, e d, e w, f d, f w; from logits z, e d, z k, m d, m w; the first constant is what the rounding of
# the weights adds to the errors of the sums


def _far_logs(x: Array, y: Array, places: Array, t: Tile) -> None:
    sums = _weights_and_difference(x, y, places, t, far=True)
    np.maximum.reduce(t.v, 1, None, t.highest)
    np.divide(sums[2], sums[0], t.k)
    np.add(t.f, t.k_column, t.f)
    np.multiply(t.e, t.f, t.e)
    _log(t.f, t.f)
    t.dots(3, t.E)


def _far_probs(x: Array, y: Array, t: Tile) -> None:
    (e, p, kept_p), (h, q, kept_q) = t.weights(x, t.e, t.E), t.weights(y, t.h, t.H)
    t.dot(0, p)
    t.dot(1, q)
    if kept_p and kept_q:
        _ratio(e, h, t)  # of float64 numbers that were rounded, in a third of the time
        t.c[:] = 0.0 if x.dtype == y.dtype == np.float32 else 0.5
    else:
        _ratio(x, y, t)
    _log(t.f, t.v)
    if t.known.normal:
        t.k[:] = 1.0
    else:
        z, zq = t.rough(2)
        np.divide(zq, z, t.k)
    np.add(t.f, t.k_column, t.f)
    _log(t.f, t.f)
    t.dots(2, p)
    t.dots(4, q)


def _far_estimate(numbers: Array, logs: bool) -> Array:
    z, second, third = numbers[:3]
    weighted, zq = (second, third) if logs else (third, second)
    return np.log(zq / z) - _LOG_UNIT * weighted / z


def _far_finish(numbers: Array, logs: bool) -> Figures:
    highest, lowest, base, rounded, k, shift, _ = numbers[SUMS:]
    by_p = numbers / numbers[0]  # all at once: for so few rows a call costs more than what it computes
    if logs:
        mean, ratio, cross, mixed = by_p[1:5]
        cross, mixed = (cross - k * mean) / ratio, mixed * (2.0 / (ratio + k))
    else:
        ratio, mean, mixed = by_p[1:4]
        cross, other = by_p[4:6] / ratio
        mixed = mixed + other
    gain, log_k, log_z = np.log((ratio, k, numbers[0]))
    mean, mean_q, mixed = np.multiply((mean, cross, mixed), _LOG_UNIT)
    kl_pq, kl_qp = gain - mean, mean_q - gain
    js = np.log(2.0) + 0.5 * (mean_q + log_k - mixed)
    # JS's second derivative to log k is within 1/2.
    sums, differences = _chances(numbers)
    error = 4.0 * U * ((1.0 + rounded) * sums + differences * np.abs(gain) + kl_pq + kl_qp) + 0.25 * (log_k - gain) ** 2
    least = _least(kl_pq, kl_qp, js)
    fine = (least >= error / GOAL) & (least > 0.0) & (error < np.inf) & (numbers[0] >= _LEAST_SUM)  # sums of float32 may overflow
    fine &= _LOG_UNIT * highest - gain <= _STEEP if logs else lowest >= _TINY
    return Figures(kl_pq, kl_qp, js, (base, base + shift), (log_z, log_z + gain), fine)


def _chances(numbers: Array) -> tuple[Array, Array]:
    """What is left of the errors of a row's pieces when they are added: of those of the sums, and of those of differences."""
    sums = np.maximum(np.sqrt(numbers[LARGEST] / numbers[0]), 0.3)
    return sums, np.minimum(2.0 * sums, 1.0)


def _least(*values: Array) -> Array:
    return np.minimum(np.minimum(values[0], values[1]), values[2])


# --- KL above 0.001 -----------------------------------------------------------------------------------------------------------------------
# v = log(f/e) - c for some c, g = e^v - 1, and E the mean under P:
#   S = E[g - v],  m = E[v],  X = S + m = E[g],  T = E[v g],
#   KL(P||Q) = S + log1p(X) - X,   KL(Q||P) = (m + T)/(1 + X) - log1p(X),   JS = KL(Q||P)/2 - KL(M||P).
# With M's weight e (1 + l)(1 + k g), k = 1/(2 + X), l = -X/(2 + 2X), and w = log1p(k g):
#   KL(M||P) = log1p(l) + (1 + l)(E[w - k g] + k X + k E[g w]).
# The terms of every sum have one sign and are of second order, so that an error of U in v costs U sqrt(2/KL).
# sums: z, e d, e (g - v), e g v, e (w - k g), e g w
# Below this, a relative error of 2U sqrt(2/KL) would exceed half the goal.
LEAST = 2.0 * (4.0 * U / GOAL) ** 2


def _mid_logs(x: Array, y: Array, places: Array, t: Tile) -> None:
    z, weighted = _weights_and_difference(x, y, places, t, far=False)
    np.divide(weighted, z, t.c)
    np.subtract(t.v, t.c[:, None], t.v)
    np.expm1(t.v, t.f)
    np.maximum.reduce(t.v, 1, None, t.highest)
    _mid_rest(t, t.e, t.E, 0.0)


def _mid_probs(x: Array, y: Array, t: Tile) -> None:
    e, p, kept = t.weights(x, t.e, t.E)
    _ratio(x, y, t)
    _log(t.f, t.v)
    if _scaled():
        np.multiply(t.v, _LOG_UNIT, t.v)
    t.dot(0, p)
    t.dot(1, p, t.V)
    z, weighted = t.rough(2)
    np.subtract(t.f, 1.0, t.f)
    _mid_rest(t, e, p, weighted / z)
    if not kept:
        # Of P's weights float32 may have nothing left, or some digits, and Q as much as it likes there.
        t.lowest[((x > 0.0) & (e < _TINY)).any(1)] = 0.0


def _mid_rest(t: Tile, e: Array, p: Array, mean: Any) -> None:
    np.multiply(e, t.f, t.h)
    t.dot(3, t.H, t.V)
    np.subtract(t.f, t.v, t.v)
    t.dot(2, p, t.V)
    z, _, s = t.rough(3)
    np.divide(1.0, 2.0 + (s / z + mean), t.k)
    np.multiply(t.f, t.k_column, t.f)
    np.log1p(t.f, t.v)
    t.dot(5, t.H, t.V)
    np.subtract(t.v, t.f, t.v)
    t.dot(4, p, t.V)


def _mid_estimate(numbers: Array, logs: bool) -> Array:
    return numbers[2] / numbers[0]


def _mid_finish(numbers: Array, logs: bool) -> Figures:
    z, weighted, s, t, bent, mixed, _, highest, lowest, base, c, k, shift, _ = numbers
    m, s, t, bent, mixed = weighted / z - c, s / z, t / z, bent / z, mixed / z
    mean = s + m
    gain, l = np.log1p(mean), -0.5 * mean / (1.0 + mean)
    kl_pq, kl_qp = s + (gain - mean), (m + t) / (1.0 + mean) - gain
    js = 0.5 * kl_qp - (np.log1p(l) + (1.0 + l) * (bent + k * mean + k * mixed))
    least = _least(kl_pq, kl_qp, 2.0 * js)
    fine = least >= LEAST * (1.0 + np.abs(c) / 3.0) ** 2
    # What is of first order: the distance of c from the mean, and what one figure takes from the others.
    fine &= least >= 8.0 * U / GOAL * (kl_pq + kl_qp + np.abs(m) + np.abs(mean) / (1.0 + np.abs(mean)))
    # Of counts 1 + mean is the ratio of their sums.
    fine &= highest <= _STEEP if logs else (lowest >= _TINY) & (np.abs(mean) <= 0.5)
    fine &= z >= _LEAST_SUM
    log_z = np.log(z)
    return Figures(kl_pq, kl_qp, js, (base, base + shift), (log_z, log_z + (c + gain)), fine)


# --- KL below 0.005 or so -----------------------------------------------------------------------------------------------------------------
# No exponential but that of the weights: with M_n = E[v^n] and x = sum over n of M_n/n! (so that 1 + x = E[e^v]),
#   KL(P||Q) = log1p(x) - M_1,   KL(Q||P) = (sum over n of M_n/(n-1)!)/(1 + x) - log1p(x),
#   JS = sum over n of c_n E[y^n],  y = v - log1p(x),  from the series of (y e^y - (1 + e^y) log((1 + e^y)/2))/2.
# M_2 is a sum of positive terms, and the rest small beside it: an error in v costs as much, relatively, however small KL is.
# sums: z, e d, e v^2, ..., e v^6; the second constant is the lowest v
_JS = (1.0 / 8.0, 1.0 / 16.0, 1.0 / 64.0, 1.0 / 384.0, 1.0 / 2304.0)


def _near_logs(x: Array, y: Array, places: Array, t: Tile) -> None:
    z, weighted = _weights_and_difference(x, y, places, t, far=False)
    np.divide(weighted, z, t.c)
    np.subtract(t.v, t.c[:, None], t.v)
    _near_rest(t, t.e)


def _near_probs(x: Array, y: Array, t: Tile) -> None:
    e, p, _ = t.weights(x, t.e, t.E)
    np.subtract(y, x, t.v)
    np.divide(t.v, e, t.v)
    np.log1p(t.v, t.v)
    t.dot(0, p)
    t.dot(1, p, t.V)
    if np.isnan(np.add.reduce(t.rough(2)[1])):
        np.copyto(t.v, 0.0, where=(x == 0.0) & (y == 0.0))
        t.dot(1, p, t.V)
    np.minimum.reduce(e, 1, None, t.lowest)
    _near_rest(t, e)


def _near_rest(t: Tile, e: Array) -> None:
    np.maximum.reduce(t.v, 1, None, t.highest)
    np.minimum.reduce(t.v, 1, None, t.k)
    np.multiply(t.v, t.v, t.f)
    np.multiply(e, t.f, t.h)
    t.dot(2, t.H)
    t.dot(3, t.H, t.V)
    np.multiply(t.h, t.f, t.h)
    t.dot(4, t.H)
    t.dot(5, t.H, t.V)
    t.dot(6, t.H, t.F)


def _near_estimate(numbers: Array, logs: bool) -> Array:
    return 0.5 * numbers[2] / numbers[0]


def _near_finish(numbers: Array, logs: bool) -> Figures:
    z, weighted, *powers, highest, lowest, base, c, deepest, shift, _ = numbers
    m1 = weighted / z - c
    m2, m3, m4, m5, m6 = (power / z for power in powers)
    rest = m2 / 2.0 + m3 / 6.0 + m4 / 24.0 + m5 / 120.0 + m6 / 720.0
    x = m1 + rest
    gain = np.log1p(x)
    kl_pq = rest + (gain - x)
    kl_qp = (m1 + m2 + m3 / 2.0 + m4 / 6.0 + m5 / 24.0 + m6 / 120.0) / (1.0 + x) - gain
    moments, shifts = (1.0, m1, m2, m3, m4, m5, m6), [1.0, -gain]
    while len(shifts) < 7:
        shifts.append(shifts[-1] * -gain)
    js: Array = 0.0
    for n, coefficient in enumerate(_JS, 2):
        js = js + coefficient * sum(comb(n, i) * moments[i] * shifts[n - i] for i in range(n + 1))
    span = np.maximum(highest, -deepest)
    # The series' next terms are at most span M_6/420, beside M_2/2, and what follows them less.
    fine = (span <= 1.0) & (span * (1.0 + span) * m6 <= 420.0 / 4.0 * GOAL * m2) & (lowest >= 0.0)
    # An error of U |c| in v, or that of float64 before it; and the square of what is not centred.
    rounded = np.where(shift == 0.0, 0.0, 2.0**-53 * (np.abs(shift) + np.abs(base) + _HIGH))
    fine &= (U * np.abs(c) + rounded <= GOAL / 3.0 * np.sqrt(m2)) & (x * x <= kl_pq) & (m2 >= _SMALLEST) & (z >= _LEAST_SUM)
    same = (span == 0.0) & (c == 0.0) & (lowest >= 0.0) & (z > 0.0)
    kl_pq, kl_qp, js = (np.where(same, 0.0, value) for value in (kl_pq, kl_qp, js))
    log_z = np.log(z)
    return Figures(kl_pq, kl_qp, js, (base, base + shift), (log_z, log_z + (c + gain)), fine | same)


LANES = (
    Lane(_near_logs, _near_probs, _near_estimate, _near_finish),
    Lane(_mid_logs, _mid_probs, _mid_estimate, _mid_finish),
    Lane(_far_logs, _far_probs, _far_estimate, _far_finish),
)
NEAR, MID, FAR = range(3)
# Rows below this are for NEAR, as far as estimates tell.
NEAR_BELOW = 0.005


class Way(NamedTuple):
    """How to take rows: a lane, and whether what Q's logarithms are off by is to be taken off them first."""

    lane: int
    centred: bool = False


def suiting(lane: int, numbers: Array, logs: bool) -> Way:
    """The way that would suit all rows of which `lane` has made these numbers. MID, which takes most of them, if none does."""
    estimates = LANES[lane].estimate(numbers, logs)
    share = float(np.maximum.reduce(numbers[LARGEST] / numbers[0]))
    # JS, about a quarter of KL, must pass its bound in FAR.
    if np.minimum.reduce(estimates) >= max(0.06, 0.15 * share**0.5):
        best = FAR
    else:
        best = NEAR if np.maximum.reduce(estimates) <= NEAR_BELOW else MID
    return Way(best, logs and bool((offset(lane, numbers) > allowed(best, numbers, estimates)).any()))


def offset(lane: int, numbers: Array) -> Array:
    """By how much Q's logarithms are above P's, or below, in rows of which `lane` has made these numbers."""
    size = np.log(numbers[2] / numbers[0]) if lane == FAR else numbers[C]
    return np.abs(size + numbers[SHIFT])


def allowed(lane: int, numbers: Array, estimates: Array) -> Array:
    """How large it may be, that rounding it leaves most of the error that `finish` of this lane takes for fine."""
    if lane == FAR:
        js = estimates / (4.0 + 4.0 / 3.0 * estimates)  # or thereabouts
        sums, differences = _chances(numbers)
        return (0.95 * GOAL / (4.0 * U) * js - 2.0 * estimates - sums) / differences
    if lane == MID:
        return np.maximum(0.1, 3.0 * (np.sqrt(estimates / (4.0 * LEAST)) - 1.0))
    return GOAL / (6.0 * U) * np.sqrt(2.0 * np.abs(estimates))

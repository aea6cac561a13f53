"""Everything a comparison asks of a pair of rows, in one pass over them: KL both ways, JS, the likeliest category, one's log-probability.

On as many threads as the process may use, and in memory that does not grow with the number of rows. Each figure is good to 2e-5 of itself:
float32 where its bound allows that, else float64; rows too close, or out of the ordinary, are left for the general formula (not `decided`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .cpu import _Buffers, on_threads, thread_count
from .cpu_tiles import _ONES, PIECE, _vecdot

Array = Any

LOG_FORMS = ("logits", "log_probs")
# Elements in a tile. Fewer would fit the caches better, but each tile costs some 100 µs of bookkeeping.
_TILE = 1 << 18
# Elements a thread takes at a time.
_TASK = 1 << 21
# Relative error asked of each way: half of what is promised. `kl` promises less error, and takes float64 where this still takes float32.
_GOAL = 1e-5
_SINGLE, _DOUBLE = 2.0**-24, 2.0**-53
# As in `cpu_tiles`: a relative error of 2u sqrt(2/KL), asked to be below half the goal.
_LEAST = 2.0 * (4.0 * _SINGLE / _GOAL) ** 2
# e^v beyond this multiplies what float32 has rounded, or lost.
_STEEP = 20.0


class Rows(NamedTuple):
    """One entry a row. In nats. `top_p`, `top_q` are indices; `log_p`, `log_q` log-probabilities of the chosen category."""

    kl_pq: Array
    kl_qp: Array
    js: Array
    top_p: Array
    top_q: Array
    log_p: Array
    log_q: Array
    decided: Array


def _sum(x: Array, y: Array | None = None) -> Array:
    """Row sums of x y (of x alone for y None) in float64, in short pieces: exact enough, and too short for a BLAS with threads."""
    n, length = x.shape
    whole = length - length % PIECE
    ones = _ONES[x.dtype]
    if whole == length:
        return np.add.reduce(_vecdot(x.reshape(n, -1, PIECE), ones if y is None else y.reshape(n, -1, PIECE)), 1, np.float64)
    total = _vecdot(x[:, whole:], ones[: length - whole] if y is None else y[:, whole:]).astype(np.float64)
    return total + _sum(x[:, :whole], None if y is None else y[:, :whole]) if whole else total


def _at(x: Array, index: Array) -> Array:
    return x[np.arange(len(x)), index].astype(np.float64)


class _Tile(NamedTuple):
    """Some rows of both sides; `tops` are the places of their maxima, `token` the category asked for."""

    sides: tuple[Array, Array]
    forms: tuple[str, str]
    tolerances: tuple[float, float]
    tops: tuple[Array, Array]
    token: Array
    buffer: _Buffers

    def sums_to_one(self, *log_sums: Array) -> Array:
        """Given the logarithms of the sums of the weights (of e^(x - max), for logarithms), is each 1 that must be?"""
        fine = np.ones(len(self.token), bool)
        for x, form, tolerance, top, log_sum in zip(self.sides, self.forms, self.tolerances, self.tops, log_sums):
            if form == "log_probs":
                log_sum = log_sum + _at(x, top)
            if form in ("probs", "log_probs"):
                fine &= np.abs(np.exp(log_sum) - 1.0) <= tolerance
        return fine


# --- float32 ----------------------------------------------------------------------------------------------------------------------
# With weights e of P, v = log(q/p) - c for some c, f = e^v - 1, and E the mean under P:
#   S = E[f - v],  m = E[v],  X = S + m = E[f],  T = E[v f],
#   KL(P||Q) = S + log1p(X) - X,   KL(Q||P) = (m + T)/(1 + X) - log1p(X),
#   JS = KL(Q||P)/2 - KL(M||P),   KL(M||P) = E[(1 + g) log1p(g)] with g = (f - X)/(2 (1 + X)), since E[g] = 0.
# Little cancels: S is half of T, KL(M||P) a quarter of KL(Q||P) where they are small; where they are not, `decided` looks.


def _in_float32(tile: _Tile) -> Rows:
    x, y = tile.sides
    e, v, f, w = (tile.buffer(name, x.shape, np.float32) for name in "evfw")
    if tile.forms[0] in LOG_FORMS:
        largest = _at(x, tile.tops[0])
        np.exp(np.subtract(x, largest.astype(np.float32)[:, None], out=e), out=e)
        z = _sum(e)
        mean = _sum(e, np.subtract(y, x, out=v)) / z
        c = mean.astype(np.float32)
        m = mean - c
        np.subtract(v, c[:, None], out=v)
        np.expm1(v, out=f)
        log_p = _at(x, tile.token) - largest - np.log(z)
        shift = largest - _at(y, tile.tops[1]) if "log_probs" in tile.forms else 0.0
    else:
        np.copyto(e, x)
        z = _sum(e)
        np.divide(y, x, out=f)
        np.log(f, out=v)
        np.subtract(f, np.float32(1.0), out=f)
        m, c, shift = _sum(e, v) / z, np.zeros(len(x), np.float32), 0.0
        log_p = np.log(_at(x, tile.token)) - np.log(z)
    steepest = np.maximum.reduce(v, 1)
    change = _at(v, tile.token)
    t = _sum(e, np.multiply(v, f, out=w)) / z
    s = _sum(e, np.subtract(f, v, out=w)) / z
    mean_f = s + m
    gain = np.log1p(mean_f)
    kl_pq, kl_qp = s + (gain - mean_f), (m + t) / (1.0 + mean_f) - gain
    np.subtract(f, mean_f.astype(np.float32)[:, None], out=f)
    np.multiply(f, (0.5 / (1.0 + mean_f)).astype(np.float32)[:, None], out=f)
    np.log1p(f, out=v)
    # E[g] is 0 but for rounding, which is taken off again.
    js = 0.5 * kl_qp - (_sum(e, np.multiply(f, v, out=w)) + _sum(e, np.subtract(v, f, out=v))) / z

    least = _LEAST * (1.0 + np.abs(c.astype(np.float64)) / 4.0) ** 2
    decided = (kl_pq >= least) & (kl_qp >= least) & (js >= least / 2.0) & (js >= 0.05 * kl_qp) & (m * m <= kl_pq) & (steepest <= _STEEP)
    decided &= tile.sums_to_one(np.log(z), np.log(z) + c + gain + shift)
    return Rows(kl_pq, kl_qp, js, *tile.tops, log_p, log_p + change - gain, decided)


# --- float64 ----------------------------------------------------------------------------------------------------------------------
# With log-weights a, b, weights e, f, and their sums z_p, z_q:  d = b - a,
#   KL(P||Q) = log(z_q/z_p) - sum e d / z_p,   KL(Q||P) = sum f d / z_q - log(z_q/z_p),
#   JS = (sum p log p + sum q log q)/2 - sum m log m,   m = (p + q)/2.
# Errors, in units u: 4 and that of d's mean for KL; for JS, that of logarithms as large as the entropies.


def _in_float64(tile: _Tile) -> Rows:
    shape = tile.sides[0].shape
    a, e, b, f, d = (tile.buffer(name, shape, np.float64) for name in "aebfd")
    sums = []
    for x, form, top, log, weight in zip(tile.sides, tile.forms, tile.tops, (a, b), (e, f)):
        if form in LOG_FORMS:
            np.subtract(x, _at(x, top)[:, None], out=log, dtype=np.float64)
            np.exp(log, out=weight)
        else:
            np.copyto(weight, x)
            np.log(weight, out=log)
        sums.append(_sum(weight))
    zp, zq = sums
    infinite_pq = infinite_qp = np.zeros(shape[0], bool)
    self_p, self_q = _sum(e, a) / zp, _sum(f, b) / zq
    if np.isnan(self_p).any() or np.isnan(self_q).any():
        # 0 (-inf): what one side has not is nothing to it, whatever number stands for its logarithm, and infinite to the other.
        no_p, no_q = a == -np.inf, b == -np.inf
        infinite_pq, infinite_qp = (no_q & ~no_p).any(1), (no_p & ~no_q).any(1)
        log_at = _at(a, tile.token), _at(b, tile.token)
        np.copyto(a, 0.0, where=no_p)
        np.copyto(b, 0.0, where=no_q)
        self_p, self_q = _sum(e, a) / zp, _sum(f, b) / zq
    else:
        log_at = _at(a, tile.token), _at(b, tile.token)
    np.subtract(b, a, out=d)
    gain, mean_p, mean_q = np.log(zq / zp), _sum(e, d) / zp, _sum(f, d) / zq
    kl_pq, kl_qp = np.where(infinite_pq, np.inf, gain - mean_p), np.where(infinite_qp, np.inf, mean_q - gain)
    # m, but for the factor 1/(2 z_p).
    f *= (zp / zq)[:, None]
    m = np.add(e, f, out=e)
    mixed = _sum(m, np.log(m, out=d))
    if np.isnan(mixed).any():  # 0 (-inf), where both have underflown
        np.copyto(d, 0.0, where=m == 0.0)
        mixed = _sum(m, d)
    log_zp, log_zq = np.log(zp), np.log(zq)
    entropy_p, entropy_q = log_zp - self_p, log_zq - self_q
    js = np.log(2.0) + log_zp - 0.5 * (mixed / zp + entropy_p + entropy_q)

    decided = tile.sums_to_one(log_zp, log_zq)
    for value, size in ((kl_pq, mean_p), (kl_qp, mean_q), (js, entropy_p + entropy_q)):
        decided &= value >= (1.0 + np.abs(size)) * (8.0 * _DOUBLE / _GOAL)
    return Rows(kl_pq, kl_qp, js, *tile.tops, log_at[0] - log_zp, log_at[1] - log_zq, decided)


def _task_rows(columns: int) -> int:
    height = max(1, _TILE // columns)
    return max(height, _TASK // columns // height * height)


def block_rows(columns: int) -> int:
    """How many rows to hand over at a time: two tasks a thread. Whole tasks, so that figures do not depend on the number of threads."""
    return _task_rows(columns) * 2 * thread_count()


def compare_rows(x: Array, y: Array, forms: tuple[str, str], tolerances: tuple[float, float], chosen: Array | None = None) -> Rows:
    """Of two (rows, categories) arrays of float32 or float64. `chosen`: a category a row, the likeliest of x by default."""
    count, columns = x.shape
    reals, places = np.empty((5, count)), np.empty((2, count), np.intp)
    found = Rows(reals[0], reals[1], reals[2], places[0], places[1], reals[3], reals[4], np.zeros(count, bool))
    alike = (forms[0] in LOG_FORMS) == (forms[1] in LOG_FORMS)
    single = alike and x.dtype == y.dtype == np.float32
    height, step = max(1, _TILE // columns), _task_rows(columns)
    quarter = -(-height // 4)

    def make(rows: Any, tops: tuple[Array, Array], buffer: _Buffers) -> _Tile:
        return _Tile((x[rows], y[rows]), forms, tolerances, tops, tops[0] if chosen is None else chosen[rows], buffer)

    def work(queue: Iterator[tuple[int, int]]) -> None:
        buffer = _Buffers()
        with np.errstate(all="ignore"):
            for start, stop in queue:
                # Neighbours are alike: where float32 fails on a task's first tile it is not tried on the others.
                fast = single
                for low in range(start, stop, height):
                    rows = slice(low, min(stop, low + height))
                    tops = x[rows].argmax(1), y[rows].argmax(1)
                    wrong = np.arange(len(tops[0]))
                    whole = not fast
                    if fast:
                        tile = _in_float32(make(rows, tops, buffer))
                        _store(found, rows, tile)
                        wrong = np.flatnonzero(~tile.decided)
                        fast = 2 * len(wrong) < len(tile.decided)
                    # Numbers twice as wide, and more of them at a time: a quarter of the rows.
                    for i in range(0, len(wrong), quarter):
                        part = wrong[i : i + quarter]
                        left: Any = slice(low + int(part[0]), low + int(part[-1]) + 1) if whole else low + part
                        _store(found, left, _in_float64(make(left, (tops[0][part], tops[1][part]), buffer)))

    on_threads(work, [(low, min(count, low + step)) for low in range(0, count, step)], x.size)
    return found


def _store(found: Rows, rows: Any, values: Rows) -> None:
    for out, value in zip(found, values):
        out[rows] = value

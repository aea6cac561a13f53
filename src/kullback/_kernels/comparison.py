"""Everything a comparison asks of a pair of rows, in one pass over them: KL both ways, JS, the likeliest category, one's log-probability.

On as many threads as the process may use, and in memory that does not grow with the number of rows. Each divergence is good to 1e-5 of
itself, through `comparison.c` where that is installed; what it leaves, forms that differ, and small arrays in float64; rows out of the
ordinary are left for the general formula (not `decided`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from . import compiled
from .cpu import _Buffers, on_threads
from .cpu_tiles import _ONES, PIECE, _vecdot

Array = Any

LOG_FORMS = ("logits", "log_probs")
# Elements of a tile in float64.
_WIDE = 1 << 16
# Elements a thread takes at a time.
_TASK = 1 << 21
# Bytes of either side in a block that a thread takes from a stream.
_BLOCK = 16 << 20
# And rows at most: of few categories, what is kept of a row takes more than the row.
_ROWS = 1 << 16
# Up to so many elements float64 takes no time that anyone would notice, nor the general formula where this goal is missed: more digits
# than are shown. Of more elements this one is asked of float64.
SMALL, _SMALL_GOAL, _GOAL = 1 << 16, 1e-10, 1e-5
_DOUBLE = 2.0**-53


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
    """Some rows of both sides; `tops` are the places of their maxima, `token` the category asked for, `goal` the relative error."""

    sides: tuple[Array, Array]
    forms: tuple[str, str]
    tolerances: tuple[float, float]
    tops: tuple[Array, Array]
    token: Array
    goal: float
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
    if not np.isfinite(mean_p + mean_q).all():
        # Of masks as low as floats go the sum overflows, and the mean does not.
        d *= 2.0**-64
        mean_p, mean_q = (_sum(weight, d) / z * 2.0**64 for weight, z in ((e, zp), (f, zq)))
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
    for value, size in ((kl_pq, mean_p), (kl_qp, mean_q), (js, entropy_p + entropy_q + np.abs(log_zp) + np.abs(log_zq))):
        decided &= value >= (1.0 + np.abs(size)) * (8.0 * _DOUBLE / tile.goal)
    return Rows(kl_pq, kl_qp, js, *tile.tops, log_at[0] - log_zp, log_at[1] - log_zq, decided)


def _task_rows(columns: int) -> int:
    return max(1, min(_ROWS, _TASK // columns))


def block_rows(columns: int, left: int) -> int:
    """How many rows to hand over at a time: tasks for many threads, but not by their number, which must not change a digit."""
    return min(left, 16 * _task_rows(columns))


def stream_rows(columns: int, width: int, left: int) -> int:
    """The same where threads take blocks for themselves: one's, of those left, with `width` bytes an element. Fewer towards the end, that
    none waits long for another."""
    whole = max(1, min(_ROWS, _BLOCK // width // columns))
    return max(min(whole, 1 + whole // 8), min(whole, left // 4))


class _Call:
    """One call: what all threads share, each writing its own rows of `found`."""

    def __init__(self, x: Array, y: Array, forms: tuple[str, str], tolerances: tuple[float, float], chosen: Array | None) -> None:
        self.forms, self.tolerances = forms, tolerances
        self.chosen = None if chosen is None else np.ascontiguousarray(chosen, np.int64)
        self.count, self.columns = x.shape
        if self.chosen is not None and self.count and not 0 <= self.chosen.min() <= self.chosen.max() < self.columns:
            raise IndexError(f"a chosen category is none of {self.columns:,}")  # the kernel would read anywhere
        self.rows = np.zeros(self.count, compiled.ROW)
        self.found = Rows(**{name: self.rows[name] for name in Rows._fields if name != "decided"}, decided=np.zeros(self.count, bool))
        self.logs = forms[0] in LOG_FORMS
        small = x.size <= SMALL
        self.goal = _SMALL_GOAL if small else _GOAL
        alike = self.logs == (forms[1] in LOG_FORMS)
        self.kernel = compiled.kernels.compare if compiled.kernels and alike and not small else None
        self.x, self.y = (x, y) if self.kernel else (widened(x), widened(y))
        self.limits = [limit if form in ("probs", "log_probs") else np.inf for form, limit in zip(forms, tolerances)]

    def work(self, queue: Iterator[tuple[int, int]]) -> None:
        buffer = _Buffers()
        with np.errstate(all="ignore"):
            for start, stop in queue:
                part = slice(start, stop)
                if self.kernel is None:
                    self.x[part].argmax(1, self.found.top_p[part])
                    self.y[part].argmax(1, self.found.top_q[part])
                else:
                    x, y = (np.require(side[part], requirements=["C", "A"]) for side in (self.x, self.y))
                    chosen = None if self.chosen is None else self.chosen[part]
                    self.kernel(x, y, self.logs, self.limits, chosen, self.rows[part])
                    self.found.decided[part] = self.rows["decided"][part]
                self.in_float64(start + np.flatnonzero(~self.found.decided[part]), buffer)

    def in_float64(self, rows: Array, buffer: _Buffers) -> None:
        step = max(1, _WIDE // self.columns)
        for low in range(0, len(rows), step):
            part = rows[low : low + step]
            neighbours = len(part) == part[-1] + 1 - part[0]
            where: Any = slice(part[0], part[-1] + 1) if neighbours else part
            tops = self.found.top_p[part], self.found.top_q[part]
            token = tops[0] if self.chosen is None else self.chosen[part]
            sides = widened(self.x[where]), widened(self.y[where])
            values = _in_float64(_Tile(sides, self.forms, self.tolerances, tops, token, self.goal, buffer))
            for out, value in zip(self.found, values):
                out[part] = value


def widened(x: Array) -> Array:
    """bfloat16 as float32, others as they are."""
    return np.left_shift(x["bfloat16"], 16, dtype=np.uint32).view(np.float32) if x.dtype == compiled.BFLOAT16 else x


def ready(x: Array) -> Array:
    """x as numbers that can be compared: as they are, if these are the kernel's and many, else of float64."""
    return x if x.dtype == np.float64 or (x.dtype in compiled.TYPES and x.size > SMALL) else widened(x).astype(np.float64)


def compare_rows(x: Array, y: Array, forms: tuple[str, str], tolerances: tuple[float, float], chosen: Array | None = None) -> Rows:
    """Of two (rows, categories) arrays, as `ready` has them. `chosen`: a category a row, the likeliest of x by default."""
    call = _Call(x, y, forms, tolerances, chosen)
    step = _task_rows(call.columns)
    on_threads(call.work, [(low, min(call.count, low + step)) for low in range(0, call.count, step)], x.size)
    return call.found

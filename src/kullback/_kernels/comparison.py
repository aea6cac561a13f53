"""Everything a comparison asks of a pair of rows, in one pass over them: KL both ways, JS, the likeliest category, one's log-probability.

On as many threads as the process may use, and in memory that does not grow with the number of rows. Each divergence is good to 2e-5 of
itself: through `comparison_lanes` where their bounds allow that, else float64; rows out of the ordinary are left for the general formula
(not `decided`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .comparison_lanes import FAR, GOAL, LANES, LEAST, MID, NEAR, NEAR_BELOW, Way, allowed, offset, plain, suiting, too_low
from .comparison_tile import BASE, SHIFT, TELLS_UNDERFLOW, Room
from .cpu import _Buffers, on_threads, thread_count
from .cpu_tiles import _ONES, PIECE, _vecdot

Array = Any

LOG_FORMS = ("logits", "log_probs")
# Bytes of an array of a tile. With more, those of a few threads would not fit the cache; each tile costs some 20 µs, for which the others
# wait, so that many threads are faster with more. By the machine, not by the threads in use: figures must not depend on these.
_TILE = (3 if (os.cpu_count() or 1) < 8 else 6) << 19
# Elements of a tile in float64, of which there are more arrays.
_WIDE = 1 << 16
# Elements a thread takes at a time.
_TASK = 1 << 21
# Bytes of either side in a block that a thread takes from a stream: so many that others seldom wait for what any block costs, and not more,
# that two threads stay below 250 MiB.
_BLOCK = 52 << 20
# And rows at most, there and in a tile or task: of few categories, what is kept of a row takes more than the row.
_ROWS = 1 << 16
# Up to so many elements float64 takes no time that anyone would notice, nor the general formula where this goal is missed: more digits
# than are shown.
SMALL, _SMALL_GOAL = 1 << 16, 1e-10
# Rows by which the lane of the first tile is chosen.
_TRIED = 4
# Rows that a thread with a block of its own takes at a time, if they are more: what costs the same for one is done for all of them.
_TOGETHER = 1024
_DOUBLE = 2.0**-53
_BITS = {4: np.uint32, 8: np.uint64}
_NATIVE = np.dtype(np.float32), np.dtype(np.float64)
_last = threading.local()


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


def _height(columns: int) -> int:
    """Rows of a tile."""
    return max(1, min(_ROWS, _TILE // 4 // columns))


def _task_rows(columns: int) -> int:
    height = _height(columns)
    return max(1, min(_ROWS, _TASK // columns) // height) * height


def block_rows(columns: int, left: int) -> int:
    """How many rows to hand over at a time: two tasks a thread, and four at least, for what a block costs whatever its size. Whole tasks,
    so that figures do not depend on the number of threads."""
    return min(left, _task_rows(columns) * max(4, 2 * thread_count()))


def stream_rows(columns: int, width: int, left: int) -> int:
    """The same where threads take blocks for themselves: one's, of those left, with `width` bytes an element. Fewer towards the end, that
    none waits long for another."""
    height = _height(columns)
    whole = max(1, min(_ROWS, _BLOCK // width // columns) // height) * height
    return max(min(whole, 4 * height), min(whole, left // 2 // height * height))


def _room(n: int, columns: int) -> Room:
    """This thread's last one, if that will do: the next block of a stream is of the same size."""
    last: Room | None = getattr(_last, "room", None)
    if last is None or last.columns != columns or last.made.shape[1] < n:
        last = _last.room = Room(n, columns)
    return last


class _Sums(NamedTuple):
    """Rows that have gone through a lane: what it made of each, which lane it was, and both sides at the chosen category."""

    rows: Array
    numbers: Array
    tried: Array
    at: Array


class _Call:
    """One call: what all threads share, each writing its own rows of `found`."""

    def __init__(
        self, x: Array, y: Array, forms: tuple[str, str], tolerances: tuple[float, float], chosen: Array | None, way: Way | None
    ) -> None:
        self.x, self.y, self.forms, self.tolerances, self.chosen = x, y, forms, tolerances, chosen
        self.count, self.columns = x.shape
        reals, places = np.empty((5, self.count)), np.empty((2, self.count), np.intp)
        self.found = Rows(reals[0], reals[1], reals[2], places[0], places[1], reals[3], reals[4], np.zeros(self.count, bool))
        self.logs = forms[0] in LOG_FORMS
        small = x.size <= SMALL
        self.in_lanes, self.goal = self.logs == (forms[1] in LOG_FORMS) and not small, _SMALL_GOAL if small else GOAL
        self.height = _height(self.columns)
        self.normal = forms == ("probs", "probs")
        limits = [tolerance if form in ("probs", "log_probs") else np.inf for form, tolerance in zip(forms, tolerances)]
        self.limits = np.array(limits)[:, None] if min(limits) < np.inf else None
        self.strided = not all(side.flags.c_contiguous and side.flags.aligned for side in (x, y))
        self.by_bits = not self.logs and TELLS_UNDERFLOW
        self.way = Way(MID) if way is None else way

    def suiting_way(self) -> Way:
        """The way to begin with, from a few rows here and there."""
        if not self.in_lanes:
            return self.way
        step = -(-self.count // min(_TRIED, self.height))
        few = _Call(self.x[::step].copy(), self.y[::step].copy(), self.forms, self.tolerances, None, None)
        room = _room(min(self.height, self.count), self.columns)
        with np.errstate(all="ignore"):
            return suiting(FAR, few.first(0, few.count, room, Way(FAR)).numbers, self.logs)

    def work(self, queue: Iterator[tuple[int, int]]) -> None:
        buffer = _Buffers()
        room = _room(min(self.height, self.count), self.columns) if self.in_lanes else None
        with np.errstate(all="ignore"):
            for start, stop in queue:
                if room is None:
                    self.x[start:stop].argmax(1, self.found.top_p[start:stop])
                    self.y[start:stop].argmax(1, self.found.top_q[start:stop])
                    self.in_float64(np.arange(start, stop), buffer)
                else:
                    # Each task by itself: what a thread happens to take together must not change a digit.
                    self.finish_all(self.first(start, stop, room, self.way), room, buffer)

    def first(self, start: int, stop: int, room: Room, way: Way) -> _Sums:
        """Rows start to stop, the first tile in this way, the others in the one that suits that tile."""
        x, y, top_p, top_q, known = self.x, self.y, self.found.top_p, self.found.top_q, room.known
        count, height = stop - start, self.height
        lane, known.centred = way
        tried = np.full(count, lane, np.int8)
        room.begin(count)
        known.normal, known.positive = self.normal, self.by_bits
        for low in range(0, count, height):
            high = min(count, low + height)
            rows, tile = slice(start + low, start + high), room.tile(low, high)
            a, b, places = x[rows], y[rows], top_p[rows]
            if self.strided:
                a, b = a.copy(), b.copy()
            if self.by_bits:
                a.view(_BITS[a.itemsize]).argmax(1, places)
                b.view(_BITS[b.itemsize]).argmax(1, top_q[rows])
            else:
                a.argmax(1, places)
                b.argmax(1, top_q[rows])
            if not self.logs:
                LANES[lane].probs(a, b, tile)
            else:
                if low == 0:
                    known.plain = plain(a[tile.index, places])
                LANES[lane].logs(a, b, places, tile)
            if low == 0:
                lane, known.centred = suiting(lane, room.numbers(low, high), self.logs)
                tried[high:] = lane
        each, numbers = np.arange(start, stop), room.numbers(0, count)
        if self.by_bits:
            self.mind_signs(each, numbers)
        at = self.at(each)
        if self.logs:
            sunk = np.flatnonzero(too_low(at[0] if self.chosen is None else x[each, top_p[each]], numbers[BASE]))
            for low in range(0, len(sunk), height):
                part = sunk[low : low + height]
                numbers[:, part], tried[part] = self.again(Way(lane, known.centred), each[part], room), lane
        return _Sums(each, numbers, tried, at)

    def mind_signs(self, rows: Array, numbers: Array) -> None:
        """Numbers >= 0 are in the order of their bits, but a sign is above all of these, as a NaN is above inf: the rows that have one."""
        for side, top in ((self.x, self.found.top_p), (self.y, self.found.top_q)):
            values = side[rows, top[rows]]
            strange = np.signbit(values) | np.isnan(values)
            if np.logical_or.reduce(strange):
                numbers[0, strange & (values != 0.0)] = np.nan
                for row in rows[strange]:
                    top[row] = side[row].argmax()

    def finish_all(self, task: _Sums, room: Room, buffer: _Buffers) -> None:
        """From sums to figures, for many rows at once: some 50 operations that cost the same for one row. The others once more."""
        rows, numbers, tried, at = task
        for lane in (NEAR, MID, FAR):
            mine = tried == lane
            if mine.all():
                self.finish(lane, rows, numbers, at)
            elif mine.any():
                self.finish(lane, rows[mine], numbers[:, mine], at[:, mine])
        if self.found.decided[rows].all():
            return
        estimates, offsets = np.empty((2, len(rows)))
        for lane in np.unique(tried):
            mine = tried == lane
            estimates[mine] = LANES[lane].estimate(numbers[:, mine], self.logs)
            offsets[mine] = offset(lane, numbers[:, mine]) if self.logs else 0.0
        # In the lane that suits, if it was another, or with Q's offset taken off, if it was not. FAR is for tiles: MID takes what it takes.
        for lane, suited in ((NEAR, estimates < NEAR_BELOW), (MID, (estimates >= LEAST) & (estimates < np.inf))):
            centred = offsets > allowed(lane, numbers, estimates)
            left = suited & ~self.found.decided[rows] & ((tried != lane) | (centred & (numbers[SHIFT] == 0.0)))
            for way in (Way(lane), Way(lane, True)):
                again = rows[left & (centred == way.centred)]
                for low in range(0, len(again), self.height):
                    part = again[low : low + self.height]
                    self.finish(lane, part, self.again(way, part, room), self.at(part))
        self.in_float64(rows[~self.found.decided[rows]], buffer)

    def again(self, way: Way, rows: Array, room: Room) -> Array:
        """These rows in this way, whatever was seen of others."""
        room.begin(len(rows))
        a, b, places, tile, known = self.x[rows], self.y[rows], self.found.top_p[rows], room.tile(0, len(rows)), room.known
        lane, known.centred = way
        known.positive = False
        if self.logs:
            known.plain = plain(a[tile.index, places])
            LANES[lane].logs(a, b, places, tile)
        else:
            LANES[lane].probs(a, b, tile)
        return room.numbers(0, len(rows))

    def at(self, rows: Array) -> Array:
        """Both sides at the chosen category."""
        token = (self.found.top_p if self.chosen is None else self.chosen)[rows]
        return np.array((self.x[rows, token], self.y[rows, token]), np.float64)

    def finish(self, lane: int, rows: Array, raw: Array, at: Array) -> None:
        kl_pq, kl_qp, js, base, log_z, fine = LANES[lane].finish(raw, self.logs)
        place: Any = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] < len(rows) else rows
        bases, log_sums = np.array((base, log_z))
        if self.limits is not None:
            fine &= (np.abs(np.expm1(bases + log_sums)) <= self.limits).all(0)
        log_p, log_q = (at - bases if self.logs else np.log(at)) - log_sums
        found = self.found
        for out, value in zip((*found[:3], *found[5:]), (kl_pq, kl_qp, js, log_p, log_q, fine)):
            out[place] = value

    def in_float64(self, rows: Array, buffer: _Buffers) -> None:
        step = max(1, _WIDE // self.columns)
        for low in range(0, len(rows), step):
            part = rows[low : low + step]
            neighbours = len(part) == part[-1] + 1 - part[0]
            where: Any = slice(part[0], part[-1] + 1) if neighbours else part
            tops = self.found.top_p[part], self.found.top_q[part]
            token = tops[0] if self.chosen is None else self.chosen[part]
            sides = self.x[where], self.y[where]
            values = _in_float64(_Tile(sides, self.forms, self.tolerances, tops, token, self.goal, buffer))
            for out, value in zip(self.found, values):
                out[part] = value


def ready(x: Array) -> Array:
    """x as numbers that can be compared: of float32 or float64, as the machine has them, and of float64 if there are few."""
    return x if x.dtype in (_NATIVE if x.size > SMALL else _NATIVE[1:]) else x.astype(np.float64)


def compare_rows(
    x: Array,
    y: Array,
    forms: tuple[str, str],
    tolerances: tuple[float, float],
    chosen: Array | None = None,
    way: Way | None = None,
    shared: bool = True,
) -> Rows:
    """Of two (rows, categories) arrays, as `ready` has them. `chosen`: a category a row, the likeliest of x by default. `way`: what
    `first_way` has found for rows like these, if it was asked. `shared`: among threads, so in small tasks; not if each has its block."""
    call = _Call(x, y, forms, tolerances, chosen, way)
    if way is None and call.count > call.height:
        call.way = call.suiting_way()
    step = _task_rows(call.columns) if shared else max(_task_rows(call.columns), _TOGETHER)
    on_threads(call.work, [(low, min(call.count, low + step)) for low in range(0, call.count, step)], x.size)
    return call.found


def first_way(x: Array, y: Array, forms: tuple[str, str]) -> Way:
    """The way that is likely to suit rows such as these, for `compare_rows` of more of them: it costs as much as some rows."""
    return _Call(x, y, forms, (np.inf, np.inf), None, None).suiting_way()

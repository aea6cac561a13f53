"""The arrays, of float32, in which a comparison works on a few rows at a time, and the sums that its lanes take there.

Only memory and sums: what is summed, and what becomes of it, is for `comparison_lanes`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .cpu_tiles import _vecdot

Array = Any

# Dot products are taken over pieces, as in `cpu_tiles`, of whole lines of the cache: the best first, and no longer than the last.
_PIECES = (256, 320, 192, 384, 128, 512)
_ONES = np.ones(_PIECES[-1], np.float32)
# How many sums of a row there is room for, and what else `finish` needs; in all there is one number more. And where some of these are.
SUMS, MARKS = 7, 6
NUMBERS = SUMS + MARKS + 1
BASE, C, SHIFT, LARGEST = SUMS + 2, SUMS + 3, SUMS + 5, SUMS + 6


def _aligned(shape: tuple[int, ...]) -> Array:
    """Zeros that begin where a line of the cache does: else every store of 64 bytes is two, and a sum or product in place takes half as
    long again."""
    size = 4 * math.prod(shape)
    room = np.zeros(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(np.float32).reshape(shape)


def _tells_underflow() -> bool:
    """In quotients, also rounded to float32, and in rounding alone: not everywhere do processors, or what stands for them, keep count."""
    small, out = np.full(64, float(np.finfo(np.float32).tiny) / 3.0), np.empty(64, np.float32)
    three = 3.0 * small
    for attempt in (
        lambda: np.divide(three.astype(np.float32), np.float32(3.0), out),
        lambda: np.divide(three, 3.0, out),
        lambda: np.copyto(out, small, "same_kind"),
    ):
        try:
            with np.errstate(under="raise"):
                attempt()
            return False
        except FloatingPointError:
            pass
    return True


TELLS_UNDERFLOW = _tells_underflow()


def pieces_of(columns: int) -> tuple[int, int]:
    """How many pieces a row has, and their length: without padding, for which rows of probabilities would be copied, if that can be."""
    if columns <= _PIECES[-1]:
        return 1, columns
    for length in (*_PIECES, *range(_PIECES[-1], _PIECES[-2], -1)):
        if columns % length == 0:
            return columns // length, length
    return -(-columns // _PIECES[0]), _PIECES[0]


class Known:
    """What holds for the rows at hand. `plain`: may logarithms be used without taking off the largest? `centred`: is what Q's are off by to
    be taken off their differences before these are rounded? `normal`: do probabilities sum to 1, or nearly? `positive`: may Q's be taken
    for not negative, as someone else will see to it?"""

    plain = centred = normal = positive = False
    _wide = np.empty((0, 0))

    def wide(self, shape: tuple[int, int]) -> Array:
        """An array of float64, which few need."""
        if self._wide.shape[0] < shape[0] or self._wide.shape[1] != shape[1]:
            self._wide = np.empty(shape)
        return self._wide[: shape[0]]


class Tile:
    """Some rows: their arrays, padded with zeros to whole pieces, lower case as rows, upper case as pieces for the sums; and where the sums
    go, and the marks, which are 0 at first: the highest logarithm of a ratio, the lowest weight, what was taken off the logarithms, two
    constants, and what was taken off the differences."""

    def __init__(self, made: Array, columns: int, parts: Array, marks: Array, known: Known) -> None:
        self.E, self.V, self.F, self.H = made
        self.VF = made[1:3]
        self.e, self.v, self.f, self.h = made.reshape(*made.shape[:2], -1)[:, :, :columns]
        self.padded = made[0, 0].size > columns
        self.one = _ONES[: made.shape[3]]
        self.index = np.arange(made.shape[1])
        self.sums, self.pairs, self.firsts = list(parts), [parts[k : k + 2] for k in range(SUMS)], [parts[:k] for k in range(SUMS)]
        self.highest, self.lowest, self.base, self.c, self.k, self.shift = marks
        self.k_column = self.k[:, None]
        self.known = known

    def dot(self, k: int, weight: Array, other: Array | None = None) -> None:
        """The k-th sum, in pieces."""
        _vecdot(weight, self.one if other is None else other, out=self.sums[k])

    def dots(self, k: int, weight: Array) -> None:
        """Sums k and k + 1, with V and with F."""
        _vecdot(weight, self.VF, out=self.pairs[k])

    def rough(self, count: int) -> Array:
        """The first sums in float32: good enough for constants that only need to be near."""
        return np.add.reduce(self.firsts[count], 2)

    def weights(self, x: Array, body: Array, pieces: Array) -> tuple[Array, Array, bool]:
        """x as rows and as pieces, of float32: itself, or a padded copy in `body`. And has float32 all of its small numbers?"""
        if x.dtype == np.float32 and not self.padded and x.flags.c_contiguous:
            return x, x.reshape(pieces.shape), True
        kept = x.dtype == np.float32
        if not kept and TELLS_UNDERFLOW:
            try:
                with np.errstate(under="raise"):
                    np.copyto(body, x, "same_kind")
                return body, pieces, True
            except FloatingPointError:
                pass
        np.copyto(body, x, "same_kind")
        return body, pieces, kept


class Room:
    """One thread's: arrays for a tile of up to n rows, and for what comes out of many tiles."""

    def __init__(self, n: int, columns: int) -> None:
        self.made, self.columns, self.known = _aligned((4, n, *pieces_of(columns))), columns, Known()
        self._make(n)

    def _make(self, count: int) -> None:
        self.parts = np.empty((SUMS, count, self.made.shape[2]), np.float32)
        self.marks = np.empty((MARKS, count), np.float32)
        self.tiles: dict[int, Tile] = {}

    def begin(self, count: int) -> None:
        """With this many rows, from the first on."""
        if count > self.marks.shape[1]:
            self._make(count)
        self.marks[:, :count] = 0.0

    def tile(self, low: int, high: int) -> Tile:
        """For rows low to high. A whole one is the same each time: to make it costs as much as some sums, in which other threads wait."""
        found = self.tiles.get(low) if high - low == self.made.shape[1] else None
        if found is None:
            made, rows = self.made[:, : high - low], slice(low, high)
            found = Tile(made, self.columns, self.parts[:, rows], self.marks[:, rows], self.known)
            if high - low == self.made.shape[1]:
                self.tiles[low] = found
        return found

    def numbers(self, low: int, high: int) -> Array:
        """(NUMBERS, n): sums of these rows, marks, and P's largest sum of a piece."""
        parts = self.parts[:, low:high]
        found = np.empty((NUMBERS, high - low))
        np.einsum("kij->ki", parts, out=found[:SUMS], dtype=np.float64)  # `add.reduce` takes twice as long
        found[SUMS:-1] = self.marks[:, low:high]
        np.maximum.reduce(parts[0], 1, out=found[-1])
        return found

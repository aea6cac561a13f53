"""The arrays in which a comparison works on a few rows at a time, and the sums that its lanes take there.

Only memory and sums: what is summed, and what becomes of it, is for `comparison_lanes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cpu_tiles import _UNIT, _vecdot

Array = Any

# Dot products are taken over pieces, as in `cpu_tiles`; these are longer, that there be fewer sums to add.
_PIECE = 512
_ONES = {dtype: np.ones(_PIECE, dtype) for dtype in _UNIT}
# How many sums of a row there is room for, and numbers in all: these, what else `finish` needs, and last P's largest sum of a piece.
SUMS, NUMBERS = 7, 13


def _aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros that begin where a line of the cache does: else every store of 64 bytes is two, and a sum or product in place takes half as
    long again."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(dtype).reshape(shape)


class Tile:
    """Arrays for n rows, padded with zeros to whole pieces: lower case as rows, upper case as pieces, for the sums. These go to `parts`.

    `normal`: do probabilities sum to 1, or nearly? `positive`: has it been seen that none of Q's is negative?"""

    parts: Array
    rooms: Array | None = None
    normal = positive = False

    def __init__(self, n: int, columns: int, dtype: Any) -> None:
        count = -(-columns // _PIECE)
        length = -(-columns // count)
        self._use(_aligned((4, n, count, length), dtype), columns)

    def _use(self, made: Array, columns: int) -> None:
        self.made, self.columns = made, columns
        self.E, self.V, self.F, self.H = made
        self.VF = made[1:3]
        self.index = np.arange(made.shape[1])
        self.e, self.v, self.f, self.h = made.reshape(4, made.shape[1], -1)[:, :, :columns]
        self.padded = made[0, 0].size > columns
        self.one = _ONES[made.dtype][: made.shape[3]]

    def first(self, n: int) -> Tile:
        """The first n rows of it."""
        if n == self.made.shape[1]:
            return self
        part = object.__new__(Tile)
        part.normal, part.positive = self.normal, self.positive
        part._use(self.made[:, :n], self.columns)
        return part

    def room(self, n: int) -> Array:
        """For the sums of pieces of n rows: the same each time."""
        if self.rooms is None or self.rooms.shape[1] < n:
            self.rooms = np.empty((SUMS, n, self.made.shape[2]), self.made.dtype)
        return self.rooms[:, :n]

    def dot(self, k: int, weight: Array, other: Array | None = None) -> None:
        """The k-th sum, in pieces."""
        _vecdot(weight, self.one if other is None else other, out=self.parts[k])

    def dots(self, k: int, weight: Array) -> None:
        """Sums k and k + 1, with V and with F."""
        _vecdot(weight, self.VF, out=self.parts[k : k + 2])

    def rough(self, count: int) -> Array:
        """The first sums in the tile's dtype: good enough for constants that only need to be near."""
        return np.add.reduce(self.parts[:count], 2)

    def pieces(self, x: Array, body: Array, pieces: Array) -> Array:
        """x as pieces: itself, or a padded copy in `body`."""
        if x.dtype == body.dtype and not self.padded and x.flags.c_contiguous:
            return x.reshape(pieces.shape)
        np.copyto(body, x)
        return pieces


def sums_of(parts: Array, out: Array) -> None:
    """From sums of pieces (SUMS, n, count) those of rows, and P's largest of a piece, in out (NUMBERS, n)."""
    np.add.reduce(parts, 2, np.float64, out[:SUMS])
    np.maximum.reduce(parts[0], 1, out=out[NUMBERS - 1])

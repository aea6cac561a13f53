"""Rows that occur more than once in two samples. Independent draws from densities never do: somebody copied or repeated the rows.

A copy in the other sample is not a neighbour that was drawn there, and a repeated row is not a second draw. Nothing is estimated here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ._inputs import Points

# A row that occurs more often is an atom.
MOST_COPIES = 8
_Index = np.ndarray[Any, np.dtype[np.intp]]


class Copies(NamedTuple):
    """Both samples without their repeated rows.

    `rows` are the rows of x that are left. `repeated` counts the rows left out of x and of y. Row `in_x[i]` of x is a copy of `in_y[i]`
    of y.
    """

    x: Points
    y: Points
    rows: _Index
    repeated: tuple[int, int]
    in_x: _Index
    in_y: _Index

    @property
    def note(self) -> str:
        """For `Estimate.method`."""
        shared = f"; {len(self.in_x)} rows are in both samples, and are not compared with their copies" if len(self.in_x) else ""
        parts = [f"; {count} repeated rows of {name} are left out" for name, count in zip("xy", self.repeated) if count]
        return shared + "".join(parts)


def find_copies(x: Points, y: Points) -> Copies:
    """Tell copies from the equal rows that rounding and atoms produce.

    After rounding, each of t equal rows comes from x with the same probability f. A pair of them then joins x and y with probability
    2 f (1 - f) ≤ 1/2. Rows were copied from one sample to the other if more than half of the pairs do. Rows were repeated within a sample,
    as in a bootstrap, if nearly no pair does and rounding does not explain the pairs.
    """
    none = np.zeros(0, np.intp)
    n = len(x)
    if np.all(np.diff(np.sort(np.concatenate([x[:, 0], y[:, 0]])))):
        return Copies(x, y, np.arange(n), (0, 0), none, none)  # the usual case
    codes, counts = _codes(x, y)
    tied = (counts.sum(0) > 1) & (counts.sum(0) <= MOST_COPIES)
    a, b = counts[:, tied]
    pairs, across = (a + b) * (a + b - 1) // 2, a * b
    shared = any(_are_copies(int(pairs[a + b == t].sum()), int(across[a + b == t].sum())) for t in range(2, MOST_COPIES + 1))
    nearly_none = across.sum() < 0.1 * pairs.sum()
    sides = []
    for side, points, own in ((0, x, codes[:n]), (1, y, codes[n:])):
        within = float(np.sum(counts[side, tied] * (counts[side, tied] - 1)) / 2)
        first = np.arange(len(points))
        if within and (shared or nearly_none) and within > 5.0 * _pairs_by_rounding(points):
            seen = np.unique(own, return_index=True)[1]
            first = np.sort(np.concatenate([seen[tied[own[seen]]], np.flatnonzero(~tied[own])]))
        sides.append((first, own[first]))
    (rows_x, code_x), (rows_y, code_y) = sides
    repeated = (n - len(rows_x), len(y) - len(rows_y))
    x, y = (points if len(rows) == len(points) else points[rows] for points, rows in ((x, rows_x), (y, rows_y)))
    if not shared:
        return Copies(x, y, rows_x, repeated, none, none)
    # Each row that both have once: which is which.
    both = tied & (np.bincount(code_x, minlength=len(tied)) == 1) & (np.bincount(code_y, minlength=len(tied)) == 1)
    in_x, in_y = np.flatnonzero(both[code_x]), np.flatnonzero(both[code_y])
    return Copies(x, y, rows_x, repeated, in_x[np.argsort(code_x[in_x])], in_y[np.argsort(code_y[in_y])])


def _are_copies(pairs: int, across: int) -> bool:
    """More than half of the pairs, by three standard errors; of few pairs, all."""
    return across > pairs / 2 + 1.5 * math.sqrt(pairs) or across == pairs > 2


def _codes(x: Points, y: Points) -> tuple[_Index, Any]:
    """The number of the distinct row that each row is, and how often x and y have it."""
    both = np.concatenate([x, y])
    codes = np.arange(len(both))
    # Equal rows have equal first entries. Only rows with such entries are compared whole.
    order = np.argsort(both[:, 0], kind="stable")
    same = np.diff(both[order, 0]) == 0.0
    rows = np.sort(order[np.concatenate([same, [False]]) | np.concatenate([[False], same])])
    if len(rows):
        _, first, inverse = np.unique(both[rows], axis=0, return_index=True, return_inverse=True)
        codes[rows] = rows[first][inverse.reshape(-1)]
    size = len(both)
    return codes, np.stack([np.bincount(codes[: len(x)], minlength=size), np.bincount(codes[len(x) :], minlength=size)])


def _pairs_by_rounding(points: Points) -> float:
    """How many pairs of rows rounding alone makes equal at most, by the column with the smallest steps. 0 if a column is not rounded."""
    found = math.inf
    for column in points.T:
        values = np.unique(column)
        if len(values) < 2:
            continue
        gaps = np.diff(values)
        steps = gaps / gaps.min()
        if np.mean(np.abs(steps - np.round(steps)) < 0.05) < 0.95:
            return 0.0
        # n²/2 Σ p² with p = step · density, and ∫ density² ≈ 0.4 / (distance of the quartiles).
        quarter = float(np.subtract(*np.quantile(column, [0.75, 0.25]))) or float(values[-1] - values[0])
        found = min(found, 0.2 * len(column) ** 2 * float(gaps.min()) / quarter)
    return found

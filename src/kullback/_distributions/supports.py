"""The rule for pairs whose KL is always infinite, because P reaches outside the support of Q."""

from __future__ import annotations

import math
from typing import Any

from .families import FAMILIES, Record

Array = Any

# The meaning of a family's `support`.
NAMES = {
    "real": "the real line",
    "positive": "the positive numbers",
    "unit": "the numbers between 0 and 1",
    "above": "the numbers above a parameter",
    "interval": "the numbers between two parameters",
    "truncated": "the numbers between two parameters, which may be infinite",
    "point": "one number, which is a parameter",
    "counts": "0, 1, 2, …",
    "trials": "0, 1, …, n, where n is a parameter",
    "binary": "0 and 1",
}
_CONTINUOUS = ("real", "positive", "unit", "above", "interval", "truncated")
# P on the first support never lies inside Q, if the support of Q is in the tuple. The end points of a Uniform
# distribution are parameters, so its formulas look at them.
_NEVER_INSIDE = {
    "real": ("positive", "unit", "above", "interval"),
    "positive": ("unit", "above", "interval"),
    "above": ("unit", "interval"),
    "unit": ("above",),
}
_SUPPORTS = {family: family.support for family in FAMILIES if family.support}


def never_inside(p: str, q: str) -> bool:
    """Does the first support reach outside the second one, whatever the parameters?

    A continuous distribution gives no mass to single points. So it never lies inside a discrete one.
    Nor does a discrete one lie inside a continuous one.
    """
    return q in _NEVER_INSIDE.get(p, ()) or (p in _CONTINUOUS) != (q in _CONTINUOUS)


def apart(p: type[Record], q: type[Record]) -> bool:
    """Is KL(p‖q) infinite whatever the parameters?"""
    first, second = _SUPPORTS.get(p), _SUPPORTS.get(q)
    return first is not None and second is not None and never_inside(first, second)


def infinite(ops: Any, p: Any, q: Any) -> Array:
    """Infinity in the shape of both batches, and NaN where a parameter is NaN."""
    total: Any = 0.0
    for side in (p, q):
        for x in side.parameters().values():
            total = total + ops.where(ops.isnan(x), x, math.inf)
    return total

"""Pairs whose divergence is infinite whatever the parameters: P puts mass where Q has none."""

from __future__ import annotations

import math
from typing import Any

from .. import families
from ..registry import closed_form, pairs

Array = Any

# P with the first support is never inside Q with one of the others. Uniform is asked by its own closed forms, where it may be.
_NEVER_INSIDE = {
    "real": ("positive", "unit", "above", "interval"),
    "positive": ("unit", "above", "interval"),
    "above": ("unit", "interval"),
    "unit": ("above",),
}
_CONTINUOUS = ("real", "positive", "unit", "above", "interval", "truncated")
_DISCRETE = ("counts", "trials", "binary")


def _infinite(ops: Any, p: Any, q: Any) -> Array:
    # Of the shape of the batches, NaN where a parameter is.
    sum_of_all: Any = 0.0
    for side in (p, q):
        for x in side.parameters().values():
            sum_of_all = sum_of_all + ops.where(ops.isnan(x), x, math.inf)
    return sum_of_all


def _never_inside(p: str, q: str) -> bool:
    return q in _NEVER_INSIDE.get(p, ()) or (p in _CONTINUOUS and q in _DISCRETE) or (p in _DISCRETE and q in _CONTINUOUS)


def register() -> None:
    known = set(pairs())
    records = [x for x in vars(families).values() if isinstance(x, type) and issubclass(x, families.Record) and x.support]
    for p in records:
        for q in records:
            if (p, q) not in known and _never_inside(p.support, q.support):
                closed_form(p, q)(_infinite)


register()

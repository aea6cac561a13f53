"""Exact order statistics of a column too long to sort: a sample says where each lies, one pass counts there.

Pure; engines do the sampling and the counting. The sample decides only how much is counted, never the result: a rank that is not where the
sample said is looked for again in a wider bracket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SAMPLE = 1_000_000  # a column with no more values is sorted as it is
_SPREAD = 5.0  # standard errors: one bracket in two million misses


class Bracket(NamedTuple):
    """The values from `low` to `high` (None: no end), in which `ranks` are looked for."""

    low: Any
    high: Any
    ranks: tuple[int, ...]


# (bracket by bracket) how many values lie below it, and its values at those ranks where it has them.
Look = Callable[[Sequence[Bracket]], Sequence[Sequence[Any]]]


def order_statistics(sample: Sequence[Any], count: int, ranks: Sequence[int], look: Look) -> list[Any]:
    """The values at `ranks` (from 1) of `count` values, of which `sample` is sorted and random; all of them, if it is as long."""
    if len(sample) == count:
        return [sample[rank - 1] for rank in ranks]
    found: dict[int, Any] = {}
    spread = _SPREAD
    while missing := [rank for rank in ranks if rank not in found]:
        brackets = _brackets(sample, count, missing, spread)
        for bracket, values in zip(brackets, look(brackets)):
            found.update((rank, value) for rank, value in zip(bracket.ranks, values) if value is not None)
        spread *= 4.0
    return [found[rank] for rank in ranks]


def _brackets(sample: Sequence[Any], count: int, ranks: Sequence[int], spread: float) -> list[Bracket]:
    size = len(sample)
    brackets: list[Bracket] = []
    for rank in ranks:
        share = rank / count
        error = spread * math.sqrt(share * (1.0 - share) * size) + spread
        first, last = math.floor(share * size - error), math.ceil(share * size + error)
        low, high = (sample[first] if first >= 0 else None), (sample[last] if last < size else None)
        before = brackets[-1] if brackets else None
        # Disjoint: what touches the one before is one with it.
        if before and (before.high is None or low is None or low <= before.high):
            brackets[-1] = Bracket(before.low, high, (*before.ranks, rank))
        else:
            brackets.append(Bracket(low, high, (rank,)))
    return brackets

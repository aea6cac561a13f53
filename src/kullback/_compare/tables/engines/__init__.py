"""Engines read tables and count; they know nothing of divergences, and nothing outside this folder knows an engine.

An engine is a module with `open_table(source, ...)`, which gives a `Table`: its columns' types, and two functions. `edges` is the first
pass, over the reference; `counts` the second, over either side. Counts of parts of a table add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..columns import Bins, Type

Pair = tuple[str, str]


class BinCounts(NamedTuple):
    """Rows, counts per column in the order of its bins, and per pair the cells that are not empty."""

    rows: int
    columns: dict[str, list[int]]
    pairs: dict[Pair, dict[tuple[int, int], int]]


class Table(Protocol):
    """`types` holds every column, in order; those with kind "" cannot be compared."""

    types: dict[str, Type]

    def edges(self, names: Sequence[str], *, bins: int, levels: int, step: Callable[[str], None]) -> dict[str, Bins]: ...

    def counts(self, bins: Mapping[str, Bins], pairs: Sequence[Pair], *, step: Callable[[str], None]) -> BinCounts: ...

    def close(self) -> None: ...

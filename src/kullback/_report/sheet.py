"""The input of the outputs: grids of words, and sheets, whose tables have bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Grid(NamedTuple):
    """A table of words. The first `left` columns begin at the left, and the others end at the right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


class BarRow(NamedTuple):
    """Cells in the order of the headers, and the term that the row's bar shows, or None for no bar."""

    cells: tuple[str, ...]
    term: float | None


class Sheet(NamedTuple):
    """A calculation: a note on each side, the table of its terms, and totals as (name, number, description).

    `rest` is the row of the categories that are not listed. `low` and `high` are the ends of the bars' scale
    (low <= 0 <= high). Infinite terms are not on it."""

    heading: str
    given: tuple[str, str]
    headers: tuple[str, ...]
    rows: tuple[BarRow, ...]
    rest: BarRow | None
    total: BarRow
    low: float
    high: float
    footnotes: tuple[str, ...]
    totals: tuple[tuple[str, str, str], ...]
    unit: str
    summary: str

    @property
    def body(self) -> tuple[BarRow, ...]:
        """All rows but the total."""
        return self.rows if self.rest is None else (*self.rows, self.rest)

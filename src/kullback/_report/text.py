"""An explanation as plain text: no colours, nothing cut off, whatever the width."""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING

from .table import TOP, Row, Table, make_table, totals

if TYPE_CHECKING:
    from .._explain import Explanation

_EIGHTHS = " ▏▎▍▌▋▊▉"


def width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def bar(term: float | None, table: Table, cells: int) -> str:
    """The term as a bar, from a zero that leaves room for negative ones (▒) on its left."""
    if term is None or math.isnan(term):
        return ""
    span = table.high - table.low
    left = min(cells - 1, math.ceil(cells * -table.low / span)) if table.low < 0 else 0
    if math.isinf(term):
        return " " * left + "█" * (cells - left - 1) + "∞"
    # One scale for both sides: neither end may leave its room.
    scale = min((cells - left) / table.high if table.high > 0 else math.inf, left / -table.low if table.low < 0 else math.inf)
    if not math.isfinite(scale) or term == 0:
        return ""
    if term < 0:
        size = max(1, round(-term * scale))
        return " " * (left - size) + "▒" * size
    eighths = max(1, round(term * scale * 8))
    return " " * left + "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def to_text(e: Explanation, *, top: int | None = TOP) -> str:
    """Everything there is to say, for a pipe, a file or a terminal without rich."""
    table = make_table(e, top)
    lines = [heading(e), "", e.given_p.note, e.given_q.note, "", *_grid(table), ""]
    found = totals(e)
    digits = max(len(number) for _, number, _ in found)
    lines += [f"{name:<8} {number:<{digits}} {e.unit}  {what}" for name, number, what in found]
    lines += ["", e.summary]
    if table.footnotes:
        lines += ["", *(f"* {note}" for note in table.footnotes)]
    return "\n".join(lines)


def heading(e: Explanation) -> str:
    count = len(e.p)
    return f"P and Q over {count:,} categor{'y' if count == 1 else 'ies'}, in {e.unit}"


def _grid(table: Table) -> list[str]:
    rows: list[Row] = [Row(table.headers, None), *table.rows, *([table.rest] if table.rest else []), table.total]
    widths = [max(width(row.cells[i]) for row in rows) for i in range(len(table.headers))]
    lines = []
    for row in rows:
        pads = [" " * (w - width(cell)) for cell, w in zip(row.cells, widths)]
        cells = [row.cells[0] + pads[0], *(pad + cell for pad, cell in zip(pads[1:], row.cells[1:]))]
        lines.append(("  ".join(cells) + "  " + bar(row.term, table, 16)).rstrip())
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]

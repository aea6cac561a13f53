"""Plain text: no colours, and nothing cut off, whatever the width."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Sequence

from .sheet import BarRow, Grid, Sheet

_EIGHTHS = " ▏▎▍▌▋▊▉"


def width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def bar(term: float | None, s: Sheet, cells: int) -> str:
    """The term as a bar, from a zero that leaves room for negative ones (▒) on its left."""
    if term is None or math.isnan(term):
        return ""
    span = s.high - s.low
    left = min(cells - 1, math.ceil(cells * -s.low / span)) if s.low < 0 else 0
    if math.isinf(term):
        return " " * left + "█" * (cells - left - 1) + "∞"
    # One scale for both sides: neither end may leave its room.
    scale = min((cells - left) / s.high if s.high > 0 else math.inf, left / -s.low if s.low < 0 else math.inf)
    if not math.isfinite(scale) or term == 0:
        return ""
    if term < 0:
        size = max(1, round(-term * scale))
        return " " * (left - size) + "▒" * size
    eighths = max(1, round(term * scale * 8))
    return " " * left + "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def grid(table: Grid, beside: Sequence[str] = ()) -> list[str]:
    """Lines: the headers, a rule and the rows. `beside` has a word for the end of each line but the rule."""
    rows = (table.headers, *table.rows)
    widths = [max(map(width, column)) for column in zip(*rows)]
    lines = []
    for row, word in zip(rows, beside or [""] * len(rows)):
        pads = [" " * (w - width(cell)) for cell, w in zip(row, widths)]
        cells = (cell + pad if i < table.left else pad + cell for i, (cell, pad) in enumerate(zip(row, pads)))
        lines.append("  ".join([*cells, word]).rstrip())
    return [lines[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *lines[1:]]


def paragraph(text: str, begin: str = "") -> str:
    """Lines of at most 100 characters. `begin` precedes the first, and the others are indented as far."""
    return textwrap.fill(
        text, 100, initial_indent=begin, subsequent_indent=" " * len(begin), break_long_words=False, break_on_hyphens=False
    )


def sheet(s: Sheet) -> str:
    drawn = [bar(row.term, s, 16) for row in (BarRow(s.headers, None), *s.body, s.total)]
    headers, rule, *rows, total = grid(Grid(s.headers, [row.cells for row in (*s.body, s.total)]), drawn)
    digits = max(len(number) for _, number, _ in s.totals)
    lines = [s.heading, "", *s.given, "", headers, rule, *rows, rule, total, ""]
    lines += [f"{name:<8} {number:<{digits}} {s.unit}  {what}" for name, number, what in s.totals]
    lines += ["", s.summary]
    if s.footnotes:
        lines += ["", *(f"* {note}" for note in s.footnotes)]
    return "\n".join(lines)

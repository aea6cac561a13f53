"""HTML for a notebook: one <div> with inline styles.

It loads nothing and runs no script. Every text in it is escaped. The colours work on light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from .sheet import BarRow, Sheet

TABLE, NOTE = "border-collapse:collapse;margin:.6em 0", "opacity:.75;font-size:90%"
_LINE = "border-top:1px solid rgba(128,128,128,.5)"
_POSITIVE, _NEGATIVE, _INFINITE = "rgba(46,160,67,.75)", "rgba(163,113,247,.75)", "rgba(229,83,75,.85)"


def cells(texts: Iterable[str], tag: str = "td", left: int = 1) -> str:
    """The cells of a row. The first `left` begin at the left."""
    style = "text-align:{};padding:.1em .6em;white-space:nowrap"
    return "".join(f'<{tag} style="{style.format("left" if i < left else "right")}">{escape(text)}</{tag}>' for i, text in enumerate(texts))


def table(rows: Iterable[str], head: str = "") -> str:
    """`rows` and `head` are HTML."""
    head = head and f"<thead><tr>{head}</tr></thead>"
    return f'<table style="{TABLE}">{head}<tbody>{"".join(rows)}</tbody></table>'


def fragment(heading: str, *parts: str) -> str:
    """`parts` are HTML."""
    return (
        '<div style="color:inherit;background:transparent;font-variant-numeric:tabular-nums">'
        f"<div><b>{escape(heading)}</b></div>{''.join(parts)}</div>"
    )


def sheet(s: Sheet) -> str:
    body = [_row(row, s) for row in s.body]
    total = _row(s.total, s, style=f"font-weight:bold;{_LINE}")
    totals = (f"<tr>{cells((name, f'{number} {s.unit}', what), left=3)}</tr>" for name, number, what in s.totals)
    return fragment(
        s.heading,
        *(f"<div>{escape(note)}</div>" for note in s.given),
        table([*body, total], cells((*s.headers, ""), "th")),
        table(totals),
        f"<div><b>{escape(s.summary)}</b></div>",
        *(f'<div style="{NOTE}">{escape(note)}</div>' for note in s.footnotes),
    )


def _row(row: BarRow, s: Sheet, *, style: str = "") -> str:
    attribute = f' style="{style}"' if style else ""
    return f'<tr{attribute}>{cells(row.cells)}<td style="min-width:10em;padding:.1em .6em">{_bar(row.term, s)}</td></tr>'


def _bar(term: float | None, s: Sheet) -> str:
    span = s.high - s.low
    if term is None or math.isnan(term) or term == 0 or not (span > 0 or math.isinf(term)):
        return ""
    zero = -s.low / span if span > 0 else 0.0
    size = 1.0 - zero if math.isinf(term) else abs(term) / span
    start = zero - size if term < 0 else zero
    colour = _INFINITE if math.isinf(term) else _NEGATIVE if term < 0 else _POSITIVE
    return f'<div style="margin-left:{100 * start:.2f}%;width:{100 * size:.2f}%;height:.8em;background:{colour}"></div>'

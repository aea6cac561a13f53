"""An explanation as HTML for a notebook: one <div>, inline styles, no scripts, nothing loaded; colours work on light and dark."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from .table import TOP, Row, Table, make_table, totals
from .text import heading

if TYPE_CHECKING:
    from .._explain import Explanation

_LINE = "border-top:1px solid rgba(128,128,128,.5)"
_POSITIVE, _NEGATIVE, _INFINITE = "rgba(46,160,67,.75)", "rgba(163,113,247,.75)", "rgba(229,83,75,.85)"


def to_html(e: Explanation, *, top: int | None = TOP) -> str:
    """A fragment; every text in it is escaped."""
    table = make_table(e, top)
    head = "".join(_cell(text, "th", left=i == 0) for i, text in enumerate((*table.headers, "")))
    body = [_row(row, table) for row in (*table.rows, *([table.rest] if table.rest else []))]
    body.append(_row(table.total, table, style=f"font-weight:bold;{_LINE}"))
    found = "".join(
        f"<tr>{_cell(name, 'td', left=True)}{_cell(f'{number} {e.unit}', 'td', left=True)}{_cell(what, 'td', left=True)}</tr>"
        for name, number, what in totals(e)
    )
    notes = "".join(f'<div style="opacity:.75;font-size:90%">{escape(note)}</div>' for note in table.footnotes)
    return (
        '<div style="color:inherit;background:transparent;font-variant-numeric:tabular-nums">'
        f"<div><b>{escape(heading(e))}</b></div><div>{escape(e.given_p.note)}</div><div>{escape(e.given_q.note)}</div>"
        f'<table style="border-collapse:collapse;margin:.6em 0"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
        f'<table style="border-collapse:collapse;margin:.6em 0"><tbody>{found}</tbody></table>'
        f"<div><b>{escape(e.summary)}</b></div>{notes}</div>"
    )


def _cell(text: str, tag: str, *, left: bool = False) -> str:
    return f'<{tag} style="text-align:{"left" if left else "right"};padding:.1em .6em;white-space:nowrap">{escape(text)}</{tag}>'


def _row(row: Row, table: Table, *, style: str = "") -> str:
    cells = "".join(_cell(text, "td", left=i == 0) for i, text in enumerate(row.cells))
    attribute = f' style="{style}"' if style else ""
    return f'<tr{attribute}>{cells}<td style="min-width:10em;padding:.1em .6em">{_bar(row.term, table)}</td></tr>'


def _bar(term: float | None, table: Table) -> str:
    span = table.high - table.low
    if term is None or math.isnan(term) or term == 0 or not (span > 0 or math.isinf(term)):
        return ""
    zero = -table.low / span if span > 0 else 0.0
    size = 1.0 - zero if math.isinf(term) else abs(term) / span
    start = zero - size if term < 0 else zero
    colour = _INFINITE if math.isinf(term) else _NEGATIVE if term < 0 else _POSITIVE
    return f'<div style="margin-left:{100 * start:.2f}%;width:{100 * size:.2f}%;height:.8em;background:{colour}"></div>'

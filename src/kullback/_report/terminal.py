"""An explanation on a terminal, with colours where it has them. The only module here that needs rich."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from .table import TOP, Row, Table, make_table, totals
from .text import bar, heading, width

if TYPE_CHECKING:
    from .._explain import Explanation

# What a narrow terminal goes without, first to last, by column; the bar comes before all of them.
_DISPENSABLE = (6, 3, 5)
_LABEL = 12
_BAR, _LEAST_BAR = 16, 8


def print_terminal(e: Explanation, file: IO[str], *, top: int | None = TOP) -> None:
    """Print it, cut to the width of the terminal: first the bars go, then columns, then long labels."""
    console = Console(file=file, highlight=False, soft_wrap=False)
    table = make_table(e, top)
    console.print(Text(heading(e), style="bold"))
    console.print()
    console.print(Text(e.given_p.note))
    console.print(Text(e.given_q.note))
    grid, missing = _grid(table, console.width)
    console.print()
    console.print(grid)
    console.print()
    found = totals(e)
    digits = max(len(number) for _, number, _ in found)
    room_for_words = digits + len(e.unit) + max(len(what) for _, _, what in found) + 12 <= console.width
    for name, number, what in found:
        line = Text(f"{name:<8} ", style="cyan").append(f"{number:<{digits}}", style="bold").append(f" {e.unit}")
        console.print(line.append(f"  {what}", style="dim") if room_for_words else line)
    console.print()
    console.print(Text(e.summary, style="bold"))
    notes = [*table.footnotes, *([f"Too narrow for {missing}: widen the terminal, or pipe the output."] if missing else [])]
    if notes:
        console.print()
    for note in notes:
        console.print(Text(f"* {note}", style="dim"))


def _grid(table: Table, room: int) -> tuple[RichTable, str]:
    rows: list[Row] = [Row(table.headers, None), *table.rows, *([table.rest] if table.rest else []), table.total]
    widths = [max(width(row.cells[i]) for row in rows) for i in range(len(table.headers))]
    columns = list(range(len(table.headers)))

    def needed() -> int:
        return sum((min(widths[i], _LABEL) if i == 0 else widths[i]) + 2 for i in columns)

    bar_cells = min(_BAR, room - needed())
    with_bar = bar_cells >= _LEAST_BAR
    left_out = [] if with_bar else ["the bars"]
    for column in _DISPENSABLE:
        if needed() - 2 > room:
            columns.remove(column)
            left_out.append(table.headers[column])

    grid = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_footer=True,
        header_style="bold",
        footer_style="bold",
    )
    for i in columns:
        if i == 0:
            grid.add_column("", Text(table.total.cells[0]), no_wrap=True, overflow="ellipsis", min_width=min(widths[0], 4))
        else:
            grid.add_column(Text(table.headers[i]), Text(table.total.cells[i]), justify="right", no_wrap=True, min_width=widths[i])
    if with_bar:
        grid.add_column("", "", no_wrap=True, width=bar_cells)
    for row in (*table.rows, *([table.rest] if table.rest else [])):
        cells = [Text(row.cells[i]) for i in columns]
        if with_bar:
            drawn = bar(row.term, table, bar_cells)
            cells.append(Text(drawn, style="magenta" if "▒" in drawn else "red" if "∞" in drawn else "green"))
        grid.add_row(*cells, style="dim" if row is table.rest else None)
    return grid, ", ".join(left_out)

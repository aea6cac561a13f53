"""A sheet on a terminal, in colours if it has them. No other module here needs rich."""

from __future__ import annotations

from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from .sheet import BarRow, Sheet
from .text import bar, width

# The columns that a narrow terminal leaves out, first to last. The bars go before them.
_DISPENSABLE = (6, 3, 5)
_LABEL = 12
_BAR, _LEAST_BAR = 16, 8


def print_sheet(s: Sheet, file: IO[str]) -> None:
    """Print it, cut to the width of the terminal: first the bars go, then columns, then long labels."""
    console = Console(file=file, highlight=False, soft_wrap=False)
    console.print(Text(s.heading, style="bold"))
    console.print()
    for note in s.given:
        console.print(Text(note))
    grid, missing = _grid(s, console.width)
    console.print()
    console.print(grid)
    console.print()
    digits = max(len(number) for _, number, _ in s.totals)
    room_for_words = digits + len(s.unit) + max(len(what) for _, _, what in s.totals) + 12 <= console.width
    for name, number, what in s.totals:
        line = Text(f"{name:<8} ", style="cyan").append(f"{number:<{digits}}", style="bold").append(f" {s.unit}")
        console.print(line.append(f"  {what}", style="dim") if room_for_words else line)
    console.print()
    console.print(Text(s.summary, style="bold"))
    notes = [*s.footnotes, *([f"Too narrow for {missing}: widen the terminal, or pipe the output."] if missing else [])]
    if notes:
        console.print()
    for note in notes:
        console.print(Text(f"* {note}", style="dim"))


def _grid(s: Sheet, room: int) -> tuple[RichTable, str]:
    rows = [BarRow(s.headers, None), *s.body, s.total]
    widths = [max(width(row.cells[i]) for row in rows) for i in range(len(s.headers))]
    columns = list(range(len(s.headers)))

    def needed() -> int:
        return sum((min(widths[i], _LABEL) if i == 0 else widths[i]) + 2 for i in columns)

    bar_cells = min(_BAR, room - needed())
    with_bar = bar_cells >= _LEAST_BAR
    left_out = [] if with_bar else ["the bars"]
    for column in _DISPENSABLE:
        if needed() - 2 > room:
            columns.remove(column)
            left_out.append(s.headers[column])

    grid = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, show_footer=True,
        header_style="bold", footer_style="bold",
    )  # fmt: skip
    for i in columns:
        if i == 0:
            grid.add_column("", Text(s.total.cells[0]), no_wrap=True, overflow="ellipsis", min_width=min(widths[0], 4))
        else:
            grid.add_column(Text(s.headers[i]), Text(s.total.cells[i]), justify="right", no_wrap=True, min_width=widths[i])
    if with_bar:
        grid.add_column("", "", no_wrap=True, width=bar_cells)
    for row in s.body:
        cells = [Text(row.cells[i]) for i in columns]
        if with_bar:
            drawn = bar(row.term, s, bar_cells)
            cells.append(Text(drawn, style="magenta" if "▒" in drawn else "red" if "∞" in drawn else "green"))
        grid.add_row(*cells, style="dim" if row is s.rest else None)
    return grid, ", ".join(left_out)

"""A line on standard error that says which column is being counted, with rich if it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def steps(total: int, wanted: bool) -> Iterator[Callable[[str], None]]:
    """A function to call with what comes next, `total` times."""
    if not wanted:
        yield lambda what: None
        return
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield lambda what: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def step(what: str) -> None:
            bar.update(task, advance=1, description=escape(what[:60]))

        yield step

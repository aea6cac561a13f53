"""Engines read tables and count; they know nothing of divergences, and nothing outside this folder knows an engine.

An engine is a module with `open_table(source, ...)`, which gives a `Table`: its columns' types, and two functions. `edges` is the first
pass, over the reference; `counts` the second, over either side. Counts of parts of a table add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ...._read import ReadError
from ..columns import Bins, Type
from ..sources import named

Pair = tuple[str, str]


class Counts(NamedTuple):
    """Rows, counts per column in the order of its bins, and per pair the cells that are not empty."""

    rows: int
    columns: dict[str, list[int]]
    pairs: dict[Pair, dict[tuple[int, int], int]]


class Table(Protocol):
    """`types` holds every column, in order; those with kind "" cannot be compared."""

    types: dict[str, Type]

    def edges(self, names: Sequence[str], *, bins: int, levels: int, step: Callable[[str], None]) -> dict[str, Bins]: ...

    def counts(self, bins: Mapping[str, Bins], pairs: Sequence[Pair], *, step: Callable[[str], None]) -> Counts: ...

    def close(self) -> None: ...


class Values(Sequence[Any]):
    """What an Arrow column holds, without missing values, sorted, as a sequence of Python values."""

    def __init__(self, column: Any) -> None:
        self._array = column.combine_chunks().drop_null().sort()

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, i: Any) -> Any:
        return self._array[i].as_py()


def to_arrow(given: Any, side: str) -> Any:
    """An Arrow table of a pandas, polars or Arrow object, without pandas' index."""
    import pyarrow

    try:
        if type(given).__module__.partition(".")[0] == "pandas":
            named([str(name) for name in given.columns], f"{side}: the DataFrame")  # Arrow's own sentence is about types
            return pyarrow.Table.from_pandas(given, preserve_index=False)
        return pyarrow.table(given.collect() if hasattr(given, "collect") else given)
    except ReadError:
        raise
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, ValueError, TypeError) as error:
        raise TypeError(f"{side}: a column holds values of several types: {str(error).splitlines()[0]}") from None

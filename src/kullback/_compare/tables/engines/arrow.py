"""Tables in memory (pandas, polars, Arrow) as an Arrow table of types that every engine reads, none of them rounded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...._errors import WrongType
from ...._read import ReadError
from ..columns import is_sequence
from ..sources import named

_DIGITS = 38  # that a decimal has in either engine
_SIGNED = {"uint8": "int16", "uint16": "int32", "uint32": "int64"}


class Values(Sequence[Any]):
    """What an Arrow column holds, without missing values, sorted, as a sequence of Python values."""

    def __init__(self, column: Any) -> None:
        self._array = column.combine_chunks().drop_null().sort()

    def __len__(self) -> int:
        return len(self._array)

    def are_a_sequence(self) -> bool:
        """See `is_sequence`."""
        import pyarrow.compute as pc

        if not len(self):
            return False
        low, high = int(self[0]), int(self[-1])
        # The most that can be different, before they are counted.
        most = min(len(self), high - low + 1)
        return is_sequence(len(self), most, low, high) and is_sequence(len(self), pc.count_distinct(self._array).as_py(), low, high)

    def __getitem__(self, i: Any) -> Any:
        return self._array[i].as_py()


def to_arrow(given: Any, side: str) -> tuple[Any, dict[str, str]]:
    """The table, without pandas' index; and of columns that cannot be compared nor held by Arrow, which are empty in it, what they are."""
    import pyarrow

    unread: dict[str, str] = {}
    if type(given).__module__.partition(".")[0] == "pandas":
        names = named([str(name) for name in given.columns], f"{side}: the DataFrame")
        arrays = [_of_pandas(given.iloc[:, i], name, side, unread) for i, name in enumerate(names)]
        table = pyarrow.table(arrays, names=names)
    else:
        try:
            table = pyarrow.table(given.collect() if hasattr(given, "collect") else given)
        except (pyarrow.ArrowException, ValueError, TypeError) as error:
            raise WrongType(f"{side}: Arrow cannot take the table over: {str(error).splitlines()[0]}") from None
    if not table.num_columns:
        raise ReadError(f"{side}: the table has no columns")
    plain = [_plain(column, name, side) for name, column in zip(table.column_names, table.columns)]
    return pyarrow.table(plain, names=table.column_names), unread


def _of_pandas(values: Any, name: str, side: str, unread: dict[str, str]) -> Any:
    import pyarrow

    kind = str(values.dtype)
    if kind.startswith("Sparse"):
        values = values.sparse.to_dense()
    elif kind.startswith("period"):
        values = values.dt.to_timestamp()
    elif kind.startswith("interval"):
        values = values.astype(object).map(str, na_action="ignore")
    elif kind == "category" and str(values.cat.categories.dtype).startswith("interval"):  # by pandas.cut
        values = values.cat.rename_categories(values.cat.categories.astype(str))
    elif kind.startswith("complex") or kind in ("float128", "float96"):
        unread[name] = kind
        return pyarrow.nulls(len(values))
    try:
        found = pyarrow.array(values, from_pandas=True)
        if not pyarrow.types.is_date(found.type) or not any(isinstance(x, datetime) for x in values):  # Arrow would drop the hours
            return found
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
        pass
    held = list(dict.fromkeys(type(x).__name__ for x in values.dropna()))
    where = f"{side}: column {name!r}"
    if len(held) > 1:
        raise WrongType(f"{where} holds values of several types ({', '.join(held[:-1])} and {held[-1]}): make them one")
    if held == ["int"]:
        raise WrongType(f"{where} holds whole numbers of more than 64 bits: make them floats, or texts")
    if held == ["str"]:
        raise WrongType(f"{where} holds text that is not Unicode (half a surrogate pair)")
    unread[name] = held[0] if held else kind
    return pyarrow.nulls(len(values))


def _plain(column: Any, name: str, side: str) -> Any:
    """As it is, but for types that an engine does not read, or rounds."""
    import pyarrow
    import pyarrow.compute as pc

    is_ = pyarrow.types
    if is_.is_run_end_encoded(column.type):
        column = pyarrow.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], type=column.type.value_type)
    if is_.is_dictionary(column.type) and not is_.is_nested(column.type.value_type):
        inner = column.type.value_type
        if is_.is_string_view(inner):  # polars' categories; Spark knows no views, and Arrow casts no dictionaries of them
            chunks = [pyarrow.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast("string")) for chunk in column.chunks]
            column = pyarrow.chunked_array(chunks, type=pyarrow.dictionary(column.type.index_type, "string"))
        elif not is_.is_string(inner) and not is_.is_large_string(inner):
            column = column.cast(inner)
    of = column.type
    if is_.is_float16(of):
        return column.cast(pyarrow.float32())
    if is_.is_decimal256(of):
        try:
            return column.cast(pyarrow.decimal128(_DIGITS, of.scale))
        except (pyarrow.ArrowInvalid, ValueError):
            raise WrongType(
                f"{side}: column {name!r} is decimal with more than {_DIGITS} digits "
                f"({of.precision}, {of.scale} of them behind the point): make it one with fewer, or floats"
            ) from None
    if is_.is_timestamp(of) and of.unit == "ns":  # DuckDB would round up, and what is up is not the same before 1970
        return pc.floor_temporal(column, unit="microsecond").cast(pyarrow.timestamp("us", of.tz))
    return column


def for_spark(table: Any, unread: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """The same in types that Spark knows: times without a zone are UTC (it would take the session's), whole numbers have a sign."""
    import pyarrow

    columns, unread = [], dict(unread)
    for name, column in zip(table.column_names, table.columns):
        found = _spark_column(column)
        if found is None:
            unread[name] = str(column.type)
            found = pyarrow.nulls(len(column))
        columns.append(found)
    return pyarrow.table(columns, names=table.column_names), unread


def _spark_column(column: Any) -> Any:
    """None: what it holds cannot be compared."""
    import pyarrow

    is_, of = pyarrow.types, column.type
    if isinstance(of, pyarrow.BaseExtensionType):
        storage = pyarrow.chunked_array([chunk.storage for chunk in column.chunks], type=of.storage_type)
        if of.extension_name == "arrow.uuid":
            return pyarrow.array([None if x is None else str(x) for x in column.to_pylist()], pyarrow.string())
        return storage.cast(pyarrow.bool_()) if of.extension_name == "arrow.bool8" else _spark_column(storage)
    if str(of) in _SIGNED:
        return column.cast(_SIGNED[str(of)])
    if is_.is_uint64(of):
        return column.cast(pyarrow.decimal128(20, 0))
    if is_.is_string_view(of):
        return column.cast(pyarrow.string())
    if is_.is_date64(of):
        return column.cast(pyarrow.date32())
    if is_.is_timestamp(of):
        return column.cast(pyarrow.timestamp("us", "UTC"))
    inner = of.value_type if is_.is_dictionary(of) else of
    known = (is_.is_signed_integer, is_.is_floating, is_.is_decimal, is_.is_boolean, is_.is_string, is_.is_large_string, is_.is_date32)
    return column if is_.is_null(inner) or any(test(inner) for test in known) else None

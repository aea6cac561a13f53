"""Tables by DuckDB: embedded, out of core, the default. Values go to it as parameters, paths quoted, columns by position."""

from __future__ import annotations

import glob
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from ...._read import ReadError
from ..columns import (
    Bins,
    Type,
    decimal_type,
    float_type,
    from_cumulative,
    in_one_bin,
    integer_type,
    is_identifier,
    is_sequence,
    level_bins,
    quantile_bins,
    ranks,
    threshold,
    time_type,
)
from ..quantiles import SAMPLE, Bracket, order_statistics
from ..sources import Source, csv_header, must_have, named
from ..text_files import check_csv, check_json_lines
from ..text_types import MISSING_NUMBERS, NUMBERS, OTHERS, TIMES, TextType
from . import BinCounts, Pair
from .arrow import Values, to_arrow

_AT_ONCE = 400  # aggregates in one query
_LONGEST_ROW = 1 << 25  # bytes of CSV: as many as DuckDB's buffers have anyway
_TAKEN_FOR = ("TIME", "UUID")  # what DuckDB takes texts of JSON for, and then writes otherwise than they are
_CRLF = "chr(13) || chr(10)"
_INTEGERS = {
    "TINYINT": (8, True), "SMALLINT": (16, True), "INTEGER": (32, True), "BIGINT": (64, True), "HUGEINT": (128, True),
    "UTINYINT": (8, False), "USMALLINT": (16, False), "UINTEGER": (32, False), "UBIGINT": (64, False), "UHUGEINT": (128, False),
}  # fmt: skip


def open_table(source: Source, side: str, *, memory: str, delimiter: str | None) -> DuckTable:
    """The table, open. Text files are read once, whole, into DuckDB's own (spilling) storage; Parquet is read where it lies."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise ReadError("tables need DuckDB and PyArrow: pip install 'kullback[cli]'") from None
    table = DuckTable(source, side)
    try:
        with _spoken(source, side):
            table.load(memory, delimiter)
    except BaseException:
        table.close()
        raise
    return table


@contextmanager
def _spoken(source: Source, side: str) -> Iterator[None]:
    """What DuckDB raises, as a sentence; and Ctrl-C, which it has made an error of its own, as Ctrl-C."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        raise ReadError(f"{side}: {_sentence(error, source)}") from None
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise


# DuckDB's advice, which is about its own options, and where in our query.
_ADVICE = re.compile(
    r"(Possible |Try setting|If you are trying|This can happen|Candidate |LINE \d|[Tt]ry (setting )?ignore_errors).*", re.DOTALL
)
# What it says of a Parquet file whose end is missing, or that has other bytes than were written.
_DAMAGED = ("No magic bytes", "Footer length", "too small to be a Parquet", "TProtocolException", "don't know what type", "decompress")


def _sentence(error: Exception, source: Source) -> str:
    """DuckDB's message without its advice."""
    text = str(error)
    named_file = next((file for file in source.files if file in text), "")
    name = named_file or (source.files[0] if len(source.files) == 1 else source.name)
    if source.format == "parquet" and any(words in text for words in _DAMAGED):
        return f"{name} is cut short or damaged: copy or write it again"
    if "Maximum line size" in text:
        return f"{name} has a row of more than {_LONGEST_ROW >> 20} MB: is a quote open? If not, Parquet has no such limit"
    text = re.sub(r"Original Line: .*\n?", "", text)  # which is data
    lines = [line.strip().rstrip(":") for line in _ADVICE.sub("", text).split("\n")]
    text = re.sub(r"^[A-Z]\w+( \w+)? Error: ", "", ": ".join([line for line in lines if line][:3]))
    if "expected records" in text:
        text = 'its lines are not all objects with names that are not empty: give each row as one, such as {"x": 1.5}'
    return text if named_file and named_file in text else f"{name}: {text}"


class DuckTable:
    """See `Table`."""

    def __init__(self, source: Source, side: str) -> None:
        self._source, self._side = source, side
        self._connection: Any = None
        # For what does not fit into memory. Its name is known, and its removal arranged, before it is there: an interrupt at any moment
        # leaves no folder behind.
        self._folder = os.path.join(tempfile.gettempdir(), f"kullback-{secrets.token_hex(8)}")
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.types: dict[str, Type] = {}
        # By position: DuckDB takes a and A for the same name, and would rename one.
        self._own: dict[str, str] = {}
        self._from = ""
        self._rows = 0

    def load(self, memory: str, delimiter: str | None) -> None:
        import duckdb

        os.mkdir(self._folder, 0o700)
        self._connection = duckdb.connect(
            config={"temp_directory": self._folder, "memory_limit": memory, "preserve_insertion_order": "false"}
        )
        # Nothing is fetched from a network behind the user's back.
        self._connection.execute("SET autoinstall_known_extensions = false; SET TimeZone = 'UTC'")
        # It takes a column for free of NaN whose minimum and maximum in a Parquet file are none, and NaN has no part in either.
        self._connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        source, where = self._source, f"{self._side}: {self._source.name}"
        unread: dict[str, str] = {}
        # Patterns are resolved already, and DuckDB would resolve them once more.
        files = [file if "://" in file else glob.escape(file) for file in source.files]
        if source.format == "object":
            arrow, unread = to_arrow(source.object, self._side)
            names = named(arrow.column_names, where)
            self._connection.register("given", arrow.rename_columns(_positions(names)))
            self._from = "given"
        elif source.format == "csv":
            names = self._load_csv(files, delimiter)
        elif source.format == "parquet":
            names = named(self._parquet_names(files), where)
            self._from = f"{_parquet(files)} AS given({', '.join(_positions(names))})"
        else:
            names = self._load_json(files)
        self._own = dict(zip(names, _positions(names)))
        for name, (_, duck, *_) in zip(names, self._all(f"DESCRIBE SELECT * FROM {self._from}")):
            self.types[name] = Type("", unread[name]) if name in unread else _type(duck)
            if source.format == "jsonl" and duck == "JSON":  # of which nothing is known: without values, or every value is {}
                empty = self._one(f"SELECT count({self._own[name]}) FROM {self._from}")[0] == 0
                self.types[name] = Type("none" if empty else "", "NULL" if empty else "STRUCT")
        self._rows = self._one(f"SELECT count(*) FROM {self._from}")[0]
        if self._rows == 0:
            raise ReadError(f"{where} has no rows")

    def _load_csv(self, files: list[str], delimiter: str | None) -> list[str]:
        first, *others = self._source.files
        delimiter, names = csv_header(first, self._side, delimiter)
        for file in others:
            must_have(file, csv_header(file, self._side, delimiter)[1], first, names, self._side)
        for file in self._source.files:
            check_csv(file, self._side, delimiter, names)
        struct = ", ".join(f"{own}: 'VARCHAR'" for own in _positions(names))
        # Not guessed, by a dialect that guesses wrong drops lines: quotes are ", doubled inside.
        self._connection.execute(
            f"CREATE TEMP TABLE raw AS SELECT * FROM read_csv({_text_list(files)}, "
            f"auto_detect=false, header=true, delim={_text(delimiter)}, quote='\"', escape='\"', columns={{{struct}}}, "
            f"allow_quoted_nulls=false, strict_mode=true, hive_partitioning=false, "
            f"max_line_size={_LONGEST_ROW}, buffer_size={_LONGEST_ROW})" + (" WHERE c0 IS NOT NULL" if len(names) == 1 else "")
            # A blank line is no row. DuckDB knows that of several columns; of one it makes a missing value of it, and of nothing else.
        )
        self._retype("raw", _positions(names), (*NUMBERS, *OTHERS, *TIMES))
        return names

    def _parquet_names(self, files: list[str]) -> list[str]:
        """Of the first file. The others must have its columns and types: DuckDB would drop a column, and round a 1.5 to an integer."""
        first, *others = files
        names, types = self._parquet_columns(first)
        by_name = dict(zip(names, types))
        same_order = len({name.lower() for name in names}) < len(names)  # or a and A would be mixed up
        for i, file in enumerate(others, 1):
            found, its_types = self._parquet_columns(file)
            path = self._source.files[i]
            if same_order or sorted(found) != sorted(names):
                must_have(path, found, self._source.files[0], names, self._side)
            for name, its_type in zip(found, its_types):
                if its_type not in (by_name[name], '"NULL"'):
                    raise ReadError(
                        f"{self._side}: column {name!r} is {its_type} in {path} and {by_name[name]} in {self._source.files[0]}: "
                        "write the files with the same types"
                    )
        return names

    def _parquet_columns(self, file: str) -> tuple[list[str], list[str]]:
        names: list[str] = []
        to_come: list[int] = []  # children of the root, of one of them, ...
        for name, children in self._all(f"SELECT name, num_children FROM parquet_schema({_text(file)})"):
            if len(to_come) == 1:
                names.append(name)
            if to_come:
                to_come[-1] -= 1
            to_come.append(children or 0)
            while to_come and not to_come[-1]:
                to_come.pop()
            if not to_come:
                break
        return names, [duck for _, duck, *_ in self._all(f"DESCRIBE SELECT * FROM {_parquet([file])}")]

    def _load_json(self, files: list[str]) -> list[str]:
        import duckdb

        here = [file for file in self._source.files if "://" not in file and not file.lower().endswith(".zst")]
        # Rows are objects, of however many names. Formats that nothing has: which texts are times is for `_retype` to say.
        read = (
            f"CREATE OR REPLACE TEMP TABLE raw AS SELECT * FROM read_json({_text_list(files)}, format='newline_delimited', sample_size=-1, "
            "records=true, map_inference_threshold=-1, union_by_name=true, hive_partitioning=false, maximum_object_size=67108864, "
            "convert_strings_to_integers=false, dateformat='%Y never', timestampformat='%Y never'"
        )
        try:
            self._connection.execute(f"{read})")
        except duckdb.Error:
            check_json_lines(here, self._side, self._source.name)
            raise
        columns = [(name, duck) for name, duck, *_ in self._all("DESCRIBE raw")]
        names = [name for name, _ in columns]
        # Of values of several types DuckDB makes JSON, and of an A beside an a an A_1.
        if "JSON" in dict(columns).values() or any(self._is_renamed(name, names) for name in names):
            check_json_lines(here, self._side, self._source.name)
        if any(duck in _TAKEN_FOR for _, duck in columns):
            columns = [(name, "VARCHAR" if duck in _TAKEN_FOR else duck) for name, duck in columns]
            struct = ", ".join(f"{_text(name)}: {_text(duck)}" for name, duck in columns)
            self._connection.execute(f"{read}, columns={{{struct}}})")
        own = _positions(names)
        self._retype(f"raw AS given({', '.join(own)})", [x for x, (_, duck) in zip(own, columns) if duck == "VARCHAR"], TIMES)
        return names

    @staticmethod
    def _is_renamed(name: str, names: Sequence[str]) -> bool:
        known = name.rpartition("_")[0]
        return known not in names and any(other.lower() == known.lower() for other in names)

    def _retype(self, raw: str, own: Sequence[str], candidates: Sequence[TextType]) -> None:
        """The text columns of `raw` cast to the first candidate that all their values are."""
        replaced = []
        for x in own:
            tests, parameters = [f"count({x})", _count(f"contains({x}, {_CRLF})")], []
            for candidate in candidates:
                missing = f" OR {x} IN ({', '.join('?' * len(MISSING_NUMBERS))})" if candidate in NUMBERS else ""
                castable = f"TRY_CAST({x} AS {candidate.sql}) IS NOT NULL AND " if candidate in TIMES else ""
                tests.append(_count(f"({castable}regexp_full_match({x}, ?)){missing}"))
                parameters += [candidate.pattern, *(MISSING_NUMBERS if missing else ())]
            present, split, *matching = self._one(f"SELECT {', '.join(tests)} FROM {raw}", parameters)
            chosen = next((c for c, n in zip(candidates, matching) if present and n == present), None)
            if chosen in NUMBERS:
                gone = ", ".join(_text(word) for word in MISSING_NUMBERS)
                replaced.append(f"CAST(CASE WHEN {x} IN ({gone}) THEN NULL ELSE {x} END AS {chosen.sql}) AS {x}")
            elif chosen:
                replaced.append(f"CAST({x} AS {chosen.sql}) AS {x}")
            elif not present:
                replaced.append(f"NULL AS {x}")
            elif split and self._source.format == "csv":
                replaced.append(f"replace({x}, {_CRLF}, chr(10)) AS {x}")
        if not replaced:
            self._from = raw
            return
        self._connection.execute(f"CREATE TEMP TABLE typed AS SELECT * REPLACE ({', '.join(replaced)}) FROM {raw}; DROP TABLE raw")
        self._from = "typed"

    def edges(self, names: Sequence[str], *, bins: int, levels: int, step: Callable[[str], None]) -> dict[str, Bins]:
        """The first pass."""
        with _spoken(self._source, self._side):
            present = self._how_many(names, lambda name: f"{self._value(name)} IS NOT NULL")
            finite = self._how_many([name for name in names if self.types[name].domain], self._is_finite)
            found = {}
            for name in names:
                step(name)
                kind = self.types[name].kind if present[name] else "none"
                if kind == "text":
                    found[name] = self._levels(name, present[name], levels)
                elif kind in ("boolean", "none"):
                    found[name] = Bins(kind)
                else:
                    found[name] = self._quantiles(name, finite[name], ranks(finite[name], bins))
            return found

    def _how_many(self, names: Sequence[str], condition: Callable[[str], str]) -> dict[str, int]:
        aggregates = [_count(condition(name)) for name in names]
        return dict(zip(names, self._aggregate(aggregates, [[] for _ in aggregates])))

    def _quantiles(self, name: str, count: int, wanted: list[int]) -> Bins:
        kind = self.types[name].kind
        if not wanted:
            return quantile_bins(kind, [])
        x = self._value(name)
        some = "" if self._rows <= SAMPLE else f" USING SAMPLE {100.0 * SAMPLE / self._rows:.9f} PERCENT (bernoulli, 1)"
        # The sample is of rows, then of values: both are the whole only together. It is taken by `execute`, which hears Ctrl-C; the query
        # that gives Arrow does not, and has little to do.
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE sample AS SELECT x FROM (SELECT {x} AS x, {self._is_finite(name)} AS finite "
            f"FROM {self._from}{some}) WHERE finite"
        )
        arrow = self._connection.sql("SELECT x FROM sample").to_arrow_table()
        values = Values(arrow.column("x"))
        if self.types[name].is_whole and values.are_a_sequence() and (len(values) == count or self._is_sequence(name, count)):
            return Bins("identifier")
        return quantile_bins(kind, order_statistics(values, count, wanted, lambda brackets: self._look(name, brackets)))

    def _is_sequence(self, name: str, count: int) -> bool:
        """Of all values, where a sample looks like one."""
        x = self._value(name)
        distinct, low, high = self._one(f"SELECT count(DISTINCT {x}), min({x}), max({x}) FROM {self._from}")
        return is_sequence(count, distinct, int(low), int(high))

    def _look(self, name: str, brackets: Sequence[Bracket]) -> list[list[Any]]:
        x, finite = self._value(name), self._is_finite(name)
        inside, below = [], []
        inside_values: list[Any] = []
        below_values: list[list[Any]] = []
        for low, high, _ in brackets:
            ends = [(end, sign) for end, sign in ((low, ">="), (high, "<=")) if end is not None]
            inside.append(" AND ".join(f"{x} {sign} {self._place(name)}" for _, sign in ends) or "true")
            inside_values += [_exact(end) for end, _ in ends]
            below.append(_count(f"{finite} AND {x} < {self._place(name)}") if low is not None else "0")
            below_values.append([_exact(low)] if low is not None else [])
        under = self._aggregate(below, below_values)
        which = " ".join(f"WHEN {condition} THEN {j}" for j, condition in enumerate(inside))
        wanted = [(j, rank - under[j]) for j, bracket in enumerate(brackets) for rank in bracket.ranks]
        row = self._one(
            f"WITH inside AS (SELECT {x} AS x, CASE {which} END AS j FROM {self._from} WHERE {finite}), "
            "running AS (SELECT j, x, sum(count(*)) OVER (PARTITION BY j ORDER BY x) AS n FROM inside WHERE j IS NOT NULL GROUP BY j, x) "
            f"SELECT {', '.join('min(x) FILTER (j = ? AND n >= ?)' for _ in wanted)} FROM running",
            inside_values + [value for pair in wanted for value in pair],
        )
        values = iter([None if rank < 1 else value for (_, rank), value in zip(wanted, row)])
        return [[next(values) for _ in bracket.ranks] for bracket in brackets]

    def _levels(self, name: str, present: int, levels: int) -> Bins:
        x = self._value(name)
        rows = self._all(
            f"SELECT x, n, count(*) OVER () FROM (SELECT {x} AS x, count(*) AS n FROM {self._from} WHERE {x} IS NOT NULL GROUP BY 1) "
            "ORDER BY n DESC, x LIMIT ?",
            [levels + 1],
        )
        distinct = rows[0][2] if rows else 0
        return Bins("identifier") if is_identifier(present, distinct) else level_bins([row[:2] for row in rows], distinct, levels=levels)

    def counts(self, bins: Mapping[str, Bins], pairs: Sequence[Pair], *, step: Callable[[str], None]) -> BinCounts:
        """The second pass."""
        with _spoken(self._source, self._side):
            aggregates: list[str] = []
            parameters: list[list[Any]] = []
            for name, of in bins.items():
                for condition, values in self._conditions(name, of):
                    aggregates.append(_count(condition))
                    parameters.append(values)
            numbers = iter(self._aggregate(aggregates, parameters))
            found = {}
            for name, of in bins.items():
                step(name)
                mine = [next(numbers) for _ in self._conditions(name, of)]
                if in_one_bin(of, self.types[name]):
                    found[name] = [self._rows - mine[0], *[0] * (len(of) - 2), mine[0]]
                elif of.kind == "text":
                    by_level = self._level_counts(name, of)
                    found[name] = [*by_level, self._rows - mine[0] - sum(by_level), mine[0]]
                elif of.kind == "boolean":
                    found[name] = [*mine, self._rows - sum(mine)]
                else:
                    found[name] = from_cumulative(of, mine[4:], mine[:4], self._rows)
            joint = {}
            for pair in pairs:
                step(":".join(pair))
                joint[pair] = self._pair(pair, bins)
            return BinCounts(self._rows, found, joint)

    def _conditions(self, name: str, of: Bins) -> list[tuple[str, list[Any]]]:
        x = self._value(name)
        if in_one_bin(of, self.types[name]) or of.kind == "text":
            return [(f"{x} IS NULL", [])]
        if of.kind == "boolean":
            return [(f"NOT {x}", []), (x, [])]
        special: list[tuple[str, list[Any]]] = [(condition, []) for condition in self._special(name)]
        return [*special, *(self._at_most(name, cut) for cut in of.cuts)]

    def _special(self, name: str) -> list[str]:
        """Conditions for SPECIAL."""
        x, own = self._value(name), self._own[name]
        if self.types[name].kind == "time":
            early, late = f"{own} = '-infinity'", f"{own} = 'infinity'"
            return [early, late, "false", f"{own} IS NULL"]
        if self.types[name].domain == "float":
            return [f"{x} = '-inf'::DOUBLE", f"{x} = 'inf'::DOUBLE", f"isnan({x})", f"{x} IS NULL"]
        return ["false", "false", "false", f"{x} IS NULL"]

    def _at_most(self, name: str, cut: Any) -> tuple[str, list[Any]]:
        limit = threshold(cut, self.types[name])
        early = self._special(name)[0]
        if self.types[name].kind == "time":  # their -inf is no number
            return (f"{self._value(name)} <= ? OR {early}", [limit]) if limit is not None else (early, [])
        x = self._value(name)
        # DuckDB may answer a comparison from a Parquet file's minimum and maximum, in which NaN has no part.
        real = f" AND NOT isnan({x})" if self.types[name].domain == "float" else ""
        return (f"{x} <= {self._place(name)}{real}", [_exact(limit)]) if limit is not None else (early, [])

    def _level_counts(self, name: str, of: Bins) -> list[int]:
        x = self._value(name)
        rows = self._all(
            f"SELECT {x}, count(*) FROM {self._from} WHERE {x} IN (SELECT unnest(?::VARCHAR[])) GROUP BY ALL", [list(of.levels)]
        )
        by_level = dict(rows)
        return [by_level.get(level, 0) for level in of.levels]

    def _pair(self, pair: Pair, bins: Mapping[str, Bins]) -> dict[tuple[int, int], int]:
        (first, a), (second, b) = (self._index(name, bins[name]) for name in pair)
        rows = self._all(f"SELECT {first} AS i, {second} AS j, count(*) FROM {self._from} GROUP BY 1, 2", a + b)
        return {(i, j): n for i, j, n in rows}

    def _index(self, name: str, of: Bins) -> tuple[str, list[Any]]:
        """The number of the bin, as an expression."""
        x, last = self._value(name), len(of) - 1
        if in_one_bin(of, self.types[name]):
            return f"if({x} IS NULL, {last}, 0)", []
        if of.kind == "text":
            return f"coalesce(list_position(?::VARCHAR[], {x}) - 1, if({x} IS NULL, {last}, {last - 1}))", [list(of.levels)]
        if of.kind == "boolean":
            return f"CASE WHEN {x} THEN 1 WHEN NOT {x} THEN 0 ELSE 2 END", []
        special = self._special(name)
        cases = [f"WHEN {condition} THEN {len(of.cuts) + 1 + j}" for j, condition in enumerate(special)]
        values: list[Any] = []
        for j, (condition, limit) in enumerate(self._at_most(name, cut) for cut in of.cuts):
            cases.append(f"WHEN {condition} THEN {j}")
            values += limit
        return f"CASE {' '.join(cases)} ELSE {len(of.cuts)} END", values

    def _value(self, name: str) -> str:
        own, of = self._own[name], self.types[name]
        if of.kind == "time" and of.name.endswith("_NS"):  # epoch_us rounds, or is not there
            return f"(epoch_ns({own}) // 1000 - (epoch_ns({own}) % 1000 < 0)::BIGINT)"
        if of.kind == "time":
            return f"epoch_us({own}{'::TIMESTAMP' if of.name == 'DATE' else ''})"
        if of.domain == "float":
            return f"{own}::DOUBLE"
        return f"{own}::VARCHAR" if of.kind == "text" else own

    def _place(self, name: str) -> str:
        """Where a value to compare with goes (see `_exact`)."""
        return f"?::{self.types[name].name}" if self.types[name].domain == "decimal" else "?"

    def _is_finite(self, name: str) -> str:
        of = self.types[name]
        return f"isfinite({self._value(name)})" if of.domain == "float" else f"{self._value(name)} IS NOT NULL"

    def _aggregate(self, aggregates: Sequence[str], parameters: Sequence[list[Any]]) -> list[int]:
        found: list[int] = []
        for start in range(0, len(aggregates), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            found += self._one(f"SELECT {', '.join(aggregates[some])} FROM {self._from}", [v for vs in parameters[some] for v in vs])
        return found

    def _all(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(sql, list(parameters)).fetchall()
        return rows

    def _one(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        return self._all(sql, parameters)[0]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._remove_folder()


def _type(duck: str) -> Type:
    if duck in _INTEGERS:
        bits, signed = _INTEGERS[duck]
        return integer_type(duck, bits=bits, signed=signed)
    if duck in ("DOUBLE", "FLOAT"):
        return float_type(duck)
    if duck.startswith("DECIMAL("):
        precision, scale = duck[8:-1].split(",")
        return decimal_type(duck, int(precision), int(scale))
    if duck.startswith("TIMESTAMP") or duck == "DATE":
        return time_type(duck)
    if duck in ("VARCHAR", "UUID", "JSON") or (duck.startswith("ENUM(") and duck.endswith(")")):
        return Type("text", "ENUM" if duck.startswith("ENUM") else duck)
    if duck == '"NULL"':
        return Type("none", "NULL")
    return Type("boolean" if duck == "BOOLEAN" else "", duck)


def _exact(value: Any) -> Any:
    """As a parameter. Of a Decimal of 38 digits behind the point DuckDB makes a float, so it goes as text."""
    return f"{value:f}" if isinstance(value, Decimal) else value


def _count(condition: str) -> str:
    """How many rows are so. Where the condition is NULL in all of them, count_if may be NULL, not 0."""
    return f"coalesce(count_if({condition}), 0)"


def _positions(names: Sequence[str]) -> list[str]:
    return [f"c{i}" for i in range(len(names))]


def _parquet(files: Sequence[str]) -> str:
    return f"read_parquet({_text_list(files)}, hive_partitioning=false)"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _text_list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"

"""Tables by DuckDB: embedded, out of core, the default. Values go to it as parameters, names and paths quoted."""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...._read import ReadError
from ..columns import (
    Bins,
    Type,
    decimal_type,
    float_type,
    from_cumulative,
    integer_type,
    level_bins,
    quantile_bins,
    ranks,
    threshold,
    time_type,
)
from ..quantiles import SAMPLE, Bracket, order_statistics
from ..sources import Source, csv_header
from ..text_types import MISSING_NUMBERS, NUMBERS, OTHERS, TIMES, TextType
from . import Counts, Pair, Values, to_arrow

_AT_ONCE = 400  # aggregates in one query
_INTEGERS = {
    "TINYINT": (8, True), "SMALLINT": (16, True), "INTEGER": (32, True), "BIGINT": (64, True), "HUGEINT": (128, True),
    "UTINYINT": (8, False), "USMALLINT": (16, False), "UINTEGER": (32, False), "UBIGINT": (64, False), "UHUGEINT": (128, False),
}  # fmt: skip


def open_table(source: Source, side: str, *, memory: str, delimiter: str | None) -> DuckTable:
    """The table, open. Text files are read once, whole, into DuckDB's own (spilling) storage; Parquet is read where it lies."""
    try:
        import duckdb
    except ImportError:
        raise ReadError("tables need DuckDB and PyArrow: pip install 'kullback[cli]'") from None
    folder = tempfile.mkdtemp(prefix="kullback-")
    try:
        connection = duckdb.connect(config={"temp_directory": folder, "memory_limit": memory, "preserve_insertion_order": "false"})
        # Nothing is fetched from a network behind the user's back.
        connection.execute("SET autoinstall_known_extensions = false; SET TimeZone = 'UTC'")
        table = DuckTable(connection, folder, source, side)
        table.load(delimiter)
    except duckdb.Error as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ReadError(f"{side}: {_sentence(error, source)}") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return table


def _sentence(error: Exception, source: Source) -> str:
    """DuckDB's message without its advice, which is about its own options."""
    lines = [line.strip() for line in str(error).split("\n")]
    kept = [
        line for line in lines[: next((i for i, line in enumerate(lines) if line.startswith(("Possible", "LINE"))), len(lines))] if line
    ]
    text = ": ".join(kept[:3]).removeprefix("Invalid Input Error: ").removeprefix("IO Error: ")
    name = source.files[0] if len(source.files) == 1 else source.name
    return text if name in text else f"{name}: {text}"


class DuckTable:
    """See `Table`."""

    def __init__(self, connection: Any, folder: str, source: Source, side: str) -> None:
        self._connection, self._folder, self._source, self._side = connection, folder, source, side
        self.types: dict[str, Type] = {}
        self._from = ""
        self._rows = 0

    def load(self, delimiter: str | None) -> None:
        source = self._source
        if source.format == "object":
            self._connection.register("given", to_arrow(source.object, self._side))
            self._from = "given"
        elif source.format == "csv":
            self._load_csv(delimiter)
        else:
            # Patterns are resolved already, and DuckDB would resolve them once more.
            files = [file if "://" in file else glob.escape(file) for file in source.files]
            if source.format == "parquet":
                self._from = f"read_parquet({_text_list(files)}, hive_partitioning=false)"
            else:
                self._load_json(files)
        for name, duck, *_ in self._all(f"DESCRIBE SELECT * FROM {self._from}"):
            self.types[name] = _type(duck)
        self._rows = self._one(f"SELECT count(*) FROM {self._from}")[0]
        if self._rows == 0:
            raise ReadError(f"{self._side}: {source.name} has no rows")

    def _load_csv(self, delimiter: str | None) -> None:
        first, *others = self._source.files
        delimiter, names = csv_header(first, self._side, delimiter)
        for file in others:
            if (found := csv_header(file, self._side, delimiter)[1]) != names:
                raise ReadError(
                    f"{self._side}: {file} has the columns {', '.join(found)}, and {first} {', '.join(names)}: they must be the same"
                )
        struct = ", ".join(f"{_text(name)}: 'VARCHAR'" for name in names)
        # Not guessed, by a dialect that guesses wrong drops lines: quotes are ", doubled inside.
        self._connection.execute(
            f"CREATE TEMP TABLE raw AS SELECT * FROM read_csv({_text_list([glob.escape(f) for f in self._source.files])}, "
            f"auto_detect=false, header=true, delim={_text(delimiter)}, quote='\"', escape='\"', columns={{{struct}}}, "
            "allow_quoted_nulls=false, strict_mode=true)"
        )
        self._retype(names, (*NUMBERS, *OTHERS, *TIMES))

    def _load_json(self, files: list[str]) -> None:
        # Formats that nothing has: which texts are times is for `_retype` to say.
        self._connection.execute(
            f"CREATE TEMP TABLE raw AS SELECT * FROM read_json({_text_list(files)}, format='newline_delimited', sample_size=-1, "
            "union_by_name=true, maximum_object_size=67108864, convert_strings_to_integers=false, "
            "dateformat='%Y never', timestampformat='%Y never')"
        )
        self._retype([name for name, duck, *_ in self._all("DESCRIBE raw") if duck == "VARCHAR"], TIMES)

    def _retype(self, names: Sequence[str], candidates: Sequence[TextType]) -> None:
        """The text columns of `raw` cast to the first candidate that all their values are."""
        replaced = []
        for name in names:
            x = _quoted(name)
            tests, parameters = [f"count({x})"], []
            for candidate in candidates:
                missing = f" OR {x} IN ({', '.join('?' * len(MISSING_NUMBERS))})" if candidate in NUMBERS else ""
                castable = f"TRY_CAST({x} AS {candidate.sql}) IS NOT NULL AND " if candidate in TIMES else ""
                tests.append(_count(f"({castable}regexp_full_match({x}, ?)){missing}"))
                parameters += [candidate.pattern, *(MISSING_NUMBERS if missing else ())]
            present, *matching = self._one(f"SELECT {', '.join(tests)} FROM raw", parameters)
            chosen = next((c for c, n in zip(candidates, matching) if present and n == present), None)
            if chosen in NUMBERS:
                gone = ", ".join(_text(word) for word in MISSING_NUMBERS)
                replaced.append(f"CAST(CASE WHEN {x} IN ({gone}) THEN NULL ELSE {x} END AS {chosen.sql}) AS {x}")
            elif chosen:
                replaced.append(f"CAST({x} AS {chosen.sql}) AS {x}")
            elif not present:
                replaced.append(f"NULL AS {x}")
        if not replaced:
            self._from = "raw"
            return
        self._connection.execute(f"CREATE TEMP TABLE typed AS SELECT * REPLACE ({', '.join(replaced)}) FROM raw; DROP TABLE raw")
        self._from = "typed"

    def edges(self, names: Sequence[str], *, bins: int, levels: int, step: Callable[[str], None]) -> dict[str, Bins]:
        """The first pass."""
        try:
            present = self._how_many(names, lambda name: f"{self._value(name)} IS NOT NULL")
            finite = self._how_many([name for name in names if self.types[name].domain], self._is_finite)
            found = {}
            for name in names:
                step(name)
                kind = self.types[name].kind if present[name] else "none"
                if kind == "text":
                    found[name] = self._levels(name, levels)
                elif kind in ("boolean", "none"):
                    found[name] = Bins(kind)
                else:
                    found[name] = quantile_bins(kind, self._order_statistics(name, finite[name], ranks(finite[name], bins)))
            return found
        except self._error as error:
            raise ReadError(f"{self._side}: {_sentence(error, self._source)}") from None

    def _how_many(self, names: Sequence[str], condition: Callable[[str], str]) -> dict[str, int]:
        aggregates = [_count(condition(name)) for name in names]
        return dict(zip(names, self._aggregate(aggregates, [[] for _ in aggregates])))

    def _order_statistics(self, name: str, count: int, wanted: list[int]) -> list[Any]:
        if not wanted:
            return []
        x = self._value(name)
        some = "" if self._rows <= SAMPLE else f" USING SAMPLE {100.0 * SAMPLE / self._rows:.9f} PERCENT (bernoulli, 1)"
        # The sample is of rows, then of values: both are the whole only together.
        arrow = self._connection.sql(
            f"SELECT x FROM (SELECT {x} AS x, {self._is_finite(name)} AS finite FROM {self._from}{some}) WHERE finite"
        ).to_arrow_table()
        return order_statistics(Values(arrow.column("x")), count, wanted, lambda brackets: self._look(name, brackets))

    def _look(self, name: str, brackets: Sequence[Bracket]) -> list[list[Any]]:
        x, finite = self._value(name), self._is_finite(name)
        inside, below = [], []
        inside_values: list[Any] = []
        below_values: list[list[Any]] = []
        for low, high, _ in brackets:
            ends = [(end, sign) for end, sign in ((low, ">="), (high, "<=")) if end is not None]
            inside.append(" AND ".join(f"{x} {sign} ?" for _, sign in ends) or "true")
            inside_values += [end for end, _ in ends]
            below.append(_count(f"{finite} AND {x} < ?") if low is not None else "0")
            below_values.append([low] if low is not None else [])
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

    def _levels(self, name: str, levels: int) -> Bins:
        x = self._value(name)
        rows = self._all(
            f"SELECT x, n, count(*) OVER () FROM (SELECT {x} AS x, count(*) AS n FROM {self._from} WHERE {x} IS NOT NULL GROUP BY 1) "
            "ORDER BY n DESC, x LIMIT ?",
            [levels + 1],
        )
        return level_bins([(level, count) for level, count, _ in rows], rows[0][2] if rows else 0, levels=levels)

    def counts(self, bins: Mapping[str, Bins], pairs: Sequence[Pair], *, step: Callable[[str], None]) -> Counts:
        """The second pass."""
        try:
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
                if of.kind == "none" or self.types[name].kind == "none":
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
            return Counts(self._rows, found, joint)
        except self._error as error:
            raise ReadError(f"{self._side}: {_sentence(error, self._source)}") from None

    def _conditions(self, name: str, of: Bins) -> list[tuple[str, list[Any]]]:
        x = self._value(name)
        if "none" in (of.kind, self.types[name].kind) or of.kind == "text":
            return [(f"{x} IS NULL", [])]
        if of.kind == "boolean":
            return [(f"NOT {x}", []), (x, [])]
        special: list[tuple[str, list[Any]]] = [(condition, []) for condition in self._special(name)]
        return [*special, *(self._at_most(name, cut) for cut in of.cuts)]

    def _special(self, name: str) -> list[str]:
        """Conditions for SPECIAL."""
        x, own = self._value(name), _quoted(name)
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
        return (f"{x} <= ?{real}", [limit]) if limit is not None else (early, [])

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
        if "none" in (of.kind, self.types[name].kind):
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
        own, of = _quoted(name), self.types[name]
        if of.kind == "time":
            return f"epoch_us({own}{'::TIMESTAMP' if of.name == 'DATE' else ''})"
        if of.domain == "float":
            return f"{own}::DOUBLE"
        return f"{own}::VARCHAR" if of.kind == "text" else own

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

    @property
    def _error(self) -> type[Exception]:
        import duckdb

        error: type[Exception] = duckdb.Error
        return error

    def close(self) -> None:
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)


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
    if duck in ("VARCHAR", "UUID") or (duck.startswith("ENUM(") and duck.endswith(")")):
        return Type("text", "ENUM" if duck.startswith("ENUM") else duck)
    if duck == '"NULL"':
        return Type("none", "NULL")
    return Type("boolean" if duck == "BOOLEAN" else "", duck)


def _count(condition: str) -> str:
    """How many rows are so. Where the condition is NULL in all of them, count_if may be NULL, not 0."""
    return f"coalesce(count_if({condition}), 0)"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _text_list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"

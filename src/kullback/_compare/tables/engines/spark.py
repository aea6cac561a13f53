"""Tables by Spark, on one machine or a cluster: the same two passes, the same exact comparisons, and so the same counts as DuckDB's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...._read import ReadError
from ..columns import (
    Bins,
    Cut,
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
from .arrow import Values, for_spark, to_arrow
from .spark_session import spoken, started

_AT_ONCE = 300  # aggregates in one job
_DAY = 86_400_000_000
_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
# Names of text_types in Spark's SQL; a time without a zone has none here either.
_CASTS = {
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    "TIMESTAMPTZ": "TIMESTAMP",
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "BOOLEAN": "BOOLEAN",
}


def open_table(source: Source, side: str, *, master: str | None, delimiter: str | None) -> SparkTable:
    """The table, open in the running Spark session, or in a new one on `master` (this machine by default)."""
    session = started(master)
    with spoken(source, side):
        unread: dict[str, str] = {}
        return SparkTable(*_read(session, source, side, delimiter, unread), source, side, unread)


def _read(session: Any, source: Source, side: str, delimiter: str | None, unread: dict[str, str]) -> tuple[Any, list[str]]:
    """A frame, and the names of its columns: by position where Spark would take a and A for the same. Adds to `unread` (`for_spark`)."""
    if source.format == "object":
        if hasattr(source.object, "sparkSession"):
            return source.object, source.object.columns
        arrow, found = for_spark(*to_arrow(source.object, side))
        unread.update(found)
        return session.createDataFrame(arrow.rename_columns(_positions(arrow.column_names))), arrow.column_names
    # Hadoop resolves patterns of its own.
    files = [file if "://" in file else "file://" + _absolute(file) for file in source.files]
    if source.format == "parquet":
        schemas = _schemas([file for file in source.files if "://" not in file], side)
        frame = _parquet(session, files, schemas, side)
        return frame, frame.columns
    if source.format == "jsonl":
        check_json_lines([file for file in source.files if "://" not in file], side, source.name)
        frame = session.read.json(files, mode="FAILFAST", primitivesAsString=False, columnNameOfCorruptRecord="\x01corrupt\x01")
        texts = [f.name for f in frame.schema.fields if f.dataType.simpleString() == "string"]
        return _retype(_with_floats(frame), texts, TIMES), frame.columns
    reader = {
        "quote": '"',
        "escape": '"',
        "mode": "FAILFAST",
        "multiLine": True,
        "encoding": "UTF-8",
        "unescapedQuoteHandling": "RAISE_ERROR",
    }
    # What an empty field without quotes is read as; if it were "" too, an empty text would be missing.
    reader["nullValue"] = "\x01missing\x01"
    if "://" in source.files[0]:
        delimiter = delimiter or ("\t" if ".tsv" in source.name.lower() else ",")
        names = [name or "" for name in session.read.csv(files, sep=delimiter, **reader).first() or ()]
    else:
        delimiter, names = csv_header(source.files[0], side, delimiter)
        for file in source.files[1:]:
            must_have(file, csv_header(file, side, delimiter)[1], source.files[0], names, side)
        for file in source.files:
            check_csv(file, side, delimiter, names)
    from pyspark.sql.types import StringType, StructField, StructType

    own = _positions(names)
    schema = StructType([StructField(name, StringType()) for name in own])
    frame = session.read.csv(files, sep=delimiter, schema=schema, header=True, **reader)
    return _retype(_with_line_feeds(frame), own, (*NUMBERS, *OTHERS, *TIMES)), names


def _with_line_feeds(frame: Any) -> Any:
    """Line ends in quotes alike: Spark reads two characters as one where the file's own lines end so, and leaves them elsewhere."""
    from pyspark.sql import functions as F

    return frame.select(*(F.replace(_column(name), F.lit("\r\n"), F.lit("\n")).alias(name) for name in frame.columns))


def _with_floats(frame: Any) -> Any:
    """Columns of whole numbers that no 64 bits hold, with a sign or without, are floats: DuckDB's rule for JSON."""
    from pyspark.sql import functions as F

    long = [field.name for field in frame.schema.fields if field.dataType.simpleString().startswith("decimal")]
    if not long:
        return frame
    ends = iter(frame.agg(*(end(_column(name)) for name in long for end in (F.min, F.max))).first())
    beyond = [name for name, low, high in zip(long, ends, ends) if low < -(2**63) or high >= 2**64]
    return frame.withColumns({name: _column(name).cast("double") for name in beyond})


def _schemas(files: Sequence[str], side: str) -> dict[str, Any]:
    """Of Parquet files, which have the same names and types: Spark would drop a column, make one up of missing values, or widen one."""
    import pyarrow
    from pyarrow.parquet import read_metadata

    schemas: dict[str, Any] = {}
    for file in files:
        try:
            footer = read_metadata(file)
            schemas[file] = footer.schema.to_arrow_schema()
        except (pyarrow.ArrowException, OSError):
            raise ReadError(f"{side}: {file} is cut short or damaged: copy or write it again") from None
        if footer.num_row_groups and footer.num_columns and footer.row_group(0).column(0).compression == "BROTLI":
            raise ReadError(f"{side}: {file} is packed by brotli, which Spark does not read: write it with zstd, or take the engine duckdb")
        first = schemas[files[0]]
        must_have(file, sorted(schemas[file].names), files[0], sorted(first.names), side)
        for field in schemas[file] if len(set(first.names)) == len(first.names) else ():
            before = first.field(field.name).type
            if _spelled(field.type) not in (_spelled(before), "null"):
                types = f"{field.type} in {file} and {before} in {files[0]}"
                raise ReadError(f"{side}: column {field.name!r} is {types}: write the files with the same types")
    return schemas


def _spelled(of: Any) -> str:
    """A type without what says only how Arrow held it when it wrote the file."""
    name = str(getattr(of, "value_type", of) if str(of).startswith("dictionary") else of)
    return re.sub(r"(tz=).*]", r"\1]", re.sub(r"timestamp\[m?s", "timestamp[us", name)).removeprefix("large_").removesuffix("_view")


_FOREIGN = re.compile(r"halffloat|time(32|64)\[|uuid|decimal256")  # to Spark's reader of Parquet


def _parquet(session: Any, files: Sequence[str], schemas: Mapping[str, Any], side: str) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    fields = [(file, field) for file, schema in schemas.items() for field in schema]
    if any("[ns" in str(field.type) for _, field in fields):
        session = session.newSession()  # one in which Spark reads them, as whole numbers; the caller's stays as it is
        session.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    try:
        frame = session.read.parquet(*files)
    except PySparkException:
        for file, field in fields:
            if _FOREIGN.search(str(field.type)):
                raise ReadError(
                    f"{side}: column {field.name!r} is {field.type} in {file}, which Spark does not read: "
                    "write it as another type, or take the engine duckdb"
                ) from None
        raise
    times = {field.name for _, field in fields if str(field.type).startswith("timestamp[ns")}
    whole = [of.name for of in frame.schema.fields if of.name in times and of.dataType.simpleString() == "bigint"]
    micros = {name: F.timestamp_micros(F.expr(f"{_quoted(name)} div 1000") - (_column(name) % 1000 < 0).cast("bigint")) for name in whole}
    return frame.withColumns(micros) if micros else frame


def _positions(names: Sequence[str]) -> list[str]:
    return [f"c{i}" for i in range(len(names))]


def _absolute(file: str) -> str:
    return "".join(f"\\{c}" if c in "{}[]*?\\," else c for c in os.path.abspath(file))


def _retype(frame: Any, names: Sequence[str], candidates: Sequence[TextType]) -> Any:
    """The text columns cast to the first candidate that all their values are."""
    from pyspark.sql import functions as F

    tests = []
    for name in names:
        x = _column(name)
        tests.append(F.count(x))
        for candidate in candidates:
            matches = x.rlike(rf"\A(?:{candidate.pattern})\z")
            if candidate in NUMBERS:
                matches = matches | x.isin(*MISSING_NUMBERS)
            if candidate in TIMES:
                matches = matches & x.try_cast(_CASTS.get(candidate.sql, candidate.sql)).isNotNull()
            tests.append(F.count(F.when(matches, 1)))
    if not tests:
        return frame
    numbers = iter(frame.agg(*tests).first())
    chosen: dict[str, Any] = {}
    for name in names:
        x = _column(name)
        present, *matching = [next(numbers) for _ in range(1 + len(candidates))]
        found = next((c for c, n in zip(candidates, matching) if present and n == present), None)
        if found in NUMBERS:
            chosen[name] = F.when(~x.isin(*MISSING_NUMBERS), x).try_cast(_CASTS.get(found.sql, found.sql))
        elif found:
            chosen[name] = x.cast(_CASTS.get(found.sql, found.sql))
        elif not present:
            chosen[name] = F.lit(None)
    return frame.select(*(chosen.get(name, _column(name)).alias(name) for name in frame.columns))


def _column(name: str) -> Any:
    from pyspark.sql import functions as F

    return F.col(_quoted(name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class SparkTable:
    """See `Table`."""

    def __init__(self, frame: Any, names: Sequence[str], source: Source, side: str, unread: Mapping[str, str]) -> None:
        self._source, self._side = source, side
        names = named(names, f"{side}: {source.name}")
        self.types = {
            name: Type("", unread[name]) if name in unread else _type(field.dataType) for name, field in zip(names, frame.schema.fields)
        }
        # By position, so that no name needs quoting from here on.
        self._own = dict(zip(names, _positions(names)))
        self._frame = frame.toDF(*self._own.values())
        self._rows = self._frame.count()
        if self._rows == 0:
            raise ReadError(f"{side}: {source.name} has no rows")

    def edges(self, names: Sequence[str], *, bins: int, levels: int, step: Callable[[str], None]) -> dict[str, Bins]:
        """The first pass."""
        from pyspark.sql import functions as F

        with spoken(self._source, self._side):
            ordered = [name for name in names if self.types[name].domain]
            present = dict(zip(names, self._aggregate([self._value(name).isNotNull() for name in names])))
            finite = dict(zip(ordered, self._aggregate([self._is_finite(name) for name in ordered])))
            values = self._frame.select(*(F.when(self._is_finite(name), self._value(name)).alias(self._own[name]) for name in ordered))
            sample: Any = (
                (values if self._rows <= SAMPLE else values.sample(fraction=SAMPLE / self._rows, seed=1)).toArrow() if ordered else None
            )
            found = {}
            for name in names:
                step(name)
                kind = self.types[name].kind if present[name] else "none"
                if kind == "text":
                    found[name] = self._levels(name, present[name], levels)
                elif kind in ("boolean", "none"):
                    found[name] = Bins(kind)
                else:
                    some = Values(sample.column(self._own[name]))
                    if (
                        self.types[name].is_whole
                        and some.are_a_sequence()
                        and (len(some) == finite[name] or self._is_sequence(name, finite[name]))
                    ):
                        found[name] = Bins("identifier")
                        continue
                    edges = order_statistics(some, finite[name], ranks(finite[name], bins), partial(self._look, name))
                    found[name] = quantile_bins(kind, edges)
            return found

    def _is_sequence(self, name: str, count: int) -> bool:
        """Of all values, where a sample looks like one."""
        from pyspark.sql import functions as F

        x = self._value(name)
        distinct, low, high = self._frame.agg(F.count_distinct(x), F.min(x), F.max(x)).first()
        return is_sequence(count, distinct, int(low), int(high))

    def _look(self, name: str, brackets: Sequence[Bracket]) -> list[list[Any]]:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        x, finite = self._value(name), self._is_finite(name)
        under = self._aggregate([F.lit(False) if low is None else finite & (x < self._literal(low)) for low, _, _ in brackets])
        which = F.lit(None).cast("int")
        for j, (low, high, _) in enumerate(brackets):
            inside = F.lit(True) if low is None else x >= self._literal(low)
            inside = inside if high is None else inside & (x <= self._literal(high))
            which = F.when(inside, j).otherwise(which)
        running = (
            self._frame.where(finite)
            .select(x.alias("x"), which.alias("j"))
            .where("j is not null")
            .groupBy("j", "x")
            .count()
            .withColumn("n", F.sum("count").over(Window.partitionBy("j").orderBy("x")))
        )
        wanted = [(j, rank - under[j]) for j, bracket in enumerate(brackets) for rank in bracket.ranks]
        row = running.agg(*(F.min(F.when((F.col("j") == j) & (F.col("n") >= rank), F.col("x"))) for j, rank in wanted)).first()
        values = iter([None if rank < 1 else value for (_, rank), value in zip(wanted, row)])
        return [[next(values) for _ in bracket.ranks] for bracket in brackets]

    def _levels(self, name: str, present: int, levels: int) -> Bins:
        from pyspark.sql import functions as F

        x = self._value(name)
        groups = self._frame.where(x.isNotNull()).groupBy(x.alias("x")).count()
        most = groups.orderBy(F.desc("count"), F.asc("x")).limit(levels + 1).collect()
        distinct = len(most) if len(most) <= levels else groups.count()
        if is_identifier(present, distinct):
            return Bins("identifier")
        return level_bins([(row[0], row[1]) for row in most], distinct, levels=levels)

    def counts(self, bins: Mapping[str, Bins], pairs: Sequence[Pair], *, step: Callable[[str], None]) -> BinCounts:
        """The second pass: one job of sums over every column, and one for each pair."""
        with spoken(self._source, self._side):
            conditions = {name: self._conditions(name, of) for name, of in bins.items()}
            numbers = iter(self._aggregate([condition for some in conditions.values() for condition in some]))
            found = {}
            for name, of in bins.items():
                step(name)
                mine = [next(numbers) for _ in conditions[name]]
                if in_one_bin(of, self.types[name]):
                    found[name] = [self._rows - mine[0], *[0] * (len(of) - 2), mine[0]]
                elif of.kind == "text":
                    found[name] = [*mine[1:], self._rows - sum(mine), mine[0]]
                elif of.kind == "boolean":
                    found[name] = [*mine, self._rows - sum(mine)]
                else:
                    found[name] = from_cumulative(of, mine[4:], mine[:4], self._rows)
            joint = {}
            for pair in pairs:
                step(":".join(pair))
                joint[pair] = self._pair(pair, bins)
            return BinCounts(self._rows, found, joint)

    def _conditions(self, name: str, of: Bins) -> list[Any]:
        x = self._value(name)
        if in_one_bin(of, self.types[name]):
            return [x.isNull()]
        if of.kind == "text":
            return [x.isNull(), *(x == level for level in self._literals(of.levels))]
        if of.kind == "boolean":
            return [~x, x]
        return [*self._special(name), *(self._at_most(name, cut) for cut in of.cuts)]

    def _special(self, name: str) -> list[Any]:
        """Conditions for SPECIAL."""
        from pyspark.sql import functions as F

        x = self._value(name)
        if self.types[name].domain == "float":
            return [x == float("-inf"), x == float("inf"), F.isnan(x), x.isNull()]
        return [F.lit(False), F.lit(False), F.lit(False), x.isNull()]

    def _at_most(self, name: str, cut: Cut) -> Any:
        limit = threshold(cut, self.types[name])
        return self._special(name)[0] if limit is None else self._value(name) <= self._literal(limit)

    def _pair(self, pair: Pair, bins: Mapping[str, Bins]) -> dict[tuple[int, int], int]:
        first, second = (self._index(name, bins[name]) for name in pair)
        rows = self._frame.groupBy(first.alias("i"), second.alias("j")).count().collect()
        return {(row[0], row[1]): row[2] for row in rows}

    def _index(self, name: str, of: Bins) -> Any:
        """The number of the bin, as an expression."""
        from pyspark.sql import functions as F

        x, last = self._value(name), len(of) - 1
        if in_one_bin(of, self.types[name]):
            return F.when(x.isNull(), last).otherwise(0)
        if of.kind == "boolean":
            return F.when(x, 1).when(~x, 0).otherwise(2)
        if of.kind == "text":
            found = F.when(x.isNull(), last)
            for j, level in enumerate(self._literals(of.levels)):
                found = found.when(x == level, j)
            return found.otherwise(last - 1)
        missing = len(of.cuts) + 1
        special = self._special(name)
        found = F.when(special[0], missing)
        for j, condition in enumerate(special[1:], 1):
            found = found.when(condition, missing + j)
        for j, cut in enumerate(of.cuts):
            found = found.when(self._at_most(name, cut), j)
        return found.otherwise(len(of.cuts))

    def _value(self, name: str) -> Any:
        from pyspark.sql import functions as F

        own, of = F.col(self._own[name]), self.types[name]
        if of.name == "date":
            return F.unix_date(own).cast("bigint") * _DAY
        if of.name == "timestamp":
            return F.unix_micros(own)
        if of.name == "timestamp_ntz":
            return F.timestamp_diff("MICROSECOND", F.lit("1970-01-01").cast("timestamp_ntz"), own)
        if of.domain == "float":
            return own.cast("double")
        return own.cast("string") if of.kind == "text" else own

    def _is_finite(self, name: str) -> Any:
        from pyspark.sql import functions as F

        x = self._value(name)
        if self.types[name].domain != "float":
            return x.isNotNull()
        return x.isNotNull() & ~F.isnan(x) & (F.abs(x) != float("inf"))

    @staticmethod
    def _literal(value: Any) -> Any:
        from pyspark.sql import functions as F

        return F.lit(value).cast("bigint") if isinstance(value, int) else F.lit(value)

    @staticmethod
    def _literals(levels: Sequence[str]) -> list[Any]:
        from pyspark.sql import functions as F

        return [F.lit(level) for level in levels]

    def _aggregate(self, conditions: Sequence[Any]) -> list[int]:
        """How many rows each condition holds for."""
        from pyspark.sql import functions as F

        found: list[int] = []
        for start in range(0, len(conditions), _AT_ONCE):
            found += self._frame.agg(*(F.count(F.when(c, 1)) for c in conditions[start : start + _AT_ONCE])).first()
        return found

    def close(self) -> None:
        """The session is not ours to stop: starting one takes seconds, and the caller may go on with it."""


def _type(spark: Any) -> Type:
    name = spark.simpleString()
    if name in _INTEGERS:
        return integer_type(name, bits=_INTEGERS[name])
    if name in ("float", "double"):
        return float_type(name)
    if name.startswith("decimal"):
        return decimal_type(name, spark.precision, spark.scale)
    if name in ("date", "timestamp", "timestamp_ntz"):
        return time_type(name)
    if name.startswith(("string", "varchar", "char")):
        return Type("text", name)
    return Type({"boolean": "boolean", "void": "none"}.get(name, ""), name)

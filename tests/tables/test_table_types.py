"""Types of Parquet files and of tables in memory, in DuckDB and Spark: counted alike, left out alike, or refused by one sentence."""

import datetime as dt
import uuid
from collections import Counter
from decimal import Context, Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kullback._compare.tables import compare_tables

ENGINES = ("duckdb", "spark")
NANOSECONDS = [0, 1, 999, 1000, 1001, -1, -999, -1000, -1001, 10**18, 5 * 10**17 + 1, None]


def found(source, engine):
    """Of the column c its kind and counts by label, or why it is left out."""
    record = compare_tables(source, source, engine=engine)
    if record.left_out:
        ((name, reason),) = record.left_out
        assert name == "c"
        assert reason.endswith(" cannot be compared")
        return "left out"
    column = record["c"]
    assert column.p == column.q
    return column.kind, dict(zip(column.labels, column.p))


def table(array):
    return pa.table({"ok": [1] * len(array), "c": array})


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Oslo"])
@pytest.mark.parametrize("where", ["parquet", "arrow", "pandas"])
def test_nanoseconds(zone, where, tmp_path, spark):
    """The microseconds are those that have begun, before 1970 too. pandas writes such files, and Spark reads none by itself."""
    source = table(pa.array(NANOSECONDS, pa.timestamp("ns", zone)))
    if where == "parquet":
        pq.write_table(source, tmp_path / "t.parquet")
        source = tmp_path / "t.parquet"
    elif where == "pandas":
        source = source.to_pandas()
    expected = sorted(Counter(x // 1000 for x in NANOSECONDS if x is not None).items())
    for engine in ENGINES:
        kind, counts = found(source, engine)
        assert (kind, counts.pop("missing")) == ("time", 1)
        assert list(counts.values()) == [n for _, n in expected], engine  # each value has an interval, in ascending order
        assert list(counts)[1] == "= 1969-12-31T23:59:59.999999"
    assert spark.conf.get("spark.sql.legacy.parquet.nanosAsLong") == "false"  # the session of whoever calls stays as it was


BOTH = {
    "half floats": (pa.array(np.array([0.5, 1.5, np.nan, np.inf], np.float16)), {"(-∞, 0.5]": 1, "(0.5, ∞)": 1, "+inf": 1, "NaN": 1}),
    "uint64": (pa.array([0, 2**64 - 1, 2**64 - 1, None], pa.uint64()), {"(-∞, 0]": 1, "(0, 18446744073709551615]": 2, "missing": 1}),
    "uint8": (pa.array([0, 255, 255, None], pa.uint8()), {"(-∞, 0]": 1, "(0, 255]": 2, "missing": 1}),
    "decimal256": (pa.array([Decimal("1.10"), Decimal("1.10")], pa.decimal256(50, 2)), {"(-∞, 1.10]": 2}),
    "text views": (pa.array(["a", "a", None], pa.string_view()), {"a": 2, "missing": 1}),
    "milliseconds of days": (pa.array([dt.date(1969, 12, 31)] * 2, pa.date64()), {"(-∞, 1969-12-31]": 2}),
    "UUID": (pa.array([uuid.UUID(int=5).bytes] * 2, pa.uuid()), {str(uuid.UUID(int=5)): 2}),
    "booleans of 8 bits": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 1], pa.int8())), {"false": 1, "true": 2}),
    "JSON": (pa.array(['{"a":1}'] * 2, pa.json_(pa.utf8())), {'{"a":1}': 2}),
    "runs": (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1.5, 2.5])), {"= 1.5": 2, "(1.5, ∞)": 1}),
    "dictionary of times": (pa.array([dt.datetime(2020, 1, 1)] * 2).dictionary_encode(), {"(-∞, 2020-01-01]": 2}),
    "nulls": (pa.nulls(3), {"missing": 3}),
}


@pytest.mark.parametrize("name", BOTH)
def test_arrow_types_that_one_engine_does_not_know(name, spark):
    array, counts = BOTH[name]
    for engine in ENGINES:
        assert found(table(array), engine)[1] == counts, engine


LEFT_OUT = {
    "time of day": pa.array([dt.time(1, 2, 3), None]),
    "seconds of days": pa.array([dt.time(1, 2, 3), None], pa.time32("s")),
    "duration": pa.array([1, None], pa.duration("ns")),
    "list": pa.array([[1], None]),
    "list view": pa.array([[1], None], pa.list_view(pa.int32())),
    "struct": pa.array([{"a": 1}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
    "binary": pa.array([b"a", None], pa.large_binary()),
    "months": pa.array([pa.MonthDayNano([1, 2, 3]), None]),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_arrow_types_that_cannot_be_compared(name, spark):
    for engine in ENGINES:
        assert found(table(LEFT_OUT[name]), engine) == "left out"


@pytest.mark.parametrize(
    ("array", "type_name"),
    [
        (pa.array(np.array([0.5, 1.5], np.float16)), "halffloat"),
        (pa.array([dt.time(1), None]), r"time64\[us\]"),
        (pa.array([1, 2], pa.time32("ms")), r"time32\[ms\]"),
        (pa.array([uuid.UUID(int=5).bytes] * 2, pa.uuid()), "extension<arrow.uuid>"),
        (pa.array([Decimal(1)] * 2, pa.decimal256(50, 10)), r"decimal256\(50, 10\)"),
    ],
    ids=lambda x: "" if isinstance(x, pa.Array) else x,
)
def test_parquet_that_spark_does_not_read(array, type_name, tmp_path, spark):
    pq.write_table(table(array), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=rf"^P: column 'c' is {type_name} in .*t\.parquet, which Spark does not read: write it as another"):
        compare_tables(tmp_path / "t.parquet", tmp_path / "t.parquet", engine="spark")


def test_brotli(tmp_path, spark):
    pq.write_table(pa.table({"x": [1, 1]}), tmp_path / "t.parquet", compression="brotli")
    assert compare_tables(tmp_path / "t.parquet", tmp_path / "t.parquet")["x"].p == (2,)
    with pytest.raises(ValueError, match=r"^P: .*t\.parquet is packed by brotli, which Spark does not read: write it with zstd, or take "):
        compare_tables(tmp_path / "t.parquet", tmp_path / "t.parquet", engine="spark")


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("side", ["P", "Q"])
def test_nan_in_parquet(side, kind, library, tmp_path, spark):
    """The file's statistics know nothing of it: by them no value of Q is above P's edges, and P's edges are among finite values."""
    values = np.array([1, 2, 3, np.nan, np.nan, 4], kind)
    own = pa.table({"x": values, "s": ["a", "b"] * 3})
    if library == "pyarrow":
        pq.write_table(own, tmp_path / "t.parquet")
    else:
        polars = pytest.importorskip("polars")
        polars.from_arrow(own.set_column(0, "x", own["x"].cast("float32") if kind is np.float16 else own["x"])).write_parquet(
            tmp_path / "t.parquet"
        )
    other = pa.table({"x": [float(i) for i in range(1, 101)], "s": ["a", "b"] * 50})
    for engine in ENGINES[: 1 if kind is np.float16 and library == "pyarrow" else 2]:  # Spark reads no half floats
        given = (tmp_path / "t.parquet", other) if side == "P" else (other, tmp_path / "t.parquet")
        record = compare_tables(*given, pairs=["x:s"], bins=2, engine=engine)
        counts = record["x"].p if side == "P" else record["x"].q
        expected = {"(-∞, 2]": 2, "(2, ∞)": 2, "NaN": 2} if side == "P" else {"(-∞, 50]": 4, "(50, ∞)": 0, "NaN": 2}
        assert dict(zip(record["x"].labels, counts)) == expected, engine
        joint = dict(zip(record["x:s"].labels, record["x:s"].p if side == "P" else record["x:s"].q))
        assert (joint["NaN · a"], joint["NaN · b"]) == (1, 1)


@pytest.mark.parametrize("scale", [0, 38])
@pytest.mark.parametrize("long", [False, True], ids=["sorted", "sampled"])
def test_decimals_of_38_digits(scale, long, spark, monkeypatch):
    """Neighbours in the last digit, which no float tells apart, counted as integers by Python. DuckDB has no place for 38 digits behind
    the point of which the first is 0, when it finds the type of a parameter."""
    from kullback._compare.tables.engines import duckdb

    if long:
        monkeypatch.setattr(duckdb, "SAMPLE", 50)
    units = [1234567890123456789012345678901234567 + i % 7 for i in range(1, 701)]
    values = pa.array([Decimal(unit).scaleb(-scale, Context(prec=60)) for unit in units], pa.decimal128(38, scale))
    ordered = sorted(units)
    edges = [ordered[-(-k * 700 // 4) - 1] for k in (1, 2, 3)]
    assert len(set(edges)) == 3
    expected = [sum(unit <= edges[0] for unit in units)]
    expected += [sum(low < unit <= high for unit in units) for low, high in zip(edges, [*edges[1:], units[0] + 9])]
    for engine in ENGINES:
        record = compare_tables(pa.table({"x": values}), pa.table({"x": values}), bins=4, engine=engine)
        assert list(record["x"].p) == expected, engine


class Foo:
    pass


PANDAS = {
    "sparse": (pd.arrays.SparseArray([0, 0, 1, 0]), {"= 0": 3, "(0, ∞)": 1}),
    "period": (pd.PeriodIndex(["2020-02"] * 2, freq="M"), {"(-∞, 2020-02-01]": 2}),
    "interval": (pd.arrays.IntervalArray.from_tuples([(0, 1), (0, 1), None]), {"(0.0, 1.0]": 2, "missing": 1}),
    "pandas.cut": (pd.cut([1, 2, 3, 3, np.nan], [0, 2, 4]), {"(0, 2]": 2, "(2, 4]": 2, "missing": 1}),
    "categories that are numbers": (pd.Categorical([1, 2, 1, None]), {"= 1": 2, "(1, ∞)": 1, "missing": 1}),
    "categories that are times": (pd.Categorical(pd.to_datetime(["2020-01-01"] * 2)), {"(-∞, 2020-01-01]": 2}),
    "categories of nothing": (pd.Categorical([None] * 2), {"missing": 2}),
    "half floats": (np.array([0.5, 0.5, 0.5], np.float16), {"= 0.5": 3}),
    "times with zone": (pd.to_datetime(["2020-01-01 00:00:00.0000019"] * 2).tz_localize("UTC"), {"(-∞, 2020-01-01T00:00:00.000001]": 2}),
    "complex": (np.array([1 + 2j, 2]), None),
    "long double": (np.array([1.5, 2.5], np.longdouble), None),
    "timedelta": (pd.to_timedelta([1, 2], unit="D"), None),
    "lists": ([[1], [2]], None),
    "dicts": ([{"a": 1}, {"b": "x"}], None),
    "dicts of several types": ([{"a": 1}, {"a": "x"}], None),
    "categories that are tuples": (pd.Categorical([(1, 2), (3, 4)]), None),
    "objects": ([Foo(), Foo()], None),
    "paths": ([Path("a"), Path("b")], None),
}


@pytest.mark.parametrize("name", PANDAS)
def test_pandas_columns(name, spark):
    values, counts = PANDAS[name]
    frame = pd.DataFrame({"ok": [1] * len(values), "c": pd.Series(values)})
    for engine in ENGINES:
        if counts is None:
            assert found(frame, engine) == "left out"
        else:
            assert found(frame, engine)[1] == counts, engine


MIXED = {
    "holds values of several types (int and str): make them one": [1, "a"],
    "holds values of several types (str and int): make them one": ["a", 1],
    "holds values of several types (int and bool): make them one": [1, True],
    "holds values of several types (list and int): make them one": [[1], 2],
    "holds values of several types (Decimal and float): make them one": [Decimal("1.5"), 1.5],
    "holds values of several types (date and datetime): make them one": [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 3)],
    "holds whole numbers of more than 64 bits: make them floats, or texts": [1, 2**70],
    "holds text that is not Unicode (half a surrogate pair)": ["\ud800", "a"],
    "is decimal with more than 38 digits (61, 30 of them behind the point): make it one with fewer, or floats": [
        Decimal("1e30"),
        Decimal("1e-30"),
    ],
}


@pytest.mark.parametrize("sentence", MIXED)
def test_pandas_columns_that_are_refused(sentence, spark):
    frame = pd.DataFrame({"ok": [1, 1, 1], "c": pd.Series([*MIXED[sentence], None], dtype=object)})
    for engine in ENGINES:
        with pytest.raises(TypeError) as error:
            compare_tables(frame, frame, engine=engine)
        assert str(error.value) == f"P: column 'c' {sentence}"


def test_categories_of_polars(spark):
    import polars

    for values in (
        polars.Series(["a", "b", None, "a"], dtype=polars.Categorical),
        polars.Series(["a", None, "a", "b"]).cast(polars.Enum(["a", "b"])),
    ):
        for engine in ENGINES:
            assert found(polars.DataFrame({"ok": [1] * 4, "c": values}), engine) == ("text", {"a": 2, "other levels": 1, "missing": 1})


def test_pandas_categories_of_several_types():
    frame = pd.DataFrame({"c": pd.Categorical([1, "a", None])})
    with pytest.raises(TypeError, match=r"^P: column 'c' holds values of several types \(int and str\): make them one$"):
        compare_tables(frame, frame)


def test_a_frame_without_columns(spark):
    for engine in ENGINES:
        with pytest.raises(ValueError, match=r"^P: the table has no columns$"):
            compare_tables(pd.DataFrame(index=[1, 2]), pd.DataFrame(), engine=engine)

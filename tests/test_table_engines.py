"""DuckDB and a real local Spark against a Python oracle that counts one value at a time: the same edges, the same counts, in every type."""

import contextlib
import datetime as dt
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kullback._compare.tables import compare_tables, profile
from kullback._compare.tables.columns import Bins, Cut, quantile_bins
from kullback._compare.tables.engines import duckdb as duckdb_engine
from kullback._compare.tables.engines import spark as spark_engine
from kullback._compare.tables.sources import find
from test_cli import ENVIRONMENT

HOSTILE = '"; DROP TABLE raw; -- `x`.y\n'
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
PAIRS = [("float", HOSTILE), ("boolean", "zoned"), ("empty", "decimal")]


def table(seed, n):
    rng = np.random.default_rng(seed)

    def pick(values, size=n):
        return [values[i] for i in rng.integers(0, len(values), size)]

    special = [None, math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, -5e-324, 1.7976931348623157e308, 0.1, 0.1]
    texts = [None, "", " ", "é", "e\u0301", "\U0001f600", "o'b", 'q"q', "a\\b", "x\0y", "ſ", "s", "NULL", "nan", "%", "\u202e"]
    texts += ["a" * 5000, "z"]
    start = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    old = dt.datetime(1900, 1, 1)
    moments = [None, start, start + dt.timedelta(microseconds=1)]
    moments += [old + dt.timedelta(seconds=int(x), microseconds=7) for x in rng.integers(0, 6e9, 90)]
    return pa.table(
        {
            "float": pa.array(pick(special + list(rng.normal(size=60).round(2))), pa.float64()),
            "single": pa.array(pick([None, 0.1, float("nan"), *rng.normal(size=40)]), pa.float32()),
            "integer": pa.array(pick([None, -(2**63), 2**63 - 1, 0, 1, 2, 2**53 + 1]), pa.int64()),
            "small": pa.array(pick([None, -3, -2, 0, 5]), pa.int8()),
            "unsigned": pa.array(pick([None, 0, 2**63, 2**64 - 1, 2**64 - 2, 7]), pa.uint64()),
            "decimal": pa.array(pick([None, *(Decimal(int(x)).scaleb(-3) for x in rng.integers(-4000, 4000, 50))]), pa.decimal128(20, 3)),
            "huge": pa.array(pick([None, Decimal(10**37), Decimal(10**37 + 1), Decimal(-(10**37)), Decimal(5)]), pa.decimal128(38, 0)),
            "boolean": pa.array(pick([None, True, False, False])),
            HOSTILE: pa.array(pick(texts)),
            "date": pa.array(pick([None, *(dt.date(1960, 1, 1) + dt.timedelta(days=int(x)) for x in rng.integers(0, 9000, 40))])),
            "naive": pa.array(pick(moments), pa.timestamp("us")),
            "zoned": pa.array(pick(moments), pa.timestamp("us", tz="America/New_York")),
            "empty": pa.array([None] * n, pa.float64()),
            "list": pa.array([[1]] * n),
        }
    )


def value(x):
    """What is compared: a number as a fraction, a time as whole microseconds; None, NaN and the infinities as they are."""
    if isinstance(x, dt.datetime):
        x = x.replace(tzinfo=dt.timezone.utc) if x.tzinfo is None else x
        return Fraction((x - EPOCH) // dt.timedelta(microseconds=1))
    if isinstance(x, dt.date):
        return Fraction((x - EPOCH.date()).days * 86_400_000_000)
    if x is None or (isinstance(x, float) and not math.isfinite(x)):
        return x
    return Fraction(x)


def index(bins, x):
    """The bin of a value, by its definition."""
    if bins.kind == "none":
        return 0 if x is not None else 1
    if x is None:
        return len(bins) - 1
    if bins.kind == "boolean":
        return int(x)
    if bins.kind == "text":
        return bins.levels.index(x) if x in bins.levels else len(bins.levels)
    x, first = value(x), len(bins.cuts) + 1
    if isinstance(x, float):
        return first + (2 if math.isnan(x) else int(x > 0))
    return sum(x >= Fraction(cut.value) if cut.below else x > Fraction(cut.value) for cut in bins.cuts)


def edges_of(values, bins):
    ordered = sorted(x for x in map(value, values) if isinstance(x, Fraction))
    n = len(ordered)
    return [ordered[r - 1] for r in sorted({-(-k * n // bins) for k in range(1, bins)} - {n, 0})]


def quiet(name):
    pass


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data [1]{a},b")  # characters that patterns are made of
    paths = [folder / f"{name}*.parquet" for name in "pq"]
    for path, seed, n in zip(paths, (1, 2), (700, 500)):
        pq.write_table(table(seed, n), path)
    return paths


def opened(engine, source, side="P"):
    found = find(source, side)
    if engine == "spark":
        return spark_engine.open_table(found, side, master=None, delimiter=None)
    return duckdb_engine.open_table(found, side, memory="500MB", delimiter=None)


@pytest.fixture(scope="module", params=["duckdb", "spark"])
def both(request, files, spark):
    tables = [opened(request.param, file, side) for file, side in zip(files, "PQ")]
    yield tables
    for each in tables:
        each.close()


NAMES = [name for name in table(0, 1).column_names if name != "list"]


@pytest.fixture(scope="module")
def bins(both):
    return both[0].edges(NAMES, bins=7, levels=6, step=quiet)


def test_edges_are_order_statistics(both, bins, files):
    assert both[0].types["list"].kind == ""
    given = pq.ParquetFile(files[0]).read()
    for name in NAMES:
        values = given.column(name).to_pylist()
        if bins[name].cuts:
            found = edges_of(values, 7)
            assert [(Fraction(cut.value), cut.below) for cut in bins[name].cuts] == [
                (Fraction(cut.value), cut.below) for cut in quantile_bins("number", found).cuts
            ], name
    assert sum(bool(of.cuts) for of in bins.values()) == 10
    by_count = Counter(x for x in given.column(HOSTILE).to_pylist() if x is not None)
    ranked = sorted(by_count.items(), key=lambda kv: (-kv[1], kv[0]))
    assert bins[HOSTILE].levels == tuple(level for level, n in ranked[:6] if n > ranked[6][1])
    assert bins[HOSTILE].pooled == len(by_count) - len(bins[HOSTILE].levels)
    assert bins["empty"].kind == "none"


@pytest.mark.parametrize("side", [0, 1], ids="PQ")
def test_counts_are_those_of_python(both, bins, files, side):
    found = both[side].counts(bins, PAIRS, step=quiet)
    given = pq.ParquetFile(files[side]).read()
    assert found.rows == given.num_rows
    where = {name: [index(bins[name], x) for x in given.column(name).to_pylist()] for name in NAMES}
    for name in NAMES:
        by_bin = Counter(where[name])
        assert found.columns[name] == [by_bin[i] for i in range(len(bins[name]))], name
    for a, b in PAIRS:
        assert found.pairs[a, b] == Counter(zip(where[a], where[b]))


def test_edges_of_another_type_compare_as_real_numbers(both, files):
    """Cuts of a float reference on integer and decimal columns, of decimals on floats: never by rounding either."""
    of = Bins("number", (Cut(-2.5), Cut(0.1, True), Cut(0.1), Cut(1e300)))
    tenth = Decimal("0.1")  # between two floats
    decimal = Bins("number", (Cut(Decimal("-1.0005")), Cut(tenth, True), Cut(tenth), Cut(Decimal(10**37)), Cut(10**39)))
    given = pq.ParquetFile(files[0]).read()
    for name in ("float", "single", "integer", "small", "unsigned", "decimal", "huge"):
        for bins in (of, decimal):
            by_bin = Counter(index(bins, x) for x in given.column(name).to_pylist())
            assert both[0].counts({name: bins}, [], step=quiet).columns[name] == [by_bin[i] for i in range(len(bins))], name


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_columns_too_long_to_sort(engine, files, spark, monkeypatch):
    """The way of a hundred million rows, on few: a sample of about 50 rows, and brackets."""
    monkeypatch.setattr({"duckdb": duckdb_engine, "spark": spark_engine}[engine], "SAMPLE", 50)
    each = opened(engine, files[0])
    given = pq.ParquetFile(files[0]).read()
    for name, found in each.edges(["float", "decimal", "naive"], bins=4, levels=6, step=quiet).items():
        expected = quantile_bins("number", edges_of(given.column(name).to_pylist(), 4)).cuts
        assert [(Fraction(cut.value), cut.below) for cut in found.cuts] == [(Fraction(cut.value), cut.below) for cut in expected], name
    each.close()


def test_figures_are_identical_in_both(files, spark):
    options = {"pairs": PAIRS[:1], "columns": ["float", "decimal", HOSTILE, "zoned", "boolean"]}
    first, second = (compare_tables(*files, engine=engine, **options) for engine in ("duckdb", "spark"))
    for column in (*first.columns, *first.pairs):
        other = second[column.name]
        assert (column.p, column.q, column.figures, column.test, column.labels) == (
            other.p,
            other.q,
            other.figures,
            other.test,
            other.labels,
        )


TEXT = '''id,code,amount,ok,day,at,zoned,note,none,mixed,bad day
1,007,1.5,true,2024-01-31,2024-01-31 10:00:00,2024-01-31T10:00:00+02:00,a,,1,2024-02-30
-2,010,NA,FALSE,1999-12-31,2024-01-31T10:00,2024-01-31 10:00:00Z,"",,x,2024-01-01
3,100,-inf,false,,1969-01-01 00:00:00.000001,1969-01-01 00:00:00-11:00,,,2.5,2024-01-01
,,1e-3,,2024-02-29,,,"line
break, and ""quotes""",,3,2024-01-01
'''
JSON = """{"id": 1, "x": 1.5, "day": "2024-01-01", "s": "a", "b": true, "n": null}
{"id": 2, "x": null, "day": "2024-01-02", "s": "", "b": false, "n": null}
"""


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_text_files_have_the_same_types_in_both(engine, tmp_path, spark):
    (tmp_path / "t.csv").write_text(TEXT * 1, encoding="utf-8")
    each = opened(engine, tmp_path / "t.csv")
    kinds = {name: of.kind for name, of in each.types.items()}
    assert list(kinds.values()) == ["number", "text", "number", "boolean", "time", "time", "time", "text", "none", "text", "text"]
    bins = each.edges(list(kinds), bins=4, levels=5, step=quiet)
    found = each.counts(bins, [], step=quiet).columns
    assert (bins["id"].cuts, found["id"][-1]) == ((Cut(-2), Cut(1)), 1)
    assert found["amount"][-4:] == [1, 0, 0, 1]  # -inf and NA
    assert found["ok"] == [2, 1, 1]
    assert bins["at"].cuts[0].value == -31_536_000_000_000 + 1
    assert bins["zoned"].cuts[1].value == 1_706_688_000_000_000
    assert found["note"] == [3, 1]  # the empty text is one, the empty field is missing; each occurs once
    assert found["none"] == [0, 4]
    each.close()
    (tmp_path / "t.jsonl").write_text(JSON)
    each = opened(engine, tmp_path / "t.jsonl")
    kinds = {name: of.kind for name, of in each.types.items() if name != "n"}  # Spark calls a column of nulls text, DuckDB JSON
    assert kinds == {"id": "number", "x": "number", "day": "time", "s": "text", "b": "boolean"}
    each.close()


def test_spark_takes_its_own_tables_and_others(spark):
    arrow = pa.table({"x": [1, 2, 3, 4], "s": ["a", "a", "b", "b"]})
    found = compare_tables(spark.createDataFrame(arrow), arrow, engine="spark")
    assert found["x"].figures.kl_pq == found["s"].figures.kl_pq == 0
    assert profile(spark.createDataFrame(arrow)).rows == 4
    assert compare_tables(arrow, spark.createDataFrame(arrow))["s"].p == (2, 2)


def test_spark_says_what_is_wrong(tmp_path, spark):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is not it PAR1")
    with pytest.raises(ValueError, match=r"P: /.*broken\.parquet is cut short or damaged: copy or write it again") as error:
        opened("spark", tmp_path / "broken.parquet")
    assert "\n" not in str(error.value)
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"ragged\.csv"):
        opened("spark", tmp_path / "ragged.csv")
    with pytest.raises(ValueError, match="master is Spark's"):
        compare_tables("a.csv", "b.csv", master="local[1]")


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "spark:/host"])
def test_spark_has_no_such_master(master):
    with pytest.raises(ValueError, match=rf"Spark has no master '{re.escape(master)}': it is local, "):
        spark_engine.open_table(find(pa.table({"x": [1]}), "P"), "P", master=master, delimiter=None)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_names_are_the_same_in_both(engine, tmp_path, spark):
    """A column without a name, and two whose names differ in case only."""
    (tmp_path / "t.csv").write_text(",a,A\n1,x,5\n2,x,6\n3,y,6\n")
    arrow = pa.table([[1, 2, 3], ["x", "x", "y"], [5, 6, 6]], names=["", "a", "A"])
    sources = [tmp_path / "t.csv", arrow] + ([f"file://{tmp_path}/t.csv", spark.createDataFrame(arrow)] if engine == "spark" else [])
    for source in sources:
        each = opened(engine, source)
        bins = each.edges(list(each.types), bins=3, levels=5, step=quiet)
        found = each.counts(bins, [("a", "A")], step=quiet)
        assert {name: list(filter(None, counts)) for name, counts in found.columns.items()} == {
            "Unnamed: 0": [1, 1, 1], "a": [2, 1], "A": [1, 2],
        }  # fmt: skip
        assert sorted(found.pairs["a", "A"].values()) == [1, 1, 1]
        each.close()


def test_parts_that_spark_would_fill_up(tmp_path, spark):
    for name, table in (("a", pa.table({"x": [1], "y": [2]})), ("b", pa.table({"x": [1]}))):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet has the columns x, and .*a\.parquet x, y: they must be the same"):
        opened("spark", tmp_path)
    for other in (pa.table({"y": [3.5], "x": [1]}), pa.table({"y": pa.array([3], pa.int32()), "x": [1]})):
        pq.write_table(other, tmp_path / "b.parquet")
        for engine, types in (("spark", f"{other['y'].type} in .* and int64"), ("duckdb", "(DOUBLE|INTEGER) in .* and BIGINT")):
            with pytest.raises(ValueError, match=rf"^P: column 'y' is {types} in .*a\.parquet: write the files with the same types$"):
                compare_tables(tmp_path, tmp_path, engine=engine)
    pq.write_table(pa.table({"y": [3], "x": [1]}), tmp_path / "b.parquet")
    assert compare_tables(tmp_path, tmp_path, engine="spark")["y"].p == (1, 1)
    # What differs only in how Arrow held it is the same.
    for one, two in ((["a"], pa.array(["a"]).dictionary_encode()), (["a"], pa.array(["a"], pa.large_string()))):
        pq.write_table(pa.table({"x": one}), tmp_path / "a.parquet")
        pq.write_table(pa.table({"x": two}), tmp_path / "b.parquet")
        for engine in ("duckdb", "spark"):
            assert compare_tables(tmp_path, tmp_path, engine=engine)["x"].p == (2,)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_names_of_folders_are_no_columns(ending, tmp_path, spark):
    for year in (2023, 2024):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        (folder / "t.csv").write_text("x\n1\n2\n")
        (folder / "t.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
        pq.write_table(pa.table({"x": [1, 2]}), folder / "t.parquet")
        for file in folder.iterdir():
            if file.suffix != f".{ending}":
                file.unlink()
    for engine in ("duckdb", "spark"):
        found = compare_tables(tmp_path, tmp_path, engine=engine)
        assert [(column.name, column.p) for column in found.columns] == [("x", (2, 2))]


def test_names_that_spark_cannot_read(tmp_path, spark):
    """By its own reader of Parquet, which would have to be told for the whole session."""
    pq.write_table(pa.table([[1], [2]], names=["a", "A"]), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"P: .*t\.parquet has two columns named 'a' \(Spark reads no names that differ in case only\)"):
        opened("spark", tmp_path / "t.parquet")


@pytest.mark.parametrize("library", ["pandas", "polars", "polars lazy", "arrow reader"])
def test_objects(library):
    arrow = pa.table({"x": [1.0, None, 3.0, 4.0], "s": pa.array(["a", "b", None, "a"]).dictionary_encode(), "b": [True, False, None, True]})
    given = {
        "pandas": lambda: arrow.to_pandas().set_index([[7, 8, 9, 10]]),
        "polars": lambda: __import__("polars").from_arrow(arrow),
        "polars lazy": lambda: __import__("polars").from_arrow(arrow).lazy(),
        "arrow reader": lambda: pa.RecordBatchReader.from_batches(arrow.schema, arrow.to_batches()),
    }[library]()
    found = compare_tables(given, arrow)
    assert [column.name for column in found.columns] == ["b", "s", "x"]
    for column in found.columns:
        assert column.p == column.q
        assert column.p[-1] == 1  # missing


VALUES = {
    "double": pa.array([0.5, 1.5, 1.5, 2.5] * 3),
    "integer": pa.array([1, 2, 2, 3] * 3),
    "time": pa.array([dt.datetime(2024, 1, day) for day in (1, 2, 2, 3)] * 3, pa.timestamp("us")),
    "boolean": pa.array([True, False, True, True] * 3),
}


@pytest.mark.parametrize("empty", ["P", "Q"])
@pytest.mark.parametrize("library", ["parquet", "pandas", "polars"])
def test_a_column_without_values_on_one_side(library, empty, tmp_path, spark):
    """Of a type nevertheless: every aggregate is over NULLs alone. By hand: all of that side are missing, none of the other."""
    full = pa.table(VALUES)
    void = pa.table({name: pa.nulls(5, column.type) for name, column in VALUES.items()})

    def given(arrow, name):
        if library == "parquet":
            pq.write_table(arrow, tmp_path / name)
            return tmp_path / name
        return (
            arrow.to_pandas(types_mapper=__import__("pandas").ArrowDtype) if library == "pandas" else __import__("polars").from_arrow(arrow)
        )

    sides = [given(void if side == empty else full, f"{side}.parquet") for side in "PQ"]
    pairs = [("double", "time"), ("integer", "boolean")]
    first, second = (compare_tables(*sides, pairs=pairs, engine=engine) for engine in ("duckdb", "spark"))
    for name in VALUES:
        column = first[name]
        counts = {"P": column.p, "Q": column.q}
        assert column.labels[-1] == "missing"
        assert counts.pop(empty) == (0,) * (len(column.labels) - 1) + (5,)
        ((*present, missing),) = counts.values()
        assert (sum(present), missing) == (12, 0)
    assert first["boolean"].p == ((3, 9, 0) if empty == "Q" else (0, 5))
    for column in (*first.columns, *first.pairs):
        other = second[column.name]
        assert (column.labels, column.p, column.q, column.figures, column.test) == (
            other.labels, other.p, other.q, other.figures, other.test,
        )  # fmt: skip


@pytest.mark.compiler
@pytest.mark.parametrize("moment", ["starting", "working"])
def test_an_interrupt_of_spark(moment, tmp_path):
    """By a terminal, which tells Java too: no traceback of either, exit code 130, and nothing left behind."""
    pq.write_table(
        pa.table({"x": np.arange(2_000_000) % 9973, "y": np.random.default_rng(1).normal(size=2_000_000)}), tmp_path / "part.parquet"
    )
    (tmp_path / "p").mkdir()
    for i in range(100):  # one file, and work for minutes
        (tmp_path / "p" / f"{i}.parquet").symlink_to(tmp_path / "part.parquet")
    code = (
        "import threading, os, signal, time\n"
        "from kullback._compare.tables.engines import spark\n"
        "def press():\n"
        "    time.sleep(1.0)\n"
        "    os.killpg(0, signal.SIGINT)\n"
        f"name = {'started' if moment == 'starting' else 'SparkTable'!r}\n"
        "real = getattr(spark, name)\n"
        "def began(*given):\n"
        "    threading.Thread(target=press, daemon=True).start()\n"
        "    return real(*given)\n"
        "setattr(spark, name, began)\n"
        "from kullback_command import main\n"
        "raise SystemExit(main(['compare', 'p', 'p', '--engine', 'spark', '--master', 'local[2]', '--report', 'out.html']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err
    assert not re.search(r"^\s+at \S+\(", err, re.MULTILINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "part.parquet"]


def test_identifiers_are_the_same_in_both_engines(spark):
    n = 400
    table = pa.table({
        "uuid": [f"{i * 2654435761 % 2**32:08x}-{i:04x}" for i in range(n)],
        "mail": [None if i % 9 == 0 else f"person-{i if i % 20 else 0}@example.org" for i in range(n)],
        "city": ["Oslo", "Bergen"] * (n // 2),
        "number": np.random.default_rng(5).permutation(np.arange(4 * n))[:n],
        "decimal": pa.array([Decimal(i) for i in range(n)], pa.decimal128(20, 0)),
        "draws": np.random.default_rng(5).integers(4 * n, size=n),
        "float": np.arange(float(n)),
    })  # fmt: skip
    ours, theirs = (profile(table, pairs=["city:uuid"], engine=engine) for engine in ("duckdb", "spark"))
    assert (ours.bins, ours.counts, ours.pairs) == (theirs.bins, theirs.counts, theirs.pairs)
    assert {name for name, bins in ours.bins.items() if bins.kind == "identifier"} == {"uuid", "mail", "number", "decimal"}

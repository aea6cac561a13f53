"""CSV and JSON lines, read by DuckDB and by Spark: the same rows and types, or the same sentence. The oracle is Python's csv and json."""

import csv
import gzip
import io
import json
import threading
from collections import Counter

import pytest

from kullback._compare.tables import compare_tables

ENGINES = ("duckdb", "spark")


def counted(path, engine):
    """Of each column its kind, and how often each text occurs; missing is None."""
    found = compare_tables(path, path, engine=engine, levels=1000)
    assert {column.p == column.q for column in found.columns} == {True}
    return found.p.rows, {column.name: (column.kind, dict(zip(column.labels, column.p))) for column in found.columns}


def refused(path, engine):
    with pytest.raises(ValueError, match=r".") as error:
        compare_tables(path, path, engine=engine)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        'x\na\n\nb\nb\n""\n""\na\n',
        "x\na\na\n\n\n\n",
        "x\r\na\r\n\r\na\r\n\r\n",
        'x\r\n\r\na\r\na\r\n""\r\n""',
        "x,y\na,b\n\na,b\n\n",
        "x,y\r\n\r\na,b\r\n\r\na,b\r\n",
        'x,y\n"a\n\nb",1\n"a\n\nb",2\n',
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_blank_lines_are_no_rows(text, packed, tmp_path, spark):
    """As for Python's csv, and pandas'. A quoted empty text is a row, and so is a line break in quotes."""
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row][1:]
    for engine in ENGINES:
        n, columns = counted(path, engine)
        assert n == len(rows)
        assert columns["x"] == ("text", Counter(row[0] for row in rows)), engine


def test_only_blank_lines(tmp_path, spark):
    (tmp_path / "t.csv").write_text("x\n\n\n")
    for engine in ENGINES:
        assert refused(tmp_path / "t.csv", engine).endswith("t.csv has no rows")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_in_quotes_are_one(end, tmp_path, spark):
    text = 'x,y{}"a\r\nb",1{}"a\nb",2{}"a\rb",2{}"a\rb",2{}'.replace("{}", end)
    (tmp_path / "t.csv").write_bytes(text.encode())
    for engine in ENGINES:
        assert counted(tmp_path / "t.csv", engine)[1]["x"] == ("text", {"a\nb": 2, "a\rb": 2})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"x,y\n1,2\n\n3\n", "line 4 has 1 field, and the header 2"),
        (b'x,y\n"1\n",2\n3,4,5\n', "line 4 has 3 fields, and the header 2"),
        (b"x,y\n1,2\n  \n", "line 3 has 1 field, and the header 2"),
        (b'x,y\n1,2\n3,"4\n5,6\n', "line 3 opens a quote that is never closed"),
        (b'x,y\n"a"b,1\n"a"b,2\n', 'line 2 goes on after a closing quote: a quote inside quotes is doubled, ""'),
        (b'x,y\n"a\\"",1\n"a\\"",2\n', 'line 2 goes on after a closing quote: a quote inside quotes is doubled, ""'),
        (b"x,y\na,1\r\na,2\nb,2\n", r"line 2 ends in '\r\n', and those before in '\n': write all alike"),
        (b"a,b\n1,2,\n", "line 2 has 3 fields, and the header 2"),
        (b"a,b\n1,2\n3,4,,\n", "line 3 has 4 fields, and the header 2"),
        (b'a,b\n"x" ,2\n', 'line 2 goes on after a closing quote: a quote inside quotes is doubled, ""'),
        (b'x,y\n1, "a"\n2, "a"\n', "line 2 has a space between a delimiter and a quote: take it out"),
        (b"x,y\na,1\n\r\na,2\n", r"line 3 ends in '\r\n', and those before in '\n': write all alike"),
        (b"\nx,y\na,1\n", " has no header line: its first line is blank"),
        (b'x, "y"\n1,2\n', "line 1 has a space between a delimiter and a quote: take it out"),
        (b"x,y\n" + b"a,1\n" * 300_000 + b"\xe9,1\n", " is not UTF-8 text: convert it first, e.g. iconv -f latin1 -t utf-8"),
        (b'"x,y\n' + b"a,1\n" * 100_000, "a quote is opened in its first line and not closed"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_wrong_with_a_csv_file(text, sentence, tmp_path, spark):
    """By Spark's reader, the quotes, line ends and bytes would pass."""
    path = tmp_path / "t.csv"
    path.write_bytes(text)
    for engine in ENGINES:
        assert refused(path, engine) in (f"P: {path}: {sentence}", f"P: {path}{sentence}"), engine


def test_fields_of_three_megabytes(tmp_path, spark):
    (tmp_path / "t.csv").write_text("x,y\n" + f"{'z' * 3_000_000},1\n" * 2)
    for engine in ENGINES:
        assert counted(tmp_path / "t.csv", engine)[1]["y"] == ("number", {"(-∞, 1]": 2})


def test_rows_too_long_for_duckdb(tmp_path):
    (tmp_path / "t.csv").write_text(f"x,y\n1,secret{'z' * (1 << 25)}\n")
    assert refused(tmp_path / "t.csv", "duckdb").endswith(
        "t.csv has a row of more than 32 MB: is a quote open? If not, Parquet has no such limit"
    )


def test_packed_files_that_are_cut(tmp_path, spark):
    for name, text in (("t.csv.gz", "x,y\n" + "1,2\n" * 9999), ("t.jsonl.gz", '{"x": 1}\n' * 9999)):
        (tmp_path / name).write_bytes(gzip.compress(text.encode())[:-20])
        for engine in ENGINES:
            assert refused(tmp_path / name, engine) == f"P: {tmp_path / name} is cut short or damaged: copy it again"


def test_the_limit_of_the_csv_module(tmp_path):
    """Of all threads: raised while a file is checked, and then what it was."""
    (tmp_path / "t.csv").write_text("x,y\n" + "1,2\n" * 50_000 + "1\n")
    before = csv.field_size_limit()
    threads = [threading.Thread(target=refused, args=(tmp_path / "t.csv", "duckdb")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("name", ["x\u2028y", "x\x0by", "x\x85"])
def test_names_with_line_ends_that_are_none(name, tmp_path, spark):
    (tmp_path / "t.csv").write_text(f"{name},b\n1,2\n", encoding="utf-8")
    for engine in ENGINES:
        assert list(counted(tmp_path / "t.csv", engine)[1]) == [name, "b"] or list(counted(tmp_path / "t.csv", engine)[1]) == ["b", name]


@pytest.mark.parametrize("other", ["", '{"x": null, "y": 2}\n'])
def test_objects_without_names(other, tmp_path, spark):
    """Structs like any other: not the text {}."""
    (tmp_path / "t.jsonl").write_text('{"x": {}, "y": 1}\n' * 2 + other)
    for engine in ENGINES:
        found = compare_tables(tmp_path / "t.jsonl", tmp_path / "t.jsonl", engine=engine)
        assert [column.name for column in found.columns] == ["y"]
        assert found.left_out == ((("x", "STRUCT cannot be compared"),) if engine == "duckdb" else ())  # Spark's reader has no such column


def test_json_lines_with_a_byte_order_mark(tmp_path, spark):
    (tmp_path / "t.jsonl").write_text('\ufeff{"x": 1}\n', encoding="utf-8")
    for engine in ENGINES:
        assert refused(tmp_path / "t.jsonl", engine) == (
            f"P: {tmp_path / 't.jsonl'} begins with a byte order mark, which JSON has not: write it as UTF-8 without one"
        )


def test_zones_that_there_are_not(tmp_path, spark):
    (tmp_path / "t.csv").write_text("at\n" + "2024-01-01T00:00:00+23:59\n" * 2)
    for engine in ENGINES:
        assert counted(tmp_path / "t.csv", engine)[1]["at"] == ("text", {"2024-01-01T00:00:00+23:59": 2})


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (['{"x": 1}', "", '{"x": "a"}'], ": line 3: column 'x' holds texts here and numbers before: make them one type"),
        (['{"x": 1}', '{"x": "1"}'], ": line 2: column 'x' holds texts here and numbers before: make them one type"),
        (['{"x": 1.5}', '{"x": true}'], ": line 2: column 'x' holds true or false here and numbers before: make them one type"),
        (['{"x": "true"}', '{"x": true}'], ": line 2: column 'x' holds true or false here and texts before: make them one type"),
        (['{"x": {"a": 1}, "y": 1}', '{"x": 2}'], ": line 2: column 'x' holds numbers here and objects before: make them one type"),
        (['{"x": [1], "y": 1}', '{"x": {"a": 1}}'], ": line 2: column 'x' holds objects here and lists before: make them one type"),
        (
            ['{"x": 1}', '{"X": 1}'],
            " has columns 'x' and 'X', which differ in case only and cannot be told apart in JSON lines: rename one",
        ),
        (['{"x": 1, "x": 2}'], ": line 1 has the name 'x' twice"),
        (['{"x": 1}', "3"], ': line 2 is no object: give each row as one, such as {"x": 1.5}'),
        (['[{"x": 1}, {"x": 2}]'], ': line 1 is no object: give each row as one, such as {"x": 1.5}'),
        (['{"x": 1}{"x": 2}'], ': line 1 is not JSON; each line is an object, such as {"x": 1.5}'),
        (['{"x": 1}', "{'x': 1}"], ': line 2 is not JSON; each line is an object, such as {"x": 1.5}'),
        (['{"x": "\\ud800"}'], ": line 1 holds text that is not Unicode (half a surrogate pair)"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_wrong_with_json_lines(lines, sentence, tmp_path, spark):
    """By themselves, DuckDB would compare JSON and Spark text, or read a part of what is there."""
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines) + "\n")
    for engine in ENGINES:
        assert refused(path, engine) == f"P: {path}{sentence}", engine


@pytest.mark.parametrize(
    "values",
    [
        ["1", "1.5", "1", "null"],
        ["1", "1.0", "2"],
        ["-1", "12345678901234567890", "12345678901234567889"],  # exact
        ["1", "99946744073709551615", "99946744073709551614"],  # floats: the last two are one
        ["-9223372036854775809", "-9223372036854775808", "1"],
        ["9007199254740993", "9007199254740992", "0.5"],
        ["123456789012345678901234567890", "1", "2"],
        ['"10:00"', '"10:00"', '"9:00"'],
        ['"10:00"', '"10:00"', '"10:00:00"'],
        ['"0000000A-0000-0000-0000-000000000005"'] * 2,
        ["null", '"a"', '""', '"a"'],
        ["null", "null"],
    ],
)
def test_values_of_json_lines(values, tmp_path, spark):
    """Names that some rows do not have are missing there. Whole numbers of 64 bits are exact, others floats; texts stay as they are."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"y": 1}\n' + "".join(f'{{"x": {value}, "y": 1}}\n' for value in values))
    given = [None, *map(json.loads, values)]
    present = [x for x in given if x is not None]
    if any(isinstance(x, float) for x in present) or any(isinstance(x, int) and not -(2**63) <= x < 2**64 for x in present):
        present = [float(x) for x in present]
    for engine in ENGINES:
        n, columns = counted(path, engine)
        kind, counts = columns["x"]
        assert n == len(given)
        assert counts.pop("missing") == given.count(None)
        if kind == "text":
            levels = {x: m for x, m in Counter(present).items() if m > 1}
            assert counts == levels | ({"other levels": len(present) - sum(levels.values())} if set(present) - set(levels) else {})
        else:  # of so few each has an interval
            assert list(counts.values()) == [m for _, m in sorted(Counter(present).items())], engine

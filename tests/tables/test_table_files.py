"""What people give to `compare` and `profile`, and what they are told when it cannot be read. DuckDB; Spark is in test_table_engines.py."""

import gzip
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kullback as kb
from kullback._compare.tables import compare_tables, is_table, profile
from kullback._compare.tables.profile import _checksum, read_profile
from kullback._read import ReadError
from kullback_command import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(n, shift=0):
    return pa.table({"x": [(i * 37) % 101 + shift for i in range(n)], "s": [["red", "green", "blue"][i % 3] for i in range(n)]})


def fails(p, q="good.csv", **options):
    """The sentence: one line, with a cause."""
    Path("good.csv").write_text("x,s\n1,red\n2,red\n")
    with pytest.raises(ValueError, match=r".") as error:
        compare_tables(p, q, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_of_every_kind_give_the_same(here):
    table = rows(300)
    text = "x,s\n" + "".join(f"{x},{s}\n" for x, s in zip(table["x"].to_pylist(), table["s"].to_pylist()))
    pq.write_table(table, "t.parquet")
    Path("t.csv").write_text("\ufeff" + text, encoding="utf-8")
    Path("t.tsv").write_text(text.replace(",", "\t"))
    Path("semicolons.csv").write_text(text.replace(",", ";"))
    Path("odd.csv").write_text(text.replace(",", "^"))
    with gzip.open("t.csv.gz", "wt") as file:
        file.write(text)
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    Path("folder/_temporary").mkdir(parents=True)
    Path("folder/day=1").mkdir()
    for name, part in (("folder/day=1/a[1].parquet", table[:100]), ("folder/b'.parquet", table[100:])):
        pq.write_table(part, name)
    Path("folder/_SUCCESS").touch()
    Path("folder/_temporary/c.parquet").write_text("half written")
    for source in ("t.csv", "t.tsv", "semicolons.csv", "t.csv.gz", "t.jsonl", "folder", Path("folder"), "folder/**/*.parquet", "t.parqu*t"):
        if source == "t.parqu*t":
            assert not is_table(source)  # its end says nothing
            continue
        assert is_table(source), source
        found = compare_tables("t.parquet", source)
        assert [column.name for column in found.columns] == ["s", "x"]
        assert all(column.p == column.q for column in found.columns), source
    assert compare_tables("t.parquet", "odd.csv", delimiter="^")["x"].q == found["x"].p


def test_what_is_a_table():
    assert is_table("a.csv")
    assert is_table("s3://bucket/day-*.parquet")
    assert is_table("ref.json")
    assert is_table(rows(3))
    assert is_table(rows(3).to_pandas())
    assert not is_table("a.npy")
    assert not is_table([1, 2])
    assert not is_table(pa.array([1]).to_numpy())


def test_wrong_paths(here):
    assert fails("absent.parquet") == "P: there is no file absent.parquet"
    assert fails("good.csv", "absent-*.csv") == "Q: no file matches absent-*.csv"
    Path("notes.txt").write_text("x")
    assert "cannot tell the format of notes.txt" in fails("notes.txt")
    Path("folder").mkdir()
    assert "the folder folder holds no table" in fails("folder")
    Path("folder/a.csv").write_text("x\n1\n")
    Path("folder/b.jsonl").write_text('{"x": 1}\n')
    assert "files of different formats (csv and jsonl)" in fails("folder")
    with pytest.raises(TypeError, match="P is a int"):
        compare_tables(1, "good.csv")


def test_empty_and_broken_files(here):
    Path("empty.csv").touch()
    assert fails("empty.csv") == "P: empty.csv is empty"
    Path("header.csv").write_text("x,s\n")
    assert fails("header.csv") == "P: header.csv has no rows"
    pq.write_table(rows(0), "none.parquet")
    assert fails("none.parquet") == "P: none.parquet has no rows"
    assert "has no rows" in fails(rows(0))
    pq.write_table(rows(1000), "cut.parquet")
    whole = Path("cut.parquet").read_bytes()
    Path("cut.parquet").write_bytes(whole[: len(whole) // 2])
    assert fails("cut.parquet") == "P: cut.parquet is cut short or damaged: copy or write it again"
    Path("footer.parquet").write_bytes(whole[:-200] + bytes(b ^ 0x5A for b in whole[-200:-8]) + whole[-8:])
    assert fails("footer.parquet") == "P: footer.parquet is cut short or damaged: copy or write it again"
    Path("length.parquet").write_bytes(whole[:-8] + b"\xff\xff\xff\x7f" + whole[-4:])
    assert fails("length.parquet") == "P: length.parquet is cut short or damaged: copy or write it again"
    Path("flipped.parquet").write_bytes(whole[:4] + bytes(b ^ 0x5A for b in whole[4:900]) + whole[900:])
    assert "flipped.parquet" in fails("flipped.parquet")
    Path("broken.jsonl").write_text('{"x": 1}\n{"x": \n')
    assert "broken.jsonl" in fails("broken.jsonl")
    Path("twice.jsonl").write_text('{"x": 1, "x": 2}\n')
    assert fails("twice.jsonl") == "P: twice.jsonl: line 1 has the name 'x' twice"
    Path("lists.jsonl").write_text("[1]\n[2]\n")
    assert fails("lists.jsonl") == 'P: lists.jsonl: line 1 is no object: give each row as one, such as {"x": 1.5}'
    Path("blank.csv").write_text("\n\n")
    assert "has no header line" in fails("blank.csv")


def test_csv_that_is_not_whole(here):
    Path("ragged.csv").write_text("x,s\n1,red\n2\n3,red\n")
    assert fails("ragged.csv") == "P: ragged.csv: line 3 has 1 field, and the header 2"
    Path("more.csv").write_text("x,s\n1,red\n2,red,3\n")
    assert fails("more.csv") == "P: more.csv: line 3 has 3 fields, and the header 2"
    Path("latin.csv").write_bytes("x,s\n1,r\xe9d\n".encode("latin1"))
    assert "not UTF-8" in fails("latin.csv")
    Path("quote.csv").write_text('x,s\n1,"red\n2,red\n')
    assert "quote.csv" in fails("quote.csv")
    Path("twice.csv").write_text("x,x\n1,2\n")
    assert "two columns named 'x'" in fails("twice.csv")
    Path("zip.csv.gz").write_bytes(b"not gzip")
    assert "zip.csv.gz" in fails("zip.csv.gz")
    Path("nul.csv").write_bytes(b"x,s\n1,\0\n")
    assert "NUL" in fails("nul.csv")
    Path("parts").mkdir()
    Path("parts/a.csv").write_text("x,s\n1,red\n")
    Path("parts/b.csv").write_text("s,x\nred,1\n")
    assert "parts/b.csv has the columns s, x" in fails("parts")


def test_parts_of_parquet_that_differ(here):
    """Read by the first file's types, as DuckDB does, 1.5 would be 2, and z would not be there."""
    Path("parts").mkdir()
    first = pa.table({"x": [1, 2], "y": ["a", "b"]})
    pq.write_table(first, "parts/a.parquet")
    for other, sentence in (
        (pa.table({"x": [1.5], "y": ["a"]}), "column 'x' is DOUBLE in parts/b.parquet and BIGINT in parts/a.parquet: write the files "),
        (pa.table({"x": [1]}), "parts/b.parquet has the columns x, and parts/a.parquet x, y: they must be the same"),
        (pa.table({"x": [1], "y": ["a"], "z": [1]}), "parts/b.parquet has the columns x, y, z, and parts/a.parquet x, y: they must be "),
    ):
        pq.write_table(other, "parts/b.parquet")
        assert fails("parts").startswith(f"P: {sentence}")
    # In another order, or with nothing in a column, they are the same.
    pq.write_table(pa.table({"y": pa.nulls(3), "x": [1, 2, 2]}), "parts/b.parquet")
    found = compare_tables("parts", first)
    assert found["x"].p == (2, 3)
    assert found["y"].p == (2, 3)  # two levels that occur once


def test_names_that_engines_would_change(here):
    """An index that pandas wrote, and names that differ in case only."""
    frame = rows(60).to_pandas()
    frame.to_csv("index.csv")
    found = compare_tables("index.csv", "index.csv", pairs=[("Unnamed: 0", "x")])
    assert sorted(column.name for column in found.columns) == ["Unnamed: 0", "s", "x"]
    Path("clash.csv").write_text(",Unnamed: 0,Unnamed: 2,,\n1,2,3,4,5\n")
    assert sorted(c.name for c in compare_tables("clash.csv", "clash.csv").columns) == [
        "Unnamed: 0", "Unnamed: 0.1", "Unnamed: 2", "Unnamed: 3", "Unnamed: 4",
    ]  # fmt: skip
    table = pa.Table.from_arrays([pa.array([1, 1, 2]), pa.array([[1]] * 3), pa.array([5, 6, 6]), pa.array([7, 7, 7])], ["a", "l", "A", ""])
    pq.write_table(table, "case.parquet")
    Path("case.csv").write_text("a,l,A,\n1,x,5,7\n1,x,6,7\n2,x,6,7\n")
    Path("parts").mkdir()
    for i in range(3):
        pq.write_table(table[i : i + 1], f"parts/{i}.parquet")
    for source in ("case.parquet", "case.csv", "parts", table, table.to_pandas()):
        found = compare_tables(source, source, columns=["a", "A", "Unnamed: 3"], pairs=["a:A"])
        assert (found["a"].p, found["A"].p, found["Unnamed: 3"].p) == ((2, 1), (1, 2), (3,)), source
        assert sum(n == 1 for n in found["a:A"].p) == 3
    pq.write_table(table.select([2, 1, 0, 3]), "parts/2.parquet")
    assert "parts/2.parquet has the columns A, l, a, " in fails("parts")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    assert fails(twice) == "P: pyarrow Table has two columns named 'a': rename one"
    assert fails(twice.to_pandas()) == "P: the DataFrame has two columns named 'a': rename one"
    pq.write_table(twice, "twice.parquet")
    assert fails("twice.parquet") == "P: twice.parquet has two columns named 'a': rename one"


def test_names_in_json_lines(here):
    Path("case.jsonl").write_text('{"a": 1}\n{"A": 2}\n')
    assert fails("case.jsonl").startswith("P: case.jsonl has columns 'a' and 'A', which differ in case only")
    Path("fine.jsonl").write_text('{"a": 1, "A_1": 3}\n{"a": 1, "A_1": 2}\n')
    assert compare_tables("fine.jsonl", "fine.jsonl")["A_1"].p == (1, 1)
    Path("empty.jsonl").write_text('{"": 1}\n{"": 2}\n')
    assert fails("empty.jsonl") == "P: empty.jsonl: line 1 has a name that is empty"
    # Of more than 200 names that look alike DuckDB would make one column.
    Path("wide.jsonl").write_text("".join(json.dumps({f"k{i}": i + j for i in range(300)}) + "\n" for j in range(3)))
    assert len(compare_tables("wide.jsonl", "wide.jsonl").columns) == 300


def test_columns_that_do_not_match(here):
    other = pa.table({"x": ["a", "b"], "s": ["red", "red"], "new": [1, 2]})
    same = pa.table({"x": [1, 2], "s": ["red", "red"]})
    assert fails(same, other).startswith("column 'x': it is BIGINT (number) in P and VARCHAR (text) in Q; ")
    assert fails(same, other, columns=["s", "new"]).startswith("column 'new': only Q has it; ")
    assert "no column 'nope' on either side; P has 'x', 's'" in fails(same, other, columns=["nope"])
    found = compare_tables(same, other, common=True)
    assert [column.name for column in found.columns] == ["s"]
    assert found.left_out == (("x", "it is BIGINT (number) in P and VARCHAR (text) in Q"), ("new", "only Q has it"))
    assert fails(same, pa.table({"y": [1]}), common=True) == "the two sides have no column that can be compared"
    assert "BIGINT[] cannot be compared" in fails(pa.table({"l": [[1]], "x": [1]}), pa.table({"l": [[1]], "x": [1]}), columns=["l"])
    # Numbers compare with numbers, and what has no value with anything.
    found = compare_tables(
        pa.table({"x": [1, 2, 2, 3], "e": pa.nulls(4)}), pa.table({"x": [1.0, 2.0, 2.5, None], "e": ["a", "b", None, None]})
    )
    assert found["x"].q == (1, 1, 1, 1)
    assert (found["e"].p, found["e"].q) == ((0, 4), (2, 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bins": 1}, "bins=1"),
        ({"levels": 0}, "levels=0"),
        ({"prior": -1}, "prior=-1"),
        ({"prior": math.nan}, "prior=nan"),
        ({"base": 1}, "base is 1"),
        ({"engine": "pandas"}, "engine='pandas'"),
        ({"pairs": ["x"]}, "'x' is not two columns"),
        ({"pairs": ["x:x"]}, "is not two columns"),
        ({"pairs": ["x:nope"]}, "'nope'"),
        ({"memory": "lots"}, "lots"),
        ({"delimiter": ";;"}, "the delimiter ';;' is not one character"),
        ({"delimiter": ""}, "the delimiter '' is not one character"),
    ],
)
def test_options_that_cannot_be(here, options, words):
    assert words in fails("good.csv", **options)


@pytest.mark.parametrize("name", ['"; DROP TABLE raw; --', "a'b", "a`b.c", "x\ny", "é \U0001f600", "select", " x "])
def test_names_are_only_names(here, name):
    Path("t.csv").write_text('"' + name.replace('"', '""') + '",s\n1,red\n2,red\n3,blue\n')
    assert compare_tables("t.csv", "t.csv", pairs=[(name, "s")])[name].p == (1, 1, 1)
    table = pa.table({name: [1, 2, 3], "i": ["'; --", "'; --", "x"], "x y": [1, 1, 1]})
    pq.write_table(table, "t.parquet")
    found = compare_tables("t.parquet", "t.parquet", pairs=[("i", "x y")])
    assert found[name].p == (1, 1, 1)
    assert found["i"].labels == ("'; --", "other levels")


def test_a_profile_stands_for_its_table(here):
    before, after = rows(3000), rows(2000, shift=5)
    made = profile(before, pairs=["x:s"])
    made.write("ref.json")
    direct, by_profile = compare_tables(before, after, pairs=["x:s"]), compare_tables("ref.json", after, pairs=["x:s"])
    for column in (*direct.columns, *direct.pairs):
        other = by_profile[column.name]
        assert (column.labels, column.p, column.q, column.figures, column.test) == (
            other.labels,
            other.p,
            other.q,
            other.figures,
            other.test,
        )
    assert read_profile("ref.json", "P") == made
    assert compare_tables(made, after)["x"].p == direct["x"].p
    assert [column.name for column in compare_tables("ref.json", "ref.json", pairs=["s:x"]).pairs] == ["x:s"]
    assert "bins and levels are those of the profile" in fails("ref.json", bins=5)


def test_profiles_keep_no_rows(here):
    secret = [f"person-{i}@example.org" for i in range(500)]
    profile(pa.table({"mail": secret, "n": [1.25 * i for i in range(500)]})).write("ref.json")
    text = Path("ref.json").read_text()
    assert "person" not in text
    assert len(json.loads(text)["columns"][1]["cuts"]) == 9


def test_exact_numbers_survive_json(here):
    from decimal import Decimal

    table = pa.table(
        {
            "d": pa.array([Decimal("0.10"), Decimal("0.20"), Decimal("0.30")] * 4, pa.decimal128(38, 2)),
            "u": pa.array([2**64 - 1, 2**64 - 2, 2**53 + 1] * 4, pa.uint64()),
            "f": [0.1, 0.30000000000000004, 5e-324] * 4,
        }
    )
    made = profile(table)
    made.write("ref.json")
    assert read_profile("ref.json", "P").bins == made.bins
    assert all(column.p == column.q for column in compare_tables("ref.json", table).columns)


def test_profiles_merge(here):
    first, second = rows(3000), rows(2000, shift=5)
    profile(first, pairs=["x:s"]).write("a.json")
    profile(second, like="a.json").write("b.json")
    both = profile(["a.json", "b.json"])
    whole = profile(pa.concat_tables([first, second]), like="a.json")
    assert (both.rows, both.counts, both.pairs) == (whole.rows, whole.counts, whole.pairs)
    assert compare_tables("a.json", "b.json")["x"].figures == compare_tables(first, second)["x"].figures
    profile(second).write("c.json")
    with pytest.raises(ReadError, match=r"do not merge: column 'x' differs; profile both over the bins of one, with like=$"):
        profile(["a.json", "c.json"])
    with pytest.raises(ReadError, match="different bins for column 'x'"):
        compare_tables("a.json", "c.json")


def tampered(change):
    content = json.loads(Path("ref.json").read_text())
    change(content)
    content["checksum"] = _checksum({k: v for k, v in content.items() if k != "checksum"})
    Path("bad.json").write_text(json.dumps(content))
    return fails("bad.json")


def test_profiles_that_are_not(here):
    profile(rows(50), pairs=["x:s"]).write("ref.json")
    text = Path("ref.json").read_text()
    Path("cut.json").write_text(text[:200])
    assert "is not JSON, or cut off" in fails("cut.json")
    Path("other.json").write_text('{"cat": 3}')
    assert "is JSON, but no profile" in fails("other.json")
    Path("old.json").write_text(text.replace('"version": 1', '"version": 0'))
    assert "is a profile of version 0" in fails("old.json")
    Path("changed.json").write_text(text.replace('"rows": 50', '"rows": 51'))
    assert "was changed after it was made" in fails("changed.json")
    assert fails("absent.json") == "P: there is no file absent.json"
    # By someone who knows how to make the checksum: still nothing but numbers and names get through.
    assert "do not fit its bins and 51 rows" in tampered(lambda c: c.update(rows=51))
    assert "is no cut" in tampered(lambda c: c["columns"][0]["cuts"][0].__setitem__(0, "1); DROP TABLE raw"))
    assert "do not ascend" in tampered(lambda c: c["columns"][0]["cuts"].reverse())
    assert "the levels of 's'" in tampered(lambda c: c["columns"][1]["levels"].__setitem__(0, 7))
    assert "no valid profile" in tampered(lambda c: c["columns"][0].pop("counts"))
    assert "no valid profile" in tampered(lambda c: c["columns"][0]["counts"].__setitem__(0, -5))
    assert "the cells of x:s do not fit" in tampered(lambda c: c["pairs"][0]["cells"][0].__setitem__(0, 99))
    assert "the cells of x:s do not fit the counts" in tampered(lambda c: c["pairs"][0].update(cells=[[0, 0, 50]]))
    assert "the pair x:s is there twice" in tampered(lambda c: c["pairs"].append(c["pairs"][0]))
    assert "the pair x:x is there twice, or of one column" in tampered(lambda c: c["pairs"][0].update(columns=["x", "x"]))
    assert "least and pooled of 's'" in tampered(lambda c: c["columns"][1].update(pooled="q"))
    assert "least and pooled of 's'" in tampered(lambda c: c["columns"][1].update(least="x"))
    assert "its settings" in tampered(lambda c: c["settings"].update(bins=-5))
    huge = [{"name": "x", "kind": "none", "type": "NULL", "counts": [2**63, 0]}]
    assert "its rows are no number from 1" in tampered(lambda c: c.update(rows=2**63, columns=huge, pairs=[]))


@pytest.fixture
def run(capsys):
    def call(*arguments):
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_profile_command(here, run):
    data = ROOT / "examples" / "data"
    assert run("profile", data / "last_month.csv", "-o", "a.json", "--pairs", "device:country") == (
        0,
        "a.json: 2,000 rows, 7 columns\n",
        "",
    )
    assert run("profile", data / "this_month.csv", "--like", "a.json", "-o", "b.json")[0] == 0
    assert run("profile", "a.json", "b.json", "-o", "both.json") == (0, "both.json: 3,800 rows, 7 columns\n", "")
    assert list(read_profile("both.json", "P").pairs) == [("device", "country")]
    assert (
        run("profile", data / "last_month.csv", "-o", "c.json", "--columns", "age,amount", "--bins", "4")[1]
        == "c.json: 2,000 rows, 2 columns\n"
    )
    for arguments, words in (
        (("absent.csv", "-o", "d.json"), "there is no file absent.csv"),
        (("a.json", "absent.csv", "-o", "d.json"), "several sources must all be profiles"),
        (("a.json", "b.json", "-o", "d.json", "--bins", "3"), "--bins is for tables"),
        ((data / "last_month.csv", "-o", "d.csv"), "name it .json"),
        ((data / "last_month.csv", "-o", "no/such/folder/d.json"), "cannot write no/such/folder/d.json"),
        ((data / "last_month.csv", "-o", "d.json", "--engine", "pandas"), "invalid choice"),
    ):
        code, out, err = run("profile", *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
    assert not Path("d.json").exists()


def test_a_full_disk_leaves_nothing(here):
    made = profile(rows(50))
    with pytest.raises(kb.Unwritable, match="cannot write"):
        made.write("/dev/full/x.json")
    Path("ref.json").write_text("what was there")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(kb.Unwritable, match="No space left on device"):
            made.write("ref.json")
    assert Path("ref.json").read_text() == "what was there"
    assert [path.name for path in here.iterdir()] == ["ref.json"]


def test_profiles_of_columns_without_values(here, run):
    """Either side may be the one whose typed columns are all missing."""
    full = pa.table({"x": [0.5, 1.5, 2.5, 2.5], "n": [1, 2, 3, 3], "b": [True, False, True, True]})
    pq.write_table(full, "full.parquet")
    pq.write_table(pa.table({field.name: pa.nulls(3, field.type) for field in full.schema}), "void.parquet")
    for p, q in (("full", "void"), ("void", "full")):
        assert run("profile", f"{p}.parquet", "-o", "ref.json", "--pairs", "x:b")[0] == 0
        assert run("profile", f"{q}.parquet", "--like", "ref.json", "-o", "new.json")[0] == 0
        found = []
        for reference, other in ((f"{p}.parquet", f"{q}.parquet"), ("ref.json", f"{q}.parquet"), ("ref.json", "new.json")):
            code, out, err = run("compare", reference, other, "--pairs", "x:b", "--json")
            assert (code, err) == (0, "")
            found.append([(c["name"], [(b["label"], b["p_count"], b["q_count"]) for b in c["bins"]]) for c in json.loads(out)["columns"]])
        assert found[0] == found[1] == found[2]
        for _, bins in found[0]:
            missing = bins.pop()
            assert missing == ("missing", *((0, 3) if q == "void" else (3, 0)))
            assert [sum(counts) for _, *counts in bins].count(0) == 0

"""Profiles with pairs, and what they advise: only what the called command or function has."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import kullback as kb
from kullback._compare.tables import compare_tables, profile
from kullback_command import main

BEFORE = pa.table(
    {"x": [i % 7 for i in range(600)], "s": [["a", "b", "c"][i % 3] for i in range(600)], "b": [i % 2 == 0 for i in range(600)]}
)
AFTER = pa.table(
    {"x": [i % 5 for i in range(400)], "s": [["a", "b", "c"][i % 3] for i in range(400)], "b": [i % 4 == 0 for i in range(400)]}
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile(BEFORE, pairs=["x:s", "s:b"]).write("ref.json")
    profile(AFTER, like="ref.json").write("new.json")
    return tmp_path


def of(record, name):
    column = record[name]
    return column.labels, column.p, column.q, column.figures, column.test


def test_pairs_of_a_profile_are_compared(here):
    direct = compare_tables(BEFORE, AFTER, pairs=["x:s", "s:b"])
    for p, q in (("ref.json", AFTER), (profile(BEFORE, pairs=["x:s", "s:b"]), AFTER), ("ref.json", "new.json"), (BEFORE, "new.json")):
        found = compare_tables(p, q)
        assert {column.name for column in found.pairs} == {"x:s", "s:b"}
        for name in ("x:s", "s:b", "x"):
            assert of(found, name) == of(direct, name)
    assert compare_tables("ref.json", AFTER, pairs=[]).pairs == ()
    assert [column.name for column in compare_tables("ref.json", AFTER, pairs=["s:b"]).pairs] == ["s:b"]


def test_pairs_that_only_one_profile_has(here):
    profile(BEFORE, pairs=["x:s"]).write("one.json")
    for sides, having in ((("ref.json", "one.json"), "P"), (("one.json", "ref.json"), "Q")):
        found = compare_tables(*sides)
        assert [column.name for column in found.pairs] == ["x:s"]
        assert found.left_out == (("s:b", f"only the profile {having} has the pair"),)
    found = compare_tables("ref.json", AFTER.drop_columns(["b"]), common=True)
    assert [column.name for column in found.pairs] == ["x:s"]
    assert found.left_out == (("b", "only P has it"), ("s:b", "a column of the pair is left out"))


def test_pairs_merge(here):
    both = profile(["ref.json", "new.json"])
    whole = profile(pa.concat_tables([BEFORE, AFTER]), like="ref.json")
    assert (both.counts, both.pairs) == (whole.counts, whole.pairs)
    both.write("both.json")
    assert of(compare_tables("both.json", AFTER), "s:b") == of(compare_tables(whole, AFTER), "s:b")


def test_columns_that_a_profile_does_not_keep(here):
    """A list on both sides is left out, as without a profile, and not a column that only one has."""
    lists = pa.array([[1]] * 400)
    found = compare_tables("ref.json", AFTER.append_column("l", lists))
    assert found.left_out == (("l", "BIGINT[] cannot be compared"),)
    with pytest.raises(ValueError, match=r"^column 'l': BIGINT\[\] cannot be compared$"):
        profile(AFTER.append_column("l", lists), columns=["x", "l"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": ["nope"]}, "there is no column 'nope' in the table, which has 'x', 's', 'b'"),
        ({"like": "ref.json", "bins": 5}, "bins and levels are those of the profile: leave them out"),
        ({"like": "ref.json", "pairs": ["x:b"]}, "pairs are those of the profile: leave them out"),
    ],
)
def test_profiles_that_cannot_be_made(here, options, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        profile(AFTER, **options)
    assert str(error.value) == sentence


def test_advice_is_what_there_is(here, capsys):
    Path("other.csv").write_text("x,s,t\nred,a,1\nblue,b,2\n")
    profile(AFTER).write("own.json")
    for arguments, sentence in (
        (
            ["profile", "other.csv", "--like", "ref.json"],
            "column 'x': it is BIGINT (number) in the profile and VARCHAR (text) in the table; name the columns to take with --columns",
        ),
        (["profile", "other.csv", "--columns", "nope"], "there is no column 'nope' in the table, which has 'x', 's', 't'"),
        (
            ["profile", "ref.json", "own.json"],
            "pyarrow Table and pyarrow Table do not merge: column 'x' differs; profile both over the bins of one, with --like",
        ),
    ):
        assert main([*arguments, "-o", "out.json"]) == 2
        assert capsys.readouterr().err == f"kullback profile: {sentence}\n"
    with pytest.raises(ValueError, match=r"in the table; name the columns to take$"):
        profile("other.csv", like="ref.json")
    assert main(["compare", "ref.json", "own.json"]) == 2
    assert capsys.readouterr().err.endswith(
        "have different bins for column 'x': make the second like the first, by kullback profile --like\n"
    )


def test_profiles_of_other_columns_do_not_merge(here):
    part = profile(AFTER, like="ref.json", columns=["x", "s"])
    for given, having in ((["ref.json", part], 1), ([part, "ref.json"], 2)):
        with pytest.raises(
            ValueError, match=rf"do not merge: only profile {having} of 2 has column 'b'; profile both with the same columns$"
        ):
            profile(given)
    with pytest.raises(ValueError, match=r"^column 'new': only the table has it; name the columns to take$"):
        profile(AFTER.append_column("new", pa.array([1] * 400)), like="ref.json")
    with pytest.raises(ValueError, match=r"^there are no profiles to merge: the list is empty$"):
        profile([])


def test_pairs_turned_round(here):
    for p, q in (("ref.json", AFTER), (BEFORE, "new.json")):
        found = compare_tables(p, q, pairs=["b:s"])
        assert [column.name for column in found.pairs] == ["s:b"]
        assert of(found, "s:b") == of(compare_tables("ref.json", AFTER), "s:b")
    assert list(profile(AFTER, like="ref.json", pairs=["s:x", "b:s"]).pairs) == [("x", "s"), ("s", "b")]


def test_the_command_compares_the_pairs(here, capsys):
    import pyarrow.parquet as pq

    pq.write_table(AFTER, "new.parquet")
    assert main(["compare", "ref.json", "new.parquet", "--json"]) == 0
    assert sorted(pair["name"] for pair in json.loads(capsys.readouterr().out)["pairs"]) == ["s:b", "x:s"]
    assert len(kb.compare("ref.json", "new.parquet").pairs) == 2


@pytest.mark.parametrize("prior", ["1e308", "1e10", "inf", "nan", "-1", "x"])
def test_priors_that_drown_the_counts(prior, here, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["compare", "ref.json", "new.json", "--prior", prior])
    assert stop.value.code == 2
    assert f"argument --prior: '{prior}' is not a number from 0 to 1e9" in capsys.readouterr().err
    if prior != "x":
        with pytest.raises(ValueError, match=r"^prior=.*: it is a number from 0 to 1e\+09, added to the count of each bin$"):
            compare_tables("ref.json", "new.json", prior=float(prior))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("prior", [0, 5e-324, 1e9])
def test_priors_at_the_ends(prior, here):
    assert all(column.figures.kl_pq >= 0 for column in compare_tables("ref.json", "new.json", prior=prior).columns)

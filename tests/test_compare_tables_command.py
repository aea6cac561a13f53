"""`kullback compare` and `kullback profile` on tables, as a person types them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kullback as kb
from kullback._compare.tables.profile import read_profile
from kullback_command import main
from test_cli import ENVIRONMENT

SCHEMA = json.loads(resources.files("kullback._compare").joinpath("tables.schema.json").read_text())
DATA = Path(__file__).resolve().parents[1] / "examples" / "data"
PAIR = [str(DATA / "last_month.csv"), str(DATA / "this_month.csv")]


@pytest.fixture
def animals(tmp_path):
    for name, counts in (("p", {"cat": 60, "dog": 40}), ("q", {"cat": 40, "dog": 60})):
        (tmp_path / f"{name}.csv").write_text("animal\n" + "".join(f"{x}\n" * n for x, n in counts.items()))
    return [str(tmp_path / "p.csv"), str(tmp_path / "q.csv")]


def test_a_column_by_hand(animals, capsys):
    assert main(["compare", *animals, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = json.dumps(found)
    p, q = np.array([60.5, 40.5]) / 101, np.array([40.5, 60.5]) / 101  # half a count in each bin
    kl = float((p * np.log(p / q)).sum())
    numbers = [x for x in _numbers(found) if abs(x - kl) < 1e-9]
    assert numbers, text  # both directions are equal here


def _numbers(x):
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, list):
        for y in x:
            yield from _numbers(y)
    elif isinstance(x, float):
        yield x


def test_it_prints_writes_and_judges(tmp_path, capsys):
    report = tmp_path / "out.html"
    assert main(["compare", *PAIR, "--report", str(report), "--fail-over", "1e-9"]) == 1
    printed = capsys.readouterr()
    assert "kullback compare:" in printed.err
    assert main(["compare", *PAIR, "--fail-over", "1000"]) == 0
    assert main(["compare", *PAIR, "--markdown"]) == 0
    header = (DATA / "last_month.csv").read_text().splitlines()[0].split(",")
    markdown = capsys.readouterr().out
    assert all(name in printed.out and name in markdown for name in header)
    assert report.read_text().startswith("<!doctype html>") or report.read_text().lower().startswith("<!doctype html>")


def test_a_profile_stands_in_for_the_reference(tmp_path, capsys):
    profile = tmp_path / "ref.json"
    assert main(["profile", PAIR[0], "-o", str(profile)]) == 0
    capsys.readouterr()
    outputs = []
    for reference in (PAIR[0], str(profile)):
        assert main(["compare", reference, PAIR[1], "--markdown"]) == 0
        printed = capsys.readouterr().out
        outputs.append([line for line in printed.splitlines() if line.startswith("|")])
    assert main(["compare", str(profile), PAIR[1]]) == 0
    assert capsys.readouterr().out.startswith(f"P  profile {profile} (of {PAIR[0]}), 2,000 rows\nQ  {PAIR[1]}, 1,800 rows\n")
    assert kb.compare(read_profile(profile, "P"), PAIR[1]).p.name == f"profile of {PAIR[0]}"
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{p}", "nowhere.csv"], "nowhere.csv"),
        (["{p}", "{q}", "--form", "logits"], "--form is for model outputs"),
        (["{p}", "{q}", "--columns", "fish"], "fish"),
        (["{p}", PAIR[1]], "name the columns to compare with --columns, or pass --common for those that both have alike"),
        (["{p}", "{q}", "--master", "local"], "master is Spark's: pass --engine spark too"),
    ],
)
def test_mistakes(animals, capsys, arguments, sentence):
    given = [x.format(p=animals[0], q=animals[1]) for x in arguments]
    assert main(["compare", *given]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_the_function_says_the_same(animals):
    found = kb.compare(*animals)
    counts = Counter(Path(animals[0]).read_text().split()[1:])
    assert counts == {"cat": 60, "dog": 40}
    assert "animal" in found.to_text()
    assert "animal" in found.to_html()


def test_an_option_that_there_is_not(animals):
    with pytest.raises(TypeError, match=r"^kullback\.compare has no option 'colums' for tables: is it columns\?$"):
        kb.compare(*animals, colums=["animal"])
    with pytest.raises(TypeError, match=r"^kullback\.compare has no option 'zzz' for model outputs: there are form, tokens, "):
        kb.compare([[0.5, 0.5]], [[0.5, 0.5]], zzz=1)


def test_a_comma_in_a_name(tmp_path, capsys):
    (tmp_path / "t.csv").write_text('"a,b",c\n1,2\n1,3\n')
    assert main(["compare", str(tmp_path / "t.csv"), str(tmp_path / "t.csv"), "--columns", '"a,b",c', "--pairs", '"a,b:c"', "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [x["name"] for key in ("columns", "pairs") for x in found[key]] == ["a,b", "c", "a,b:c"]


def test_json_is_as_the_schema_says(animals, tmp_path, capsys):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    pq.write_table(pa.table({"x": [1.0, None, 2.0], "b": [True, False, None], "n": pa.nulls(3), "l": [[1]] * 3}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": [5.0, 6.0], "b": [True, True], "n": ["a", "b"], "z": [1, 2]}), tmp_path / "u.parquet")
    assert main(["profile", PAIR[0], "-o", str(tmp_path / "ref.json")]) == 0
    capsys.readouterr()
    for arguments in (
        animals,
        [*PAIR, "--pairs", "device:country", "--base", "2"],
        [str(tmp_path / "ref.json"), PAIR[1]],
        [str(tmp_path / "t.parquet"), str(tmp_path / "u.parquet"), "--common", "--prior", "0"],
    ):
        assert main(["compare", *arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        jsonschema.validate(found, SCHEMA)
    assert found["left_out"]
    for wrong in ({"columns": []}, {"p": {"name": "x", "rows": -1}}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**found, **wrong}, SCHEMA)


def test_drawn_p_values_can_be_drawn_again(tmp_path, capsys):
    """With what the output says and NumPy: the values of a boolean column dealt out again."""
    for name, values in (("p", [True] * 9 + [False] * 3), ("q", [True] * 4 + [False] * 8)):
        pq.write_table(pa.table({"b": values}), tmp_path / f"{name}.parquet")
    assert main(["compare", str(tmp_path / "p.parquet"), str(tmp_path / "q.parquet"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (told,) = [line for line in found["conventions"] if line.startswith("p-value")]
    most, seed = (int(x.replace(",", "")) for x in re.search(r"at most ([\d,]+), .* default_rng\((\d+)\), which is PCG64", told).groups())
    test = found["columns"][0]["test"]
    assert test["tables_drawn"] == most

    def g(false, n=12):
        table = np.array([[false, n - false], [11 - false, 13 - n + false]], float)
        expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
        return 2 * float(np.sum(table * np.log(np.where(table, table, 1) / expected)))

    drawn = np.random.default_rng(seed).hypergeometric(11, 13, 12, most)
    # Equal tables are to count as equal whatever the order of the sums.
    extreme = sum(g(x) >= g(3) - 1e-7 for x in drawn)
    assert test["p_value"] == (1 + extreme) / (1 + most)


def test_top_and_fail_over_mean_columns(capsys):
    assert main(["compare", *PAIR, "--top", "2", "--fail-over", "0.02", "--markdown"]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("\n| ") == 3  # the header and two columns
    assert "over 0.02 nats in 2 of 7 columns" in printed.err
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "of tables, that of any column or pair" in told
    assert "of tables, the N most different columns and pairs" in told


def test_an_interrupt_ends_it(tmp_path):
    """While DuckDB counts: no traceback, no verdict (exit code 1 is --fail-over's), nothing left behind."""
    pq.write_table(pa.table({"x": np.arange(2_000_000) % 9973}), tmp_path / "part.parquet")
    (tmp_path / "p").mkdir()
    (tmp_path / "spill").mkdir()
    # One file, and 400 million rows: no machine is through with them before the signal. DuckDB waits for its other threads, which may first
    # go through a part of what is left: more rows would be no better a test, and a longer one.
    for i in range(200):
        (tmp_path / "p" / f"{i}.parquet").symlink_to(tmp_path / "part.parquet")
    process = subprocess.Popen(
        [sys.executable, "-m", "kullback", "compare", "p", "p"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path / "spill")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which is ignored in what a shell starts in the background
    )  # fmt: skip
    try:
        limit = time.monotonic() + 60
        while not any((tmp_path / "spill").iterdir()) and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(3)  # it has seen the footers by then, on a busy machine too
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "")
    assert list((tmp_path / "spill").iterdir()) == []

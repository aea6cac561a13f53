"""`kullback compare` and `kullback profile` on tables, as a person types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kullback as kb
from kullback._cli import main
from test_cli import ENVIRONMENT

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
        outputs.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("|")])
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
    for i in range(1000):  # one file, and two thousand million rows: no machine is through with them before the signal
        (tmp_path / "p" / f"{i}.parquet").symlink_to(tmp_path / "part.parquet")
    process = subprocess.Popen(
        [sys.executable, "-m", "kullback", "compare", "p", "p"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path / "spill")},
    )  # fmt: skip
    try:
        limit = time.monotonic() + 60
        while not any((tmp_path / "spill").iterdir()) and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(5)  # it has seen a thousand footers by then, on a busy machine too
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "")
    assert list((tmp_path / "spill").iterdir()) == []

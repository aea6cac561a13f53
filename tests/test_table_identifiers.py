"""Columns that say who, and not what: UUIDs, sequence numbers. Regression: the first had KL 0 and p = 1, the second failed every gate.

That both engines agree is tested in test_table_engines.py."""

import json
import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator

import kullback
from kullback._compare.tables import compare_tables, profile
from kullback._compare.tables.columns import is_identifier, is_sequence
from kullback._compare.tables.engines import duckdb
from kullback._read import ReadError
from kullback_command import main

SCHEMA = json.loads((Path(kullback.__file__).parent / "_compare/tables.schema.json").read_text())
REASON = "not comparable: nearly every value of P occurs once only, as in identifiers and sequence numbers"
APART = {"uuid", "number", "sampled", "decimal", "mail"}
COMPARED = {"cents", "age", "score", "city", "when", "few"}


def table(seed, n=400):
    """Identifiers that never come again, and columns of one distribution."""
    rng = np.random.default_rng(seed)
    first = 1 + n * seed
    return pa.table({
        "uuid": [str(uuid.UUID(int=int(x) << 64)) for x in rng.integers(1 << 62, size=n)],
        "number": range(first, first + n),
        "sampled": rng.permutation(np.arange(first * 4, (first + n) * 4))[:n],  # of 4 n numbers
        "decimal": pa.array([Decimal(first + i) for i in range(n)], pa.decimal128(20, 0)),
        "mail": [None if i % 9 == 0 else f"person-{seed}-{i if i % 20 else 0}@example.org" for i in range(n)],
        "cents": rng.integers(4 * n, size=n),  # as many numbers to choose from as `sampled` has, but independent draws
        "age": rng.integers(18, 90, n),
        "score": rng.normal(size=n),
        "city": rng.choice(["Oslo", "Bergen", "Bodø"], n),
        "when": pa.array(np.arange(n) * 3_600_000_000 + seed, pa.timestamp("us")),
        "few": rng.integers(10**12, size=n),
    })  # fmt: skip


P, Q = table(1), table(2)


def test_identifiers_are_reported_and_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert profile(P).counts["mail"] == [355, 45]
    found = compare_tables(P, Q, pairs=["city:uuid", "city:age"])
    assert {column.name for column in found.columns} == COMPARED
    assert dict(found.left_out) == dict.fromkeys(APART, REASON) | {"city:uuid": "a column of the pair is not comparable"}
    assert [column.name for column in found.pairs] == ["city:age"]
    Draft202012Validator(SCHEMA).validate(found.to_dict())
    assert {"name": "uuid", "reason": REASON} in found.to_dict()["left_out"]
    assert "Left out: uuid (not comparable:" in found.to_text()
    assert "- left out: uuid (not comparable:" in found.to_markdown()
    assert f"<b>uuid</b>: {REASON}" in found.to_html()
    # The gate: nothing drifted in what is compared.
    import pyarrow.parquet as pq

    pq.write_table(P.select(["uuid", "number", "city"]), "p.parquet")
    pq.write_table(Q.select(["uuid", "number", "city"]), "q.parquet")
    assert main(["compare", "p.parquet", "q.parquet", "--fail-over", "0.05"]) == 0
    assert main(["profile", "p.parquet", "-o", "p.json"]) == 0
    assert "400 rows, 3 columns; not comparable, as identifiers and sequence numbers: uuid, number\n" in capsys.readouterr().out
    assert main(["compare", "p.json", "q.parquet", "--fail-over", "0.05"]) == 0
    assert "Left out: number (not comparable:" in capsys.readouterr().out


def test_where_values_are_sampled(monkeypatch):
    """Above a million rows, which are lowered to a thousand here."""
    monkeypatch.setattr(duckdb, "SAMPLE", 1000)
    numbers = np.arange(3000)
    found = profile(pa.table({"once": np.arange(4500), "half of them twice": np.concatenate([numbers, numbers[::2]])}))
    assert {name: bins.kind for name, bins in found.bins.items()} == {"once": "identifier", "half of them twice": "number"}


def test_profiles_keep_it():
    first = profile(P, pairs=["city:uuid"])
    second = profile(Q, like=first)
    assert second.counts["uuid"] == [400, 0]
    merged = profile([first, second])
    assert merged.counts["number"] == [800, 0]
    for p, q in ((first, second), (first, Q), (P, second), (merged, Q)):
        found = compare_tables(p, q)
        assert {name for name, reason in found.left_out if reason == REASON} == APART
        assert {column.name for column in found.columns} == COMPARED


def test_nothing_else_is_an_error():
    with pytest.raises(ReadError, match="no column that can be compared; column 'uuid' is not comparable"):
        compare_tables(P.select(["uuid"]), Q.select(["uuid"]))


def test_independent_draws_are_no_sequence():
    """By simulation, from as few values as one and from as many as 10¹², alike and not."""
    rng = np.random.default_rng(7)
    for n in (30, 100, 3000):
        for span in (1, 2, 50, 100, 1000, 10**5, 10**12):
            for skew in (1.0, 3.0):
                for _ in range(20):
                    x = (span * rng.random(n) ** skew).astype(np.int64)
                    assert not is_sequence(n, len(np.unique(x)), int(x.min()), int(x.max())), (n, span, skew)
    for n, step in ((110, 1), (1000, 1), (1000, 10), (10**6, 1000)):
        assert is_sequence(n, n, 0, n * step)
    assert is_sequence(1000, 970, 1, 1000)  # some lines twice
    assert not is_sequence(1000, 600, 1, 1000)
    assert not is_sequence(60, 60, 1, 60)  # of so few rows it is not clear
    assert [is_identifier(*each) for each in ((100, 100), (100, 91), (100, 90), (20, 20), (19, 19))] == [True, True, False, True, False]

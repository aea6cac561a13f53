"""`kullback.Comparison`: batches of every framework, merging, saving, and the accuracy of what is kept beyond memory."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kullback as kb
from dumps import softmax, truth
from frameworks import ALL
from kullback._compare import summary
from kullback._compare.summary import Moments, Spread, Worst


@pytest.fixture
def data(rng):
    p = 2 * rng.normal(size=(90, 40))
    return p.astype(np.float32), (p + 0.5 * rng.normal(size=p.shape)).astype(np.float32), rng.integers(0, 40, 90)


def same(found, expected, **tolerance):
    """Two records, as JSON, figure by figure."""
    left, right = (json.loads(x.to_json()) for x in (found, expected))
    for x in (left, right):
        for name in ("p", "q", "notes"):
            x.pop(name)

    def check(a, b, where):
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            for name in a:
                check(a[name], b[name], f"{where}.{name}")
        elif isinstance(a, list):
            assert len(a) == len(b), where
            for i, (x, y) in enumerate(zip(a, b)):
                check(x, y, f"{where}[{i}]")
        elif isinstance(a, float):
            assert a == pytest.approx(b, **tolerance), where
        else:
            assert a == b, where

    check(left, right, "record")


@pytest.mark.parametrize("framework", [f for f in ALL if "jit" not in repr(f).lower() and "compile" not in repr(f).lower()], ids=repr)
def test_every_framework(framework, data):
    p, q, tokens = data
    seen = kb.Comparison()
    for part in (slice(0, 50), slice(50, 90)):
        seen.update(framework.array(p[part]), framework.array(q[part]), form="logits", tokens=tokens[part])
    expected = truth(softmax(p), softmax(q))
    for statistic, values in zip((seen.result().kl_pq, seen.result().kl_qp, seen.result().js), expected):
        np.testing.assert_allclose(statistic.mean, values.mean(), rtol=5e-6)
    assert seen.result().tokens_known


def test_batches_are_as_good_as_the_whole(data):
    p, q, tokens = data
    whole = kb.compare(p, q, form="logits", tokens=tokens)
    parts = [slice(0, 20), slice(20, 21), slice(21, 90)]
    workers = []
    for part in parts:
        workers.append(kb.Comparison(start=part.start))
        workers[-1].update(p[part].reshape(-1, 1, 40), q[part].reshape(-1, 1, 40), form="logits", tokens=tokens[part].reshape(-1, 1))
    for order in itertools.permutations(workers):
        merged = kb.Comparison()
        for worker in order:
            # Shipped as text, as between machines.
            merged.merge(kb.Comparison.from_dict(json.loads(json.dumps(worker.to_dict()))))
        # So few are taken in float64: only sums differ, in their order.
        same(merged.result(), whole, rel=1e-10, abs=1e-12)


def test_masked_rows_may_hold_anything(data):
    p, q, tokens = data
    expected = kb.compare(p[:60], q[:60], form="logits", tokens=tokens[:60])
    p[60:], tokens[60:] = np.nan, -100  # as others mark what is to be ignored
    seen = kb.Comparison()
    seen.update(p, q, form="logits", tokens=tokens, mask=np.arange(90) < 60)
    found = seen.result()
    assert (found.rows, found.masked_rows) == (60, 30)
    assert found.kl_pq == expected.kl_pq


def test_a_token_that_is_none_leaves_nothing_behind(data):
    p, q, tokens = data
    seen = kb.Comparison()
    tokens[50] = -100
    with pytest.raises(ValueError, match="token -100 of row 50 is no category"):
        seen.update(p, q, form="logits", tokens=tokens, mask=np.arange(90) != 3)
    seen.update(p, q, form="logits", tokens=tokens, mask=np.arange(90) != 50)
    assert (seen.result().rows, seen.result().masked_rows) == (89, 1)
    assert max(row.row for row in seen.result().worst) < 90


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_is_wrong_is_said_of_the_form_that_was_given(dtype):
    """Of half precision too, whose sums are excused."""
    p = np.full((4, 4), 0.25, dtype)
    q = p.copy()
    p[0, 0] = 0.26 if dtype == np.float16 else 0.25
    q[2, 1] = -0.01
    with pytest.raises(ValueError, match=r"^q row 2 holds -0.01\d* at category 1: logits\? pass form='logits'$"):
        kb.Comparison().update(p, q)
    with pytest.raises(ValueError, match=r"^p row 1 sums to 1.(3|29)\d*, not 1: logits\? pass form='logits'$"):
        kb.Comparison().update(p * np.array([[1], [1.3], [1], [1]], dtype), p)
    with pytest.raises(ValueError, match=r"^p row 3 sums to 0, not 1: .*; take the row out of both sides$"):
        kb.Comparison().update(p * np.array([[1], [1], [1], [0]], dtype), p)
    off = dtype(1.02 if dtype == np.float16 else 1.0)  # is excused; the other side is not
    with pytest.raises(ValueError, match=r"^q row 1 sums to 1.(3|29)\d*, not 1"):
        kb.Comparison().update(p * off, p * np.array([[1], [1.3], [1], [1]], dtype))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("nan", "^row 3 holds NaN"), ("form", "^p row 1 "), ("categories", "has 10 categories"), ("tokens", "without tokens")],
)
def test_a_batch_that_is_refused_leaves_nothing_behind(data, wrong, words):
    """And the row that is named is the batch's, masked ones counted."""
    p, q, tokens = data
    expected = kb.compare(p[np.arange(90) != 40], q[np.arange(90) != 40], form="logits")
    seen = kb.Comparison()
    seen.update(p[:40], q[:40], form="logits", tokens=tokens[:40])
    x, y, given, mask = p[40:].copy(), q[40:], tokens[40:], np.arange(50) > 0
    if wrong == "nan":
        x[3, 4] = np.nan
    elif wrong == "categories":
        x, y, given = x[:, :10], y[:, :10], np.zeros_like(given)
    elif wrong == "tokens":
        given = None
    with pytest.raises(ValueError, match=words):
        seen.update(x, y, form="probs" if wrong == "form" else "logits", tokens=given, mask=mask)
    seen.update(p[40:], q[40:], form="logits", tokens=tokens[40:], mask=mask)
    found = seen.result()
    assert (found.rows, found.categories, found.masked_rows) == (89, p.shape[1], 1)
    assert [row.row for row in found.worst] == [row.row + (row.row >= 40) for row in expected.worst]


def test_nan_is_refused_or_counted(data):
    p, q, _ = data
    q[7, 3] = np.nan
    seen = kb.Comparison()
    with pytest.raises(ValueError, match="row 7 holds NaN"):
        seen.update(p, q, form="logits")
    seen = kb.Comparison()
    seen.update(p, q, form="logits", skip_nan=True)
    assert (seen.result().rows, seen.result().nan_rows) == (89, 1)


def test_refusals(data):
    p, q, tokens = data
    seen = kb.Comparison()
    with pytest.raises(ValueError, match="no rows were compared"):
        seen.result()
    seen.update(p, q, form="logits")
    for arguments, message in [
        ((p[:, :7], q[:, :7]), "this batch has 7 categories and those before it 40"),
        ((p, q[:3]), r"p has shape \(90, 40\) and q \(3, 40\)"),
        ((1.0, 2.0), r"p has shape \(\): it must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            seen.update(*arguments, form="logits")
    with pytest.raises(ValueError, match="this batch comes with tokens and those before it without"):
        seen.update(p, q, form="logits", tokens=tokens)
    for wrong in (tokens + 40, tokens - 40):
        with pytest.raises(ValueError, match="is no category: there are 40, counted from 0"):
            kb.Comparison().update(p, q, form="logits", tokens=wrong)
    for wrong, words in ((p + 1j, "is complex: probabilities are real numbers"), (p.astype(np.longdouble), "has dtype float128: use")):
        for name, sides in (("p", (wrong, q)), ("q", (p, wrong))):
            with pytest.raises(TypeError, match=f"^{name} {words}"):  # regression: the imaginary part was dropped
                kb.Comparison().update(*sides, form="logits")
    with pytest.raises(ValueError, match="tokens is float64 of shape"):
        kb.Comparison().update(p, q, form="logits", tokens=tokens * 1.0)
    with pytest.raises(ValueError, match=r"q row 0 .*pass form='logits'"):
        kb.Comparison().update(softmax(p).astype(float), q)
    with pytest.raises(TypeError, match="merge takes a Comparison, not a dict"):
        seen.merge(seen.to_dict())
    with pytest.raises(ValueError, match=r"its schema is not 'kullback\.comparison/1'"):
        kb.Comparison.from_dict({"schema": "kullback.comparison/0"})
    first = seen.to_dict()["worst"][0]
    damage = [("worst", None), ("bins", 3), ("moments", {}), ("spreads", []), ("top", 0), ("nan", "x"), ("masked", None), ("masked", 0.5)]
    damage += [("categories", "zz"), ("categories", 1.5), ("tokens", "x"), ("worst", [[1]]), ("worst", [1]), ("worst", [["x", *first[1:]]])]
    damage += [("next", 1.5), ("next", "1"), ("moments", []), ("moments", {**seen.to_dict()["moments"], "js": {"count": "x"}})]
    for name, value in damage:
        with pytest.raises(ValueError, match=r"^this saved Comparison is not as to_dict\(\) made it \("):
            kb.Comparison.from_dict({**seen.to_dict(), name: value})
    with pytest.raises(ValueError, match=r"^mask has shape \(2,\), for rows of shape \(90,\): it must be one number a row$"):
        seen.update(p, q, form="logits", mask=[1, 1])
    for start in (1.5, "1", None, True):
        with pytest.raises(ValueError, match=rf"^start is {start!r}: it must be a whole number, the first row's$"):
            kb.Comparison(start=start)
    for top in (0, 2.5, "x", True):
        with pytest.raises(ValueError, match=rf"^top is {top!r}: it must be a whole number of at least 1$"):
            kb.Comparison(top=top)
    with pytest.raises(TypeError, match=r"^progress is True: for model outputs it is a function"):
        kb.compare(p, q, form="logits", progress=True)
    with pytest.raises(ValueError, match=r"^tokens: 91 numbers of type int64, for 90 rows; it must hold a whole number a row$"):
        kb.compare(p, q, form="logits", tokens=np.append(tokens, 0))
    assert kb.compare(p, q[:-1], form="logits", tokens=tokens, allow_partial=True).rows == 89
    assert seen.result().rows == 90


numbers = st.lists(st.floats(-1e6, 1e6) | st.just(0.0) | st.just(math.inf) | st.floats(1e-300, 1e-12), min_size=1, max_size=60)


@settings(max_examples=80, deadline=None)
@given(numbers, st.integers(0, 60), st.floats(0, 1))
def test_the_sketch_keeps_its_promise(values, at, share):
    """Exact while all are kept; then within 0.1 % of the number at that rank, in whatever pieces the numbers came."""
    x = np.array(values)
    spread, rest = Spread(), Spread()
    spread.add(x[:at])
    rest.add(x[at:])
    spread.merge(rest)
    ordered = np.sort(x)
    rank = (len(x) - 1) * share
    below, above = ordered[math.floor(rank)], ordered[min(len(x) - 1, math.floor(rank) + 1)]
    (exact,) = spread.quantiles([share])
    assert below <= exact <= above
    spread.forget()
    (sketched,) = spread.quantiles([share])
    # 1e-12: the rounding of logarithms at a bucket's border.
    assert sketched == below or abs(sketched - below) <= (summary.ACCURACY + 1e-12) * abs(below)
    _, counts = spread.steps()
    assert counts.sum() == len(x)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=60), st.integers(0, 60))
def test_moments_merge(values, at):
    x = np.array(values)
    left, right = Moments(), Moments()
    left.add(x[:at])
    right.add(x[at:])
    left.merge(right)
    # Sums of at most 60 numbers up to 1e3, in float64.
    assert left.mean == pytest.approx(x.mean(), abs=1e-11)
    assert left.deviation == pytest.approx(x.std(ddof=1), abs=1e-7)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.integers(1, 6), st.integers(0, 50))
def test_worst_rows_do_not_depend_on_the_order(values, size, at):
    x, rows = np.array(values, dtype=float), np.arange(len(values))
    expected = sorted(zip(x.tolist(), rows.tolist()), key=lambda each: (-each[0], each[1]))[:size]
    for pieces in ((slice(0, at), slice(at, None)), (slice(at, None), slice(0, at))):
        worst = Worst(size)
        for piece in pieces:
            other = Worst(size)
            other.add(x[piece], rows[piece])
            worst.merge(other)
        assert worst.rows == expected
    one_by_one = Worst(size)
    for i in range(len(x)):
        one_by_one.add(x[i : i + 1], rows[i : i + 1])
    assert one_by_one.rows == expected


def test_beyond_what_is_kept(monkeypatch, rng):
    monkeypatch.setattr(summary, "KEPT", 100)
    p = rng.normal(size=(400, 12))
    q = p + 0.5 * rng.normal(size=p.shape)
    seen = kb.Comparison()
    for i in range(0, 400, 80):
        seen.update(p[i : i + 80], q[i : i + 80], form="logits")
    found = seen.result()
    assert not found.exact_percentiles
    assert json.loads(found.to_json())["percentiles"] == "within 0.1%"
    values = np.sort(truth(softmax(p), softmax(q))[0])
    for percent, value in found.kl_pq.percentiles.items():
        assert value == pytest.approx(values[math.floor(399 * float(percent) / 100)], rel=1.001e-3)
    again = kb.Comparison.from_dict(json.loads(json.dumps(seen.to_dict())))
    assert again.result().kl_pq == found.kl_pq

"""Bins: where cuts lie in each arithmetic, what quantiles and levels become, and exact order statistics from a sample."""

import random
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kullback._compare.tables import quantiles
from kullback._compare.tables.columns import (
    Bins,
    Cut,
    decimal_type,
    float_type,
    from_cumulative,
    integer_type,
    labels,
    level_bins,
    quantile_bins,
    ranks,
    threshold,
    time_type,
)
from kullback._compare.tables.quantiles import order_statistics

FLOAT, LONG, UNSIGNED, MONEY = float_type("DOUBLE"), integer_type("BIGINT"), integer_type("UBIGINT", signed=False), decimal_type("D", 38, 2)

finite = st.floats(allow_nan=False, allow_infinity=False)
cuts = st.builds(
    Cut, st.one_of(finite, st.integers(-(10**40), 10**40), st.decimals(allow_nan=False, allow_infinity=False, places=3)), st.booleans()
)


def lower_side(x, cut):
    """By the definition, in exact arithmetic."""
    return Fraction(x) < Fraction(cut.value) if cut.below else Fraction(x) <= Fraction(cut.value)


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (FLOAT, finite),
        (LONG, st.integers(-(2**63), 2**63 - 1)),
        (UNSIGNED, st.integers(0, 2**64 - 1)),
        (MONEY, st.integers(1 - 10**38, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-2) if abs(n) < 10**27 else Decimal(f"{n}e-2"))),
    ],
    ids=["float", "integer", "unsigned", "decimal"],
)
def test_a_threshold_changes_no_comparison(of, values):
    @given(values, cuts)
    def holds(x, cut):
        limit = threshold(cut, of)
        assert (limit is not None and x <= limit) == lower_side(x, cut)

    @given(values, st.booleans())
    def holds_at_the_edge(x, below):
        holds_for(x, Cut(x, below))

    def holds_for(x, cut):
        limit = threshold(cut, of)
        assert (limit is not None and x <= limit) == lower_side(x, cut)

    holds()
    holds_at_the_edge()


def test_ranks():
    assert ranks(100, 4) == [25, 50, 75]
    assert ranks(10, 4) == [3, 5, 8]  # ⌈2.5⌉, 5, ⌈7.5⌉
    assert ranks(3, 10) == [1, 2]  # each once, and never the last
    assert ranks(1, 10) == ranks(0, 10) == []
    assert ranks(10**18 + 1, 3) == [333333333333333334, 666666666666666668]  # no floats in it


def test_a_value_that_fills_a_bin_has_its_own():
    bins = quantile_bins("number", [-0.0, 0.0, 0.0, 1.5, 7.0])
    assert bins.cuts == (Cut(0.0, True), Cut(0.0), Cut(1.5), Cut(7.0))
    assert str(bins.cuts[0].value) == "0.0"
    assert labels(bins)[:5] == ["(-∞, 0)", "= 0", "(0, 1.5]", "(1.5, 7]", "(7, ∞)"]
    assert len(bins) == len(labels(bins)) == 9
    # -inf is below every cut, and counted apart.
    assert from_cumulative(bins, [3, 5, 6, 6], [1, 2, 0, 4], 14) == [2, 2, 1, 0, 2, 1, 2, 0, 4]


def test_times_are_written_as_dates():
    assert labels(quantile_bins("time", [0, 86_400_000_000 + 1]))[:3] == [
        "(-∞, 1970-01-01]",
        "(1970-01-01, 1970-01-02T00:00:00.000001]",
        "(1970-01-02T00:00:00.000001, ∞)",
    ]
    assert "µs" in labels(quantile_bins("time", [2**62]))[0]  # beyond the calendar
    assert time_type("DATE").domain == "integer"


def test_levels():
    most = [("a", 9), ("b", 5), ("c", 5), ("d", 5), ("e", 1)]
    assert level_bins(most[:3], 5, levels=2) == Bins(
        "text", levels=("a",), least=6, pooled=4
    )  # b ties with the next: no tie is broken by name
    assert level_bins(most, 5, levels=4) == Bins("text", levels=("a", "b", "c", "d"), least=2, pooled=1)
    assert level_bins(most, 5, levels=50) == Bins("text", levels=("a", "b", "c", "d"), least=2, pooled=1)  # once is no level
    assert level_bins([], 0, levels=50) == Bins("text", least=2)


@pytest.mark.parametrize("unlucky", [False, True])
@given(st.integers(2, 40), st.integers(1, 30), st.randoms(use_true_random=False))
def test_order_statistics_do_not_depend_on_the_sample(unlucky, bins, spread, generator):
    values = sorted(generator.randint(0, 10 * spread) for _ in range(300))
    # An unlucky sample has seen only the smallest values.
    sample = values[:30] if unlucky else sorted(generator.sample(values, 30))
    looked = []

    def look(brackets):
        looked.append(brackets)
        for a, b in pairwise(brackets):
            assert a.high < b.low
        found = []
        for low, high, wanted in brackets:
            under = sum(low is not None and x < low for x in values)
            inside = [x for x in values if (low is None or x >= low) and (high is None or x <= high)]
            found.append([inside[r - under - 1] if 0 < r - under <= len(inside) else None for r in wanted])
        return found

    wanted = ranks(300, bins)
    assert order_statistics(sample, 300, wanted, look) == [values[r - 1] for r in wanted]
    assert looked


def test_brackets_are_narrow():
    generator = random.Random(1)
    values = sorted(generator.random() for _ in range(200_000))
    sample = sorted(generator.sample(values, 20_000))
    brackets = quantiles._brackets(sample, len(values), ranks(len(values), 10), quantiles._SPREAD)
    # Nine brackets of ±5 standard errors, 5·√(¼/20000) = 1.8 % of the ranks at most: under a third of all values are ranked.
    assert sum(b.high - b.low for b in brackets) < 0.33

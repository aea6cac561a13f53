"""Distributions with labels: mappings, Counter and pandas Series are aligned by label over the union of both sides."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
import torch

import kullback as kb

LN = math.log
# KL of (3.5, 1.5, 0.5)/5.5 from (0.5, 2.5, 2.5)/5.5: cat, dog, owl with half a count added to each.
PETS = (3.5 * LN(7) + 1.5 * LN(0.6) + 0.5 * LN(0.2)) / 5.5
MAKE = {
    "dict": dict,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "proxy": lambda d: MappingProxyType(dict(d)),
    "Series": pd.Series,
    "object Series": lambda d: pd.Series(d, dtype=object),
}


def exactly(expected):
    # A handful of float64 operations.
    return pytest.approx(expected, rel=1e-14)


@pytest.fixture(params=MAKE)
def make(request):
    return MAKE[request.param]


def test_counts_with_a_prior(make):
    found = kb.kl(make({"cat": 3, "dog": 1}), make({"dog": 2, "owl": 2}), form="counts", prior=0.5)
    assert found == exactly(PETS)
    assert isinstance(found, np.float64)


def test_kinds_mix():
    assert kb.kl(Counter("catcatcatdog"), pd.Series({"a": 3, "c": 3, "d": 1, "g": 1, "o": 1, "t": 3}), form="counts") == 0
    assert kb.kl({"cat": 3, "dog": 1}, pd.Series({"dog": 2, "owl": 2}), form="counts", prior=0.5) == exactly(PETS)


def test_order_does_not_matter(make):
    p, q = {"a": 0.5, "b": 0.3, "c": 0.2}, {"c": 0.2, "b": 0.4, "a": 0.4}
    by_hand = 0.5 * LN(1.25) + 0.3 * LN(0.75)
    assert kb.kl(make(p), make(q)) == pytest.approx(by_hand, rel=1e-13)  # two terms that cancel to a quarter
    assert kb.kl(make(p), make(p)) == 0
    assert kb.kl(make(p), make(dict(reversed(p.items())))) == 0


def test_direction():
    p, q = {"a": 0.5, "b": 0.5}, {"a": 1.0}
    assert kb.kl(q, p) == exactly(LN(2))
    assert kb.kl(p, q) == math.inf


def test_a_missing_label_has_probability_zero(make):
    p, q = {"a": 0.5, "b": 0.5}, {"a": 0.25, "b": 0.25, "c": 0.5}
    assert kb.kl(make(p), make(q)) == exactly(LN(2))
    assert kb.kl(make(q), make(p)) == math.inf
    assert kb.kl(make({"a": 3, "b": 1}), make({"b": 2, "c": 2}), form="counts") == math.inf, "never a prior by default"
    assert kb.kl(make({"a": 0, "b": 4}), make({"b": 2, "c": 2}), form="counts") == exactly(LN(2)), "0 and missing are the same"


@pytest.mark.parametrize("form", ["logits", "log_probs"])
def test_a_missing_label_among_logs(make, form):
    p, q = {"a": LN(0.5), "b": LN(0.5)}, {"c": LN(0.5), "a": LN(0.25), "b": LN(0.25)}
    assert kb.kl(make(p), make(q), form=form) == exactly(LN(2))
    assert kb.kl(make(q), make(p), form=form) == math.inf
    assert kb.kl(make(p), make(dict.fromkeys("ab", 0.25)), form=("log_probs", "counts")) == pytest.approx(0, abs=1e-16)


def test_mixed_forms_fill_each_side_in_its_own_way():
    p, q = {"a": 1, "b": 1}, {"a": 0.0, "b": 0.0, "c": LN(2)}
    assert kb.kl(p, q, form=("counts", "logits")) == exactly(LN(2))
    assert kb.kl(q, p, form=("logits", "counts")) == math.inf


def test_prior_counts_the_union():
    """A share of 0.3 of uniform over three categories: (0.8, 0.1, 0.1) against (0.1, 0.45, 0.45)."""
    found = kb.kl({"a": 1.0}, {"b": 0.5, "c": 0.5}, prior=0.3)
    assert found == exactly(0.8 * LN(8) + 0.2 * LN(0.1 / 0.45))


def test_every_function_takes_labels(make):
    p, q = make({"a": 3, "b": 1}), make({"b": 1, "c": 3})
    assert kb.js(p, q, form="counts", base=2) == exactly(0.75)  # b, a quarter on both sides, is all they share
    assert kb.jeffreys(p, q, form="counts") == math.inf
    # Q gives b, all it has of P's support, a quarter.
    assert kb.renyi(p, q, form="counts", order=0) == exactly(LN(4))
    assert kb.cross_entropy(p, q, form="counts") == math.inf
    assert kb.cross_entropy(q, make({"a": 2, "b": 1, "c": 1}), form="counts", base=2) == exactly(2.0)
    assert kb.entropy(make({"x": 2, "y": 1, "z": 1}), form="counts", base=2) == exactly(1.5)
    assert kb.relative_entropy(p, p, form="counts") == 0


def test_options():
    p, q = {"a": 0.5, "b": 0.5}, {"b": 0.25, "a": 0.25, "c": 0.5}
    assert kb.kl(p, q, base=2) == exactly(1.0)
    for reduction in ("none", "sum", "mean", "batchmean"):
        assert kb.kl(p, q, base=2, reduction=reduction) == exactly(1.0)
    assert kb.kl(p, q, base=2, weights=0.5) == exactly(0.5)
    assert kb.kl(p, q, base=2, axis=0) == exactly(1.0)
    kept = kb.kl(p, q, base=2, keepdims=True)
    assert kept.shape == (1,)
    # softmax((2, 0)/2) against softmax((0, 2)/2): (e - 1)/(e + 1), and the missing label stays missing.
    found = kb.kl({"a": 2.0, "b": 0.0}, {"b": 2.0, "a": 0.0}, form="logits", temperature=2.0)
    assert found == exactly((math.e - 1) / (math.e + 1))
    assert kb.kl({"a": 2.0, "b": 0.0}, {"b": 2.0}, form="logits", temperature=2.0) == math.inf


def test_labels_of_any_kind():
    p, q = {1: 0.5, (2, "x"): 0.25, None: 0.25}, {None: 0.25, 1: 0.5, (2, "x"): 0.25}
    assert kb.kl(p, q) == 0
    index = pd.MultiIndex.from_tuples([("eu", 1), ("us", 2)])
    assert kb.kl(pd.Series([0.5, 0.5], index), pd.Series([0.25, 0.75], index[::-1])) == exactly(0.5 * LN(0.5 / 0.75) + 0.5 * LN(2))
    # Labels are compared as Python compares them: 1 is 1.0 but not "1".
    assert kb.kl({1: 1.0}, {1.0: 1.0}) == 0
    assert kb.kl({1: 1.0}, {"1": 1.0}) == math.inf


def test_series_align_by_index_and_not_by_position():
    p, q = pd.Series([0.5, 0.3, 0.2]), pd.Series([0.2, 0.3, 0.5], index=[2, 1, 0])
    assert kb.kl(p, q) == 0
    assert kb.kl(p.to_numpy(), q.to_numpy()) == exactly(0.3 * LN(2.5))


def test_value_counts_of_two_samples():
    p = pd.Series(list("aaabbc")).value_counts()
    q = pd.Series(list("abbbcc")).value_counts()
    # (3, 2, 1)/6 against (1, 3, 2)/6
    assert kb.kl(p, q, form="counts") == exactly((3 * LN(3) + 2 * LN(2 / 3) + LN(0.5)) / 6)


def test_numbers_of_any_kind():
    values = {"a": Fraction(1, 2), "b": Decimal("0.25"), "c": np.float32(0.25), "d": 0, "e": np.int64(0), "f": False}
    assert kb.entropy(values, base=2) == exactly(1.5)
    assert kb.entropy({"a": torch.tensor(0.5), "b": np.array(0.5)}, base=2) == exactly(1.0)


def test_nan_stays_nan(make):
    assert math.isnan(kb.kl(make({"a": 0.5, "b": math.nan}), make({"a": 0.5, "b": 0.5})))


# --- errors ---


@pytest.mark.parametrize(
    "other", [np.array([0.5, 0.5]), [0.5, 0.5], torch.tensor([0.5, 0.5]), pd.DataFrame([[0.5, 0.5]]), 0.5], ids=lambda x: type(x).__name__
)
def test_one_side_without_labels(make, other):
    labelled, kind = make({"a": 0.5, "b": 0.5}), type(other).__name__
    fix = "pass both as mappings or Series, or both as arrays"
    with pytest.raises(TypeError) as caught:
        kb.kl(labelled, other)
    assert str(caught.value) == f"p has labels and q ({kind}) has none: {fix}"
    with pytest.raises(TypeError) as caught:
        kb.js(other, labelled)
    assert str(caught.value) == f"q has labels and p ({kind}) has none: {fix}"


def test_a_label_twice():
    twice, once = pd.Series([0.25, 0.25, 0.5], index=["a", "a", "b"]), pd.Series([0.5, 0.5], index=["a", "b"])
    with pytest.raises(ValueError, match=r"^p has the label 'a' twice: sum its rows first, e\.g\. p\.groupby\(level=0\)\.sum\(\)$"):
        kb.kl(twice, once)
    with pytest.raises(ValueError, match=r"^q has the label 'a' twice: .*q\.groupby"):
        kb.kl(once, twice)
    with pytest.raises(ValueError, match=r"^p has the label 'a' twice"):
        kb.entropy(twice)
    assert kb.kl(twice.groupby(level=0).sum(), once) == 0, "what the message proposes works"


@pytest.mark.parametrize("wrong", [None, "many", "0.5", [0.5], np.array([0.5, 0.5]), 0.5j, np.complex128(0.5), pd.NA, {"x": 1}], ids=repr)
def test_a_value_that_is_no_number(wrong):
    for arguments, side in ((({"a": 0.5, "b": wrong}, {"a": 0.5, "b": 0.5}), "p"), (({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": wrong}), "q")):
        with pytest.raises(TypeError) as caught:
            kb.kl(*arguments)
        assert str(caught.value) == f"{side}['b'] is {wrong!r}: labelled distributions hold one number a label"


def test_no_labels_at_all():
    with pytest.raises(ValueError, match=r"^p has no categories"):
        kb.kl({}, {})
    with pytest.raises(ValueError, match=r"^p has no categories"):
        kb.entropy(pd.Series([], dtype=float))
    with pytest.raises(ValueError, match=r"^p has no counts at all: pass prior="):
        kb.kl({}, {"a": 1}, form="counts")


def test_values_are_checked(make):
    good = make({"a": 0.5, "b": 0.5})
    with pytest.raises(ValueError, match=r"^q sums to 4, not 1: counts\? pass form='counts'$"):
        kb.kl(good, make({"a": 3, "b": 1}))
    with pytest.raises(ValueError, match=r"^p holds -0\.5 at category 1: logits\?"):
        kb.kl(make({"a": 0.5, "b": -0.5}), good)
    assert kb.kl(make({"a": 3, "b": 1}), good, check=False) == exactly(0.75 * LN(1.5) + 0.25 * LN(0.5))


def test_temperature_and_prior_rules_hold():
    with pytest.raises(ValueError, match=r"^temperature divides logits"):
        kb.kl({"a": 1.0}, {"a": 1.0}, temperature=2.0)
    with pytest.raises(ValueError, match=r"^prior needs form 'counts' or 'probs', not 'logits'$"):
        kb.kl({"a": 1.0}, {"a": 1.0}, form="logits", prior=1)
    with pytest.raises(ValueError, match=r"^axis 1 is out of range: the arrays have 1 axis$"):
        kb.kl({"a": 1.0}, {"a": 1.0}, axis=1)

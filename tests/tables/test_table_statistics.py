"""Figures by hand and by mpmath, p-values by enumeration and by SciPy, and both under a null hypothesis that is true."""

import math
from collections import Counter
from itertools import combinations, product

import mpmath
import numpy as np
import pytest
from scipy import stats

from kullback._compare.tables import statistics
from kullback._compare.tables.columns import level_bins, ranks
from kullback._compare.tables.statistics import Choice, Divergences, divergences, holm, in_base, no_drift, no_joint_drift, terms


def counts(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("prior", [0.5, 1.0, 0.0])
def test_figures_by_their_definition(prior):
    p, q = counts(60, 39, 1, 0), counts(30, 50, 20, 0)
    with mpmath.workdps(40):
        a, b = ([(mpmath.mpf(int(c)) + prior) for c in side[:3]] for side in (p, q))  # the last is empty on both sides
        a, b = [x / sum(a) for x in a], [x / sum(b) for x in b]
        m = [(x + y) / 2 for x, y in zip(a, b)]

        def kl(x, y):
            return sum(s * mpmath.log(s / t) for s, t in zip(x, y))

        truth = (kl(a, b), kl(b, a), (kl(a, m) + kl(b, m)) / 2, sum((x - y) * mpmath.log(x / y) for x, y in zip(a, b)))
        truth = [float(x) for x in truth]
    found = divergences(p, q, prior)
    assert found == pytest.approx(truth, rel=1e-14)  # a few roundings of float64
    parts = terms(p, q, prior)
    assert parts.kl.sum() == pytest.approx(truth[0], rel=1e-12)  # the terms cancel to a sum a tenth of their size
    assert parts.psi.sum() == pytest.approx(truth[3], rel=1e-13)
    assert (parts.p[3], parts.psi[3]) == (0, 0)


def test_no_prior_is_infinite_where_one_side_is_empty():
    found = divergences(counts(10, 0, 5), counts(10, 5, 0), 0.0)
    assert found[:2] == (math.inf, math.inf)
    assert found.js < math.log(2)
    assert found.psi == math.inf
    parts = terms(counts(10, 0, 5), counts(10, 5, 0), 0.0)
    assert [math.isinf(x) for x in parts.psi] == [False, True, True]
    assert divergences(counts(10, 0, 5), counts(10, 5, 0), 0.5).kl_pq < 2


def test_bits():
    nats = Divergences(1.0, 2.0, 0.5, 3.0)
    assert in_base(nats, 2) == pytest.approx((1 / math.log(2), 2 / math.log(2), 0.5 / math.log(2), 3.0))
    assert in_base(nats, None) == nats


def test_g_against_scipy():
    p, q = counts(60, 80, 100, 0, 40), counts(70, 60, 110, 0, 60)
    found = no_drift(p, q, 0.5)
    truth = stats.chi2_contingency([p[p + q > 0], q[p + q > 0]], correction=False, lambda_="log-likelihood")
    assert (found.g, found.p_value) == pytest.approx((truth.statistic, truth.pvalue), rel=1e-10)  # SciPy's own sum cancels some digits
    assert (found.degrees, found.drawn) == (3, 0)
    # By the formula in the docs.
    assert found.floor == pytest.approx((1.5 / 280 + 1.5 / 300, 1.5 / 280 + 1.5 / 300, (3 / 280 + 3 / 300) / 8, 3 / 280 + 3 / 300))


def enumerated(p, q, prior):
    """Every table with these totals, with its probability: the exact p-value of G, and the exact mean of each figure."""
    total, n = p + q, int(p.sum())
    ways, extreme, mean = 0, 0, np.zeros(4)

    def g(x):
        y = total - x
        share = total / total.sum()
        return 2 * sum(v * math.log(v / (side.sum() * s)) for side in (x, y) for v, s in zip(side, share) if v)

    observed = g(p)
    for x in product(*(range(t + 1) for t in total)):
        if sum(x) != n:
            continue
        x = np.array(x)
        weight = math.prod(math.comb(int(t), int(v)) for t, v in zip(total, x))
        ways += weight
        extreme += weight * (g(x) >= observed - 1e-9)
        a, b = x + prior, total - x + prior
        a, b = a / a.sum(), b / b.sum()
        m = (a + b) / 2
        kl = [(s * np.log(s / t)).sum() for s, t in ((a, b), (b, a), (a, m), (b, m))]
        mean += weight * np.array([kl[0], kl[1], (kl[2] + kl[3]) / 2, kl[0] + kl[1]])
    return extreme / ways, mean / ways


@pytest.mark.parametrize(("p", "q"), [((5, 1, 0), (1, 4, 3)), ((3, 3, 2, 1), (1, 2, 3, 3)), ((7, 0), (2, 9)), ((4, 4, 4), (4, 4, 4))])
def test_small_tables_against_enumeration(p, q):
    p, q = counts(*p), counts(*q)
    p_value, mean = enumerated(p, q, 0.5)
    found = no_drift(p, q, 0.5)
    assert found.drawn == statistics.DRAWS
    # Binomial error of 9,999 draws, four standard errors.
    assert found.p_value == pytest.approx(p_value, abs=4 * math.sqrt(p_value * (1 - p_value) / 9999) + 2e-4)
    assert found.floor == pytest.approx(mean, rel=0.06)  # four standard errors of a mean of skewed values: their spread is about 1.2 means
    assert no_drift(p, q, 0.5) == found  # the same counts give the same figures


def test_the_formulas_and_the_draws_agree_where_they_meet(monkeypatch):
    """At expected counts of 20 either may be used; the floors then differ by the second-order terms, 1/20, and the error of the draws."""
    p, q = counts(*[22] * 10), counts(*[24, 20] * 5)
    formula = no_drift(p, q, 0.5)
    monkeypatch.setattr(statistics, "_DENSE", math.inf)
    drawn = no_drift(p, q, 0.5)
    assert (formula.drawn, drawn.drawn) == (0, 9999)
    assert drawn.floor == pytest.approx(formula.floor, rel=0.07)
    assert drawn.p_value == pytest.approx(formula.p_value, abs=0.02)


def test_one_bin_says_nothing():
    assert no_drift(counts(5, 0), counts(9, 0), 0.5) == (0.0, 0, 1.0, (0.0, 0.0, 0.0, 0.0), 0)


def test_counts_beyond_numpys_hypergeometric(monkeypatch):
    """Two thousand million rows a side, one level seldom: the draws must not fail, and agree with the limit they have."""
    p, q = counts(2_000_000_000, 15, 1_000_000_000), counts(2_000_000_000, 11, 1_000_000_000)
    found = no_drift(p, q, 0.5)
    assert found.drawn
    # The large bins are exactly alike, so G is that of the small one: Poisson against Poisson. χ²₁ of 26 split 15:11.
    assert found.p_value > 0.3
    each = 0.5 * 2 * 2 / 3e9
    assert found.floor.kl_pq == pytest.approx(each, rel=0.1)
    monkeypatch.setattr(statistics, "DRAWS", 999)
    assert no_drift(counts(10**12, 32), counts(10**12, 2), 0.5).p_value == 0.001


def test_holm():
    # Holm's own way, by hand: sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, and never falling.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def under_no_drift(kind, rng, n, m, size):
    """Counts of two samples of one distribution over the bins of the first, made as the engines make them."""
    if kind == "numbers":
        return *binned(kind, rng, n, m, size)[2:], Choice(intervals=len(ranks(n, size)) + 1)
    _, _, p, q, bins = binned(kind, rng, n, m, size)
    return p, q, Choice(kept=len(bins.levels), least=bins.least, most=50, pooled=bins.pooled)


def binned(kind, rng, n, m, size):
    """The bin of each value of two samples, then the counts, then the bins of levels."""
    if kind == "numbers":
        x, y = rng.normal(size=n), rng.normal(size=m)
        edges = np.sort(x)[np.array(ranks(n, size)) - 1]
        places = [np.searchsorted(edges, side, "left") for side in (x, y)]
        return *places, *(np.bincount(side, minlength=len(edges) + 1) for side in places)
    ends = np.cumsum(1 / np.arange(1, size + 1) ** (1.1 if kind == "skewed levels" else 0.0))
    values = [np.searchsorted(ends, rng.uniform(0, ends[-1], k)) for k in (n, m)]
    first = Counter(values[0].tolist())
    most = sorted(((f"{k:06}", v) for k, v in first.items()), key=lambda kv: (-kv[1], kv[0]))
    bins = level_bins(most[:51], len(most), levels=50)
    number = {int(level): i for i, level in enumerate(bins.levels)}
    places = [np.array([number.get(v, len(number)) for v in side.tolist()]) for side in values]
    return *places, *(np.bincount(side, minlength=len(number) + 2) for side in places), bins


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(statistics, "DRAWS", 199)
    monkeypatch.setattr(statistics, "_CELLS", 0)
    monkeypatch.setattr(statistics, "LEAST_DRAWS", 199)


@pytest.mark.parametrize(
    ("kind", "n", "m", "size"),
    [
        ("numbers", 30, 30, 10),
        ("numbers", 20, 100, 10),
        ("numbers", 1000, 200, 10),
        ("equal levels", 20, 20, 5),
        ("equal levels", 20, 100, 5),
        ("equal levels", 2000, 2000, 150),  # without conditioning on the choice of levels, nearly all of these would be "drift"
        ("equal levels", 100, 1000, 100),
        ("skewed levels", 20, 400, 10),
        ("skewed levels", 100, 20, 300),
        ("skewed levels", 300, 300, 1000),
        ("equal levels", 40, 40, 10**6),  # every value another: names, numbers of orders
    ],
)
def test_p_values_and_floors_where_nothing_changed(few_draws, kind, n, m, size):
    rng = np.random.default_rng(7)
    tables = 100 if n + m < 1000 or kind == "numbers" else 40
    found, kl = [], []
    for _ in range(tables):
        p, q, choice = under_no_drift(kind, rng, n, m, size)
        found.append(no_drift(p, q, 0.5, choice))
        kl.append(divergences(p, q, 0.5).kl_pq)
    false = sum(x.p_value <= 0.05 for x in found)
    # Valid: at most 5 in 100 on average. A binomial with that mean exceeds 8 (of 40: 5) in 6 (1) of 100 runs; the seed is fixed.
    assert false <= (8 if tables == 100 else 5), f"{false} of {tables} tables without drift have p <= 0.05"
    if size < 10**6:
        # The floor is what KL is on average (its own error over the tables is 5 % at most); of levels, what was pooled is not known.
        assert np.mean([x.floor.kl_pq for x in found]) == pytest.approx(np.mean(kl), rel=0.12 if kind == "numbers" else 0.35)


@pytest.mark.parametrize(
    ("kinds", "n", "m"),
    [((("numbers", 10), ("numbers", 10)), 200, 1000), ((("equal levels", 100), ("equal levels", 3)), 200, 200)],
)
def test_pairs_where_nothing_changed(few_draws, kinds, n, m):
    """With the cells' own G, one in seven and one in three of these would be "drift"."""
    rng = np.random.default_rng(7)
    false = 0
    for _ in range(60):
        sides = [binned(kind, rng, n, m, size) for kind, size in kinds]
        cells = [list(zip(*(side[i].tolist() for side in sides))) for i in (0, 1)]
        every = sorted(set(cells[0]) | set(cells[1]))
        p, q = (counts(*(Counter(side)[cell] for cell in every)) for side in cells)
        alike = statistics.Test(0.0, 1, 1.0, Divergences(0, 0, 0, 0), 1)  # the columns by themselves say nothing here
        false += no_joint_drift(p, q, 0.5, tuple(np.array(place) for place in zip(*every)), (alike, alike)).p_value <= 0.05
    assert false <= 3


def test_what_a_pair_adds_is_found():
    """The columns are as they were, and how they go together has changed."""
    p, q = counts(40, 10, 10, 40), counts(10, 40, 40, 10)
    places = counts(0, 0, 1, 1), counts(0, 1, 0, 1)
    alike = statistics.Test(0.0, 1, 1.0, Divergences(0, 0, 0, 0), 1)
    assert no_joint_drift(p, q, 0.5, places, (alike, alike)).p_value == pytest.approx(3e-4)  # none of 9,999 tables
    # And a column that has changed is found in each of its pairs.
    changed = alike._replace(p_value=0.001)
    assert no_joint_drift(p, p, 0.5, places, (changed, alike)).p_value == pytest.approx(0.003)


def test_values_between_edges_by_their_formula():
    """n + m values in any order are equally likely: so many of Q's between P's 2nd and 3rd, Π C(d + gap - 1, d) / C(n + m, m)."""
    p, q = counts(2, 2, 1), counts(1, 1, 1)
    drawn, others = statistics._between_edges(np.random.default_rng(0), p, q, 3, 40_000)
    assert (drawn == p).all()
    seen = Counter(map(tuple, others.tolist()))
    for cells in product(range(4), repeat=3):
        if sum(cells) == 3:
            right = math.prod(math.comb(d + gap - 1, d) for d, gap in zip(cells, (2, 2, 2))) / math.comb(8, 3)
            # Four standard errors of 40,000 draws.
            assert seen[cells] / 40_000 == pytest.approx(right, abs=4 * math.sqrt(right / 40_000))


def test_levels_dealt_out_again_by_enumeration():
    """Values aaa bb cc d, of which P gets four in any way: whatever P has twice has a bin of its own."""
    values = "aaabbccd"
    ways = Counter()
    for chosen in combinations(range(8), 4):
        mine = Counter(values[i] for i in chosen)
        theirs = Counter(values) - mine
        kept = [x for x in "abc" if mine[x] >= 2]
        p = [mine[x] if x in kept else 0 for x in "abc"]
        q = [theirs[x] if x in kept else 0 for x in "abc"]
        ways[(*p, 4 - sum(p), *q, 4 - sum(q))] += 1
    # a is kept, and "others" are b, c and d: two of two values each, and one that occurs once.
    choice = Choice(kept=1, least=2, most=50, pooled=2)
    drawn, others, _ = statistics._dealt_again(np.random.default_rng(0), counts(3, 5, 0), counts(2, 2), 4, choice, 40_000)
    seen = Counter(map(tuple, np.concatenate([drawn[:, :4], others[:, :4]], axis=1).tolist()))
    assert seen.keys() == ways.keys()
    for table, count in ways.items():
        right = count / math.comb(8, 4)
        assert seen[table] / 40_000 == pytest.approx(right, abs=4 * math.sqrt(right / 40_000))


def test_drift_is_found_among_many_levels():
    rng = np.random.default_rng(3)
    p, q, choice = under_no_drift("skewed levels", rng, 5000, 5000, 1000)
    q = q.copy()
    q[-2] += 600  # levels the reference never had
    assert no_drift(p, q, 0.5, choice).p_value < 0.002

"""Two rows of counts → how far apart, what of it chance alone would give, and how surely it is not chance.

Pure arithmetic over `kl` and `js`. Everything random has a fixed seed: the same counts give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..._dispatch import kl
from ..._divergences import js

DRAWS = 9_999  # tables drawn for a p-value that tables do not give
_CELLS, LEAST_DRAWS = 4_000_000, 999  # ... fewer where there are many cells
_DENSE = 20.0  # expected counts from which the chi-squared distribution and its mean are close enough
SEED = 20_260_401
# How, for whoever wants to draw them again.
DRAWING = f"at most {DRAWS:,}, fewer with many bins, at least {LEAST_DRAWS}; NumPy's default_rng({SEED}), which is PCG64"
_PARTS = 500  # pooled levels that are drawn one by one
_A_CELL = 2  # values of P a cell from which a pair is tested by more than its columns
_SMALL = 10_000_000  # values whose logarithms may be summed as they are
_LIMIT = 1_000_000_000  # values of NumPy's hypergeometric distribution
_FAR = 6.0  # standard errors by which a level is above the count that kept it

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Divergences(NamedTuple):
    """In nats. PSI is KL(P‖Q) + KL(Q‖P)."""

    kl_pq: float
    kl_qp: float
    js: float
    psi: float


class Test(NamedTuple):
    """`g` with `degrees` of freedom; `floor` is the mean of each divergence if nothing had changed; `drawn` tables (0: by chi-squared)."""

    g: float
    degrees: int
    p_value: float
    floor: Divergences
    drawn: int


def divergences(p: Ints, q: Ints, prior: float) -> Divergences:
    """Of counts over the same bins, with `prior` added to each on both sides (0: as they are, inf where a bin of one is empty).

    Bins that are empty on both sides are no bins: what prior they would get says nothing about either side.
    """
    return Divergences(*(float(x) for x in _divergences(p[None, :], q[None, :], prior)[0]))


def _divergences(p: Any, q: Any, prior: float) -> Floats:
    """One row of figures for each row of counts: [rows, 4]."""
    used = (p + q) > 0
    p, q = (np.where(used, x + prior, 0.0) for x in (p, q))
    forward = np.asarray(kl(p, q, form="counts", check=False))
    back = np.asarray(kl(q, p, form="counts", check=False))
    return np.stack([forward, back, np.asarray(js(p, q, form="counts", check=False)), forward + back], axis=1)


class Terms(NamedTuple):
    """Bin by bin: the shares (with the prior), p·ln(p/q), and (p - q)·ln(p/q), which is never negative and adds up to the PSI."""

    p: Floats
    q: Floats
    kl: Floats
    psi: Floats


def terms(p: Ints, q: Ints, prior: float) -> Terms:
    """What each bin adds; 0 for bins empty on both sides."""
    used = (p + q) > 0
    a, b = (np.where(used, x + prior, 0.0) for x in (p, q))
    a, b = a / a.sum(), b / b.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(a == b, 0.0, np.log(a) - np.log(b))
        return Terms(a, b, np.where(a == 0.0, 0.0, a * ratio), np.where(a == b, 0.0, (a - b) * ratio))


class Choice(NamedTuple):
    """How the reference p chose the bins, which changes what chance does to its counts.

    The first `intervals` bins end at order statistics of p. Or the first `kept` bins are levels of which p has at least `least`, the
    `most` most frequent at most, and the next one holds the others, of which p has `pooled` different ones.
    """

    intervals: int = 0
    kept: int = 0
    least: int = 0
    most: int = 0
    pooled: int = 0


def no_drift(p: Ints, q: Ints, prior: float, choice: Choice = Choice()) -> Test:  # noqa: B008 (a tuple)
    """Could both be samples of one distribution? The G-test of homogeneity, on the counts as they are, given how the bins were chosen."""
    near = _near_the_choice((p + q)[: choice.kept], p.sum() / (p + q).sum(), choice.least)
    by_formula = _by_formula(p, q)
    if by_formula.degrees < 1 or not (near or math.isnan(by_formula.p_value)):
        return by_formula
    g = by_formula.g
    rng = np.random.default_rng(SEED)
    found = []
    for drawn, others, unlike in _nulls(rng, p.astype(np.int64), q.astype(np.int64), choice, near):
        # A hair of tolerance: equal tables must count as equal whatever the order of their sums.
        extreme = int(np.count_nonzero(_g(drawn, others) >= g * (1.0 - 1e-9) - 1e-7))
        found.append(((1 + extreme) / (1 + len(drawn)), drawn, others, unlike))
    # What is not known is taken as it explains most; for the mean, as it is most like what is known.
    _, drawn, others, _ = min(reversed(found), key=lambda each: each[3])
    return Test(g, by_formula.degrees, max(each[0] for each in found), _mean_of(drawn, others, prior), len(drawn))


def _by_formula(p: Ints, q: Ints) -> Test:
    """By the chi-squared distribution; a p-value of NaN where counts are too small for it."""
    used = (p + q) > 0
    total, n, m = (p + q)[used], int(p.sum()), int(q.sum())
    degrees = len(total) - 1
    if degrees < 1:
        return Test(0.0, 0, 1.0, Divergences(0.0, 0.0, 0.0, 0.0), 0)
    g = max(0.0, float(_g(p[None, :], q[None, :])[0]))
    expected = total * (n / (n + m))
    dense = min(float(expected.min()), float((total - expected).min())) >= _DENSE
    return Test(g, degrees, _chi_squared(g, degrees) if dense else math.nan, _wilks(degrees, n, m), 0)


def _mean_of(drawn: Ints, others: Ints, prior: float) -> Divergences:
    return Divergences(*(float(x) for x in _divergences(drawn, others, prior).mean(axis=0)))


def no_joint_drift(p: Ints, q: Ints, prior: float, places: tuple[Ints, Ints], columns: tuple[Test, Test]) -> Test:
    """The same for cells of two columns' bins, `places` their numbers in either; `columns` are the tests of these by themselves.

    How the bins were chosen acts on the columns' own counts, which their tests know. What the cells add to that, their G less those of the
    columns, is compared with tables of the same totals, if p has `_A_CELL` values a cell: with fewer, it depends on those counts too. Of
    these p-values the smallest counts, times their number (Bonferroni).
    """
    by_formula = _by_formula(p, q)
    if by_formula.degrees < 1 or not (math.isnan(by_formula.p_value) or any(column.drawn for column in columns)):
        return by_formula
    drawn = _tables(np.random.default_rng(SEED), p + q, int(p.sum()), _draws(len(p)))
    others = p + q - drawn
    p_values = [column.p_value for column in columns]
    if p.sum() >= _A_CELL * np.count_nonzero(p + q):
        observed = float(_added(p[None, :], q[None, :], places)[0])
        # A difference of sums: as good as the largest of them, and equal tables must count as equal.
        extreme = int(np.count_nonzero(_added(drawn, others, places) >= observed - 1e-9 * by_formula.g - 1e-7))
        p_values.append((1 + extreme) / (1 + len(drawn)))
    p_value = min(1.0, len(p_values) * min(p_values))
    return Test(by_formula.g, by_formula.degrees, p_value, _mean_of(drawn, others, prior), len(drawn))


def _added(p: Any, q: Any, places: tuple[Ints, Ints]) -> Floats:
    """G of cells, less that of either column."""
    value = _g(p, q)
    for place in places:
        bins = np.equal.outer(place, np.unique(place)).astype(np.float64)
        value = value - _g(p @ bins, q @ bins)
    return value


def _near_the_choice(total: Ints, share: float, least: int) -> bool:
    """Could one of the levels kept have been pooled?"""
    middle, error = total * share, np.sqrt(total * share * (1.0 - share))
    return bool((middle - _FAR * error < least).any())


def _nulls(rng: np.random.Generator, p: Ints, q: Ints, choice: Choice, near: bool) -> Iterator[tuple[Ints, Ints, float]]:
    """Pairs of tables as they would be without drift, by each way in which the bins may have come about; and how unlike p that way is."""
    total, n = p + q, int(p.sum())
    if near and choice.pooled <= _PARTS:
        # What was pooled may be values that occur once, or levels, alike: as many as p has, or more, which p happens not to have.
        other, known, parts = int(total[choice.kept]), max(1, choice.pooled), 0
        while parts <= min(other, max(4 * known, min(16 * known, _PARTS))):
            sizes = np.full(parts, other // max(1, parts)) + (np.arange(parts) < other % max(1, parts))
            yield _dealt_again(rng, total, sizes, n, choice, _draws(4 * (len(p) + parts)))
            parts = 2 * parts or known
        return
    draws = _draws(len(p))
    if near:
        yield *_given_the_choice(rng, total, n / int(total.sum()), choice, draws), 0.0
        return
    drawn = _tables(rng, total, n, draws)
    yield drawn, total - drawn, 0.0
    if choice.intervals:
        yield *_between_edges(rng, p, q, choice.intervals, draws), 0.0


def _draws(cells: int) -> int:
    return min(DRAWS, max(LEAST_DRAWS, _CELLS // cells))


def _g(p: Any, q: Any) -> Floats:
    """2·Σ observed·ln(observed/expected) = 2·n·KL(P‖M) + 2·m·KL(Q‖M), M the shares of both together."""
    both = p + q
    n, m = p.sum(axis=1), q.sum(axis=1)
    if int(n[0] + m[0]) <= _SMALL:
        # The same, with sums that cancel by less than 1e-7, in a tenth of the time.
        from scipy.special import xlogy

        sums = [xlogy(x, x).sum(axis=1) for x in (p, q, both)]
        return np.asarray(2.0 * (sums[0] + sums[1] - sums[2] - xlogy(n, n) - xlogy(m, m) + xlogy(n + m, n + m)))
    left, right = (np.asarray(kl(x, both, form="counts", check=False)) for x in (p, q))
    return np.asarray(2.0 * (n * left + m * right))


def _chi_squared(g: float, degrees: int) -> float:
    from scipy.special import gammaincc

    return float(gammaincc(0.5 * degrees, 0.5 * g))


def _wilks(degrees: int, n: int, m: int) -> Divergences:
    """The mean under no drift: all four are the chi-squared distance to second order, whose mean is its degrees of freedom."""
    each = degrees * (1.0 / n + 1.0 / m)
    return Divergences(0.5 * each, 0.5 * each, 0.125 * each, each)


def _tables(rng: np.random.Generator, total: Ints, n: int, draws: int) -> Ints:
    """The rows of P if the same values were dealt out again: hypergeometric, which is exact given the totals."""
    rest = int(total.sum())
    if rest < _LIMIT:
        return np.asarray(rng.multivariate_hypergeometric(total, n, draws, method="marginals"), np.int64)
    found = np.empty((draws, len(total)), np.int64)
    left = np.full(draws, n, np.int64)
    for j, size in enumerate(total):
        size = int(size)
        rest -= size
        found[:, j] = _hypergeometric(rng, size, rest, left) if rest else left
        left = left - found[:, j]
    return found


def _hypergeometric(rng: np.random.Generator, good: int, bad: int, sample: Ints) -> Ints:
    if good + bad < _LIMIT:
        return np.asarray(rng.hypergeometric(good, bad, sample), np.int64)
    # Beyond it normal to many digits where it is wide, and binomial where it is not.
    share = sample / (good + bad)
    if good * float(share.min()) > 1000.0 and good * float(1.0 - share.max()) > 1000.0:
        spread = np.sqrt(good * share * (1.0 - share) * (bad / (good + bad - 1.0)))
        return np.clip(np.rint(rng.normal(good * share, spread)), np.maximum(0, sample - bad), np.minimum(good, sample)).astype(np.int64)
    return np.asarray(np.minimum(rng.binomial(good, share), sample), np.int64)


def _dealt_again(rng: np.random.Generator, total: Ints, parts: Ints, n: int, choice: Choice, draws: int) -> tuple[Ints, Ints, float]:
    """The values of both sides dealt out again, and the levels chosen again, as the rule has it, from what P got: exact, if the pooled
    values are levels of these sizes (`parts`; what is left of them, values that occur once). Unlike: by the number of levels pooled."""
    kept = choice.kept
    single = total[kept] - parts.sum()
    levels = kept + len(parts)
    sizes = np.concatenate([total[:kept], parts, [single], total[kept + 1 :]])
    drawn = _tables(rng, sizes, n, draws)
    others = sizes - drawn
    mine = drawn[:, :levels]
    next_count = -np.partition(-mine, choice.most, axis=1)[:, choice.most] if levels > choice.most else np.zeros(draws, np.int64)
    stays = mine > np.maximum(1, next_count)[:, None]
    pooled = np.count_nonzero((mine > 0) & ~stays, axis=1) + drawn[:, levels]
    for side in (drawn, others):
        side[:, levels] += np.sum(side[:, :levels], axis=1, where=~stays)
        side[:, :levels] *= stays
    return drawn, others, abs(float(pooled.mean()) - choice.pooled)


def _between_edges(rng: np.random.Generator, p: Ints, q: Ints, intervals: int, draws: int) -> tuple[Ints, Ints]:
    """The edges are P's own values: P's counts are fixed, and how Q's fall between is Dirichlet-multinomial, whatever the distribution
    (the shares between order statistics r apart are Dirichlet with these r; beyond the last, one more). Exact without ties."""
    inner = np.array([p[:intervals].sum(), q[:intervals].sum()])
    split = np.concatenate([[inner.sum()], (p + q)[intervals:]])
    outer = _tables(rng, split, int(p.sum()), draws)
    counts, rest = outer[:, :1], (split - outer)[:, 0]
    # As many of P's values as there are now, in the same shares.
    ends = np.ceil(np.cumsum(p[:intervals]) / max(1, inner[0]) * counts - 1e-9).astype(np.int64)
    gaps = np.diff(ends, axis=1, prepend=0)
    weights = gaps.astype(np.float64)
    weights[:, -1] += 1.0
    shares = rng.standard_gamma(weights)
    fallen = rng.multinomial(rest, shares / shares.sum(axis=1, keepdims=True))
    return np.concatenate([gaps, outer[:, 1:]], axis=1), np.concatenate([fallen, (split - outer)[:, 1:]], axis=1)


def _given_the_choice(rng: np.random.Generator, total: Ints, share: float, choice: Choice, draws: int) -> tuple[Ints, Ints]:
    """For very many pooled levels. Each value goes to P with probability `share`, given that each level kept has at least `least` there:
    truncated binomials. What the kept levels have too much of by selection, the pooled ones have too little of."""
    kept = choice.kept
    found = rng.binomial(total, share, (draws, len(total)))
    excess = 0.0
    for j in range(kept):
        size = int(total[j])
        middle, error = size * share, math.sqrt(size * share * (1.0 - share))
        if size and middle - 2.0 * _FAR * error < choice.least:
            found[:, j] = _truncated_binomial(rng, size, share, choice.least, draws)
            excess += float(found[:, j].mean()) - middle
    if total[kept]:
        found[:, kept] = rng.binomial(total[kept], min(1.0, max(0.0, share - excess / total[kept])), draws)
    others = total - found
    possible = (found.sum(axis=1) > 0) & (others.sum(axis=1) > 0)
    return found[possible], others[possible]


def _truncated_binomial(rng: np.random.Generator, size: int, share: float, least: int, draws: int) -> Ints:
    """Given that it is at least `least`: by its probabilities there, which fall so fast that a dozen standard errors hold all of them."""
    from scipy.special import gammaln

    reach = 2.0 * _FAR * (math.sqrt(size * share * (1.0 - share)) + 2.0)
    middle = size * share
    values = np.arange(max(least, int(middle - reach)), min(size, int(max(middle, least) + reach)) + 1)
    logs = values * math.log(share) + (size - values) * math.log1p(-share) - gammaln(values + 1.0) - gammaln(size - values + 1.0)
    running = np.cumsum(np.exp(logs - logs.max()))
    return np.asarray(values[np.searchsorted(running, rng.uniform(0.0, running[-1], draws))], np.int64)


def holm(p_values: list[float]) -> list[float]:
    """Adjusted for the number of tests (Holm 1979): among those below α, no false one with probability at least 1 - α."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, least = [0.0] * len(p_values), 0.0
    for position, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - position) * p_values[i]))
        found[i] = least
    return found


def in_base(figures: Divergences, base: float | None) -> Divergences:
    """KLs and JS in another unit; PSI stays in nats, in which its thresholds are."""
    unit = 1.0 if base is None else math.log(base)
    return Divergences(figures.kl_pq / unit, figures.kl_qp / unit, figures.js / unit, figures.psi)

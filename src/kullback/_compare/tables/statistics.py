"""Two rows of counts → how far apart, what of it chance alone would give, and how surely it is not chance.

Pure arithmetic over `kl` and `js`. Everything random has a fixed seed: the same counts give the same figures.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..._dispatch import kl
from ..._divergences import js

DRAWS = 9_999  # tables drawn for a p-value that tables do not give
_CELLS, _LEAST_DRAWS = 4_000_000, 999  # ... fewer where there are many cells
_DENSE = 20.0  # expected counts from which the chi-squared distribution and its mean are close enough
_SEED = 20_260_401
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
    """One row of figures for each row of counts: [rows, 4], with bins in use the same in all."""
    used = p.any(axis=0) | q.any(axis=0)
    p, q = p[:, used].astype(np.float64) + prior, q[:, used].astype(np.float64) + prior
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


def no_drift(p: Ints, q: Ints, prior: float, *, least: int = 0, chosen: int = 0) -> Test:
    """Could both be samples of one distribution? The G-test of homogeneity, on the counts as they are.

    The first `chosen` bins are levels the reference p kept because it has at least `least` of each. Where that choice could have gone
    otherwise, their counts in p are too high by selection, and the null distribution is taken given the choice.
    """
    used = (p + q) > 0
    kept = np.flatnonzero(used[:chosen]).size
    p, q = p[used].astype(np.int64), q[used].astype(np.int64)
    total, n, m = p + q, int(p.sum()), int(q.sum())
    g = float(_g(p[None, :], q[None, :])[0])
    degrees = len(p) - 1
    share = n / (n + m)
    if degrees < 1:
        return Test(0.0, 0, 1.0, Divergences(0.0, 0.0, 0.0, 0.0), 0)
    middle, error = total * share, np.sqrt(total * share * (1.0 - share))
    selected = bool((middle[:kept] - _FAR * error[:kept] < least).any())
    if not selected and min(float(middle.min()), float((total - middle).min())) >= _DENSE:
        return Test(g, degrees, _chi_squared(g, degrees), _wilks(degrees, n, m), 0)
    draws = min(DRAWS, max(_LEAST_DRAWS, _CELLS // len(p)))
    rng = np.random.default_rng(_SEED)
    other = bool(used[chosen]) if chosen < len(used) else False
    drawn = _selected_tables(rng, total, share, kept, least, draws, other) if selected else _tables(rng, total, n, draws)
    others = total - drawn
    possible = (drawn.sum(axis=1) > 0) & (others.sum(axis=1) > 0)
    drawn, others = drawn[possible], others[possible]
    # A hair of tolerance: equal tables must count as equal whatever the order of their sums.
    extreme = int(np.count_nonzero(_g(drawn, others) >= g * (1.0 - 1e-9) - 1e-9))
    floor = Divergences(*(float(x) for x in _divergences(drawn, others, prior).mean(axis=0)))
    return Test(g, degrees, (1 + extreme) / (1 + len(drawn)), floor, len(drawn))


def _g(p: Any, q: Any) -> Floats:
    """2·Σ observed·ln(observed/expected) = 2·n·KL(P‖M) + 2·m·KL(Q‖M), M the shares of both together."""
    both = p + q
    n, m = p.sum(axis=1), q.sum(axis=1)
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
    found = np.empty((draws, len(total)), np.int64)
    left, rest = np.full(draws, n, np.int64), int(total.sum())
    for j, size in enumerate(total):
        size = int(size)
        rest -= size
        found[:, j] = _hypergeometric(rng, size, rest, left) if rest else left
        left = left - found[:, j]
    return found


def _hypergeometric(rng: np.random.Generator, good: int, bad: int, sample: Ints) -> Ints:
    if good + bad < 1_000_000_000:  # NumPy's limit
        return np.asarray(rng.hypergeometric(good, bad, sample), np.int64)
    # Beyond it normal to many digits where it is wide, and binomial where it is not.
    share = sample / (good + bad)
    if good * float(share.min()) > 1000.0 and good * float(1.0 - share.max()) > 1000.0:
        spread = np.sqrt(good * share * (1.0 - share) * (bad / (good + bad - 1.0)))
        return np.clip(np.rint(rng.normal(good * share, spread)), np.maximum(0, sample - bad), np.minimum(good, sample)).astype(np.int64)
    return np.asarray(np.minimum(rng.binomial(good, share), sample), np.int64)


def _selected_tables(rng: np.random.Generator, total: Ints, share: float, kept: int, least: int, draws: int, other: bool) -> Ints:
    """Each value goes to P with probability `share`, given that each level kept has at least `least` there: truncated binomials.

    What the kept levels have too much of by selection, the pooled ones (the bin after them, if `other`) have too little of.
    """
    found = rng.binomial(total, share, (draws, len(total)))
    excess = 0.0
    for j in range(kept):
        size = int(total[j])
        middle, error = size * share, math.sqrt(size * share * (1.0 - share))
        if middle - 2.0 * _FAR * error < least:
            found[:, j] = _truncated_binomial(rng, size, share, least, draws)
            excess += float(found[:, j].mean()) - middle
    if other and total[kept]:
        found[:, kept] = rng.binomial(total[kept], min(1.0, max(0.0, share - excess / total[kept])), draws)
    return found


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

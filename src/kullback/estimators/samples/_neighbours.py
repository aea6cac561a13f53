"""KL from two samples by nearest neighbours: as published, with common balls, and with the ratio's slope in the ball taken out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._ops import ops_of
from .._estimate import Estimate
from ._inputs import Points, check_k, check_level, generator, read_one, read_points, refuse_constant_columns
from ._intervals import subsampled
from ._ratio import fit_ratio
from ._trees import Nested, Tree, kth_distances

VARIANTS = ("plain", "adaptive", "corrected")
# A ball may hold more points than this; see `Nested`.
CAP = 32
LARGEST_COUNT = 200
QUERIES_AT_ONCE = 50_000


def nearest_neighbours(
    x: Any, y: Any, k: int = 1, *, variant: str = "plain", level: float = 0.95, interval: bool = True, rng: Any = None
) -> Estimate:
    """KL(P‖Q) in nats from a sample of each, by distances to nearest neighbours.

    Parameters
    ----------
    x, y : array, points × coordinates (or one axis, for d = 1)
        Samples of P and of Q, of any framework; they are copied to the host, and there is no gradient. Sizes may differ.
    k : int
    variant : str
        ``"plain"``: Wang, Kulkarni & Verdú (2009), eq. 5: mean log-ratio of the k-th neighbours' distances in y and in x.
        ``"adaptive"``: their eq. 29, one ball for both samples, which holds at least k points of each: the number of neighbours
        depends on the data.
        ``"corrected"``: the same balls, after whitening, with the variation of p/q within each ball taken out by a fitted model of the
        ratio. Far less bias from d = 4 on; the default of `from_samples`.
    level : float
        Of the confidence interval, which is found by subsampling.
    interval : bool
        False saves the time the interval takes.
    rng : int or numpy.random.Generator, optional
        For the subsampling. The same data give the same answer unless it is set.

    Returns
    -------
    Estimate
        The estimate may be negative; it is not cut at 0.

    Notes
    -----
    Points that coincide: `plain` goes on to the first neighbour at a distance; the other variants count them as they are.

    Examples
    --------
    >>> from kullback.estimators import nearest_neighbours
    >>> round(nearest_neighbours([1.0, 2.0, 4.0], [1.5, 3.0]).value, 6)
    -0.693147
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> nearest_neighbours(rng.normal(0, 1, 10000), rng.normal(5, 5, 10000), k=5)  # exactly 1.6294
    1.582 ± 0.024 (nearest neighbours, k=5, d=1, n=10000, 95% interval 1.531 to 1.634)
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}: it must be one of {', '.join(map(repr, VARIANTS))}")
    level, rng = check_level(level), generator(rng)
    first, second, _ = read_points(x, y)
    check_k(k, len(first), len(second))
    refuse_constant_columns(first, second)
    return estimate_by_neighbours(first, second, k, variant, level, rng, interval)


def estimate_by_neighbours(
    x: Points, y: Points, k: int, variant: str, level: float, rng: np.random.Generator, interval: bool = True
) -> Estimate:
    """The same, of what has been checked."""
    at_x, at_y = np.zeros(len(x)), np.zeros(len(y))
    if variant == "corrected":
        x, y, at_x, at_y, _ = fit_ratio(x, y, rng)

    def terms(rows_x: Any, rows_y: Any) -> Points:
        if variant == "plain":
            return _plain_terms(x[rows_x], y[rows_y], k)
        return _ball_terms(x[rows_x], y[rows_y], at_x[rows_x], at_y[rows_y], k, rng)

    all_terms = terms(slice(None), slice(None))
    value = float(all_terms.mean())
    name = {"plain": "nearest neighbours", "adaptive": "nearest neighbours, common balls", "corrected": "nearest neighbours, corrected"}[
        variant
    ]
    method = f"{name}, k={k}, d={x.shape[1]}"
    if not interval:
        return Estimate(value, None, len(x), method, level=level)
    return subsampled(
        lambda rows_x, rows_y: float(terms(rows_x, rows_y).mean()),
        value, all_terms, (len(x), len(y)), dimension=x.shape[1], rounds=1 if len(x) > 50_000 else 2, method=method, level=level, rng=rng,
    )  # fmt: skip


def _plain_terms(x: Points, y: Points, k: int) -> Points:
    """log p̂ − log q̂ at each point, in some order: p̂ = k / (n−1) / (volume of the ball that reaches the k-th neighbour), q̂ likewise."""
    from scipy.special import digamma

    n, d = x.shape
    tree = Tree(x)
    queries = x[tree.order]
    to_x, rank_x = kth_distances(tree, queries, k, own=True, name="x")
    to_y, rank_y = kth_distances(Tree(y), queries, k, own=False, name="y")
    terms: Points = d * np.log(to_y / to_x) + math.log(len(y) / (n - 1))
    if np.any(rank_x != rank_y):
        terms += digamma(rank_x) - digamma(rank_y)
    return terms


# Let B be a ball around x. If p = q·e^f up to a constant, then log P(B)/Q(B) = log E[e^f | Q, B] + that constant, so that
#     log p(x)/q(x) = log P(B)/Q(B) + f(x) − C,      C = log E[e^f | Q, B] = −log E[e^(−f) | P, B],
# whatever the size of B: no bias is left. For any other f the last two terms vanish as B shrinks, so nothing is assumed of p and q; f only
# takes out what it knows. C is estimated from both samples' points in B by Bennett's (1976) acceptance ratio, the C with
#     mean over x in B of σ(C − f)  =  mean over y in B of σ(f − C).
# P(B) and Q(B) come from counts. The sample on whose k-th neighbour the ball ends: E log P(B) = ψ(k) − ψ(n+1); for the other, of which N
# points of n happen to lie within: E ψ(N + 1) − ψ(n + 1) ≈ log P(B), up to (1−P(B))^(n+1).
def _ball_terms(x: Points, y: Points, at_x: Points, at_y: Points, k: int, rng: np.random.Generator) -> Points:
    from scipy.special import digamma

    nested_x, nested_y = Nested(x, rng), Nested(y, rng)
    tree_x, tree_y = nested_x.all, nested_y.all
    out = []
    for start in range(0, len(x), QUERIES_AT_ONCE):
        rows = tree_x.order[start : start + QUERIES_AT_ONCE]
        queries = x[rows]
        to_x = tree_x.query(queries, k + 1, only_last=True)[0][:, 0]
        to_y = tree_y.query(queries, k, only_last=True)[0][:, 0]
        radii = np.maximum(to_x, to_y)
        cap = max(CAP, 2 * k)
        in_x, near_x, of_x = nested_x.within(queries, rows, radii, cap)
        in_y, near_y, of_y = nested_y.within(queries, None, radii, cap)
        count_x, of_x = _exact_counts(nested_x, queries, radii, in_x.sum(1), of_x, len(x) - 1)
        count_y, of_y = _exact_counts(nested_y, queries, radii, in_y.sum(1), of_y, len(y))
        # No ball at all (many points in one place): both counts are of an atom, and neither ends the ball.
        ends_x, ends_y = (to_x >= to_y) & (radii > 0.0), (to_y >= to_x) & (radii > 0.0)
        log_mass_x = digamma(count_x + ~(ends_x & (of_x == len(x) - 1))) - digamma(of_x + 1)
        log_mass_y = digamma(count_y + ~(ends_y & (of_y == len(y)))) - digamma(of_y + 1)
        terms = log_mass_x - log_mass_y
        if at_x.any():
            terms += at_x[rows] - _bennett(at_x[near_x], in_x, at_y[near_y], in_y)
        out.append(terms)
    return np.concatenate(out)


def _exact_counts(nested: Nested, queries: Points, radii: Points, counts: Any, sizes: Any, size: int) -> tuple[Any, Any]:
    """Counts and out of how many, where thinned counts stand for more than `cap` points: exact at atoms and up to LARGEST_COUNT.

    Thinned counts are unbiased, but neighbouring balls share their noise, most of all at an atom.
    """
    counts, sizes = counts.copy(), sizes.copy()
    own = size < len(nested.all.points)
    rows = np.flatnonzero((sizes < size) & (radii == 0.0))
    if len(rows):
        counts[rows], sizes[rows] = nested.count_copies(queries[rows]) - own, size
    k = LARGEST_COUNT + own + 1
    rows = np.flatnonzero((sizes < size) & (counts * (size / np.maximum(sizes, 1)) <= LARGEST_COUNT))
    if len(rows) and k <= len(nested.all.points):
        inside = np.sum(nested.all.query(queries[rows], k)[0] <= radii[rows, None], axis=1) - own
        exact = inside <= LARGEST_COUNT
        counts[rows[exact]], sizes[rows[exact]] = inside[exact], size
    return counts, sizes


def _bennett(f_x: Points, in_x: Any, f_y: Points, in_y: Any) -> Points:
    """C of the comment above, one a row, by Newton's method. Rows with no point of one sample use the mean of the other."""
    from scipy.special import expit

    weight_x = in_x / np.maximum(in_x.sum(1, keepdims=True), 1)
    weight_y = in_y / np.maximum(in_y.sum(1, keepdims=True), 1)
    mean_x, mean_y = (weight_x * f_x).sum(1), (weight_y * f_y).sum(1)
    some_x, some_y = in_x.any(1), in_y.any(1)
    c = np.where(some_x & some_y, 0.5 * (mean_x + mean_y), np.where(some_x, mean_x, mean_y))
    both = np.flatnonzero(some_x & some_y)
    f_x, f_y, weight_x, weight_y, solved = f_x[both], f_y[both], weight_x[both], weight_y[both], c[both]
    for _ in range(8):
        up, down = expit(solved[:, None] - f_x), expit(f_y - solved[:, None])
        slope = (weight_x * up * (1.0 - up)).sum(1) + (weight_y * down * (1.0 - down)).sum(1)
        # Steps are bounded: far from the root both sides are flat.
        solved = solved - np.clip(((weight_x * up).sum(1) - (weight_y * down).sum(1)) / np.maximum(slope, 1e-2), -2.0, 2.0)
    c[both] = solved
    return np.asarray(c)


def one_sample(x: Any, log_density: Callable[[Points], Any] | Any, k: int = 1, *, level: float = 0.95, rng: Any = None) -> Estimate:
    """KL(P‖Q) in nats from a sample of P, where Q's density is known.

    Parameters
    ----------
    x : array, points × coordinates (or one axis, for d = 1)
    log_density : callable or array
        log q: a function of the points, as an array n × d of NumPy, or its n values.
    k : int
        Neighbours for the entropy of P (Kozachenko & Leonenko 1987).
    level : float
        Of the confidence interval, by subsampling.
    rng : int or numpy.random.Generator, optional

    Returns
    -------
    Estimate
        inf where log q is −inf at a point of x: Q excludes what P produced.

    Examples
    --------
    >>> import numpy as np, scipy.stats
    >>> from kullback.estimators import one_sample
    >>> one_sample(np.random.default_rng(0).normal(size=10000), scipy.stats.norm(5, 5).logpdf, k=5)  # exactly 1.6294
    1.6076 ± 0.0092 (nearest neighbours, density of Q known, k=5, d=1, n=10000, 95% interval 1.588 to 1.627)
    """
    from scipy.special import digamma, gammaln

    level, rng = check_level(level), generator(rng)
    points = read_one(x)
    n, d = points.shape
    check_k(k, n)
    refuse_constant_columns(points, None)
    given = log_density(points) if callable(log_density) else log_density
    ops = ops_of(given)
    log_q = np.asarray(given if ops is None else ops.to_numpy(given), dtype=np.float64)
    if log_q.size != n:
        raise ValueError(f"log_density gives shape {log_q.shape} for {n} points: one number a point is needed")
    log_q = log_q.reshape(n)
    if np.isnan(log_q).any() or np.any(log_q == np.inf):
        row = int(np.flatnonzero(np.isnan(log_q) | (log_q == np.inf))[0])
        raise ValueError(f"log_density is {log_q[row]} at row {row} of x: a log-density is a number or -inf")
    method = f"nearest neighbours, density of Q known, k={k}, d={d}"
    if np.any(log_q == -np.inf):
        outside = int(np.sum(log_q == -np.inf))
        return Estimate(math.inf, math.inf, n, f"{method}: q is 0 at {outside} of {n} points", interval=(math.inf, math.inf), level=level)
    log_ball = 0.5 * d * math.log(math.pi) - float(gammaln(0.5 * d + 1.0))

    def terms(rows: Any) -> Points:
        part = points[rows]
        tree = Tree(part)
        to_x, ranks = kth_distances(tree, part[tree.order], k, own=True, name="x")
        log_p = digamma(ranks) - float(digamma(len(part))) - log_ball - d * np.log(to_x)
        out: Points = log_p - log_q[rows][tree.order]
        return out

    all_terms = terms(slice(None))
    return subsampled(
        lambda rows, _: float(terms(rows).mean()), float(all_terms.mean()), all_terms, (n, n),
        dimension=d, rounds=1 if n > 50_000 else 2, method=method, level=level, rng=rng,
    )  # fmt: skip

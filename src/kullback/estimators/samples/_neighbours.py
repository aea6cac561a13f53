"""KL from two samples by nearest neighbours: as published, with common balls, and with the ratio's slope in the ball taken out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..._errors import InvalidValue, one_of
from ..._ops import ops_of
from .._estimate import Estimate
from ._copies import find_copies
from ._inputs import Points, check_k, check_level, generator, in_range, read_one, read_points, refuse_constant_columns
from ._intervals import subsampled
from ._ratio import fit_ratio, whiten
from ._trees import Nested, TooManyTies, Tree, kth_distances

VARIANTS = ("plain", "adaptive", "corrected")
# A ball may hold more points than this; see `Nested`.
CAP = 64
LARGEST_COUNT = 200
QUERIES_AT_ONCE = 10_000
# A model that takes so few points for the other sample's has told the samples apart.
FEWEST_MISTAKEN = 2


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
    Points that coincide because of rounding or atoms: `plain` goes on to the first neighbour at a distance; the other variants count them
    as they are. Rows copied from one sample to the other are not counted as neighbours, repeated rows count once, and `method` says so.

    Examples
    --------
    >>> from kullback.estimators import nearest_neighbours
    >>> round(nearest_neighbours([1.0, 2.0, 4.0], [1.5, 3.0]).value, 6)
    -0.693147
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> nearest_neighbours(rng.normal(0, 1, 10000), rng.normal(5, 5, 10000), k=5)  # exactly 1.6294
    1.582 ± 0.024 (nearest neighbours, k=5, d=1, n=10000, 95% interval 1.528 to 1.637)
    """
    one_of("variant", variant, VARIANTS)
    level, rng = check_level(level), generator(rng)
    first, second, _ = read_points(x, y)
    check_k(k, len(first), len(second))
    refuse_constant_columns(first, second)
    return estimate_by_neighbours(first, second, k, variant, level, rng, interval)


def estimate_by_neighbours(
    x: Points, y: Points, k: int, variant: str, level: float, rng: np.random.Generator, interval: bool = True, extrapolate: bool = False
) -> Estimate:
    """The same, of what has been checked. `extrapolate`: see `subsampled`."""
    copies = find_copies(x, y)
    x, y, _ = in_range(copies.x, copies.y)
    k = min(k, len(x) - 1, len(y))
    given = x, y
    at_x, at_y = np.zeros(len(x)), np.zeros(len(y))
    if variant == "corrected":
        x, y, at_x, at_y, _ = fit_ratio(x, y, rng)
    copied = np.zeros(len(x), bool)
    copied[copies.in_x] = True

    def same(x: Points, y: Points) -> tuple[Points, Points]:
        """Copies again, after a map whose rounding may depend on the place of a row."""
        if len(copies.in_x):
            y = y.copy()
            y[copies.in_y] = x[copies.in_x]
        return x, y

    x, y = same(x, y)

    def terms(rows_x: Any, rows_y: Any) -> tuple[Points, Points]:
        if variant == "plain":
            found = _plain_terms(x[rows_x], y[rows_y], k, copied[rows_x])
            return found, found
        return _ball_terms(x[rows_x], y[rows_y], at_x[rows_x], at_y[rows_y], k, rng, copied[rows_x])

    all_terms, without = terms(slice(None), slice(None))
    name = {"plain": "nearest neighbours", "adaptive": "nearest neighbours, common balls", "corrected": "nearest neighbours, corrected"}[
        variant
    ]
    method = f"{name}, k={k}, d={x.shape[1]}{copies.note}"
    if not interval:
        return Estimate(float(all_terms.mean()), None, len(x), method, level=level)
    others = []
    if variant == "corrected" and x.shape[1] >= 3:
        others.append(float(without.mean()))
        with contextlib.suppress(TooManyTies):
            others.append(float(_plain_terms(*same(*whiten(*given)), 1, copied).mean()))
    found = subsampled(
        lambda rows_x, rows_y: float(terms(rows_x, rows_y)[0].mean()),
        all_terms, (len(x), len(y)), dimension=x.shape[1], k=k, method=method, level=level, rng=rng,
        ratios=_normalised(at_y), others=others, extrapolate=extrapolate,
    )  # fmt: skip
    mistaken = int(np.sum(at_x < 0.0) + np.sum(at_y > 0.0))
    if at_x.any() and mistaken <= FEWEST_MISTAKEN and found.interval is not None:
        # What lies beyond the overlap cannot be seen in samples of this size.
        return replace(found, interval=(found.interval[0], math.inf), method=f"{found.method}, hardly any overlap: may be far more")
    return found


def _normalised(log_ratio: Points) -> Points:
    """e^f, of mean 1."""
    ratio = np.exp(log_ratio - log_ratio.max())
    return np.asarray(ratio / ratio.mean())


def _plain_terms(x: Points, y: Points, k: int, copied: Any) -> Points:
    """log p̂ − log q̂ at each point, in some order: p̂ = k / (n−1) / (volume of the ball that reaches the k-th neighbour), q̂ likewise.

    `copied`: the points that y may have, too. Their copies there do not count, as they do not themselves in x.
    """
    from scipy.special import digamma

    n, d = x.shape
    tree = Tree(x)
    queries = x[tree.order]
    to_x, rank_x = kth_distances(tree, queries, k, own=True, name="x")
    tree_y = Tree(y)
    to_y, rank_y = kth_distances(tree_y, queries, k, own=False, name="y")
    rows = np.flatnonzero(copied[tree.order] & (len(y) > k))
    if len(rows):
        rows = rows[tree_y.query(queries[rows], 1)[0][:, 0] == 0.0]
        to_y[rows], rank_y[rows] = kth_distances(tree_y, queries[rows], k, own=True, name="y")
    terms: Points = d * np.log(to_y / to_x) + math.log(len(y) / (n - 1))
    terms[rows] += math.log1p(-1.0 / len(y))
    if np.any(rank_x != rank_y):
        terms += digamma(rank_x) - digamma(rank_y)
    return terms


# Let B be a ball around x. If p = q·e^(f + a), then among the points of both samples in B the odds of "x" to "y" are n/m·e^(f + a),
# and
#     log p(x)/q(x) = f(x) + a,
# whatever the size of B: a is the intercept of a logistic regression in B whose slope is known. For f = 0 it is log P(B)/Q(B), from counts.
# For any other f, f(x) + a tends to the same as B shrinks, so nothing is assumed of p and q: f only takes out what it knows.
# Of the sample on whose k-th neighbour the ball ends, that neighbour does not count, and the k − 1 within are drawn as those of the other
# sample are. E log P(B) = ψ(k) − ψ(n+1) for the one; for the other, with N of n within, E ψ(N + 1) − ψ(n + 1) ≈ log P(B), up to
# (1−P(B))^(n+1). ψ(N+1) ≈ log(N + ½), which is Firth's (1993) intercept for f = 0: so f adds the difference of his intercepts.
def _ball_terms(
    x: Points, y: Points, at_x: Points, at_y: Points, k: int, rng: np.random.Generator, copied: Any = False
) -> tuple[Points, Points]:
    """One term a point of x, in some order, with f and without. `copied` as above."""
    from scipy.special import digamma

    nested_x, nested_y = Nested(x, rng), Nested(y, rng)
    corrected = bool(at_x.any())
    cap = max(CAP, 2 * k)
    out, plain = [], []
    for start in range(0, len(x), QUERIES_AT_ONCE):
        rows = nested_x.all.order[start : start + QUERIES_AT_ONCE]
        queries = x[rows]
        near_x, near_y = nested_x.nearest(queries, cap), nested_y.nearest(queries, cap)
        # Copies in y, and how many points of y there are beside them.
        twin = np.broadcast_to(copied, len(x))[rows] & (near_y[0][:, 0] == 0.0) & (len(y) > k)
        own_y, size = np.where(twin, near_y[1][:, 0], -1), len(y) - twin
        to_x, to_y = near_x[0][:, k], np.where(twin, near_y[0][:, min(k, len(y) - 1)], near_y[0][:, k - 1])
        radii = np.maximum(to_x, to_y)
        # No ball at all (many points in one place): both counts are of an atom, and neither ends the ball.
        ends_x, ends_y = (to_x >= to_y) & (radii > 0.0), (to_y >= to_x) & (radii > 0.0)
        if np.any(copied):
            # The neighbour on which the ball ends may be in both samples: then it counts in neither.
            ends_x |= (near_x[0] == radii[:, None]).any(1) & (radii > 0.0)
            ends_y |= (near_y[0] == radii[:, None]).any(1) & (radii > 0.0)
        in_x, index_x, of_x = nested_x.within(queries, rows, radii, cap, near_x)
        in_y, index_y, of_y = nested_y.within(queries, own_y if twin.any() else None, radii, cap, near_y)
        count_x, size_x = _exact_counts(nested_x, queries, radii, in_x.sum(1), of_x, len(x) - 1)
        count_y, size_y = _exact_counts(nested_y, queries, radii, in_y.sum(1), of_y, size)
        log_mass_x = digamma(count_x + ~(ends_x & (size_x == len(x) - 1))) - digamma(size_x + 1)
        log_mass_y = digamma(count_y + ~(ends_y & (size_y == size))) - digamma(size_y + 1)
        terms = log_mass_x - log_mass_y
        plain.append(terms)
        if corrected:
            in_x, in_y = _within_only(in_x, ends_x & (of_x == len(x) - 1)), _within_only(in_y, ends_y & (of_y == size))
            here = at_x[rows, None]
            terms = terms + np.where(radii > 0.0, _intercepts(at_x[index_x] - here, in_x, at_y[index_y] - here, in_y), 0.0)
        out.append(terms)
    return np.concatenate(out), np.concatenate(plain)


def _within_only(inside: Any, ends: Any) -> Any:
    """Without the last, the farthest, where that is the neighbour on which the ball ends."""
    inside = inside.copy()
    rows = np.flatnonzero(ends & inside.any(1))
    inside[rows, inside[rows].sum(1) - 1] = False
    return inside


def _exact_counts(nested: Nested, queries: Points, radii: Points, counts: Any, sizes: Any, size: Any) -> tuple[Any, Any]:
    """Counts and out of how many, where thinned counts stand for more than `cap` points: exact at atoms and up to LARGEST_COUNT.

    Thinned counts are unbiased, but neighbouring balls share their noise, most of all at an atom.
    """
    counts, sizes, size = counts.copy(), sizes.copy(), np.broadcast_to(size, counts.shape)
    own = size < len(nested.all.points)
    rows = np.flatnonzero((sizes < size) & (radii == 0.0))
    if len(rows):
        counts[rows], sizes[rows] = nested.count_copies(queries[rows]) - own[rows], size[rows]
    k = LARGEST_COUNT + bool(own.any()) + 1
    rows = np.flatnonzero((sizes < size) & (counts * (size / np.maximum(sizes, 1)) <= LARGEST_COUNT))
    if len(rows) and k <= len(nested.all.points):
        inside = np.sum(nested.all.query(queries[rows], k)[0] <= radii[rows, None], axis=1) - own[rows]
        exact = inside <= LARGEST_COUNT
        counts[rows[exact]], sizes[rows[exact]] = inside[exact], size[rows[exact]]
    return counts, sizes


def _intercepts(f_x: Points, in_x: Any, f_y: Points, in_y: Any) -> Points:
    """a of the comment above with these f, less a with f = 0, one a row (so that n/m cancels).

    Firth's likelihood by Newton's method: its score is Σ (label − σ) + ½ − Σ v σ / Σ v, with v = σ(1−σ).
    """
    from scipy.special import expit

    offsets, inside = np.concatenate([f_x, f_y], 1), np.concatenate([in_x, in_y], 1)
    count_x, count = in_x.sum(1), inside.sum(1)
    # Only filled slots are worked on, as far as the fullest row has them.
    order = np.argsort(~inside, axis=1, kind="stable")[:, : max(int(count.max(initial=0)), 1)]
    is_x = order < in_x.shape[1]
    offsets, inside = np.take_along_axis(offsets, order, 1), np.take_along_axis(inside, order, 1)
    without = np.log((count_x + 0.5) / (count - count_x + 0.5))  # log n/m + a for f = 0
    mean = np.where(inside, offsets, 0.0).sum(1) / np.maximum(count, 1)
    solved = without - mean
    for _ in range(50):
        sigma = expit(solved[:, None] + offsets)
        v = np.where(inside, sigma * (1.0 - sigma), 0.0)
        information = v.sum(1)
        score = np.where(inside, is_x - sigma, 0.0).sum(1) + 0.5 - (v * sigma).sum(1) / np.maximum(information, 1e-300)
        # Steps are bounded: where f tells the samples apart the likelihood is flat.
        step = np.clip(score / np.maximum(information, 1e-2), -2.0, 2.0)
        solved += step
        if np.all(np.abs(step) < 1e-7):
            break
    return np.asarray(np.where(count > 0, solved - without, 0.0))


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
    1.6076 ± 0.0092 (nearest neighbours, density of Q known, k=5, d=1, n=10000, 95% interval 1.586 to 1.63)
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
        raise InvalidValue(f"log_density gives shape {log_q.shape} for {n} points: one number a point is needed")
    log_q = log_q.reshape(n)
    if np.isnan(log_q).any() or np.any(log_q == np.inf):
        row = int(np.flatnonzero(np.isnan(log_q) | (log_q == np.inf))[0])
        raise InvalidValue(f"log_density is {log_q[row]} at row {row} of x: a log-density is a number or -inf")
    copies = find_copies(points, points[:0])
    points, log_q, n = copies.x, log_q[copies.rows], len(copies.x)
    k = min(k, n - 1)
    method = f"nearest neighbours, density of Q known, k={k}, d={d}{copies.note}"
    if np.any(log_q == -np.inf):
        outside = int(np.sum(log_q == -np.inf))
        return Estimate(math.inf, math.inf, n, f"{method}: q is 0 at {outside} of {n} points", interval=(math.inf, math.inf), level=level)
    scaled, exponent = in_range(points)
    log_ball = 0.5 * d * math.log(math.pi) - float(gammaln(0.5 * d + 1.0)) + d * exponent * math.log(2.0)

    def terms(rows: Any) -> Points:
        part = scaled[rows]
        tree = Tree(part)
        to_x, ranks = kth_distances(tree, part[tree.order], k, own=True, name="x")
        log_p = digamma(ranks) - float(digamma(len(part))) - log_ball - d * np.log(to_x)
        out: Points = log_p - log_q[rows][tree.order]
        return out

    all_terms = terms(slice(None))
    return subsampled(
        lambda rows, _: float(terms(rows).mean()), all_terms, (n, n),
        dimension=d, k=k, method=method, level=level, rng=rng,
    )  # fmt: skip

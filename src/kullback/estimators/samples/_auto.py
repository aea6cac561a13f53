"""`from_samples`: looks at the columns, and chooses. Discrete columns first, by the chain rule; neighbours for what is continuous."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..._errors import InvalidOption, InvalidValue, one_of
from .._estimate import Estimate
from ._copies import find_copies
from ._discrete import count_rows, estimate_from_counts
from ._inputs import Points, Samples, check_k, check_level, generator, is_constant, read_any
from ._intervals import symmetric
from ._neighbours import VARIANTS, estimate_by_neighbours
from ._variational import BOUNDS, variational

METHODS = ("auto", *VARIANTS, "plug_in", *BOUNDS)
K = 3
# Fewer rows than this in a category: no neighbours to speak of.
FEWEST_ROWS = 10


def from_samples(
    x: Any, y: Any, method: str = "auto", *, discrete: Sequence[int] | None = None, level: float = 0.95, rng: Any = None
) -> Estimate:
    """KL(P‖Q) in nats, from nothing but a sample of each.

    Parameters
    ----------
    x, y : array, points × coordinates (or one axis, for d = 1)
        Of any framework, or a DataFrame (columns are matched by name); copied to the host, no gradient. Sizes may differ. Columns may
        hold text; dates count as numbers.
    method : str
        ``"auto"``: discrete columns by their frequencies (Miller–Madow; Dirichlet posteriors where x has a category that y has not), the
        others by `nearest_neighbours` with ``variant="corrected"``, extrapolated where blocks of rows show its bias, within each
        combination of the discrete ones: KL is the sum of both (chain rule). Or by name: ``"plain"``, ``"adaptive"``,
        ``"corrected"`` (neighbours), ``"plug_in"``, ``"donsker_varadhan"``, ``"nwj"``, ``"classifier"``.
    discrete : sequence of int, optional
        Which columns are discrete. By default those of text or booleans, and those with few values: at most the square root of
        the number of rows in both samples.
    level : float
        Of the confidence interval, which also admits the bias that cannot be excluded; `stderr` is noise alone.
    rng : int or numpy.random.Generator, optional

    Returns
    -------
    Estimate
        inf, with the reason in `method`, where a column is constant in one sample and another value in the other. An interval
        without upper end where the samples hardly overlap. Rows that were copied from one sample to the other, or repeated, are not
        counted as neighbours, and `method` says how many there are.

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.estimators import from_samples
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(1000, 10)), rng.normal(size=(1000, 10)) + np.eye(10)[0]
    >>> from_samples(x, y)                                       # exactly 0.5
    0.408 ± 0.056 (nearest neighbours, corrected, k=3, d=10, n=1000, 95% interval 0.1247 to 0.6923)
    >>> from_samples(x, y, method="plain").value < 0.35          # what nearest neighbours give by themselves
    True
    """
    one_of("method", method, METHODS)
    level, rng = check_level(level), generator(rng)
    if method in BOUNDS:
        return variational(x, y, bound=method, level=level, rng=rng)
    samples = read_any(x, y)
    if method == "plug_in":
        return _from_categories(samples.x, samples.y, level, rng, 0.0)
    columns = _discrete_columns(samples, discrete)
    n = len(samples.x)
    if len(columns) < samples.x.shape[1]:
        for name, sample in (("x", samples.x), ("y", samples.y)):
            if len(sample) < 2:
                raise InvalidValue(f"{name} has 1 row: a density cannot be seen in that; bring more rows")
        if n == len(samples.y) and np.array_equal(_sorted(samples.x), _sorted(samples.y)):
            # Not two samples, and every neighbour in y is a point of x itself.
            return Estimate(0.0, 0.0, n, "x and y are the same rows", interval=(0.0, 0.0), level=level)
    reason = _impossible(samples, columns)
    if reason:
        return Estimate(math.inf, math.inf, n, reason, interval=(math.inf, math.inf), level=level)
    flat = is_constant(samples.x, samples.y)
    varying = [j for j in columns if not flat[j]]
    continuous = [j for j in range(samples.x.shape[1]) if j not in columns]
    variant = "corrected" if method == "auto" else method
    if not continuous:
        return _from_categories(samples.x[:, varying], samples.y[:, varying], level, rng, 0.0) if varying else _nothing(n, level)
    k = K if method == "auto" else 1
    if not varying:
        check_k(1, n, len(samples.y))
        return estimate_by_neighbours(
            samples.x[:, continuous],
            samples.y[:, continuous],
            min(k, n - 1, len(samples.y)),
            variant,
            level,
            rng,
            extrapolate=method == "auto",
        )
    return _chain(samples, varying, continuous, k, variant, level, rng)


def _sorted(points: Points) -> Points:
    out: Points = points[np.lexsort(points.T)]
    return out


def _nothing(n: int, level: float) -> Estimate:
    return Estimate(0.0, 0.0, n, "every column is constant, and the same in both", interval=(0.0, 0.0), level=level)


def _discrete_columns(samples: Samples, asked: Sequence[int] | None) -> list[int]:
    x, y, labels = samples
    width = x.shape[1]
    if asked is not None:
        for j in asked:
            if isinstance(j, bool) or not isinstance(j, (int, np.integer)) or not -width <= j < width:
                raise InvalidOption(f"discrete names column {j!r}: there are {width}, counted from 0")
        return sorted({int(j) % width for j in asked} | set(labels))
    rows = len(x) + len(y)
    few = [j for j in range(width) if len(np.unique(np.concatenate([x[:, j], y[:, j]]))) ** 2 <= max(rows, 1)]
    return sorted(set(few) | set(labels))


def _impossible(samples: Samples, columns: list[int]) -> str:
    """Why P cannot have a density with respect to Q, where one constant column tells."""
    for j in range(samples.x.shape[1]):
        x, y = samples.x[:, j], samples.y[:, j]
        flat_x, flat_y = np.all(x == x[0]), np.all(y == y[0])
        if flat_y and np.any(x != y[0]) and (j not in columns or flat_x):
            only = "" if j in samples.labels else f" ({y[0]:g})"
            return f"column {j} is constant in y{only} and takes other values in x: Q excludes them"
        if flat_x and j not in columns and not np.any(y == x[0]):
            return f"column {j} is constant in x ({x[0]:g}), a value that y never takes: P has an atom where Q has none"
    return ""


def _from_categories(x: Points, y: Points, level: float, rng: np.random.Generator, within: Any) -> Estimate:
    counts = count_rows(x, y)[0]
    alone = int(np.sum(counts.sum(0) == 1))
    if 2 * alone > counts.sum() >= 10:
        raise InvalidValue(
            f"of {int(counts.sum())} rows {alone} are the only one of their kind: categories cannot be estimated from that; drop "
            f"identifiers, merge rare values, or name the discrete columns in discrete="
        )
    correction = "bayes" if np.any((counts[0] > 0) & (counts[1] == 0)) else "miller_madow"
    return estimate_from_counts(counts[0], counts[1], correction, 0.5, level, rng, within)


def _chain(
    samples: Samples, discrete: list[int], continuous: list[int], k: int, variant: str, level: float, rng: np.random.Generator
) -> Estimate:
    """KL of (C, Z) = KL of C + mean over C of KL of Z given C."""
    counts, code_x, code_y = count_rows(samples.x[:, discrete], samples.y[:, discrete])
    within = np.full(counts.shape[1], math.nan)
    errors, biases, endless = np.zeros(counts.shape[1]), np.zeros(counts.shape[1]), False
    for c in np.flatnonzero((counts[0] >= FEWEST_ROWS) & (counts[1] >= FEWEST_ROWS)):
        x, y = samples.x[code_x == c][:, continuous], samples.y[code_y == c][:, continuous]
        reason = _impossible(Samples(x, y), [])
        if reason:
            return Estimate(math.inf, math.inf, len(samples.x), f"in one category, {reason}", interval=(math.inf, math.inf), level=level)
        varying = ~is_constant(x, y)
        if not varying.any():
            within[c] = 0.0
            continue
        found = estimate_by_neighbours(x[:, varying], y[:, varying], k, variant, level, rng)
        within[c], errors[c] = found.value, found.stderr
        # What its interval has beyond the noise, and whether it has an end.
        noise = symmetric(found.value, found.stderr, found.n, "", level).interval
        assert found.interval is not None
        assert noise is not None
        open_ = math.isinf(found.interval[1])
        biases[c], endless = noise[0] - found.interval[0] if open_ else found.interval[1] - noise[1], endless or open_
    rare = np.isnan(within)
    if rare.all():
        raise InvalidValue(
            f"no combination of the discrete columns {discrete} has {FEWEST_ROWS} rows in both samples: merge rare values, "
            f"or name fewer columns in discrete="
        )
    # What too few rows cannot tell is taken to be as elsewhere; a category that P never shows has no weight.
    share = counts[0] / counts[0].sum()
    within[rare] = np.average(within[~rare], weights=np.maximum(share[~rare], 1e-300))
    whole = _from_categories(samples.x[:, discrete], samples.y[:, discrete], level, rng, within)
    missing = int(counts[0][rare].sum())
    method = f"chain rule: {whole.method}; nearest neighbours, {variant}, k={k}, d={len(continuous)}"
    method += f"; {missing} rows in rare categories count as the average" if missing else ""
    method += "; somewhere hardly any overlap: may be far more" if endless else ""
    method += find_copies(samples.x, samples.y).note
    error = math.hypot(whole.stderr, float(np.linalg.norm(share * errors)))
    found = symmetric(whole.value, error, len(samples.x), method, level, float(share @ biases))
    return replace(found, interval=(found.interval[0], math.inf)) if endless and found.interval else found

"""Confidence intervals by subsampling and by bootstrap. Estimators are given as functions of row indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._estimate import Estimate
from ._inputs import Points

BLOCKS = 10
MOST_ROWS_A_BLOCK = 10_000


def _t_quantile(level: float, freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def subsampled(
    estimate: Callable[[Any, Any], float],
    value: float,
    terms: Points,
    sizes: tuple[int, int],
    *,
    dimension: int,
    k: int,
    method: str,
    level: float,
    rng: np.random.Generator,
) -> Estimate:
    """The estimate, with the scatter of the same estimator over disjoint blocks of rows.

    A block with a fraction 1/B of the rows has B times the variance. It also has more bias: neighbours are B^(1/d) times as far, and the
    leading bias is of the order of their squared distance. So (mean over blocks − value)/(B^(2/d) − 1) tells the bias that is left, and
    the interval is widened by it (it is not moved: the exponent is that of smooth densities).
    """
    n, m = sizes
    blocks = min(BLOCKS, min(n, m) // max(10, 2 * k + 2))
    if blocks < 3:
        # Too few rows for blocks: the scatter of the terms, which knows nothing of y's sampling; hence twice its variance. The log of a
        # count of k varies by 1/k at least, also where the few terms happen to agree.
        error = math.sqrt(2.0 * max(float(np.var(terms, ddof=1)), 1.0 / k) / n)
        half = _t_quantile(level, n - 1) * error
        return Estimate(value, error, n, method, interval=(value - half, value + half), level=level)
    ratio = max(blocks, max(n, m) / MOST_ROWS_A_BLOCK)
    rows_x, rows_y = int(n / ratio), max(int(m / ratio), 5)
    rounds = 1 if n > 50_000 else 2
    found: list[list[float]] = []
    for _ in range(rounds):
        order_x, order_y = rng.permutation(n), rng.permutation(m)
        found.append(
            [
                estimate(np.sort(order_x[b * rows_x : (b + 1) * rows_x]), np.sort(order_y[b * rows_y : (b + 1) * rows_y]))
                for b in range(min(blocks, n // rows_x, m // rows_y))
            ]
        )
    error = math.sqrt(float(np.mean([np.var(f, ddof=1) for f in found])) / ratio)
    bias = (float(np.mean(found)) - value) / (ratio ** (2.0 / dimension) - 1.0)
    half = _t_quantile(level, rounds * (len(found[0]) - 1)) * math.hypot(error, bias)
    return Estimate(value, error, n, method, interval=(value - half, value + half), level=level)


def symmetric(value: float, error: float, n: int, method: str, level: float, **bounds: Any) -> Estimate:
    """value ± the normal quantile of its error."""
    half = _t_quantile(level, math.inf) * error
    return Estimate(value, error, n, method, interval=(value - half, value + half), level=level, **bounds)

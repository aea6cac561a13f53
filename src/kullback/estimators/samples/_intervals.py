"""Confidence intervals by subsampling, which admit the bias that cannot be excluded. Estimators are given as functions of row indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._estimate import Estimate
from ._inputs import Points

BLOCKS = 10
MOST_ROWS_A_BLOCK = 10_000
# The blocks differ from the whole by more than this many standard errors: that is bias, not noise.
VISIBLE = 3.0


def _t_quantile(level: float, freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def subsampled(
    estimate: Callable[[Any, Any], float],
    terms: Points,
    sizes: tuple[int, int],
    *,
    dimension: int,
    k: int,
    method: str,
    level: float,
    rng: np.random.Generator,
    ratios: Points | None = None,
    others: Sequence[float] = (),
    extrapolate: bool = False,
) -> Estimate:
    """The mean of the terms, its error from the same estimator on disjoint blocks of rows, and an interval wide enough for its bias.

    A block with a fraction 1/B of the rows has B times the variance. Where a model was fitted to all rows the blocks share it; so the
    error is at least that of an efficient estimator, Var log(p/q) / n + Var(p/q) / m, the latter by `ratios`, p/q at the rows of y.

    Blocks also have more bias: their neighbours are B^(1/d) times as far, and the bias is of the order of that distance where densities
    jump, of its square where they are smooth. Extrapolated from the change between blocks and whole, the first is what the interval
    admits. If the change is visible and `extrapolate` is set, the value is moved too, by the second, which is smaller.

    From d = 3 on, bias may fall off more slowly (n^(−1/d)) than noise. There the interval also reaches as far as `others` disagree:
    estimates of the same whose bias is a different one.
    """
    n, m = sizes
    value = float(terms.mean())
    blocks = min(BLOCKS, min(n, m) // max(10, 2 * k + 2))
    if blocks < 3:
        # Too few rows for blocks: the scatter of the terms, which knows nothing of y's sampling; hence twice its variance. The log of a
        # count of k varies by 1/k at least, also where the few terms happen to agree.
        error = math.sqrt(2.0 * max(float(np.var(terms, ddof=1)), 1.0 / k) / n)
        half = _t_quantile(level, n - 1) * error
        return Estimate(value, error, n, method, interval=_not_below_0(value, half), level=level)
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
    change = float(np.mean(found)) - value
    jumps, smooth = (change / (ratio ** (power / dimension) - 1.0) for power in (1.0, 2.0))
    visible = abs(change) > VISIBLE * error
    spread = float(np.var(ratios)) / m if ratios is not None else 0.0
    error = max(error, math.sqrt(float(np.var(terms)) / n + spread))
    if extrapolate and visible:
        value -= smooth
        error = math.hypot(error, error * smooth / change)
        method += ", extrapolated"
    bias = max([abs(jumps), *(abs(value - other) for other in others)] if dimension >= 3 else [abs(jumps)])
    half = _t_quantile(level, rounds * (len(found[0]) - 1)) * error + bias
    return Estimate(value, error, n, method, interval=_not_below_0(value, half), level=level)


def symmetric(value: float, error: float, n: int, method: str, level: float, bias: float = 0.0, **bounds: Any) -> Estimate:
    """value ± the normal quantile of its error, and as much more as its bias may be."""
    half = _t_quantile(level, math.inf) * error + bias
    return Estimate(value, error, n, method, interval=_not_below_0(value, half), level=level, **bounds)


def _not_below_0(value: float, half: float) -> tuple[float, float]:
    """value ± half as an interval of a number that is not negative. About 0 where the value is below: it never shrinks to nothing."""
    return max(value - half, 0.0), max(value, 0.0) + half

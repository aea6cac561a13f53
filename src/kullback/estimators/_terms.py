"""The terms of KL at points, from two log-densities, without cancellation; and how far rounding may have moved them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._ops import numpy as numpy_ops
from .._pairs import phi

Array = Any
EPSILON = float(np.finfo(np.float64).eps)


class Terms(NamedTuple):
    """p and q; p log(p/q); p log(p/q) - p + q, which is ≥ 0; and how much rounding in the log-densities may move the last two."""

    p: Array
    q: Array
    plain: Array
    gap: Array
    plain_rounding: Array
    gap_rounding: Array


def phi_of(d: Array) -> Array:
    """e^d - 1 - d for any d."""
    large = d > 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(large, np.exp(d) - 1.0 - d, phi(numpy_ops, np.where(large, 0.0, d)))


def terms(log_p: Array, log_q: Array, size: Array = 0.0) -> Terms:
    """`size` is that of the numbers the log-densities are made of."""
    with np.errstate(over="ignore", invalid="ignore"):
        p, q = np.exp(log_p), np.exp(log_q)
        p, q = np.where(np.isnan(p), 0.0, p), np.where(np.isnan(q) & ~(p > 0), 0.0, q)
        inside = p > 0.0
        d = np.where(inside, log_q - log_p, 0.0)
        plain = np.where(inside, -d * np.where(inside, p, 1.0), 0.0)
        far = d > 1.0
        near = p * phi(numpy_ops, np.where(far | ~inside | ~np.isfinite(d), 0.0, d))
        gap = np.where(inside, np.where(far, q - p * (1.0 + d), near), q)
        gap = np.where(inside & ~np.isfinite(d), np.where(np.isnan(d), np.nan, np.inf), gap)
        # Log-densities are rounded at ε times the numbers they are made of.
        of_p = 4.0 * EPSILON * (1.0 + size + np.abs(np.where(inside, log_p, 0.0)))
        wrong = of_p + 4.0 * EPSILON * np.abs(np.where(inside & np.isfinite(d), log_q, 0.0))
        # The terms are p f(d), d = log(q/p): both p and d are off.
        sizes = [np.abs(np.where(np.isfinite(x), x, 0.0)) for x in (plain, gap)]
        return Terms(p, q, plain, gap, p * wrong + sizes[0] * of_p, np.abs(q - p) * wrong + sizes[1] * of_p)

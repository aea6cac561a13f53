"""Primitives on Python's own floats: for one pair of distributions a framework's calls cost more than the arithmetic.

Only what formulas of numbers need; whatever leaves the ordinary (log of 0, division by 0, a condition that is no bool) raises, and the
caller takes the framework's own way.
"""

from __future__ import annotations

import math
from typing import Any

from .log_gamma import of_floats as log_gamma_remainder  # noqa: F401  one of the primitives

name = "Python"
float32, float64 = "float32", "float64"
exp, log, log1p, isnan = math.exp, math.log, math.log1p, math.isnan
LARGEST_FLOAT32 = 3.4028234663852886e38


def rounded_to_float32(x: float) -> float:
    """A float above the largest of float32, rounded to one of float32."""
    return math.inf if x >= LARGEST_FLOAT32 + 2.0**103 else LARGEST_FLOAT32


def where(condition: Any, x: Any, y: Any) -> Any:
    if condition is True:
        return x
    if condition is False:
        return y
    raise TypeError(f"{condition!r} is no bool")  # ~True is -2


def high(x: float) -> float:
    scaled = 134217729.0 * x
    return scaled - (scaled - x)


def refine(value: float, size: float, exact: Any, *numbers: float) -> float:
    """value where rounding errors of 1e-15 size are nothing beside it, else exact(*numbers)."""
    return value if 1e-15 * size <= 1e-12 * value else exact(*numbers)


def stop_gradient(x: float) -> float:
    return x


def barrier(x: float) -> float:
    return x

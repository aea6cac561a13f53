"""Failures that the search has found and that are not mended yet.

An entry goes with its cause. `make fuzz` shows these failures all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from outcome import Outcome

Case = dict[str, Any]


def _holds(case: Case, test: Callable[[float], bool]) -> bool:
    """Is there such a finite number in one of the arrays?"""
    texts = [text for array in case.get("arrays", []) for text in array["values"]] if "arrays" in case else []
    return any(test(number) for number in map(float, map(str, texts)) if math.isfinite(number))


def _mask(x: float) -> bool:
    return x <= -50.0


KNOWN: dict[str, Callable[[Case, str], bool]] = {
    "a quotient of two numbers overflows or underflows where one is 1e300 times the other": lambda case, why: (
        "options" in case and _holds(case, lambda x: abs(x) >= 1e30)
    ),
    "gradients, and divergences of several kinds, lose digits beside probabilities at the end of the floats": lambda case, why: (
        "options" in case and _holds(case, lambda x: 0.0 < abs(x) < 1e-37)
    ),
    "mixtures and Rényi divergences lose digits where a category is masked and the others are nearly equal": lambda case, why: (
        case.get("function") in ("js", "jeffreys", "renyi", "cross_entropy", "kl_loss") and _holds(case, _mask)
    ),
    "Rényi divergences of huge orders see the rounding of a prior": lambda case, why: (
        case.get("function") == "renyi" and "options" in case and case["options"].get("order", 1.0) >= 1e5
    ),
}


def is_known(case: Case, found: Outcome) -> bool:
    return any(matches(case, found.why) for matches in KNOWN.values())

"""Failures that the search has found and that are not mended yet.

An entry goes with its cause. `make fuzz` shows these failures all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from outcome import Outcome

Case = dict[str, Any]


def _holds(case: Case, test: Callable[[float], bool]) -> bool:
    """Is there such a finite number in one of the arrays?"""
    texts = [text for array in case.get("arrays", []) for text in array["values"]] if "arrays" in case else []
    return any(test(number) for number in map(float, map(str, texts)) if math.isfinite(number))


# A number that is off, as opposed to an error, a crash, or a row that should have been refused.
_OFF = re.compile(r"is right|holds NaN where the values are finite")

KNOWN: dict[str, Callable[[Case, str], bool]] = {
    "a quotient of two numbers overflows or underflows where one is 1e300 times the other": lambda case, why: (
        "options" in case and bool(_OFF.search(why)) and _holds(case, lambda x: abs(x) >= 1e30)
    ),
    "gradients lose digits beside probabilities at the end of the floats": lambda case, why: (
        "options" in case and bool(_OFF.search(why)) and _holds(case, lambda x: 0.0 < abs(x) < 1e-37)
    ),
    "mixtures and Rényi divergences lose digits where a category is masked and the others are nearly equal": lambda case, why: (
        case.get("function") in ("js", "jeffreys", "renyi", "kl_loss") and bool(_OFF.search(why)) and _holds(case, lambda x: x <= -50.0)
    ),
    "Rényi divergences of huge orders see the rounding of a prior": lambda case, why: (
        case.get("function") == "renyi" and bool(_OFF.search(why)) and case.get("options", {}).get("order", 1.0) >= 1e5
    ),
    "a factor above 1 makes the lowest float infinite": lambda case, why: (
        case.get("function") == "kl_loss" and case.get("options", {}).get("logit_scale", 1.0) > 1.0 and "is -inf everywhere" in why
    ),
}


def is_known(case: Case, found: Outcome) -> bool:
    return any(matches(case, found.why) for matches in KNOWN.values())

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


def _narrow(case: Case) -> bool:
    return any(array["dtype"] == "float32" for array in case["arrays"])


# A number that is off, as opposed to an error, a crash, or a row that should have been refused.
_OFF = re.compile(r"is right|holds NaN where the values are finite")

KNOWN: dict[str, Callable[[Case, str], bool]] = {
    # A factor for the whole row keeps its sum from overflow, and takes the smallest count to 0.
    "counts beside counts 1e600 times as large": lambda case, why: (
        "counts" in case.get("options", {}).get("form", ())
        and bool(_OFF.search(why))
        and _holds(case, lambda x: abs(x) >= 1e295)
        and _holds(case, lambda x: 0.0 < abs(x) < 1e-290)
    ),
    # The derivative to log p is computed first, which is subnormal, and then divided by p.
    "gradients to probabilities below the smallest normal number lose digits": lambda case, why: (
        why.startswith("the gradient") and _holds(case, lambda x: 0.0 < abs(x) < (1e-37 if _narrow(case) else 1e-300))
    ),
    # They are of first order in log(p/q), which the sums with the prior move by a rounding error.
    "Rényi divergences of huge orders see the rounding of a prior": lambda case, why: (
        case.get("function") == "renyi" and bool(_OFF.search(why)) and case["options"]["order"] >= 1e5 and "prior" in case["options"]
    ),
    # The mean is a sum that is divided. Weights up to 1e10, T^2 and the unit are factors.
    "a sum of divergences near the largest float overflows before it is divided": lambda case, why: bool(
        re.match(r"inf where \d[\d.]*e\+(2[6789]|3\d|29[6789]|30\d) is right", why)
    ),
}


def is_known(case: Case, found: Outcome) -> bool:
    return any(matches(case, found.why) for matches in KNOWN.values())

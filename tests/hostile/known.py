"""Failures that the search has found and that are not mended yet.

An entry goes with its cause. `make fuzz` shows these failures all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outcome import Outcome

Case = dict[str, Any]

KNOWN: dict[str, Callable[[Case, str], bool]] = {
    "the quotient of two probabilities overflows where one is below 1e-308": lambda case, why: (
        case.get("function") in ("jeffreys", "kl", "cross_entropy", "renyi") and "options" in case and "1e+308" in str(case["arrays"])
    ),
}


def is_known(case: Case, found: Outcome) -> bool:
    return any(matches(case, found.why) for matches in KNOWN.values())

"""Failures that the search has found and that are not mended yet.

An entry goes with its cause. `make fuzz` shows these failures all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outcome import Outcome

Case = dict[str, Any]

KNOWN: dict[str, Callable[[Case, str], bool]] = {
    "js loses digits, in value and gradient, where mix is near 0 or 1": lambda case, why: (
        case.get("function") == "js" and "options" in case and not 0.05 < case["options"].get("mix", 0.5) < 0.95
    ),
    "the gradient of entropies cancels where categories are nearly equal": lambda case, why: (
        case.get("function") in ("entropy", "cross_entropy") and "the gradient" in why
    ),
    "float64 temperatures whose inverse overflows give NaN without a reason": lambda case, why: (
        isinstance(case.get("options"), dict) and case["options"].get("temperature") == 1e-310 and why.startswith("NaN")
    ),
    "elementwise functions overflow between numbers that are far apart": lambda case, why: (
        case.get("function") in ("rel_entr", "kl_div") and "inf where" in why
    ),
    "an infinite probability beside a prior becomes NaN before anyone looks at it": lambda case, why: (
        isinstance(case.get("options"), dict) and "prior" in case["options"] and why.startswith("a row that is no distribution")
    ),
}


def is_known(case: Case, found: Outcome) -> bool:
    return any(matches(case, found.why) for matches in KNOWN.values())

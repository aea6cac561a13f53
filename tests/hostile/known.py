"""Failures that the search has found and that are not mended yet.

An entry goes with its cause. `make fuzz` shows these failures all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outcome import Outcome

Case = dict[str, Any]

KNOWN: dict[str, Callable[[Case, str], bool]] = {}


def is_known(case: Case, found: Outcome) -> bool:
    return any(matches(case, found.why) for matches in KNOWN.values())

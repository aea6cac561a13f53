"""A framework's primitives again, marked: numbers that came as float32 are computed in float64, so that plain remainders will do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def marked(names: dict[str, Any]) -> SimpleNamespace:
    """Made once, when the module is imported: compilers follow it then."""
    return SimpleNamespace(**{name: value for name, value in names.items() if not name.startswith("__")}, direct=True)

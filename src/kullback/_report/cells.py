"""The words in a cell: numbers, shares, units and names, the same in every output."""

from __future__ import annotations

import math


def unit(base: float, other: str = "units of log base {:g}") -> str:
    return {math.e: "nats", 2.0: "bits", 10.0: "dits"}.get(base, other.format(base))


def number(x: float, digits: int = 4) -> str:
    """As short as it can be said: 0.0446, 1.2e-7, 12,300, inf."""
    if not math.isfinite(x):
        return {math.inf: "inf", -math.inf: "-inf"}.get(x, "-")
    if x == 0 or 1e-4 <= abs(x) < 1e6:
        text = f"{x:,.{digits}g}" if abs(x) < 10**digits else f"{x:,.0f}"
        return text if "e" not in text else f"{x:,.0f}"
    return f"{x:.{max(0, digits - 1)}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def percent(x: float, digits: str = ".2f") -> str:
    return "-" if math.isnan(x) else f"{100 * x:{digits}}%"


def printable(label: str) -> str:
    """A label that cannot move the cursor or break a line: control characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in label)


def shortened(name: str, most: int) -> str:
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"

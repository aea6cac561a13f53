"""What a column is, the bins it falls into, and where a bin ends in the column's own arithmetic.

Pure: no engine, no files. A cut is a real number; `threshold` puts it into the arithmetic of a float, an integer or a decimal column, so
that counting is exact and every engine counts the same, whatever the types on the two sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Any, NamedTuple

Number = int | float | Decimal

# "none": a column without a single value, in a file that does not say its type. "identifier": a column whose values say who, and not what;
# it is not compared. Both go with any other kind, and all their values are in one bin.
UNBINNED = ("none", "identifier")
KINDS = ("number", "time", "boolean", "text", *UNBINNED)
NOT_COMPARABLE = "not comparable: nearly every value of P occurs once only, as in identifiers and sequence numbers"
# Beside the intervals of a number or time column, in this order.
SPECIAL = ("-inf", "+inf", "NaN", "missing")
_LARGEST = float.fromhex("0x1.fffffffffffffp+1023")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Type(NamedTuple):
    """`domain` of numbers: "float", "integer" (times too, in microseconds) or "decimal" with `scale` digits.

    The last two go from `low` to `high`, in units of the last digit.
    """

    kind: str
    name: str
    domain: str = ""
    scale: int = 0
    low: int = 0
    high: int = 0

    @property
    def is_whole(self) -> bool:
        """Whole numbers by their type. Floats are measurements, and times have an order that says something."""
        return self.kind == "number" and self.domain in ("integer", "decimal") and self.scale == 0


def integer_type(name: str, *, bits: int = 64, signed: bool = True) -> Type:
    return Type("number", name, "integer", 0, -(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)


def decimal_type(name: str, precision: int, scale: int) -> Type:
    return Type("number", name, "decimal", scale, 1 - 10**precision, 10**precision - 1)


def float_type(name: str) -> Type:
    return Type("number", name, "float")


def time_type(name: str) -> Type:
    return Type("time", name, "integer", 0, -(2**63), 2**63 - 1)


class Cut(NamedTuple):
    """Between what is at most `value` and what is more; with `below`, between what is less than it and what is not."""

    value: Number
    below: bool = False


class Bins(NamedTuple):
    """The bins of one column, all taken from the reference.

    number, time: one more interval than `cuts`, then SPECIAL. text: `levels`, then all others, then missing. boolean: false, true, missing.
    UNBINNED: any value, missing.
    `least` is the smallest count with which the reference could keep a level, and `pooled` how many of its levels it did not.
    """

    kind: str
    cuts: tuple[Cut, ...] = ()
    levels: tuple[str, ...] = ()
    least: int = 0
    pooled: int = 0

    def __len__(self) -> int:  # the number of bins
        if self.kind in ("number", "time"):
            return len(self.cuts) + 1 + len(SPECIAL)
        return 3 if self.kind == "boolean" else len(self.levels) + 2  # UNBINNED have no levels


def in_one_bin(bins: Bins, of: Type) -> bool:
    """Only whether there is a value counts."""
    return bins.kind in UNBINNED or of.kind == "none"


def is_identifier(present: int, distinct: int) -> bool:
    """Texts that nearly all occur once, so that none of them could have a bin of its own. Of fewer than 20 that may be chance."""
    return present >= 20 and distinct > 0.9 * present


def is_sequence(count: int, distinct: int, low: int, high: int) -> bool:
    """Whole numbers from `low` to `high` that hardly repeat, though independent draws would.

    Of n draws from R equally likely values about n - R(1 - e^(-n/R)) repeat an earlier one, and more if some values are likelier. So prices
    and ages are no sequences, and neither are a few numbers or numbers far apart."""
    span = high - low + 1
    expected = count + span * math.expm1(-count / span)
    return expected >= 40.0 and count - distinct <= 0.1 * expected


def ranks(count: int, bins: int) -> list[int]:
    """Which of `count` sorted values end the bins: the ⌈k·count/bins⌉-th, each once, and not the last."""
    return sorted({-(-k * count // bins) for k in range(1, bins)} - {0, count}) if count else []


def quantile_bins(kind: str, edges: Sequence[Number]) -> Bins:
    """Intervals (a, b] between the edges. A value that two edges share fills more than a bin: it gets one of its own."""
    cuts: list[Cut] = []
    for value, same in groupby(x + 0 if isinstance(x, float) else x for x in edges):  # + 0: no negative zeros
        cuts += [Cut(value, below=True), Cut(value)] if len(list(same)) > 1 else [Cut(value)]
    return Bins(kind, tuple(cuts))


def level_bins(most: Sequence[tuple[str, int]], distinct: int, *, levels: int) -> Bins:
    """`most`: the reference's levels + 1 most frequent levels with their counts, most frequent first, ties in order of code points.

    Kept are those more frequent than the last of these, if there are so many, but none that occurs only once: it would say who, not what.
    So no tie is broken by name, and whether a level is kept depends on its count alone.
    """
    least = max(1, most[levels][1] if len(most) > levels else 0) + 1
    kept = tuple(level for level, count in most if count >= least)
    return Bins("text", levels=kept, least=least, pooled=distinct - len(kept))


def threshold(cut: Cut, to: Type) -> Number | None:
    """The largest value of the type on the lower side of the cut: there, and only there, x <= threshold. None: no value is."""
    value, below = cut
    if to.domain == "float":
        try:
            nearest = float(value)
        except OverflowError:
            nearest = math.copysign(math.inf, value)
        if math.isinf(nearest):
            nearest = math.copysign(_LARGEST, nearest)
        under = nearest < value if below else nearest <= value
        found = nearest if under else math.nextafter(nearest, -math.inf)
        return None if math.isinf(found) else float(found)
    exact = Fraction(value) * 10**to.scale
    unit: int = math.ceil(exact) - 1 if below else math.floor(exact)
    if unit < to.low:
        return None
    unit = min(unit, to.high)
    if to.domain == "integer":
        return unit
    return Decimal((int(unit < 0), tuple(map(int, str(abs(unit)))), -to.scale))


def from_cumulative(bins: Bins, at_most: Sequence[int], special: Sequence[int], rows: int) -> list[int]:
    """Counts of a number or time column: from how many are <= each threshold (-inf among them), SPECIAL's counts, and all rows."""
    finite = rows - sum(special)
    steps = [0, *(n - special[0] for n in at_most), finite]
    return [b - a for a, b in pairwise(steps)] + list(special)


def labels(bins: Bins) -> list[str]:
    """A name for each bin; intervals as mathematics writes them."""
    if bins.kind == "boolean":
        return ["false", "true", "missing"]
    if bins.kind in UNBINNED:
        return ["any value", "missing"]
    if bins.kind == "text":
        return [*bins.levels, "other levels", "missing"]
    write = written_time if bins.kind == "time" else written_number
    ends: list[Cut | None] = [None, *bins.cuts, None]
    found = []
    for low, high in pairwise(ends):
        if low and high and low.value == high.value:
            found.append(f"= {write(low.value)}")
        else:
            left = "(-∞" if low is None else f"{'[' if low.below else '('}{write(low.value)}"
            right = "∞)" if high is None else f"{write(high.value)}{')' if high.below else ']'}"
            found.append(f"{left}, {right}")
    return found + list(SPECIAL)


def written_number(value: Number) -> str:
    return (
        repr(value)
        if isinstance(value, float) and not value.is_integer()
        else f"{value:f}"
        if isinstance(value, Decimal)
        else _whole(value)
    )


def _whole(value: float) -> str:
    return str(int(value)) if abs(value) < 1e16 or isinstance(value, int) else repr(value)


def written_time(value: Any) -> str:
    """Microseconds since 1970 in UTC, as ISO 8601; a date where it is midnight."""
    try:
        moment = _EPOCH + timedelta(microseconds=int(value))
    except OverflowError:
        return f"{value} µs"
    text = moment.replace(tzinfo=None).isoformat()
    return text.removesuffix("T00:00:00")

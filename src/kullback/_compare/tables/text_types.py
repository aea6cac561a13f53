"""Types of columns in files that have none (CSV; dates in JSON lines), by one rule, so that every engine sees the same.

A column has the first type below that all its values have; a field that is empty without quotes is missing, and in a number column NA, N/A
and null are too. Numbers with leading zeros are codes, and stay text.
"""

from __future__ import annotations

from typing import NamedTuple


class TextType(NamedTuple):
    """`pattern`: what each value looks like whole, in the syntax that RE2 and Java share; `sql`: the type to cast to."""

    name: str
    pattern: str
    sql: str


_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"[ T]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
_ZONE = "(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])"  # beyond 18 hours Spark has none, and nobody

MISSING_NUMBERS = ("NA", "N/A", "null", "NULL", "")
NUMBERS = (
    TextType("integer", "[+-]?(0|[1-9][0-9]{0,17})", "BIGINT"),
    TextType("long integer", "[+-]?(0|[1-9][0-9]{0,37})", "DECIMAL(38,0)"),
    TextType("number", r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[Nn]a[Nn]|[+-]?[Ii]nf(inity)?", "DOUBLE"),
)
OTHERS = (TextType("boolean", "true|false|True|False|TRUE|FALSE", "BOOLEAN"),)
TIMES = (
    TextType("date", _DATE, "DATE"),
    TextType("time", f"{_DATE}{_CLOCK}", "TIMESTAMP"),
    TextType("time with zone", f"{_DATE}{_CLOCK}{_ZONE}", "TIMESTAMPTZ"),
)

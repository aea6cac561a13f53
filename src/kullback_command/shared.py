"""What the subcommands share: how arguments are read and text is written."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

# The exit code of an exception that nothing foresaw: EX_SOFTWARE of sysexits.h. 1 is a verdict, and 2 an error of the caller's.
BUG = 70

_ASCII = str.maketrans({
    "‖": "||", "·": "*", "▒": "-", "∞": "inf", "±": "+/-", "₂": "2", "₁": "1", "₀": "0", "Δ": "delta ", "Σ": "sum", "½": "1/2 ", "−": "-",
    "×": "x", "…": "...", "→": "->", "²": "^2", "χ": "chi", "φ": "phi",
    "⌈": "ceil(", "⌉": ")",
} | dict.fromkeys("█▉▊▋▌▍▎▏", "#"))  # fmt: skip
# Where a bar ends a cell, and a star begins emphasis.
_MARKDOWN = _ASCII | str.maketrans({"‖": r"\|\|", "·": r"\*"})


class Refusal(Exception):
    """What the command cannot do for its caller, and why, in one sentence."""


def version() -> str:
    """The installed version of kullback, without an import of kullback, which would load NumPy."""
    from importlib.metadata import version

    return version("kullback")


def base(text: str) -> float | None:
    try:
        return None if text.strip() == "e" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor e") from None


def between(low: float, high: float, words: str) -> Callable[[str], float]:
    """A type of argument: a number from `low` to `high`, for which `words` stand."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= (value := float(text)) <= high:
                return value
        raise argparse.ArgumentTypeError(f"{text.strip()!r} is not a number {words}")

    return read


def positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text.strip()!r} is not a whole number above 0")
    return int(text)


def write(text: str, kind: Literal["text", "markdown", "json"] = "text") -> None:
    """`kind` is for an output that knows no Greek: what stands for it there must not break what it is in."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        if kind == "json":
            text = "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)
        else:
            text = text.translate(_MARKDOWN if kind == "markdown" else _ASCII)
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    print(text)

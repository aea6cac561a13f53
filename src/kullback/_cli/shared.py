"""What the subcommands share: how arguments are read and text is written."""

from __future__ import annotations

import argparse
import sys

_ASCII = str.maketrans(
    {"‖": "||", "·": "*", "▒": "-", "∞": "inf", "±": "+/-", "₂": "2", "₁": "1", "₀": "0"} | dict.fromkeys("█▉▊▋▌▍▎▏", "#")
)


def base(text: str) -> float | None:
    try:
        return None if text.strip() == "e" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor e") from None


def positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text.strip()!r} is not a whole number above 0")
    return int(text)


def write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    print(text)

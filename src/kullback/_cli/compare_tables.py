"""Options of `kullback compare` for tables. A stand-in."""

from __future__ import annotations

import argparse
from typing import Any


def add_options(parser: argparse.ArgumentParser) -> None:
    """None yet."""


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {}

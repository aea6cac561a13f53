"""Options of `kullback compare` and `kullback profile` for tables."""

from __future__ import annotations

import argparse
from typing import Any

from .shared import positive


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `compare`."""
    tables = parser.add_argument_group("tables")
    tables.add_argument(
        "--prior", type=_prior, help="added to the count of each bin on both sides (default 0.5; 0: inf where one is empty)"
    )
    tables.add_argument("--common", action="store_true", help="go on with the columns that both sides have in a like type")
    add_reading(tables)


def add_reading(tables: Any) -> None:
    """What `compare` and `profile` share."""
    tables.add_argument(
        "--columns", metavar="A,B", help="the columns to take (default: all); quotes protect a comma in a name: '\"a,b\",c'"
    )
    tables.add_argument("--pairs", metavar="A:B,C:D", help="columns whose joint distribution is taken too (default: those of a profile)")
    tables.add_argument("--bins", type=positive, metavar="N", help="quantile bins of a number or time column (default 10)")
    tables.add_argument("--levels", type=positive, metavar="N", help="most frequent levels of a text column with a bin each (default 50)")
    tables.add_argument("--delimiter", metavar="C", help="of CSV files (default: found in the first line)")
    tables.add_argument("--engine", choices=("duckdb", "spark"), default="duckdb", help="who reads and counts (default duckdb)")
    tables.add_argument("--master", metavar="URL", help="Spark's master, with --engine spark (default: this machine)")
    tables.add_argument("--memory", default="2GB", metavar="SIZE", help="what DuckDB may use before it spills to disk (default 2GB)")


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """As keywords of `compare_tables`."""
    found = {**reading(arguments), "common": arguments.common}
    return found if arguments.prior is None else {**found, "prior": arguments.prior}


def given(arguments: argparse.Namespace) -> list[str]:
    """The options for tables that were given."""
    names = ("prior", "common", "columns", "pairs", "bins", "levels", "delimiter", "master")
    found = [name for name in names if getattr(arguments, name) is not None and getattr(arguments, name) is not False]
    return [*found, *(["engine"] if arguments.engine != "duckdb" else [])]


def reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """As keywords that `compare_tables` and `profile` share."""
    return {
        "columns": None if arguments.columns is None else _listed(arguments.columns),
        "pairs": None if arguments.pairs is None else _listed(arguments.pairs),
        "bins": arguments.bins,
        "levels": arguments.levels,
        "delimiter": None if arguments.delimiter is None else arguments.delimiter.replace("\\t", "\t"),
        "engine": arguments.engine,
        "master": arguments.master,
        "memory": arguments.memory,
    }


def _listed(text: str) -> list[str]:
    """Separated by commas; quotes protect one in a name."""
    import csv

    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True))]


def _prior(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text.strip()!r} is not a number from 0 to 1e9")
    return value

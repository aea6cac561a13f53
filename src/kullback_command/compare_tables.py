"""Options of `kullback compare` and `kullback profile` for tables."""

from __future__ import annotations

import argparse
from typing import Any

from .shared import between, positive


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `compare`."""
    tables = parser.add_argument_group("tables")
    tables.add_argument(
        "--prior",
        type=between(0, 1e9, "from 0 to 1e9"),
        help="added to the count of each bin on both sides (default 0.5; 0: inf where one is empty)",
    )
    tables.add_argument("--common", action="store_true", help="go on with the columns that both sides have in a like type")
    add_reading(tables)


def add_reading(tables: Any) -> None:
    """What `compare` and `profile` share."""
    tables.add_argument(
        "--columns", type=_listed, metavar="A,B", help="the columns to take (default: all); quotes protect a comma in a name: '\"a,b\",c'"
    )
    tables.add_argument(
        "--pairs", type=_listed, metavar="A:B,C:D", help="columns whose joint distribution is taken too (default: those of a profile)"
    )
    tables.add_argument("--bins", type=positive, metavar="N", help="quantile bins of a number or time column (default 10)")
    tables.add_argument("--levels", type=positive, metavar="N", help="most frequent levels of a text column with a bin each (default 50)")
    tables.add_argument("--delimiter", type=_delimiter, metavar="C", help="of CSV files (default: found in the first line)")
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
    names = ("columns", "pairs", "bins", "levels", "delimiter", "engine", "master", "memory")
    return {name: getattr(arguments, name) for name in names}


def _delimiter(text: str) -> str:
    return text.replace("\\t", "\t")


def _listed(text: str) -> list[str]:
    """Separated by commas; quotes protect one in a name."""
    import csv

    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True))]

"""`kullback profile`: a table as bins and counts, or several profiles as one."""

from __future__ import annotations

import argparse
import sys

from kullback._read import ReadError

from .compare_tables import add_reading, reading
from .shared import write


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Keeps a table's bins and counts, and none of its rows. `kullback compare ref.json new.parquet` needs no more."
    parser.epilog = (
        "examples:\n"
        "  kullback profile ref.parquet -o ref.json\n"
        "  kullback profile february.parquet --like january.json -o february.json\n"
        "  kullback profile january.json february.json -o both.json"
    )
    parser.add_argument("source", metavar="SRC", nargs="+", help="a table (.csv, .parquet, .jsonl, folder, pattern), or profiles to merge")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the profile to write (.json)")
    parser.add_argument("--like", metavar="PROFILE", help="count over the bins (and pairs) of this one, so that the two merge")
    add_reading(parser)


def run(arguments: argparse.Namespace) -> None:
    from kullback._compare.tables import profile
    from kullback._report.cells import printable
    from kullback._report.files import check_target

    source = arguments.source
    if not arguments.output.lower().endswith(".json"):
        raise ReadError(f"the profile is JSON: name it .json, not {arguments.output}")
    profiles = [name for name in source if name.lower().endswith(".json")]
    if len(source) > 1 and len(profiles) < len(source):
        table = next(name for name in source if name not in profiles)
        raise ReadError(
            f"several sources must all be profiles, and {table} is none: quote a pattern, such as 'day-*.parquet', for several files"
        )
    check_target(arguments.output)  # before the work; one of the profiles, to which the others are added, is a fine place
    options = reading(arguments)
    if profiles:
        given = [name for name, value in options.items() if value and name not in ("engine", "memory")]
        if given or arguments.like:
            raise ReadError(f"--{(given or ['like'])[0]} is for tables, and these are profiles, whose bins are made")
        found = profile(source)
    else:
        found = profile(source[0], like=arguments.like, progress=sys.stderr.isatty(), **options)
    found.write(arguments.output)
    apart = [name for name, bins in found.bins.items() if bins.kind == "identifier"]
    note = f"; not comparable, as identifiers and sequence numbers: {', '.join(map(printable, apart))}" if apart else ""
    write(f"{arguments.output}: {found.rows:,} rows, {len(found.bins)} columns{note}")

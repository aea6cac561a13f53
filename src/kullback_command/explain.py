"""`kullback explain`."""

from __future__ import annotations

import argparse
import sys

from kullback._explain import Explanation
from kullback._explain.report import sheet, to_text
from kullback._read import ReadError, read_distribution, read_labels
from kullback._report.json import dumps

from .shared import base, positive, write

_RICH_ROWS = 1000  # rich measures every cell; beyond this plain text is there at once


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Every term of KL(P‖Q) and KL(Q‖P), the totals, and what dominates."
    parser.epilog = (
        "examples:\n"
        "  kullback explain 0.5,0.3,0.2 0.1,0.4,0.5 --labels cat,dog,owl\n"
        "  kullback explain 12,0,3 10,2,3 --form counts --prior 0.5 --base 2\n"
        "  kullback explain teacher.npy student.npy --form logits --temperature 2\n"
        "  kullback explain last_month.csv this_month.csv --form counts --json"
    )
    what = "numbers (0.5,0.3,0.2) or a file: .csv (one row, one column, or label,value), .json (list or {label: value}), .npy"
    parser.add_argument("p", metavar="P", help=what)
    parser.add_argument("q", metavar="Q", help="the same; where both have labels, they are aligned by label")
    parser.add_argument(
        "--form", default="probs", help="what the numbers are: probs (default), log_probs, logits, counts, or a pair such as probs,logits"
    )
    parser.add_argument("--base", type=base, default=None, help="of the logarithm: e (nats, default), 2 (bits), 10, ...")
    parser.add_argument("--labels", help="names of the categories: cat,dog,owl or a file with one a line")
    parser.add_argument(
        "--prior", type=float, help="pseudo-counts added to each category (counts), or the share of uniform mixed in (probs)"
    )
    parser.add_argument("--temperature", type=float, help="divides logits and log-probabilities")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--top", type=positive, default=20, metavar="N", help="show the N categories with the largest terms (default 20)")
    shown.add_argument("--all", action="store_true", help="show every category")
    parser.add_argument("--json", action="store_true", help='print JSON, every category in it; inf and nan as "inf", "-inf", "nan"')


def run(arguments: argparse.Namespace) -> None:
    from kullback._explain import explained

    p, q = read_distribution(arguments.p, name="P"), read_distribution(arguments.q, name="Q")
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    if isinstance(p, dict) != isinstance(q, dict):
        with_labels, without = ("P", "Q") if isinstance(p, dict) else ("Q", "P")
        raise ReadError(f"{with_labels} has labels and {without} has none: give both as label,value files, or neither")
    form = tuple(part.strip() for part in arguments.form.split(","))
    found = explained(
        (("P", p), ("Q", q)),
        form=form if len(form) == 2 else arguments.form,
        base=arguments.base,
        labels=labels,
        prior=arguments.prior,
        temperature=arguments.temperature,
    )
    top = None if arguments.all else arguments.top
    if arguments.json:
        write(dumps(found.to_dict()), "json")
    elif not (sys.stdout.isatty() and min(len(found.p), top or len(found.p)) <= _RICH_ROWS and _print_rich(found, top)):
        write(to_text(found, top=top))


def _print_rich(found: Explanation, top: int | None) -> bool:
    try:
        from kullback._report.terminal import print_sheet
    except ImportError:
        return False
    print_sheet(sheet(found, top), sys.stdout)
    return True

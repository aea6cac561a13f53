"""`kullback pairs`: which pairs of families there are, in which libraries, and what they are computed by."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kullback._dispatch import registered_pairs
from kullback._report.json import dumps
from kullback._report.markdown import table
from kullback._report.sheet import Grid

from .shared import write

_KINDS = ("closed form", "sum", "quadrature", "yours")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "The pairs of families KL(P‖Q) is known for, and the libraries that have both."
    parser.epilog = (
        "examples:\n"
        "  kullback pairs --family Gamma\n"
        "  kullback pairs --ecosystem torch --kind sum\n"
        "  kullback pairs --markdown > docs/pairs.md"
    )
    parser.add_argument("--family", help="only pairs with this family on either side, such as Gamma")
    parser.add_argument("--ecosystem", help="only pairs this library has: kullback, torch, numpyro, tfp, distrax, scipy")
    parser.add_argument("--kind", choices=_KINDS, help="only pairs computed by this (default: all but quadrature, which any two can be)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON, all kinds in it")
    shown.add_argument("--markdown", action="store_true", help="print the table of the documentation")


def run(arguments: argparse.Namespace) -> None:
    pairs = registered_pairs()
    families = {name for pair in pairs for name in (pair.p, pair.q)}
    libraries = {name for pair in pairs for name in pair.ecosystems}
    for option, value, known in (("--family", arguments.family, families), ("--ecosystem", arguments.ecosystem, libraries)):
        if value is not None and value.lower() not in {name.lower() for name in known}:
            raise ValueError(f"{option} {value} is not known: there are {', '.join(sorted(known))}")
    if arguments.family is not None:
        pairs = [pair for pair in pairs if arguments.family.lower() in (pair.p.lower(), pair.q.lower())]
    if arguments.ecosystem is not None:
        pairs = [pair for pair in pairs if arguments.ecosystem.lower() in pair.ecosystems]
    if arguments.kind is not None:
        pairs = [pair for pair in pairs if pair.kind == arguments.kind]
    if arguments.json:
        write(dumps([pair._asdict() for pair in pairs]), "json")
    elif arguments.markdown:
        write(to_markdown(pairs), "markdown")
    else:
        write(_to_text(pairs if arguments.kind else [pair for pair in pairs if pair.kind != "quadrature"]))


def _to_text(pairs: Sequence[Any]) -> str:
    if not pairs:
        return "no such pair"
    rows = [(f"KL({pair.p}‖{pair.q})", pair.kind, " ".join(pair.ecosystems)) for pair in pairs]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {where}" for name, kind, where in rows]
    return "\n".join([*lines, "", f"{len(rows)} {'pair' if len(rows) == 1 else 'pairs'}"])


def to_markdown(pairs: Sequence[Any]) -> str:
    """The page of the documentation."""
    libraries = list(dict.fromkeys(name for pair in pairs for name in pair.ecosystems))
    lines = [
        "# Pairs of distributions",
        "",
        "Written by `kullback pairs --markdown` from the registry itself. A dot: the library (or `kullback.distributions`) has both.",
        "Pairs of your own: `kullback.register_kl`.",
    ]
    told = {
        "closed form": "`kullback.kl(p, q)`.",
        "sum": '`kullback.kl(p, q, method="auto")`: a sum whose rest is bounded by proof.',
        "quadrature": '`kullback.kl(p, q, method="auto")`, also for library objects of any other family on the line.',
        "yours": "Registered with `kullback.register_kl`.",
    }
    for kind in _KINDS:
        chosen = [pair for pair in pairs if pair.kind == kind]
        if not chosen:
            continue
        lines += ["", f"## {kind.capitalize()}: {len(chosen)} pairs", "", told[kind], ""]
        if kind == "quadrature":
            names = sorted({name for pair in chosen for name in (pair.p, pair.q)})
            lines.append(f"Any two of {', '.join(names)} without a closed form.")
            continue
        rows = [[pair.p, pair.q, *("●" if name in pair.ecosystems else "" for name in libraries)] for pair in chosen]
        lines += table(Grid(("P", "Q", *libraries), rows, left=2 + len(libraries)), space="")
    return "\n".join(lines)

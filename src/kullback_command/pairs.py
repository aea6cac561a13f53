"""`kullback pairs`: which pairs of families there are, in which libraries, and how each is computed."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

from kullback._dispatch import registered_pairs
from kullback._report.json import dumps
from kullback._report.markdown import table
from kullback._report.sheet import Grid

from .shared import write

_KINDS = ("closed form", "infinite", "sum", "quadrature", "yours")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "The pairs of families KL(P‖Q) is known for, and the libraries that have both."
    parser.epilog = (
        "examples:\n"
        "  kullback pairs --family Gamma\n"
        "  kullback pairs --where Gamma Normal\n"
        "  kullback pairs --ecosystem torch --kind sum\n"
        "  kullback pairs --markdown > docs/pairs.md"
    )
    parser.add_argument("--family", help="only pairs with this family on either side, such as Gamma")
    parser.add_argument("--ecosystem", help="only pairs this library has: kullback, torch, numpyro, tfp, distrax, scipy")
    parser.add_argument(
        "--kind",
        choices=_KINDS,
        help="only pairs computed by this (default: all but infinite and quadrature, which have no formula)",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON, all kinds in it")
    shown.add_argument("--markdown", action="store_true", help="print the table of the documentation")
    shown.add_argument("--where", nargs=2, metavar=("P", "Q"), help="print file, line and source of one pair")


def run(arguments: argparse.Namespace) -> None:
    pairs = registered_pairs()
    families = {name for pair in pairs for name in (pair.p, pair.q)}
    libraries = {name for pair in pairs for name in pair.ecosystems}
    for option, value, known in (
        ("--family", arguments.family, families),
        ("--ecosystem", arguments.ecosystem, libraries),
    ):
        if value is not None and value.lower() not in {name.lower() for name in known}:
            raise ValueError(f"{option} {value} is not known: there are {', '.join(sorted(known))}")
    if arguments.where is not None:
        if any((arguments.family, arguments.ecosystem, arguments.kind)):
            raise ValueError("--where names one pair: leave out --family, --ecosystem and --kind")
        p, q = arguments.where
        write(_to_place(p, q, pairs))
        return
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
        write(_to_text(pairs, arguments.kind))


def _to_text(pairs: Sequence[Any], kind: str | None) -> str:
    listed = pairs if kind else [pair for pair in pairs if pair.kind not in ("infinite", "quadrature")]
    infinite = len([pair for pair in pairs if pair.kind == "infinite"])
    rows = [(f"KL({pair.p}‖{pair.q})", pair.kind, " ".join(pair.ecosystems)) for pair in listed]
    lines = ["no such pair"]
    if rows:
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {how:<{widths[1]}}  {where}" for name, how, where in rows]
        lines += ["", f"{len(rows)} {'pair' if len(rows) == 1 else 'pairs'}"]
    if infinite and not kind:
        lines.append(f"{infinite} more are infinite because of their supports: --kind infinite lists them")
    return "\n".join(lines)


def _to_place(p_name: str, q_name: str, pairs: Sequence[Any]) -> str:
    """The file, the line and the source of a pair, or a reason why it has no formula."""
    from kullback._distributions import structures, supports
    from kullback._distributions.families import FAMILIES
    from kullback._distributions.registry import INFINITE, look_up

    by_name = {family.__name__.lower(): family for family in FAMILIES}
    for name in (p_name, q_name):
        if name.lower() not in by_name:
            known = ", ".join(sorted(family.__name__ for family in FAMILIES))
            raise ValueError(f"--where {name} is not known: there are {known}")
    p, q = by_name[p_name.lower()], by_name[q_name.lower()]
    title = f"KL({p.__name__}‖{q.__name__})"
    match = look_up(p, q)
    if match is None:
        if any(issubclass(x, structures.STRUCTURES) for x in (p, q)):
            rule = structures.structural_kl
            place = f"{structures.__file__}:{rule.__code__.co_firstlineno}"
            said = f"{title} has no formula of its own. It is computed from the parts, if the rule below takes the two."
            return "\n".join([said, f"The rule: {place}", "", _source(rule)])
        numeric = [pair.kind for pair in pairs if (pair.p, pair.q) == (p.__name__, q.__name__)]
        how = [f"kullback.kl(p, q, method='auto') computes it by {'a sum' if kind == 'sum' else kind}." for kind in numeric]
        return " ".join([f"{title} has no closed form.", *how, "kullback.register_kl adds one of your own."])
    found = match.closed_form
    if found is INFINITE:
        first, second = supports.NAMES[p.support], supports.NAMES[q.support]
        return (
            f"{title} is infinite, whatever the parameters.\n"
            f"The family {p.__name__} lies on {first}, and {q.__name__} on {second}.\n"
            f"The rule: {supports.__file__}:{supports.never_inside.__code__.co_firstlineno}\n\n"
            f"{_source(supports.never_inside)}"
        )
    formula = found.formula.__code__
    code, text = _source(found.formula), inspect.getdoc(found.formula)
    lines = [f"{title} has a closed form.", f"Formula: {formula.co_filename}:{formula.co_firstlineno}"]
    if not 0 <= found.line - formula.co_firstlineno < len(code.splitlines()):
        lines.append(f"Registered: {found.file}:{found.line}")
    lines += [
        f"Every {x.__name__} distribution belongs to the family {other.__name__} too, which the formula takes."
        for x, other in ((p, match.p), (q, match.q))
        if x is not other
    ]
    if found.when is not None:
        lines.append(f"It holds for {found.when} only.")
    lines.append("")
    if text is not None and text.splitlines()[0] not in code:
        # A formula that is made in a loop has the docstring of the function that it calls.
        lines += [textwrap.indent(text, "    "), ""]
    return "\n".join([*lines, code])


def _source(function: Any) -> str:
    return textwrap.indent(textwrap.dedent(inspect.getsource(function)).rstrip(), "    ")


def to_markdown(pairs: Sequence[Any]) -> str:
    """The page of the documentation."""
    libraries = list(dict.fromkeys(name for pair in pairs for name in pair.ecosystems))
    lines = [
        "# Pairs of distributions",
        "",
        "`kullback pairs --markdown` writes this page from the registry itself. "
        "A dot means that the library (or `kullback.distributions`) has both families.",
        "`kullback pairs --where P Q` shows the file, the line and the source of a pair. "
        "Add pairs of your own with `kullback.register_kl`.",
    ]
    told = {
        "closed form": "`kullback.kl(p, q)` computes these pairs by a formula.",
        "infinite": "`kullback.kl(p, q)` is infinite for these pairs whatever the parameters, "
        "because P puts mass outside the support of Q.\n"
        "A rule decides that from the supports of the two families. "
        "The row is the support of P, and the column is the support of Q.",
        "sum": '`kullback.kl(p, q, method="auto")` adds terms until a proved bound on the rest is small.',
        "quadrature": '`kullback.kl(p, q, method="auto")` integrates these pairs. '
        "It also integrates library objects of any other family on the line.",
        "yours": "Users registered these pairs with `kullback.register_kl`.",
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
        if kind == "infinite":
            lines += _supports_table()
            continue
        rows = [[pair.p, pair.q, *("●" if name in pair.ecosystems else "" for name in libraries)] for pair in chosen]
        lines += table(Grid(("P", "Q", *libraries), rows, left=2 + len(libraries)), space="")
    return "\n".join(lines)


def _supports_table() -> list[str]:
    from kullback._distributions.families import FAMILIES
    from kullback._distributions.supports import NAMES, never_inside

    lines = [f"| P or Q lies on | families | {' | '.join(NAMES)} |", f"|---|---|{'---|' * len(NAMES)}"]
    for support, name in NAMES.items():
        families = ", ".join(sorted(family.__name__ for family in FAMILIES if family.support == support))
        row = " | ".join("∞" if never_inside(support, other) else "" for other in NAMES)
        lines.append(f"| {support}: {name} | {families} | {row} |")
    return lines

"""The report of a comparison of tables, in each output. The record has the figures."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from ..._report import html, markdown, text
from ..._report.cells import number, percent, printable, shortened
from ..._report.page import render, sortable
from ..._report.plot import literal, pyplot
from ..._report.sheet import Grid
from ..._report.text import paragraph
from .record import Column, TableComparison

_HEADERS = ("column", "kind", "KL(P‖Q)", "KL(Q‖P)", "JS", "PSI", "noise floor", "p, adjusted")
_BIN_HEADERS = ("P", "Q", "share of P", "share of Q", "p·ln(p/q)", "adds to PSI")
_PAIRS = (
    "Pairs, where tables are drawn: the smallest of the two columns' own p-values and that of what the cells add to them (their G less the "
    "columns'), times 3; with fewer than 2 values of P a cell, of the columns' own only, times 2."
)
_CUT = 40  # characters of a name in a narrow place
_IN_DETAIL = 200  # columns with pictures on a page; a page of thousands would not open
_BARS = 25  # rows of the ranking


def headline(c: TableComparison) -> str:
    changed = c.changed
    if not changed:
        what = f"{len(c.columns)} column{'s' * (len(c.columns) != 1)}" + (
            f" and {len(c.pairs)} pair{'s' * (len(c.pairs) != 1)}" if c.pairs else ""
        )
        return f"Nothing beyond chance: of {what}, none differs with an adjusted p-value under 0.01."
    counts = []
    for columns, name in ((c.columns, "column"), (c.pairs, "pair")):
        if columns:
            counts.append(f"{sum(x.p_adjusted < 0.01 for x in columns)} of {len(columns)} {name}{'s' * (len(columns) != 1)}")
    first = max(changed, key=lambda column: column.figures.kl_pq)
    floor = first.test.floor.kl_pq
    known = 0 < floor < math.inf and 2 * floor <= first.figures.kl_pq < math.inf
    times = f", {first.figures.kl_pq / floor:,.0f} times its noise floor" if known else ""
    verb = "differs" if len(changed) == 1 and not c.pairs else "differ"
    return (
        f"{' and '.join(counts)} {verb} beyond chance (adjusted p < 0.01); the most different is "
        f"{shortened(first.name, _CUT)!r}, with KL(P‖Q) = {number(first.figures.kl_pq)} {c.unit}{times}."
    )


def conventions(c: TableComparison) -> list[str]:
    """How each figure is made, for whoever wants to find it again."""
    prior = f"{c.prior:g} is added to the count of each bin on both sides" if c.prior else "nothing is added to the counts"
    empty = "" if c.prior else ", so a bin that is empty on one side only makes a KL infinite"
    log = "natural logarithm" if c.base == math.e else f"logarithm to base {c.base:g}"
    return [
        f"P is the reference, {c.p.name} ({c.p.rows:,} rows), Q is {c.q.name} ({c.q.rows:,} rows). Bins are taken from P alone.",
        f"Numbers and times: the edges are P's values of rank ⌈k·n/{c.bins}⌉, k = 1 … {c.bins - 1}, of its n finite ones, exactly; "
        "bins are (a, b]. A value that two edges share has a bin of its own. -inf, +inf, NaN and missing have one each. "
        "Times are microseconds in UTC.",
        f"Text: P's {c.levels} most frequent levels have a bin each, if they occur at least twice and more often than the next; "
        "all others, and what P never had, are pooled. Missing is a bin.",
        f"Shares: bins empty on both sides are left out; {prior}; divided by their sum{empty}.",
        f"KL(P‖Q) = Σ p·log(p/q), JS = ½KL(P‖M) + ½KL(Q‖M) with M = (P+Q)/2, in {c.unit} ({log}); PSI = Σ (p−q)·ln(p/q), always in nats.",
        "p-value: the G-test of homogeneity on the counts without prior. By the χ² distribution where every expected count is at least 20 "
        "and chance could not have chosen other bins; otherwise by drawing tables with the same totals "
        f"({c.drawing}): with the bins as they are, with edges that are P's own values, with the levels chosen again. "
        "The largest p-value counts, adjusted by Holm's method for all columns and pairs.",
        *([_PAIRS] if c.pairs else []),
        "Noise floor: the mean of the same figure if both were samples of one distribution: (bins−1)·(1/n+1/m)/2 for KL, a quarter of it "
        "for JS, twice it for PSI; from the drawn tables where they are drawn.",
    ]


def p_text(p: float) -> str:
    return "< 1e-300" if p < 1e-300 else f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _cells(column: Column, most: int = _CUT) -> list[str]:
    f = column.figures
    return [
        shortened(column.name, most),
        column.kind,
        *(number(x) for x in f),
        number(column.test.floor.kl_pq, 2),
        p_text(column.p_adjusted),
    ]


def _marked(column: Column) -> str:
    return "*" if column.p_adjusted < 0.01 else ""


def _sides(c: TableComparison) -> list[tuple[str, str]]:
    return [(letter, f"{printable(side.name)}, {side.rows:,} rows") for letter, side in (("P", c.p), ("Q", c.q))]


def to_text(c: TableComparison, *, top: int = 20) -> str:
    lines = [*(f"{letter}  {what}" for letter, what in _sides(c)), "", paragraph(headline(c)), ""]
    for columns, title in ((c.columns, "columns"), (c.pairs, "pairs")):
        if not columns:
            continue
        rows = [[*_cells(column), _marked(column)] for column in columns[:top]]
        lines += text.grid(Grid((*_HEADERS, ""), rows, left=2))
        if len(columns) > top:
            lines.append(f"... and {len(columns) - top:,} more {title}, with smaller KL(P‖Q)")
        lines.append("")
    lines += [
        "* beyond chance: the p-value of no drift at all, adjusted for the number of columns, is under 0.01.",
        "Noise floor: the mean of KL(P‖Q) at these counts if nothing had changed.",
        *(paragraph(f"Left out: {printable(name)} ({printable(reason)})") for name, reason in c.left_out),
        "",
        *(paragraph(printable(line), "· ") for line in conventions(c)),
    ]
    return "\n".join(lines)


def to_markdown(c: TableComparison, *, top: int = 30) -> str:
    """A table GitHub shows; names cannot become markup."""
    p, q = (f"{markdown.escaped(side.name)}, {side.rows:,} rows" for side in (c.p, c.q))
    lines = [f"**{markdown.escaped(headline(c))}**", "", f"P: {p}. Q: {q}. In {c.unit}; PSI in nats.", ""]
    every = [*c.columns[:top], *c.pairs[:top]]
    changed = {i for i, column in enumerate(every) if _marked(column)}
    lines += markdown.table(Grid(_HEADERS, list(map(_cells, every)), left=2), space="", bold=changed)
    hidden = len(c.columns) + len(c.pairs) - len(every)
    if hidden:
        lines += ["", f"… and {hidden:,} more, with smaller KL(P‖Q)."]
    lines += ["", *markdown.details("Conventions", *(f"- {markdown.escaped(line)}" for line in conventions(c)))]
    lines += [f"- left out: {markdown.escaped(name)} ({markdown.escaped(reason)})" for name, reason in c.left_out]
    return "\n".join(lines)


def to_fragment(c: TableComparison, *, top: int = 30) -> str:
    """For a notebook."""
    every = [*c.columns[:top], *c.pairs[:top]]
    body = "".join(
        f"<tr{' style=font-weight:bold' if _marked(column) else ''}>{html.cells(_cells(column), left=2)}</tr>" for column in every
    )
    hidden = len(c.columns) + len(c.pairs) - len(every)
    return html.fragment(
        headline(c),
        f"<table style='{html.TABLE}'><thead><tr>{html.cells(_HEADERS, 'th', left=2)}</tr></thead><tbody>{body}</tbody></table>",
        f"<div>… and {hidden:,} more.</div>" if hidden else "",
        f"<div style='{html.NOTE}'>In {escape(c.unit)}; bold: beyond chance. <code>.to_html()</code> is the whole report.</div>",
    )


def to_html(c: TableComparison) -> str:
    every = [*c.columns, *c.pairs]
    ranked = sorted(every, key=lambda column: -column.figures.kl_pq)
    href = {id(column): f"#c{i}" for i, column in enumerate(ranked[:_IN_DETAIL])}
    return render(
        "tables.html",
        title=f"{shortened(c.q.name, _CUT)} against {shortened(c.p.name, _CUT)}",
        headline=headline(c), sides=_sides(c), cards=_cards(c, ranked), bars_rows=_ranking(ranked[:_BARS], href),
        columns=[{"title": title, "number": i > 1, "help": _HELP.get(title, "")} for i, title in enumerate((*_HEADERS, "× floor"))],
        rows=[_row(column, href.get(id(column))) for column in ranked],
        details=[_detail(column, i, c.unit) for i, column in enumerate(ranked[:_IN_DETAIL])],
        hidden=max(0, len(ranked) - _IN_DETAIL), unit=c.unit,
        left_out=[(printable(name), printable(reason)) for name, reason in c.left_out],
        conventions=[printable(line) for line in conventions(c)],
    )  # fmt: skip


_HELP = {
    "KL(P‖Q)": "relative entropy of the reference to the other side",
    "noise floor": "the mean of KL(P‖Q) if nothing had changed, at these counts",
    "p, adjusted": "p-value of no drift at all, adjusted for the number of columns (Holm)",
    "× floor": "KL(P‖Q) divided by its noise floor",
}


def _cards(c: TableComparison, ranked: list[Column]) -> list[tuple[str, str, str]]:
    first = ranked[0]
    return [
        ("Beyond chance", f"{len(c.changed)} of {len(ranked)}", "adjusted p < 0.01"),
        ("Largest KL(P‖Q)", number(first.figures.kl_pq), f"{c.unit}, {shortened(first.name, 24)}"),
        ("Its noise floor", number(first.test.floor.kl_pq, 2), c.unit),
        ("Rows", f"{c.p.rows:,}", f"against {c.q.rows:,}"),
    ]


def _ranking(ranked: list[Column], href: dict[int, str]) -> list[dict[str, Any]]:
    finite = [x for column in ranked if math.isfinite(x := column.figures.kl_pq)]
    most = max(finite, default=0.0)
    return [
        {
            "name": printable(column.name),
            "size": 100.0 if math.isinf(column.figures.kl_pq) else round(100 * column.figures.kl_pq / most, 2) if most else 0,
            "number": number(column.figures.kl_pq) + (" *" if _marked(column) else ""),
            "href": href.get(id(column)),
        }
        for column in ranked
    ]


def _row(column: Column, href: str | None) -> list[Any]:
    floor = column.test.floor.kl_pq
    times = column.figures.kl_pq / floor if 0 < floor < math.inf else math.nan
    values = [*column.figures, floor, column.p_adjusted, times]
    texts = [*_cells(column)[2:], number(times, 3)]
    name = sortable(printable(column.name), printable(column.name))
    if href:
        name["href"] = href
    return [name, column.kind, *(sortable(words, _key(x)) for words, x in zip(texts, values))]


def _key(x: float) -> str:
    return "" if math.isnan(x) else repr(float(x))


def _detail(column: Column, i: int, unit: str) -> dict[str, Any]:
    t, n = column.terms, len(column.labels)
    top = max(float(t.p.max()), float(t.q.max())) or 1.0
    parts = [0.0 if math.isnan(x) else float(x) for x in t.psi]
    largest = max((x for x in parts if math.isfinite(x)), default=0.0) or 1.0
    step = 100.0 / n
    shares, added = [], []
    for j, label in enumerate(column.labels):
        for k, (side, share, count) in enumerate((("p", t.p[j], column.p[j]), ("q", t.q[j], column.q[j]))):
            title = f"{printable(label)}: {side.upper()} {percent(share, '.3g')} ({count:,})"
            left, wide = j * step + step * (0.08 + 0.42 * k), step * 0.42
            shares.append({"left": _r(left), "width": _r(wide), "height": _r(100 * float(share) / top), "title": title, "side": side})
        height = 100.0 if math.isinf(parts[j]) else 100 * parts[j] / largest
        added.append({"left": _r(j * step + 0.08 * step), "width": _r(0.84 * step), "height": _r(height),
                      "title": f"{printable(label)} adds {number(parts[j])} to the PSI"})  # fmt: skip
    every = max(1, math.ceil(n / 4))
    named = [j for j in range(0, n, every) if j < 0.87 * n]
    ticks = [{"at": _r((j + 0.5) * step), "text": shortened(column.labels[j], 12)} for j in named]
    pooled = f" {column.pooled:,} rarer levels of P are pooled." if column.pooled else ""
    types = column.type_p if column.type_p == column.type_q else f"{column.type_p} in P, {column.type_q} in Q"
    kind = column.kind if column.kind == "pair" else f"{column.kind} {types}"
    return {
        "id": f"c{i}", "name": printable(column.name), "about": f"{kind}; {n} bins.{pooled}",
        "figures": [
            *((name, number(x), f"{'' if name == 'PSI' else f'{unit}; '}noise floor {number(chance, 2)}")
              for name, x, chance in zip(_HEADERS[2:6], column.figures, column.test.floor)),
            ("p, no drift at all", p_text(column.p_value), f"adjusted {p_text(column.p_adjusted)}; by {_by(column)}"),
        ],
        "shares": shares, "added": added, "ticks": ticks,
        "yticks": [{"at": 0, "text": "0"}, {"at": 100, "text": percent(top, ".3g")}],
        "added_ticks": [{"at": 0, "text": "0"}, {"at": 100, "text": "inf" if any(map(math.isinf, parts)) else number(largest, 2)}],
        "columns": [{"title": "bin"}, *({"title": title, "number": True} for title in _BIN_HEADERS)],
        "rows": [
            [sortable(printable(label), f"{j}")]
            + [sortable(f"{x:,}", str(x)) for x in (column.p[j], column.q[j])]
            + [sortable(percent(x, ".3g"), _key(x)) for x in (t.p[j], t.q[j])]
            + [sortable(number(float(x)), _key(x)) for x in (t.kl[j], t.psi[j])]
            for j, label in enumerate(column.labels)
        ],
    }  # fmt: skip


def _by(column: Column) -> str:
    """The source of the p-value. A pair may have the p-value of its columns, which drawn tables cannot reach."""
    test = column.test
    if not test.drawn:
        return f"χ² with {test.degrees} degree{'s' * (test.degrees != 1)} of freedom"
    tables = f"{test.drawn:,} drawn tables"
    if column.kind == "pair":
        return f"its columns' p-values and {tables}"
    return f"{tables}, none of them as far apart" if test.p_value * (1 + test.drawn) < 1.5 else tables


def _r(x: float) -> float:
    return round(float(x), 3)


def plot(c: TableComparison) -> Any:
    """The ranking, and the bins of the three most different columns."""
    plt = pyplot()

    ranked = sorted((*c.columns, *c.pairs), key=lambda column: -column.figures.kl_pq)
    shown = ranked[:15][::-1]
    figure, axes = plt.subplots(1, 1 + min(3, len(ranked)), figsize=(4.2 * (1 + min(3, len(ranked))), 4), layout="constrained")
    ranking, *others = axes
    values = [min(column.figures.kl_pq, 1e3) for column in shown]
    ranking.barh(range(len(shown)), values, color="tab:blue", label="KL(P‖Q)")
    ranking.scatter(
        [column.test.floor.kl_pq for column in shown], range(len(shown)), color="black", marker="|", s=120, zorder=3, label="noise floor"
    )
    ranking.set_yticks(range(len(shown)), [literal(shortened(column.name, 24)) for column in shown])
    ranking.set_xlabel(f"KL(P‖Q), {c.unit}")
    ranking.legend(frameon=False)
    for axis, column in zip(others, ranked):
        at = range(len(column.labels))
        axis.bar([i - 0.2 for i in at], column.terms.p, 0.4, label="P")
        axis.bar([i + 0.2 for i in at], column.terms.q, 0.4, label="Q")
        every = max(1, math.ceil(len(column.labels) / 12))
        names = [literal(shortened(label, 18)) for label in column.labels]
        axis.set_xticks(list(at)[::every], names[::every], rotation=60, ha="right", fontsize=7)
        axis.set_title(literal(shortened(column.name, 30)))
        axis.legend(frameon=False)
    return figure

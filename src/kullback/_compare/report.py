"""The report of a comparison of models, in each output. The record has the figures."""

from __future__ import annotations

import math
from html import escape
from itertools import accumulate
from typing import Any

from .._report import html, markdown, text
from .._report.axes import Linear, Logarithmic
from .._report.cells import number, percent, printable
from .._report.page import render, sortable
from .._report.plot import pyplot
from .._report.sheet import Grid
from .._report.text import paragraph
from .record import ModelComparison

_COLUMNS = (("KL(P‖Q)", "kl_pq"), ("KL(Q‖P)", "kl_qp"), ("JS", "js"), ("Δp", "delta_p"))
_BINS = 40


def _points(x: float) -> str:
    """A difference of probabilities, in percentage points."""
    return "-" if math.isnan(x) else f"{100 * x:+.3f}%" if abs(x) >= 1e-5 or x == 0 else f"{100 * x:+.1e}%"


def _with_error(value: float, error: float) -> str:
    return number(value, 5) if math.isnan(error) else f"{number(value, 5)} ± {number(error, 2)}"


def _error(error: float, unit: str) -> str:
    return unit if math.isnan(error) else f"± {number(error, 2)} {unit}"


def statistics(c: ModelComparison) -> Grid:
    """The mean, its error, and the percentiles from the top down."""
    rows = []
    names = ["mean", "± s.e.", "maximum", *c.kl_pq.percentiles, "minimum"]
    for name in names:
        label = "median" if name == "50" else f"{name}%" if name[0].isdigit() else name
        cells = [label]
        for _, key in _COLUMNS:
            s = getattr(c, key)
            x = {"mean": s.mean, "± s.e.": s.standard_error, "maximum": s.maximum, "minimum": s.minimum}.get(name)
            x = s.percentiles[name] if x is None else x
            cells.append((_points(x).lstrip("+") if name == "± s.e." else _points(x)) if key == "delta_p" else number(x, 5))
        rows.append(cells)
    return Grid(["", *(title for title, _ in _COLUMNS)], rows)


def headline(c: ModelComparison) -> str:
    mean = _with_error(c.kl_pq.mean, c.kl_pq.standard_error)
    return (
        f"KL(P‖Q) is {mean} {c.unit} on average over {c.rows:,} row{'s' * (c.rows != 1)}; "
        f"the likeliest category is the same in {percent(c.same_top.value)}."
    )


def facts(c: ModelComparison) -> list[tuple[str, str]]:
    """Figures of the whole, as names and words."""
    found = [("same top", f"{percent(c.same_top.value)} ± {percent(c.same_top.standard_error)}"), ("RMS Δp", percent(c.rms_delta_p, ".3f"))]
    if c.perplexity is not None:
        x = c.perplexity
        found += [
            ("perplexity of P", _with_error(x.p, x.p_error)),
            ("perplexity of Q", _with_error(x.q, x.q_error)),
            ("their ratio, Q/P", _with_error(x.ratio, x.ratio_error)),
            ("log of the ratio", _with_error(x.log_ratio, x.log_ratio_error)),
        ]
    if c.llama_cpp is not None:
        found.append(("llama.cpp's own KLD", f"{_with_error(*c.llama_cpp)}   (biased: it leaves out what is clipped)"))
    if c.bucket is not None:
        found.append(("mass in the bucket", f"{number(c.bucket[0], 3)} of P, {number(c.bucket[1], 3)} of Q"))
    return found


def conventions(c: ModelComparison) -> list[str]:
    """How each figure is defined, for whoever wants to find it again."""
    log = {math.e: "natural", 2.0: "base-2"}.get(c.base, f"base-{c.base:g}")
    token = "the given token" if c.tokens_known else "P's likeliest category"
    percentiles = "exact, linear between ranks" if c.exact_percentiles else "within 0.1% of the value at that rank"
    clipped = "llama.cpp" in (c.p.kind, c.q.kind)
    left = [
        f"{n:,} {what}" for n, what in ((c.nan_rows, "with NaN"), (c.masked_rows, "masked"), (c.missing_rows, "missing on one side")) if n
    ]
    lines = [
        f"P is the reference. KL(P‖Q) = Σ p log(p/q) of each row's normalised distributions, {log} logarithm; "
        "JS = ½KL(P‖M) + ½KL(Q‖M), M = ½(P + Q).",
        f"Δp = q − p of {token}. Same top: the first of equals counts. ±: standard error of the mean, as if rows were independent.",
        f"Percentiles are {percentiles}. "
        + ("Nothing is smoothed; what llama.cpp's file has clipped is one bucket." if clipped else "Nothing is clipped or smoothed."),
    ]
    return [*lines, f"Rows left out: {', '.join(left)}."] if left else lines


def _sides(c: ModelComparison) -> list[tuple[str, str]]:
    found = []
    for letter, side in (("P", c.p), ("Q", c.q)):
        what = ", ".join(filter(None, (side.kind, side.form, f"{side.files} files" if side.files > 1 else "")))
        found.append((letter, f"{printable(side.name)} ({what})" if side.name != letter else what))
    return found


def _worst(c: ModelComparison, top: int | None = None) -> Grid:
    tops = ("top of P", "top of Q") if c.tokens_known else ("top of Q",)
    what = "token" if c.tokens_known else "top of P"
    rows = [
        [f"{w.row:,}", number(w.kl_pq), number(w.kl_qp), number(w.js), str(w.token), number(w.p, 3), number(w.q, 3),
         _points(w.q - w.p), *map(str, (w.top_p, w.top_q)[-len(tops) :])]
        for w in c.worst[:top]
    ]  # fmt: skip
    return Grid(["row", "KL(P‖Q)", "KL(Q‖P)", "JS", what, "p", "q", "Δp", *tops], rows)


def to_text(c: ModelComparison, *, top: int = 5) -> str:
    """As the command prints it, with the `top` worst rows."""
    found = facts(c)
    width = max(len(name) for name, _ in found)
    return "\n".join(
        [
            *(f"{letter}  {what}" for letter, what in _sides(c)),
            f"{c.rows:,} rows of {c.categories:,} categories, in {c.unit}",
            "",
            *text.grid(statistics(c)),
            "",
            *(f"{name:{width}}  {value}" for name, value in found),
            "",
            "Worst rows, by KL(P‖Q)",
            *text.grid(_worst(c, top)),
            "",
            paragraph(headline(c)),
            *(paragraph(f"Note: {printable(note)}") for note in c.notes),
            "",
            *(paragraph(line, "· ") for line in conventions(c)),
        ]
    )


def to_markdown(c: ModelComparison, *, top: int = 20) -> str:
    found = statistics(c)
    kept = [row for row in found.rows if row[0] in ("mean", "± s.e.", "maximum", "99%", "90%", "median")]
    lines = [
        f"**{markdown.escaped(headline(c))}**",
        "",
        *markdown.table(Grid(found.headers, kept)),
        "",
        *markdown.table(Grid(["", ""], facts(c))),
        "",
    ]
    sides = (f"- {letter}: {markdown.escaped(what)}" for letter, what in _sides(c))
    remarks = (f"- {markdown.escaped(line)}" for line in (*c.notes, *conventions(c)))
    lines += markdown.details("Worst rows, and conventions", *markdown.table(_worst(c, top)), "", *sides, *remarks)
    return "\n".join(lines)


def to_fragment(c: ModelComparison) -> str:
    """For a notebook."""
    found = statistics(c)
    remarks = "<br>".join(map(escape, (*c.notes, *conventions(c))))
    return html.fragment(
        headline(c),
        *(f"<div>{letter}: {escape(what)}</div>" for letter, what in _sides(c)),
        html.table((f"<tr>{html.cells(row)}</tr>" for row in found.rows), html.cells(found.headers, "th")),
        html.table(f"<tr>{html.cells(fact)}</tr>" for fact in facts(c)),
        f'<div style="{html.NOTE}">{remarks}</div>',
    )


def _finite(c: ModelComparison) -> tuple[list[tuple[float, int]], int, int]:
    """Sizes above 0, and how many rows were 0 and infinite."""
    finite = [(x, n) for x, n in c.sizes if 0 < x < math.inf]
    return finite, sum(n for x, n in c.sizes if x == 0), sum(n for x, n in c.sizes if x == math.inf)


def _axis(c: ModelComparison) -> Logarithmic | None:
    finite = _finite(c)[0]
    if not finite:
        return None
    low, high = finite[0][0], finite[-1][0]
    return Logarithmic(low / 1.1, high * 1.1) if high / low < 1.2 else Logarithmic(low * 0.999, high * 1.001)


def distribution(c: ModelComparison) -> dict[str, Any] | None:
    """Rows by the size of their KL(P‖Q): the bars, and the curve of their share."""
    axis = _axis(c)
    if axis is None:
        return None
    finite, zero, infinite = _finite(c)
    edges = axis.edges(_BINS)
    counts = [0] * _BINS
    curve, total = [(0.0, round(100 * zero / c.rows, 3))], zero
    for x, n in finite:
        counts[min(_BINS - 1, int(axis.at(x) / 100 * _BINS))] += n
        total += n
        point = (axis.at(x), round(100 * total / c.rows, 3))
        if point[0] - curve[-1][0] > 0.25 or x == finite[-1][0]:
            curve.append(point)
    height = Linear(0, max(counts) * 1.05)
    bins = [
        {"left": axis.at(edges[i]), "width": round(100 / _BINS * 0.92, 3), "height": height.at(n),
         "title": f"{number(edges[i])} to {number(edges[i + 1])}: {n:,} rows"} for i, n in enumerate(counts) if n
    ]  # fmt: skip
    apart = [f"{n:,} rows are {what}" for n, what in ((zero, "0"), (infinite, "infinite")) if n]
    return {
        "bins": bins, "xticks": axis.ticks(), "yticks": height.ticks(4), "curve": [{"points": curve, "name": "share of rows up to here"}],
        "shares": [{"at": y, "text": f"{y}%"} for y in (0, 25, 50, 75, 100)], "apart": f"Not shown: {'; '.join(apart)}." if apart else "",
    }  # fmt: skip


def to_html(c: ModelComparison) -> str:
    bins = [
        {"p": round(100 * b.p, 3), "q": round(100 * b.q, 3), "low": round(100 * max(0.0, b.q - b.rms_delta), 3),
         "high": round(100 * min(1.0, b.q + b.rms_delta), 3),
         "title": f"{b.rows:,} rows, p {b.low:.1f} to {b.high:.1f}: mean p {number(b.p)}, q {number(b.q)}, RMS {percent(b.rms_delta)}"}
        for b in c.calibration
    ]  # fmt: skip
    worst = _worst(c)
    raw = [[w.row, w.kl_pq, w.kl_qp, w.js, w.token, w.p, w.q, w.q - w.p, *([w.top_p] if c.tokens_known else []), w.top_q] for w in c.worst]
    rows = [list(map(sortable, *row)) for row in zip(worst.rows, raw)]
    cards = [
        ("Mean KL(P‖Q)", number(c.kl_pq.mean), _error(c.kl_pq.standard_error, c.unit)),
        ("Median", number(c.kl_pq.median), c.unit),
        ("99% are below", number(c.kl_pq.percentiles["99"]), c.unit),
        ("Mean KL(Q‖P)", number(c.kl_qp.mean), _error(c.kl_qp.standard_error, c.unit)),
        ("Mean JS", number(c.js.mean), _error(c.js.standard_error, c.unit)),
        ("Same top", percent(c.same_top.value, ".1f"), f"± {percent(c.same_top.standard_error, '.1f')}"),
    ]
    if c.perplexity is not None:
        x = c.perplexity
        cards.append(("Perplexity, Q/P", number(x.ratio, 5), f"± {number(x.ratio_error, 2)}; {number(x.p)} → {number(x.q)}"))
    if c.llama_cpp is not None:
        cards.append(("llama.cpp's own KLD", number(c.llama_cpp[0]), f"± {number(c.llama_cpp[1], 2)}, biased by what is clipped"))
    return render(
        "models.html",
        title=f"{printable(c.p.name)} ‖ {printable(c.q.name)}",
        headline=headline(c), sides=_sides(c), size=f"{c.rows:,} rows of {c.categories:,} categories, in {c.unit}", cards=cards,
        distribution=distribution(c), statistics=statistics(c), facts=facts(c), bins=bins, token=worst.headers[4],
        columns=[{"title": title, "number": True} for title in worst.headers], rows=rows, notes=[printable(n) for n in c.notes],
        conventions=conventions(c), percents=[{"at": x, "text": f"{x / 100:g}"} for x in (0, 20, 40, 60, 80, 100)],
    )  # fmt: skip


def plot(c: ModelComparison) -> Any:
    """Distribution, cumulative curve and calibration, side by side, with Matplotlib."""
    plt = pyplot()

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    finite, axis = _finite(c)[0], _axis(c)
    if axis is not None:
        values, counts = zip(*finite)
        left.hist(values, bins=axis.edges(_BINS), weights=counts)
        middle.plot(values, [100 * (_finite(c)[1] + n) / c.rows for n in accumulate(counts)])
        for each in (left, middle):
            each.set_xscale("log")
    left.set(xlabel=f"KL(P‖Q) of a row, {c.unit}", ylabel="rows", title="Distribution")
    middle.set(xlabel=f"KL(P‖Q) of a row, {c.unit}", ylabel="% of rows up to here", title="Cumulative")
    right.plot([0, 1], [0, 1], "--", color="grey", linewidth=1)
    bins = c.calibration
    right.errorbar([b.p for b in bins], [b.q for b in bins], yerr=[b.rms_delta for b in bins], fmt="o-", capsize=3)
    right.set(xlabel="p of the token", ylabel="q, mean ± RMS Δp", title="Calibration of Δp", xlim=(0, 1), ylim=(0, 1))
    return figure

"""The report of an explanation: its categories, columns, digits and totals, the same in every output."""

from __future__ import annotations

import math

import numpy as np

from .._report import html, text
from .._report.cells import printable
from .._report.sheet import BarRow, Sheet
from .record import Explanation
from .sentences import in_percent

TOP = 20


def sheet(e: Explanation, top: int | None = TOP) -> Sheet:
    """The contents of the text, of a terminal and of a notebook.

    If there are more than `top` categories, it lists the ones with the largest terms. Otherwise, or if `top`
    is None, it lists all of them in the order given."""
    log = {math.e: "ln", 2.0: "log₂", 10.0: "log₁₀"}.get(e.base, "log")
    headers = ("", "p", "q", f"{log}(p/q)", f"p·{log}(p/q)", "% of KL", f"q·{log}(q/p)")
    count = len(e.p)
    if top is None or count <= top:
        chosen, rest = np.arange(count), np.arange(0)
    else:
        order = np.lexsort((-np.abs(e.terms_qp), -np.abs(e.terms_pq)))
        chosen, rest = order[:top], order[top:]

    def row(label: str, p: float, q: float, ratio: str, term: float, back: float, bar: bool) -> BarRow:
        cells = (label, probability(p, ratio), probability(q, ratio), ratio, signed(term), _share(e, term), signed(back))
        return BarRow(cells, term if bar else None)

    rows = tuple(
        row(printable(e.labels[i]), e.p[i], e.q[i], signed(e.log_ratio[i]), float(e.terms_pq[i]), e.terms_qp[i], True) for i in chosen
    )
    others = None
    if len(rest):
        p, q, term, back = (float(x[rest].sum()) for x in (e.p, e.q, e.terms_pq, e.terms_qp))
        others = row(f"{len(rest):,} more", p, q, "", term, back, False)
    ends = probability(float(e.p.sum())), probability(float(e.q.sum()))
    total = ("sum", *ends, "", signed(e.kl_pq, plus=False), _share(e, e.kl_pq), signed(e.kl_qp, plus=False))
    finite = e.terms_pq[np.isfinite(e.terms_pq)]
    low, high = (min(0.0, float(finite.min())), max(0.0, float(finite.max()))) if len(finite) else (0.0, 0.0)
    return Sheet(
        heading=f"P and Q over {count:,} categor{'y' if count == 1 else 'ies'}, in {e.unit}",
        given=(e.given_p.note, e.given_q.note), headers=headers, rows=rows, rest=others,
        total=BarRow(total, None), low=low, high=high, footnotes=_footnotes(e, len(rest)), totals=_totals(e),
        unit=e.unit, summary=e.summary,
    )  # fmt: skip


def to_text(e: Explanation, *, top: int | None = TOP) -> str:
    return text.sheet(sheet(e, top))


def to_fragment(e: Explanation) -> str:
    return html.sheet(sheet(e))


def _totals(e: Explanation) -> tuple[tuple[str, str, str], ...]:
    """(name, number to ten digits, description)."""
    values = (
        ("KL(P‖Q)", e.kl_pq, "relative entropy"),
        ("KL(Q‖P)", e.kl_qp, "the other direction"),
        ("JS(P,Q)", e.js, "Jensen-Shannon divergence"),
        ("H(P)", e.entropy_p, "entropy of P"),
        ("H(Q)", e.entropy_q, "entropy of Q"),
        ("H(P,Q)", e.cross_entropy_pq, "cross-entropy, H(P) + KL(P‖Q)"),
        ("H(Q,P)", e.cross_entropy_qp, "cross-entropy, H(Q) + KL(Q‖P)"),
    )
    return tuple((name, f"{value:.10g}", what) for name, value, what in values)


def _footnotes(e: Explanation, hidden: int) -> tuple[str, ...]:
    notes = []
    if hidden:
        notes.append(f"The {len(e.p) - hidden} largest of {len(e.p):,} categories by the size of their term; sums and totals are over all.")
    if (e.terms_pq < 0).any() or (e.terms_qp < 0).any():
        notes.append("p·log(p/q) is negative where p < q, and q·log(q/p) where q < p; the sums, KL, never are.")
    if (np.isnan(e.log_ratio) & (e.p == 0) & (e.q == 0)).any():
        notes.append("A category that both give probability 0 adds nothing; its log ratio (-) is undefined.")
    return tuple(notes)


def _share(e: Explanation, term: float) -> str:
    return in_percent(term / e.kl_pq) if e.kl_pq > 0 and math.isfinite(e.kl_pq) else "-"


def probability(x: float, ratio: str = "") -> str:
    """Four decimals, or three digits if x is small. ~0: positive, but too small for float64."""
    if x == 0:
        return "~0" if ratio not in ("", "-", "0") and "inf" not in ratio else "0"
    return f"{x:.4f}" if x >= 1e-3 or math.isnan(x) else f"{x:.3g}"


def signed(x: float, *, plus: bool = True) -> str:
    if math.isnan(x):
        return "-"
    if x == 0:
        return "0"
    sign = "+" if plus else ""
    return f"{x:{sign}.4f}" if 1e-3 <= abs(x) < 1e5 else f"{x:{sign}.3g}"

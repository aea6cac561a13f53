"""What an explanation says in words."""

from __future__ import annotations

import math
import re
import textwrap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .._explain import Explanation, Floats


def printable(label: str) -> str:
    """A label that cannot move the cursor or break a line: control characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in label)


# Words, without what would end a code span; and what is left of Markdown between them.
_WORDS = re.compile(r"""[^\s'"(),;<>|`\\]+|[<>|`\\]""")
# In words that GitHub makes links of, and tells people about: @names and addresses, #1, GH-1, commits.
_LIVE = re.compile(r"@|://|www\.|#\d|\bGH-\d|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+±]?\d+(\.\d*(e[-+]?\d+)?|e[-+]\d+)?[.:%]*")
_MARKUP = re.compile(r"[\\`*_{}\[\]#|<>~$&]")


def markdown(text: str) -> str:
    """Text in Markdown, also in a cell of a table, that is nothing but itself; what would become a link is code, which escapes are not."""

    def escape(found: re.Match[str]) -> str:
        return "&lt;" if found[0] == "<" else f"\\{found[0]}"

    def inert(found: re.Match[str]) -> str:
        live = _LIVE.search(found[0]) and not _NUMBER.fullmatch(found[0])
        return f"`{found[0]}`" if live else _MARKUP.sub(escape, found[0])

    return _WORDS.sub(inert, printable(text))


def paragraph(text: str, begin: str = "") -> str:
    """Lines of at most 100 characters, those after the first below what `begin` precedes."""
    return textwrap.fill(
        text, 100, initial_indent=begin, subsequent_indent=" " * len(begin), break_long_words=False, break_on_hyphens=False
    )


def percent(share: float) -> str:
    """At least two digits, whatever the size."""
    size = abs(share)
    return f"{100 * share:.0f}%" if 0.1 <= size < 100 or share == 0 else f"{100 * share:.2g}%"


def summary(e: Explanation) -> str:
    """What makes KL(P‖Q) what it is, and which categories make either direction infinite."""
    if math.isnan(e.kl_pq):
        holders = [side for side, values in (("P", e.p), ("Q", e.q)) if np.isnan(values).any()]
        return f"{' and '.join(holders)} hold{'s' if len(holders) == 1 else ''} NaN, so the totals are NaN: it is never swallowed."
    infinite = []
    if math.isinf(e.kl_pq):
        infinite.append(f"KL(P‖Q) is infinite, because of {_culprits(e, e.terms_pq, e.p)}.")
    if math.isinf(e.kl_qp):
        infinite.append(f"KL(Q‖P) is infinite, because of {_culprits(e, e.terms_qp, e.q)}.")
    if not infinite:
        return _dominant(e)
    first = [] if math.isinf(e.kl_pq) else [_dominant(e)]
    advice = "If a 0 only means 'never seen', pass a prior (with counts or probs); JS is finite in any case."
    return " ".join([*first, *infinite, advice])


def _culprits(e: Explanation, terms: Floats, weight: Floats) -> str:
    found = np.flatnonzero(np.isinf(terms))
    more = len(found) - 1
    others = "" if not more else f" (and of {more} other categor{'y' if more == 1 else 'ies'} like it)"
    return _which(e, int(found[np.argmax(weight[found])])) + others


def _which(e: Explanation, i: int) -> str:
    """'cat', which P gives 0.5 and Q 0.1: with as many digits as it takes to tell the two apart."""
    p, q = float(e.p[i]), float(e.q[i])
    digits = next((d for d in range(3, 17) if f"{p:.{d}g}" != f"{q:.{d}g}"), 3)
    name = f"'{printable(e.labels[i])}'" if e.labelled else f"category {i}"
    return f"{name}, which P gives {p:.{digits}g} and Q {q:.{digits}g}"


def _dominant(e: Explanation) -> str:
    if not np.nan_to_num(e.log_ratio).any():
        return "P and Q are the same distribution: every log ratio is 0."
    if e.kl_pq == 0.0:
        return "P and Q differ by less than a KL in float64 can show: it underflows to 0."
    if float(np.abs(e.terms_pq).sum()) > 20 * e.kl_pq:
        return _close(e)
    top = int(np.argmax(e.terms_pq))
    share = float(e.terms_pq[top]) / e.kl_pq
    which = _which(e, top)
    if round(share, 2) > 1.0:
        back = -math.fsum(e.terms_pq[e.terms_pq < 0])
        return (
            f"{which[0].upper() + which[1:]}, adds {float(e.terms_pq[top]):.3g} {e.unit}, more than all of KL(P‖Q): "
            f"negative terms take {back:.3g} back."
        )
    if share < 0.1:
        return f"No category dominates: the largest term, {percent(share)} of KL(P‖Q), comes from {which}."
    return f"{percent(share)} of KL(P‖Q) comes from {which}."


def _close(e: Explanation) -> str:
    # Terms of the size of |p - q| cancel to a sum of its square, so a share of that sum says nothing. With φ(x) = e^x - 1 - x,
    # p log(p/q) - p + q = p φ(log q/p) has the same sum and no negative terms; its series is accurate where P is close to Q.
    l = -np.nan_to_num(e.log_ratio, nan=0.0) * math.log(e.base)
    with np.errstate(over="ignore", invalid="ignore"):
        phi = np.where(np.abs(l) < 1e-2, 0.5 * l * l * (1.0 + l / 3.0 * (1.0 + l / 4.0)), np.expm1(l) - l)
        parts = np.where(np.isneginf(e.log_ratio), e.q, e.p * phi) / math.log(e.base)
    top = int(np.argmax(parts))
    share = percent(float(parts[top]) / e.kl_pq)
    return (
        f"P and Q are close: terms of up to ±{float(np.abs(e.terms_pq).max()):.2g} {e.unit} cancel to {e.kl_pq:.3g}. "
        f"Counted as p·log(p/q) - p + q, which has the same sum and no negative terms, {share} comes from {_which(e, top)}."
    )

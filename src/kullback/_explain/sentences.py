"""What an explanation says in words."""

from __future__ import annotations

import math

import numpy as np

from .._report.cells import percent, printable
from .record import Explanation, Floats


def in_percent(x: float) -> str:
    """A percentage with at least two digits, whatever its size."""
    return percent(x, ".0f" if 0.1 <= abs(x) < 100 or x == 0 else ".2g")


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
        return f"No category dominates: the largest term, {in_percent(share)} of KL(P‖Q), comes from {which}."
    return f"{in_percent(share)} of KL(P‖Q) comes from {which}."


def _close(e: Explanation) -> str:
    # Terms of the size of |p - q| cancel to a sum of its square, so a share of that sum says nothing. With φ(x) = e^x - 1 - x,
    # p log(p/q) - p + q = p φ(log q/p) has the same sum and no negative terms; its series is accurate where P is close to Q.
    l = -np.nan_to_num(e.log_ratio, nan=0.0) * math.log(e.base)
    with np.errstate(over="ignore", invalid="ignore"):
        phi = np.where(np.abs(l) < 1e-2, 0.5 * l * l * (1.0 + l / 3.0 * (1.0 + l / 4.0)), np.expm1(l) - l)
        parts = np.where(np.isneginf(e.log_ratio), e.q, e.p * phi) / math.log(e.base)
    top = int(np.argmax(parts))
    share = in_percent(float(parts[top]) / e.kl_pq)
    return (
        f"P and Q are close: terms of up to ±{float(np.abs(e.terms_pq).max()):.2g} {e.unit} cancel to {e.kl_pq:.3g}. "
        f"Counted as p·log(p/q) - p + q, which has the same sum and no negative terms, {share} comes from {_which(e, top)}."
    )

"""The truth for one row of numbers, by definition, in mpmath. Nothing of kullback is used here.

A row is a list of floats as the caller's dtype holds them. Each definition is applied to those very numbers with as many digits as the row
needs, so that the judge itself does not round anything that float64 could show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath as mp

LOG_FORMS = ("logits", "log_probs")
# What docs/numerics.md promises of values (relative) and of gradients (norm-wise).
VALUE_BOUND = {"float32": 5e-6, "float64": 1e-12}
GRADIENT_BOUND = {"float32": 1e-5, "float64": 1e-11}
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
# Below the smallest normal number digits are lost, and XLA takes such numbers for zero.
TINY = {"float32": 1.2e-38, "float64": 2.3e-308}
LARGEST = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
# The promise is made for a KL from here up.
LEAST_KL = 1e-14

INVALID = "invalid"


def digits_for(rows: Sequence[Sequence[float]], forms: Sequence[str], temperature: float) -> int:
    """Enough for the smallest KL that float64 can hold, if the row has categories as small as that."""
    spread = 0.0
    for row, form in zip(rows, forms):
        finite = [v for v in row if math.isfinite(v) and (form in LOG_FORMS or v > 0)]
        if len(finite) < 2:
            continue
        if form in LOG_FORMS:
            spread = max(spread, min((max(finite) / abs(temperature) - min(finite) / abs(temperature)) / 2.3, 340.0))
        else:
            spread = max(spread, min(math.log10(max(finite)) - math.log10(min(finite)), 340.0))
    # Two digits of the total for each digit of the smallest share: terms of second order in it are what is left of a KL.
    return int(60 + 2 * spread)


def sum_is_off(row: Sequence[float], form: str, tolerance: float) -> bool | None:
    """Is the sum further from 1 than accepted? None: too near to the limit to say, since the sum that is looked at rounds or underflows."""
    total = mp.fsum(mp.exp(mp.mpf(v)) for v in row if v > -math.inf) if form == "log_probs" else mp.fsum(mp.mpf(v) for v in row)
    off = abs(total - 1)
    if form == "log_probs" and total < TINY["float32"] and tolerance >= 1:  # any sum is accepted, but there must be some mass
        return None
    if abs(off - tolerance) < tolerance * 1e-2:
        return None
    return bool(off > tolerance)


def complaint(row: Sequence[float], form: str, tolerance: float, prior: float | None = None) -> str | None:
    """ "invalid", "unsure", "nan" or None: what the contract says of the values of one row."""
    if any(math.isnan(v) for v in row):
        return "nan"
    if form in LOG_FORMS:
        if max(row) == math.inf or max(row) == -math.inf:
            return INVALID
        off = form == "log_probs" and sum_is_off(row, form, tolerance)
    else:
        if min(row) < 0 or max(row) == math.inf or (max(row) <= 0 and not (form == "counts" and prior)):
            return INVALID
        off = form == "probs" and sum_is_off(row, form, tolerance)
    return "unsure" if off is None else INVALID if off else None


def log_normalised(row: Sequence[mp.mpf], form: str, temperature: mp.mpf, prior: float | None) -> list[mp.mpf]:
    """log p of the normalised row; -inf for no probability."""
    values = [mp.mpf(v) for v in row]
    if form in LOG_FORMS:
        values = [v / temperature for v in values]
        top = max(values)
        total = top + mp.log(mp.fsum(mp.exp(v - top) for v in values if v > mp.mpf("-inf")))
        return [v - total for v in values]
    if prior is not None:
        share = mp.mpf(prior)
        values = [v + share for v in values] if form == "counts" else [
            v * (1 - share) + mp.fsum(values) * share / len(values) for v in values
        ]  # fmt: skip
    log_total = mp.log(mp.fsum(values))
    return [mp.log(v) - log_total if v > 0 else mp.mpf("-inf") for v in values]


def _exp(v: mp.mpf) -> mp.mpf:
    return mp.mpf(0) if v == mp.mpf("-inf") else mp.exp(v)


def _phi(x: mp.mpf) -> mp.mpf:
    """e^x - 1 - x, whose leading terms cancel for a small x."""
    if abs(x) > mp.mpf("1e-3"):
        return mp.expm1(x) - x
    term, total, n = x * x / 2, mp.mpf(0), 2
    while abs(term) > abs(total) * mp.eps or n == 2:
        total += term
        n += 1
        term = term * x / n
        if term == 0:
            break
    return total


def kl(p: Sequence[mp.mpf], q: Sequence[mp.mpf]) -> mp.mpf:
    """Sum of p log(p/q) - p + q, of log-probabilities: each term is at least 0, and -p + q adds up to 0."""
    nothing = mp.mpf("-inf")
    if any(a > nothing and b == nothing for a, b in zip(p, q)):
        return mp.mpf("inf")
    terms = []
    for a, b in zip(p, q):
        if a == nothing:
            terms.append(_exp(b))
        else:
            l = b - a
            # e^a phi(l), and e^b where that would be 0 times a number beyond all bounds.
            terms.append(_exp(a) * _phi(l) if l < 1 else _exp(b) - _exp(a) * (1 + l))
    return mp.fsum(terms)


def entropy(p: Sequence[mp.mpf]) -> mp.mpf:
    return cross_entropy(p, p)


def cross_entropy(p: Sequence[mp.mpf], q: Sequence[mp.mpf]) -> mp.mpf:
    nothing = mp.mpf("-inf")
    if any(a > nothing and b == nothing for a, b in zip(p, q)):
        return mp.mpf("inf")
    return -mp.fsum(_exp(a) * b for a, b in zip(p, q) if a > nothing)


def mixture(p: Sequence[mp.mpf], q: Sequence[mp.mpf], share: mp.mpf) -> list[mp.mpf]:
    """log((1 - share) p + share q)."""
    found = []
    for a, b in zip(p, q):
        m = (1 - share) * _exp(a) + share * _exp(b)
        found.append(mp.log(m) if m > 0 else mp.mpf("-inf"))
    return found


def js(p: Sequence[mp.mpf], q: Sequence[mp.mpf], mix: float = 0.5) -> mp.mpf:
    w = mp.mpf(mix)
    m = mixture(p, q, w)
    return (1 - w) * kl(p, m) + w * kl(q, m)


def renyi(p: Sequence[mp.mpf], q: Sequence[mp.mpf], order: float) -> mp.mpf:
    nothing = mp.mpf("-inf")
    if order == 1:
        return kl(p, q)
    here = [(a, b) for a, b in zip(p, q) if a > nothing]
    both = [(a, b) for a, b in here if b > nothing]
    if not both or (order > 1 and len(both) < len(here)):
        return mp.mpf("inf")
    if order == 0:
        # -log(1 - what Q has elsewhere), which keeps its digits.
        return -mp.log1p(-mp.fsum(_exp(b) for a, b in zip(p, q) if a == nothing))
    if order == math.inf:
        return max(a - b for a, b in both)
    # The logarithm is of about (order - 1) times the result, below 1 by that much: digits for both.
    with mp.extradps(int(40 + 2 * abs(math.log10(abs(order - 1) or 1e-300)) + 2 * abs(math.log10(order)))):
        o = mp.mpf(order)
        exponents = [o * a + (1 - o) * b for a, b in both]
        top = max(exponents)
        return (top + mp.log(mp.fsum(mp.exp(e - top) for e in exponents))) / (o - 1)


def skew(p: Sequence[mp.mpf], q: Sequence[mp.mpf], share: float) -> mp.mpf:
    """KL(P ‖ (1 - share) P + share Q)."""
    return kl(p, mixture(p, q, mp.mpf(share)))


def divergence(name: str, p: Sequence[mp.mpf], q: Sequence[mp.mpf], parameter: float | None) -> mp.mpf:
    if name in ("kl", "relative_entropy"):
        return kl(p, q)
    if name == "jeffreys":
        return kl(p, q) + kl(q, p)
    if name == "js":
        return js(p, q, 0.5 if parameter is None else parameter)
    if name == "renyi":
        assert parameter is not None
        return renyi(p, q, parameter)
    if name == "entropy":
        return entropy(p)
    if name == "skew":
        assert parameter is not None
        return skew(p, q, parameter)
    assert name == "cross_entropy", name
    return cross_entropy(p, q)


def elementwise(name: str, x: float, y: float) -> float | mp.mpf | None:
    """SciPy's rel_entr and kl_div; None where infinities leave it open."""
    if math.isnan(x) or math.isnan(y):
        return math.nan
    if x < 0 or y < 0 or (x > 0 and y == 0):
        return math.inf
    if math.isinf(x) or (math.isinf(y) and x > 0):
        return None
    if x == 0:
        return y if name == "kl_div" else 0.0
    with mp.workdps(60 + 2 * int(min(340, abs(math.log10(x) - math.log10(y))))):
        a, b = mp.mpf(x), mp.mpf(y)
        return a * mp.log(a / b) - a + b if name == "kl_div" else a * mp.log(a / b)


def as_float(x: mp.mpf | float) -> float:
    """As float64, with infinity for what it cannot hold."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf

"""Independent truth: mpmath on the numbers as given. Nothing of kullback is used here."""

from __future__ import annotations

from typing import NamedTuple

import mpmath as mp
import numpy as np

mp.mp.dps = 50

# What the contract promises: relative for values, norm-wise for gradients.
VALUE_BOUND = {np.float32: 5e-6, np.float64: 1e-12}
GRADIENT_BOUND = {np.float32: 1e-5, np.float64: 1e-11}


class Truth(NamedTuple):
    """KL(P‖Q) of the normalised inputs, and its derivatives with respect to the two arrays as given."""

    value: float
    to_x: np.ndarray
    to_y: np.ndarray


def exact(row: np.ndarray) -> list[mp.mpf]:
    return [mp.mpf(float(v)) for v in row]


def log_normalised(row: np.ndarray, form: str, temperature: float = 1.0, copies: int = 1) -> tuple[list[mp.mpf], mp.mpf]:
    """log of the normalised probabilities, and the total they were divided by (1 for logs), when every entry is there `copies` times."""
    values = exact(row)
    if form in ("logits", "log_probs"):
        values = [v / mp.mpf(temperature) for v in values]
        total = mp.log(copies * mp.fsum(mp.exp(v) for v in values))
        return [v - total for v in values], mp.mpf(1)
    total = copies * mp.fsum(values)
    log_total = mp.log(total)
    return [mp.log(v) - log_total if v > 0 else mp.mpf("-inf") for v in values], total


def probabilities(logs: list[mp.mpf]) -> list[mp.mpf]:
    return [mp.exp(v) if v > mp.mpf("-inf") else mp.mpf(0) for v in logs]


def _p_log_ratio(p: mp.mpf, log_p: mp.mpf, log_q: mp.mpf) -> mp.mpf:
    return mp.mpf(0) if p == 0 else p * (log_p - log_q)


def kl_mpf(log_p: list[mp.mpf], log_q: list[mp.mpf]) -> mp.mpf:
    return mp.fsum(_p_log_ratio(p, lp, lq) for p, lp, lq in zip(probabilities(log_p), log_p, log_q))


def kl(x: np.ndarray, y: np.ndarray, form: str | tuple[str, str] = "probs", temperature: float = 1.0, copies: int = 1) -> Truth:
    """For rows in which every entry of x and y stands `copies` times; the derivatives are those to one copy."""
    form_x, form_y = (form, form) if isinstance(form, str) else form
    log_p, total_p = log_normalised(x, form_x, temperature, copies)
    log_q, total_q = log_normalised(y, form_y, temperature, copies)
    p, q = probabilities(log_p), probabilities(log_q)
    value = copies * mp.fsum(_p_log_ratio(a, la, lb) for a, la, lb in zip(p, log_p, log_q))
    to_log_p = [mp.mpf(0) if a == 0 else a * (la - lb - value) for a, la, lb in zip(p, log_p, log_q)]
    t = mp.mpf(temperature)
    if form_x in ("logits", "log_probs"):
        to_x = [g / t for g in to_log_p]
    else:
        to_x = [mp.mpf(0) if a == 0 else g / a / total_p for g, a in zip(to_log_p, p)]
    if form_y in ("logits", "log_probs"):
        to_y = [(b - a) / t for a, b in zip(p, q)]
    else:
        to_y = [(1 - a / b if b != 0 else mp.mpf(1)) / total_q for a, b in zip(p, q)]
    return Truth(float(value), np.array([float(g) for g in to_x]), np.array([float(g) for g in to_y]))


def entropy(x: np.ndarray, form: str = "probs") -> float:
    log_p, _ = log_normalised(x, form)
    return float(-mp.fsum(p * lp for p, lp in zip(probabilities(log_p), log_p) if p != 0))


def js(x: np.ndarray, y: np.ndarray, form: str = "probs", mix: float = 0.5) -> float:
    log_p, _ = log_normalised(x, form)
    log_q, _ = log_normalised(y, form)
    w = mp.mpf(mix)
    p, q = probabilities(log_p), probabilities(log_q)
    log_m = [mp.log((1 - w) * a + w * b) if a + b > 0 else mp.mpf("-inf") for a, b in zip(p, q)]
    return float((1 - w) * kl_mpf(log_p, log_m) + w * kl_mpf(log_q, log_m))


def jeffreys(x: np.ndarray, y: np.ndarray, form: str = "probs") -> float:
    log_p, _ = log_normalised(x, form)
    log_q, _ = log_normalised(y, form)
    return float(kl_mpf(log_p, log_q) + kl_mpf(log_q, log_p))


def renyi(x: np.ndarray, y: np.ndarray, order: float, form: str = "probs") -> float:
    log_p, _ = log_normalised(x, form)
    log_q, _ = log_normalised(y, form)
    if order == 1:
        return float(kl_mpf(log_p, log_q))
    here = [(lp, lq) for lp, lq in zip(log_p, log_q) if lp > mp.mpf("-inf")]
    if order == 0:
        return float(-mp.log(mp.fsum(mp.exp(lq) for _, lq in here)))
    if order == float("inf"):
        return float(max(lp - lq for lp, lq in here))
    a = mp.mpf(order)
    both = [(lp, lq) for lp, lq in here if lq > mp.mpf("-inf")]
    if order > 1 and len(both) < len(here):
        return float("inf")
    if not both:
        return float("inf")
    return float(mp.log(mp.fsum(mp.exp(a * lp + (1 - a) * lq) for lp, lq in both)) / (a - 1))


def central_difference(function, x: np.ndarray, step: str = "1e-15") -> np.ndarray:
    """Derivatives of `function` (list of mpf -> mpf) at x by symmetric differences at 50 digits: good to 1e-20 or so."""
    h = mp.mpf(step)
    values = exact(x)
    found = []
    for i in range(len(values)):
        up, down = list(values), list(values)
        up[i] += h
        down[i] -= h
        found.append(float((function(up) - function(down)) / (2 * h)))
    return np.array(found)


def relative_error(found: np.ndarray | float, truth: np.ndarray | float) -> float:
    """Norm-wise."""
    found, truth = np.asarray(found, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))

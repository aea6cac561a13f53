"""Every public function of the array contract with its value, gradient and Hessian at 50 digits: the truth of the transform tests.

Differences of mpmath values; of kullback only the functions under test are named here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

import kullback as kb
import oracle


def _kl(p, q):
    return mp.fsum(a * mp.log(a / b) for a, b in zip(p, q) if a > 0)


def _entropy(p, q):
    return -mp.fsum(a * mp.log(a) for a in p if a > 0)


def _js(w):
    def value(p, q):
        m = [(1 - w) * a + w * b for a, b in zip(p, q)]
        return (1 - w) * _kl(p, m) + w * _kl(q, m)

    return value


def _renyi(order):
    return lambda p, q: mp.log(mp.fsum(a**order * b ** (1 - order) for a, b in zip(p, q))) / (order - 1)


class Case(NamedTuple):
    """call(x, y, **options) in kullback, and the same of two normalised lists of mpf (of the lists as given, if `elementwise`)."""

    call: Callable[..., Any]
    value: Callable[[list, list], mp.mpf]
    forms: tuple[str, ...] = ("logits", "probs")


def _elementwise(function):
    return lambda x, y, **_: function(x, y)


CASES = {
    "kl": Case(kb.kl, _kl),
    "entropy": Case(lambda x, y, **options: kb.entropy(x, **options), _entropy),
    "cross_entropy": Case(kb.cross_entropy, lambda p, q: _entropy(p, q) + _kl(p, q)),
    "js": Case(kb.js, _js(mp.mpf("0.5"))),
    "js(mix=0.25)": Case(lambda x, y, **options: kb.js(x, y, mix=0.25, **options), _js(mp.mpf("0.25"))),
    "jeffreys": Case(kb.jeffreys, lambda p, q: _kl(p, q) + _kl(q, p)),
    "renyi(order=0.25)": Case(lambda x, y, **options: kb.renyi(x, y, order=0.25, **options), _renyi(mp.mpf("0.25"))),
    "renyi(order=2)": Case(lambda x, y, **options: kb.renyi(x, y, order=2.0, **options), _renyi(mp.mpf(2))),
    "rel_entr": Case(_elementwise(kb.rel_entr), _kl, ("elementwise",)),
    "kl_div": Case(_elementwise(kb.kl_div), lambda x, y: _kl(x, y) - mp.fsum(x) + mp.fsum(y), ("elementwise",)),
}
CHECKED = [name for name, case in CASES.items() if case.forms != ("elementwise",)]
ONE_EACH = ["kl", "entropy", "cross_entropy", "js", "jeffreys", "renyi(order=0.25)"]
CASE_FORMS = [(name, form) for name, case in CASES.items() for form in case.forms]


class Derivatives(NamedTuple):
    value: float
    gradient: np.ndarray
    hessian: np.ndarray


def normalised(values: list, form: str) -> list:
    if form == "elementwise":
        return values
    values = [mp.exp(v) for v in values] if form == "logits" else values
    total = mp.fsum(values)
    return [v / total for v in values]


@cache
def _truth(name: str, form: str, x: tuple, y: tuple, temperature: float) -> Derivatives:
    k, t, h = len(x), mp.mpf(temperature), mp.mpf("1e-12")
    point = oracle.exact(np.array(x + y))

    def value(z):
        return CASES[name].value(*(normalised([v / t for v in side], form) for side in (z[:k], z[k:])))

    def moved(*steps):
        z = list(point)
        for i, step in steps:
            z[i] += step
        return value(z)

    # Symmetric differences at 50 digits: h^2 is 1e-24 off, and rounding costs 1e-50/h^2 = 1e-26.
    n = 2 * k
    second = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            change = moved((i, h), (j, h)) - moved((i, h), (j, -h)) - moved((i, -h), (j, h)) + moved((i, -h), (j, -h))
            second[i, j] = second[j, i] = float(change / (4 * h * h))
    first = np.array([float((moved((i, h)) - moved((i, -h))) / (2 * h)) for i in range(n)])
    return Derivatives(float(value(point)), first, second)


def truth(name: str, form: str, x: np.ndarray, y: np.ndarray, temperature: float = 1.0) -> Derivatives:
    """Of one row: the value, and derivatives with respect to the concatenation of x and y."""
    return _truth(name, form, tuple(map(float, x)), tuple(map(float, y)), float(temperature))


def points(form: str, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Rows: ordinary, P nearly equal to Q (where automatic derivatives cancel), P peaked and Q broad."""
    a = np.array([[0.3, -1.2, 0.8], [2.0, 0.0, -1.0], [9.0, 0.0, -3.0]])
    b = np.array([[1.1, 0.2, -0.7], [2.001, -0.002, -1.0003], [0.4, 0.1, -0.2]])
    if form == "logits":
        return a.astype(dtype), b.astype(dtype)
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (a, b))
    # Sums that are off within what is accepted: the derivatives are those of the normalised numbers.
    return (p * [[1.0], [1.0004], [0.9997]]).astype(dtype), (q * [[1.0005], [1.0], [0.9996]]).astype(dtype)


def options(form: str) -> dict:
    return {} if form == "elementwise" else {"form": form}


def close(found: Any, expected: Any, bound: float, scale: Any = None) -> None:
    """Relative to the norm of `scale` (the expected array itself unless given)."""
    found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected if scale is None else scale)
    assert error <= bound, f"off by {error:.2e}, bound {bound:.0e}: {found} for {expected}"


# Second derivatives are automatic ones of the exact first derivative: a few dozen roundings, relative to the largest entry.
HESSIAN_BOUND = {np.float32: 2e-5, np.float64: 2e-12}


def close_hessian(name: str, form: str, found: Any, row: Any, direction: Any = None) -> None:
    """Of one row, (x, y); or the Hessian times `direction`."""
    expected = truth(name, form, *row)
    dtype = row[0].dtype.type
    bound = HESSIAN_BOUND[dtype]
    if name.startswith("renyi") and form == "probs":
        # The second derivative to a small probability p is a difference of terms of size 1/p.
        bound = max(bound, float(np.finfo(dtype).eps / row[0].min()))
    close(found, expected.hessian if direction is None else expected.hessian @ direction, bound)

"""The remainder of log Γ, R(a, b) = log Γ(b) - log Γ(a) - ψ(a) (b - a), as a plain sum with a bound of its rounding errors.

On Python's floats and on blocks of NumPy numbers; those that came as float32 with as few passes over memory as it takes. Where the bound
does not do, the caller has forms without cancellation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def of_floats(a: float, b: float) -> tuple[float, float]:
    """R(a, b), but for rounding errors below 1e-15 times the second number."""
    from scipy.special import gammaln, psi  # not before it is needed: importing it takes as long as all the rest

    first, second, slope = float(gammaln(a)), float(gammaln(b)), float(psi(a)) * (b - a)
    return second - first - slope, 1.0 + abs(first) + abs(second) + abs(slope)


def of_blocks(a: Array, b: Array) -> tuple[Array, Array]:
    """R(a, b), but for rounding errors below 1e-15 times the second array."""
    from scipy.special import gammaln, psi

    first, second, slope = gammaln(a), gammaln(b), psi(a) * (b - a)
    return second - first - slope, 1.0 + abs(first) + abs(second) + abs(slope)


def of_float32_blocks(a: Array, b: Array) -> tuple[Array, Array]:
    """R(a, b) to 2e-8, but for rounding errors below 1e-15 times the second array.

    Shifted to A = a + 4, B = b + 4 by P(x) = x (x+1) (x+2) (x+3) = y (y+2), y = x (x+3), with h = b - a:
    R(a, b) = [h P'(a)/P(a) - log(P(b)/P(a))] + [(B - 1/2) log(B/A) - h + h/(2A)] + the remainder of Stirling's series.
    """
    a, b = np.atleast_1d(*np.broadcast_arrays(a, b)) if a.shape != b.shape or not a.shape else (a, b)
    h = b - a
    y_a, y_b = a + 3.0, b + 3.0
    y_a *= a
    y_b *= b
    over = y_a + 2.0
    over *= y_a
    np.divide(h, over, out=over)
    # P(b)/P(a) - 1 = h (a+b+3) (y_a+y_b+2)/P(a)
    y_b += y_a
    y_b += 2.0
    ratio = a + b
    ratio += 3.0
    ratio *= y_b
    ratio *= over
    # h P'(a)/P(a) = 4 h (a+3/2) (y_a+1)/P(a)
    y_a += 1.0
    y_a *= a + 1.5
    y_a *= over
    y_a *= 4.0
    change = a + 4.0
    np.divide(h, change, out=change)
    steps = _log1p(ratio, _product, b, a)
    value = _log1p(change, lambda x: x + 4.0, b, a)
    value *= b + 3.5
    value += _stirling(a, b, change)
    change *= 0.5
    value += change
    value -= h
    y_a -= steps
    value += y_a
    np.abs(steps, out=steps)
    np.abs(h, out=h)
    steps += h
    return value, steps


def _product(x: Array) -> Array:
    y = x * (x + 3.0)
    return y * (y + 2.0)


def _log1p(change: Array, function: Any, b: Array, a: Array) -> Array:
    """log(1 + change) = log(function(b)/function(a)); of a small quotient 1 + change has lost the digits."""
    value = np.log1p(change)
    if change.size and not change.min() > -0.999:
        far = change < -0.999
        value[far] = np.log(function(b[far]) / function(a[far]))
    return value


def _stirling(a: Array, b: Array, change: Array) -> Array:
    """s(B) - s(A) - s'(A) h for s(x) = 1/(12x) - 1/(360x³) + 1/(1260x⁵), change = h/A.

    Of 1/x^n it is change² v (v^(n-1) + 2 u v^(n-2) + ... + n u^(n-1)), u = 1/A, v = 1/B. Beside the rest it is small: float32 will do.
    """
    u, v = (a + 4.0).astype(np.float32), (b + 4.0).astype(np.float32)
    np.divide(1.0, u, out=u)
    np.divide(1.0, v, out=v)
    uu, uv, vv = u * u, u * v, v * v
    fifth = uv * 4.0
    uv *= 2.0
    np.multiply(uu, 5.0, out=u)
    fifth += u
    fifth *= uu
    uu *= 3.0
    uu += uv
    uu += vv  # v² + 2 u v + 3 u²
    vv *= uu
    fifth += vv
    fifth *= 1.0 / 1260.0
    uu *= -1.0 / 360.0
    uu += fifth
    uu += 1.0 / 12.0
    uu *= v
    value = change * change
    value *= uu
    return value

"""Functions of one number that some closed forms need and not every framework has, on the primitives alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._pairs import near_log1p_remainder, phi
from .special import gap

Array = Any


def square(x: Array) -> Array:
    return x * x


def absolute(ops: Any, x: Array) -> Array:
    return ops.where(x < 0.0, -x, x)


def any_phi(ops: Any, x: Array) -> Array:
    """e^x - 1 - x for any x."""
    large = x > 1.0
    safe = ops.where(large, x, 1.0)
    return ops.where(large, ops.exp(safe) - 1.0 - safe, phi(ops, ops.where(large, 0.0, x)))


def log1p_remainder(ops: Any, x: Array) -> Array:
    """x - log(1 + x) >= 0 for any x > -1."""
    near = (x < 1.0 / 3.0) & (x > -1.0 / 3.0)
    far = ops.where(near, 1.0, x)
    return ops.where(near, near_log1p_remainder(ops, ops.where(near, x, 0.0)), far - ops.log1p(far))


# --- log(sinh(x)/x), the log-partition function of an interval --------------------------------------------------------------------------

# log(sinh(x)/x) = Σ c_n x^(2n), c_n = 2^(2n) B_2n / (2n (2n)!), for |x| < π; |x| <= 1 needs no more.
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330,
    854513 / 138, -236364091 / 2730, 8553103 / 6, -23749461029 / 870, 8615841276005 / 14322,
    -7709321041217 / 510,
)  # fmt: skip
_SINHC = [4.0**n * b / (2 * n * math.factorial(2 * n)) for n, b in enumerate(_BERNOULLI, 1)]


class Sinhc(NamedTuple):
    """L(x) = log(sinh(x)/x), L'(x) and L''(x)."""

    value: Array
    slope: Array
    curvature: Array


def sinhc(ops: Any, x: Array) -> Sinhc:
    near = (x < 1.0) & (x > -1.0)
    inner, size = ops.where(near, x, 0.0), absolute(ops, ops.where(near, 1.0, x))
    y = inner * inner
    value: Any = 0.0
    slope: Any = 0.0
    curvature: Any = 0.0
    for n in range(len(_SINHC), 0, -1):
        c = _SINHC[n - 1]
        value, slope, curvature = value * y + c, slope * y + 2 * n * c, curvature * y + 2 * n * (2 * n - 1) * c
    small = ops.exp(-2.0 * size)
    cosech = 2.0 * ops.exp(-size) / (1.0 - small)
    coth_less = (1.0 + small) / (1.0 - small) - 1.0 / size
    return Sinhc(
        ops.where(near, value * y, size + ops.log1p(-small) - ops.log(2.0 * size)),
        ops.where(near, slope * inner, ops.where(x < 0.0, -coth_less, coth_less)),
        ops.where(near, curvature, 1.0 / (size * size) - cosech * cosech),
    )


def sinhc_remainder(ops: Any, a: Array, b: Array, h: Array) -> Array:
    """L(b) - L(a) - L'(a) h >= 0, h = b - a."""
    # Both small: Σ c_n (b^2n - a^2n - 2n a^(2n-1) h) = h² Σ c_n t_2n, t_2 = 1, t_(m+1) = b t_m + m a^(m-1).
    both_small = (a < 1.0) & (a > -1.0) & (b < 1.0) & (b > -1.0)
    near = (h < 1.0) & (h > -1.0) & ~both_small
    a_small, b_small = ops.where(both_small, a, 0.0), ops.where(both_small, b, 0.0)
    t, power, total = a_small * 0.0 + 1.0, a_small, _SINHC[0] + a_small * 0.0
    for n in range(2, len(_SINHC) + 1):
        for m in (2 * n - 2, 2 * n - 1):
            t = b_small * t + float(m) * power
            power = power * a_small
        total = total + _SINHC[n - 1] * t
    # Close: those of log sinh and of -log x. With z = sinh(b)/sinh(a) - 1 = coth(a) sinh(h) + cosh(h) - 1:
    # log(1 + z) - coth(a) h = -(z - log(1 + z)) + coth(a) (sinh(h) - h) + (cosh(h) - 1).
    a_near, b_near, h_near = ops.where(near, a, 1.0), ops.where(near, b, 1.0), ops.where(near, h, 0.0)
    up, down = phi(ops, h_near), phi(ops, -h_near)
    small = ops.exp(-2.0 * absolute(ops, a_near))
    coth = (1.0 + small) / (1.0 - small)
    coth = ops.where(a_near < 0.0, -coth, coth)
    odd, even = 0.5 * (up - down), 0.5 * (up + down)
    # up - down cancels for small h, by what is negligible beside `even`.
    z = coth * (h_near + odd) + even
    close = gap(ops, b_near, a_near, h_near) + (coth * odd + even) - log1p_remainder(ops, z)
    here, there = sinhc(ops, a), sinhc(ops, b)
    far = there.value - here.value - here.slope * h
    return ops.where(both_small, h * h * total, ops.where(near, close, far))


# --- the normal distribution --------------------------------------------------------------------------------------------------------------


def _tail_fraction(z: Array) -> Array:
    """√π z e^(z²) erfc(z) for z >= 1.5, by Laplace's continued fraction."""
    fraction = z
    for n in range(60, 0, -1):
        fraction = z + 0.5 * n / fraction
    return z / fraction


def normal_tail(ops: Any, x: Array) -> Array:
    """The probability that a standard normal variable exceeds x, for x >= 0."""
    z = x / math.sqrt(2.0)
    far = z > 1.5
    near, beyond = ops.where(far, 0.0, z), ops.where(far, z, 1.5)
    # erf(z) = 2/√π e^(-z²) Σ 2^n z^(2n+1) / (2n+1)!!
    y = near * near
    series: Any = 1.0
    for n in range(40, 0, -1):
        series = 1.0 + series * y * (2.0 / (2 * n + 1))
    inner = 0.5 - near * ops.exp(-y) * series / math.sqrt(math.pi)
    return ops.where(far, ops.exp(-beyond * beyond) * _tail_fraction(beyond) / (2.0 * math.sqrt(math.pi) * beyond), inner)


_LEGENDRE = np.polynomial.legendre.leggauss(10)
_NODES, _WEIGHTS = (0.5 + 0.5 * _LEGENDRE[0]).tolist(), (0.5 * _LEGENDRE[1]).tolist()


def normal_difference(ops: Any, a: Array, b: Array) -> Array:
    """Φ(b) - Φ(a), accurate relative to itself where they are close (|b - a| < 1/2) and relative to 1 elsewhere."""
    h = b - a
    near = (h < 0.5) & (h > -0.5)
    x, step = ops.where(near, a, 0.0), ops.where(near, h, 0.0)
    total: Any = 0.0
    for node, weight in zip(_NODES, _WEIGHTS):
        total = total + weight * ops.exp(-0.5 * square(x + node * step))
    return ops.where(near, total * step / math.sqrt(2.0 * math.pi), normal_probability(ops, b) - normal_probability(ops, a))


def normal_probability(ops: Any, x: Array) -> Array:
    """Φ(x), accurate relative to itself."""
    tail = normal_tail(ops, absolute(ops, x))
    return ops.where(x < 0.0, tail, 1.0 - tail)


def mean_distance(ops: Any, t: Array) -> Array:
    """E|z + t| for a standard normal z."""
    size = absolute(ops, t)
    density = ops.exp(-0.5 * size * size) / math.sqrt(2.0 * math.pi)
    return size + 2.0 * (density - size * normal_tail(ops, size))


# --- modified Bessel functions, as the normalisers of directions --------------------------------------------------------------------------


class Bessel:
    """A(κ) = log of Σ (κ²/4)^k / (k! (ν+1)_k) = log(I_ν(κ) / κ^ν) + constant, A(0) = 0, for one order ν."""

    def __init__(self, order: float) -> None:
        # Below `split` + 10 the series, above `split` the expansion at infinity.
        self.split = max(30.0, 3.0 * order * order)
        self.order = order
        self.coefficients = [1.0]
        k, top = 1, (self.split + 10.0) ** 2 / 4.0
        size, largest = 1.0, 1.0
        while size > 1e-18 * largest or k < 10:
            ratio = 1.0 / (k * (order + k))
            self.coefficients.append(ratio)
            size *= top * ratio
            largest = max(largest, size)
            k += 1
        # I_ν ~ e^κ/√(2πκ) Σ f_k κ^-k (DLMF 10.40.1); the logarithm of that sum, term by term.
        f = [1.0]
        for n in range(1, 13):
            f.append(-f[-1] * (4.0 * order * order - (2.0 * n - 1.0) ** 2) / (8.0 * n))
        self.tail = [0.0]
        for n in range(1, 13):
            self.tail.append(f[n] - sum(m * self.tail[m] * f[n - m] for m in range(1, n)) / n)
        self.constant = order * math.log(2.0) + math.lgamma(order + 1.0) - 0.5 * math.log(2.0 * math.pi)

    def _series(self, ops: Any, x: Array) -> tuple[Array, Array]:
        """log of the sum, and its derivative."""
        y = 0.25 * x * x
        beyond, slope = y * 0.0, y * 0.0  # the sum less 1, and its derivative by y
        for ratio in reversed(self.coefficients[1:]):
            slope = ratio * (1.0 + beyond + y * slope)
            beyond = y * ratio * (1.0 + beyond)
        return ops.log1p(beyond), 0.5 * x * slope / (1.0 + beyond)

    def _expansion(self, ops: Any, x: Array) -> tuple[Array, Array]:
        over = 1.0 / x
        value: Any = 0.0
        slope: Any = 0.0
        for n in range(len(self.tail) - 1, 0, -1):
            value, slope = (value + self.tail[n]) * over, (slope + n * self.tail[n]) * over
        half = self.order + 0.5
        return (x - half * ops.log(x)) + (self.constant + value), 1.0 - (half + slope) * over

    def both(self, ops: Any, x: Array) -> tuple[Array, Array]:
        """A(x) and A'(x)."""
        large = x > self.split
        near, far = self._series(ops, ops.where(large, 0.0, x)), self._expansion(ops, ops.where(large, x, self.split))
        return ops.where(large, far[0], near[0]), ops.where(large, far[1], near[1])

    def remainder(self, ops: Any, a: Array, b: Array) -> Array:
        """A(b) - A(a) - A'(a) (b - a) >= 0."""
        h = b - a
        top = self.split + 10.0
        large = (a > self.split) & (b > self.split)
        near = (a < top) & (b < top) & (h < 1.0) & (h > -1.0) & ~large
        # The series: with z = S(b)/S(a) - 1, T = z - A'(a) h = h² Σ c_k t_2k / S(a), all of it positive: T - (z - log(1 + z)).
        x, y = ops.where(near, a, 0.0), ops.where(near, b, 0.0)
        step = y - x
        total, slope, excess = x * 0.0 + 1.0, x * 0.0, x * 0.0
        # c_k x^2k, c_k x^(2k-1) and c_k t_2k, t_(m+1) = y t_m + m x^(m-1); multiplied out step by step, they stay in range.
        power, lower, t = total, x * 0.0, x * 0.0
        for k, ratio in enumerate(self.coefficients[1:], 1):
            ratio = 0.25 * ratio
            t = y * (ratio * (y * t + (2.0 * k - 2.0) * lower)) + (2.0 * k - 1.0) * ratio * power
            lower = ratio * power * x
            power = lower * x
            total, slope, excess = total + power, slope + 2.0 * k * lower, excess + t
        excess = step * step * excess / total
        z = excess + slope / total * step
        close = excess - log1p_remainder(ops, z)
        # The expansion: (ν + 1/2) gap(b/a) and, for each power, b^-n - a^-n + n h a^-(n+1) = h² t_n.
        x, y = ops.where(large, a, self.split), ops.where(large, b, self.split)
        over_x, over_y, step = 1.0 / x, 1.0 / y, y - x
        power = over_x * over_x
        t = power * over_y
        series: Any = 0.0
        for n in range(1, len(self.tail)):
            series = series + self.tail[n] * t
            power = power * over_x
            t = (t + (n + 1.0) * power) * over_y
        wide = (self.order + 0.5) * gap(ops, y, x, step) + step * step * series
        (here, slope), (there, _) = self.both(ops, a), self.both(ops, b)
        return ops.where(large, wide, ops.where(near, close, there - here - slope * h))

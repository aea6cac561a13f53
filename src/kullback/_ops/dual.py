"""The primitives on Python's floats with their derivatives: what `scalar` has, for numbers that carry one derivative for each parameter.

As there, whatever is out of the ordinary raises, and the caller takes the framework's own way.
"""

from __future__ import annotations

import math
from typing import Any

from . import scalar
from .log_gamma import of_floats

name, float32, float64 = scalar.name, scalar.float32, scalar.float64
where, isnan = scalar.where, math.isnan
Slopes = tuple[float, ...]


class Dual:
    """A number and its derivatives."""

    __slots__ = ("d", "x")

    def __init__(self, x: float, d: Slopes) -> None:
        self.x, self.d = x, d

    def __add__(self, other: Any) -> Dual:
        if type(other) is Dual:
            return Dual(self.x + other.x, tuple([a + b for a, b in zip(self.d, other.d)]))
        return Dual(self.x + other, self.d)

    __radd__ = __add__

    def __neg__(self) -> Dual:
        return Dual(-self.x, tuple([-a for a in self.d]))

    def __sub__(self, other: Any) -> Dual:
        if type(other) is Dual:
            return Dual(self.x - other.x, tuple([a - b for a, b in zip(self.d, other.d)]))
        return Dual(self.x - other, self.d)

    def __rsub__(self, other: float) -> Dual:
        return Dual(other - self.x, tuple([-a for a in self.d]))

    def __mul__(self, other: Any) -> Dual:
        x = self.x
        if type(other) is Dual:
            y = other.x
            return Dual(x * y, tuple([a * y + x * b for a, b in zip(self.d, other.d)]))
        return Dual(x * other, tuple([a * other for a in self.d]))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        if type(other) is Dual:
            y = other.x
            value = self.x / y
            return Dual(value, tuple([(a - value * b) / y for a, b in zip(self.d, other.d)]))
        return Dual(self.x / other, tuple([a / other for a in self.d]))

    def __rtruediv__(self, other: float) -> Dual:
        value = other / self.x
        factor = -value / self.x
        return Dual(value, tuple([factor * a for a in self.d]))

    def __abs__(self) -> Dual:
        return -self if self.x < 0.0 else self

    def __lt__(self, other: Any) -> bool:
        return self.x < number(other)

    def __le__(self, other: Any) -> bool:
        return self.x <= number(other)

    def __gt__(self, other: Any) -> bool:
        return self.x > number(other)

    def __ge__(self, other: Any) -> bool:
        return self.x >= number(other)

    def __eq__(self, other: object) -> bool:
        return self.x == number(other)

    __hash__ = None  # type: ignore[assignment]


def number(x: Any) -> float:
    """The number alone."""
    return x.x if type(x) is Dual else x


def variables(numbers: list[float]) -> list[Dual]:
    """One for each, of which it is the derivative to itself that is 1."""
    n = len(numbers)
    return [Dual(x, tuple([1.0 if i == j else 0.0 for j in range(n)])) for i, x in enumerate(numbers)]


def _chain(x: Dual, value: float, slope: float) -> Dual:
    return Dual(value, tuple([slope * a for a in x.d]))


def exp(x: Any) -> Any:
    value = math.exp(number(x))
    return _chain(x, value, value) if type(x) is Dual else value


def log(x: Any) -> Any:
    return _chain(x, math.log(x.x), 1.0 / x.x) if type(x) is Dual else math.log(x)


def log1p(x: Any) -> Any:
    return _chain(x, math.log1p(x.x), 1.0 / (1.0 + x.x)) if type(x) is Dual else math.log1p(x)


def high(x: Any) -> float:
    return scalar.high(number(x))


def stop_gradient(x: Any) -> float:
    return number(x)


def barrier(x: Any) -> Any:
    return x


def refine(value: Any, size: Any, exact: Any, *numbers: Any) -> Any:
    # Of a sum of size h², a derivative of size h.
    return value if 1e-15 * number(size) <= 1e-12 * number(value) else exact(*numbers)


def log_gamma_remainder(a: Any, b: Any) -> tuple[Any, float]:
    from scipy.special import psi, zeta

    x, y = number(a), number(b)
    value, size = of_floats(x, y)
    slopes = [(a, -float(zeta(2.0, x)) * (y - x)), (b, float(psi(y)) - float(psi(x)))]  # ζ(2, x) = ψ'(x)
    total: Any = value
    for variable, slope in slopes:
        if type(variable) is Dual:
            total = total + _chain(variable, 0.0, slope)
    return total, size

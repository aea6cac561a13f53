"""Axes: the places of marks and numbers. Positions are percentages of the length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .cells import number


def tick(x: float) -> str:
    return number(float(f"{x:.6g}"), 6)


def round_numbers(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from low to high."""
    span = high - low
    if not span > 0:
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Linear:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def at(self, x: float) -> float:
        return round(100.0 * (x - self.low) / (self.high - self.low), 3)

    def ticks(self, about: int = 5) -> list[dict[str, Any]]:
        return [{"at": self.at(x), "text": tick(x)} for x in round_numbers(self.low, self.high, about)]


class Logarithmic:
    """0 < low < high."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def at(self, x: float) -> float:
        return round(100.0 * math.log(x / self.low) / math.log(self.high / self.low), 3)

    def edges(self, count: int) -> list[float]:
        step = math.log(self.high / self.low) / count
        return [self.low * math.exp(i * step) for i in range(count)] + [self.high]

    def ticks(self, about: int = 5) -> list[dict[str, Any]]:
        decades = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
        values: Sequence[float] = [10.0**d for d in decades]
        if len(values) > about + 2:
            values = values[:: math.ceil(len(values) / about)]
        elif len(values) < 3:
            values = [m * 10.0**d for d in range(min(decades, default=0) - 1, max(decades, default=0) + 2) for m in (1, 2, 5)]
            values = [x for x in values if self.low <= x <= self.high]
            if len(values) < 3:
                values = [x for x in round_numbers(self.low, self.high, 4) if x > 0]
        return [{"at": self.at(x), "text": tick(x)} for x in values]

"""Families on the half line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .base import Array, Record, exponential

__all__ = [
    "Chi", "Chi2", "Exponential", "Gamma", "GammaLog", "GammaScale", "GeneralizedGamma", "HalfCauchy",
    "HalfNormal", "InverseGamma", "InverseGaussian", "InverseWeibull", "Levy", "LogNormal", "Maxwell",
    "Nakagami", "Pareto", "Rayleigh", "Weibull",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Gamma(Record):
    """Density ∝ x^(concentration - 1) exp(-rate x), x > 0."""

    concentration: Array
    rate: Array
    positive = ("concentration", "rate")
    support = "positive"


@dataclass(frozen=True, eq=False)
class GammaScale(Record):
    """Density ∝ x^(concentration - 1) exp(-x/scale), x > 0."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")
    support = "positive"


@dataclass(frozen=True, eq=False)
class GammaLog(Record):
    """Gamma(concentration, exp(log_rate))."""

    concentration: Array
    log_rate: Array
    positive = ("concentration",)
    support = "positive"
    also = (Gamma,)

    def same_law(self) -> Iterator[Record]:
        yield Gamma(self.concentration, exponential(self.log_rate))


@dataclass(frozen=True, eq=False)
class InverseGamma(Record):
    """The law of 1/x for x ~ Gamma(concentration, rate=scale)."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")
    support = "positive"


@dataclass(frozen=True, eq=False)
class Exponential(Record):
    """Density rate exp(-rate x), x > 0."""

    rate: Array
    positive = ("rate",)
    support = "positive"
    also = (Gamma,)

    def same_law(self) -> Iterator[Record]:
        yield Gamma(1.0, self.rate)


@dataclass(frozen=True, eq=False)
class Chi2(Record):
    """Sum of `df` squared standard normal variables."""

    df: Array
    positive = ("df",)
    support = "positive"
    also = (Gamma,)

    def same_law(self) -> Iterator[Record]:
        yield Gamma(0.5 * (self.df if hasattr(self.df, "shape") else np.asarray(self.df)), 0.5)


@dataclass(frozen=True, eq=False)
class HalfNormal(Record):
    """The law of |x| for x ~ Normal(0, scale)."""

    scale: Array
    positive = ("scale",)
    support = "positive"


@dataclass(frozen=True, eq=False)
class HalfCauchy(Record):
    """The law of |x| for x ~ Cauchy(0, scale)."""

    scale: Array
    positive = ("scale",)
    support = "positive"


@dataclass(frozen=True, eq=False)
class LogNormal(Record):
    """The law of exp(x) for x ~ Normal(loc, scale)."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "positive"


@dataclass(frozen=True, eq=False)
class Weibull(Record):
    """Distribution function 1 - exp(-(x/scale)^concentration), x > 0."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")
    support = "positive"


@dataclass(frozen=True, eq=False)
class Pareto(Record):
    """Density ∝ x^-(concentration + 1), x > scale."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")
    support = "above"


@dataclass(frozen=True, eq=False)
class InverseGaussian(Record):
    """Density √(concentration/(2π x³)) exp(-concentration (x - loc)²/(2 loc² x)), x > 0."""

    loc: Array
    concentration: Array
    positive = ("loc", "concentration")
    support = "positive"


@dataclass(frozen=True, eq=False)
class GeneralizedGamma(Record):
    """Density ∝ x^(concentration power - 1) exp(-(x/scale)^power), x > 0: the law of scale y^(1/power), y ~ Gamma(concentration, 1)."""

    concentration: Array
    power: Array
    scale: Array
    positive = ("concentration", "power", "scale")
    support = "positive"


@dataclass(frozen=True, eq=False)
class Chi(Record):
    """The root of a Chi2(df) variable."""

    df: Array
    positive = ("df",)
    support = "positive"


@dataclass(frozen=True, eq=False)
class Rayleigh(Record):
    """Length of a vector of two Normal(0, scale) variables."""

    scale: Array
    positive = ("scale",)
    support = "positive"


@dataclass(frozen=True, eq=False)
class Maxwell(Record):
    """Length of a vector of three Normal(0, scale) variables."""

    scale: Array
    positive = ("scale",)
    support = "positive"


@dataclass(frozen=True, eq=False)
class Nakagami(Record):
    """The root of a Gamma(concentration, rate=concentration/spread) variable."""

    concentration: Array
    spread: Array
    positive = ("concentration", "spread")
    support = "positive"


@dataclass(frozen=True, eq=False)
class InverseWeibull(Record):
    """The law of 1/x for x ~ Weibull(concentration, 1/scale). Also called Fréchet."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")
    support = "positive"


@dataclass(frozen=True, eq=False)
class Levy(Record):
    """The law of scale/y², y standard normal."""

    scale: Array
    positive = ("scale",)
    support = "positive"

"""Families on the real line."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Array, Record

__all__ = [
    "Cauchy", "ExpGamma", "ExpGammaLog", "ExpInverseGamma", "ExpInverseGammaLog", "GeneralizedNormal",
    "Gumbel", "Laplace", "Logistic", "Moyal", "Normal", "NormalLogScale", "VonMises",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Normal(Record):
    """Normal distribution of mean `loc` and standard deviation `scale`."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "real"


@dataclass(frozen=True, eq=False)
class Laplace(Record):
    """Density exp(-|x - loc|/scale) / (2 scale)."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "real"


@dataclass(frozen=True, eq=False)
class Cauchy(Record):
    """Density 1 / (π scale (1 + ((x - loc)/scale)²))."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "real"


@dataclass(frozen=True, eq=False)
class Gumbel(Record):
    """Distribution function exp(-exp(-(x - loc)/scale))."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "real"


@dataclass(frozen=True, eq=False)
class Logistic(Record):
    """Distribution function 1 / (1 + exp(-(x - loc)/scale))."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "real"


@dataclass(frozen=True, eq=False)
class Moyal(Record):
    """The law of loc - scale log(y²), y standard normal."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "real"


@dataclass(frozen=True, eq=False)
class ExpGamma(Record):
    """The law of log(x) for x ~ Gamma(concentration, rate)."""

    concentration: Array
    rate: Array
    positive = ("concentration", "rate")
    support = "real"


@dataclass(frozen=True, eq=False)
class ExpGammaLog(Record):
    """The law of log(x) for x ~ Gamma(concentration, exp(log_rate))."""

    concentration: Array
    log_rate: Array
    positive = ("concentration",)
    support = "real"


@dataclass(frozen=True, eq=False)
class ExpInverseGamma(Record):
    """The law of log(x) for x ~ InverseGamma(concentration, scale)."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")
    support = "real"


@dataclass(frozen=True, eq=False)
class ExpInverseGammaLog(Record):
    """The law of log(x) for x ~ InverseGamma(concentration, exp(log_scale))."""

    concentration: Array
    log_scale: Array
    positive = ("concentration",)
    support = "real"


@dataclass(frozen=True, eq=False)
class GeneralizedNormal(Record):
    """Density ∝ exp(-(|x - loc|/scale)^power). Two of them: for one `loc`, or `power` 2 of Q."""

    loc: Array
    scale: Array
    power: Array
    positive = ("scale", "power")
    support = "real"


@dataclass(frozen=True, eq=False)
class NormalLogScale(Record):
    """Normal distribution of mean `loc` and standard deviation exp(log_scale)."""

    loc: Array
    log_scale: Array
    support = "real"


@dataclass(frozen=True, eq=False)
class VonMises(Record):
    """Density ∝ exp(concentration cos(x - loc)) on the circle."""

    loc: Array
    concentration: Array
    non_negative = ("concentration",)

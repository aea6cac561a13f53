"""Families of distributions as light records: their parameters, nothing else. Public as `kullback.distributions`.

Every ecosystem's objects are read into these (`adapters`), and the closed forms are pairs of these (`continuous`, `discrete`, ...), so each
formula serves all frameworks. Parameters may be numbers, lists or arrays of any framework, and broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

Array = Any


@dataclass(frozen=True, eq=False)
class Record:
    """A distribution given by its parameters."""

    # Parameters that must be positive, at least 0, between 0 and 1.
    # How many trailing axes of each parameter belong to one event; and of the event itself.
    positive: ClassVar[tuple[str, ...]] = ()
    non_negative: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[tuple[str, ...]] = ()
    parameter_ndims: ClassVar[dict[str, int]] = {}
    event_ndim: ClassVar[int] = 0

    def parameters(self) -> dict[str, Array]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("array", True)}

    def same_law(self) -> Iterator[Record]:
        """The same distribution as a member of other families, nearest first."""
        yield from ()


# --- the real line --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Normal(Record):
    """Normal distribution of mean `loc` and standard deviation `scale`."""

    loc: Array
    scale: Array
    positive = ("scale",)


@dataclass(frozen=True, eq=False)
class Laplace(Record):
    """Density exp(-|x - loc|/scale) / (2 scale)."""

    loc: Array
    scale: Array
    positive = ("scale",)


@dataclass(frozen=True, eq=False)
class Cauchy(Record):
    """Density 1 / (π scale (1 + ((x - loc)/scale)²))."""

    loc: Array
    scale: Array
    positive = ("scale",)


@dataclass(frozen=True, eq=False)
class Gumbel(Record):
    """Distribution function exp(-exp(-(x - loc)/scale))."""

    loc: Array
    scale: Array
    positive = ("scale",)


@dataclass(frozen=True, eq=False)
class Logistic(Record):
    """Distribution function 1 / (1 + exp(-(x - loc)/scale))."""

    loc: Array
    scale: Array
    positive = ("scale",)


# --- the half line ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gamma(Record):
    """Density ∝ x^(concentration - 1) exp(-rate x), x > 0."""

    concentration: Array
    rate: Array
    positive = ("concentration", "rate")


@dataclass(frozen=True, eq=False)
class GammaScale(Record):
    """Density ∝ x^(concentration - 1) exp(-x/scale), x > 0."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")


@dataclass(frozen=True, eq=False)
class InverseGamma(Record):
    """The law of 1/x for x ~ Gamma(concentration, rate=scale)."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")


@dataclass(frozen=True, eq=False)
class Exponential(Record):
    """Density rate exp(-rate x), x > 0."""

    rate: Array
    positive = ("rate",)

    def same_law(self) -> Iterator[Record]:
        yield Gamma(1.0, self.rate)


@dataclass(frozen=True, eq=False)
class Chi2(Record):
    """Sum of `df` squared standard normal variables."""

    df: Array
    positive = ("df",)

    def same_law(self) -> Iterator[Record]:
        yield Gamma(0.5 * (self.df if hasattr(self.df, "shape") else np.asarray(self.df)), 0.5)


@dataclass(frozen=True, eq=False)
class HalfNormal(Record):
    """The law of |x| for x ~ Normal(0, scale)."""

    scale: Array
    positive = ("scale",)


@dataclass(frozen=True, eq=False)
class HalfCauchy(Record):
    """The law of |x| for x ~ Cauchy(0, scale)."""

    scale: Array
    positive = ("scale",)


@dataclass(frozen=True, eq=False)
class LogNormal(Record):
    """The law of exp(x) for x ~ Normal(loc, scale)."""

    loc: Array
    scale: Array
    positive = ("scale",)


@dataclass(frozen=True, eq=False)
class Weibull(Record):
    """Distribution function 1 - exp(-(x/scale)^concentration), x > 0."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")


@dataclass(frozen=True, eq=False)
class Pareto(Record):
    """Density ∝ x^-(concentration + 1), x > scale."""

    concentration: Array
    scale: Array
    positive = ("concentration", "scale")


@dataclass(frozen=True, eq=False)
class InverseGaussian(Record):
    """Density √(concentration/(2π x³)) exp(-concentration (x - loc)²/(2 loc² x)), x > 0."""

    loc: Array
    concentration: Array
    positive = ("loc", "concentration")


# --- intervals ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Uniform(Record):
    """Constant density on [low, high]."""

    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Beta(Record):
    """Density ∝ x^(concentration1 - 1) (1 - x)^(concentration0 - 1), 0 < x < 1."""

    concentration1: Array
    concentration0: Array
    positive = ("concentration1", "concentration0")


# --- counts ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bernoulli(Record):
    """1 with probability `probs`, else 0."""

    probs: Array
    unit = ("probs",)


@dataclass(frozen=True, eq=False)
class BernoulliLogits(Record):
    """1 with probability 1/(1 + exp(-logits)), else 0."""

    logits: Array


@dataclass(frozen=True, eq=False)
class Binomial(Record):
    """Number of successes in `total_count` trials. KL is NaN where Q has more trials than P: no closed form."""

    total_count: Array
    probs: Array
    non_negative = ("total_count",)
    unit = ("probs",)


@dataclass(frozen=True, eq=False)
class Geometric(Record):
    """Number of failures before the first success."""

    probs: Array
    unit = ("probs",)


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Record):
    """Number of successes, each of probability `probs`, before `total_count` failures. KL is NaN for unequal counts: no closed form."""

    total_count: Array
    probs: Array
    unit = ("probs",)
    positive = ("total_count",)


@dataclass(frozen=True, eq=False)
class Poisson(Record):
    """Mean `rate`, which may be 0."""

    rate: Array
    non_negative = ("rate",)


# --- simplices --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Dirichlet(Record):
    """Density ∝ Π x_i^(concentration_i - 1) on the simplex."""

    concentration: Array
    positive = ("concentration",)
    parameter_ndims: ClassVar[dict[str, int]] = {"concentration": 1}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class Categorical(Record):
    """One of K categories; the numbers are probabilities or logits, as `form` says. Also the law of one-hot vectors."""

    values: Array
    form: str = field(default="probs", metadata={"array": False})
    parameter_ndims: ClassVar[dict[str, int]] = {"values": 1}


# --- vectors ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MultivariateNormal(Record):
    """Normal distribution of mean `loc` and covariance L Lᵀ, L = `scale_tril` lower triangular."""

    loc: Array
    scale_tril: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "scale_tril": 2}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class Independent(Record):
    """The last `reinterpreted` batch axes of `base` taken as part of one event."""

    base: Any
    reinterpreted: int

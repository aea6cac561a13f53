"""Families of counts and categories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from .base import Array, Record, exponential

__all__ = [
    "Bernoulli", "BernoulliLogits", "Binomial", "BinomialLogits", "Categorical", "Geometric",
    "GeometricLogits", "Multinomial", "NegativeBinomial", "NegativeBinomialLogits", "OrderedLogistic",
    "Poisson", "PoissonLog", "ProbitBernoulli", "StoppingRatioLogistic",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Bernoulli(Record):
    """1 with probability `probs`, else 0."""

    probs: Array
    unit = ("probs",)
    support = "binary"


@dataclass(frozen=True, eq=False)
class BernoulliLogits(Record):
    """1 with probability 1/(1 + exp(-logits)), else 0."""

    logits: Array
    support = "binary"


@dataclass(frozen=True, eq=False)
class Binomial(Record):
    """Number of successes in `total_count` trials. Two of them: of one count, or of more in P than in Q, which is inf."""

    total_count: Array
    probs: Array
    non_negative = ("total_count",)
    unit = ("probs",)
    support = "trials"


@dataclass(frozen=True, eq=False)
class BinomialLogits(Record):
    """Number of successes, each of probability 1/(1 + exp(-logits)), in `total_count` trials."""

    total_count: Array
    logits: Array
    non_negative = ("total_count",)
    support = "trials"


@dataclass(frozen=True, eq=False)
class GeometricLogits(Record):
    """Number of failures before the first success, of probability 1/(1 + exp(-logits))."""

    logits: Array
    support = "counts"


@dataclass(frozen=True, eq=False)
class NegativeBinomialLogits(Record):
    """Number of successes, each of probability 1/(1 + exp(-logits)), before `total_count` failures."""

    total_count: Array
    logits: Array
    positive = ("total_count",)
    support = "counts"


@dataclass(frozen=True, eq=False)
class Geometric(Record):
    """Number of failures before the first success."""

    probs: Array
    unit = ("probs",)
    support = "counts"


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Record):
    """Number of successes, each of probability `probs`, before `total_count` failures. Two of them: of one count."""

    total_count: Array
    probs: Array
    unit = ("probs",)
    positive = ("total_count",)
    support = "counts"


@dataclass(frozen=True, eq=False)
class Poisson(Record):
    """Mean `rate`, which may be 0."""

    rate: Array
    non_negative = ("rate",)
    support = "counts"


@dataclass(frozen=True, eq=False)
class PoissonLog(Record):
    """Poisson(exp(log_rate))."""

    log_rate: Array
    support = "counts"
    also = (Poisson,)

    def same_law(self) -> Iterator[Record]:
        yield Poisson(exponential(self.log_rate))


@dataclass(frozen=True, eq=False)
class ProbitBernoulli(Record):
    """1 with probability Φ(probits), the normal distribution function, else 0."""

    probits: Array
    support = "binary"


@dataclass(frozen=True, eq=False)
class Multinomial(Record):
    """Counts of K categories in `total_count` draws; the numbers are probabilities or logits, as `form` says."""

    total_count: Array
    values: Array
    form: str = field(default="probs", metadata={"array": False})
    non_negative = ("total_count",)
    parameter_ndims: ClassVar[dict[str, int]] = {"values": 1}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class OrderedLogistic(Record):
    """Category k has probability sigmoid(c_k - loc) - sigmoid(c_(k-1) - loc), for increasing cutpoints c."""

    cutpoints: Array
    loc: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"cutpoints": 1}


@dataclass(frozen=True, eq=False)
class StoppingRatioLogistic(Record):
    """Category k is reached, and stopped at, with probability sigmoid(c_k - loc); the last is where none was."""

    cutpoints: Array
    loc: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"cutpoints": 1}


@dataclass(frozen=True, eq=False)
class Categorical(Record):
    """One of K categories; the numbers are probabilities or logits, as `form` says. Also the law of one-hot vectors."""

    values: Array
    form: str = field(default="probs", metadata={"array": False})
    parameter_ndims: ClassVar[dict[str, int]] = {"values": 1}

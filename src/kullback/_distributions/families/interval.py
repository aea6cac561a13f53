"""Families on intervals."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Array, Record

__all__ = [
    "Beta", "ContinuousBernoulli", "ContinuousBernoulliLogits", "Kumaraswamy", "LogitNormal",
    "TruncatedNormal", "Uniform",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Uniform(Record):
    """Constant density on [low, high]."""

    low: Array
    high: Array
    support = "interval"


@dataclass(frozen=True, eq=False)
class Beta(Record):
    """Density ∝ x^(concentration1 - 1) (1 - x)^(concentration0 - 1), 0 < x < 1."""

    concentration1: Array
    concentration0: Array
    positive = ("concentration1", "concentration0")
    support = "unit"


@dataclass(frozen=True, eq=False)
class LogitNormal(Record):
    """The law of 1/(1 + exp(-x)) for x ~ Normal(loc, scale)."""

    loc: Array
    scale: Array
    positive = ("scale",)
    support = "unit"


@dataclass(frozen=True, eq=False)
class ContinuousBernoulli(Record):
    """Density ∝ probs^x (1 - probs)^(1 - x), 0 < x < 1; 0 < probs < 1."""

    probs: Array
    positive = ("probs",)
    unit = ("probs",)
    support = "unit"


@dataclass(frozen=True, eq=False)
class ContinuousBernoulliLogits(Record):
    """Density ∝ exp(logits x), 0 < x < 1."""

    logits: Array
    support = "unit"


@dataclass(frozen=True, eq=False)
class Kumaraswamy(Record):
    """Distribution function 1 - (1 - x^concentration1)^concentration0, 0 < x < 1. Two of them: for one `concentration1`."""

    concentration1: Array
    concentration0: Array
    positive = ("concentration1", "concentration0")
    support = "unit"


@dataclass(frozen=True, eq=False)
class TruncatedNormal(Record):
    """Normal(loc, scale) given that it lies between low and high, which may be infinite."""

    loc: Array
    scale: Array
    low: Array
    high: Array
    positive = ("scale",)
    support = "truncated"

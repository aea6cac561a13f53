"""Distributions made of distributions, and the point mass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import Array, Record

__all__ = [
    "Delta", "Expanded", "Independent", "Masked", "Product", "Repeated", "Shifted", "Transformed",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Delta(Record):
    """A point mass at `value`; of vectors, `Independent` ones.

    Against a discrete Q, KL is -log of Q's probability of that point; against a continuous one inf.
    Two of them: 0 where the points are equal, else inf.
    """

    value: Array
    support = "point"


@dataclass(frozen=True, eq=False)
class Independent(Record):
    """The last `reinterpreted` batch axes of `base` taken as part of one event."""

    base: Any
    reinterpreted: int


@dataclass(frozen=True, eq=False)
class Masked(Record):
    """`base` where `mask` is true; elsewhere a distribution of no interest, whose divergences count 0."""

    base: Any
    mask: Any


@dataclass(frozen=True, eq=False)
class Repeated(Record):
    """Independent draws from `base`, an array of shape `sizes` of them as one event."""

    base: Any
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Expanded(Record):
    """`base`, with its batch broadcast to `batch_shape`."""

    base: Any
    batch_shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Product(Record):
    """Independent parts, as one event; `parts` by name or position."""

    parts: dict[Any, Any]


@dataclass(frozen=True, eq=False)
class Transformed(Record):
    """The law of f(x) for x ~ `base`, f one to one; `key` tells one f from another, `event_axes` of the batch of `base` make one event."""

    base: Any
    key: Any
    event_axes: int = 0


@dataclass(frozen=True, eq=False)
class Shifted(Record):
    """The law of x + `loc` for x ~ `base`, which is at least 0."""

    base: Any
    loc: Array

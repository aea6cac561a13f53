"""Families of matrices, and of a mean beside its variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Array, Record

__all__ = [
    "InverseWishart", "MatrixNormal", "NormalInverseGamma", "NormalInverseWishart", "Wishart",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class MatrixNormal(Record):
    """The law of loc + A Z Bᵀ, Z of standard normal entries, A = `row_tril` and B = `column_tril` lower triangular."""

    loc: Array
    row_tril: Array
    column_tril: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 2, "row_tril": 2, "column_tril": 2}
    event_ndim = 2


@dataclass(frozen=True, eq=False)
class Wishart(Record):
    """Sum of `df` outer products of Normal(0, L Lᵀ) vectors, L = `scale_tril`; any real df > dimension - 1."""

    df: Array
    scale_tril: Array
    positive = ("df",)
    parameter_ndims: ClassVar[dict[str, int]] = {"scale_tril": 2}
    event_ndim = 2


@dataclass(frozen=True, eq=False)
class InverseWishart(Record):
    """The law of X⁻¹ for X ~ Wishart(df, (L Lᵀ)⁻¹), L = `scale_tril`."""

    df: Array
    scale_tril: Array
    positive = ("df",)
    parameter_ndims: ClassVar[dict[str, int]] = {"scale_tril": 2}
    event_ndim = 2


@dataclass(frozen=True, eq=False)
class NormalInverseGamma(Record):
    """v ~ InverseGamma(concentration, scale), and x ~ Normal of mean `loc` and variance v/weight."""

    loc: Array
    weight: Array
    concentration: Array
    scale: Array
    positive = ("weight", "concentration", "scale")


@dataclass(frozen=True, eq=False)
class NormalInverseWishart(Record):
    """V ~ InverseWishart(df, scale_tril), and x ~ Normal of mean `loc` and covariance V/weight."""

    loc: Array
    weight: Array
    df: Array
    scale_tril: Array
    positive = ("weight", "df")
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "scale_tril": 2}

"""Families of vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .base import Array, Record

__all__ = [
    "Dirichlet", "MultivariateNormal", "MultivariateNormalCovariance", "MultivariateNormalDiag",
    "MultivariateNormalLowRank", "MultivariateNormalPrecision", "MultivariateNormalScale", "PowerSpherical",
    "SphericalUniform", "VonMisesFisher",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Dirichlet(Record):
    """Density ∝ Π x_i^(concentration_i - 1) on the simplex."""

    concentration: Array
    positive = ("concentration",)
    parameter_ndims: ClassVar[dict[str, int]] = {"concentration": 1}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class MultivariateNormal(Record):
    """Normal distribution of mean `loc` and covariance L Lᵀ, L = `scale_tril` lower triangular."""

    loc: Array
    scale_tril: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "scale_tril": 2}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class MultivariateNormalDiag(Record):
    """Independent normal variables of means `loc` and standard deviations `scale_diag`, as one event."""

    loc: Array
    scale_diag: Array
    positive = ("scale_diag",)
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "scale_diag": 1}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class MultivariateNormalCovariance(Record):
    """Normal distribution of mean `loc` and covariance `covariance`."""

    loc: Array
    covariance: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "covariance": 2}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class MultivariateNormalPrecision(Record):
    """Normal distribution of mean `loc` whose covariance is the inverse of `precision`."""

    loc: Array
    precision: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "precision": 2}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class MultivariateNormalLowRank(Record):
    """Normal distribution of mean `loc` and covariance W Wᵀ + diag(d), W = `factor`, d = `diagonal`."""

    loc: Array
    factor: Array
    diagonal: Array
    positive = ("diagonal",)
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "factor": 2, "diagonal": 1}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class MultivariateNormalScale(Record):
    """The law of loc + S z, z standard normal, S = `scale` any invertible matrix."""

    loc: Array
    scale: Array
    parameter_ndims: ClassVar[dict[str, int]] = {"loc": 1, "scale": 2}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class VonMisesFisher(Record):
    """Density ∝ exp(concentration mean_directionᵀ x) on the unit sphere."""

    mean_direction: Array
    concentration: Array
    non_negative = ("concentration",)
    parameter_ndims: ClassVar[dict[str, int]] = {"mean_direction": 1}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class PowerSpherical(Record):
    """Density ∝ (1 + mean_directionᵀ x)^concentration on the unit sphere. Two of them: for one `mean_direction`."""

    mean_direction: Array
    concentration: Array
    non_negative = ("concentration",)
    parameter_ndims: ClassVar[dict[str, int]] = {"mean_direction": 1}
    event_ndim = 1


@dataclass(frozen=True, eq=False)
class SphericalUniform(Record):
    """Uniform on the unit sphere of `dimension`, the number of coordinates."""

    dimension: int = field(metadata={"array": False})
    event_ndim = 1

"""Closed forms on the unit sphere."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from .. import families as f
from ..curves import Bessel
from ..registry import closed_form
from .interval import beta_kl
from .vectors import total

Array = Any


@cache
def _bessel(dimension: int) -> Bessel:
    return Bessel(0.5 * dimension - 1.0)


def _of(x: Any) -> int:
    return int(x.mean_direction.shape[-1])


def _concentration(x: Any) -> Array:
    """The concentration in the shape of the batch, which the direction may extend."""
    return x.concentration + 0.0 * x.mean_direction[..., 0]


@closed_form(f.VonMisesFisher, f.VonMisesFisher)
def _von_mises_fisher(ops: Any, p: Any, q: Any) -> Array:
    # The remainder of the log-partition function, and κ_q A'(κ_p) (1 - cos of the angle), which is |μ_p - μ_q|²/2.
    bessel = _bessel(_of(p))
    change = p.mean_direction - q.mean_direction
    slope = bessel.both(ops, p.concentration)[1]
    return bessel.remainder(ops, p.concentration, q.concentration) + 0.5 * q.concentration * slope * total(ops, change * change, 1)


@closed_form(f.VonMisesFisher, f.SphericalUniform)
def _von_mises_fisher_uniform(ops: Any, p: Any, q: Any) -> Array:
    _same_dimension(_of(p), q.dimension)
    concentration = _concentration(p)
    return _bessel(_of(p)).remainder(ops, concentration, concentration * 0.0)


@closed_form(f.SphericalUniform, f.VonMisesFisher)
def _uniform_von_mises_fisher(ops: Any, p: Any, q: Any) -> Array:
    _same_dimension(p.dimension, _of(q))
    return _bessel(_of(q)).both(ops, _concentration(q))[0]


def _same_dimension(p: int, q: int) -> None:
    if p != q:
        raise ValueError(f"events have different shapes: p lies on the sphere in {p} dimensions, and q in {q}")


def _beta(x: Any) -> tuple[Array, Array]:
    """(1 + μᵀx)/2 has a Beta distribution."""
    half = 0.5 * (_of(x) - 1.0)
    return x.concentration + half, x.concentration * 0.0 + half


@closed_form(f.PowerSpherical, f.PowerSpherical, when="equal mean_direction")
def _power_spherical(ops: Any, p: Any, q: Any) -> Array:
    # About one direction; else NaN.
    change = p.mean_direction - q.mean_direction
    return ops.where(total(ops, change * change, 1) == 0.0, beta_kl(ops, *_beta(p), *_beta(q)), math.nan)


@closed_form(f.PowerSpherical, f.SphericalUniform)
def _power_spherical_uniform(ops: Any, p: Any, q: Any) -> Array:
    _same_dimension(_of(p), q.dimension)
    half, concentration = 0.5 * (_of(p) - 1.0), _concentration(p)
    b = concentration * 0.0 + half
    return beta_kl(ops, concentration + half, b, b, b)


@closed_form(f.PowerSpherical, f.VonMisesFisher)
def _power_spherical_von_mises_fisher(ops: Any, p: Any, q: Any) -> Array:
    # That to the uniform law, A(κ_q), and -κ_q μ_qᵀ E[x], E[x] = μ_p (a - b)/(a + b).
    a, b = _beta(p)
    cosine = total(ops, p.mean_direction * q.mean_direction, 1)
    mean = q.concentration * cosine * (p.concentration / (a + b))
    return beta_kl(ops, a, b, b, b) + (_bessel(_of(q)).both(ops, q.concentration)[0] - mean)

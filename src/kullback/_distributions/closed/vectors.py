"""Closed forms of normal vectors and matrices, and of random covariances. With M = L_q⁻¹ L_p, all of them are sums of terms ≥ 0."""

from __future__ import annotations

import math
from typing import Any

from .. import families as f
from ..curves import square
from ..registry import closed_form
from ..special import gamma_gap, gap
from .gammas import gamma_kl

Array = Any


def total(ops: Any, x: Array, count: int) -> Array:
    """Sum over the last `count` axes."""
    axes = tuple(range(-count, 0))  # TensorFlow need not know the rank
    return ops.squeeze(ops.sum(x, axes), axes)


def column(ops: Any, x: Array) -> Array:
    return ops.expand(x, (-1,))


def _normal_vectors(ops: Any, delta: Array, p: Array, q: Array) -> Array:
    # Σ_i (m_ii - 1 - log m_ii) + ½ |M - I|² + ½ |L_q⁻¹ Δ|², since log det is a sum over the diagonals
    # and ½ (|M|² - d) = ½ |M - I|² + Σ (m_ii - 1). M - I = L_q⁻¹ (L_p - L_q), without cancellation.
    change = ops.solve_lower(q, p - q)
    shift = ops.solve_lower(q, column(ops, delta))
    gaps = gap(ops, *(ops.diagonal(x) for x in (p, q)))
    return total(ops, gaps, 1) + 0.5 * (total(ops, change * change, 2) + total(ops, shift * shift, 2))


@closed_form(f.MultivariateNormal, f.MultivariateNormal)
def _multivariate_normal(ops: Any, p: Any, q: Any) -> Array:
    return _normal_vectors(ops, p.loc - q.loc, p.scale_tril, q.scale_tril)


@closed_form(f.MultivariateNormalDiag, f.MultivariateNormalDiag)
def _diagonal(ops: Any, p: Any, q: Any) -> Array:
    scales = 0.5 * square((p.scale_diag - q.scale_diag) / q.scale_diag) + gap(ops, p.scale_diag, q.scale_diag)
    return total(ops, scales + 0.5 * square((p.loc - q.loc) / q.scale_diag), 1)


def _as_diagonal(ops: Any, d: Array) -> Array:
    """A matrix with this diagonal."""
    if hasattr(ops, "diagonal_matrix"):
        return ops.diagonal_matrix(d)
    size = d.shape[-1]
    # No framework-free way to make an identity but from numbers.
    eye = ops.asarray([[float(i == j) for j in range(size)] for i in range(size)], d)
    return column(ops, d) * ops.astype(eye, d.dtype)


def _scale_tril(ops: Any, x: Any) -> Array:
    if isinstance(x, f.MultivariateNormal):
        return x.scale_tril
    if isinstance(x, f.MultivariateNormalDiag):
        return _as_diagonal(ops, x.scale_diag)
    if isinstance(x, f.MultivariateNormalPrecision):
        lower = ops.cholesky(x.precision)
        inverse = ops.solve_lower(lower, _as_diagonal(ops, ops.diagonal(lower) * 0.0 + 1.0))
        return ops.cholesky(ops.matmul(ops.transpose(inverse), inverse))
    if isinstance(x, f.MultivariateNormalCovariance):
        return ops.cholesky(x.covariance)
    if isinstance(x, f.MultivariateNormalScale):
        return ops.cholesky(ops.matmul(x.scale, ops.transpose(x.scale)))
    return ops.cholesky(ops.matmul(x.factor, ops.transpose(x.factor)) + _as_diagonal(ops, x.diagonal))


def _any_parameters(ops: Any, p: Any, q: Any) -> Array:
    return _normal_vectors(ops, p.loc - q.loc, _scale_tril(ops, p), _scale_tril(ops, q))


_NORMALS = (
    f.MultivariateNormal,
    f.MultivariateNormalDiag,
    f.MultivariateNormalCovariance,
    f.MultivariateNormalPrecision,
    f.MultivariateNormalLowRank,
    f.MultivariateNormalScale,
)
for _first in _NORMALS:
    for _second in _NORMALS:
        if (_first, _second) not in ((f.MultivariateNormal, f.MultivariateNormal), (f.MultivariateNormalDiag, f.MultivariateNormalDiag)):
            closed_form(_first, _second)(_any_parameters)


@closed_form(f.MatrixNormal, f.MatrixNormal)
def _matrix_normal(ops: Any, p: Any, q: Any) -> Array:
    # As for vectors, M = A ⊗ B for the rows' A and the columns' B. With a = A - I, b = B - I, sizes n and m:
    # |M - I|² = |a ⊗ B + I ⊗ b|² = |a|² |B|² + n |b|² + 2 tr(a) (|b|² + tr(b)), and m_ii - 1 = a_i + b_j + a_i b_j.
    a = ops.solve_lower(q.row_tril, p.row_tril - q.row_tril)
    b = ops.solve_lower(q.column_tril, p.column_tril - q.column_tril)
    a_diagonal, b_diagonal = ops.diagonal(a), ops.diagonal(b)
    n, m = (total(ops, x * 0.0 + 1.0, 1) if x.shape[-1] is None else float(x.shape[-1]) for x in (a_diagonal, b_diagonal))
    a_square, b_square = total(ops, a * a, 2), total(ops, b * b, 2)
    a_trace, b_trace = total(ops, a_diagonal, 1), total(ops, b_diagonal, 1)
    squares = a_square * (b_square + 2.0 * b_trace + m) + n * b_square + 2.0 * a_trace * (b_square + b_trace)
    rows, columns = column(ops, a_diagonal), ops.expand(b_diagonal, (-2,))
    change = rows + columns + rows * columns
    gaps = gap(ops, 1.0 + change, change * 0.0 + 1.0, change)
    # L⁻¹ Δ R⁻ᵀ
    shift = ops.solve_lower(q.column_tril, ops.transpose(ops.solve_lower(q.row_tril, p.loc - q.loc)))
    return total(ops, gaps, 2) + 0.5 * (squares + total(ops, shift * shift, 2))


def _wishart_kl(ops: Any, n_p: Array, n_q: Array, p: Array, q: Array) -> Array:
    """
    Bartlett's decomposition: with a_i = (n_p - i)/2, b_i = (n_q - i)/2, i from 0, t_i = m_ii² and M = q⁻¹ p,
    KL = n_p/2 · Σ of the squares below M's diagonal + Σ_i [b_i gap(a_i t_i/b_i) + gamma_gap(a_i, b_i) + i/2 gap(t_i)].
    NaN where a count of degrees of freedom is not above the dimension less 1.
    """
    change = ops.solve_lower(q, p - q)
    size = change.shape[-1]
    diagonal = ops.diagonal(change)
    below = total(ops, change * change, 2) - total(ops, diagonal * diagonal, 1)
    value = 0.5 * n_p * ops.where(below > 0.0, below, 0.0)
    valid = (n_p > size - 1.0) & (n_q > size - 1.0)
    half = 0.5 * (n_q - n_p)
    for i in range(size):
        a, b = ops.where(valid, 0.5 * (n_p - i), 1.0), ops.where(valid, 0.5 * (n_q - i), 1.0)
        m = diagonal[..., i]
        t_less = m * (2.0 + m)
        t = 1.0 + t_less
        # a t - b = (a - b) + a (t - 1)
        value = value + b * gap(ops, a * t, b, a * t_less - half) + gamma_gap(ops, a, b, half)
        if i > 0:
            value = value + 0.5 * i * gap(ops, t, t * 0.0 + 1.0, t_less)
    return ops.where(valid, value, math.nan)


@closed_form(f.Wishart, f.Wishart)
def _wishart(ops: Any, p: Any, q: Any) -> Array:
    return _wishart_kl(ops, p.df, q.df, p.scale_tril, q.scale_tril)


@closed_form(f.InverseWishart, f.InverseWishart)
def _inverse_wishart(ops: Any, p: Any, q: Any) -> Array:
    # The inverses are Wishart, of the inverse scales: tr(Ψ_p⁻¹ Ψ_q) and log det the other way round.
    return _wishart_kl(ops, p.df, q.df, q.scale_tril, p.scale_tril)


@closed_form(f.NormalInverseGamma, f.NormalInverseGamma)
def _normal_inverse_gamma(ops: Any, p: Any, q: Any) -> Array:
    # That of the variances, and of the normal distributions given one, whose E[1/v] = a/b.
    variances = gamma_kl(ops, p.concentration, p.scale, q.concentration, q.scale)
    shift = q.weight * square(p.loc - q.loc) * (p.concentration / p.scale)
    return variances + 0.5 * (gap(ops, q.weight, p.weight) + shift)


@closed_form(f.NormalInverseWishart, f.NormalInverseWishart)
def _normal_inverse_wishart(ops: Any, p: Any, q: Any) -> Array:
    # E[V⁻¹] = n Ψ⁻¹
    size = float(p.scale_tril.shape[-1])
    shift = ops.solve_lower(p.scale_tril, column(ops, p.loc - q.loc))
    means = size * gap(ops, q.weight, p.weight) + q.weight * p.df * total(ops, shift * shift, 2)
    return _wishart_kl(ops, p.df, q.df, q.scale_tril, p.scale_tril) + 0.5 * means

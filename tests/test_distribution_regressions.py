"""Distributions of other libraries that gave a wrong number, shape, dtype or error once, each with the truth beside it."""

from __future__ import annotations

import distrax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow_probability.substrates import jax as tfp_jax

import kullback as kb

tfd, tfd_jax = tfp.distributions, tfp_jax.distributions
SUBSTRATES = [
    pytest.param(tfd, tf.linalg, tf.constant, id="tensorflow"),
    pytest.param(tfd_jax, tfp_jax.tf2jax.linalg, jnp.asarray, id="jax"),
]
# Results of float32 numbers of the order of 1, computed in float32 by JAX.
FLOAT32 = 1e-5


def _normal(p, q):
    """KL of centred normal vectors of these scales, by the textbook."""
    p, q = (np.asarray(x, float) for x in (p, q))
    p, q = p @ p.T, q @ q.T
    return 0.5 * (np.trace(np.linalg.solve(q, p)) - len(p) + np.log(np.linalg.det(q) / np.linalg.det(p)))


# --- scales whose diagonal holds negative numbers gave NaN: TFP and distrax ask for numbers other than 0 only ---

LOWER, OTHER = np.array([[-1.0, 0.0], [0.5, 2.0]], np.float32), np.array([[1.5, 0.0], [-0.3, -0.7]], np.float32)
ZERO = np.zeros(2, np.float32)


def _scaled(d, linalg, constant):
    low, vector, wide = linalg.LinearOperatorLowerTriangular, d.MultivariateNormalLinearOperator, constant(np.zeros((2, 2), np.float32))
    first, second = low(constant(LOWER)), low(constant(OTHER))
    triangular, diagonal, other = d.MultivariateNormalTriL(ZERO, LOWER), np.array([-1.0, 2.0], np.float32), np.diag(OTHER)
    matrices = [d.MatrixNormalLinearOperator(wide, *scales) for scales in ((first, second), (second, first))]
    return {
        "diagonal": (d.MultivariateNormalDiag(ZERO, diagonal), d.MultivariateNormalDiag(ZERO, other), np.diag(diagonal), np.diag(other)),
        "triangular": (triangular, d.MultivariateNormalTriL(ZERO, OTHER), LOWER, OTHER),
        "mixed": (triangular, d.MultivariateNormalDiag(ZERO, other), LOWER, np.diag(other)),
        "operators": (vector(ZERO, first), vector(ZERO, linalg.LinearOperatorDiag(other)), LOWER, np.diag(other)),
        "identity": (vector(ZERO, linalg.LinearOperatorScaledIdentity(2, -1.5)), vector(ZERO, second), -1.5 * np.eye(2), OTHER),
        "matrix": (*matrices, np.kron(LOWER, OTHER), np.kron(OTHER, LOWER)),
    }


@pytest.mark.parametrize(("d", "linalg", "constant"), SUBSTRATES)
def test_negative_diagonals_of_tfp_are_scales(d, linalg, constant):
    for name, (p, q, scale_p, scale_q) in _scaled(d, linalg, constant).items():
        assert float(kb.kl(p, q)) == pytest.approx(_normal(scale_p, scale_q), rel=FLOAT32), name
        assert float(kb.kl(q, p)) == pytest.approx(_normal(scale_q, scale_p), rel=FLOAT32), name
    # The law depends on the scale's product with its transpose only.
    wishart = d.WishartTriL(5.5, LOWER), d.WishartTriL(4.0, OTHER)
    positive = d.WishartTriL(5.5, np.linalg.cholesky(LOWER @ LOWER.T)), d.WishartTriL(4.0, np.linalg.cholesky(OTHER @ OTHER.T))
    assert float(kb.kl(*wishart)) == pytest.approx(float(kb.kl(*positive)), rel=FLOAT32)
    # A scale that is not triangular was read as if it were.
    full = d.WishartLinearOperator(5.5, linalg.LinearOperatorFullMatrix(constant(LOWER @ OTHER.T)))
    with pytest.raises(kb.NoClosedForm, match="LinearOperatorFullMatrix: use LinearOperatorLowerTriangular"):
        kb.kl(full, wishart[0])


def test_negative_diagonals_of_distrax_are_scales():
    tri, diagonal = distrax.MultivariateNormalTri, distrax.MultivariateNormalDiag
    pairs = [
        (tri(ZERO, LOWER), tri(ZERO, OTHER), LOWER, OTHER),
        (tri(ZERO, LOWER.T, is_lower=False), tri(ZERO, OTHER), LOWER.T, OTHER),
        (diagonal(ZERO, np.diag(LOWER)), diagonal(ZERO, np.diag(OTHER)), np.diag(np.diag(LOWER)), np.diag(np.diag(OTHER))),
        (diagonal(ZERO, np.diag(LOWER)), tri(ZERO, OTHER), np.diag(np.diag(LOWER)), OTHER),
    ]
    for p, q, scale_p, scale_q in pairs:
        assert float(kb.kl(p, q)) == pytest.approx(_normal(scale_p, scale_q), rel=FLOAT32)
        assert float(kb.kl(q, p)) == pytest.approx(_normal(scale_q, scale_p), rel=FLOAT32)

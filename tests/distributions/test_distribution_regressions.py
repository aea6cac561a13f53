"""Distributions of other libraries that gave a wrong number, shape, dtype or error once, each with the truth beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import subprocess
import sys
import warnings

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import torch
import torch.distributions as td

import kullback as kb
from frameworks import Lazy
from kullback import distributions, losses
from kullback._distributions import adapters, supports
from kullback._distributions.families import FAMILIES
from kullback._distributions.registry import pairs_with_formulas
from kullback._ops import scalar

distrax = Lazy("distrax")
jax = Lazy("jax")
jnp = Lazy("jax.numpy")
numpyro = Lazy("numpyro.distributions")
tf = Lazy("tensorflow")
tfp = Lazy("tensorflow_probability")
tinygrad = Lazy("tinygrad")
tfp_jax = Lazy("tensorflow_probability.substrates.jax")

tfd = Lazy("tensorflow_probability", "distributions")
tfd_jax = Lazy("tensorflow_probability.substrates.jax", "distributions")
SUBSTRATES = [
    pytest.param(tfd, Lazy("tensorflow", "linalg"), lambda x, dtype=None: tf.constant(x, dtype), id="tensorflow"),
    pytest.param(
        tfd_jax, Lazy("tensorflow_probability.substrates.jax", "tf2jax", "linalg"), lambda x, dtype=None: jnp.asarray(x, dtype), id="jax"
    ),
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


# --- results lacked the batch of the directions, and the batch_shape of a uniform distribution ---


def _uniform_truth(kappa):
    """KL(von Mises-Fisher‖uniform) in three dimensions, with log C = log(κ/sinh κ) and mean coth κ - 1/κ."""
    return np.log(kappa / np.sinh(kappa)) + kappa / np.tanh(kappa) - 1.0


@pytest.mark.parametrize(("d", "linalg", "constant"), SUBSTRATES)
def test_batches_of_directions_and_of_uniforms_count(d, linalg, constant):
    directions = np.tile(np.eye(3, dtype=np.float32)[0], (5, 1))
    flat, five = d.SphericalUniform(3), d.SphericalUniform(3, batch_shape=[5])
    many, one = d.VonMisesFisher(directions, 2.0), d.VonMisesFisher(directions[0], 2.0)
    power = d.PowerSpherical(directions, np.array([[2.0], [1.0]], np.float32))
    for p, q in ((many, flat), (one, five), (many, five)):
        np.testing.assert_allclose(kb.kl(p, q), np.full(5, _uniform_truth(2.0)), rtol=FLOAT32)
    # log(sinh κ/κ)
    for p, q in ((flat, many), (five, one)):
        np.testing.assert_allclose(kb.kl(p, q), np.full(5, np.log(np.sinh(2.0) / 2.0)), rtol=FLOAT32)
    # A coordinate of the uniform law is uniform in three dimensions, so KL = log 2 + E[log f], f = (k + 1) (1 + t)^k / 2^(k + 1).
    truth = [np.log(k + 1.0) - k / (k + 1.0) for k in (2.0, 1.0)]
    np.testing.assert_allclose(kb.kl(power, flat), np.tile(truth, (5, 1)).T, rtol=FLOAT32)
    assert kb.kl(power, five).shape == (2, 5)
    with pytest.raises(ValueError, match=r"the batch of p has shape \(4,\): they do not broadcast"):
        kb.kl(d.SphericalUniform(3, batch_shape=[4]), many)


def test_every_parameter_of_every_pair_counts_in_the_shape():
    matrix = np.eye(2)
    given = {"total_count": 3.0, "low": 0.0, "high": 1.0, "df": 4.0, "form": "probs", "dimension": 2, "mean_direction": matrix[0]}
    given |= {"cutpoints": np.array([0.0, 1.0]), "values": np.array([0.4, 0.6])}

    def made(family, parameter, batch):
        numbers = {}
        for x in dataclasses.fields(family):
            event = family.parameter_ndims.get(x.name, 0)
            number = given.get(x.name, (0.5, np.array([0.5, 0.5]), matrix)[event])
            numbers[x.name] = np.broadcast_to(number, (*batch, *np.shape(number))) if x.name == parameter else number
        return family(**numbers)

    seen = 0
    infinite = [(p, q) for p in FAMILIES for q in FAMILIES if supports.apart(p, q)]
    for first, second in [*pairs_with_formulas(), *infinite]:
        for side, family in enumerate((first, second)):
            for name in (x.name for x in dataclasses.fields(family)):
                if name in ("form", "dimension"):
                    continue
                p, q = (made(f, name if i == side else None, (3,)) for i, f in enumerate((first, second)))
                try:
                    value = kb.kl(p, q)
                except kb.NoClosedForm:  # for these parameters
                    continue
                assert np.shape(value) == (3,), (p, q)
                seen += 1
    assert seen > 5000


# --- distributions whose shapes do not go together: each framework said so in its own words, or gave a number ---


def _tensors(name):
    if name in ("numpy", "torch"):
        return np.asarray if name == "numpy" else torch.tensor
    return tf.constant if name == "tensorflow" else jnp.asarray if name == "jax" else tinygrad.Tensor


@pytest.mark.parametrize("name", ["numpy", "torch", "tensorflow", "jax", "tinygrad"])
def test_batches_that_do_not_broadcast_are_named(name):
    array = _tensors(name)
    three, four, rows = (array(np.ones(shape, np.float32)) for shape in (3, 4, (2, 1)))
    with pytest.raises(ValueError, match=r"^p has batch shape \(2, 3\) and q has \(4,\): they do not broadcast$"):
        kb.kl(distributions.Normal(three, rows), distributions.Normal(0.0, four))
    with pytest.raises(ValueError, match=r"^the parameters of q have batch shapes that do not broadcast: loc \(3,\), scale \(4,\)$"):
        kb.kl(distributions.Normal(0.0, rows), distributions.Normal(three, four))
    matrix = array(np.eye(2, dtype=np.float32))
    vectors = [distributions.MultivariateNormal(array(np.zeros((n, 2), np.float32)), matrix) for n in (3, 4)]
    with pytest.raises(ValueError, match=r"^p has batch shape \(3,\) and q has \(4,\): they do not broadcast$"):
        kb.kl(*vectors)
    assert kb.kl(distributions.Normal(three, rows), distributions.Normal(0.0, three)).shape == (2, 3)


def test_sizes_known_when_the_code_runs_are_left_to_tensorflow():
    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([4])], autograph=False)
    def of(x, y):
        return kb.kl(distributions.Normal(x, 1.0), distributions.Normal(y, 1.0))

    np.testing.assert_allclose(of(tf.ones(4), tf.zeros(4)), np.full(4, 0.5), rtol=FLOAT32)


def test_events_of_different_families_and_sizes_are_named():
    one, four = np.ones(1), np.ones(4)
    spheres = distributions.PowerSpherical(np.eye(3)[0], 2.0), distributions.VonMisesFisher(np.eye(4)[0], 2.0)
    vectors = distributions.MultivariateNormalDiag(one, one), distributions.MultivariateNormal(four, np.eye(4))
    for p, q in (spheres, vectors, vectors[::-1]):
        with pytest.raises(ValueError, match=r"^events have different shapes: p has .*, and q .*; batches broadcast, events do not$"):
            kb.kl(p, q)


def test_factors_of_different_ranks_are_of_one_event():
    def made(rank, scale):
        return td.LowRankMultivariateNormal(torch.zeros(3), scale * torch.ones(3, rank), torch.ones(3))

    covariances = [np.eye(3) + rank * scale**2 for rank, scale in ((1, 1.0), (2, 0.5))]
    truth = _normal(*(np.linalg.cholesky(x) for x in covariances))
    assert kb.kl(made(1, 1.0), made(2, 0.5)).item() == pytest.approx(truth, rel=FLOAT32)


@pytest.mark.parametrize(("d", "linalg", "constant"), SUBSTRATES)
def test_one_number_is_the_mean_of_all_coordinates(d, linalg, constant):
    """TFP takes a mean without axes, or of size 1."""
    truth = 0.5 * 4 / 4 + _normal(np.eye(4), 2 * np.eye(4))
    for mean in (np.float32(1.0), np.ones(1, np.float32)):
        for family, scale in ((d.MultivariateNormalDiag, np.ones(4, np.float32)), (d.MultivariateNormalTriL, np.eye(4, dtype=np.float32))):
            p, q = family(mean, scale), family(np.zeros_like(mean), 2.0 * scale)
            assert float(kb.kl(p, q)) == pytest.approx(truth, rel=FLOAT32)
            assert float(kb.kl(p, family(np.zeros(4, np.float32), 2.0 * scale))) == pytest.approx(truth, rel=FLOAT32)


# --- parameters that were lists or NumPy arrays: the result was NumPy's, in float64 ---


def _constants(d, made):
    probs, logits, more = made([0.2, 0.3]), made([-0.4, 1.1]), made([1.5, 0.7])
    half = made([0.5, 0.5])
    yield from ((d.Bernoulli, {"probs": probs}), (d.Bernoulli, {"logits": logits}), (d.Normal, {"loc": logits, "scale": more}))
    yield from ((d.Categorical, {"probs": half}), (d.Categorical, {"logits": logits}), (d.OneHotCategorical, {"logits": logits}))
    yield d.Multinomial, {"total_count": 3, "probs": half}
    yield d.Dirichlet, {"concentration": more}


def _constants_of_tfp(d, made):
    probs, logits, more, matrix = made([0.2, 0.3]), made([-0.4, 1.1]), made([1.5, 0.7]), made([[1.0, 0.0], [0.5, 2.0]])
    yield from _constants(d, made)
    for family in (d.ContinuousBernoulli, d.Geometric):
        yield from ((family, {"probs": probs}), (family, {"logits": logits}))
    for family in (d.Binomial, d.NegativeBinomial):
        yield from ((family, {"total_count": made([3.0, 3.0]), "probs": probs}), (family, {"total_count": 3.0, "logits": logits}))
    yield from ((d.ProbitBernoulli, {"probits": logits}), (d.ProbitBernoulli, {"probs": probs}))
    yield from ((d.ExpGamma, {"concentration": more, "rate": more}), (d.ExpGamma, {"concentration": more, "log_rate": logits}))
    yield d.ExpInverseGamma, {"concentration": more, "log_scale": logits}
    yield from ((d.WishartTriL, {"df": 4.0, "scale_tril": matrix}), (d.MultivariateNormalTriL, {"loc": logits, "scale_tril": matrix}))


def _float32(x):
    return np.asarray(x, np.float32)


@pytest.mark.parametrize("made", [list, _float32], ids=["lists", "arrays"])
@pytest.mark.parametrize(("d", "linalg", "constant"), SUBSTRATES)
def test_constants_of_tfp_give_tensors(d, linalg, constant, made):
    tensor = constant(1.0)
    for family, parameters in _constants_of_tfp(d, made):
        # The parameters decide the kind of the result. JAX would compile every KL here for seconds.
        for x in adapters.read(family(**parameters)).parameters().values():
            assert isinstance(x, type(tensor)), (family, parameters)
            assert x.dtype == tensor.dtype, (family, parameters)
    found = kb.kl(d.Bernoulli(probs=made([0.2, 0.3])), d.Bernoulli(probs=made([0.2, 0.5])))
    assert isinstance(found, type(tensor))
    np.testing.assert_allclose(found, [0.0, 0.3 * np.log(0.6) + 0.7 * np.log(1.4)], rtol=FLOAT32)


def test_constants_of_distrax_and_numpyro_give_arrays_of_jax():
    pairs = [(family, parameters) for family, parameters in _constants(distrax, _float32)]
    pairs += [(distrax.Bernoulli, {"probs": [0.2, 0.3]}), (distrax.Independent, {"distribution": distrax.Bernoulli(probs=_float32([0.2]))})]
    pairs += [(numpyro.Normal, {"loc": 0.3, "scale": 1.2}), (numpyro.Levy, {"loc": 0.0, "scale": 1.2}), (numpyro.Delta, {"v": 1.0})]
    pairs += [(numpyro.Normal, {"loc": np.zeros(2), "scale": 1.2}), (numpyro.Bernoulli, {"probs": np.array([0.2, 0.3])})]
    for family, parameters in pairs:
        found = kb.kl(family(**parameters), family(**parameters))
        assert isinstance(found, jax.Array), (family, parameters)
        assert found.dtype == jnp.float32, (family, parameters)
        np.testing.assert_array_equal(found, np.zeros(found.shape))
    assert float(kb.kl(numpyro.Normal(0.0, 1.0), numpyro.Normal(1.0, 1.0))) == 0.5


# --- one pair of float32 numbers whose KL is beyond float32: "value cannot be converted to type float without overflow" ---

FAR = {
    "Normal": ((1e20, 1.0), (-1e20, 1.0)),
    "LogNormal": ((1e20, 1.0), (-1e20, 1.0)),
    "Laplace": ((1e38, 1e-10), (-1e38, 1e-10)),
    "Gumbel": ((1e30, 1e-10), (-1e30, 1e-10)),
    "Exponential": ((1e-20,), (1e20,)),
    "Gamma": ((1e30, 1e-10), (1e30, 1e20)),
    "Poisson": ((3e38,), (1e-38,)),
    "Beta": ((1e38, 1.0), (1.0, 1e38)),
    "HalfNormal": ((1e30,), (1e-10,)),
    "Geometric": ((1e-38,), (0.99,)),
}


@pytest.mark.parametrize("family", FAR)
def test_divergences_beyond_float32_are_inf(family):
    kind, numbers = getattr(td, family), [[torch.tensor(x, requires_grad=True) for x in side] for side in FAR[family]]
    assert kb.kl(*(kind(*(x.detach() for x in side)) for side in numbers)).item() == np.inf
    value = kb.kl(*(kind(*side) for side in numbers))
    assert value.item() == np.inf
    assert value.dtype == torch.float32
    value.backward()
    assert not any(x.grad.isnan() for side in numbers for x in side)
    if family == "Normal":  # (μ_p - μ_q)/σ_q², and to σ_q less its square
        assert [x.grad.item() for x in (*numbers[0], numbers[1][0])] == pytest.approx([2e20, 0.0, -2e20], rel=FLOAT32)
        assert numbers[1][1].grad.item() == -np.inf
    record = getattr(distributions, family)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy's, of the overflow
        found = kb.kl(*(record(*(np.float32(x) for x in side)) for side in FAR[family]))
    assert found == np.inf
    assert found.dtype == np.float32


def test_numbers_beyond_float32_round_as_a_cast_does():
    largest = float(np.finfo(np.float32).max)
    for x in (largest, largest + 2.0**102, np.nextafter(largest + 2.0**103, 0.0), largest + 2.0**103, 1e39, np.inf):
        with np.errstate(over="ignore"):
            assert scalar.rounded_to_float32(float(x)) == float(np.float32(x))


# --- objects of TFP that have a KL and ended in an error ---


def test_objects_made_while_a_function_is_traced():
    """TFP holds sizes as tensors, whose values are unknown during tracing, and knows the static sizes as well."""

    @tf.function(autograph=False)
    def of(x):
        first, second = tfd.Normal(x, 1.0), tfd.Normal(x + 1.0, 1.0)
        independent = kb.kl(tfd.Independent(first, 1), tfd.Independent(second, 1))
        whole = kb.kl(tfd.Independent(first), tfd.Independent(second))
        samples = [kb.kl(tfd.Sample(first, sizes), tfd.Sample(second, sizes)) for sizes in (4, [4, 2])]
        return independent, whole, *samples

    for found, truth in zip(of(tf.zeros([2, 3])), (np.full(2, 1.5), np.full(2, 1.5), np.full((2, 3), 2.0), np.full((2, 3), 4.0))):
        np.testing.assert_allclose(found, truth, rtol=FLOAT32)


@pytest.mark.parametrize(("d", "linalg", "constant"), SUBSTRATES)
def test_a_sample_shape_may_be_one_number(d, linalg, constant):
    assert float(kb.kl(d.Sample(d.Normal(0.0, 1.0), 3), d.Sample(d.Normal(1.0, 1.0), [3]))) == pytest.approx(1.5, rel=FLOAT32)


def test_a_sample_shape_known_when_the_code_runs_is_refused():
    @tf.function(input_signature=[tf.TensorSpec([1], tf.int32)], autograph=False)
    def of(sizes):
        return kb.kl(tfd.Sample(tfd.Normal(0.0, 1.0), sizes), tfd.Sample(tfd.Normal(1.0, 1.0), sizes))

    with pytest.raises(kb.NoClosedForm, match="a Sample distribution whose sample_shape is known only when the code runs"):
        of(tf.constant([3]))


@pytest.mark.parametrize(("d", "linalg", "constant"), SUBSTRATES)
def test_rates_by_their_logarithm(d, linalg, constant):
    """The rate itself would round: at log-rates this near it would be 1% off."""
    near, other = constant(np.float32(0.3)), constant(np.float32(0.30001))
    step = float(np.float32(0.30001)) - float(np.float32(0.3))
    assert float(kb.kl(d.Gamma(2.0, log_rate=near), d.Gamma(2.0, log_rate=other))) == pytest.approx(2.0 * (np.expm1(step) - step), rel=1e-4)
    truth = np.exp(0.3) * step**2 / 2
    assert float(kb.kl(d.Poisson(log_rate=near), d.Poisson(log_rate=other))) == pytest.approx(truth, rel=1e-4)
    # A rate that is given, and other families: KL(Gamma(a, r)‖Exponential(s)) by the textbook, a = 2.
    rate, s = np.exp(0.3), 0.7
    truth = 2.0 * (s / rate - 1.0) + np.log(rate / s) + scipy.special.digamma(2.0)
    for q in (d.Exponential(s), d.Gamma(1.0, s)):
        assert float(kb.kl(d.Gamma(2.0, log_rate=near), q)) == pytest.approx(truth, rel=FLOAT32)


def test_edges_of_rates_by_their_logarithm():
    """A rate of 0 is the logarithm -inf. Logarithms beyond what e^x can hold."""

    def value(x, y):
        return kb.kl(distributions.PoissonLog(x), distributions.PoissonLog(y))

    for p, q in itertools.product((0.0, 0.5, 2.0), repeat=2):
        with np.errstate(divide="ignore"):
            x, y = np.log([p, q])
        truth = q if p == 0 else np.inf if q == 0 else q - p - p * np.log(q / p)
        assert value(x, y) == pytest.approx(truth, rel=1e-12, abs=1e-300)
        assert kb.kl(distributions.PoissonLog(np.full(3, x)), distributions.Poisson(q)) == pytest.approx(np.full(3, truth), rel=1e-12)
    assert value(-800.0, 1.0) == pytest.approx(np.e, rel=1e-12)


def _ordered(cutpoints, loc):
    edges = scipy.special.expit(np.asarray(cutpoints, float) - loc)
    return np.diff([0.0, *edges, 1.0])


def _stopping(cutpoints, loc):
    stop = scipy.special.expit(np.asarray(cutpoints, float) - loc)
    return np.append(stop, 1.0) * np.cumprod([1.0, *(1.0 - stop)])


def test_sizes_that_are_unknown_while_a_function_is_traced():
    unknown, matrix = tf.TensorSpec([None]), tf.TensorSpec([None, None])

    @tf.function(input_signature=[unknown, matrix], autograph=False)
    def of(x, scale):
        ordered, stopping = ([family(x, loc) for loc in (0.0, [0.5, 1.0])] for family in (tfd.OrderedLogistic, tfd.StoppingRatioLogistic))
        full, diagonal = tfd.MultivariateNormalTriL(x, scale), tfd.MultivariateNormalDiag(x + 1.0, x * 0.0 + 2.0)
        low = tf.linalg.LinearOperatorLowerTriangular
        matrices = [tfd.MatrixNormalLinearOperator(scale * 0.0, low(y), low(scale)) for y in (scale, 2.0 * scale)]
        return [kb.kl(*pair) for pair in (ordered, stopping, (full, diagonal), (diagonal, full), matrices)]

    cutpoints, scale = np.array([-0.5, 0.3, 1.4], np.float32), np.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.1, -0.3, 0.7]], np.float32)
    found = of(tf.constant(cutpoints), tf.constant(scale))
    for value, probabilities in zip(found, (_ordered, _stopping)):
        p, qs = probabilities(cutpoints, 0.0), [probabilities(cutpoints, loc) for loc in (0.5, 1.0)]
        np.testing.assert_allclose(value, [np.sum(p * np.log(p / q)) for q in qs], rtol=FLOAT32)
    assert float(found[2]) == pytest.approx(_normal(scale, 2 * np.eye(3)) + 3 / 8, rel=FLOAT32)
    shift = np.linalg.solve(scale.astype(float), np.ones(3))
    assert float(found[3]) == pytest.approx(_normal(2 * np.eye(3), scale) + shift @ shift / 2, rel=FLOAT32)
    assert float(found[4]) == pytest.approx(_normal(np.kron(scale, scale), np.kron(2 * scale, scale)), rel=FLOAT32)


# --- graphs of TensorFlow 1, where == compares identities: rel_entr(0, 1) was inf, and the entropy of (½, ½, 0) NaN ---

IN_TENSORFLOW_1 = """
import tensorflow as tf
import kullback as kb, kullback.tensorflow as surface
from kullback import distributions as D, losses
{mode}
p, q = tf.constant([0.5, 0.5, 0.0]), tf.constant([0.5, 0.25, 0.25])
calls = {{
    "rel_entr": lambda: kb.rel_entr(p, q), "entropy": lambda: kb.entropy(p), "kl": lambda: kb.kl(p, q),
    "weighted": lambda: kb.kl([[0.5, 0.5]], [[0.5, 0.5]], weights=p), "surface": lambda: surface.kl_divergence(p, q),
    "Bernoulli": lambda: kb.kl(D.Bernoulli(p), D.Bernoulli(q)), "Poisson": lambda: kb.kl(D.Poisson(p), D.Poisson(q)),
    "traced": lambda: tf.function(kb.rel_entr, autograph=False)(p, q),
    "kl_loss": lambda: losses.kl_loss(student=p, teacher=q), "policy_kl": lambda: losses.policy_kl(p, q),
    "token_terms": lambda: losses.token_terms(p[None], q[None], tf.constant([0])),
}}
for name, call in calls.items():
    try:
        print(name, call())
    except NotImplementedError as error:
        assert str(error).startswith("kullback does not work in graphs of TensorFlow 1"), error
print("refused")
"""


@pytest.mark.needs("tensorflow")
def test_graphs_of_tensorflow_1_are_refused():
    program = IN_TENSORFLOW_1.format(mode="tf.compat.v1.disable_v2_behavior()")  # for good, hence a process of its own
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "refused\n"
    with tf.Graph().as_default(), contextlib.redirect_stdout(io.StringIO()) as output:
        exec(IN_TENSORFLOW_1.format(mode=""), {})
    assert output.getvalue() == "refused\n"
    # Traced functions and functions of a data set still work.
    rows = tf.data.Dataset.from_tensors(tf.constant([0.0, 1.0])).map(lambda x: kb.rel_entr(x, x))
    assert [x.numpy().tolist() for x in rows] == [[0.0, 0.0]]


def test_subnormal_numbers_in_tensorflow_are_zero():
    """docs/numerics.md said so of XLA alone; the kernels of eager mode and of tf.function flush them too."""
    p, q = np.array([0.5, 0.5], np.float32), np.array([1.0, 1e-40], np.float32)
    assert 40.0 < kb.kl(p, q) < 50.0
    assert float(kb.kl(tf.constant(p), tf.constant(q))) == np.inf
    assert float(tf.function(kb.kl, autograph=False)(tf.constant(p), tf.constant(q))) == np.inf


# --- infinite logits are certain successes and failures: Bernoulli(logits=-inf) gave NaN, and so did its relatives ---

LOGITS = (-math.inf, -800.0, -2.0, 0.0, 1.5, 800.0, math.inf)


def _chances(logit):
    """The probabilities of success and failure, to 400 digits, since one of them may be e^-800."""
    if math.isinf(logit):
        return (mp.mpf(0), mp.mpf(1)) if logit < 0 else (mp.mpf(1), mp.mpf(0))
    return 1 / (1 + mp.exp(-mp.mpf(logit))), 1 / (1 + mp.exp(mp.mpf(logit)))


def _term(p, q):
    return mp.mpf(0) if p == 0 else mp.inf if q == 0 else p * mp.log(p / q)


def _trials(family, a, b):
    """KL of one trial, times the expected number of trials, which may be infinite."""
    (p, no_p), (q, no_q) = _chances(a), _chances(b)
    one = _term(p, q) + _term(no_p, no_q)
    ends = {"GeometricLogits": p, "NegativeBinomialLogits": no_p}.get(family, mp.mpf(1))
    return (
        0.0 if a == b else math.inf if ends == 0 else float({"BinomialLogits": 3, "NegativeBinomialLogits": 3}.get(family, 1) * one / ends)
    )


@pytest.mark.parametrize("family", ["BernoulliLogits", "BinomialLogits", "GeometricLogits", "NegativeBinomialLogits"])
def test_infinite_logits(family):
    count = () if family in ("BernoulliLogits", "GeometricLogits") else (3.0,)
    a, b = (np.array(x) for x in zip(*itertools.product(LOGITS, repeat=2)))
    with mp.workdps(400):
        truth = np.array([_trials(family, x, y) for x, y in zip(a, b)])
    kind = getattr(distributions, family)
    found = kb.kl(kind(*count, a), kind(*count, b))
    np.testing.assert_allclose(found, truth, rtol=1e-11, atol=1e-300)
    one_by_one = [kb.kl(kind(*count, x), kind(*count, y)) for x, y in zip(a.tolist(), b.tolist())]
    np.testing.assert_allclose(one_by_one, truth, rtol=1e-11, atol=1e-300)
    tensors = [torch.tensor(x, requires_grad=True) for x in (a, b)]
    value = kb.kl(*(kind(*count, x) for x in tensors))
    np.testing.assert_allclose(value.detach(), truth, rtol=1e-11, atol=1e-300)
    for slope in torch.autograd.grad(value.sum(), tensors):
        assert slope[torch.tensor(np.isfinite(truth) & np.isfinite(a) & np.isfinite(b))].isfinite().all()


INFINITE = [-math.inf, -math.inf, math.inf, math.inf, 0.0], [0.0, -math.inf, math.inf, -math.inf, -math.inf]
OF_INFINITE = [math.log(2.0), 0.0, 0.0, math.inf, math.inf]


@pytest.mark.parametrize(
    "made",
    [
        lambda x: td.Bernoulli(logits=torch.tensor(x)),
        lambda x: tfd.Bernoulli(logits=x),
        lambda x: distrax.Bernoulli(logits=jnp.asarray(x)),
        lambda x: numpyro.BernoulliLogits(jnp.asarray(x), validate_args=False),
        lambda x: distributions.BernoulliLogits(tinygrad.Tensor(x)),
        lambda x: distributions.ProbitBernoulli(np.asarray(x)),
    ],
    ids=["torch", "tfp", "distrax", "numpyro", "tinygrad", "probits"],
)
def test_infinite_logits_of_every_library(made):
    found = kb.kl(*(made(x) for x in INFINITE))
    np.testing.assert_allclose(found.numpy() if hasattr(found, "numpy") else found, OF_INFINITE, rtol=FLOAT32)


def test_arrays_of_unknown_rank():
    x = np.array([[0.2, 0.3], [0.5, 0.5]], np.float32)

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def of(x):
        kinds = (tfd.Normal, x, x + 1.0), (tfd.Gamma, x, x + 0.5), (tfd.Dirichlet, x), (tfd.MultivariateNormalDiag, x, x + 1.0)
        return [kb.kl(family(*given), family(*(2.0 * y for y in given))) for family, *given in kinds], kb.rel_entr(x, x[..., ::-1])

    found, terms = of(tf.constant(x))
    np.testing.assert_allclose(terms, x * np.log(x / x[:, ::-1]), rtol=FLOAT32, atol=1e-7)
    scale, gamma = x + 1.0, scipy.special.gammaln
    normal = x**2 / (8 * scale**2) + 1 / 8 - 0.5 + np.log(2)
    np.testing.assert_allclose(found[0], normal, rtol=FLOAT32)
    rate = x + 0.5
    truth = -x * scipy.special.digamma(x) - gamma(x) + gamma(2 * x) - 2 * x * np.log(2.0) + x * (2 * rate - rate) / rate
    np.testing.assert_allclose(found[1], truth, rtol=1e-4)  # the textbook's form cancels
    total = x.sum(-1)
    truth = gamma(total) - gamma(2 * total) + (gamma(2 * x) - gamma(x)).sum(-1)
    truth -= (x * (scipy.special.digamma(x) - scipy.special.digamma(total)[:, None])).sum(-1)
    np.testing.assert_allclose(found[2], truth, rtol=1e-4)
    np.testing.assert_allclose(found[3], normal.sum(-1), rtol=FLOAT32)

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def of_categories(x):
        return kb.kl(x, x)

    with pytest.raises(ValueError, match=r"the number of axes of p is unknown: state it with tf\.ensure_shape"):
        of_categories(tf.constant(x))


UNKNOWN = {
    "weights": lambda x, y: kb.kl(y, y, form="logits", weights=x),
    "temperature": lambda x, y: kb.kl(y, y, form="logits", temperature=x),
    "student": lambda x, y: losses.kl_loss(student=x, teacher=y),
    "teacher": lambda x, y: losses.kl_loss(student=y, teacher=x),
    "logits_ref": lambda x, y: losses.token_terms(y, x, [0]),
    "tokens": lambda x, y: losses.token_terms(y, y, tf.cast(x, tf.int32)),
    "hidden": lambda x, y: losses.linear_kl(hidden=x, weight=y, teacher_logits=y),
    "logp": lambda x, y: losses.policy_kl(x, y),
    "mask": lambda x, y: losses.token_terms(y, y, [0], mask=x),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_numbers_of_axes_are_refused_by_name(name):
    """TensorFlow's own sentence came through: "Cannot take the length of shape with unknown rank"."""
    function = tf.function(UNKNOWN[name], input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 3])], autograph=False)
    with pytest.raises(ValueError, match=rf"the number of axes of {name} is unknown: state it with tf\.ensure_shape"):
        function(tf.zeros((1, 3)), tf.zeros((1, 3)))


def test_numeric_estimates_inside_a_traced_function_are_refused():
    """An AttributeError came through: 'SymbolicTensor' object has no attribute 'numpy'."""
    function = tf.function(lambda x: kb.kl(tfd.Normal(x, 1.0), tfd.StudentT(3.0, 0.0, 1.0), method="auto"), autograph=False)
    with pytest.raises(kb.NoClosedForm, match=r"it looks at parameters, so it cannot be traced or compiled; call it outside$"):
        function(tf.constant(1.0))


def test_tokens_of_an_unknown_number_of_categories_are_refused():
    function = tf.function(lambda x: losses.token_terms(x, x, [0]), input_signature=[tf.TensorSpec([None, None])], autograph=False)
    with pytest.raises(ValueError, match=r"the number of categories of logits is unknown: state it with tf\.ensure_shape"):
        function(tf.zeros((1, 3)))


def test_independent_parts_of_different_numbers_are_refused():
    """One part beside four was taken for four."""

    def made(size, scale):
        return td.Independent(td.Normal(torch.zeros(size), scale * torch.ones(size)), 1)

    with pytest.raises(ValueError, match=r"^events have different shapes: p has independent parts of shape \(4,\), and q of \(1,\)$"):
        kb.kl(made(4, 1.0), made(1, 2.0))
    # A parameter may have one number for all parts, and batches still broadcast.
    p, q = (distributions.Independent(distributions.Normal(np.zeros((2, 4)), x), 1) for x in (np.ones(1), 2.0))
    assert kb.kl(p, q) == pytest.approx(np.full(2, 4 * _normal([[1.0]], [[2.0]])), rel=1e-12)
    assert kb.kl(made(4, 1.0), made((3, 4), 2.0)).shape == (3,)

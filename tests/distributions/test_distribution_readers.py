"""That each class is read as what it is: its own log_prob, at its own samples, is the density of the record's parameters (`densities`)."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import scipy.stats as ss
import torch
import torch.distributions as td

import densities
from frameworks import Lazy
from kullback._distributions import adapters
from kullback._distributions.families import Categorical, Record, Shifted

distrax = Lazy("distrax")
jnp = Lazy("jax.numpy")
nd = Lazy("numpyro.distributions")
tf = Lazy("tensorflow")
tfp = Lazy("tensorflow_probability")
tfp_jax = Lazy("tensorflow_probability.substrates.jax")

# Two parameters are enough to tell one from the other: all different, none of them special.
A, B, C = 1.7, 0.6, 2.3


def _torch():
    t = torch.tensor
    return [
        td.Normal(t(B), t(A)),
        td.Laplace(t(B), t(A)),
        td.Cauchy(t(B), t(A)),
        td.Gumbel(t(B), t(A)),
        td.LogNormal(t(B), t(A)),
        td.HalfNormal(t(A)),
        td.HalfCauchy(t(A)),
        td.Gamma(t(A), t(B)),
        td.Chi2(t(A)),
        td.InverseGamma(t(A), t(B)),
        td.Exponential(t(A)),
        td.Weibull(t(A), t(B)),
        td.Pareto(t(B), t(A)),
        td.Uniform(t(B), t(A)),
        td.Beta(t(A), t(B)),
        td.Kumaraswamy(t(A), t(B)),
        td.ContinuousBernoulli(t(0.3)),
        td.ContinuousBernoulli(logits=t(B)),
        td.VonMises(t(B), t(A)),
        td.Bernoulli(t(0.3)),
        td.Bernoulli(logits=t(B)),
        td.Binomial(7, t(0.3)),
        td.Binomial(7, logits=t(B)),
        td.Geometric(t(0.3)),
        td.Geometric(logits=t(B)),
        td.NegativeBinomial(t(A), t(0.3)),
        td.NegativeBinomial(t(A), logits=t(B)),
        td.Poisson(t(A)),
    ]


def _numpyro():
    return [
        nd.Normal(B, A),
        nd.Laplace(B, A),
        nd.Cauchy(B, A),
        nd.Gumbel(B, A),
        nd.Logistic(B, A),
        nd.LogNormal(B, A),
        nd.HalfNormal(A),
        nd.HalfCauchy(A),
        nd.Levy(B, A),
        nd.Gamma(A, B),
        nd.Chi2(A),
        nd.InverseGamma(A, B),
        nd.Exponential(A),
        nd.Weibull(A, B),
        nd.Pareto(B, A),
        nd.Uniform(B, A),
        nd.Beta(A, B),
        nd.Kumaraswamy(A, B),
        nd.VonMises(B, A),
        nd.TruncatedNormal(B, A, low=-1.0, high=2.0),
        nd.BernoulliProbs(0.3),
        nd.BernoulliLogits(B),
        nd.BinomialProbs(0.3, 7),
        nd.BinomialLogits(B, 7),
        nd.GeometricProbs(0.3),
        nd.GeometricLogits(B),
        nd.NegativeBinomialLogits(A, B),
        nd.Poisson(A),
    ]


def _tfp(d, array):
    a, b, p, n = array(A), array(B), array(0.3), array(7.0)
    return [
        d.Normal(b, a),
        d.Laplace(b, a),
        d.Cauchy(b, a),
        d.Gumbel(b, a),
        d.Logistic(b, a),
        d.Moyal(b, a),
        d.GeneralizedNormal(b, a, array(C)),
        d.ExpGamma(a, b),
        d.ExpGamma(a, log_rate=b),
        d.ExpInverseGamma(a, b),
        d.ExpInverseGamma(a, log_scale=b),
        d.VonMises(b, a),
        d.LogNormal(b, a),
        d.HalfNormal(a),
        d.HalfCauchy(b, a),
        d.Gamma(a, b),
        d.Gamma(a, log_rate=b),
        d.Chi(a),
        d.Chi2(a),
        d.InverseGamma(a, b),
        d.InverseGaussian(a, b),
        d.Exponential(a),
        d.Weibull(a, b),
        d.Pareto(a, b),
        d.Uniform(b, a),
        d.Beta(a, b),
        d.Kumaraswamy(a, b),
        d.LogitNormal(b, a),
        d.TruncatedNormal(b, a, array(-1.0), array(2.0)),
        d.ContinuousBernoulli(probs=p),
        d.ContinuousBernoulli(logits=b),
        d.Bernoulli(probs=p),
        d.Bernoulli(logits=b),
        d.ProbitBernoulli(probits=b),
        d.Binomial(n, probs=p),
        d.Binomial(n, logits=b),
        d.Geometric(probs=p),
        d.Geometric(logits=b),
        d.NegativeBinomial(a, probs=p),
        d.NegativeBinomial(a, logits=b),
        d.Poisson(a),
        d.Poisson(log_rate=b),
    ]


def _distrax():
    return [
        distrax.Normal(B, A),
        distrax.LogStddevNormal(B, A),
        distrax.Laplace(B, A),
        distrax.Logistic(B, A),
        distrax.Gumbel(B, A),
        distrax.VonMises(B, A),
        distrax.Gamma(A, B),
        distrax.Uniform(B, A),
        distrax.Beta(A, B),
        distrax.Bernoulli(probs=0.3),
        distrax.Bernoulli(logits=B),
    ]


def _scipy():
    return [
        ss.norm(B, A),
        ss.laplace(B, A),
        ss.cauchy(B, A),
        ss.gumbel_r(B, A),
        ss.logistic(B, A),
        ss.moyal(B, A),
        ss.gennorm(C, B, A),
        ss.uniform(B, A),
        ss.truncnorm(-1.0, 2.0, B, A),
        ss.expon(scale=A),
        ss.gamma(A, scale=B),
        ss.erlang(3, scale=B),
        ss.invgamma(A, scale=B),
        ss.halfnorm(scale=A),
        ss.halfcauchy(scale=A),
        ss.weibull_min(A, scale=B),
        ss.invweibull(A, scale=B),
        ss.pareto(A, scale=B),
        ss.lognorm(A, scale=B),
        ss.invgauss(A, scale=B),
        ss.rayleigh(scale=A),
        ss.maxwell(scale=A),
        ss.nakagami(A, scale=B),
        ss.gengamma(A, C, scale=B),
        ss.levy(scale=A),
        ss.beta(A, B),
        ss.chi2(A),
        ss.chi(A),
        ss.bernoulli(0.3),
        ss.binom(7, 0.3),
        ss.poisson(A),
        ss.geom(0.3),
        ss.nbinom(A, 0.3),
        ss.vonmises(A, B),
        ss.gamma(A, loc=B, scale=A),
        ss.expon(loc=[B, A], scale=A),
        ss.binom(7, 0.3, loc=2),
    ]


OBJECTS = {
    "torch": (_torch, torch.tensor),
    "numpyro": (_numpyro, lambda x: jnp.asarray(x)),
    "tfp": (lambda: _tfp(tfp.distributions, lambda x: tf.constant(x, tf.float32)), lambda x: tf.constant(x)),
    "tfp-jax": (lambda: _tfp(tfp_jax.distributions, lambda x: jnp.asarray(x, jnp.float32)), lambda x: jnp.asarray(x)),
    "distrax": (_distrax, lambda x: jnp.asarray(x)),
    "scipy": (_scipy, np.asarray),
}
# Where to compare, in the support of every family of that kind as it is made here.
POINTS = {
    "real": (-0.7, 0.4, 2.1),
    "positive": (0.3, 1.1, 2.9),
    "unit": (0.2, 0.5, 0.9),
    "above": (0.7, 1.9, 3.0),
    "interval": (0.7, 1.1, 1.6),
    "truncated": (-0.7, 0.4, 1.9),
    "counts": (0, 2, 5),
    "trials": (0, 2, 5),
    "binary": (0, 1, 1),
    "": (-0.7, 0.4, 2.1),
}
# Not one-dimensional, or made of others: elsewhere.
OTHERS = {
    "Dirichlet",
    "Categorical",
    "CategoricalProbs",
    "CategoricalLogits",
    "OneHotCategorical",
    "OrderedLogistic",
    "StoppingRatioLogistic",
    "Multinomial",
    "MultinomialProbs",
    "MultinomialLogits",
    "MultivariateNormal",
    "LowRankMultivariateNormal",
    "CirculantNormal",
    "MatrixNormal",
    "Wishart",
    "InverseWishart",
    "Delta",
    "Independent",
    "MaskedDistribution",
    "ExpandedDistribution",
    "TransformedDistribution",
    "Masked",
    "Sample",
    "Blockwise",
    "_JointDistributionSequential",
    "MultivariateNormalLinearOperator",
    "MultivariateNormalLowRankUpdateLinearOperatorCovariance",
    "GaussianProcess",
    "MatrixNormalLinearOperator",
    "WishartLinearOperator",
    "VonMisesFisher",
    "PowerSpherical",
    "SphericalUniform",
    "Deterministic",
    "VectorDeterministic",
    "MultivariateNormalDiag",
    "MultivariateNormalTri",
    "MultivariateNormalFromBijector",
    "Joint",
    "Transformed",
    "LeftTruncatedDistribution",
    "RightTruncatedDistribution",
}


def _numbers(record: Record):
    return [np.asarray(x, float) for x in record.parameters().values()]


def _readers(kind):
    """Of the class itself, or of the nearest one that it inherits from."""
    names = ((cls.__module__, cls.__name__) for cls in kind.__mro__)
    return next(
        [readers[name]]
        for module, name in names
        for prefix, readers in adapters.LIBRARIES.items()
        if module.startswith(prefix) and name in readers
    )


@pytest.mark.parametrize("library", OBJECTS)
def test_read_as_what_it_is(library):
    make, array = OBJECTS[library]
    seen = set()
    tolerance = 1e-9 if library == "scipy" else 2e-4  # of their own formulas, in float64 and in float32
    for d in make():
        record = adapters.read(d)
        seen |= {cls.__name__ for cls in type(d).__mro__}
        shift = np.asarray(0.0)
        readers = [adapters.LIBRARIES["scipy.stats"].get(d.dist.name)] if library == "scipy" else _readers(type(d))
        assert type(record) in {family for reader in readers for family in (*reader.families, Shifted)}, d
        if isinstance(record, Shifted):
            record, shift = record.base, np.asarray(record.loc, float)
        x = (np.asarray(POINTS[record.support])[:, None] + np.atleast_1d(shift)).astype(np.float64 if library == "scipy" else np.float32)
        x = x if shift.ndim else x[:, 0]
        if library == "scipy":
            found = np.asarray((d.logpdf if hasattr(d.dist, "pdf") else d.logpmf)(x))
        else:
            found = np.asarray(d.log_prob(array(x)), float)
        points = np.broadcast_to(np.asarray(x, float), found.shape)
        parameters = [np.broadcast_to(v, found.shape) for v in _numbers(record)]
        shift = np.broadcast_to(shift, found.shape)
        log = densities.DENSITIES[type(record).__name__].log
        with mp.workdps(25):
            for i in np.ndindex(found.shape):
                at = mp.mpf(float(points[i])) - mp.mpf(float(shift[i]))
                at = int(at) if densities.DENSITIES[type(record).__name__].support is None else at
                expected = float(log(at, *(mp.mpf(float(v[i])) for v in parameters)))
                assert found[i] == pytest.approx(expected, rel=tolerance, abs=tolerance), (d, record)
    if library != "scipy":
        prefix = {"torch": "torch.distributions", "numpyro": "numpyro.distributions", "distrax": "distrax"}.get(
            library, "tensorflow_probability"
        )
        assert set(adapters.LIBRARIES[prefix]) - OTHERS <= seen


def test_categories_keep_the_form_they_were_given_in():
    p = np.array([0.2, 0.3, 0.5], np.float32)
    for d, form in (
        (td.Categorical(torch.tensor(p)), "probs"),
        (td.OneHotCategorical(logits=torch.tensor(p)), "logits"),
        (nd.Categorical(jnp.asarray(p)), "probs"),
        (nd.Categorical(logits=jnp.asarray(p)), "logits"),
        (tfp.distributions.Categorical(probs=p), "probs"),
        (distrax.OneHotCategorical(p), "logits"),
    ):
        record = adapters.read(d)
        assert isinstance(record, Categorical)
        assert record.form == form

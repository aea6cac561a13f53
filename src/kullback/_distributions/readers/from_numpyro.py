"""numpyro.distributions."""

from __future__ import annotations

import math
from typing import Any

from ..families import (
    Bernoulli,
    BernoulliLogits,
    Beta,
    Binomial,
    BinomialLogits,
    Categorical,
    Cauchy,
    Chi2,
    Dirichlet,
    Expanded,
    Exponential,
    Gamma,
    Geometric,
    GeometricLogits,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    InverseWishart,
    Kumaraswamy,
    Laplace,
    Levy,
    Logistic,
    LogNormal,
    Masked,
    MatrixNormal,
    Multinomial,
    MultivariateNormal,
    MultivariateNormalCovariance,
    MultivariateNormalLowRank,
    NegativeBinomialLogits,
    Normal,
    Pareto,
    Poisson,
    Record,
    Shifted,
    Transformed,
    TruncatedNormal,
    Uniform,
    VonMises,
    Weibull,
    Wishart,
)
from .shared import Read, Reader, Same, fields, independent, point


def _truncated(d: Any) -> Record:
    base = d.base_dist
    if type(base).__name__ != "Normal":
        raise TypeError(f"a truncated {type(base).__name__} is not a family kullback knows")
    return TruncatedNormal(base.loc, base.scale, getattr(d, "low", -math.inf), getattr(d, "high", math.inf))


def _delta(d: Any) -> Record:
    if isinstance(d.log_density, (int, float)) and d.log_density != 0:
        raise ValueError("a Delta with a log_density other than 0 is no probability distribution")
    return point(d.v, len(d.event_shape))


def _wishart(family: Any) -> Reader:
    # It is the law of the Cholesky factor, transformed.
    return lambda d: family(d.base_dist.concentration, d.base_dist.scale_tril)


def _transformed(d: Any, read: Read) -> Record:
    more = len(d.event_shape) - len(d.base_dist.event_shape)
    return Transformed(read(d.base_dist), Same(*d.transforms), more)


def table(read: Read) -> dict[str, Reader]:
    return {
        "Normal": fields(Normal, "loc", "scale"),
        "Laplace": fields(Laplace, "loc", "scale"),
        "Cauchy": fields(Cauchy, "loc", "scale"),
        "Gumbel": fields(Gumbel, "loc", "scale"),
        "Logistic": fields(Logistic, "loc", "scale"),
        "LogNormal": fields(LogNormal, "loc", "scale"),
        "HalfNormal": fields(HalfNormal, "scale"),
        "HalfCauchy": fields(HalfCauchy, "scale"),
        "Levy": lambda d: Shifted(Levy(d.scale), d.loc),
        "Gamma": fields(Gamma, "concentration", "rate"),
        "Chi2": fields(Chi2, "df"),
        "InverseGamma": fields(InverseGamma, "concentration", "rate"),
        "Exponential": fields(Exponential, "rate"),
        "Weibull": fields(Weibull, "concentration", "scale"),
        "Pareto": fields(Pareto, "alpha", "scale"),
        "Uniform": fields(Uniform, "low", "high"),
        "Beta": fields(Beta, "concentration1", "concentration0"),
        "Kumaraswamy": fields(Kumaraswamy, "concentration1", "concentration0"),
        "VonMises": fields(VonMises, "loc", "concentration"),
        "TwoSidedTruncatedDistribution": _truncated,
        "LeftTruncatedDistribution": _truncated,
        "RightTruncatedDistribution": _truncated,
        "Dirichlet": fields(Dirichlet, "concentration"),
        "BernoulliProbs": fields(Bernoulli, "probs"),
        "BernoulliLogits": fields(BernoulliLogits, "logits"),
        "BinomialProbs": fields(Binomial, "total_count", "probs"),
        "BinomialLogits": fields(BinomialLogits, "total_count", "logits"),
        "GeometricProbs": fields(Geometric, "probs"),
        "GeometricLogits": fields(GeometricLogits, "logits"),
        "NegativeBinomialLogits": fields(NegativeBinomialLogits, "total_count", "logits"),
        "Poisson": fields(Poisson, "rate"),
        "CategoricalProbs": lambda d: Categorical(d.probs, "probs"),
        "CategoricalLogits": lambda d: Categorical(d.logits, "logits"),
        "MultinomialProbs": lambda d: Multinomial(d.total_count, d.probs, "probs"),
        "MultinomialLogits": lambda d: Multinomial(d.total_count, d.logits, "logits"),
        "MultivariateNormal": fields(MultivariateNormal, "loc", "scale_tril"),
        "LowRankMultivariateNormal": fields(MultivariateNormalLowRank, "loc", "cov_factor", "cov_diag"),
        "CirculantNormal": fields(MultivariateNormalCovariance, "loc", "covariance_matrix"),
        "MatrixNormal": fields(MatrixNormal, "loc", "scale_tril_row", "scale_tril_column"),
        "Wishart": _wishart(Wishart),
        "InverseWishart": _wishart(InverseWishart),
        "Delta": _delta,
        "Independent": lambda d: independent(read(d.base_dist), d.reinterpreted_batch_ndims),
        "MaskedDistribution": lambda d: Masked(read(d.base_dist), d._mask),
        "ExpandedDistribution": lambda d: Expanded(read(d.base_dist), tuple(d.batch_shape)),
        "TransformedDistribution": lambda d: _transformed(d, read),
    }

"""numpyro.distributions."""

from __future__ import annotations

import math
from typing import Any

from .. import families as f
from ..families import Record
from . import Read, Reader, reads_into
from .shared import categories, draws, fields, independents, point, transformed


@reads_into(f.TruncatedNormal)
def _truncated(d: Any, read: Read) -> Record:
    base = d.base_dist
    if type(base).__name__ != "Normal":
        raise TypeError(f"a truncated {type(base).__name__} is not a family kullback knows")
    return f.TruncatedNormal(base.loc, base.scale, getattr(d, "low", -math.inf), getattr(d, "high", math.inf))


@reads_into(f.Delta, f.Independent)
def _delta(d: Any, read: Read) -> Record:
    if isinstance(d.log_density, (int, float)) and d.log_density != 0:
        raise ValueError("a Delta with a log_density other than 0 is no probability distribution")
    return point(d.v, len(d.event_shape))


@reads_into(f.Expanded)
def _expanded(d: Any, read: Read) -> Record:
    return f.Expanded(read(d.base_dist), tuple(d.batch_shape))


def _wishart(family: Any) -> Reader:
    # numpyro makes a Wishart distribution by transforming the law of its Cholesky factor.
    return Reader((family,), lambda d, read: family(d.base_dist.concentration, d.base_dist.scale_tril))


TABLE: dict[str, Reader] = {
    "Normal": fields(f.Normal, "loc", "scale"),
    "Laplace": fields(f.Laplace, "loc", "scale"),
    "Cauchy": fields(f.Cauchy, "loc", "scale"),
    "Gumbel": fields(f.Gumbel, "loc", "scale"),
    "Logistic": fields(f.Logistic, "loc", "scale"),
    "LogNormal": fields(f.LogNormal, "loc", "scale"),
    "HalfNormal": fields(f.HalfNormal, "scale"),
    "HalfCauchy": fields(f.HalfCauchy, "scale"),
    "Levy": Reader((f.Shifted, f.Levy), lambda d, read: f.Shifted(f.Levy(d.scale), d.loc)),
    "Gamma": fields(f.Gamma, "concentration", "rate"),
    "Chi2": fields(f.Chi2, "df"),
    "InverseGamma": fields(f.InverseGamma, "concentration", "rate"),
    "Exponential": fields(f.Exponential, "rate"),
    "Weibull": fields(f.Weibull, "concentration", "scale"),
    "Pareto": fields(f.Pareto, "alpha", "scale"),
    "Uniform": fields(f.Uniform, "low", "high"),
    "Beta": fields(f.Beta, "concentration1", "concentration0"),
    "Kumaraswamy": fields(f.Kumaraswamy, "concentration1", "concentration0"),
    "VonMises": fields(f.VonMises, "loc", "concentration"),
    "TwoSidedTruncatedDistribution": _truncated,
    "LeftTruncatedDistribution": _truncated,
    "RightTruncatedDistribution": _truncated,
    "Dirichlet": fields(f.Dirichlet, "concentration"),
    "BernoulliProbs": fields(f.Bernoulli, "probs"),
    "BernoulliLogits": fields(f.BernoulliLogits, "logits"),
    "BinomialProbs": fields(f.Binomial, "total_count", "probs"),
    "BinomialLogits": fields(f.BinomialLogits, "total_count", "logits"),
    "GeometricProbs": fields(f.Geometric, "probs"),
    "GeometricLogits": fields(f.GeometricLogits, "logits"),
    "NegativeBinomialLogits": fields(f.NegativeBinomialLogits, "total_count", "logits"),
    "Poisson": fields(f.Poisson, "rate"),
    "CategoricalProbs": categories(lambda d: (d.probs, "probs")),
    "CategoricalLogits": categories(lambda d: (d.logits, "logits")),
    "MultinomialProbs": draws(lambda d: (d.probs, "probs")),
    "MultinomialLogits": draws(lambda d: (d.logits, "logits")),
    "MultivariateNormal": fields(f.MultivariateNormal, "loc", "scale_tril"),
    "LowRankMultivariateNormal": fields(f.MultivariateNormalLowRank, "loc", "cov_factor", "cov_diag"),
    "CirculantNormal": fields(f.MultivariateNormalCovariance, "loc", "covariance_matrix"),
    "MatrixNormal": fields(f.MatrixNormal, "loc", "scale_tril_row", "scale_tril_column"),
    "Wishart": _wishart(f.Wishart),
    "InverseWishart": _wishart(f.InverseWishart),
    "Delta": _delta,
    "Independent": independents("base_dist", lambda d: d.reinterpreted_batch_ndims),
    "MaskedDistribution": Reader((f.Masked,), lambda d, read: f.Masked(read(d.base_dist), d._mask)),
    "ExpandedDistribution": _expanded,
    "TransformedDistribution": transformed("base_dist", lambda d: d.transforms),
}

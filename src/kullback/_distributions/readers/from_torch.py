"""torch.distributions."""

from __future__ import annotations

from typing import Any

from .. import families as f
from . import Reader
from .shared import categories, draws, either, fields, independents, transformed


def _given(d: Any) -> tuple[Any, str]:
    """The numbers the caller passed. The other kind appears as an attribute once someone has asked for it."""
    d = getattr(d, "_categorical", d)  # Multinomial and OneHotCategorical hold a Categorical
    held = d.__dict__
    if "probs" in held and "logits" in held and "_param" in held:
        form = "probs" if held["_param"] is held["probs"] else "logits"
    else:
        form = "probs" if "probs" in held else "logits"
    return getattr(d, form), form


TABLE: dict[str, Reader] = {
    "Normal": fields(f.Normal, "loc", "scale"),
    "Laplace": fields(f.Laplace, "loc", "scale"),
    "Cauchy": fields(f.Cauchy, "loc", "scale"),
    "Gumbel": fields(f.Gumbel, "loc", "scale"),
    "LogNormal": fields(f.LogNormal, "loc", "scale"),
    "HalfNormal": fields(f.HalfNormal, "scale"),
    "HalfCauchy": fields(f.HalfCauchy, "scale"),
    "Gamma": fields(f.Gamma, "concentration", "rate"),
    "Chi2": fields(f.Chi2, "df"),
    "InverseGamma": fields(f.InverseGamma, "concentration", "rate"),
    "Exponential": fields(f.Exponential, "rate"),
    "Weibull": fields(f.Weibull, "concentration", "scale"),
    "Pareto": fields(f.Pareto, "alpha", "scale"),
    "Uniform": fields(f.Uniform, "low", "high"),
    "Beta": fields(f.Beta, "concentration1", "concentration0"),
    "Kumaraswamy": fields(f.Kumaraswamy, "concentration1", "concentration0"),
    "ContinuousBernoulli": either(_given, f.ContinuousBernoulli, f.ContinuousBernoulliLogits),
    "VonMises": fields(f.VonMises, "loc", "concentration"),
    "Dirichlet": fields(f.Dirichlet, "concentration"),
    "Bernoulli": either(_given, f.Bernoulli, f.BernoulliLogits),
    "Binomial": either(_given, f.Binomial, f.BinomialLogits, "total_count"),
    "Geometric": either(_given, f.Geometric, f.GeometricLogits),
    "NegativeBinomial": either(_given, f.NegativeBinomial, f.NegativeBinomialLogits, "total_count"),
    "Poisson": fields(f.Poisson, "rate"),
    "Categorical": categories(_given),
    "OneHotCategorical": categories(_given),
    "Multinomial": draws(_given),
    "MultivariateNormal": fields(f.MultivariateNormal, "loc", "_unbroadcasted_scale_tril"),
    "LowRankMultivariateNormal": fields(f.MultivariateNormalLowRank, "loc", "_unbroadcasted_cov_factor", "_unbroadcasted_cov_diag"),
    "Wishart": fields(f.Wishart, "df", "_unbroadcasted_scale_tril"),
    "Independent": independents("base_dist", lambda d: d.reinterpreted_batch_ndims),
    "TransformedDistribution": transformed("base_dist", lambda d: d.transforms),
}

"""torch.distributions."""

from __future__ import annotations

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
    ContinuousBernoulli,
    ContinuousBernoulliLogits,
    Dirichlet,
    Exponential,
    Gamma,
    Geometric,
    GeometricLogits,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    Multinomial,
    MultivariateNormal,
    MultivariateNormalLowRank,
    NegativeBinomial,
    NegativeBinomialLogits,
    Normal,
    Pareto,
    Poisson,
    Record,
    Transformed,
    Uniform,
    VonMises,
    Weibull,
    Wishart,
)
from .shared import Read, Reader, Same, fields, independent


def form(d: Any) -> str:
    # The one that was given is an attribute; the other is worked out when asked for, and is one from then on.
    held = d.__dict__
    if "probs" in held and "logits" in held and "_param" in held:
        return "probs" if held["_param"] is held["probs"] else "logits"
    return "probs" if "probs" in held else "logits"


def _either(probs: Any, logits: Any, *before: str) -> Reader:
    def read(d: Any) -> Record:
        name = form(d)
        record: Record = (probs if name == "probs" else logits)(*(getattr(d, x) for x in before), getattr(d, name))
        return record

    return read


def _categorical(d: Any) -> Record:
    d = getattr(d, "_categorical", d)  # OneHotCategorical holds one
    return Categorical(getattr(d, form(d)), form(d))


def _multinomial(d: Any) -> Record:
    inner = d._categorical
    return Multinomial(d.total_count, getattr(inner, form(inner)), form(inner))


def _transformed(d: Any, read: Read) -> Record:
    more = len(d.event_shape) - len(d.base_dist.event_shape)
    return Transformed(read(d.base_dist), Same(*d.transforms), more)


def table(read: Read) -> dict[str, Reader]:
    return {
        "Normal": fields(Normal, "loc", "scale"),
        "Laplace": fields(Laplace, "loc", "scale"),
        "Cauchy": fields(Cauchy, "loc", "scale"),
        "Gumbel": fields(Gumbel, "loc", "scale"),
        "LogNormal": fields(LogNormal, "loc", "scale"),
        "HalfNormal": fields(HalfNormal, "scale"),
        "HalfCauchy": fields(HalfCauchy, "scale"),
        "Gamma": fields(Gamma, "concentration", "rate"),
        "Chi2": fields(Chi2, "df"),
        "InverseGamma": fields(InverseGamma, "concentration", "rate"),
        "Exponential": fields(Exponential, "rate"),
        "Weibull": fields(Weibull, "concentration", "scale"),
        "Pareto": fields(Pareto, "alpha", "scale"),
        "Uniform": fields(Uniform, "low", "high"),
        "Beta": fields(Beta, "concentration1", "concentration0"),
        "Kumaraswamy": fields(Kumaraswamy, "concentration1", "concentration0"),
        "ContinuousBernoulli": _either(ContinuousBernoulli, ContinuousBernoulliLogits),
        "VonMises": fields(VonMises, "loc", "concentration"),
        "Dirichlet": fields(Dirichlet, "concentration"),
        "Bernoulli": _either(Bernoulli, BernoulliLogits),
        "Binomial": _either(Binomial, BinomialLogits, "total_count"),
        "Geometric": _either(Geometric, GeometricLogits),
        "NegativeBinomial": _either(NegativeBinomial, NegativeBinomialLogits, "total_count"),
        "Poisson": fields(Poisson, "rate"),
        "Categorical": _categorical,
        "OneHotCategorical": _categorical,
        "Multinomial": _multinomial,
        "MultivariateNormal": fields(MultivariateNormal, "loc", "_unbroadcasted_scale_tril"),
        "LowRankMultivariateNormal": fields(MultivariateNormalLowRank, "loc", "_unbroadcasted_cov_factor", "_unbroadcasted_cov_diag"),
        "Wishart": fields(Wishart, "df", "_unbroadcasted_scale_tril"),
        "Independent": lambda d: independent(read(d.base_dist), d.reinterpreted_batch_ndims),
        "TransformedDistribution": lambda d: _transformed(d, read),
    }

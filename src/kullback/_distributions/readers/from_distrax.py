"""distrax, whose other distributions are TFP's."""

from __future__ import annotations

from typing import Any

from ..families import (
    Bernoulli,
    BernoulliLogits,
    Beta,
    Categorical,
    Dirichlet,
    Gamma,
    Gumbel,
    Laplace,
    Logistic,
    Multinomial,
    MultivariateNormal,
    MultivariateNormalCovariance,
    MultivariateNormalDiag,
    MultivariateNormalScale,
    Normal,
    NormalLogScale,
    Product,
    Record,
    Transformed,
    Uniform,
    VonMises,
)
from .shared import Read, Reader, Same, fields, independent, point, positive_diagonal


def _form(d: Any) -> tuple[Any, str]:
    return (d._probs, "probs") if d._logits is None else (d._logits, "logits")


def _triangular(d: Any) -> Record:
    if not d._is_lower:
        return MultivariateNormalScale(d.loc, d._scale_tri)
    return MultivariateNormal(d.loc, positive_diagonal(d._scale_tri))


def _joint(d: Any, read: Read) -> Record:
    return Product(dict(enumerate(read(part) for part in d._distributions_leaves)))


def _transformed(d: Any, read: Read) -> Record:
    more = len(d.event_shape) - len(d.distribution.event_shape)
    return Transformed(read(d.distribution), Same(d.bijector), more)


def table(read: Read) -> dict[str, Reader]:
    return {
        "Normal": fields(Normal, "loc", "scale"),
        "LogStddevNormal": fields(NormalLogScale, "loc", "log_scale"),
        "Laplace": fields(Laplace, "loc", "scale"),
        "Logistic": fields(Logistic, "loc", "scale"),
        "Gumbel": fields(Gumbel, "loc", "scale"),
        "VonMises": fields(VonMises, "loc", "concentration"),
        "Gamma": fields(Gamma, "concentration", "rate"),
        "Uniform": fields(Uniform, "low", "high"),
        "Beta": fields(Beta, "alpha", "beta"),
        "Dirichlet": fields(Dirichlet, "concentration"),
        "Bernoulli": lambda d: Bernoulli(d._probs) if d._logits is None else BernoulliLogits(d._logits),
        "Categorical": lambda d: Categorical(*_form(d)),
        "OneHotCategorical": lambda d: Categorical(*_form(d)),
        "Multinomial": lambda d: Multinomial(d.total_count, *_form(d)),
        "MultivariateNormalDiag": lambda d: MultivariateNormalDiag(d.loc, abs(d.scale_diag)),
        "MultivariateNormalTri": _triangular,
        "MultivariateNormalFromBijector": lambda d: MultivariateNormalCovariance(d.loc, d.covariance()),
        "Deterministic": lambda d: point(d.loc, 0),
        "Independent": lambda d: independent(read(d.distribution), d.reinterpreted_batch_ndims),
        "Joint": lambda d: _joint(d, read),
        "Transformed": lambda d: _transformed(d, read),
    }

"""distrax. Its other distributions are TFP's.

distrax keeps some parameters in private attributes, such as `_logits`. The names are those of distrax 0.1.9.
"""

from __future__ import annotations

from typing import Any

from .. import families as f
from ..families import Record
from . import Read, Reader, reads_into
from .shared import categories, draws, either, fields, independents, points, positive_diagonal, transformed


def _given(d: Any) -> tuple[Any, str]:
    return (d._probs, "probs") if d._logits is None else (d._logits, "logits")


@reads_into(f.MultivariateNormal, f.MultivariateNormalScale)
def _triangular(d: Any, read: Read) -> Record:
    if not d._is_lower:
        return f.MultivariateNormalScale(d.loc, d._scale_tri)
    return f.MultivariateNormal(d.loc, positive_diagonal(d._scale_tri))


@reads_into(f.MultivariateNormalDiag)
def _diagonal(d: Any, read: Read) -> Record:
    return f.MultivariateNormalDiag(d.loc, abs(d.scale_diag))


@reads_into(f.MultivariateNormalCovariance)
def _full(d: Any, read: Read) -> Record:
    return f.MultivariateNormalCovariance(d.loc, d.covariance())


@reads_into(f.Product)
def _joint(d: Any, read: Read) -> Record:
    return f.Product(dict(enumerate(map(read, d._distributions_leaves))))


TABLE: dict[str, Reader] = {
    "Normal": fields(f.Normal, "loc", "scale"),
    "LogStddevNormal": fields(f.NormalLogScale, "loc", "log_scale"),
    "Laplace": fields(f.Laplace, "loc", "scale"),
    "Logistic": fields(f.Logistic, "loc", "scale"),
    "Gumbel": fields(f.Gumbel, "loc", "scale"),
    "VonMises": fields(f.VonMises, "loc", "concentration"),
    "Gamma": fields(f.Gamma, "concentration", "rate"),
    "Uniform": fields(f.Uniform, "low", "high"),
    "Beta": fields(f.Beta, "alpha", "beta"),
    "Dirichlet": fields(f.Dirichlet, "concentration"),
    "Bernoulli": either(_given, f.Bernoulli, f.BernoulliLogits),
    "Categorical": categories(_given),
    "OneHotCategorical": categories(_given),
    "Multinomial": draws(_given),
    "MultivariateNormalDiag": _diagonal,
    "MultivariateNormalTri": _triangular,
    "MultivariateNormalFromBijector": _full,
    "Deterministic": points("loc", 0),
    "Independent": independents("distribution", lambda d: d.reinterpreted_batch_ndims),
    "Joint": _joint,
    "Transformed": transformed("distribution", lambda d: (d.bijector,)),
}

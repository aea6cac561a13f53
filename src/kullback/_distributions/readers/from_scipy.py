"""scipy.stats, frozen. A `loc` that moves a support of its own makes the record Shifted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._ops.numpy import cholesky
from .. import families as f
from ..families import Record
from . import Read, Reader, reads_into
from .shared import fields


def _law(family: Any, make: Callable[..., Record] | None = None, *others: Any) -> Reader:
    """How a distribution is made of its shapes, `loc` and `scale`: by `make`, or as the family itself."""
    return Reader((family, *others), make or family)


def _between(made: Callable[[Any], Record], loc: Any, scale: Any) -> Record:
    """The law at `loc`. If the ends of its interval would lose digits there, it is made at 0 and shifted."""
    lost = np.abs(np.subtract(np.subtract(np.add(loc, scale), loc), scale)) > 1e-12 * np.abs(scale)
    return f.Shifted(made(np.zeros_like(np.asarray(loc, float))), loc) if np.any(lost) else made(loc)


def _uniform(loc: Any, scale: Any) -> Record:
    return _between(lambda at: f.Uniform(at, np.add(at, scale)), loc, scale)


def _truncated(a: Any, b: Any, loc: Any, scale: Any) -> Record:
    low, high = np.multiply(a, scale), np.multiply(b, scale)
    return _between(lambda at: f.TruncatedNormal(at, scale, np.add(at, low), np.add(at, high)), loc, scale)


# The function takes (shapes, loc, scale).
_PLACED: dict[str, Reader] = {
    "norm": _law(f.Normal),
    "laplace": _law(f.Laplace),
    "cauchy": _law(f.Cauchy),
    "gumbel_r": _law(f.Gumbel),
    "logistic": _law(f.Logistic),
    "moyal": _law(f.Moyal),
    "gennorm": _law(f.GeneralizedNormal, lambda beta, loc, scale: f.GeneralizedNormal(loc, scale, beta)),
    "uniform": _law(f.Uniform, _uniform, f.Shifted),
    "truncnorm": _law(f.TruncatedNormal, _truncated, f.Shifted),
}
# The function takes (shapes, scale), and `loc` is a shift.
_SHIFTED: dict[str, Reader] = {
    "expon": _law(f.GammaScale, lambda scale: f.GammaScale(np.ones_like(np.asarray(scale, float)), scale)),
    "gamma": _law(f.GammaScale),
    "erlang": _law(f.GammaScale),
    "invgamma": _law(f.InverseGamma),
    "halfnorm": _law(f.HalfNormal),
    "halfcauchy": _law(f.HalfCauchy),
    "weibull_min": _law(f.Weibull),
    "invweibull": _law(f.InverseWeibull),
    "pareto": _law(f.Pareto),
    "lognorm": _law(f.LogNormal, lambda s, scale: f.LogNormal(np.log(scale), s)),
    "invgauss": _law(f.InverseGaussian, lambda mu, scale: f.InverseGaussian(np.multiply(mu, scale), scale)),
    "rayleigh": _law(f.Rayleigh),
    "maxwell": _law(f.Maxwell),
    "nakagami": _law(f.Nakagami, lambda nu, scale: f.Nakagami(nu, np.square(scale))),
    "gengamma": _law(f.GeneralizedGamma),
    "levy": _law(f.Levy),
}
# The function takes (shapes, loc), and `scale` must be 1.
_CIRCULAR: dict[str, Reader] = {"vonmises": _law(f.VonMises, lambda kappa, loc: f.VonMises(loc, kappa))}
# The function takes the shapes alone. `loc` is a shift, and `scale` must be 1.
_STANDARD: dict[str, Reader] = {
    "beta": _law(f.Beta),
    "chi2": _law(f.Chi2),
    "chi": _law(f.GeneralizedGamma, lambda df: f.GeneralizedGamma(np.multiply(df, 0.5), 2.0, math.sqrt(2.0))),
    "bernoulli": _law(f.Bernoulli),
    "binom": _law(f.Binomial),
    "poisson": _law(f.Poisson),
    "geom": _law(f.Shifted, lambda p: f.Shifted(f.Geometric(p), 1.0), f.Geometric),
    # SciPy counts failures before n successes of probability p.
    "nbinom": _law(f.NegativeBinomial, lambda n, p: f.NegativeBinomial(n, np.subtract(1.0, p))),
}


def univariate(d: Any, read: Read) -> Record:
    name = d.dist.name
    shapes, loc, scale = d.dist._parse_args(*d.args, **d.kwds)
    if name in _PLACED:
        return _PLACED[name].make(*shapes, loc, scale)
    if name in _CIRCULAR and np.all(np.equal(scale, 1)):
        return _CIRCULAR[name].make(*shapes, loc)
    if name in _SHIFTED:
        return _shift(_SHIFTED[name].make(*shapes, scale), loc)
    if name in _STANDARD and np.all(np.equal(scale, 1)):
        return _shift(_STANDARD[name].make(*shapes), loc)
    raise TypeError(f"{name} with args={d.args} and {d.kwds} is not a family kullback knows")


def _shift(base: Record, loc: Any) -> Record:
    if np.all(np.equal(loc, 0)):
        return base
    return f.Shifted(base.base, np.add(base.loc, loc)) if isinstance(base, f.Shifted) else f.Shifted(base, loc)


def _lower(x: Any) -> Any:
    return cholesky(np.asarray(x, float))


def refuse_singular(d: Any) -> None:
    """With `allow_singular`, a multivariate normal or t lies in a subspace. SciPy's density is one there."""
    rank = getattr(getattr(d, "cov_object", None) or getattr(d, "shape_info", None), "rank", None)
    if rank is not None and rank < d.dim:
        raise ValueError(
            f"{type(d).__name__.removesuffix('_frozen')} has a singular matrix (rank {rank} of {d.dim}): it has no density; "
            f"drop the coordinates that the others determine, from both distributions"
        )


@reads_into(f.MultivariateNormalCovariance)
def _normal(d: Any, read: Read) -> Record:
    refuse_singular(d)
    return f.MultivariateNormalCovariance(d.mean, d.cov_object.covariance)


@reads_into(f.MatrixNormal)
def _matrix_normal(d: Any, read: Read) -> Record:
    return f.MatrixNormal(d.mean, _lower(d.rowcov), _lower(d.colcov))


def _wishart(family: Any) -> Reader:
    return Reader((family,), lambda d, read: family(d.df, _lower(d.scale)))


MULTIVARIATE: dict[str, Reader] = {
    "multivariate_normal_frozen": _normal,
    "dirichlet_frozen": fields(f.Dirichlet, "alpha"),
    "wishart_frozen": _wishart(f.Wishart),
    "invwishart_frozen": _wishart(f.InverseWishart),
    "multinomial_frozen": fields(f.Multinomial, "n", "p"),
    "matrix_normal_frozen": _matrix_normal,
    "vonmises_fisher_frozen": fields(f.VonMisesFisher, "mu", "kappa"),
}

# All readers above, by the name of the distribution or of its frozen class.
TABLE: dict[str, Reader] = {**_PLACED, **_SHIFTED, **_CIRCULAR, **_STANDARD, **MULTIVARIATE}

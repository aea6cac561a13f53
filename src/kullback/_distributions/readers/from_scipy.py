"""scipy.stats, frozen. What is shifted by `loc` is read as such."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._ops.numpy import cholesky
from ..families import (
    Bernoulli,
    Beta,
    Binomial,
    Cauchy,
    Chi2,
    Dirichlet,
    GammaScale,
    GeneralizedGamma,
    GeneralizedNormal,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    InverseGaussian,
    InverseWeibull,
    InverseWishart,
    Laplace,
    Levy,
    Logistic,
    LogNormal,
    MatrixNormal,
    Maxwell,
    Moyal,
    Multinomial,
    MultivariateNormalCovariance,
    Nakagami,
    NegativeBinomial,
    Normal,
    Pareto,
    Poisson,
    Rayleigh,
    Record,
    Shifted,
    TruncatedNormal,
    Uniform,
    VonMises,
    VonMisesFisher,
    Weibull,
    Wishart,
)

# (shapes, loc, scale) -> record, and (shapes, scale) -> record where loc is a shift.
_PLACED: dict[str, Callable[..., Record]] = {
    "norm": lambda loc, scale: Normal(loc, scale),
    "laplace": lambda loc, scale: Laplace(loc, scale),
    "cauchy": lambda loc, scale: Cauchy(loc, scale),
    "gumbel_r": lambda loc, scale: Gumbel(loc, scale),
    "logistic": lambda loc, scale: Logistic(loc, scale),
    "moyal": lambda loc, scale: Moyal(loc, scale),
    "gennorm": lambda beta, loc, scale: GeneralizedNormal(loc, scale, beta),
    "uniform": lambda loc, scale: _between(lambda at: Uniform(at, np.add(at, scale)), loc, scale),
    "truncnorm": lambda a, b, loc, scale: _between(
        lambda at: TruncatedNormal(at, scale, np.add(at, np.multiply(a, scale)), np.add(at, np.multiply(b, scale))), loc, scale
    ),
}
_SHIFTED: dict[str, Callable[..., Record]] = {
    "expon": lambda scale: GammaScale(np.ones_like(np.asarray(scale, float)), scale),
    "gamma": lambda a, scale: GammaScale(a, scale),
    "erlang": lambda a, scale: GammaScale(a, scale),
    "invgamma": lambda a, scale: InverseGamma(a, scale),
    "halfnorm": lambda scale: HalfNormal(scale),
    "halfcauchy": lambda scale: HalfCauchy(scale),
    "weibull_min": lambda c, scale: Weibull(c, scale),
    "invweibull": lambda c, scale: InverseWeibull(c, scale),
    "pareto": lambda b, scale: Pareto(b, scale),
    "lognorm": lambda s, scale: LogNormal(np.log(scale), s),
    "invgauss": lambda mu, scale: InverseGaussian(np.multiply(mu, scale), scale),
    "rayleigh": lambda scale: Rayleigh(scale),
    "maxwell": lambda scale: Maxwell(scale),
    "nakagami": lambda nu, scale: Nakagami(nu, np.square(scale)),
    "gengamma": lambda a, c, scale: GeneralizedGamma(a, c, scale),
    "levy": lambda scale: Levy(scale),
}
# Where scale, too, must be that of the family.
_STANDARD: dict[str, Callable[..., Record]] = {
    "beta": lambda a, b: Beta(a, b),
    "chi2": lambda df: Chi2(df),
    "chi": lambda df: GeneralizedGamma(np.multiply(df, 0.5), 2.0, math.sqrt(2.0)),
    "bernoulli": lambda p: Bernoulli(p),
    "binom": lambda n, p: Binomial(n, p),
    "poisson": lambda mu: Poisson(mu),
    "geom": lambda p: Shifted(Geometric(p), 1.0),
    # SciPy counts failures before n successes of probability p.
    "nbinom": lambda n, p: NegativeBinomial(n, np.subtract(1.0, p)),
}


def _between(made: Callable[[Any], Record], loc: Any, scale: Any) -> Record:
    """Made at `loc`, unless the ends of an interval would lose digits there: then made at 0, and shifted."""
    lost = np.abs(np.subtract(np.subtract(np.add(loc, scale), loc), scale)) > 1e-12 * np.abs(scale)
    return Shifted(made(np.zeros_like(np.asarray(loc, float))), loc) if np.any(lost) else made(loc)


def univariate(d: Any) -> Record:
    name = d.dist.name
    shapes, loc, scale = d.dist._parse_args(*d.args, **d.kwds)
    if name in _PLACED:
        return _PLACED[name](*shapes, loc, scale)
    if name == "vonmises" and np.all(np.equal(scale, 1)):
        return VonMises(loc, *shapes)
    if name in _SHIFTED:
        return _shift(_SHIFTED[name](*shapes, scale), loc)
    if name in _STANDARD and np.all(np.equal(scale, 1)):
        return _shift(_STANDARD[name](*shapes), loc)
    raise TypeError(f"{name} with args={d.args} and {d.kwds} is not a family kullback knows")


def _shift(base: Record, loc: Any) -> Record:
    if np.all(np.equal(loc, 0)):
        return base
    return Shifted(base.base, np.add(base.loc, loc)) if isinstance(base, Shifted) else Shifted(base, loc)


def _lower(x: Any) -> Any:
    return cholesky(np.asarray(x, float))


def refuse_singular(d: Any) -> None:
    """A multivariate normal or t with `allow_singular` lies in a subspace, where SciPy's density is one of that subspace."""
    rank = getattr(getattr(d, "cov_object", None) or getattr(d, "shape_info", None), "rank", None)
    if rank is not None and rank < d.dim:
        raise ValueError(
            f"{type(d).__name__.removesuffix('_frozen')} has a singular matrix (rank {rank} of {d.dim}): it has no density; "
            f"drop the coordinates that the others determine, from both distributions"
        )


def _normal(d: Any) -> Record:
    refuse_singular(d)
    return MultivariateNormalCovariance(d.mean, d.cov_object.covariance)


MULTIVARIATE: dict[str, Callable[[Any], Record]] = {
    "multivariate_normal_frozen": _normal,
    "dirichlet_frozen": lambda d: Dirichlet(d.alpha),
    "wishart_frozen": lambda d: Wishart(d.df, _lower(d.scale)),
    "invwishart_frozen": lambda d: InverseWishart(d.df, _lower(d.scale)),
    "multinomial_frozen": lambda d: Multinomial(d.n, d.p),
    "matrix_normal_frozen": lambda d: MatrixNormal(d.mean, _lower(d.rowcov), _lower(d.colcov)),
    "vonmises_fisher_frozen": lambda d: VonMisesFisher(d.mu, d.kappa),
}

# Everything above, by the name of the distribution or of its frozen class.
TABLE: dict[str, Callable[..., Record]] = {**_PLACED, **_SHIFTED, **_STANDARD, **MULTIVARIATE}

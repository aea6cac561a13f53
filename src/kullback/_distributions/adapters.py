"""Other libraries' distribution objects, read into records. Parameters are taken as the object stores them.

A class is known by its name and the library it comes from, so no library needs to be imported for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._ops import ops_of
from .families import (
    Bernoulli,
    BernoulliLogits,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Chi2,
    Dirichlet,
    Exponential,
    Gamma,
    GammaScale,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    InverseGamma,
    InverseGaussian,
    Laplace,
    LogNormal,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Pareto,
    Poisson,
    Record,
    Uniform,
    Weibull,
)

Reader = Callable[[Any], Record]


def _fields(family: Any, *names: str) -> Reader:
    return lambda d: family(*(getattr(d, name) for name in names))


def _torch_probs_or_logits(d: Any) -> str:
    # The one that was given is an attribute; the other is worked out when asked for.
    return "probs" if "probs" in d.__dict__ else "logits"


def _torch_bernoulli(d: Any) -> Record:
    return Bernoulli(d.probs) if _torch_probs_or_logits(d) == "probs" else BernoulliLogits(d.logits)


def _torch_categorical(d: Any) -> Record:
    d = getattr(d, "_categorical", d)  # OneHotCategorical holds one
    form = _torch_probs_or_logits(d)
    return Categorical(getattr(d, form), form)


_TORCH: dict[str, Reader] = {
    "Normal": _fields(Normal, "loc", "scale"),
    "Laplace": _fields(Laplace, "loc", "scale"),
    "Cauchy": _fields(Cauchy, "loc", "scale"),
    "Gumbel": _fields(Gumbel, "loc", "scale"),
    "LogNormal": _fields(LogNormal, "loc", "scale"),
    "HalfNormal": _fields(HalfNormal, "scale"),
    "HalfCauchy": _fields(HalfCauchy, "scale"),
    "Gamma": _fields(Gamma, "concentration", "rate"),
    "Chi2": _fields(Chi2, "df"),
    "InverseGamma": lambda d: InverseGamma(d.concentration, d.rate),
    "Exponential": _fields(Exponential, "rate"),
    "Weibull": _fields(Weibull, "concentration", "scale"),
    "Pareto": _fields(Pareto, "alpha", "scale"),
    "Uniform": _fields(Uniform, "low", "high"),
    "Beta": _fields(Beta, "concentration1", "concentration0"),
    "Dirichlet": _fields(Dirichlet, "concentration"),
    "Bernoulli": _torch_bernoulli,
    "Binomial": _fields(Binomial, "total_count", "probs"),
    "Geometric": _fields(Geometric, "probs"),
    "NegativeBinomial": _fields(NegativeBinomial, "total_count", "probs"),
    "Poisson": _fields(Poisson, "rate"),
    "Categorical": _torch_categorical,
    "OneHotCategorical": _torch_categorical,
    "MultivariateNormal": lambda d: MultivariateNormal(d.loc, d._unbroadcasted_scale_tril),
    "Independent": lambda d: Independent(read(d.base_dist), d.reinterpreted_batch_ndims),
}

_NUMPYRO: dict[str, Reader] = {
    "Normal": _fields(Normal, "loc", "scale"),
    "Laplace": _fields(Laplace, "loc", "scale"),
    "Cauchy": _fields(Cauchy, "loc", "scale"),
    "Gumbel": _fields(Gumbel, "loc", "scale"),
    "LogNormal": _fields(LogNormal, "loc", "scale"),
    "HalfNormal": _fields(HalfNormal, "scale"),
    "HalfCauchy": _fields(HalfCauchy, "scale"),
    "Gamma": _fields(Gamma, "concentration", "rate"),
    "Chi2": _fields(Chi2, "df"),
    "InverseGamma": lambda d: InverseGamma(d.concentration, d.rate),
    "Exponential": _fields(Exponential, "rate"),
    "Weibull": _fields(Weibull, "concentration", "scale"),
    "Pareto": _fields(Pareto, "alpha", "scale"),
    "Uniform": _fields(Uniform, "low", "high"),
    "Beta": _fields(Beta, "concentration1", "concentration0"),
    "Dirichlet": _fields(Dirichlet, "concentration"),
    "BernoulliProbs": _fields(Bernoulli, "probs"),
    "BernoulliLogits": _fields(BernoulliLogits, "logits"),
    "BinomialProbs": _fields(Binomial, "total_count", "probs"),
    "GeometricProbs": _fields(Geometric, "probs"),
    "Poisson": _fields(Poisson, "rate"),
    "CategoricalProbs": lambda d: Categorical(d.probs, "probs"),
    "CategoricalLogits": lambda d: Categorical(d.logits, "logits"),
    "MultivariateNormal": _fields(MultivariateNormal, "loc", "scale_tril"),
    "Independent": lambda d: Independent(read(d.base_dist), d.reinterpreted_batch_ndims),
}


def _tfp_categorical(d: Any) -> Record:
    # Asked of the parameters: `d.probs` is worked out from logits.
    logits = d.parameters.get("logits")
    return Categorical(d.parameters["probs"], "probs") if logits is None else Categorical(logits, "logits")


def _tfp_bernoulli(d: Any) -> Record:
    logits = d.parameters.get("logits")
    return Bernoulli(d.parameters["probs"]) if logits is None else BernoulliLogits(logits)


_TFP: dict[str, Reader] = {
    "Normal": _fields(Normal, "loc", "scale"),
    "Laplace": _fields(Laplace, "loc", "scale"),
    "Cauchy": _fields(Cauchy, "loc", "scale"),
    "Gumbel": _fields(Gumbel, "loc", "scale"),
    "LogNormal": _fields(LogNormal, "loc", "scale"),
    "HalfNormal": _fields(HalfNormal, "scale"),
    "Gamma": _fields(Gamma, "concentration", "rate"),
    "Chi2": _fields(Chi2, "df"),
    "InverseGamma": _fields(InverseGamma, "concentration", "scale"),
    "InverseGaussian": _fields(InverseGaussian, "loc", "concentration"),
    "Exponential": _fields(Exponential, "rate"),
    "Weibull": _fields(Weibull, "concentration", "scale"),
    "Pareto": _fields(Pareto, "concentration", "scale"),
    "Uniform": _fields(Uniform, "low", "high"),
    "Beta": _fields(Beta, "concentration1", "concentration0"),
    "Dirichlet": _fields(Dirichlet, "concentration"),
    "Bernoulli": _tfp_bernoulli,
    "Poisson": _fields(Poisson, "rate"),
    "Categorical": _tfp_categorical,
    "OneHotCategorical": _tfp_categorical,
    "Independent": lambda d: Independent(read(d.distribution), int(d.reinterpreted_batch_ndims)),
}


def _distrax_categorical(d: Any) -> Record:
    return Categorical(d._probs, "probs") if d._logits is None else Categorical(d._logits, "logits")


_DISTRAX: dict[str, Reader] = {
    "Normal": _fields(Normal, "loc", "scale"),
    "Laplace": _fields(Laplace, "loc", "scale"),
    "Gumbel": _fields(Gumbel, "loc", "scale"),
    "Gamma": _fields(Gamma, "concentration", "rate"),
    "Uniform": _fields(Uniform, "low", "high"),
    "Beta": _fields(Beta, "alpha", "beta"),
    "Dirichlet": _fields(Dirichlet, "concentration"),
    "Bernoulli": lambda d: Bernoulli(d._probs) if d._logits is None else BernoulliLogits(d._logits),
    "Categorical": _distrax_categorical,
    "OneHotCategorical": _distrax_categorical,
    "Independent": lambda d: Independent(read(d.distribution), d.reinterpreted_batch_ndims),
}

# (shapes, loc, scale) -> record
_SCIPY: dict[str, Callable[..., Record | None]] = {
    "norm": lambda loc, scale: Normal(loc, scale),
    "laplace": lambda loc, scale: Laplace(loc, scale),
    "cauchy": lambda loc, scale: Cauchy(loc, scale),
    "gumbel_r": lambda loc, scale: Gumbel(loc, scale),
    "uniform": lambda loc, scale: Uniform(loc, loc + scale),
    "expon": lambda loc, scale: GammaScale(1.0, scale) if loc == 0 else None,
    "gamma": lambda a, loc, scale: GammaScale(a, scale) if loc == 0 else None,
    "invgamma": lambda a, loc, scale: InverseGamma(a, scale) if loc == 0 else None,
    "halfnorm": lambda loc, scale: HalfNormal(scale) if loc == 0 else None,
    "halfcauchy": lambda loc, scale: HalfCauchy(scale) if loc == 0 else None,
    "weibull_min": lambda c, loc, scale: Weibull(c, scale) if loc == 0 else None,
    "pareto": lambda b, loc, scale: Pareto(b, scale) if loc == 0 else None,
    "beta": lambda a, b, loc, scale: Beta(a, b) if (loc, scale) == (0, 1) else None,
    "bernoulli": lambda p, loc, scale: Bernoulli(p) if loc == 0 else None,
    "binom": lambda n, p, loc, scale: Binomial(n, p) if loc == 0 else None,
    "poisson": lambda mu, loc, scale: Poisson(mu) if loc == 0 else None,
}


def _scipy(d: Any) -> Record:
    shapes, loc, scale = d.dist._parse_args(*d.args, **d.kwds)
    made = _SCIPY[d.dist.name](*shapes, loc, scale) if d.dist.name in _SCIPY else None
    if made is None:
        raise TypeError(f"{name_of(d)} with args={d.args} and {d.kwds} is not a family kullback knows")
    return made


_LIBRARIES = {
    "torch.distributions": _TORCH,
    "numpyro.distributions": _NUMPYRO,
    "tensorflow_probability": _TFP,
    "distrax": _DISTRAX,
}
_readers: dict[type, Reader] = {}


def _find_reader(kind: type) -> Reader | None:
    for cls in kind.__mro__:
        for prefix, readers in _LIBRARIES.items():
            if cls.__module__.startswith(prefix) and cls.__name__ in readers:
                return readers[cls.__name__]
        if cls.__module__.startswith("scipy.stats") and cls.__name__ == "rv_frozen":
            return _scipy
    return None


def is_distribution(x: Any) -> bool:
    """Is it an object of a library, or a record, and not an array, a number, a list or a mapping?"""
    if isinstance(x, Record):
        return True
    if x is None or isinstance(x, (bool, int, float, list, tuple, dict, np.ndarray)):
        return False
    if "torch" in sys.modules:
        import torch  # torch.compile follows this, and none of what is below

        if isinstance(x, torch.Tensor):
            return False
        if isinstance(x, torch.distributions.Distribution):
            return True
    modules = (*_LIBRARIES, "scipy.stats")
    return ops_of(x) is None and any(cls.__module__.startswith(modules) for cls in type(x).__mro__)


def name_of(d: Any) -> str:
    return d.dist.name if hasattr(d, "dist") else type(d).__name__


def read(d: Any) -> Record:
    if isinstance(d, Record):
        return d
    kind = type(d)
    if kind not in _readers:
        found = _find_reader(kind)
        if found is None:
            raise TypeError(f"{kind.__module__}.{kind.__name__} is not a family kullback knows")
        _readers[kind] = found
    return _readers[kind](d)

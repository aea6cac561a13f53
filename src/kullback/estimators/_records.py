"""The families of `kullback.distributions` as laws: mostly SciPy's, and how fast counts fall off."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._distributions.families import Record
from ._law import CategoricalLaw, KumaraswamyLaw, Law, NormalVectorLaw, ScipyLaw, Tail

Array = Any

# family -> frozen distribution of scipy.stats, of the parameters in their order
_SCIPY: dict[str, Any] = {
    "Normal": lambda s, loc, scale: s.norm(loc, scale),
    "Laplace": lambda s, loc, scale: s.laplace(loc, scale),
    "Cauchy": lambda s, loc, scale: s.cauchy(loc, scale),
    "Gumbel": lambda s, loc, scale: s.gumbel_r(loc, scale),
    "Logistic": lambda s, loc, scale: s.logistic(loc, scale),
    "Gamma": lambda s, a, rate: s.gamma(a, scale=1.0 / rate),
    "GammaScale": lambda s, a, scale: s.gamma(a, scale=scale),
    "InverseGamma": lambda s, a, scale: s.invgamma(a, scale=scale),
    "Exponential": lambda s, rate: s.expon(scale=1.0 / rate),
    "Chi2": lambda s, df: s.chi2(df),
    "HalfNormal": lambda s, scale: s.halfnorm(scale=scale),
    "HalfCauchy": lambda s, scale: s.halfcauchy(scale=scale),
    "LogNormal": lambda s, loc, scale: s.lognorm(scale, scale=np.exp(loc)),
    "Weibull": lambda s, k, scale: s.weibull_min(k, scale=scale),
    "Pareto": lambda s, a, scale: s.pareto(a, scale=scale),
    "InverseGaussian": lambda s, loc, k: s.invgauss(loc / k, scale=k),
    "Uniform": lambda s, low, high: s.uniform(low, high - low),
    "Beta": lambda s, a, b: s.beta(a, b),
    "Bernoulli": lambda s, p: s.bernoulli(p),
    "BernoulliLogits": lambda s, a: s.bernoulli(1.0 / (1.0 + np.exp(-a))),
    "Binomial": lambda s, n, p: s.binom(n, p),
    "Geometric": lambda s, p: s.geom(p, loc=-1),
    "NegativeBinomial": lambda s, n, p: s.nbinom(n, 1.0 - p),
    "Poisson": lambda s, rate: s.poisson(rate),
}
_CORNERS = {"Laplace": 0}
_COUNTS = ("Bernoulli", "BernoulliLogits", "Binomial", "Geometric", "NegativeBinomial", "Poisson")


def numeric_families() -> dict[str, str]:
    """How two of the families of numbers are computed where there is no closed form: two of counts, two of the line."""
    return {name: "sum" if name in _COUNTS else "quadrature" for name in _SCIPY}


def as_law(record: Record, numbers: dict[str, Array]) -> Law | None:
    """The law, or None for a family that is not listed here."""
    name = type(record).__name__
    values = list(numbers.values())
    if name == "Categorical":
        with np.errstate(divide="ignore"):
            logs = values[0] if record.form in ("logits", "log_probs") else np.log(values[0])  # type: ignore[attr-defined]
        return CategoricalLaw(logs)
    if name == "MultivariateNormal" and list(numbers) == ["loc", "scale_tril"]:
        return NormalVectorLaw(*values)
    if name == "Kumaraswamy" and len(values) == 2:
        return KumaraswamyLaw(*values)
    if name not in _SCIPY:
        return None
    import scipy.stats

    frozen = _SCIPY[name](scipy.stats, *values)
    corners = values[_CORNERS[name]][None] if name in _CORNERS else None
    return ScipyLaw(frozen, name, _TAILS[name](*values) if name in _TAILS else None, corners)


# --- how counts fall off ----------------------------------------------------------------------------------------------------------------
# The step p(k+1)/p(k) of each family in closed form; `ratio` bounds it from above from k on, `steep` its logarithm in size.


def _poisson(rate: Array) -> Tail:
    # λ/(k+1), which falls: |log| ≤ |log λ| + log(k+1).
    with np.errstate(divide="ignore"):
        logs = np.abs(np.log(rate))
    return Tail(lambda k: rate / (k + 1.0), lambda k: (np.where(rate > 0, logs, 0.0), 1.0))


def _geometric(p: Array) -> Tail:
    with np.errstate(divide="ignore"):
        logs = -np.log1p(-p)
    return Tail(lambda k: 1.0 - p, lambda k: (np.where(p < 1, logs, 0.0), 0.0))


def _negative_binomial(n: Array, p: Array) -> Tail:
    # p (k+n)/(k+1), which goes to p: from above for n > 1, from below for n < 1, when it is ≥ p n/(k+1)·… ≥ p min(1, n).
    with np.errstate(divide="ignore"):
        logs = -np.log(p)

    def steep(k: float) -> tuple[Array, float]:
        return np.where(p > 0, logs, 0.0) + np.abs(np.log((k + n) / (k + 1.0))), 0.0

    return Tail(lambda k: p * np.maximum(1.0, (k + n) / (k + 1.0)), steep)


_TAILS: dict[str, Any] = {"Poisson": _poisson, "Geometric": _geometric, "NegativeBinomial": _negative_binomial}


def scipy_tail(frozen: Any) -> Tail | None:
    shapes, loc, _ = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
    values = [np.asarray(x, float) for x in shapes]
    if frozen.dist.name == "poisson" and np.all(loc == 0):
        return _poisson(*values)
    if frozen.dist.name == "nbinom" and np.all(loc == 0):
        return _negative_binomial(values[0], 1.0 - values[1])
    if frozen.dist.name == "geom":
        return _geometric(*values)
    return None


def mixture_tail(tails: list[Tail]) -> Tail:
    """A mixture's step is a weighted mean of its components' (the weights are their shares of p(k)), so the extremes bound it."""

    def steep(k: float) -> tuple[Array, float]:
        each = [t.steep(k) for t in tails]
        first = each[0][0]
        for a, _ in each[1:]:
            first = np.maximum(first, a)
        return first, max(b for _, b in each)

    def ratio(k: float) -> Array:
        return np.max(np.stack(np.broadcast_arrays(*(t.ratio(k) for t in tails))), axis=0)

    return Tail(ratio, steep)

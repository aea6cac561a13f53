"""The families of `kullback.distributions` as laws: mostly SciPy's, and how fast counts fall off."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, gammaln, log_expit, log_ndtr

from .._distributions.families import Record
from ._law import CategoricalLaw, KumaraswamyLaw, Law, NormalVectorLaw, ScipyLaw, Tail
from ._line_laws import LogitNormalLaw, NegatedLaw, TiltedLaw, VonMisesLaw

Array = Any

# family -> frozen distribution of scipy.stats, of the parameters in their order
_SCIPY: dict[str, Any] = {
    "Normal": lambda s, loc, scale: s.norm(loc, scale),
    "Laplace": lambda s, loc, scale: s.laplace(loc, scale),
    "Cauchy": lambda s, loc, scale: s.cauchy(loc, scale),
    "Gumbel": lambda s, loc, scale: s.gumbel_r(loc, scale),
    "Logistic": lambda s, loc, scale: s.logistic(loc, scale),
    "Gamma": lambda s, a, rate: s.gamma(a, scale=1.0 / rate),
    "GammaLog": lambda s, a, log_rate: s.gamma(a, scale=np.exp(-log_rate)),
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
    "Moyal": lambda s, loc, scale: s.moyal(loc, scale),
    "ExpGamma": lambda s, a, rate: s.loggamma(a, loc=-np.log(rate)),
    "ExpGammaLog": lambda s, a, log_rate: s.loggamma(a, loc=-log_rate),
    "GeneralizedNormal": lambda s, loc, scale, power: s.gennorm(power, loc, scale),
    "NormalLogScale": lambda s, loc, log_scale: s.norm(loc, np.exp(log_scale)),
    "GeneralizedGamma": lambda s, a, power, scale: s.gengamma(a, power, scale=scale),
    "Chi": lambda s, df: s.chi(df),
    "Rayleigh": lambda s, scale: s.rayleigh(scale=scale),
    "Maxwell": lambda s, scale: s.maxwell(scale=scale),
    "Nakagami": lambda s, a, spread: s.nakagami(a, scale=np.sqrt(spread)),
    "InverseWeibull": lambda s, k, scale: s.invweibull(k, scale=scale),
    "Levy": lambda s, scale: s.levy(scale=scale),
    "TruncatedNormal": lambda s, loc, scale, low, high: s.truncnorm((low - loc) / scale, (high - loc) / scale, loc, scale),
    "Bernoulli": lambda s, p: s.bernoulli(p),
    "BernoulliLogits": lambda s, a: s.bernoulli(expit(a)),
    "ProbitBernoulli": lambda s, z: s.bernoulli(s.norm.cdf(z)),
    "Binomial": lambda s, n, p: s.binom(_whole(n), p),
    "BinomialLogits": lambda s, n, a: s.binom(_whole(n), expit(a)),
    "Geometric": lambda s, p: s.geom(p, loc=-1),
    "GeometricLogits": lambda s, a: s.geom(expit(a), loc=-1),
    "NegativeBinomial": lambda s, n, p: s.nbinom(n, 1.0 - p),
    "NegativeBinomialLogits": lambda s, n, a: s.nbinom(n, expit(-a)),
    "Poisson": lambda s, rate: s.poisson(rate),
    "PoissonLog": lambda s, log_rate: s.poisson(np.exp(log_rate)),
}


def _whole(n: Array) -> Array:
    """Integers, which NumPy's sampler insists on; numbers of trials that are none stay what they are, and have no law."""
    return n.astype(np.int64) if np.all(n == np.floor(n)) and np.all(np.abs(n) < 2.0**62) else n


# Where a density has a corner, or is infinite: the parameter of that place in the order.
_CORNERS = {"Laplace": 0, "GeneralizedNormal": 0}
_COUNTS = (
    "Bernoulli", "BernoulliLogits", "ProbitBernoulli", "Binomial", "BinomialLogits", "Geometric", "GeometricLogits", "NegativeBinomial",
    "NegativeBinomialLogits", "Poisson", "PoissonLog",
)  # fmt: skip
# SciPy has them by probabilities, which are 1 long before the logarithm of the rest is lost: logs of success and failure instead.
_LOG_MASS: dict[str, Any] = {
    "BernoulliLogits": lambda k, a: k * log_expit(a) + (1.0 - k) * log_expit(-a),
    "ProbitBernoulli": lambda k, z: k * log_ndtr(z) + (1.0 - k) * log_ndtr(-z),
    "BinomialLogits": lambda k, n, a: gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * log_expit(a) + (n - k) * log_expit(-a),
    "GeometricLogits": lambda k, a: log_expit(a) + k * log_expit(-a),
    "NegativeBinomialLogits": lambda k, n, a: gammaln(k + n) - gammaln(k + 1) - gammaln(n) + k * log_expit(a) + n * log_expit(-a),
}
# Not SciPy's: family -> law of the parameters in their order.
_OWN: dict[str, Any] = {
    "Kumaraswamy": KumaraswamyLaw,
    "LogitNormal": lambda loc, scale: LogitNormalLaw(_scipy_law("Normal", [loc, scale])),
    "ExpInverseGamma": lambda a, scale: NegatedLaw(_scipy_law("ExpGamma", [a, scale])),
    "ExpInverseGammaLog": lambda a, log_scale: NegatedLaw(_scipy_law("ExpGammaLog", [a, log_scale])),
    "ContinuousBernoulli": lambda p: TiltedLaw(np.log(p) - np.log1p(-p)),
    "ContinuousBernoulliLogits": lambda a: TiltedLaw(a),
    "VonMises": lambda loc, k: VonMisesLaw(loc, k),
}


def numeric_families() -> dict[str, str]:
    """How two of the families of numbers are computed where there is no closed form: two of counts, two of the line."""
    return {name: "sum" if name in _COUNTS else "quadrature" for name in (*_SCIPY, *_OWN)}


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
    if name in ("OrderedLogistic", "StoppingRatioLogistic"):
        return CategoricalLaw(_category_logs(record, numbers))
    if name in _OWN:
        made: Law = _OWN[name](*values)
        made.name = name
        return made
    return _scipy_law(name, values) if name in _SCIPY else None


def _scipy_law(name: str, values: list[Array]) -> ScipyLaw:
    import scipy.stats

    with np.errstate(all="ignore"):
        frozen = _SCIPY[name](scipy.stats, *values)
        tail = _TAILS[name](*values) if name in _TAILS else None
    corners = values[_CORNERS[name]][None] if name in _CORNERS else None
    law = ScipyLaw(frozen, name, tail, corners)
    if name in _LOG_MASS:
        law.log_mass = lambda k: _LOG_MASS[name](k, *values)
    return law


def _category_logs(record: Record, numbers: dict[str, Array]) -> Array:
    from .._distributions.closed.categories import ordered_logs, stopping_logs
    from .._ops import numpy as numpy_ops

    made = record.with_parameters(numbers.values())
    return (ordered_logs if type(record).__name__ == "OrderedLogistic" else stopping_logs)(numpy_ops, made)


# --- how counts fall off ----------------------------------------------------------------------------------------------------------------
# The step p(k+1)/p(k) of each family in closed form; `ratio` bounds it from above from k on, `steep` its logarithm in size.


def _poisson(rate: Array) -> Tail:
    # λ/(k+1), which falls: |log| ≤ |log λ| + log(k+1).
    with np.errstate(divide="ignore"):
        logs = np.abs(np.log(rate))
    return Tail(lambda k: rate / (k + 1.0), lambda k: (np.where(rate > 0, logs, 0.0), 1.0))


def _geometric(p: Array) -> Tail:
    with np.errstate(divide="ignore"):
        return _geometric_logs(1.0 - p, -np.log1p(-p))


def _geometric_logs(failure: Array, logs: Array) -> Tail:
    return Tail(lambda k: failure, lambda k: (np.where(failure > 0, logs, 0.0), 0.0))


def _negative_binomial(n: Array, p: Array) -> Tail:
    with np.errstate(divide="ignore"):
        return _negative_binomial_logs(n, p, -np.log(p))


def _negative_binomial_logs(n: Array, p: Array, logs: Array) -> Tail:
    # p (k+n)/(k+1), which goes to p: from above for n > 1, from below for n < 1, when it is ≥ p n/(k+1)·… ≥ p min(1, n).
    def steep(k: float) -> tuple[Array, float]:
        return np.where(p > 0, logs, 0.0) + np.abs(np.log((k + n) / (k + 1.0))), 0.0

    return Tail(lambda k: p * np.maximum(1.0, (k + n) / (k + 1.0)), steep)


_TAILS: dict[str, Any] = {
    "Poisson": _poisson,
    "PoissonLog": lambda log_rate: _poisson(np.exp(log_rate)),
    "Geometric": _geometric,
    "GeometricLogits": lambda a: _geometric_logs(expit(-a), -log_expit(-a)),
    "NegativeBinomial": _negative_binomial,
    "NegativeBinomialLogits": lambda n, a: _negative_binomial_logs(n, expit(a), -log_expit(a)),
}


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

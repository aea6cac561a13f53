"""The oracle of the closed forms, in mpmath; nothing of kullback.

TEXTBOOK holds the formulas as they are published, for 60 digits, which leave enough when they cancel. `kl` is the definition, an integral
or a sum of log-densities: slow, so each formula is held to it once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp

Log = Callable[..., mp.mpf]


class Density(NamedTuple):
    """log f(x, *parameters), and the support as break points for the quadrature (or None: the non-negative integers)."""

    log: Log
    support: Callable[..., list] | None


def _line(loc, scale, *_):
    return [-mp.inf, *(loc + scale * k for k in (-20, -5, 0, 5, 20)), mp.inf]


def _gumbel_line(loc, scale):
    # To the left the density is exp(-exp(...)), which mpmath cannot take to the end.
    return [loc + scale * k for k in (-20, -5, 0, 5, 20, 80)]


def _positive(*_):
    return [0, *(mp.mpf(10) ** k for k in (-6, -3, -1, 0, 1, 2, 4)), mp.inf]


def _unit(*_):
    return [0, mp.mpf("1e-3"), mp.mpf("0.1"), mp.mpf("0.5"), mp.mpf("0.9"), mp.mpf("0.999"), 1]


DENSITIES = {
    "Normal": Density(lambda x, m, s: -(((x - m) / s) ** 2) / 2 - mp.log(s) - mp.log(2 * mp.pi) / 2, _line),
    "Laplace": Density(lambda x, m, s: -abs(x - m) / s - mp.log(2 * s), _line),
    "Cauchy": Density(lambda x, m, s: -mp.log(mp.pi * s * (1 + ((x - m) / s) ** 2)), _line),
    "Gumbel": Density(lambda x, m, s: -(x - m) / s - mp.exp(-(x - m) / s) - mp.log(s), _gumbel_line),
    "LogNormal": Density(lambda x, m, s: -(((mp.log(x) - m) / s) ** 2) / 2 - mp.log(x * s) - mp.log(2 * mp.pi) / 2, _positive),
    "HalfNormal": Density(lambda x, s: -((x / s) ** 2) / 2 + mp.log(2 / (mp.pi * s * s)) / 2, _positive),
    "HalfCauchy": Density(lambda x, s: mp.log(2 / (mp.pi * s * (1 + (x / s) ** 2))), _positive),
    "Gamma": Density(lambda x, a, r: a * mp.log(r) - mp.loggamma(a) + (a - 1) * mp.log(x) - r * x, _positive),
    "GammaScale": Density(lambda x, a, s: -a * mp.log(s) - mp.loggamma(a) + (a - 1) * mp.log(x) - x / s, _positive),
    "InverseGamma": Density(lambda x, a, s: a * mp.log(s) - mp.loggamma(a) - (a + 1) * mp.log(x) - s / x, _positive),
    "Exponential": Density(lambda x, r: mp.log(r) - r * x, _positive),
    "Chi2": Density(lambda x, k: (k / 2 - 1) * mp.log(x) - x / 2 - k / 2 * mp.log(2) - mp.loggamma(k / 2), _positive),
    "Weibull": Density(lambda x, k, s: mp.log(k / s) + (k - 1) * mp.log(x / s) - (x / s) ** k, _positive),
    "Pareto": Density(
        lambda x, a, m: mp.log(a) + a * mp.log(m) - (a + 1) * mp.log(x) if x >= m else -mp.inf,
        lambda a, m: [m, 2 * m, 10 * m, 1000 * m, mp.inf],
    ),
    "InverseGaussian": Density(
        lambda x, m, k: mp.log(k / (2 * mp.pi * x**3)) / 2 - k * (x - m) ** 2 / (2 * m * m * x),
        _positive,
    ),
    "Uniform": Density(lambda x, a, b: -mp.log(b - a) if a <= x <= b else -mp.inf, lambda a, b: [a, b]),
    "Beta": Density(
        lambda x, a, b: (a - 1) * mp.log(x) + (b - 1) * mp.log1p(-x) + mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b), _unit
    ),
    "Bernoulli": Density(lambda k, p: mp.log(p if k == 1 else 1 - p) if k <= 1 and (p if k == 1 else 1 - p) > 0 else -mp.inf, None),
    "BernoulliLogits": Density(lambda k, a: -mp.log1p(mp.exp(-a if k == 1 else a)) if k <= 1 else -mp.inf, None),
    "Binomial": Density(lambda k, n, p: mp.log(mp.binomial(n, k)) + k * mp.log(p) + (n - k) * mp.log1p(-p) if k <= n else -mp.inf, None),
    "Geometric": Density(lambda k, p: mp.log(p) + k * mp.log1p(-p), None),
    "NegativeBinomial": Density(
        lambda k, r, p: mp.loggamma(k + r) - mp.loggamma(k + 1) - mp.loggamma(r) + r * mp.log1p(-p) + k * mp.log(p), None
    ),
    "Poisson": Density(lambda k, m: k * mp.log(m) - m - mp.loggamma(k + 1), None),
}


def exact(parameters) -> list[mp.mpf]:
    return [mp.mpf(float(x)) for x in parameters]


def kl(p: str, p_parameters, q: str, q_parameters) -> mp.mpf:
    """∫ or Σ f (log f - log g), to ten digits."""
    first, second = DENSITIES[p], DENSITIES[q]
    a, b = exact(p_parameters), exact(q_parameters)
    with mp.workdps(15):
        if first.support is None:
            return _sum(first, second, a, b)

        def term(x):
            log_f = first.log(x, *a)
            f = mp.exp(log_f)
            return f * (log_f - second.log(x, *b)) if f > 0 else mp.mpf(0)

        points = first.support(*a)
        # Q may have a corner inside.
        points += [x for x in second.support(*b) if points[0] < x < points[-1]]
        return mp.quad(term, sorted(set(points)))


def textbook(name: str, p, q) -> mp.mpf:
    with mp.workdps(60):
        return +TEXTBOOK[name](*exact(p), *exact(q))


def _log_beta(a, b):
    return mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)


def _normal(m, s, n, t):
    return mp.log(t / s) + (s * s + (m - n) ** 2) / (2 * t * t) - mp.mpf(1) / 2


def _gamma(a, r, b, s):
    return (a - b) * mp.digamma(a) - mp.loggamma(a) + mp.loggamma(b) + b * mp.log(r / s) + a * (s - r) / r


def _bernoulli(p, q):
    return p * mp.log(p / q) + (1 - p) * mp.log((1 - p) / (1 - q))


def _weibull(k, s, l, t):
    return mp.log(k / s**k) - mp.log(l / t**l) + (k - l) * (mp.log(s) - mp.euler / k) + (s / t) ** l * mp.gamma(l / k + 1) - 1


def _beta(a, b, c, d):
    mean = (a - c) * mp.digamma(a) + (b - d) * mp.digamma(b) + (c - a + d - b) * mp.digamma(a + b)
    return _log_beta(c, d) - _log_beta(a, b) + mean


def _sigmoid(a):
    return 1 / (1 + mp.exp(-a))


TEXTBOOK = {
    "Normal": _normal,
    "LogNormal": _normal,
    "HalfNormal": lambda s, t: mp.log(t / s) + s * s / (2 * t * t) - mp.mpf(1) / 2,
    "Laplace": lambda m, s, n, t: mp.log(t / s) + abs(m - n) / t + s / t * mp.exp(-abs(m - n) / s) - 1,
    "Cauchy": lambda m, s, n, t: mp.log(((s + t) ** 2 + (m - n) ** 2) / (4 * s * t)),
    "HalfCauchy": lambda s, t: mp.log((s + t) ** 2 / (4 * s * t)),
    "Gumbel": lambda m, s, n, t: mp.log(t / s) + mp.euler * (s / t - 1) + mp.exp((n - m) / t + mp.loggamma(s / t + 1)) - 1 + (m - n) / t,
    "Gamma": _gamma,
    "GammaScale": lambda a, s, b, t: _gamma(a, 1 / s, b, 1 / t),
    "InverseGamma": _gamma,
    "Exponential": lambda r, s: mp.log(r / s) + s / r - 1,
    "Chi2": lambda k, l: _gamma(k / 2, mp.mpf(1) / 2, l / 2, mp.mpf(1) / 2),
    "Weibull": _weibull,
    "Pareto": lambda a, m, b, n: mp.log(a / b) + b / a - 1 + b * mp.log(m / n),
    "InverseGaussian": lambda m, k, n, l: (mp.log(k / l) + l / k - 1) / 2 + l * (m - n) ** 2 / (2 * m * n * n),
    "Beta": _beta,
    "Bernoulli": _bernoulli,
    "BernoulliLogits": lambda a, b: _bernoulli(_sigmoid(a), _sigmoid(b)),
    "Geometric": lambda p, q: _bernoulli(p, q) / p,
    "Poisson": lambda a, b: a * mp.log(a / b) - a + b,
}


def _sum(first: Density, second: Density, a, b) -> mp.mpf:
    total, mass, k = mp.mpf(0), mp.mpf(0), 0
    while mass < 1 - mp.mpf(10) ** -13 and k < 10_000:
        log_f = first.log(k, *a)
        if log_f > -mp.inf:
            weight = mp.exp(log_f)
            mass += weight
            total += weight * (log_f - second.log(k, *b))
        k += 1
    return total

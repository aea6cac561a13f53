"""The oracle of the closed forms, in mpmath; nothing of kullback.

TEXTBOOK holds the formulas as they are published, for 60 digits, which leave enough when they cancel. `kl` is the definition, an integral
or a sum of log-densities: slow, so each formula is held to it once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp

Log = Callable[..., mp.mpf]

# Parameters moderate enough for a quadrature.
BASE = {
    "Normal": (0.3, 1.7), "Laplace": (0.3, 1.7), "Cauchy": (0.3, 1.7), "Gumbel": (0.3, 1.7), "LogNormal": (0.3, 0.7),
    "HalfNormal": (1.7,), "HalfCauchy": (1.7,), "Gamma": (2.5, 1.3), "GammaScale": (2.5, 1.3), "InverseGamma": (2.5, 1.3),
    "Exponential": (1.3,), "Chi2": (3.0,), "Weibull": (1.8, 1.3), "Pareto": (2.5, 1.3), "InverseGaussian": (1.3, 2.1), "Beta": (2.5, 1.3),
    "Bernoulli": (0.3,), "BernoulliLogits": (0.4,), "Geometric": (0.3,), "Poisson": (2.3,),
}  # fmt: skip


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


# --- the definition, to any number of digits ---------------------------------------------------------------------------------------------
# Each family's log-density, and the coordinate t in which its density has one peak and falls off fast: x(t) and log dx/dt.


def _log_normal_density(x, m, s):
    return -(((x - m) / s) ** 2) / 2 - mp.log(s) - mp.log(2 * mp.pi) / 2


def _log_gamma_density(x, a, r):
    return a * mp.log(r) - mp.loggamma(a) + (a - 1) * mp.log(x) - r * x


def _generalized_gamma(x, k, n, s):
    y = (x / s) ** n
    return mp.log(n) + k * mp.log(y) - y - mp.log(x) - mp.loggamma(k)


def _logit(p):
    return mp.log(p / (1 - p))


def _continuous_bernoulli(x, theta):
    return theta * x - mp.log((mp.exp(theta) - 1) / theta) if theta != 0 else mp.mpf(0)


def _truncated_normal(x, m, s, low, high):
    mass = (mp.erf((high - m) / s / mp.sqrt(2)) - mp.erf((low - m) / s / mp.sqrt(2))) / 2
    if not low <= x <= high:
        return -mp.inf
    return _log_normal_density(x, m, s) - mp.log(mass)


def _softplus(a):
    return mp.log1p(mp.exp(a))


DENSITIES |= {
    "Logistic": Density(lambda x, m, s: -(x - m) / s - 2 * mp.log1p(mp.exp(-(x - m) / s)) - mp.log(s), _line),
    "Moyal": Density(lambda x, m, s: -((x - m) / s + mp.exp(-(x - m) / s)) / 2 - mp.log(2 * mp.pi) / 2 - mp.log(s), _line),
    "GammaLog": Density(lambda x, a, r: _log_gamma_density(x, a, mp.exp(r)), _positive),
    "PoissonLog": Density(lambda k, m: DENSITIES["Poisson"].log(k, mp.exp(m)), None),
    "ExpGamma": Density(lambda x, a, r: _log_gamma_density(mp.exp(x), a, r) + x, _line),
    "ExpGammaLog": Density(lambda x, a, r: _log_gamma_density(mp.exp(x), a, mp.exp(r)) + x, _line),
    "ExpInverseGamma": Density(lambda x, a, r: _log_gamma_density(mp.exp(-x), a, r) - x, _line),
    "ExpInverseGammaLog": Density(lambda x, a, r: _log_gamma_density(mp.exp(-x), a, mp.exp(r)) - x, _line),
    "GeneralizedNormal": Density(lambda x, m, s, n: mp.log(n / (2 * s)) - mp.loggamma(1 / n) - (abs(x - m) / s) ** n, _line),
    "NormalLogScale": Density(lambda x, m, t: _log_normal_density(x, m, mp.exp(t)), _line),
    "VonMises": Density(lambda x, m, k: k * mp.cos(x - m) - mp.log(2 * mp.pi * mp.besseli(0, k)), _line),
    "GeneralizedGamma": Density(_generalized_gamma, _positive),
    "Chi": Density(lambda x, k: _generalized_gamma(x, k / 2, 2, mp.sqrt(2)), _positive),
    "Rayleigh": Density(lambda x, s: mp.log(x) - 2 * mp.log(s) - (x / s) ** 2 / 2, _positive),
    "Maxwell": Density(lambda x, s: mp.log(2 / mp.pi) / 2 + 2 * mp.log(x) - 3 * mp.log(s) - (x / s) ** 2 / 2, _positive),
    "Nakagami": Density(
        lambda x, m, w: mp.log(2) + m * mp.log(m / w) - mp.loggamma(m) + (2 * m - 1) * mp.log(x) - m * x * x / w, _positive
    ),
    "InverseWeibull": Density(lambda x, k, s: mp.log(k / s) - (k + 1) * mp.log(x / s) - (x / s) ** -k, _positive),
    "Levy": Density(lambda x, c: mp.log(c / (2 * mp.pi)) / 2 - c / (2 * x) - 3 * mp.log(x) / 2, _positive),
    "LogitNormal": Density(lambda x, m, s: _log_normal_density(_logit(x), m, s) - mp.log(x * (1 - x)), _unit),
    "ContinuousBernoulli": Density(lambda x, p: _continuous_bernoulli(x, _logit(p)), _unit),
    "ContinuousBernoulliLogits": Density(_continuous_bernoulli, _unit),
    "Kumaraswamy": Density(lambda x, a, b: mp.log(a * b) + (a - 1) * mp.log(x) + (b - 1) * mp.log1p(-(x**a)), _unit),
    "TruncatedNormal": Density(_truncated_normal, lambda m, s, low, high: [low, high]),
    "BinomialLogits": Density(lambda k, n, a: DENSITIES["Binomial"].log(k, n, _sigmoid(a)), None),
    "GeometricLogits": Density(lambda k, a: DENSITIES["Geometric"].log(k, _sigmoid(a)), None),
    "NegativeBinomialLogits": Density(lambda k, n, a: DENSITIES["NegativeBinomial"].log(k, n, _sigmoid(a)), None),
    "ProbitBernoulli": Density(lambda k, x: mp.log(mp.ncdf(x if k == 1 else -x)) if k <= 1 else -mp.inf, None),
}


def _real(loc, scale):
    """Of the line, in units of the scale; far away, of its logarithm."""
    return (lambda t: loc + scale * mp.sinh(t)), (lambda t: mp.log(scale * mp.cosh(t)))


def _between(low, high):
    width = high - low
    # As far from the nearer end as it is: 1 - x would round.
    return (lambda t: low + width / (1 + mp.exp(-t)) if t < 0 else high - width / (1 + mp.exp(t))), (
        lambda t: mp.log(width) - _softplus(-t) - _softplus(t)
    )


def _beyond(low):
    return (lambda t: low + mp.exp(t)), (lambda t: t)


COORDINATES = {
    "VonMises": lambda m, k: _between(m - mp.pi, m + mp.pi),
    "NormalLogScale": lambda m, t: _real(m, mp.exp(t)),
    "ExpGamma": lambda a, r: _real(mp.digamma(a) - mp.log(r), mp.sqrt(mp.psi(1, a))),
    "ExpGammaLog": lambda a, r: _real(mp.digamma(a) - r, mp.sqrt(mp.psi(1, a))),
    "ExpInverseGamma": lambda a, r: _real(mp.log(r) - mp.digamma(a), mp.sqrt(mp.psi(1, a))),
    "ExpInverseGammaLog": lambda a, r: _real(r - mp.digamma(a), mp.sqrt(mp.psi(1, a))),
    "Pareto": lambda a, m: _beyond(m),
    "Uniform": _between,
    "TruncatedNormal": lambda m, s, low, high: _between(low, high),
}


def _coordinate(name, parameters):
    if name in COORDINATES:
        return COORDINATES[name](*parameters)
    support = DENSITIES[name].support
    if support is _positive:
        return _beyond(mp.mpf(0))
    if support is _unit:
        return _between(mp.mpf(0), mp.mpf(1))
    return _real(parameters[0], parameters[1])


# By t = log(x/(1 - x)): next to 1, x itself would have to carry the digits of 1 - x.
NEAR_ONE = {
    "Beta": lambda t, a, b: -(a - 1) * _softplus(-t) - (b - 1) * _softplus(t) - _log_beta(a, b),
    "Kumaraswamy": lambda t, a, b: mp.log(a * b) - (a - 1) * _softplus(-t) + (b - 1) * mp.log(-mp.expm1(-a * _softplus(-t))),
    "LogitNormal": lambda t, m, s: _log_normal_density(t, m, s) + _softplus(-t) + _softplus(t),
}


def definition(p: str, p_parameters, q: str, q_parameters, digits: int = 25) -> mp.mpf:
    """∫ or Σ f (log f - log g) to so many digits of the largest term, for any parameters; inf where g is 0 and f is not."""
    first, second = DENSITIES[p], DENSITIES[q]
    with mp.workdps(digits + 15):
        a, b = exact(p_parameters), exact(q_parameters)
        if first.support is None:
            return _sum_to(first, second, a, b, digits)
        place, log_stretch = _coordinate(p, a)

        def log_of(name, t, parameters):
            if first.support is _unit and name in NEAR_ONE:
                return NEAR_ONE[name](t, *parameters)
            return DENSITIES[name].log(place(t), *parameters)

        def log_density(t):
            return log_of(p, t, a) + log_stretch(t)

        low, peak, high = _reach(log_density, digits * mp.log(10) + 30)

        def term(t):
            log_f = log_of(p, t, a)
            return mp.exp(log_f + log_stretch(t)) * (log_f - log_of(q, t, b))

        if any(log_of(q, t, b) == -mp.inf for t in (low, high)):
            return mp.inf
        points = {low, peak, high}
        for end in (low, high):
            points |= {peak + (end - peak) * mp.mpf(2) ** -k for k in range(1, 7)}
        points |= set(_corners(place, q, b, low, high))
        points |= set(_corners(place, p, a, low, high))
        return mp.quad(term, sorted(points))


def _corners(place, name, parameters, low, high):
    """Where a density has a corner: its location, found by bisection in t."""
    if name in ("Laplace", "GeneralizedNormal") and place(low) < parameters[0] < place(high):
        for _ in range(400):
            middle = (low + high) / 2
            low, high = (middle, high) if place(middle) < parameters[0] else (low, middle)
        yield low


def _reach(log_density, drop):
    """Peak of a density with one peak, and where it has fallen by `drop` (of its logarithm)."""
    low, high = mp.mpf(-20000), mp.mpf(20000)
    for _ in range(400):
        x, y = low + (high - low) / 3, high - (high - low) / 3
        low, high = (x, high) if log_density(x) < log_density(y) else (low, y)
    peak = (low + high) / 2
    top = log_density(peak)
    ends = []
    for side in (-1, 1):
        step = mp.mpf("1e-8")
        while log_density(peak + side * step) > top - drop and step < 1e7:
            step *= 2
        near, far = step / 2, step
        for _ in range(30):
            middle = (near + far) / 2
            near, far = (middle, far) if log_density(peak + side * middle) > top - drop else (near, middle)
        ends.append(peak + side * far)
    return ends[0], peak, ends[1]


def _sum_to(first, second, a, b, digits):
    total, mass, k = mp.mpf(0), mp.mpf(0), 0
    while mass < 1 - mp.mpf(10) ** -(digits + 5) and k < 100_000:
        log_f = first.log(k, *a)
        if log_f > -mp.inf:
            weight = mp.exp(log_f)
            mass += weight
            log_g = second.log(k, *b)
            if log_g == -mp.inf:
                return mp.inf
            total += weight * (log_f - log_g)
        k += 1
    return total

"""Closed forms of counts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..._divergences import kl
from ..._pairs import phi
from ..curves import any_phi, log1p_remainder, normal_difference, normal_probability
from ..families import (
    Bernoulli,
    BernoulliLogits,
    Binomial,
    BinomialLogits,
    Geometric,
    GeometricLogits,
    NegativeBinomial,
    NegativeBinomialLogits,
    Poisson,
    PoissonLog,
    ProbitBernoulli,
)
from ..registry import closed_form
from ..special import gap

Array = Any


def weighted_gap(ops: Any, y: Array, x: Array, difference: Array | None = None) -> Array:
    """x (y/x - 1 - log(y/x)) = y - x - x log(y/x) >= 0; y where x = 0, inf where y = 0 < x."""
    absent, lost = x == 0.0, (y == 0.0) & (x > 0.0)
    bad = absent | lost
    difference = (y - x) if difference is None else difference
    inside = gap(ops, ops.where(bad, 1.0, y), ops.where(bad, 1.0, x), ops.where(bad, 0.0, difference))
    return ops.where(lost, math.inf, ops.where(absent, y, x * inside))


def bernoulli_kl(ops: Any, p: Array, q: Array) -> Array:
    return weighted_gap(ops, q, p) + weighted_gap(ops, 1.0 - q, 1.0 - p, p - q)


def trial_kl(ops: Any, p: Any, q: Any) -> Array:
    """KL of one trial, for sides that have `probs` or `logits`."""
    if hasattr(p, "probs") and hasattr(q, "probs"):
        return bernoulli_kl(ops, p.probs, q.probs)
    first, second = _number(p), _number(q)
    # Zeros of the shape of both. A product with 0 would be NaN where a logit is infinite.
    zero = 0.0 * ops.astype((first > 0.0) & (second > 0.0), first.dtype)
    (x, x_form), (y, y_form) = _both(ops, p, zero), _both(ops, q, zero)
    return kl(x, y, form=(x_form, y_form), axis=0, check=False)


def _number(x: Any) -> Array:
    return x.logits if hasattr(x, "logits") else x.probs


def _both(ops: Any, x: Any, zero: Array) -> tuple[Array, str]:
    """The two categories of a trial, and their form."""
    if hasattr(x, "logits"):
        logits = x.logits + zero
        up = logits > 0.0
        # (a, 0), less the larger of the two: no entry is +inf.
        return ops.stack([ops.where(up, 0.0, logits), ops.where(up, -logits, 0.0)]), "logits"
    return ops.stack([x.probs + zero, 1.0 - x.probs + zero]), "probs"


def _success(ops: Any, x: Any) -> Array:
    return x.probs if hasattr(x, "probs") else 1.0 / (1.0 + ops.exp(-x.logits))


def _failure(ops: Any, x: Any) -> Array:
    return 1.0 - x.probs if hasattr(x, "probs") else 1.0 / (1.0 + ops.exp(x.logits))


@closed_form(ProbitBernoulli, ProbitBernoulli)
def _probit_bernoulli(ops: Any, p: Any, q: Any) -> Array:
    x, y = (ops.where(z < -40.0, -40.0, ops.where(z > 40.0, 40.0, z)) for z in (p.probits, q.probits))  # Φ(-40) is 0 in float64
    difference = normal_difference(ops, x, y)
    first = weighted_gap(ops, normal_probability(ops, y), normal_probability(ops, x), difference)
    return first + weighted_gap(ops, normal_probability(ops, -y), normal_probability(ops, -x), -difference)


# --- 0 or 1, beside other counts: Σ (q_k - p_k - p_k log(q_k/p_k)) over both, and what Q has beyond ---


def _bernoulli_poisson(ops: Any, p: Any, q: Any) -> Array:
    # e^-λ, λ e^-λ, and beyond e^-λ (e^λ - 1 - λ) = 1 - e^-λ - λ e^-λ
    x, rate = _success(ops, p), q.rate
    lost = phi(ops, -rate)  # e^-λ - 1 + λ
    none = ops.exp(-rate)
    zero = weighted_gap(ops, none, _failure(ops, p), (x - rate) + lost)
    one = weighted_gap(ops, rate * none, x, (rate - x) + rate * (lost - rate))
    small = rate < 1.0
    beyond = ops.where(small, none * phi(ops, ops.where(small, rate, 0.0)), 1.0 - none - rate * none)
    return zero + one + beyond


def _bernoulli_geometric(ops: Any, p: Any, q: Any) -> Array:
    x, success, failure = _success(ops, p), _success(ops, q), _failure(ops, q)
    zero = weighted_gap(ops, success, _failure(ops, p), x - failure)
    return zero + weighted_gap(ops, success * failure, x, (failure - x) - failure * failure) + failure * failure


def _bernoulli_binomial(ops: Any, p: Any, q: Any) -> Array:
    # With v = q/(1 - q): (1-q)^n, n v (1-q)^n, and beyond (1-q)^n (e^t - 1 - n v), t = n log(1 + v): φ(t) - n (v - log(1 + v)).
    x, n, failure = _success(ops, p), q.total_count, _failure(ops, q)
    sure = failure == 0.0
    odds = ops.where(sure, 1.0, _success(ops, q) / ops.where(sure, 1.0, failure))
    none = ops.where(sure, 0.0, ops.exp(-n * ops.log1p(odds)))
    one = n * odds * none
    beyond = none * (any_phi(ops, n * ops.log1p(odds)) - n * log1p_remainder(ops, odds))
    # Where every trial succeeds: all of it at 1 for n = 1, else beyond.
    one = ops.where(sure & (n == 1.0), 1.0, one)
    beyond = ops.where(sure, ops.where(n == 1.0, 0.0 * x, 1.0), ops.where(n == 1.0, 0.0, beyond))
    spread = weighted_gap(ops, none, _failure(ops, p)) + weighted_gap(ops, one, x) + beyond
    return ops.where(n == 1.0, trial_kl(ops, p, q), spread)


def _bernoulli_negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    # (1-s)^r, r s (1-s)^r, and beyond (1-s)^r (e^t - 1 - r s), t = -r log(1 - s): φ(t) + r (-s - log(1 - s)).
    x, r, s = _success(ops, p), q.total_count, _success(ops, q)
    t = -r * ops.log(_failure(ops, q))
    none = ops.exp(-t)
    beyond = none * (any_phi(ops, t) + r * log1p_remainder(ops, -s))
    return weighted_gap(ops, none, _failure(ops, p)) + weighted_gap(ops, r * s * none, x) + beyond


def _never(ops: Any, x: Any) -> Array:
    """-log of the probability of 0."""
    trials = x.total_count if hasattr(x, "total_count") else 1.0
    if hasattr(x, "probs"):
        return -(trials * ops.log1p(-x.probs))
    # log(1 + e^a), without overflow
    return trials * (ops.where(x.logits > 0.0, x.logits, 0.0) + ops.log1p(ops.exp(ops.where(x.logits > 0.0, -x.logits, x.logits))))


def _unbounded(ops: Any, p: Any, q: Any) -> Array:
    # inf, unless P is always 0.
    more = p.rate if isinstance(p, Poisson) else _failure(ops, p) if isinstance(p, _GEOMETRIC) else _success(ops, p)
    return ops.where(more == 0.0, _never(ops, q), math.inf)


def _binomial_bernoulli(ops: Any, p: Any, q: Any) -> Array:
    # One trial, or none that counts; else inf.
    never = (_success(ops, p) == 0.0) | (p.total_count == 0.0)
    return ops.where(never, _never(ops, q), ops.where(p.total_count == 1.0, trial_kl(ops, p, q), math.inf))


def _trials_until_success(ops: Any, p: Any, q: Any) -> Array:
    """KL of one trial, times how many trials are expected until the first success."""
    if hasattr(p, "probs") or hasattr(q, "probs"):
        return trial_kl(ops, p, q) / _success(ops, p)
    # A probability e^a that may underflow, for which only log(1 + e^b) matters: φ(b - a) - e^(b - a) (1 - log(1 + e^b)/e^b).
    rare, never, step = p.logits < -706.0, q.logits == -math.inf, q.logits - p.logits
    inf = (step >= 709.0) | (never & (p.logits > -math.inf))
    near = rare & ~inf & ~never
    common, step = near & (q.logits > -40.0), ops.where(near, step, 0.0)
    odds = ops.exp(ops.where(common, q.logits, 0.0))
    small = any_phi(ops, step) - ops.where(common, ops.exp(step) * (log1p_remainder(ops, odds) / odds), 0.0)
    value = trial_kl(ops, p, q) / _success(ops, _TrialLogits(ops.where(rare, 0.0, p.logits)))
    return ops.where(rare, ops.where(inf, math.inf, small), value)


def _geometric(ops: Any, p: Any, q: Any) -> Array:
    return _trials_until_success(ops, p, q)


def _negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    # Of one count, or where P or Q never succeeds; else NaN.
    equal = p.total_count == q.total_count
    logits = hasattr(p, "logits") and hasattr(q, "logits")
    one = _trials_until_success(ops, _failures(p), _failures(q)) if logits else trial_kl(ops, p, q) / _failure(ops, p)
    value = p.total_count * one
    unequal = ops.where(
        _success(ops, p) == 0.0, _never(ops, q), ops.where(_success(ops, q) == 0.0, q.total_count * 0.0 + math.inf, math.nan)
    )
    return ops.where(equal, value, unequal)


class _Trial(NamedTuple):
    probs: Array


class _TrialLogits(NamedTuple):
    logits: Array


def _failures(x: Any) -> Any:
    """A geometric variable counts failures, a negative binomial one successes."""
    return _Trial(1.0 - x.probs) if hasattr(x, "probs") else _TrialLogits(-x.logits)


def _geometric_negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    return ops.where(q.total_count == 1.0, trial_kl(ops, _failures(p), q) / _success(ops, p), math.nan)  # for a count of 1


def _negative_binomial_geometric(ops: Any, p: Any, q: Any) -> Array:
    return ops.where(p.total_count == 1.0, trial_kl(ops, p, _failures(q)) / _failure(ops, p), math.nan)


def _binomial(ops: Any, p: Any, q: Any) -> Array:
    # More trials than Q can have: inf, unless none of them can succeed. Fewer: no closed form, NaN.
    value = p.total_count * trial_kl(ops, p, q)
    never = (_success(ops, p) == 0.0) | (p.total_count == 0.0)
    more = (p.total_count > q.total_count) | (_success(ops, q) == 0.0) | (_failure(ops, q) == 0.0)
    unequal = ops.where(never, _never(ops, q), ops.where(more, q.total_count * 0.0 + math.inf, math.nan))
    return ops.where(p.total_count == q.total_count, value, unequal)


_BERNOULLI, _BINOMIAL = (Bernoulli, BernoulliLogits), (Binomial, BinomialLogits)
_GEOMETRIC, _NEGATIVE = (Geometric, GeometricLogits), (NegativeBinomial, NegativeBinomialLogits)


def _register() -> None:
    """Each family with `probs` and with `logits`."""
    table = [
        (_BERNOULLI, _BERNOULLI, trial_kl), (_BERNOULLI, (Poisson,), _bernoulli_poisson), (_BERNOULLI, _GEOMETRIC, _bernoulli_geometric),
        (_BERNOULLI, _BINOMIAL, _bernoulli_binomial), (_BERNOULLI, _NEGATIVE, _bernoulli_negative_binomial),
        (_BINOMIAL, _BERNOULLI, _binomial_bernoulli), (_BINOMIAL, _BINOMIAL, _binomial), (_GEOMETRIC, _GEOMETRIC, _geometric),
        (_NEGATIVE, _NEGATIVE, _negative_binomial), (_GEOMETRIC, _NEGATIVE, _geometric_negative_binomial),
        (_NEGATIVE, _GEOMETRIC, _negative_binomial_geometric),
        ((Poisson, *_GEOMETRIC, *_NEGATIVE), (*_BERNOULLI, *_BINOMIAL), _unbounded),
    ]  # fmt: skip
    for firsts, seconds, function in table:
        for first in firsts:
            for second in seconds:
                closed_form(first, second)(function)


_register()


@closed_form(Poisson, Poisson)
def _poisson(ops: Any, p: Any, q: Any) -> Array:
    return weighted_gap(ops, q.rate, p.rate)


def _log_rate(ops: Any, x: Any) -> Array:
    return x.log_rate if isinstance(x, PoissonLog) else ops.log(x.rate)


@closed_form(PoissonLog, PoissonLog)
@closed_form(PoissonLog, Poisson)
@closed_form(Poisson, PoissonLog)
def _poisson_log(ops: Any, p: Any, q: Any) -> Array:
    # λ_p φ(log(λ_q/λ_p)), φ(x) = e^x - 1 - x; far up, and for rates of 0, λ_q - λ_p (1 + log(λ_q/λ_p)).
    x, y = _log_rate(ops, p), _log_rate(ops, q)
    none, lost = x == -math.inf, (y == -math.inf) & (x > -math.inf)
    step = ops.where(none | lost, 0.0, y) - ops.where(none | lost, 0.0, x)
    up = step > 1.0
    rate = ops.exp(x)
    far = ops.exp(y) - ops.where(up, rate * (1.0 + step), 0.0)
    return ops.where(lost, math.inf, ops.where(none | up, far, rate * any_phi(ops, ops.where(up, 0.0, step))))

"""Closed forms of counts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..._divergences import kl
from ..._pairs import phi
from .. import families as f
from ..curves import any_phi, log1p_remainder, normal_difference, normal_probability
from ..registry import closed_form
from ..special import gap

Array = Any

# Each family with `probs` and with `logits`.
BERNOULLI, BINOMIAL = (f.Bernoulli, f.BernoulliLogits), (f.Binomial, f.BinomialLogits)
GEOMETRIC, NEGATIVE = (f.Geometric, f.GeometricLogits), (f.NegativeBinomial, f.NegativeBinomialLogits)


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


def success_of(ops: Any, x: Any) -> Array:
    """The probability of success, from `probs` or from `logits`."""
    return x.probs if hasattr(x, "probs") else 1.0 / (1.0 + ops.exp(-x.logits))


def failure_of(ops: Any, x: Any) -> Array:
    """The probability of failure. From `logits`, it keeps its digits where success is nearly certain."""
    return 1.0 - x.probs if hasattr(x, "probs") else 1.0 / (1.0 + ops.exp(x.logits))


@closed_form(f.ProbitBernoulli, f.ProbitBernoulli)
def _probit_bernoulli(ops: Any, p: Any, q: Any) -> Array:
    x, y = (ops.where(z < -40.0, -40.0, ops.where(z > 40.0, 40.0, z)) for z in (p.probits, q.probits))  # Φ(-40) is 0 in float64
    difference = normal_difference(ops, x, y)
    first = weighted_gap(ops, normal_probability(ops, y), normal_probability(ops, x), difference)
    return first + weighted_gap(ops, normal_probability(ops, -y), normal_probability(ops, -x), -difference)


# --- 0 or 1, beside other counts: Σ (q_k - p_k - p_k log(q_k/p_k)) over both, and what Q has beyond ---


def _bernoulli_poisson(ops: Any, p: Any, q: Any) -> Array:
    # e^-λ, λ e^-λ, and beyond e^-λ (e^λ - 1 - λ) = 1 - e^-λ - λ e^-λ
    x, rate = success_of(ops, p), q.rate
    lost = phi(ops, -rate)  # e^-λ - 1 + λ
    none = ops.exp(-rate)
    zero = weighted_gap(ops, none, failure_of(ops, p), (x - rate) + lost)
    one = weighted_gap(ops, rate * none, x, (rate - x) + rate * (lost - rate))
    small = rate < 1.0
    beyond = ops.where(small, none * phi(ops, ops.where(small, rate, 0.0)), 1.0 - none - rate * none)
    return zero + one + beyond


def _bernoulli_geometric(ops: Any, p: Any, q: Any) -> Array:
    x, success, failure = success_of(ops, p), success_of(ops, q), failure_of(ops, q)
    zero = weighted_gap(ops, success, failure_of(ops, p), x - failure)
    return zero + weighted_gap(ops, success * failure, x, (failure - x) - failure * failure) + failure * failure


def _bernoulli_binomial(ops: Any, p: Any, q: Any) -> Array:
    # With v = q/(1 - q): (1-q)^n, n v (1-q)^n, and beyond (1-q)^n (e^t - 1 - n v), t = n log(1 + v): φ(t) - n (v - log(1 + v)).
    x, n, failure = success_of(ops, p), q.total_count, failure_of(ops, q)
    sure = failure == 0.0
    odds = ops.where(sure, 1.0, success_of(ops, q) / ops.where(sure, 1.0, failure))
    none = ops.where(sure, 0.0, ops.exp(-n * ops.log1p(odds)))
    one = n * odds * none
    beyond = none * (any_phi(ops, n * ops.log1p(odds)) - n * log1p_remainder(ops, odds))
    # Where every trial succeeds: all of it at 1 for n = 1, else beyond.
    one = ops.where(sure & (n == 1.0), 1.0, one)
    beyond = ops.where(sure, ops.where(n == 1.0, 0.0 * x, 1.0), ops.where(n == 1.0, 0.0, beyond))
    spread = weighted_gap(ops, none, failure_of(ops, p)) + weighted_gap(ops, one, x) + beyond
    return ops.where(n == 1.0, trial_kl(ops, p, q), spread)


def _bernoulli_negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    # (1-s)^r, r s (1-s)^r, and beyond (1-s)^r (e^t - 1 - r s), t = -r log(1 - s): φ(t) + r (-s - log(1 - s)).
    x, r, s = success_of(ops, p), q.total_count, success_of(ops, q)
    t = -r * ops.log(failure_of(ops, q))
    none = ops.exp(-t)
    beyond = none * (any_phi(ops, t) + r * log1p_remainder(ops, -s))
    return weighted_gap(ops, none, failure_of(ops, p)) + weighted_gap(ops, r * s * none, x) + beyond


def _never(ops: Any, x: Any) -> Array:
    """-log of the probability of 0."""
    trials = x.total_count if hasattr(x, "total_count") else 1.0
    if hasattr(x, "probs"):
        return -(trials * ops.log1p(-x.probs))
    # log(1 + e^a), without overflow
    return trials * (ops.where(x.logits > 0.0, x.logits, 0.0) + ops.log1p(ops.exp(ops.where(x.logits > 0.0, -x.logits, x.logits))))


def _unbounded(ops: Any, p: Any, q: Any) -> Array:
    # inf, unless P is always 0.
    more = p.rate if isinstance(p, f.Poisson) else failure_of(ops, p) if isinstance(p, GEOMETRIC) else success_of(ops, p)
    return ops.where(more == 0.0, _never(ops, q), math.inf)


def _binomial_bernoulli(ops: Any, p: Any, q: Any) -> Array:
    # One trial, or none that counts; else inf.
    never = (success_of(ops, p) == 0.0) | (p.total_count == 0.0)
    return ops.where(never, _never(ops, q), ops.where(p.total_count == 1.0, trial_kl(ops, p, q), math.inf))


def _trials_until_success(ops: Any, p: Any, q: Any) -> Array:
    """KL of one trial, times how many trials are expected until the first success."""
    if hasattr(p, "probs") or hasattr(q, "probs"):
        return trial_kl(ops, p, q) / success_of(ops, p)
    # A probability e^a that may underflow, for which only log(1 + e^b) matters: φ(b - a) - e^(b - a) (1 - log(1 + e^b)/e^b).
    rare, never, step = p.logits < -706.0, q.logits == -math.inf, q.logits - p.logits
    inf = (step >= 709.0) | (never & (p.logits > -math.inf))
    near = rare & ~inf & ~never
    common, step = near & (q.logits > -40.0), ops.where(near, step, 0.0)
    odds = ops.exp(ops.where(common, q.logits, 0.0))
    small = any_phi(ops, step) - ops.where(common, ops.exp(step) * (log1p_remainder(ops, odds) / odds), 0.0)
    value = trial_kl(ops, p, q) / success_of(ops, _TrialLogits(ops.where(rare, 0.0, p.logits)))
    return ops.where(rare, ops.where(inf, math.inf, small), value)


def _geometric(ops: Any, p: Any, q: Any) -> Array:
    return _trials_until_success(ops, p, q)


def _negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    # Of one count, or where P or Q never succeeds; else NaN.
    equal = p.total_count == q.total_count
    logits = hasattr(p, "logits") and hasattr(q, "logits")
    one = _trials_until_success(ops, _failures(p), _failures(q)) if logits else trial_kl(ops, p, q) / failure_of(ops, p)
    value = p.total_count * one
    unequal = ops.where(
        success_of(ops, p) == 0.0, _never(ops, q), ops.where(success_of(ops, q) == 0.0, q.total_count * 0.0 + math.inf, math.nan)
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
    return ops.where(q.total_count == 1.0, trial_kl(ops, _failures(p), q) / success_of(ops, p), math.nan)  # for a count of 1


def _negative_binomial_geometric(ops: Any, p: Any, q: Any) -> Array:
    return ops.where(p.total_count == 1.0, trial_kl(ops, p, _failures(q)) / failure_of(ops, p), math.nan)


def _binomial(ops: Any, p: Any, q: Any) -> Array:
    # More trials than Q can have: inf, unless none of them can succeed. Fewer: no closed form, NaN.
    value = p.total_count * trial_kl(ops, p, q)
    never = (success_of(ops, p) == 0.0) | (p.total_count == 0.0)
    more = (p.total_count > q.total_count) | (success_of(ops, q) == 0.0) | (failure_of(ops, q) == 0.0)
    unequal = ops.where(never, _never(ops, q), ops.where(more, q.total_count * 0.0 + math.inf, math.nan))
    return ops.where(p.total_count == q.total_count, value, unequal)


_BOUNDED, _ENDLESS = (*BERNOULLI, *BINOMIAL), (f.Poisson, *GEOMETRIC, *NEGATIVE)
for _firsts, _seconds, _formula, _when in (
    (BERNOULLI, BERNOULLI, trial_kl, None),
    (BERNOULLI, (f.Poisson,), _bernoulli_poisson, None),
    (BERNOULLI, GEOMETRIC, _bernoulli_geometric, None),
    (BERNOULLI, BINOMIAL, _bernoulli_binomial, None),
    (BERNOULLI, NEGATIVE, _bernoulli_negative_binomial, None),
    (BINOMIAL, BERNOULLI, _binomial_bernoulli, None),
    (BINOMIAL, BINOMIAL, _binomial, "a total_count of Q that is not greater"),
    (GEOMETRIC, GEOMETRIC, _geometric, None),
    (NEGATIVE, NEGATIVE, _negative_binomial, "equal total_count"),
    (GEOMETRIC, NEGATIVE, _geometric_negative_binomial, "a total_count of 1"),
    (NEGATIVE, GEOMETRIC, _negative_binomial_geometric, "a total_count of 1"),
    (_ENDLESS, _BOUNDED, _unbounded, None),
):
    for _p in _firsts:
        for _q in _seconds:
            closed_form(_p, _q, _when)(_formula)


@closed_form(f.Poisson, f.Poisson)
def _poisson(ops: Any, p: Any, q: Any) -> Array:
    return weighted_gap(ops, q.rate, p.rate)


def _log_rate(ops: Any, x: Any) -> Array:
    return x.log_rate if isinstance(x, f.PoissonLog) else ops.log(x.rate)


@closed_form(f.PoissonLog, f.PoissonLog)
@closed_form(f.PoissonLog, f.Poisson)
@closed_form(f.Poisson, f.PoissonLog)
def _poisson_log(ops: Any, p: Any, q: Any) -> Array:
    # λ_p φ(log(λ_q/λ_p)), φ(x) = e^x - 1 - x; far up, and for rates of 0, λ_q - λ_p (1 + log(λ_q/λ_p)).
    x, y = _log_rate(ops, p), _log_rate(ops, q)
    none, lost = x == -math.inf, (y == -math.inf) & (x > -math.inf)
    step = ops.where(none | lost, 0.0, y) - ops.where(none | lost, 0.0, x)
    up = step > 1.0
    rate = ops.exp(x)
    far = ops.exp(y) - ops.where(up, rate * (1.0 + step), 0.0)
    return ops.where(lost, math.inf, ops.where(none | up, far, rate * any_phi(ops, ops.where(up, 0.0, step))))

"""Closed forms of counts."""

from __future__ import annotations

import math
from typing import Any

from ..._divergences import kl
from ..._pairs import phi
from ..curves import any_phi, log1p_remainder, normal_difference, normal_probability
from ..families import Bernoulli, BernoulliLogits, Binomial, Geometric, NegativeBinomial, Poisson, ProbitBernoulli
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


@closed_form(Bernoulli, Bernoulli)
def _bernoulli(ops: Any, p: Any, q: Any) -> Array:
    return bernoulli_kl(ops, p.probs, q.probs)


@closed_form(BernoulliLogits, BernoulliLogits)
def _bernoulli_logits(ops: Any, p: Any, q: Any) -> Array:
    zero = (p.logits + q.logits) * 0.0
    return kl(*(ops.stack([x + zero, zero]) for x in (p.logits, q.logits)), form="logits", axis=0)


def _both(ops: Any, x: Any, zero: Array) -> tuple[Array, str]:
    """The two categories of a Bernoulli distribution, and their form."""
    if isinstance(x, BernoulliLogits):
        return ops.stack([x.logits + zero, zero]), "logits"
    return ops.stack([x.probs + zero, 1.0 - x.probs + zero]), "probs"


@closed_form(Bernoulli, BernoulliLogits)
@closed_form(BernoulliLogits, Bernoulli)
def _bernoulli_mixed(ops: Any, p: Any, q: Any) -> Array:
    zero = (next(iter(p.parameters().values())) + next(iter(q.parameters().values()))) * 0.0
    (x, x_form), (y, y_form) = _both(ops, p, zero), _both(ops, q, zero)
    return kl(x, y, form=(x_form, y_form), axis=0, check=False)


@closed_form(ProbitBernoulli, ProbitBernoulli)
def _probit_bernoulli(ops: Any, p: Any, q: Any) -> Array:
    difference = normal_difference(ops, p.probits, q.probits)
    first = weighted_gap(ops, normal_probability(ops, q.probits), normal_probability(ops, p.probits), difference)
    return first + weighted_gap(ops, normal_probability(ops, -q.probits), normal_probability(ops, -p.probits), -difference)


# --- 0 or 1, beside other counts: Σ (q_k - p_k - p_k log(q_k/p_k)) over both, and what Q has beyond ----------------------------------------


def _success(ops: Any, x: Any) -> Array:
    return x.probs if isinstance(x, Bernoulli) else 1.0 / (1.0 + ops.exp(-x.logits))


def _failure(ops: Any, x: Any) -> Array:
    return 1.0 - x.probs if isinstance(x, Bernoulli) else 1.0 / (1.0 + ops.exp(x.logits))


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
    x, success = _success(ops, p), q.probs
    failure = 1.0 - success
    zero = weighted_gap(ops, success, _failure(ops, p), x - failure)
    return zero + weighted_gap(ops, success * failure, x, (failure - x) - failure * failure) + failure * failure


def _bernoulli_binomial(ops: Any, p: Any, q: Any) -> Array:
    # With v = q/(1 - q): (1-q)^n, n v (1-q)^n, and beyond (1-q)^n (e^t - 1 - n v), t = n log(1 + v): φ(t) - n (v - log(1 + v)).
    x, n, sure = _success(ops, p), q.total_count, q.probs >= 1.0
    odds = q.probs / ops.where(sure, 1.0, 1.0 - q.probs)
    odds = ops.where(sure, 1.0, odds)
    none = ops.where(sure, 0.0, ops.exp(-n * ops.log1p(odds)))
    one = n * odds * none
    beyond = none * (any_phi(ops, n * ops.log1p(odds)) - n * log1p_remainder(ops, odds))
    # Where every trial succeeds: all of it at 1 for n = 1, else beyond.
    one = ops.where(sure & (n == 1.0), 1.0, one)
    beyond = ops.where(sure, ops.where(n == 1.0, 0.0 * x, 1.0), ops.where(n == 1.0, 0.0, beyond))
    spread = weighted_gap(ops, none, _failure(ops, p)) + weighted_gap(ops, one, x) + beyond
    same = bernoulli_kl(ops, x, q.probs)
    return ops.where(n == 1.0, same, spread)


def _bernoulli_negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    # (1-s)^r, r s (1-s)^r, and beyond (1-s)^r (e^t - 1 - r s), t = -r log(1 - s): φ(t) + r (-s - log(1 - s)).
    x, r, s = _success(ops, p), q.total_count, q.probs
    t = -r * ops.log1p(-s)
    none = ops.exp(-t)
    beyond = none * (any_phi(ops, t) + r * log1p_remainder(ops, -s))
    return weighted_gap(ops, none, _failure(ops, p)) + weighted_gap(ops, r * s * none, x) + beyond


def _never(ops: Any, x: Any) -> Array:
    """-log of the probability of 0."""
    if isinstance(x, Bernoulli):
        return -ops.log1p(-x.probs)
    if isinstance(x, BernoulliLogits):
        # log(1 + e^a), without overflow
        return ops.where(x.logits > 0.0, x.logits, 0.0) + ops.log1p(ops.exp(ops.where(x.logits > 0.0, -x.logits, x.logits)))
    return -x.total_count * ops.log1p(-x.probs)


def _unbounded(ops: Any, p: Any, q: Any) -> Array:
    # inf, unless P is always 0.
    zero = {Poisson: lambda: p.rate == 0.0, Geometric: lambda: p.probs == 1.0, NegativeBinomial: lambda: p.probs == 0.0}[type(p)]()
    return ops.where(zero, _never(ops, q), math.inf)


def _binomial_bernoulli(ops: Any, p: Any, q: Any) -> Array:
    # One trial, or none that counts; else inf.
    q_success = _success(ops, q)
    same = bernoulli_kl(ops, p.probs, q_success)
    never = (p.probs == 0.0) | (p.total_count == 0.0)
    return ops.where(never, _never(ops, q), ops.where(p.total_count == 1.0, same, math.inf))


for _family in (Bernoulli, BernoulliLogits):
    closed_form(_family, Poisson)(_bernoulli_poisson)
    closed_form(_family, Geometric)(_bernoulli_geometric)
    closed_form(_family, Binomial)(_bernoulli_binomial)
    closed_form(_family, NegativeBinomial)(_bernoulli_negative_binomial)
    closed_form(Binomial, _family)(_binomial_bernoulli)
    for _wide in (Poisson, Geometric, NegativeBinomial):
        closed_form(_wide, _family)(_unbounded)
for _wide in (Poisson, Geometric, NegativeBinomial):
    closed_form(_wide, Binomial)(_unbounded)


# --- the others -------------------------------------------------------------------------------------------------------------------------


@closed_form(Geometric, Geometric)
def _geometric(ops: Any, p: Any, q: Any) -> Array:
    # As many Bernoulli trials as are expected until the first success.
    return bernoulli_kl(ops, p.probs, q.probs) / p.probs


@closed_form(NegativeBinomial, NegativeBinomial)
def _negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    # Of one count, or where P or Q never succeeds; else NaN.
    equal = p.total_count == q.total_count
    value = p.total_count * (bernoulli_kl(ops, p.probs, q.probs) / (1.0 - p.probs))
    never = p.probs == 0.0
    return ops.where(equal, value, ops.where(never, -q.total_count * ops.log1p(-q.probs), ops.where(q.probs == 0.0, math.inf, math.nan)))


def _one_failure(ops: Any, x: Any) -> tuple[Array, Array, Array]:
    """A geometric variable counts failures before one success, a negative binomial one successes before so many failures."""
    if isinstance(x, Geometric):
        return x.probs * 0.0 + 1.0, 1.0 - x.probs, x.probs
    return x.total_count, x.probs, 1.0 - x.probs


@closed_form(Geometric, NegativeBinomial)
@closed_form(NegativeBinomial, Geometric)
def _geometric_negative_binomial(ops: Any, p: Any, q: Any) -> Array:
    # For a count of 1; else NaN.
    (n, goes_on, stops), (m, q_on, q_stops) = _one_failure(ops, p), _one_failure(ops, q)
    trial = weighted_gap(ops, q_on, goes_on) + weighted_gap(ops, q_stops, stops)
    return ops.where((n == 1.0) & (m == 1.0), trial / stops, math.nan)


@closed_form(Binomial, Binomial)
def _binomial(ops: Any, p: Any, q: Any) -> Array:
    # More trials than Q can have: inf, unless none of them can succeed. Fewer: no closed form, NaN.
    value = p.total_count * bernoulli_kl(ops, p.probs, q.probs)
    never = (p.probs == 0.0) | (p.total_count == 0.0)
    more = (p.total_count > q.total_count) | (q.probs == 0.0) | (q.probs == 1.0)
    unequal = ops.where(never, -q.total_count * ops.log1p(-q.probs), ops.where(more, math.inf, math.nan))
    return ops.where(p.total_count == q.total_count, value, unequal)


@closed_form(Poisson, Poisson)
def _poisson(ops: Any, p: Any, q: Any) -> Array:
    return weighted_gap(ops, q.rate, p.rate)

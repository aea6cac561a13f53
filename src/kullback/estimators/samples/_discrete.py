"""KL from two samples of categories: frequencies in place of probabilities, with the bias that brings taken off, or Bayes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._errors import InvalidOption
from .._estimate import Estimate
from ._inputs import Points, check_level, generator, read_any
from ._intervals import symmetric

CORRECTIONS = ("miller_madow", "bayes", None)
RESAMPLES = 1000


def plug_in(
    x: Any, y: Any, *, correction: str | None = "miller_madow", prior: float = 0.5, level: float = 0.95, rng: Any = None
) -> Estimate:
    """KL(P‖Q) in nats from a sample of each, of categories: numbers, text, or rows of them.

    Parameters
    ----------
    x, y : array
        One category a row. Several columns make one category of each combination.
    correction : {"miller_madow", "bayes", None}
        None: the KL of the observed frequencies, biased upwards. ``"miller_madow"``: less that bias to first order,
        (K−1)/2n + (Σ p̂/q̂ − 1)/2m, over the K categories seen in x. ``"bayes"``: Dirichlet posteriors, the KL
        of their means less the bias that their own spread shows; finite also where y lacks a category.
    prior : float
        Pseudo-count of each category that either sample has shown, for ``"bayes"``. 0.5 is Jeffreys'.
    level : float
        Of the interval: normal, its width from a bootstrap, or from the posterior for ``"bayes"``.
    rng : int or numpy.random.Generator, optional

    Returns
    -------
    Estimate
        Not cut at 0. inf, except for ``"bayes"``, where x has a category that y has not.

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.estimators import plug_in
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.choice(3, 2000, p=[0.5, 0.3, 0.2]), rng.choice(3, 3000, p=[0.4, 0.4, 0.2])
    >>> plug_in(x, y)                                            # exactly 0.02527
    0.0284 ± 0.0071 (plug-in, Miller–Madow, 3 categories, n=2000, 95% interval 0.01439 to 0.04233)
    >>> plug_in(["a", "b"], ["a", "a"]).value
    inf
    """
    if correction not in CORRECTIONS:
        raise InvalidOption(f"correction is {correction!r}: it must be 'miller_madow', 'bayes' or None")
    if not (isinstance(prior, (int, float)) and math.isfinite(prior) and prior > 0.0):
        raise InvalidOption(f"prior is {prior!r}: pseudo-counts are positive numbers")
    level, rng = check_level(level), generator(rng)
    first, second, _ = read_any(x, y)
    counts = count_rows(first, second)[0]
    return estimate_from_counts(counts[0], counts[1], correction, prior, level, rng)


def count_rows(x: Points, y: Points) -> tuple[Any, Any, Any]:
    """Counts of each distinct row in x and in y (2 × K), and the number of the distinct row that each row is."""
    _, codes = np.unique(np.concatenate([x, y]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    size = int(codes.max()) + 1
    counts = np.stack([np.bincount(codes[: len(x)], minlength=size), np.bincount(codes[len(x) :], minlength=size)])
    return counts, codes[: len(x)], codes[len(x) :]


def _corrected(counts_x: Points, counts_y: Points, correction: str | None, within: Points) -> Points:
    """Plug-in KL along the last axis, plus the mean of `within` (a divergence inside each category), less the bias to first order."""
    n, m = counts_x.sum(-1, keepdims=True), counts_y.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(counts_x > 0, (counts_x / n) / (counts_y / m), 0.0)
        value = np.where(counts_x > 0, counts_x / n * (np.log(ratio) + within), 0.0).sum(-1)
        infinite = np.isinf(value)
        if correction == "miller_madow":
            # Second-order Taylor terms: E −H(p̂) = −H(p) + (K−1)/2n, and E log q̂ = log q − (1−q)/2mq.
            inverse_q = np.where(counts_x > 0, m / counts_y, 0.0)
            value = value - ((counts_x > 0).sum(-1) - 1) / (2 * n[..., 0]) - ((counts_x / n * inverse_q).sum(-1) - 1) / (2 * m[..., 0])
    return np.asarray(np.where(infinite, np.inf, value))


def estimate_from_counts(
    counts_x: Any, counts_y: Any, correction: str | None, prior: float, level: float, rng: np.random.Generator, within: Any = 0.0
) -> Estimate:
    """`within`: what to add in each category, for the chain rule."""
    counts_x, counts_y = np.asarray(counts_x, np.float64), np.asarray(counts_y, np.float64)
    within = np.broadcast_to(np.asarray(within, np.float64), counts_x.shape)
    n = int(counts_x.sum())
    if correction == "bayes":
        return _posterior(counts_x, counts_y, prior, level, rng, within)
    method = "plug-in, Miller–Madow" if correction else "plug-in"
    method += f", {np.sum((counts_x + counts_y) > 0)} categories"
    value = float(_corrected(counts_x, counts_y, correction, within))
    if math.isinf(value):
        unseen = int(np.sum((counts_x > 0) & (counts_y == 0)))
        why = f"{method}: {unseen} of x's never occur in y; correction='bayes' allows for chance"
        low = _posterior(counts_x, counts_y, prior, level, rng, within).interval
        assert low is not None
        return Estimate(value, math.inf, n, why, interval=(low[0], math.inf), level=level)
    shape = _resamples(len(counts_x))
    drawn_x, drawn_y = (rng.multinomial(int(c.sum()), c / c.sum(), shape).astype(np.float64) for c in (counts_x, counts_y))
    drawn = _corrected(drawn_x, drawn_y, correction, within)
    drawn = drawn[np.isfinite(drawn)]
    error = float(np.std(drawn)) if len(drawn) > 1 else math.inf
    return symmetric(value, error, n, method, level)


# p ~ Dirichlet(a), q ~ Dirichlet(b): E Σ p log p = Σ (a/A)(ψ(a+1) − ψ(A+1)) and E Σ p log q = Σ (a/A)(ψ(b) − ψ(B)), while p and
# q have means a/A and b/B. KL is convex, so E KL exceeds the KL of the means, as that of frequencies exceeds, on average, the true one, and
# to first order by as much: it is taken off (the Bayesian bootstrap's estimate of bias).
def _posterior(counts_x: Points, counts_y: Points, prior: float, level: float, rng: np.random.Generator, within: Points) -> Estimate:
    from scipy.special import digamma

    a, b = counts_x + prior, counts_y + prior
    p, q = a / a.sum(), b / b.sum()
    of_means = float(p @ (np.log(p) - np.log(q) + within))
    mean = float(p @ (digamma(a + 1) - digamma(a.sum() + 1) - digamma(b) + digamma(b.sum()) + within))
    log_p, log_q = _log_dirichlet(a, rng), _log_dirichlet(b, rng)
    drawn = (np.exp(log_p) * (log_p - log_q + within)).sum(-1)
    method = f"Dirichlet posteriors, {prior:g} a category, {len(a)} categories"
    return symmetric(2.0 * of_means - mean, float(drawn.std()), int(counts_x.sum()), method, level)


def _resamples(categories: int) -> int:
    """As many as fit in 160 MB."""
    return min(RESAMPLES, max(50, 20_000_000 // categories))


def _log_dirichlet(a: Points, rng: np.random.Generator) -> Points:
    """In logs, because gamma variates of small shape underflow: log G(a) = log G(a+1) + log(U)/a."""
    shape = (_resamples(len(a)), len(a))
    logs = np.log(rng.standard_gamma(a + 1.0, shape)) + np.log1p(-rng.random(shape)) / a
    return np.asarray(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))

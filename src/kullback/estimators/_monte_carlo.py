"""KL by sampling from P: the textbook estimators, with error bars, in constant memory.

Blocks of samples are drawn, their moments merged, and the samples forgotten. It is for values: for gradients see the policy losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from .._distributions.adapters import name_of
from .._errors import InvalidOption, InvalidValue, one_of
from ._estimate import Estimate
from ._law import Law, law_of, mass_inside, numpy_source, seen
from ._terms import EPSILON, phi_of

Array = Any
KINDS = ("k1", "k2", "k3")
VARIATES = (None, "control", "antithetic", "quasi")
_BLOCK = 1 << 18  # numbers at a time
_LARGEST_SHARE = 0.02
_MOST_ERRORS = 5.0
_REPLICATES = 32  # independent scrambles of a quasi-random sequence


def monte_carlo(
    p: Any,
    q: Any,
    *,
    n: float = 100_000,
    rng: Any = None,
    kind: str = "k1",
    variates: str | None = "control",
    tol: float | None = None,
    progress: bool | Callable[[int, int], object] = False,
) -> Estimate:
    """KL(P‖Q) of two distribution objects from samples of P, with its standard error.

    With x ~ P and r = q(x)/p(x): k1 = −log r and k3 = r − 1 − log r have KL as their mean, k2 = ½ log² r only nearly, for P near Q.
    k3 needs all of Q's mass on P's support, and its error bar a ratio whose square has a mean (not so for a normal P and a Q with heavier
    tails). Values, not gradients: float64 numbers, detached from any graph.

    Parameters
    ----------
    p, q : distribution objects
        Of torch.distributions, TFP, numpyro, distrax or scipy.stats, or records of `kullback.distributions`. Batches broadcast.
    n : int
        Samples to draw, for each element of the batch. Memory does not grow with it.
    rng : random state, optional
        In the style of P's library: a NumPy Generator (SciPy, records, mixtures), a torch.Generator, a JAX key, a pair of integers for
        TensorFlow; or an int, in all of them. None: a fresh one.
    kind : {"k1", "k2", "k3"}
    variates : {"control", "antithetic", "quasi", None}
        "control" subtracts the best multiple of r − 1, whose mean is 0, unless r has too heavy a tail to trust its mean (`method` then says
        so): as good as the better of k1 and k3, or better, and the same for both, since they differ by r − 1. Not for k2, which is no
        estimate of KL that it could improve. "antithetic" draws pairs of opposite quantiles, "quasi" scrambled Sobol points (which in
        one dimension are stratified), where P has quantiles.
    tol : float, optional
        Stop as soon as the standard error of every element is at most this.
    progress : bool or function
        True shows a bar (needs `rich`); a function is called with the samples drawn and wanted.

    Returns
    -------
    Estimate
        value, stderr, n and method; inf where a sample of P fell where Q has no mass.

    Examples
    --------
    >>> from kullback.distributions import Normal
    >>> from kullback.estimators import monte_carlo
    >>> monte_carlo(Normal(0.0, 1.0), Normal(0.5, 1.0), n=100_000, rng=0)           # exactly 0.125
    0.12506 ± 0.00055 (monte carlo k1, control variate, n=100000)
    """
    one_of("kind", kind, KINDS)
    one_of("variates", variates, VARIATES)
    whole = isinstance(n, (int, np.integer)) or (isinstance(n, float) and n.is_integer())  # 1e9 is
    if isinstance(n, bool) or not whole or n < 2:
        raise InvalidOption(f"n is {n!r}: it must be a whole number of samples, 2 or more")
    if tol is not None and not (isinstance(tol, (int, float, np.number)) and tol > 0):
        raise InvalidOption(f"tol is {tol!r}: it must be above 0, the standard error to stop at")
    # Drawn by their own library, unless quantiles are asked for.
    native = variates in (None, "control")
    first, second = law_of(p, native=native), law_of(q, native=native)
    shape = common_shape(first, second, name_of(p), name_of(q))
    enough = None if tol is None else lambda value, error: bool(np.all(error <= tol))
    invalid, flaw = invalid_elements(first, second, shape)
    if invalid.all():
        return unknown(shape, flaw)
    with _reported(progress) as report:
        found = run(first, second, shape, int(n), rng, kind, variates, enough, report)
    return without(found, invalid, flaw)


def invalid_elements(p: Law, q: Law, shape: tuple[int, ...]) -> tuple[Array, str]:
    """Which elements of the batch have no KL because their parameters make no distribution, and a sentence about the first law at fault."""
    flaw = f"p: {p.flaw}" if p.flaw else f"q: {q.flaw}" if q.flaw else ""
    return np.broadcast_to(p.invalid, shape) | np.broadcast_to(q.invalid, shape), flaw


def unknown(shape: tuple[int, ...], why: str) -> Estimate:
    """NaN for every element of the batch, which may be empty."""
    return Estimate(plain(np.full(shape, math.nan)), None, 0, why or "empty batch", bound=plain(np.full(shape, math.nan)))


def without(found: Estimate, invalid: Array, flaw: str) -> Estimate:
    """NaN where parameters make no distribution."""
    if not invalid.any():
        return found
    names = [name for name in ("value", "stderr", "bound", "lower", "upper") if getattr(found, name) is not None]
    changed: dict[str, Any] = {name: plain(np.where(invalid, math.nan, getattr(found, name))) for name in names}
    return replace(found, method=f"{found.method}; NaN for {flaw}", **changed)


def common_shape(p: Law, q: Law, p_name: str, q_name: str) -> tuple[int, ...]:
    if p.event_shape != q.event_shape:
        raise InvalidValue(
            f"events have different shapes: {p_name} has {p.event_shape} and {q_name} {q.event_shape}; events do not broadcast"
        )
    if p.discrete != q.discrete:
        kinds = ["discrete" if law.discrete else "continuous" for law in (p, q)]
        raise InvalidValue(f"{p_name} is {kinds[0]} and {q_name} {kinds[1]}: they have no densities in common")
    try:
        return np.broadcast_shapes(p.batch_shape, q.batch_shape)
    except ValueError:
        raise InvalidValue(f"batches do not broadcast: {p_name} has {p.batch_shape} and {q_name} {q.batch_shape}") from None


class _Moments:
    """Mean and second moments of (estimate, control) over blocks, merged as they come (Chan, Golub and LeVeque)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean = np.zeros((2, *shape))
        self.square = np.zeros((2, 2, *shape))
        self.largest = np.zeros(shape)

    def add(self, values: Array) -> None:
        """(2, block, *shape)"""
        size = values.shape[1]
        mean = values.mean(axis=1)
        centred = values - mean[:, None]
        square = np.stack([np.stack([(a * b).sum(0) for b in centred]) for a in centred])
        change = mean - self.mean
        total = self.count + size
        self.square = self.square + square + change[:, None] * change[None] * (self.count * size / total)
        self.mean = self.mean + change * (size / total)
        self.count = total
        self.largest = np.maximum(self.largest, np.abs(values[1]).max(axis=0))

    def result(self, offset: Array | None) -> tuple[Array, Array, Array]:
        """The mean, less the best multiple of the control where its true mean `offset` is known; its standard error; was it used?"""
        value, variance = self.mean[0], self.square[0, 0]
        parameters, usable = 1, np.zeros(np.shape(value), bool)
        if offset is not None:
            # Where a single sample makes up much of the control's variance it has none to speak of (a ratio with heavy tails): its sample
            # mean is then off by more than any error bar says, and the control does harm.
            # Nor where that mean is far from the true one: what Q has where no sample of P came is then missing in it.
            steady = self.largest**2 <= _LARGEST_SHARE * self.square[1, 1]
            steady &= (self.mean[1] - offset) ** 2 * self.count**2 <= _MOST_ERRORS**2 * self.square[1, 1]
            usable = steady & (self.square[1, 1] > 0.0) & np.isfinite(self.square[1, 1]) & np.isfinite(self.square[0, 1])
            slope = np.where(usable, self.square[0, 1] / np.where(usable, self.square[1, 1], 1.0), 0.0)
            value = value - np.where(usable, slope * (np.where(usable, self.mean[1], 0.0) - offset), 0.0)
            variance = np.maximum(variance - slope * np.where(usable, self.square[0, 1], 0.0), 0.0)
            parameters = 2
        # A control that never varies has nothing to take off: nothing was left out.
        return value, np.sqrt(variance / max(self.count - parameters, 1) / self.count), usable | (self.square[1, 1] == 0.0)


def run(
    p: Law, q: Law, shape: tuple[int, ...], n: int, rng: Any, kind: str, variates: str | None, enough: Any, report: Any
) -> Estimate:  # fmt: skip
    inside = mass_inside(p, q, shape) if p.is_scalar else np.ones(shape)
    if kind == "k3" and not np.all(inside == 1.0):
        raise InvalidOption(f"k3 is biased here: Q has mass outside the support of P ({p.name}‖{q.name}); use kind='k1'")
    control = variates == "control" and kind != "k2" and not np.isnan(inside).any()
    quiet = variates in ("antithetic", "quasi")
    draw = _drawer(p, variates, rng)
    numbers = max(1, math.prod(p.batch_shape) * math.prod(p.event_shape), math.prod(shape))
    block = int(np.clip(_BLOCK // numbers, 64, 1 << 17))
    if variates == "quasi":
        block = 1 << int(np.clip(np.log2(max(n / _REPLICATES, 16)), 4, np.log2(block)))
    low, high = np.full(shape, math.inf), np.full(shape, -math.inf)
    moments, hit, merged, rounding = _Moments(shape), np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape)
    drawn = 0
    value, error, used = np.full(shape, math.nan), np.full(shape, math.inf), np.zeros(shape, bool)
    while drawn < n:
        size = block if variates == "quasi" else min(block, n - drawn)
        x = _with_axes(draw(size), p, len(shape))
        host = p.numpy(x)
        log_p, log_q = p.log_prob(x, p), q.log_prob(x, p)
        log_q = seen(q, host, log_p, log_q)
        if drawn == 0:
            merged |= _merged(p, host, shape)
        with np.errstate(invalid="ignore", over="ignore"):
            # A point of P where P has no finite density is one that floats moved to an end of the support.
            merged |= np.broadcast_to(np.isinf(log_p).any(0), shape)
            d = np.broadcast_to(log_q - log_p, (len(log_p), *shape))
            size_d = 1.0 + p.magnitude(host) + q.magnitude(host) + np.abs(log_p) + np.where(np.isfinite(log_q), np.abs(log_q), 0.0)
            rounding = rounding + np.sum(np.broadcast_to(size_d, (len(log_p), *shape)), 0)
            lost = (d == -math.inf) & np.isfinite(log_p)
            hit |= lost.any(0)
            d = np.where(lost, 0.0, d)
            terms = -d if kind == "k1" else 0.5 * d * d if kind == "k2" else phi_of(d)
            low, high = np.minimum(low, terms.min(0)), np.maximum(high, terms.max(0))
            values = np.stack([terms, np.expm1(d) if control else terms * 0.0])
            if quiet:
                pairs = 2 if variates == "antithetic" else len(d)
                values = values.reshape(2, -1, pairs, *shape).mean(2) if variates == "antithetic" else values.mean(1, keepdims=True)
            moments.add(values)
            drawn += len(d)
            value, error, used = moments.result(inside - 1.0 if control else None)
        if report is not None:
            report(drawn, n)
        if enough is not None and moments.count >= (8 if quiet else 100) and enough(value, error):
            break
    if p.discrete:
        # A count that one sample in n would be is as likely seen as not: samples of few others agree better than they know.
        with np.errstate(invalid="ignore"):
            error = np.maximum(error, (1.0 + high - low) / drawn)
    # Log-densities are rounded at ε times the numbers they are made of, alike in all samples.
    value, error = np.where(hit, math.inf, value), np.where(hit, 0.0, error + 4.0 * EPSILON * rounding / drawn)
    value, error = (np.where(merged, math.nan, x) for x in (value, error))
    how = {"antithetic": ", antithetic", "quasi": ", quasi-random"}.get(variates or "", _of_control(used) if control else "")
    method = f"monte carlo {kind}{how}"
    if merged.any():
        method += f"; NaN where floats are too far apart to tell the points of p ({p.name}) from each other: shift or rescale both"
    return Estimate(plain(value), plain(error), drawn, method)


def _merged(p: Law, x: Array, shape: tuple[int, ...]) -> Array:
    """Do samples of P lie where floats are too far apart for them? A continuous law never gives a number four times."""
    if len(x) < 4 or (p.discrete and not np.any(np.abs(x) > 2.0**53)):
        return np.zeros(shape, bool)
    x = np.sort(x[:4096], axis=0)
    found = np.any(x[3:] == x[:-3], axis=0)
    if p.event_shape:
        # Entries that are constant by construction, such as those above the diagonal of a triangular matrix.
        found &= (x[0] != x[-1]) | (np.abs(x[0]) > 1.0)
    axes = tuple(range(found.ndim - len(p.event_shape), found.ndim))
    return np.broadcast_to(found.any(axis=axes), shape)


def _of_control(used: Array) -> str:
    if np.all(used):
        return ", control variate"
    return f", control variate in {np.sum(used)} of {used.size}" if np.any(used) else ", control variate left out: heavy tail"


def plain(x: Array) -> Any:
    """A float, or an array where there is a batch."""
    return float(x) if np.ndim(x) == 0 else np.asarray(x)


def _with_axes(x: Array, p: Law, ndim: int) -> Array:
    """Points with as many batch axes as the result has."""
    missing = ndim - len(p.batch_shape)
    if missing == 0:
        return x
    x = p.numpy(x)
    return p.own(x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]))


def _drawer(p: Law, variates: str | None, rng: Any) -> Callable[[int], Array]:
    """A function that draws so many points."""
    if variates not in ("antithetic", "quasi"):
        source = p.source(rng)
        return lambda size: p.draw(size, source)
    if p.from_uniform(np.full((1, *p.batch_shape, *p.event_shape), 0.5)) is None:
        raise InvalidOption(f"variates={variates!r} needs quantiles, and {p.name} has none here: use variates='control'")
    generator = numpy_source(rng)
    if variates == "antithetic":

        def opposite(size: int) -> Array:
            u = generator.random((max(1, size // 2), *p.batch_shape, *p.event_shape))
            both = np.stack([u, 1.0 - u], 1).reshape(-1, *u.shape[1:])
            return p.own(p.from_uniform(np.clip(both, 5e-17, 1.0 - 1.2e-16)))

        return opposite

    def scrambled(size: int) -> Array:
        from scipy.stats import qmc

        dimensions = max(1, math.prod(p.event_shape))
        # Each block has a scramble of its own: their means are independent.
        points = qmc.Sobol(dimensions, scramble=True, seed=generator).random(size)
        points = np.clip(points, 5e-17, 1.0 - 1.2e-16).reshape(size, *(1,) * len(p.batch_shape), *p.event_shape)
        return p.own(p.from_uniform(points + np.zeros((*p.batch_shape, *p.event_shape))))

    return scrambled


def _reported(progress: Any) -> Any:
    """A context that gives the function to call after each block, or None."""
    if progress is False or progress is None:
        return nullcontext(None)
    if callable(progress):
        return nullcontext(progress)
    return _Bar()


class _Bar:
    def __enter__(self) -> Callable[[int, int], None]:
        try:
            from rich.progress import Progress
        except ImportError:
            raise ImportError("progress=True needs rich: pip install 'kullback[cli]', or pass a function of (drawn, wanted)") from None
        self._progress = Progress()
        self._progress.start()
        task = self._progress.add_task("sampling", total=None)
        return lambda done, total: self._progress.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

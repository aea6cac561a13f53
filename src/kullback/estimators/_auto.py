"""`kullback.kl(p, q, method="auto")`: the best way there is for a pair, and what it cost.

A closed form; else a sum with a proven bound (counts); else quadrature (the real line); else Monte Carlo.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from .._distributions.adapters import name_of
from .._distributions.objects import object_kl
from .._errors import InvalidOption, NoClosedForm, WrongType
from .._ops import ops_of
from ._compound import IndependentLaw
from ._estimate import Estimate
from ._law import Law, host_numbers, law_of
from ._mixtures import bounds
from ._monte_carlo import common_shape, invalid_elements, plain, run, unknown, without
from ._quadrature import can_integrate, integrate_kl
from ._summation import can_sum, exceeds, sum_kl

Array = Any
# What closed forms hold to, relative (docs/numerics.md).
_CLOSED = {"float32": 2e-5, "float64": 1e-11}
_TOL = 1e-9
_NUMBERS = 10_000_000  # terms or nodes
_SAMPLES = 1_000_000
# A quadrature worse than this is compared with Monte Carlo.
_POOR = 1e-3
# A law that lies more scales than this from 0 is shifted.
_FAR = 1024.0


def auto_kl(p: Any, q: Any, *, tol: float | None, budget: int | None, rng: Any) -> Estimate:
    if tol is not None and not 0.0 < tol < 1.0:
        raise InvalidOption(f"tol is {tol!r}: it must be between 0 and 1, the relative error to stop at")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (int, np.integer)) or budget < 100):
        raise InvalidOption(f"budget is {budget!r}: it must be a whole number of terms, nodes or samples, 100 or more")
    closed = _closed(p, q)
    if closed is not None and not np.isnan(closed.value).any():
        return closed
    try:
        found = _numeric(p, q, tol, budget, rng)
    except TypeError:
        if closed is not None:  # of invalid parameters, maybe
            return closed
        raise
    if closed is None:
        return found
    # There is a closed form for some elements of the batch only.
    there = ~np.isnan(np.broadcast_to(closed.value, np.shape(found.value)))
    if not there.any():
        return found
    return dataclasses.replace(
        found,
        value=plain(np.where(there, closed.value, found.value)),
        bound=plain(np.where(there, closed.bound, found.error)),
        stderr=None,
        method=f"closed form, or {found.method}",
    )


def _closed(p: Any, q: Any) -> Estimate | None:
    try:
        value = object_kl(p, q)
    except NoClosedForm:
        return None
    ops = ops_of(value)
    if ops is not None and not ops.can_look(value):
        raise WrongType("method='auto' looks at values, so it cannot be traced or compiled: call it outside, or use kullback.kl(p, q)")
    numbers = host_numbers(value)
    digits = "float64" if ops is None or value.dtype == ops.float64 else "float32"
    return Estimate(
        plain(numbers), None, 0, "closed form", bound=plain(np.where(np.isinf(numbers), 0.0, _CLOSED[digits] * np.abs(numbers)))
    )


def _numeric(p: Any, q: Any, tol: float | None, budget: int | None, rng: Any) -> Estimate:
    try:
        first, second = law_of(p), law_of(q)
    except TypeError as error:
        raise NoClosedForm(f"KL({name_of(p)}‖{name_of(q)}) can be neither computed nor estimated: {error}") from None
    shape = common_shape(first, second, name_of(p), name_of(q))
    invalid, flaw = invalid_elements(first, second, shape)
    if invalid.all():
        return unknown(shape, flaw)
    found = _by_axis(first, second, tol, budget)
    if found is None:
        found = _one_dimensional(first, second, shape, tol, budget)
    poor = ~invalid & (True if found is None else _poor(found))
    if found is None or poor.any():
        # Drawn by their own library, on their own device, where all of its parameters are valid.
        native = [law_of(x, native=not invalid.any()) for x in (p, q)]
        sampled = _sampled(native[0], native[1], shape, tol, budget, rng)
        if first.discrete and first.is_scalar:
            infinite = exceeds(first, second, shape)
            values = (np.where(infinite, x, y) for x, y in ((math.inf, sampled.value), (0.0, sampled.stderr)))
            value, stderr = map(plain, values)
            sampled = dataclasses.replace(sampled, value=value, stderr=stderr)
        found = sampled if found is None else _better(found, sampled, poor)
    if first.mixture is not None or second.mixture is not None:
        lower, upper = bounds(first, second, p, q, shape)
        lower = np.zeros(shape) if lower is None else lower
        found = dataclasses.replace(found, lower=plain(lower), upper=None if upper is None else plain(np.broadcast_to(upper, shape)))
    return without(found, invalid, flaw)


def _poor(found: Estimate) -> Array:
    value, bound = np.asarray(found.value), np.asarray(found.bound)
    with np.errstate(invalid="ignore"):
        return ((bound > _POOR * np.abs(value)) & (bound > 1e-9) & np.isfinite(value)) | np.isnan(value) | np.isnan(bound)


def _better(found: Estimate, sampled: Estimate, poor: Array) -> Estimate:
    """Take the estimate with the smaller error for each element whose first estimate is poor."""
    better = poor & ((sampled.stderr < found.bound) | np.isnan(found.value))
    if np.all(better):
        return sampled
    if not np.any(better):
        return found
    return dataclasses.replace(
        found,
        value=plain(np.where(better, sampled.value, found.value)),
        bound=plain(np.where(better, sampled.stderr, found.bound)),
        n=found.n + sampled.n,
        method=f"{found.method}, or {sampled.method}",
    )


def _one_dimensional(p: Law, q: Law, shape: tuple[int, ...], tol: float | None, budget: int | None) -> Estimate | None:
    if can_sum(p, q):
        total = sum_kl(p, q, shape, tol or _TOL, budget or _NUMBERS)
        if total is not None:
            return Estimate(plain(total.value), None, total.terms, "sum", bound=plain(total.bound))
    if can_integrate(p, q):
        p, q = _near_zero(p, q, shape)
        integral = integrate_kl(p, q, shape, tol or _TOL, budget or _NUMBERS)
        return Estimate(plain(integral.value), None, integral.nodes, "quadrature", bound=plain(integral.bound))
    return None


def _near_zero(p: Law, q: Law, shape: tuple[int, ...]) -> tuple[Law, Law]:
    """Both laws shifted alike, so that P is at 0 where its points would otherwise lose digits: KL does not change."""
    place = p.place()
    if place is None:
        return p, q
    loc, scale = (np.broadcast_to(x, shape) for x in place)
    shift = np.where(np.abs(loc) > _FAR * scale, loc, 0.0)
    if not shift.any():
        return p, q
    moved = p.moved(shift), q.moved(shift)
    return (p, q) if moved[0] is None or moved[1] is None else (moved[0], moved[1])


def _by_axis(p: Law, q: Law, tol: float | None, budget: int | None) -> Estimate | None:
    """Events of independent numbers: their divergences add up."""
    if not (isinstance(p, IndependentLaw) and isinstance(q, IndependentLaw) and p.count == q.count):
        return None
    if p.base.event_shape:
        return None
    shape = np.broadcast_shapes(p.base.batch_shape, q.base.batch_shape)
    found = _one_dimensional(p.base, q.base, shape, tol, budget)
    if found is None:
        return None
    axes = tuple(range(len(shape) - p.count, len(shape)))
    value, bound = (np.asarray(x).sum(axis=axes) if axes else x for x in (found.value, found.bound))
    return dataclasses.replace(found, value=plain(value), bound=plain(bound))


def _sampled(p: Law, q: Law, shape: tuple[int, ...], tol: float | None, budget: int | None, rng: Any) -> Estimate:
    def enough(value: Array, error: Array) -> bool:
        with np.errstate(invalid="ignore"):
            return bool(np.all((error <= (tol or 0.0) * np.abs(value)) | ~np.isfinite(value)))

    return run(p, q, shape, budget or _SAMPLES, rng, "k1", "control", None if tol is None else enough, None)


def scaled(found: Estimate, factor: float) -> Estimate:
    """The same in another unit."""
    parts = ("value", "stderr", "bound", "lower", "upper")
    changed: dict[str, Any] = {name: None if getattr(found, name) is None else getattr(found, name) * factor for name in parts}
    if found.interval is not None:
        changed["interval"] = tuple(x * factor for x in found.interval)
    return dataclasses.replace(found, **changed)

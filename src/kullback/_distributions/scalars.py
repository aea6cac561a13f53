"""A closed form of two distributions without a batch, on Python's own floats: an operation there costs a fiftieth of a framework's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

from .._ops import Array, dual, ops_of, scalar
from .._ops import numpy as numpy_ops
from .families import Record
from .registry import Formula, find


class _FloatFormula(NamedTuple):
    """How two families are evaluated: names of the parameters of each, the formula, and places of the parameters it holds for."""

    p: tuple[str, ...]
    q: tuple[str, ...]
    function: Formula
    positive: list[int]
    non_negative: list[int]
    unit: list[int]


# None: the formula needs more than numbers.
_plans: dict[tuple[type, type], _FloatFormula | None] = {}
# By the type of a parameter, how floats are read and made: `floats`, `from_float` and `from_float_with_slopes`.
_floats: dict[type, tuple[Any, Any, Any] | None] = {}


def kl_of_floats(p: Record, q: Record, again: Callable[[Any, Any], Array]) -> Array | None:
    """KL(p‖q), or None where this is no case for it: a batch, a tracer, a parameter at the edge of its range.

    again(p, q) is the general way, for derivatives of derivatives.
    """
    kinds = type(p), type(q)
    if kinds not in _plans:
        _plans[kinds] = _plan(p, q)
    plan = _plans[kinds]
    if plan is None:
        return None
    first, second = p.__dict__, q.__dict__
    given = [first[name] for name in plan.p] + [second[name] for name in plan.q]
    kind = type(given[0])
    if kind not in _floats:
        ops = ops_of(given[0]) or numpy_ops
        _floats[kind] = (ops.floats, ops.from_float, getattr(ops, "from_float_with_slopes", None)) if hasattr(ops, "floats") else None
    ways = _floats[kind]
    read = None if ways is None else ways[0](given)
    if ways is None or read is None:
        return None
    numbers, dtype, wanted = read
    for i in plan.positive:
        if not numbers[i] > 0.0:
            return None
    for i in plan.non_negative:
        if not numbers[i] >= 0.0:
            return None
    for i in plan.unit:
        if not 0.0 <= numbers[i] <= 1.0:
            return None
    n = len(plan.p)
    try:
        value = plan.function(scalar, _with(kinds[0], plan.p, numbers[:n]), _with(kinds[1], plan.q, numbers[n:]))
    except (ZeroDivisionError, ValueError, OverflowError):
        return None
    except (TypeError, AttributeError):
        _plans[kinds] = None
        return None
    if type(value) is not float or not value >= 0.0:
        return None
    if not wanted:
        return ways[1](value, dtype)

    def general(arrays: Sequence[Array]) -> Array:
        return again(p.with_parameters(arrays[:n]), q.with_parameters(arrays[n:]))

    return ways[2](value, dtype, partial(_slopes, plan, kinds, numbers), general, given)


def _slopes(plan: _FloatFormula, kinds: tuple[Any, Any], numbers: list[float]) -> list[float] | None:
    """Derivatives to all parameters, or None where the framework must find them."""
    n, variables = len(plan.p), dual.variables(numbers)
    try:
        value = plan.function(dual, _with(kinds[0], plan.p, variables[:n]), _with(kinds[1], plan.q, variables[n:]))
    except (ZeroDivisionError, ValueError, OverflowError, TypeError, AttributeError):
        return None
    slopes = list(value.d) if type(value) is dual.Dual else [0.0] * len(numbers)
    return slopes if all(map(math.isfinite, slopes)) else None


def _with(kind: Any, names: tuple[str, ...], numbers: Sequence[Any]) -> Any:
    """A record; without the frozen dataclass's own way, which takes longer than some formulas."""
    made = kind.__new__(kind)
    held = made.__dict__
    for name, number in zip(names, numbers):
        held[name] = number
    return made


def _plan(p: Record, q: Record) -> _FloatFormula | None:
    found = find(p, q)
    if found is None or found.p is not p or found.q is not q:
        return None
    if any(x.parameter_ndims or x.event_ndim or len(x.parameters()) < len(fields(x)) for x in (p, q)):
        return None
    names = [(x, name) for x in (p, q) for name in x.parameters()]
    places = [[i for i, (x, name) in enumerate(names) if name in getattr(x, kind)] for kind in ("positive", "non_negative", "unit")]
    return _FloatFormula(tuple(p.parameters()), tuple(q.parameters()), found.function, *places)

"""KL(P‖Q) of two distribution objects: read into records, looked up, and evaluated."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np

from .._errors import NoClosedForm
from .._forms import float_arrays
from .._ops import Array, common_ops
from .._ops import numpy as numpy_ops
from . import closed  # noqa: F401  registers the closed forms
from .adapters import at_home, name_of, read
from .batches import by_blocks
from .families import Record
from .registry import Found, families_with, find
from .scalars import kl_of_floats
from .shapes import check_shapes
from .structures import STRUCTURES, structural_kl
from .users import find_user_function


def _no_closed_form(p: Any, q: Any, first: Record, second: Record) -> NoClosedForm:
    after, before = families_with(type(first))[0], families_with(type(second))[1]
    parts = [f"KL({name_of(p)}‖{name_of(q)}) has no closed form here"]
    parts += [f"from {name_of(p)} there is one to {', '.join(after)}" if after else f"from {name_of(p)} there is none"]
    parts += [f"to {name_of(q)} from {', '.join(before)}" if before else f"to {name_of(q)} none"]
    return NoClosedForm("; ".join(parts) + _NEXT)


_NEXT = "; kullback.kl(p, q, method='auto') computes it numerically, with an error bar, and kullback.register_kl adds a form of your own"


def object_kl(p: Any, q: Any) -> Array:
    """One value per batch element."""
    function = find_user_function(type(p), type(q))
    if function is not None:
        return function(p, q)
    first, second = _read(p, q)
    value = _of_records(p, q, first, second)
    return at_home(value, p) if isinstance(value, (np.ndarray, np.generic)) else value


def _of_records(p: Any, q: Any, first: Record, second: Record) -> Array:
    value = kl_of_floats(first, second, _generally)
    if value is not None:
        return value
    if isinstance(first, STRUCTURES) or isinstance(second, STRUCTURES):
        value = structural_kl(object_kl, first, second)
        if value is None:
            raise _no_closed_form(p, q, first, second)
        return value
    found = find(first, second)
    if found is None:
        raise _no_closed_form(p, q, first, second)
    return _evaluate(found)


def _read(p: Any, q: Any) -> tuple[Record, Record]:
    try:
        return read(p), read(q)
    except TypeError as error:
        raise NoClosedForm(f"KL({name_of(p)}‖{name_of(q)}) has no closed form here: {error}{_NEXT}") from None


def _generally(p: Record, q: Record) -> Array:
    found = find(p, q)
    assert found is not None  # as it was for floats
    return _evaluate(found)


def _evaluate(found: Found) -> Array:
    named = [(f"{side}.{name}", x) for side, record in (("p", found.p), ("q", found.q)) for name, x in record.parameters().items()]
    ops = common_ops(named)
    arrays = float_arrays(ops, named, any_rank=True)
    check_shapes(ops, found, arrays)
    value = by_blocks(_values, ops, found, arrays)
    if value is None:
        inside = np.errstate(all="ignore") if ops is numpy_ops else nullcontext() if ops.double is None else ops.double()
        with inside:
            value = _at_once(ops, found, arrays)
    return value[()] if ops is numpy_ops else value  # a NumPy number, not an array without axes


def _at_once(ops: Any, found: Found, arrays: list[Array]) -> Array:
    wide = any(x.dtype == ops.float64 for x in arrays)
    inside = ops.widest(arrays[0])
    # What came as float32 needs no more than plain remainders of float64 (`special`).
    plain = not wide and inside == ops.float64 and hasattr(ops, "direct_ops")
    value = _values(ops.direct_ops if plain else ops, found, [ops.astype(x, inside) for x in arrays])
    return ops.astype(value, ops.float64 if wide else ops.float32)


def _values(ops: Any, found: Found, arrays: list[Array]) -> Array:
    """One value per batch element, of parameters of the dtype it is to be computed in."""
    n = len(found.p.parameters())
    sides = [found.p.with_parameters(arrays[:n]), found.q.with_parameters(arrays[n:])]
    value = found.function(ops, *sides)
    valid = _valid(ops, sides)
    if found.when is not None and ops.may_look(value):
        _refuse(ops, value, valid, arrays, found)
    return value if valid is None else ops.where(valid, value, math.nan)


def _refuse(ops: Any, value: Array, valid: Array | None, arrays: list[Array], found: Found) -> None:
    """No closed form for these parameters: NaN, though all of them are valid."""
    missing = np.isnan(ops.to_numpy(value))
    if valid is not None:
        missing = missing & ops.to_numpy(valid)
    if missing.any() and not any(np.isnan(ops.to_numpy(x)).any() for x in arrays):
        names = f"KL({type(found.p).__name__}‖{type(found.q).__name__})"
        raise NoClosedForm(f"{names} has a closed form for {found.when} only")


def _valid(ops: Any, sides: list[Any]) -> Array | None:
    """Where all parameters are in their range; None where any number is."""
    valid: Any = None
    for side in sides:
        for name in (*side.positive, *side.non_negative, *side.unit):
            x = getattr(side, name)
            if hasattr(ops, "least") and (ops.least(x) > 0.0 if name in side.positive else ops.least(x) >= 0.0) and name not in side.unit:
                continue  # the usual case, by one look
            good = x > 0.0 if name in side.positive else x >= 0.0
            good = good & (x <= 1.0) if name in side.unit else good
            axes = tuple(range(-side.parameter_ndims.get(name, 0), 0))
            good = ops.squeeze(ops.min(ops.where(good, 1.0 + x * 0.0, 0.0), axes), axes) > 0.0 if axes else good
            valid = good if valid is None else valid & good
    return valid

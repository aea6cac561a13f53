"""What the tables have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._ops import ops_of
from ..families import Delta, Independent, Record

Reader = Callable[[Any], Record]
Read = Callable[[Any], Record]


def fields(family: Any, *names: str) -> Reader:
    """The record of a class whose attributes of these names are its parameters."""
    return lambda d: family(*(getattr(d, name) for name in names))


def independent(base: Record, axes: int) -> Record:
    """Nested ones are one."""
    if isinstance(base, Independent):
        return Independent(base.base, base.reinterpreted + axes)
    return Independent(base, axes) if axes else base


def point(value: Any, axes: int) -> Record:
    return independent(Delta(value), axes)


def positive_diagonal(lower: Any) -> Any:
    """L with a positive diagonal, for the same L Lᵀ. The sign of a column is free, and the closed forms take logarithms of the diagonal."""
    ops = ops_of(lower)
    return ops.where(ops.diagonal(lower)[..., None, :] < 0.0, -lower, lower)


class Same:
    """Compares bijectors: the same object, or of one class with the same parameters. A tracer equals itself only."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and _same(self.parts, other.parts)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return ", ".join(type(x).__name__ for x in self.parts)


def _same(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(_same(a, b) for a, b in zip(x, y))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(_same(x[k], y[k]) for k in x)
    if isinstance(x, (int, float, str, bool)) or x is None:
        return bool(x == y)
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return _same_array(x, y)
    parameters = [_parameters(v) for v in (x, y)]
    return parameters[0] is not None and _same(*parameters)


def _same_array(x: Any, y: Any) -> bool:
    import numpy as np

    if tuple(x.shape) != tuple(y.shape) or x.dtype != y.dtype:
        return False
    try:
        return bool(np.array_equal(np.asarray(x), np.asarray(y)))
    except Exception:  # a tracer, or on a device that does not let itself be looked at
        return False


# What TFP's and other bijectors hold that says nothing about the function.
_IDLE = {"name", "validate_args", "parameters", "dtype"}


def _parameters(x: Any) -> dict[str, Any] | None:
    given = getattr(x, "parameters", None)
    if isinstance(given, dict):  # TFP
        return {k: v for k, v in given.items() if k not in _IDLE}
    attributes = getattr(x, "__dict__", None)
    if not attributes:
        # No state at all: the class says everything, unless it is a function or another opaque thing.
        return {} if attributes == {} and not callable(getattr(x, "__code__", None)) and not hasattr(x, "__code__") else None
    return {k: v for k, v in attributes.items() if "cache" not in k and k != "_inv"}

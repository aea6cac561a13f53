"""Readers of classes that several libraries have, and the comparison of bijectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._ops import ops_of
from .. import families as f
from ..families import Record
from . import Read, Reader


def fields(family: Any, *names: str) -> Reader:
    """The attributes of these names are the parameters of the family, in their order."""
    return Reader((family,), lambda d, read: family(*(getattr(d, name) for name in names)))


# (an object that was given by probabilities or by logits) -> those numbers, and "probs" or "logits"
Given = Callable[[Any], tuple[Any, str]]


def either(given: Given, probs: Any, logits: Any, *before: str) -> Reader:
    """A record of the family `probs` or `logits`. The attributes `before` are its first parameters."""

    def make(d: Any, read: Read) -> Record:
        numbers, form = given(d)
        family = probs if form == "probs" else logits
        record: Record = family(*(getattr(d, name) for name in before), numbers)
        return record

    return Reader((probs, logits), make)


def categories(given: Given) -> Reader:
    return Reader((f.Categorical,), lambda d, read: f.Categorical(*given(d)))


def draws(given: Given) -> Reader:
    """Counts of categories in `total_count` draws."""
    return Reader((f.Multinomial,), lambda d, read: f.Multinomial(d.total_count, *given(d)))


def transformed(base: str, functions: Callable[[Any], Sequence[Any]]) -> Reader:
    """The law of a function of a variable. The attribute `base` is the law of the variable itself.

    `functions(d)` are applied to the variable one after the other.
    """

    def make(d: Any, read: Read) -> Record:
        inner = getattr(d, base)
        return f.Transformed(read(inner), Same(*functions(d)), len(d.event_shape) - len(inner.event_shape))

    return Reader((f.Transformed,), make)


def independents(base: str, axes: Callable[[Any], int]) -> Reader:
    """Independent variables: the last `axes(d)` batch axes of the attribute `base` are one event."""
    return Reader((f.Independent,), lambda d, read: independent(read(getattr(d, base)), axes(d)))


def independent(base: Record, axes: int) -> Record:
    """Axes of independent axes are axes of one Independent record, and no axes need no record."""
    if isinstance(base, f.Independent):
        return f.Independent(base.base, base.reinterpreted + axes)
    return f.Independent(base, axes) if axes else base


def point(value: Any, axes: int) -> Record:
    return independent(f.Delta(value), axes)


def points(name: str, axes: int) -> Reader:
    """A point mass at the attribute `name`, whose last axes are one event."""
    return Reader((f.Delta, f.Independent), lambda d, read: point(getattr(d, name), axes))


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


# Attributes of bijectors that do not change the function.
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

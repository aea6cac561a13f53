"""One value a row to what the caller asked for: weights, unit, reduction, shape."""

from __future__ import annotations

import math
from typing import Any

from ._errors import InvalidOption
from ._forms import Inputs, is_number, shown
from ._ops import Array
from ._pairs import within_range

REDUCTIONS = ("none", "sum", "mean", "batchmean")


def check_options(reduction: Any, keepdims: bool, base: Any) -> None:
    if reduction not in REDUCTIONS:
        raise InvalidOption(f"reduction is {reduction!r}: it must be one of {', '.join(map(repr, REDUCTIONS))}")
    if keepdims and reduction != "none":
        raise InvalidOption(f"keepdims=True needs reduction='none', not {reduction!r}: a single number has no axes to keep")
    check_base(base)


def check_base(base: Any) -> None:
    if base is not None and not (is_number(base) and 1 < base < math.inf):
        raise InvalidOption(f"base is {shown(base)}: it must be a number above 1, such as 2 for bits; without a base the unit is nats")


def reduce_rows(inputs: Inputs, values: Array, *, reduction: str, keepdims: bool, base: float | None) -> Array:
    """`values` has one entry a row, with the category axes kept at size 1."""
    ops, weights = inputs.ops, inputs.weights
    if inputs.narrow:
        values = ops.astype(values, ops.float32)
    if base is not None:
        values = values / math.log(base)
    if reduction == "none":
        values = values if weights is None else _weighted(ops, values, ops.astype(weights, values.dtype))
        return values if keepdims else ops.squeeze(values, inputs.axes)
    weights = None if weights is None else ops.squeeze(weights, inputs.axes)
    return reduce_values(ops, ops.squeeze(values, inputs.axes), weights, reduction)


def _weighted(ops: Any, values: Array, weights: Array) -> Array:
    # What has weight 0 may be anything.
    return weights * ops.where(weights == 0.0, 0.0, values)


def reduce_values(ops: Any, values: Array, weights: Array | None, reduction: str) -> Array:
    """One value a distribution, and weights of the same shape, to what was asked for."""
    if weights is not None:
        weights = ops.astype(weights, values.dtype)
        weights = _relative(ops, weights) if reduction == "mean" else weights
        values = _weighted(ops, values, weights)
    if reduction == "none":
        return values
    if reduction == "mean":
        return ops.mean(values) if weights is None else ops.total(values) / _divisor(ops, weights)
    if reduction == "batchmean" and len(values.shape) > 0:
        return ops.total(values) / ops.length(values)
    return ops.total(values)


def _relative(ops: Any, weights: Array) -> Array:
    """Weights whose sum does not overflow, and loses no digits below the smallest number. A mean depends on their quotients alone."""
    if 0 in tuple(weights.shape):
        return weights
    return weights * within_range(ops, ops.stop_gradient(ops.max(weights, tuple(range(len(weights.shape))))))


def _divisor(ops: Any, weights: Array) -> Array:
    """All weights zero: 0, not 0/0."""
    total = ops.total(weights)
    return ops.where(total == 0.0, 1.0, total)


def row_weights(ops: Any, like: Array, weights: Array | None, reduction: str) -> Array:
    """What each value counts for in `reduce_values`, in the shape of `like`: for those who need derivatives before there are values."""
    dtype = ops.float64 if like.dtype == ops.float64 else ops.float32
    found = ops.astype(ops.where(like == like, 1.0, 1.0) if weights is None else weights, dtype)
    if reduction == "mean":
        found = _relative(ops, found)
        return found / _divisor(ops, found)
    return found / ops.length(found) if reduction == "batchmean" and len(found.shape) > 0 else found


def share_of_each(shape: Any, reduction: str) -> float:
    """What each of so many values counts for in `reduce_values` without weights."""
    if reduction == "mean":
        return 1.0 / max(1, math.prod(shape))
    return 1.0 / max(1, shape[0]) if reduction == "batchmean" and len(shape) > 0 else 1.0

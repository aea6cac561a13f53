"""One value a row to what the caller asked for: weights, unit, reduction, shape."""

from __future__ import annotations

import math
from typing import Any

from ._forms import Inputs, is_number
from ._ops import Array

REDUCTIONS = ("none", "sum", "mean", "batchmean")


def check_options(reduction: Any, keepdims: bool, base: Any) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}: it must be one of {', '.join(map(repr, REDUCTIONS))}")
    if keepdims and reduction != "none":
        raise ValueError(f"keepdims=True needs reduction='none', not {reduction!r}: a single number has no axes to keep")
    if base is not None and not (is_number(base) and 1 < base < math.inf):
        raise ValueError(f"base is {base!r}: it must be a number above 1 (2 for bits, 10 for dits, None for nats)")


def reduce_rows(inputs: Inputs, values: Array, *, reduction: str, keepdims: bool, base: float | None) -> Array:
    """`values` has one entry a row, with the category axes kept at size 1."""
    ops, weights = inputs.ops, inputs.weights
    if inputs.narrow:
        values = ops.astype(values, ops.float32)
    if base is not None:
        values = values / math.log(base)
    total_weight = None
    if weights is not None:
        weights = ops.astype(weights, values.dtype)
        values = weights * ops.where(weights == 0.0, 0.0, values)
        if reduction == "mean":
            total_weight = ops.total(weights)
    if reduction == "none":
        return values if keepdims else ops.squeeze(values, inputs.axes)
    values = ops.squeeze(values, inputs.axes)
    if reduction == "mean":
        if total_weight is None:
            return ops.mean(values)
        # All weights zero: 0, not 0/0.
        return ops.total(values) / ops.where(total_weight == 0.0, 1.0, total_weight)
    if reduction == "batchmean" and len(values.shape) > 0:
        return ops.total(values) / ops.length(values)
    return ops.total(values)

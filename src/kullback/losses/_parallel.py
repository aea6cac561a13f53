"""Losses on logits whose categories are spread over the ranks of a process group, or that come as DTensors.

`row_values` is the divergence of each row, the same on every rank; `of_dtensors` takes a loss apart and puts it together again. Which
collectives there are is in `_kernels.parallel_torch`, the formulas are in `_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._forms import inverse_temperature, is_number
from .._ops import Array
from ._rows import Statistics, slopes, statistics


def row_values(
    ops: Any, x: Array, y: Array, kind: str, w: float, scale: Any, group: Any, *, fused: bool = False, called: str = ""
) -> Array:  # fmt: skip
    """The divergence of each row of two arrays [..., columns of this rank], over the columns of all ranks. `scale` multiplies the logits:
    a number, [..., 1], or None. `fused`: this rank's part in Triton kernels. `called`: what else must be the same on all ranks."""
    from .._kernels import parallel_torch

    ranks = parallel_torch.Ranks(group)
    if x.device.type == "cpu":  # elsewhere the answer would have to be waited for
        wide = "float64" if ops.float64 in (x.dtype, y.dtype) else "float32"
        ranks.must_agree(
            f"logits of batch shape {tuple(x.shape[:-1])}, {wide} arithmetic{' in Triton' * fused}, {called or kind}, w = {w:g}"
        )
    if fused:
        from .._kernels import parallel_triton

        local = parallel_triton.local(kind, w, 1.0 if scale is None else scale if is_number(scale) else scale[..., 0], parallel_torch.Local)
    else:
        local = array_local(ops, kind, w, scale, parallel_torch.Local)
    return parallel_torch.Rows.apply(x, y, local, ranks)


def row_scale(ops: Any, temperature: Any, x: Array) -> Array | float | None:
    """What `row_values` multiplies logits by. A number stays one: on its way to a device it would be waited for."""
    if is_number(temperature) and temperature > 0:
        return None if temperature == 1 else 1.0 / float(temperature)
    return inverse_temperature(ops, temperature, x, (len(x.shape) - 1,))


def array_local(ops: Any, kind: str, w: float, scale: Any, local: Callable[..., Any]) -> Any:
    """A rank's part in array operations."""

    def wide(x: Array, y: Array) -> tuple[Array, Array]:
        dtype = ops.float64 if ops.float64 in (x.dtype, y.dtype) else ops.float32
        return ops.astype(x, dtype), ops.astype(y, dtype)

    def values(x: Array, y: Array, ranks: Any) -> tuple[Array, tuple[Array, ...]]:
        found = statistics(ops, kind, w, *wide(x, y), scale, (len(x.shape) - 1,), ranks.largest, ranks.total)
        return found.value[..., 0], tuple(found)

    def gradients(x: Array, y: Array, saved: Any, upstream: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
        upstream = ops.expand(upstream, (len(x.shape) - 1,))
        found = slopes(ops, kind, w, *wide(x, y), scale, Statistics(*saved), needs)
        # A row that nothing is wanted of may hold anything.
        return tuple(
            None if slope is None else ops.astype(ops.where(upstream == 0.0, 0.0, upstream * slope), z.dtype)
            for slope, z in zip(found, (x, y))
        )

    return local(values, gradients)


def of_dtensors(
    loss: Callable[..., Array],
    *,
    student: Any,
    teacher: Any,
    temperature: Any,
    weights: Any,
    reduction: str,
    valid: int | None,
    **options: Any,
) -> Array:
    """`loss` on the local parts of two DTensors, and its result a DTensor again."""
    from .._kernels import parallel_torch

    where = parallel_torch.layout(student, teacher)
    if len(getattr(temperature, "shape", ())) > 0:
        raise ValueError("temperature must be one number beside DTensors: rows lie on several ranks")
    local = tuple(x.to_local() for x in (student, teacher))
    if valid is not None:
        valid = min(max(valid - where.start, 0), local[0].shape[-1])
    # Over no group at all where rows are whole: rows that are no distributions are NaN, and do not raise on one rank while others wait.
    values = loss(student=local[0], teacher=local[1], temperature=temperature, reduction="none", valid=valid, group=where.groups, **options)
    values = parallel_torch.distributed(values, where)
    count = values.numel()
    if weights is not None:
        weights = parallel_torch.replicated(weights, where).to(values.dtype).expand(where.batch)
        values = weights * values.where(weights != 0.0, 0.0)
        count = weights.sum()
        count = count.where(count != 0.0, 1.0)
    if reduction == "none":
        return values
    total = values.sum()
    # Divided by hand: a mean of means is not the mean where ranks have different numbers of rows.
    if reduction == "mean":
        total = total / count
    elif reduction == "batchmean" and where.batch:
        total = total / where.batch[0]
    return parallel_torch.replicated(total, where)

"""Losses on logits whose categories are spread over the ranks of a process group, or that come as DTensors.

`row_values` is the divergence of each row, the same on every rank; `of_dtensors` takes a loss apart and puts it together again. Which
collectives there are is in `_kernels.parallel_torch`, the formulas are in `_rows`; those of sparse teachers in `sparse`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from .._errors import InvalidValue, WrongType
from .._forms import inverse_temperature, is_number, judged_weights
from .._ops import Array, ops_of
from ._dense import FIX, different_sizes
from ._rows import Statistics, slopes, statistics
from ._scaling import has_axes, learns


class Slice(NamedTuple):
    """A rank's part of a vocabulary: who has the others, its first category, how many it has, and how many there are in all."""

    ranks: Any
    start: int
    columns: int
    size: int


def check_framework(ops: Any) -> None:
    if ops.name != "PyTorch":
        hint = "; in JAX, shard the arrays" if ops.name == "JAX" else ""
        raise WrongType(f"group is of torch.distributed, and these are {ops.name} arrays{hint}")


def slice_of(ops: Any, group: Any, columns: int, x: Array, called: str) -> Slice:
    """Of ranks whose slices lie in their order, for arrays like x. The host waits for their sizes."""
    check_framework(ops)
    from .._kernels import parallel_torch

    ranks = parallel_torch.Ranks(group)
    if x.device.type == "cpu":
        ranks.must_agree(called)
    sizes, own = ranks.each(columns, x.device)
    return Slice(ranks, sum(sizes[:own]), columns, sum(sizes))


def refuse_together(group: Any, sentence: str) -> NoReturn:
    """Raise on this rank, on a CPU. Ranks that have found nothing wrong ask theirs what it was called with, and raise too."""
    from .._kernels import parallel_torch

    with contextlib.suppress(ValueError):
        parallel_torch.Ranks(group).must_agree(sentence)
    raise InvalidValue(sentence)


def row_values(
    ops: Any, x: Array, y: Array, kind: str, w: float, scale: Any, group: Any, *, fused: bool = False, called: str = ""
) -> Array:  # fmt: skip
    """The divergence of each row of two arrays [..., columns of this rank], over the columns of all ranks. `scale` multiplies the logits:
    a number, [..., 1], or None; it may learn. `fused`: this rank's part in Triton kernels, without that. `called`: what else must be the
    same on all ranks."""
    from .._kernels import parallel_torch

    ranks = parallel_torch.Ranks(group)
    if x.device.type == "cpu":  # elsewhere the answer would have to be waited for
        wide = "float64" if ops.float64 in (x.dtype, y.dtype) else "float32"
        ranks.must_agree(
            f"logits of batch shape {tuple(x.shape[:-1])}, {wide} arithmetic{' in Triton' * fused}, {called or kind}, w = {w:g}"
        )
    if fused:
        from .._kernels import parallel_triton

        local = parallel_triton.local(kind, w, parallel_torch.Local)
    else:
        local = array_local(ops, kind, w, parallel_torch.Local)
    return parallel_torch.Rows.apply(x, y, scale, local, ranks)


def row_scale(ops: Any, temperature: Any, x: Array) -> Array | float | None:
    """What `row_values` multiplies logits by. A number stays one: on its way to a device it would be waited for."""
    if is_number(temperature) and temperature > 0:
        return None if temperature == 1 else 1.0 / float(temperature)
    return inverse_temperature(ops, temperature, x, (len(x.shape) - 1,))


def array_local(ops: Any, kind: str, w: float, local: Callable[..., Any]) -> Any:
    """A rank's part in array operations."""

    def wide(x: Array, y: Array) -> tuple[Array, Array]:
        dtype = ops.float64 if ops.float64 in (x.dtype, y.dtype) else ops.float32
        return ops.astype(x, dtype), ops.astype(y, dtype)

    def values(x: Array, y: Array, scale: Any, ranks: Any) -> tuple[Array, tuple[Array, ...]]:
        found = statistics(ops, kind, w, *wide(x, y), scale, (len(x.shape) - 1,), ranks.largest, ranks.total)
        to_scale = (_to_scale(ops, kind, w, *wide(x, y), scale, found, ranks),) if learns(scale) else ()
        return found.value[..., 0], (*found, *to_scale)

    def gradients(x: Array, y: Array, scale: Any, saved: Any, upstream: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
        upstream = ops.expand(upstream, (len(x.shape) - 1,))
        *found, to_scale = saved if needs[2] else (*saved, None)
        to_logits = slopes(ops, kind, w, *wide(x, y), scale, Statistics(*found), needs[:2])
        # A row that nothing is wanted of may hold anything.
        return tuple(
            None if slope is None else ops.astype(ops.where(upstream == 0.0, 0.0, upstream * slope), z.dtype)
            for slope, z in zip((*to_logits, to_scale), (x, y, scale))
        )

    return local(values, gradients)


def _to_scale(ops: Any, kind: str, w: float, x: Array, y: Array, scale: Array, found: Statistics, ranks: Any) -> Array:
    """d value / d scale, over the columns of all ranks: Σ scaled slopes · logits / scale, these relative to their largest, since slopes
    sum to 0."""
    both = slopes(ops, kind, w, x, y, scale, found, (True, True))
    each = [
        slope * ops.where(z == -math.inf, 0.0, z - top)
        for slope, z, top in zip(both, (x, y), (found.top_a, found.top_b))
    ]  # fmt: skip
    return ranks.total(ops.sum(each[0] + each[1], (len(x.shape) - 1,))) / scale


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
    sizes = student.shape[-1], teacher.shape[-1]
    if sizes[0] != sizes[1] and (valid is None or valid > min(sizes)):  # by its values, one rank might raise while others wait for it
        raise InvalidValue(different_sizes("student", sizes[0], "teacher", sizes[1], FIX))
    if has_axes(temperature):
        raise InvalidValue("temperature must be one number beside DTensors: rows lie on several ranks")
    if not is_number(temperature):
        temperature = parallel_torch.local_number(temperature, where)
    local = tuple(x.to_local() for x in (student, teacher))
    if valid is not None:
        valid = min(max(valid - where.start, 0), local[0].shape[-1])
    # Over no group at all where rows are whole: rows that are no distributions are NaN, and do not raise on one rank while others wait.
    values = loss(student=local[0], teacher=local[1], temperature=temperature, reduction="none", valid=valid, group=where.groups, **options)
    values = parallel_torch.distributed(values, where)
    count = values.numel()
    if weights is not None:
        ops = ops_of(student)
        weights = judged_weights(ops, ops.asarray(weights, None))
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

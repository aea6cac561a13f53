"""Batches on the CPU, block by block: what a closed form holds in between stays in the cache.

Numbers are taken through NumPy, on the memory of the tensors, on threads; matrices through the framework's own solvers, and whatever
derivatives are wanted of through the framework. Knows nothing of any family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from .._kernels.cpu import on_threads
from .._ops import Array
from .._ops.blocks import direct_blocks, exact_blocks
from .registry import Found

# (ops, found, arrays) -> one value per batch element, of arrays of the dtype it is computed in
Values = Callable[[Any, Found, list[Array]], Array]

# Numbers in a block: a dozen arrays of it are in use at a time.
_BLOCK = 1 << 14
# Below this PyTorch starts no threads for an operation, which would wait for each other each time.
_FRAMEWORK_BLOCK = 1 << 15
# From here on it takes less time than the operations of any framework.
_FROM = 64


def by_blocks(values: Values, ops: Any, found: Found, arrays: list[Array]) -> Array | None:
    """The values, or None where this is no case for it: a small batch, a tracer, another device."""
    if not hasattr(ops, "constant_view") or not all(ops.may_look(x) for x in arrays) or max(math.prod(x.shape) for x in arrays) < _FROM:
        return None
    if any(len(side.parameters()) < len(fields(side)) for side in (found.p, found.q)):
        return None  # categories: the array kernels have blocks of their own
    ranks = [side.parameter_ndims.get(name, 0) for side in (found.p, found.q) for name in side.parameters()]
    batches = [tuple(x.shape[: len(x.shape) - rank]) for x, rank in zip(arrays, ranks)]
    full = np.broadcast_shapes(*batches)
    if 0 in full:
        return None
    one = max(math.prod(x.shape[len(batch) :]) for x, batch in zip(arrays, batches))
    views = [ops.constant_view(x) for x in arrays]
    constant = all(view is not None for view in views)
    if constant and max(ranks) < 2:
        like = next((x for x in arrays if x.dtype == ops.float64), arrays[0])
        return ops.from_view(_in_numpy(values, found, views, batches, full, max(1, _BLOCK // one)), like)
    if not hasattr(ops, "concatenate"):
        return None
    return _in_framework(values, ops, found, arrays, batches, full, max(1, _FRAMEWORK_BLOCK // one), constant)


def _parts(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Slices of the first axes that cover the shape, of at most that many elements."""
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner <= most:
        step = most // max(1, inner)
        yield from ((slice(start, start + step),) for start in range(0, shape[0], step))
        return
    for i in range(shape[0]):
        yield from ((slice(i, i + 1), *rest) for rest in _parts(shape[1:], most))


def _take(x: Array, batch: tuple[int, ...], full: tuple[int, ...], part: tuple[slice, ...]) -> Array:
    """The elements of x that the part needs. Axes of size 1, and axes that x lacks, stay as they are."""
    missing = len(full) - len(batch)
    return x[tuple(slice(None) if n == 1 else s for s, n in zip(part[missing:], batch))]


def _in_numpy(values: Values, found: Found, views: list[Any], batches: list[Any], full: tuple[int, ...], most: int) -> Array:
    wide = any(x.dtype == np.float64 for x in views)
    result = np.empty(full, np.float64 if wide else np.float32)
    ops = exact_blocks if wide else direct_blocks
    single = not wide and getattr(found.function, "in_float32", False)
    dtype, most = (np.float32, 4 * most) if single else (np.float64, most)

    def work(queue: Iterator[tuple[slice, ...]]) -> None:
        with np.errstate(all="ignore"):  # NumPy keeps this per thread
            for part in queue:
                # Events last in the shape and first in memory: NumPy is slow along short rows.
                block = [np.asarray(_take(x, batch, full, part), dtype, order="F") for x, batch in zip(views, batches)]
                result[part] = values(ops, found, block)

    on_threads(work, list(_parts(full, most)), math.prod(full))
    return result


def _in_framework(
    values: Values, ops: Any, found: Found, arrays: list[Array], batches: list[Any], full: tuple[int, ...], most: int, constant: bool
) -> Array | None:
    parts = list(_parts(full, most))
    if any(len(part) != 1 for part in parts):  # not along the first axis alone
        return None
    wide = any(x.dtype == ops.float64 for x in arrays)
    inside, dtype = (ops, ops.float64) if wide else (ops.direct_ops, ops.float32)
    done: list[Any] = [None] * len(parts)
    if constant:
        arrays = [ops.stop_gradient(x) for x in arrays]  # what the caller's thread knows of that, others do not

    def work(queue: Iterator[tuple[int, tuple[slice, ...]]]) -> None:
        with np.errstate(all="ignore"):
            for i, part in queue:
                block = [ops.astype(_take(x, batch, full, part), ops.float64) for x, batch in zip(arrays, batches)]
                done[i] = ops.astype(values(inside, found, block), dtype)

    on_threads(work, list(enumerate(parts)), max(math.prod(x.shape) for x in arrays) if constant else 0)
    return ops.concatenate(done)

"""Divergences of NumPy arrays (and of tensors that share memory with one), block by block.

Splits any layout into tiles that fit the cache, on as many threads as the process may use: the extra memory does not
grow with the number of rows. KL between like forms goes through `cpu_tiles`; what that leaves undecided, and every other
divergence, through the general formula, handed in as `evaluate`, on a few rows at a time.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from .cpu_tiles import LOG_LANES, PIECE, PROB_LANES, Lane, literal, log_gradients, merge_logs, merge_probs, prob_gradients
from .small import TOLERANCE, small_kl

Array = Any

# Elements in a tile. Smaller ones would fit the L2 cache, but threads hand over the GIL at every call of NumPy, and that costs more:
# with 65536, two threads are slower than one; with this, nearly twice as fast.
TILE = 1 << 19
# Elements that the general formula takes at a time: it holds some forty temporaries.
GENERAL = 1 << 14
# Elements of a tile of `run_literal`, all in float64.
_LITERAL = 1 << 17
# Up to here the general formula as it is takes less time than the bookkeeping below.
TINY = 4096
# Elements a thread takes at a time (or a quarter of all), at some 100 µs of bookkeeping.
# And the size from which a second thread pays for waking it (about 50 µs).
_TASK = 1 << 21
_THREADS_FROM = 1 << 17

_pool: ThreadPoolExecutor | None = None
# Where `busy` is there, in the threads of the pool and in one that shares its work with them: what is called then must not wait for them.
_here = threading.local()


def _forget_pool() -> None:
    # Threads do not survive a fork; the child makes its own.
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def thread_count() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, min(available, int(asked))) if asked.isdigit() else available


def on_threads(job: Callable[[Iterator[Any]], None], tasks: list[Any], size: int) -> None:
    """job(tasks) on several threads that take tasks from one iterator; the caller's is one of them."""
    global _pool
    threads = min(thread_count(), len(tasks)) if size >= _THREADS_FROM and not hasattr(_here, "busy") else 1
    queue = iter(tasks)  # next() of a list's iterator is atomic
    if threads == 1:
        job(queue)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(thread_count() - 1, "kullback", lambda: setattr(_here, "busy", True))
    try:
        others = [_pool.submit(job, queue) for _ in range(threads - 1)]
    except RuntimeError:  # the interpreter is shutting down
        others = []
    _here.busy = True
    try:
        job(queue)
    finally:
        del _here.busy
        for other in others:
            if not other.cancel():  # one that has not begun, behind someone else's, is not needed any more
                other.result()


def _merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Size and stride of several axes seen as one, or None if no single stride walks through them."""
    size, stride = 1, 0
    for n, step in zip(reversed(shape), reversed(strides)):
        if n == 1:
            continue
        if size == 1:
            stride = step
        elif step != stride * size:
            return None
        size *= n
    return size, stride


class _Rows:
    """An array as rows of categories: a view where strides allow, else rows are gathered when asked for."""

    def __init__(self, x: Array, batch: tuple[int, ...], axes: tuple[int, ...]) -> None:
        self.moved = x.transpose(batch + axes)
        cut = len(batch)
        self.batch = self.moved.shape[:cut]
        rows = _merged(self.batch, self.moved.strides[:cut])
        columns = _merged(self.moved.shape[cut:], self.moved.strides[cut:])
        self.view: Array | None = None
        if rows is not None and columns is not None:
            self.view = np.lib.stride_tricks.as_strided(self.moved, (rows[0], columns[0]), (rows[1], columns[1]))

    def take(self, start: int, stop: int) -> Array:
        return self.view[start:stop] if self.view is not None else self.pick(np.arange(start, stop))

    def pick(self, index: Array) -> Array:
        if self.view is not None:
            return self.view[index]
        rows = self.moved[np.unravel_index(index, self.batch)] if self.batch else self.moved
        return rows.reshape(len(index), -1)

    @property
    def contiguous(self) -> bool:
        return self.view is not None and (self.view.shape[1] == 1 or self.view.strides[1] == self.view.itemsize)


class _Buffers(dict[Any, Array]):
    """The arrays one thread works in, by name, shape and dtype."""

    def __call__(self, *key: Any) -> Array:
        found = self.get(key)
        if found is None:
            found = self[key] = np.empty(key[1], key[2])
        return found

    def tile(self, name: str, x: Array, dtype: Any) -> Array:
        """x as a contiguous array of that dtype: itself, or a copy."""
        if x.dtype == dtype and x.flags.c_contiguous and x.flags.aligned:
            return x
        made = self(name, x.shape, dtype)
        np.copyto(made, x, casting="same_kind")
        return made


def _column_ranges(count: int, most: int) -> list[tuple[int, int]]:
    """At most `most` columns each (a multiple of PIECE), and a multiple of PIECE or fewer than it."""
    edges = [*range(0, count, most), count]
    last = count - edges[-2]
    if last > PIECE and last % PIECE:
        edges.insert(-1, count - last % PIECE)
    return list(pairwise(edges))


def has_lanes(spec: Any, scale: Array | None) -> bool:
    """Is there anything faster here than the general formula?"""
    # With a temperature, sums of log-probabilities are not at hand.
    return spec.kind == "kl" and not spec.wide and (scale is None or spec.forms == ("logits", "logits"))


class _Call:
    """One call: what all threads share, each writing its own rows of `result`."""

    def __init__(self, evaluate: Callable[..., Array], ops: Any, spec: Any, x: Array, y: Array, scale: Array | None) -> None:
        self.evaluate, self.ops, self.spec = evaluate, ops, spec
        batch = tuple(i for i in range(x.ndim) if i not in spec.axes)
        self.kept = tuple(1 if i in spec.axes else n for i, n in enumerate(x.shape))
        self.rows = math.prod(x.shape[i] for i in batch)
        self.columns = math.prod(x.shape[i] for i in spec.axes)
        self.sides = [_Rows(side, batch, spec.axes) for side in (x, y)]
        self.scales = None if scale is None else np.broadcast_to(scale, self.kept).reshape(self.rows, 1)
        self.dtype = np.dtype(np.float64 if np.float64 in (x.dtype, y.dtype) else np.float32)
        self.result = np.empty(self.rows, self.dtype)
        self.lanes: tuple[Lane, ...] = ()
        self.merge: Callable[..., Array] = merge_logs
        if has_lanes(spec, scale):
            if spec.forms == ("probs", "probs"):
                self.lanes, self.merge = PROB_LANES[self.dtype], merge_probs
            else:
                self.lanes = LOG_LANES[self.dtype]
        # Across memory (an axis other than the last) rows share cache lines: take many, and fewer columns of each.
        flat = all(side.contiguous for side in self.sides)
        self.ranges = _column_ranges(self.columns, TILE if flat else 4 * PIECE)
        self.height = max(1, TILE // self.ranges[0][1])

    def general(self, index: Array) -> None:
        """The general formula on the rows with these numbers."""
        spec = self.spec._replace(axes=(1,))
        step = max(1, GENERAL // self.columns)
        for low in range(0, len(index), step):
            rows = index[low : low + step]
            p, q = (np.ascontiguousarray(side.pick(rows)) for side in self.sides)
            self.result[rows] = self.evaluate(self.ops, spec, p, q, None if self.scales is None else self.scales[rows])[:, 0]

    def tiled(self, start: int, stop: int, buffers: _Buffers) -> None:
        """Rows start to stop through the lanes, each trying what those before it have rejected."""
        blocks = [side.take(start, stop) for side in self.sides]
        scales = None if self.scales is None else self.scales[start:stop]
        tiles = [
            (slice(low, min(stop - start, low + self.height)), j)
            for low in range(0, stop - start, self.height)
            for j in range(len(self.ranges))
        ]
        shape = (stop - start, len(self.ranges))
        merged: Any = None
        hint = np.inf
        for lane in self.lanes:
            if not tiles:
                break
            if lane.least > hint or not (lane.scaled or scales is None):
                continue
            # Neighbours are alike: a lane that fails on the first tile is not tried on the others, nor is one that needs a larger KL.
            for group in (tiles[:1], tiles[1:]):
                raw: Any = None
                for rows, j in group:
                    p, q = (buffers.tile(n, block[rows, slice(*self.ranges[j])], lane.dtype) for n, block in zip("pq", blocks))
                    found = lane.sums(p, q, None if scales is None else scales[rows].astype(lane.dtype), buffers)
                    raw = np.full((len(found), *shape), np.nan) if raw is None else raw
                    for out, values in zip(raw, found):
                        out[rows, j] = values
                if raw is None:
                    break
                estimate, *done = lane.finish(lane, 1.0 if scales is None else scales, *raw)
                merged = np.full((len(done), *shape), np.nan) if merged is None else merged
                good = ~np.isnan(done[0])
                for out, values in zip(merged, done):
                    np.copyto(out, values, where=good)
                if not good.any():
                    largest = np.fmax.reduce(estimate, None)
                    hint = 2.0 * largest if largest < 1.0 else np.inf
                    break
            undecided = np.isnan(merged[0])
            tiles = [(rows, j) for rows, j in tiles if undecided[rows, j].any()]
        values = self.result[start:stop]
        values[:] = self.merge(self.spec, *merged)
        left = np.flatnonzero(np.isnan(values))
        if left.size:
            self.general(start + left)

    def work(self, queue: Iterator[tuple[int, int]]) -> None:
        buffers = _Buffers()
        with np.errstate(all="ignore"):  # NumPy keeps this per thread
            for start, stop in queue:
                if self.lanes:
                    self.tiled(start, stop, buffers)
                else:
                    self.general(np.arange(start, stop))


def run(evaluate: Callable[..., Array], ops: Any, spec: Any, x: Array, y: Array, scale: Array | None = None) -> Array:
    """One value a row, category axes kept at size 1. `evaluate(ops, spec, x, y, scale)` is the general formula."""
    if x.ndim == 1 and scale is None and has_lanes(spec, scale) and spec.tolerances == (TOLERANCE, TOLERANCE):
        value = small_kl(x, y, spec.forms[0]) if spec.forms[0] == spec.forms[1] else None
        if value is not None:
            return np.full(1, value)
    if x.size <= TINY:
        with np.errstate(all="ignore"):
            return evaluate(ops, spec, x, y, scale)
    call = _Call(evaluate, ops, spec, x, y, scale)
    # Not by the number of threads: the last digit of a result may depend on what is computed together, and must not on the machine.
    step = max(1, min(_TASK // call.columns, -(-call.rows // 4)))
    on_threads(call.work, [(low, min(call.rows, low + step)) for low in range(0, call.rows, step)], x.size)
    return call.result.reshape(call.kept)


def complete(evaluate: Callable[..., Array], ops: Any, spec: Any, draft: Array, x: Array, y: Array) -> Array:
    """What `run` returns, `draft` having all of it but the rows that are NaN; those along the last axis."""
    left = np.isnan(draft[..., 0])
    if not left.any():
        return draft.copy()
    if 8 * np.count_nonzero(left) > left.size:  # nothing is copied that way
        return run(evaluate, ops, spec, x, y)
    found = draft.copy()
    found[left] = run(evaluate, ops, spec._replace(axes=(1,)), x[left], y[left])
    return found


def run_gradients(
    gradients: Callable[..., Any], ops: Any, spec: Any, needs: Sequence[bool], x: Array, y: Array, scale: Array | None = None
) -> list[Array | None]:
    """`gradients(ops, spec, x, y, scale, needs)`, a few rows at a time: its temporaries then stay in the cache."""
    batch = tuple(i for i in range(x.ndim) if i not in spec.axes)
    kept = tuple(1 if i in spec.axes else n for i, n in enumerate(x.shape))
    rows, columns = math.prod(x.shape[i] for i in batch), math.prod(x.shape[i] for i in spec.axes)
    sides = [_Rows(side, batch, spec.axes) for side in (x, y)]
    scales = None if scale is None else np.broadcast_to(scale, kept).reshape(rows, 1)
    dtype = np.float64 if spec.wide or np.float64 in (x.dtype, y.dtype) else np.float32
    shapes = [side.moved.shape for side in sides] + ([] if scale is None else [(rows, 1)])
    found = [np.empty(shape, dtype) if need else None for shape, need in zip(shapes, needs)]
    flat = [None if out is None else out.reshape(rows, columns if i < 2 else 1) for i, out in enumerate(found)]
    in_rows = spec._replace(axes=(1,))
    lane = None
    if has_lanes(spec, scale) and dtype == np.float32:
        lane = prob_gradients if spec.forms[0] == "probs" else log_gradients
    step = max(1, (GENERAL if lane is None else _LITERAL) // columns)

    def store(index: Array, slopes: Sequence[Array | None]) -> None:
        for out, slope in zip(flat, slopes):
            if out is not None:
                out[index] = slope

    def general(index: Array) -> None:
        p, q = (np.ascontiguousarray(side.pick(index)) for side in sides)
        store(index, gradients(ops, in_rows, p, q, None if scales is None else scales[index], needs))

    def work(queue: Iterator[int]) -> None:
        buffers = _Buffers()
        with np.errstate(all="ignore"):
            for low in queue:
                high = min(rows, low + step)
                if lane is None:
                    general(np.arange(low, high))
                    continue
                p, q = (side.take(low, high) for side in sides)
                slopes = lane(p, q, None if scales is None else scales[low:high], needs, buffers)
                store(slice(low, high), slopes)
                strange = ~np.isfinite(sum(np.add.reduce(slope, 1) for slope in slopes if slope is not None))
                for i in np.flatnonzero(strange):
                    general(np.array([low + i]))

    on_threads(work, list(range(0, rows, step)), x.size)
    back = tuple(np.argsort(batch + spec.axes))
    found[:2] = [None if out is None else out.transpose(back) for out in found[:2]]
    if scale is not None and found[2] is not None:
        found[2] = found[2].reshape(kept)
    return found


def run_literal(spec: Any, x: Array, t: Array) -> Array:
    """t (log t - x), or exp(t) (t - x) for logarithms t: element by element, or summed over spec.axes, kept at size 1. In float64, as are
    the sums; the elements are rounded to the dtype of the arrays."""
    axes = spec.axes or (x.ndim - 1,) if x.ndim else ()
    batch = tuple(i for i in range(x.ndim) if i not in axes)
    sides = [_Rows(side, batch, axes) for side in (x, t)]
    if any(side.view is None for side in sides) and len(axes) == x.ndim > 1:
        # No single stride: rows along the longest axis, then, and a sum of their sums.
        longest = max(range(x.ndim), key=lambda i: x.shape[i])
        partial = run_literal(spec._replace(axes=(longest,)), x, t)
        return np.add.reduce(partial, axis=None, keepdims=True)
    rows, columns = math.prod(x.shape[i] for i in batch), math.prod(x.shape[i] for i in axes)
    dtype = np.float64 if np.float64 in (x.dtype, t.dtype) else np.float32
    step = max(1, min(_TASK // max(1, columns), -(-rows // 4)))
    ranges = list(pairwise([*range(0, columns, _LITERAL), columns])) if columns else []
    tasks = [(low, min(rows, low + step), *span) for low in range(0, rows, step) for span in ranges]
    sums = np.zeros((rows, len(ranges)))
    terms = None if spec.axes else np.empty((rows, columns), dtype)
    height = max(1, _LITERAL // max(1, columns))

    def work(queue: Iterator[tuple[int, int, int, int]]) -> None:
        buffers = _Buffers()
        with np.errstate(all="ignore"):
            for start, stop, left, right in queue:
                for low in range(start, stop, height):
                    high = min(stop, low + height)
                    a, b = (side.take(low, high)[:, left:right] for side in sides)
                    found = literal(a, b, spec.forms[1], buffers)
                    if terms is None:
                        np.add.reduce(found, 1, out=sums[low:high, left // _LITERAL])
                    else:
                        terms[low:high, left:right] = found

    on_threads(work, tasks, x.size)
    if terms is not None:
        return terms.reshape(x.shape)
    return np.add.reduce(sums, 1).reshape([1 if i in axes else n for i, n in enumerate(x.shape)])

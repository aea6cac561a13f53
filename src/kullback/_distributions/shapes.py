"""Batches broadcast and events do not: both are compared before any work, with one sentence for all frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._forms import has_rank
from .._ops import Array, ops_of
from .families import Record
from .registry import Found

Shape = tuple[Any, ...]


def check_shapes(ops: Any, found: Found, arrays: Sequence[Array]) -> None:
    """A ValueError where the sizes that are known forbid it. TensorFlow learns some sizes, and some ranks, only when the code runs."""
    p, q = found.p.parameter_ndims, found.q.parameter_ndims
    compared = not getattr(ops, "has_symbolic_sizes", bool)()
    if not p and not q:
        first = arrays[0].shape
        if not compared or all(x.shape == first for x in arrays):  # nearly always
            return
    if not all(map(has_rank, arrays)):
        return
    shapes = [tuple(x.shape) for x in arrays]
    n = len(found.p.parameters())
    ranks = [side.parameter_ndims.get(name, 0) for side in (found.p, found.q) for name in side.parameters()]
    if p and q:
        events = [shape[len(shape) - rank :] for shape, rank in zip(shapes, ranks)]
        _check_events(found, events[:n], events[n:])
    batches = [shape[: len(shape) - rank] for shape, rank in zip(shapes, ranks)]
    if compared and _broadcast(batches) is None:
        _refuse_batches(found, batches[:n], batches[n:])


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape of all together, or None. A size that is not known is None, and goes with any other."""
    full: list[Any] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for i, size in enumerate(shape, len(full) - len(shape)):
            if full[i] is None or full[i] == 1:
                full[i] = full[i] if size == 1 else size
            elif size is not None and size != 1 and size != full[i]:
                return None
    return tuple(full)


def last_sizes(record: Record, count: int) -> Shape | None:
    """The last axes of the batch of a record, or None where they are not known, or not there."""
    batches = []
    for name, x in record.parameters().items():
        ops = ops_of(x)
        if (hasattr(x, "shape") and not has_rank(x)) or getattr(ops, "has_symbolic_sizes", bool)():
            return None
        shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
        batches.append(shape[: len(shape) - record.parameter_ndims.get(name, 0)])
    full = _broadcast(batches)
    return full[-count:] if full is not None and len(full) >= count and None not in full[-count:] else None


def _refuse_batches(found: Found, *sides: Sequence[Shape]) -> None:
    whole = [_broadcast(side) for side in sides]
    for name, record, side, batch in zip("pq", (found.p, found.q), sides, whole):
        if batch is None:
            raise ValueError(f"the parameters of {name} have batch shapes that do not broadcast: {_listed(record, side)}")
    raise ValueError(f"p has batch shape {_written(whole[0])} and q has {_written(whole[1])}: they do not broadcast")


def _check_events(found: Found, *sides: Sequence[Shape]) -> None:
    # The first axis of each parameter counts. The second axis of a low-rank factor does not belong to the event.
    p, q = ([event[0] for event in side if event] for side in sides)
    if type(found.p) is not type(found.q):
        p, q = ([] if None in side else [max(side, default=0)] for side in (p, q))
    elif 1 in (p[0], q[0]) and len(p) > 1:
        p, q = p[1:], q[1:]  # one number as the mean stands for all coordinates
    if any(None not in (n, m) and n != m for n, m in zip(p, q)):
        listed = [_listed(record, side) for record, side in zip((found.p, found.q), sides)]
        raise ValueError(f"events have different shapes: p has {listed[0]}, and q {listed[1]}; batches broadcast, events do not")


def _listed(record: Record, shapes: Sequence[Shape]) -> str:
    batch = not any(shapes) or not record.parameter_ndims
    named = zip(record.parameters(), shapes)
    return ", ".join(f"{name} {_written(shape)}" for name, shape in named if batch or shape)


def _written(shape: Shape | None) -> str:
    return str(tuple("?" if n is None else n for n in shape or ())).replace("'", "")

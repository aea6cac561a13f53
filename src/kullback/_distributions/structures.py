"""KL of distributions made of distributions, from that of their parts.

Each rule takes the two records and `kl`, which answers for the parts. Whether an event of P can be one of Q is asked here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._forms import float_arrays, has_rank, must_broadcast
from .._ops import Array, common_ops
from . import families as f
from .families import Record
from .shapes import last_sizes

KL = Callable[[Record, Record], Array]
# Supports that start at 0 (`Record.support`).
_FROM_0 = ("positive", "unit", "counts", "trials", "binary")
STRUCTURES = (f.Independent, f.Masked, f.Repeated, f.Expanded, f.Product, f.Transformed, f.Shifted)


def structural_kl(kl: KL, p: Record, q: Record) -> Array | None:
    """None where the two have no structure in common: there is no rule for them."""
    # Masks and broadcast batches are outermost, whatever is inside.
    if isinstance(p, f.Masked) or isinstance(q, f.Masked):
        return _masked(kl, p, q)
    if isinstance(p, f.Expanded) or isinstance(q, f.Expanded):
        return _expanded(kl, p, q)
    if isinstance(p, f.Independent) or isinstance(q, f.Independent):
        return _independent(kl, p, q)
    if isinstance(p, f.Shifted) or isinstance(q, f.Shifted):
        return _shifted(kl, p, q)
    for kind, rule in ((f.Repeated, _repeated), (f.Product, _product), (f.Transformed, _transformed)):
        if isinstance(p, kind) and isinstance(q, kind):
            return rule(kl, p, q)
    return None


def _sum_last(value: Array, count: int) -> Array:
    ops = common_ops([("p", value)])
    axes = tuple(range(-count, 0))
    return ops.squeeze(ops.sum(value, axes), axes) if axes else value


def _masked(kl: KL, p: Any, q: Any) -> Array:
    """Where both are masked out, 0. Where one is, the other counts as it is in numpyro (0) and in no sense in TFP (NaN): NaN."""
    bases = [x.base if isinstance(x, f.Masked) else x for x in (p, q)]
    masks = [x.mask if isinstance(x, f.Masked) else True for x in (p, q)]
    value = kl(*bases)
    ops = common_ops([("p", value)])
    first, second = (ops.asarray(mask, None) for mask in masks)
    return ops.where(first & second, value, ops.where(first | second, value * 0.0 + math.nan, 0.0))


def _expanded(kl: KL, p: Any, q: Any) -> Array:
    value = kl(*(x.base if isinstance(x, f.Expanded) else x for x in (p, q)))
    ops = common_ops([("p", value)])
    for name, x in (("p", p), ("q", q)):
        if isinstance(x, f.Expanded) and x.batch_shape:
            if has_rank(value):
                must_broadcast([value.shape, x.batch_shape], ("the KL without expanded batches", f"the batch of {name}"), "they")
            shape = ops.asarray(np.zeros(x.batch_shape, np.float32), value)
            value, _ = ops.broadcast([value, shape])
    return value


def _independent(kl: KL, p: Any, q: Any) -> Array:
    """Axes of the batch that belong to one event: their divergences add up."""
    ranks = [x.reinterpreted if isinstance(x, f.Independent) else 0 for x in (p, q)]
    bases = [x.base if isinstance(x, f.Independent) else x for x in (p, q)]
    events = [rank + _event_ndim(base) for rank, base in zip(ranks, bases)]
    if events[0] != events[1]:
        names = [_describe(x) for x in (p, q)]
        raise ValueError(
            f"events have different shapes: of p = {names[0]} {events[0]} axes belong to one event, of q = {names[1]} {events[1]}"
        )
    shared = min(ranks)
    if shared and not any(isinstance(base, STRUCTURES) for base in bases):
        sizes = [last_sizes(base, shared) for base in bases]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(f"events have different shapes: p has independent parts of shape {sizes[0]}, and q of {sizes[1]}")
    if ranks[0] != ranks[1]:
        # One more of independent variables beside vectors: a normal vector of independent parts, or a point.
        vectors = [_as_vectors(base, rank - shared) for rank, base in zip(ranks, bases)]
        return _sum_last(kl(*vectors), shared)
    return _sum_last(kl(*bases), shared)


def _event_ndim(x: Any) -> int:
    if isinstance(x, f.Transformed):
        return _event_ndim(x.base) + x.event_axes
    if isinstance(x, f.Repeated):
        return _event_ndim(x.base) + len(x.sizes)
    if isinstance(x, (f.Shifted, f.Masked, f.Expanded)):
        return _event_ndim(x.base)
    if isinstance(x, f.Independent):
        return _event_ndim(x.base) + x.reinterpreted
    return int(x.event_ndim)


def _describe(x: Any) -> str:
    inner = getattr(x, "base", None)
    return type(x).__name__ + (f"({_describe(inner)})" if isinstance(inner, Record) else "")


def _as_vectors(x: Any, axes: int) -> Any:
    if axes == 0:
        return x
    if axes == 1 and isinstance(x, f.Normal):
        return f.MultivariateNormalDiag(x.loc, x.scale)
    return f.Independent(x, axes)


def _shifted(kl: KL, p: Any, q: Any) -> Array | None:
    """The KL of the bases, if they are shifted alike. It is inf if both have supports that start at 0 and P is shifted to start below Q.

    Other shifts have no closed form: None, or NaN where one may not look.
    """
    shifts = [x.loc if isinstance(x, f.Shifted) else 0.0 for x in (p, q)]
    bases = [x.base if isinstance(x, f.Shifted) else x for x in (p, q)]
    value = kl(*bases)
    below = math.inf if all(base.support in _FROM_0 for base in bases) else math.nan
    ops = common_ops([("p", value), ("p.loc", shifts[0]), ("q.loc", shifts[1])])
    value, first, second = float_arrays(ops, [("p", value), ("p.loc", shifts[0]), ("q.loc", shifts[1])], any_rank=True)
    if ops.may_look(first) and ops.may_look(second):
        above = ops.to_numpy(first) > ops.to_numpy(second)
        if above.any() or (math.isnan(below) and (ops.to_numpy(first) < ops.to_numpy(second)).any()):
            return None
    result = ops.where(first == second, value, ops.where(first < second, value * 0.0 + below, math.nan))
    return result[()] if ops.name == "NumPy" else result


def _repeated(kl: KL, p: Any, q: Any) -> Array:
    if p.sizes != q.sizes:
        raise ValueError(f"events have different shapes: p is {p.sizes} draws and q {q.sizes}")
    return math.prod(p.sizes) * kl(p.base, q.base)


def _product(kl: KL, p: Any, q: Any) -> Array:
    if p.parts.keys() != q.parts.keys():
        raise ValueError(f"p has the parts {list(p.parts)} and q {list(q.parts)}: they must be the same")
    values = [kl(part, q.parts[name]) for name, part in p.parts.items()]
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _transformed(kl: KL, p: Any, q: Any) -> Array | None:
    """The same one-to-one function of both does nothing; different ones are no case for a closed form."""
    if p.key != q.key or p.event_axes != q.event_axes:
        return None
    return _sum_last(kl(p.base, q.base), p.event_axes)

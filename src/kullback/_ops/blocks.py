"""NumPy primitives for a block of numbers that lies in the cache and may be looked at: branches are taken where they are needed only."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import numpy as numpy_ops
from .log_gamma import of_blocks, of_float32_blocks

_all, _any = np.logical_and.reduce, np.logical_or.reduce


def where(condition: Any, x: Any, y: Any) -> Any:
    shape = getattr(condition, "shape", None)
    if getattr(x, "shape", None) == shape and _all(condition, None):
        return x
    if getattr(y, "shape", None) == shape and not _any(condition, None):
        return y
    return np.where(condition, x, y)


def choose(condition: Any, yes: Any, no: Any, *arrays: Any) -> Any:
    """yes(*arrays) where the condition holds, no(*arrays) elsewhere; each sees only its own elements."""
    if not _any(condition, None):
        return no(*arrays)
    if _all(condition, None):
        return yes(*arrays)
    shape = np.broadcast_shapes(condition.shape, *(np.shape(x) for x in arrays))
    chosen = np.broadcast_to(condition, shape)
    result = np.empty(shape)
    for part, function in ((chosen, yes), (~chosen, no)):
        result[part] = function(*(np.broadcast_to(x, shape)[part] for x in arrays))
    return result


def refine(value: Any, size: Any, exact: Any, *arrays: Any, within: float) -> Any:
    """value where rounding errors of 1e-15 size are `within` of it; elsewhere exact(*arrays), which sees only what it is asked for."""
    close = ~(1e-15 * size <= within * value)
    if not _any(close, None):
        return value
    value = np.array(value)
    value[close] = exact(*((x if x.ndim > value.ndim else np.broadcast_to(x, value.shape))[close] for x in arrays))
    return value


def least(x: Any) -> Any:
    return np.minimum.reduce(x, None) if np.size(x) else np.inf


_own = {name: value for name, value in vars(numpy_ops).items() if not name.startswith("__")}
_own |= {"where": where, "choose": choose, "least": least}
# As they are, and for numbers that came as float32 (`direct`).
exact_blocks = SimpleNamespace(**_own, refine=partial(refine, within=5e-12), log_gamma_remainder=of_blocks)
direct_blocks = SimpleNamespace(**_own, refine=partial(refine, within=1e-7), log_gamma_remainder=of_float32_blocks, direct=True)

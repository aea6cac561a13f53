"""Rows of llama.cpp's files, compared: by `_kernels/clipped.h` where that is installed, and what it leaves by `llama.pool` in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels import compiled
from .._kernels.comparison import Rows
from .comparison import Buckets, NotComparable, compare_batch
from .llama import Clipped, pool

Array = Any


def compare_clipped(p: Any, q: Any, chosen: Array | None) -> tuple[Rows, Buckets]:
    """`p`, `q`: `Clipped` rows, or float64 arrays of log-probabilities; at least one is the former."""
    sides = [_native(side) for side in (p, q)]
    count, columns = (sides[0][0] if isinstance(p, Clipped) else p).shape
    rows = np.zeros(count, compiled.POOLED_ROW)
    if compiled.kernels is not None:
        compiled.kernels.compare_clipped(*sides, chosen, rows)
    found = Rows(**{name: rows[name] for name in Rows._fields if name != "decided"}, decided=rows["decided"] != 0)
    left = np.flatnonzero(~found.decided)
    step = max(1, (1 << 20) // columns)
    for low in range(0, len(left), step):
        part = left[low : low + step]
        p_part, q_part = (Clipped(*(x[part] for x in side)) if isinstance(side, Clipped) else side[part] for side in (p, q))
        pooled = pool(p_part, q_part, None if chosen is None else chosen[part])
        try:
            exact = compare_batch(pooled.p, pooled.q, ("log_probs", "log_probs"), (False, False), None)
        except NotComparable as error:
            raise NotComparable(str(error), int(part[error.row])) from None
        for name in ("kl_pq", "kl_qp", "js"):
            rows[name][part] = getattr(exact, name)
        for name in ("top_p", "top_q", "log_p", "log_q", "bucket_p", "bucket_q", "theirs"):
            rows[name][part] = getattr(pooled, name)
    return found, Buckets(rows["bucket_p"], rows["bucket_q"], rows["theirs"] if isinstance(p, Clipped) else None)


def _native(side: Any) -> Any:
    return (
        Clipped(side.codes.astype(np.uint16, copy=False), side.scale, side.low) if isinstance(side, Clipped) else np.ascontiguousarray(side)
    )

"""Rows of llama.cpp's files, compared: by `_kernels/clipped.h` where that is installed, and what it leaves by `llama.pool` in NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._checks import complaint
from .._errors import NotComparable
from .._kernels import compiled
from .._kernels.comparison import LOG_FORMS, Rows, widened
from .comparison import Buckets, compare_batch, not_comparable
from .llama import Clipped, pool

Array = Any


class Plain(NamedTuple):
    """The other side, where that is no such file."""

    numbers: Array
    form: str
    half: bool

    @property
    def tolerance(self) -> float:
        """Of sums."""
        return np.inf if self.form in ("logits", "counts") else 5e-2 if self.half else 1e-3


def compare_clipped(p: Clipped | Plain, q: Clipped | Plain, chosen: Array | None) -> tuple[Rows, Buckets]:
    """At least one is `Clipped`."""
    count, columns = p[0].shape
    rows = np.zeros(count, compiled.POOLED_ROW)
    if compiled.kernels is not None:
        compiled.kernels.compare_clipped(_as_the_kernel_has_it(p), _as_the_kernel_has_it(q), chosen, rows)
    found = Rows(**{name: rows[name] for name in Rows._fields if name != "decided"}, decided=rows["decided"] != 0)
    left = np.flatnonzero(~found.decided)
    step = max(1, (1 << 20) // columns)
    for low in range(0, len(left), step):
        part = left[low : low + step]
        try:
            sides = [_some(side, part, name) for side, name in ((p, "p"), (q, "q"))]
            tops = widened(p[0][part]).argmax(1), widened(q[0][part]).argmax(1)
            pooled = pool(sides[0], sides[1], None if chosen is None else chosen[part], tops)
            exact = compare_batch(pooled.p, pooled.q, ("log_probs", "log_probs"), (False, False), None)
        except NotComparable as error:
            raise not_comparable(error.complaint._replace(row=(int(part[error.complaint.row[0]]),))) from None
        for name in ("kl_pq", "kl_qp", "js"):
            rows[name][part] = getattr(exact, name)
        for name in ("top_p", "top_q", "log_p", "log_q", "bucket_p", "bucket_q", "theirs"):
            rows[name][part] = getattr(pooled, name)
    return found, Buckets(rows["bucket_p"], rows["bucket_q"], rows["theirs"] if isinstance(p, Clipped) else None)


def _as_the_kernel_has_it(side: Clipped | Plain) -> tuple[Any, ...]:
    if isinstance(side, Clipped):
        return side.codes.astype(np.uint16, copy=False), side.scale, side.low
    x = side.numbers
    if side.form not in LOG_FORMS:
        with np.errstate(all="ignore"):
            x = np.log(widened(x), dtype=np.float64)
    return np.require(x, requirements=["C", "A"]), side.tolerance


def _some(side: Clipped | Plain, part: Array, name: str) -> Any:
    """Rows of it, for `pool`: of numbers, their normalised logarithms in float64. A row that is no distribution raises."""
    if isinstance(side, Clipped):
        return Clipped(*(x[part] for x in side))
    x = widened(side.numbers[part])
    with np.errstate(all="ignore"):
        log = x.astype(np.float64) if side.form in LOG_FORMS else np.log(x, dtype=np.float64)
        top = log.max(1, keepdims=True)
        total = np.log(np.sum(np.exp(log - top), 1, keepdims=True)) + top
        wrong = ~np.isfinite(total[:, 0]) & ~np.isnan(x).any(1)
        wrong |= np.abs(np.expm1(total[:, 0])) > side.tolerance
    if side.form not in LOG_FORMS:
        wrong |= (x < 0).any(1)
    for row in np.flatnonzero(wrong):
        found = complaint(x[row], side.form)
        if found is not None:
            raise not_comparable(found._replace(side=name, row=(int(row),)))
    return log - total

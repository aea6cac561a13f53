"""A rank's part of rows that are spread over ranks, in Triton: the kernels of `rows_triton`, stopped where ranks exchange sums.

The logits are read once for both normalisers and once for the divergence; gradients are written by `rows_triton.gradients`, from the same
seven numbers a row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .math_triton import INF, LOG2E, _bregman, _difference, _exp2, _expm1, _load, _log_ratio, _mixture, _of_row
from .mixed_triton import KINDS
from .rows_triton import _block, _exact, _normalisers, _scales, gradients, rows
from .slices_triton import PerRow


@triton.jit
def masses_kernel(
    x, y, out, N,
    V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, scales, scale_row, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each row: a number near the largest of a, the same of b, and the sums of exponentials relative to them."""
    row = tl.program_id(0).to(tl.int64)
    scale = _of_row(scales, row, scale_row)
    top_a, sum_a, top_b, sum_b = _normalisers(x, y, row, V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, scale, BLOCK)
    tl.store(out + row, top_a)
    tl.store(out + N + row, top_b)
    tl.store(out + 2 * N + row, sum_a)
    tl.store(out + 3 * N + row, sum_b)


@triton.jit
def terms_kernel(
    x, y, out, stats, N,
    V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, scales, scale_row, w,
    KIND: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """This piece's part of the divergence of each row, and of the sums that its gradients subtract and its rounding is known by."""
    row = tl.program_id(0).to(tl.int64)
    scale = _of_row(scales, row, scale_row)
    base = stats + row * 7
    top_a = tl.load(base)
    log_a = tl.load(base + 1)
    top_b = tl.load(base + 2)
    log_b = tl.load(base + 3)
    r = tl.load(base + 4)
    unit = scale * LOG2E
    value = tl.zeros([BLOCK], tl.float32)
    other = tl.zeros([BLOCK], tl.float32)
    for_p = tl.zeros([BLOCK], tl.float32)
    for_q = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        a = _load(x, row, columns, VALID_X, x_row, x_column)
        b = _load(y, row, columns, VALID_Y, y_row, y_column)
        p = _exp2((a - top_a) * unit - log_a)
        q = _exp2((b - top_b) * unit - log_b)
        v = _log_ratio(a, b, top_a, top_b, scale, r, EXACT)
        if KIND == 0:
            # Where only q is absent it is infinite, however small p is.
            value += tl.where((b == -INF) & (a != -INF), INF, _bregman(p, q, v))
            for_q += _difference(p, q, v)
        else:
            m, to_p, to_q = _mixture(p, q, v, w)
            value += _bregman(p, m, to_p)
            if KIND == 1:
                other += _bregman(q, m, to_q)
                for_p -= tl.where(p > 0.0, p * to_p, 0.0)
                for_q -= tl.where(q > 0.0, q * to_q, 0.0)
            else:
                other -= tl.where(p > 0.0, p * to_p, 0.0)
                ratio = _expm1(-to_p)
                for_p += p * (-to_p - (1.0 - w) * ratio)
                for_q += q * ratio
    tl.store(out + row, tl.sum(value, 0))
    tl.store(out + N + row, tl.sum(for_p, 0))
    tl.store(out + 2 * N + row, tl.sum(for_q, 0))
    if KIND > 0:
        tl.store(out + 3 * N + row, tl.sum(other, 0))


def _settled(kl: Any, mean: Any) -> Any:
    """As in `rows_triton`: what r is off by is known, and taken out."""
    excess = kl - mean
    return torch.where(excess.abs() < 1e-3, (kl - excess * excess * (0.5 - excess * (1.0 / 3.0))).clamp_min(0.0), kl)


def statistics(x: Any, y: Any, kind: str, w: float, scales: PerRow, ranks: Any) -> tuple[Any, Any]:
    """The divergence of each row of two [rows, columns] arrays, over the columns of all ranks, and what `gradients` takes."""
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    block, warps = _block(columns)
    arguments = (columns, x.shape[1], y.shape[1], *x.stride(), *y.stride(), *scales)
    found = torch.empty(4, n, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        masses_kernel[(n,)](x, y, found, n, *arguments, BLOCK=block, num_warps=warps)
    tops, sums = found[:2], found[2:]
    # A piece may be all absent; a row that is has no largest, and becomes NaN.
    tops = torch.where(sums == 0, -torch.inf, tops)
    top = ranks.largest(tops.clone())
    top = torch.where(top == -torch.inf, torch.nan, top)
    sums = ranks.total(torch.where(sums == 0, 0.0, sums * torch.exp((tops - top) * scales[0])))
    log_a, log_b = torch.log2(sums)
    r = torch.log(sums[1] / sums[0])
    stats = torch.stack([top[0], log_a, top[1], log_b, r, r, r], 1)
    parts = torch.empty(3 if kind == "kl" else 4, n, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        terms_kernel[(n,)](x, y, parts, stats, n, *arguments, w, KIND=KINDS[kind], EXACT=_exact(x, y), BLOCK=block, num_warps=warps)
    value, for_p, for_q, *other = ranks.total(parts)
    if kind == "kl":
        # Σ (q − p) is the excess itself.
        value = _settled(value, value - for_q)
        stats[:, 4] = torch.where(for_q.abs() < 1e-3, r + torch.log1p(for_q), r)
        for_p, for_q = value, torch.zeros_like(value)
    elif kind == "js":
        value = (1.0 - w) * _settled(value, for_p) + w * _settled(other[0], for_q)
    else:
        value = _settled(value, other[0])
    stats[:, 5], stats[:, 6] = for_p, for_q
    return value, stats


def local(kind: str, w: float, made: Any) -> Any:
    """A rank's part, as `parallel_torch.Rows` takes it."""

    def scales(scale: Any, x: Any) -> PerRow:
        each = 1.0 if scale is None else scale[..., 0] if torch.is_tensor(scale) else scale
        return _scales(each, x, x.shape[:-1])

    def values(x: Any, y: Any, scale: Any, ranks: Any) -> tuple[Any, tuple[Any, ...]]:
        value, stats = statistics(rows(x), rows(y), kind, w, scales(scale, x), ranks)
        return value.reshape(x.shape[:-1]), (stats,)

    def slopes(x: Any, y: Any, scale: Any, saved: Any, upstream: Any, needs: Any) -> tuple[Any, ...]:
        found = [torch.empty(z.shape, dtype=z.dtype, device=z.device) if need else None for z, need in zip((x, y), needs)]
        upstream = upstream.float().reshape(-1).contiguous()
        into = (None if z is None else rows(z) for z in found)
        gradients(rows(x), rows(y), saved[0], upstream, kind, w, scales(scale, x), *into)
        return (*found, None)

    return made(values, slopes)

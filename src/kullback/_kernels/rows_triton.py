"""Divergences of the rows of two logits arrays in Triton: nothing of their size is written but gradients.

Where one side learns, value and gradient come from `kl_triton` and `mixed_triton` at once. Values alone of KL are in `kl_values_triton`,
those of divergences to a mixture here, one program a row: the first pass finds both normalisers, the second the divergence. Another
kernel, one program a tile, writes gradients from the rows' statistics. Arithmetic is float32, in the cancellation-free form of
`_calculus`, to which double precision and second derivatives are left. TRITON_INTERPRET=1 runs it without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import kl_triton, kl_values_triton, mixed_triton
from .math_triton import (
    INF,
    INTERPRETED,
    LOG2E,
    _bregman,
    _difference,
    _exp2,
    _expm1,
    _load,
    _log_ratio,
    _mixture,
    _of_row,
    _pivot,
)
from .mixed_triton import KINDS
from .slices_triton import PerRow

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The column of the statistics that has log(sum_b / sum_a): finite for rows that are distributions.
LOG_RATIO = 4


@triton.jit
def _normalisers(x, y, row, V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, scale, BLOCK: tl.constexpr):
    """Of each row: a number near its largest, and the sum of exponentials relative to it.

    Any pivot does while nothing overflows, so the largest of the first tile serves, and only rows that rise 2⁶⁰ above it are summed again;
    and those of which the first tile has nothing, where the rest may underflow.
    """
    unit = scale * LOG2E
    columns = tl.arange(0, BLOCK)
    pivot_a = _pivot(tl.max(_load(x, row, columns, VALID_X, x_row, x_column), 0))
    pivot_b = _pivot(tl.max(_load(y, row, columns, VALID_Y, y_row, y_column), 0))
    lanes_a = tl.zeros([BLOCK], tl.float32)
    lanes_b = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        lanes_a += _exp2((_load(x, row, columns, VALID_X, x_row, x_column) - pivot_a) * unit)
        lanes_b += _exp2((_load(y, row, columns, VALID_Y, y_row, y_column) - pivot_b) * unit)
    sum_a = tl.sum(lanes_a, 0)
    sum_b = tl.sum(lanes_b, 0)
    if (sum_a > 1e18) | (sum_b > 1e18) | (sum_a < 1e-18) | (sum_b < 1e-18):
        top_a = tl.full([BLOCK], -INF, tl.float32)
        top_b = tl.full([BLOCK], -INF, tl.float32)
        for start in range(0, V, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            top_a = tl.maximum(top_a, _load(x, row, columns, VALID_X, x_row, x_column))
            top_b = tl.maximum(top_b, _load(y, row, columns, VALID_Y, y_row, y_column))
        pivot_a = _pivot(tl.max(top_a, 0))
        pivot_b = _pivot(tl.max(top_b, 0))
        lanes_a = tl.zeros([BLOCK], tl.float32)
        lanes_b = tl.zeros([BLOCK], tl.float32)
        for start in range(0, V, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            lanes_a += _exp2((_load(x, row, columns, VALID_X, x_row, x_column) - pivot_a) * unit)
            lanes_b += _exp2((_load(y, row, columns, VALID_Y, y_row, y_column) - pivot_b) * unit)
        sum_a = tl.sum(lanes_a, 0)
        sum_b = tl.sum(lanes_b, 0)
    return pivot_a, sum_a, pivot_b, sum_b


@triton.jit
def _settled(kl, mean):
    # KL(P‖M) from Σ p φ(l) and −Σ p l, l = log(m/p). r is rounded: off by δ, Σ p eˡ is 1 + X = e^δ instead of 1, X being their difference,
    # and KL = Σ p φ(l) + log1p(X) − X.
    excess = kl - mean
    return tl.where(tl.abs(excess) < 1e-3, tl.maximum(kl - excess * excess * (0.5 - excess * (1.0 / 3.0)), 0.0), kl)


@triton.jit
def mixtures_kernel(
    x, y, out, stats, V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, scales, scale_row, w,
    KIND: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """JS or KL(P‖M) of a row."""
    row = tl.program_id(0).to(tl.int64)
    scale = _of_row(scales, row, scale_row)
    top_a, sum_a, top_b, sum_b = _normalisers(x, y, row, V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, scale, BLOCK)
    r = tl.log(sum_b / sum_a)
    log_a = tl.log2(sum_a)
    log_b = tl.log2(sum_b)
    unit = scale * LOG2E
    kl_p = tl.zeros([BLOCK], tl.float32)
    kl_q = tl.zeros([BLOCK], tl.float32)
    for_p = tl.zeros([BLOCK], tl.float32)
    for_q = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        a = _load(x, row, columns, VALID_X, x_row, x_column)
        b = _load(y, row, columns, VALID_Y, y_row, y_column)
        p = _exp2((a - top_a) * unit - log_a)
        q = _exp2((b - top_b) * unit - log_b)
        m, to_p, to_q = _mixture(p, q, _log_ratio(a, b, top_a, top_b, scale, r, EXACT), w)
        kl_p += _bregman(p, m, to_p)
        if KIND == 1:
            kl_q += _bregman(q, m, to_q)
            # −E[log(m/p)] rather than KL(P‖M): what r is off by cancels in the gradient.
            for_p -= tl.where(p > 0.0, p * to_p, 0.0)
            for_q -= tl.where(q > 0.0, q * to_q, 0.0)
        else:
            kl_q -= tl.where(p > 0.0, p * to_p, 0.0)
            ratio = _expm1(-to_p)
            for_p += p * (-to_p - (1.0 - w) * ratio)
            for_q += q * ratio
    value = _settled(tl.sum(kl_p, 0), tl.sum(for_p if KIND == 1 else kl_q, 0))
    if KIND == 1:
        value = (1.0 - w) * value + w * _settled(tl.sum(kl_q, 0), tl.sum(for_q, 0))
    tl.store(out + row, value)
    base = stats + row * 7
    tl.store(base, top_a)
    tl.store(base + 1, log_a)
    tl.store(base + 2, top_b)
    tl.store(base + 3, log_b)
    tl.store(base + 4, r)
    tl.store(base + 5, tl.sum(for_p, 0))
    tl.store(base + 6, tl.sum(for_q, 0))


@triton.jit
def gradients_kernel(
    x, y, to_x, to_y, stats, upstream,
    V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, gx_row, gy_row, scales, scale_row, w,
    KIND: tl.constexpr, EXACT: tl.constexpr, FOR_X: tl.constexpr, FOR_Y: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """upstream · d value / d logits, of one side or both, from the statistics of the row."""
    row = tl.program_id(0).to(tl.int64)
    scale = _of_row(scales, row, scale_row)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    base = stats + row * 7
    top_a = tl.load(base)
    log_a = tl.load(base + 1)
    top_b = tl.load(base + 2)
    log_b = tl.load(base + 3)
    r = tl.load(base + 4)
    for_p = tl.load(base + 5)
    for_q = tl.load(base + 6)
    weight = tl.load(upstream + row)
    # A row that is no distribution has no derivatives, unless it does not count.
    factor = tl.where(weight == 0.0, 0.0, tl.where(tl.abs(r) < INF, weight * scale, float("nan")))
    a = _load(x, row, columns, VALID_X, x_row, x_column)
    b = _load(y, row, columns, VALID_Y, y_row, y_column)
    unit = scale * LOG2E
    p = _exp2((a - top_a) * unit - log_a)
    q = _exp2((b - top_b) * unit - log_b)
    v = _log_ratio(a, b, top_a, top_b, scale, r, EXACT)
    if KIND == 0:
        v -= for_q  # what rounding took from r
        # Where KL is infinite there is none to p.
        g_p = -tl.where(for_p < INF, tl.where(p > 0.0, p * (v + for_p), 0.0), float("nan"))
        g_q = _difference(p, q, v)
    else:
        _, m_over_p, m_over_q = _mixture(p, q, v, w)
        if KIND == 1:
            g_p = -(1.0 - w) * p * (m_over_p + for_p)
            g_q = -w * q * (m_over_q + for_q)
        else:
            ratio = _expm1(-m_over_p)
            g_p = p * (-m_over_p - (1.0 - w) * ratio - for_p)
            g_q = -w * q * (ratio - for_q)
    if FOR_X:
        tl.store(
            to_x + row * gx_row + columns,
            tl.where(factor == 0.0, 0.0, g_p * factor).to(to_x.dtype.element_ty),
            mask=columns < VALID_X,
        )
    if FOR_Y:
        tl.store(
            to_y + row * gy_row + columns,
            tl.where(factor == 0.0, 0.0, g_q * factor).to(to_y.dtype.element_ty),
            mask=columns < VALID_Y,
        )


@triton.jit
def scale_kernel(x, factor, N, BLOCK: tl.constexpr):
    """x *= factor, and nothing at all for a factor of 1, without the host having to know."""
    f = tl.load(factor)
    if f != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, N, tl.num_programs(0).to(tl.int64) * BLOCK):
            i = start + tl.arange(0, BLOCK)
            tl.store(x + i, (tl.load(x + i, mask=i < N).to(tl.float32) * f).to(x.dtype.element_ty), mask=i < N)


def multiply(x: Any, factor: Any) -> None:
    """x *= factor, a number on the device."""
    # Programs that find nothing to do cost time too: few, in a loop.
    scale_kernel[(min(triton.cdiv(x.numel(), 4096), 1024),)](x, factor, x.numel(), BLOCK=4096)


_STEP = (2048, 8)  # columns and warps; the fastest of those tried on an H200


def _block(columns: int) -> tuple[int, int]:
    """Columns a step, and warps."""
    if INTERPRETED:
        return 128, 4
    block = min(_STEP[0], max(128, triton.next_power_of_2(columns)))
    return block, max(1, min(_STEP[1], block // 128))


def rows(x: Any) -> Any:
    """x as [rows, columns], without a copy where its strides allow."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _scales(scale: Any, x: Any, batch: Any) -> PerRow:
    """One factor of the logits for all rows, or one a row, on the device."""
    if not torch.is_tensor(scale):
        return float(scale), None
    if scale.numel() == 1:
        return scale.reshape(1).to(x.device, torch.float32), 0
    return scale.to(x.device, torch.float32).expand(*batch).reshape(-1).contiguous(), 1


def values(x: Any, y: Any, kind: str, w: float, scales: PerRow) -> tuple[Any, Any]:
    """The divergence of each row of two [rows, columns] arrays, and the statistics `gradients` takes. Columns that one side has more than
    the other are absent from the other."""
    if kind == "kl":
        return kl_values_triton.values(x, y, scales)
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    out = torch.empty(n, dtype=torch.float32, device=x.device)
    stats = torch.empty(n, 7, dtype=torch.float32, device=x.device)
    if n == 0:
        return out, stats
    block, warps = _block(columns)
    with torch.cuda.device_of(x):
        mixtures_kernel[(n,)](
            x, y, out, stats, columns, x.shape[1], y.shape[1], *x.stride(), *y.stride(), *scales, w,
            KIND=KINDS[kind], EXACT=_exact(x, y), BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return out, stats


def gradients(x: Any, y: Any, stats: Any, upstream: Any, kind: str, w: float, scales: PerRow, to_x: Any, to_y: Any) -> None:
    """Writes upstream · d value / d logits into `to_x` and `to_y`, either of which may be None."""
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    if n == 0:
        return
    block, warps = _block(min(columns, 4096))
    with torch.cuda.device_of(x):
        gradients_kernel[(n, triton.cdiv(columns, block))](
            x, y, x if to_x is None else to_x, y if to_y is None else to_y, stats, upstream,
            columns, x.shape[1], y.shape[1], *x.stride(), *y.stride(),
            0 if to_x is None else to_x.stride(0), 0 if to_y is None else to_y.stride(0), *scales, w,
            KIND=KINDS[kind], EXACT=_exact(x, y), FOR_X=to_x is not None, FOR_Y=to_y is not None, BLOCK=block, num_warps=warps,
        )  # fmt: skip


def _exact(x: Any, y: Any) -> bool:
    return torch.float32 not in (x.dtype, y.dtype)


def kl(x: Any, y: Any, scale: Any = None) -> Any:
    """KL of the softmax of `scale` times each, over the last axis, which stays with size 1."""
    batch = x.shape[:-1]
    found, _ = values(rows(x), rows(y), "kl", 0.0, _scales(1.0 if scale is None else _per_row(scale), x, batch))
    return found.reshape(*batch, 1)


def kl_gradients(x: Any, y: Any, scale: Any, needs: Any) -> tuple[Any, ...]:
    """d kl / d x and d y in float32; None where not needed."""
    first, second = rows(x), rows(y)
    scales = _scales(1.0 if scale is None else _per_row(scale), x, x.shape[:-1])
    _, stats = values(first, second, "kl", 0.0, scales)
    found = [torch.empty(z.shape, dtype=torch.float32, device=z.device) if need else None for z, need in zip((first, second), needs)]
    gradients(first, second, stats, torch.ones_like(stats[:, 0]), "kl", 0.0, scales, *found)
    slopes = [None if z is None else z.reshape(x.shape) for z in found]
    return tuple(slopes) if scale is None else (*slopes, None)


def _per_row(scale: Any) -> Any:
    return scale[..., 0] if scale.dim() else scale


def _empty_like(x: Any, valid: int | None) -> Any:
    """Room for a gradient: 0 from column `valid` on."""
    made = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if valid is not None:
        made[..., valid:] = 0.0
    return made


def _without(rows: Any, *arrays: Any) -> Any:
    """The logits, with 0 in rows that do not count: whatever those hold, NaN included, must not reach derivatives of derivatives."""
    return (torch.where(rows[..., None], 0.0, x) for x in arrays)


class Loss(torch.autograd.Function):  # type: ignore[misc]
    """The divergence of each row of two logits arrays, with derivatives to either. What backward needs beyond its inputs is seven numbers
    a row. Second derivatives go through `formula`, the same quantity in array operations."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, kind: str, w: float, scale: Any, formula: Any, valid: int | None = None) -> Any:
        scales = _scales(scale, x, x.shape[:-1])
        found, stats = values(rows(x)[:, :valid], rows(y)[:, :valid], kind, w, scales)
        ctx.valid = valid
        ctx.save_for_backward(x, y, stats)
        ctx.kind, ctx.w, ctx.scales, ctx.formula = kind, w, scales, formula
        return found.reshape(x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        x, y, stats = ctx.saved_tensors
        needs = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():
            with torch.enable_grad():
                wanted = [z for z, need in zip((x, y), needs) if need]
                no_value = ~torch.isfinite(stats[:, LOG_RATIO]).reshape(upstream.shape)
                value = ctx.formula(*_without(no_value & (upstream == 0), x[..., : ctx.valid], y[..., : ctx.valid]))
                found = iter(torch.autograd.grad(value, wanted, upstream, create_graph=True))
            return (*(next(found) if need else None for need in needs), None, None, None, None, None)
        found = [_empty_like(z, ctx.valid) if need else None for z, need in zip((x, y), needs)]
        gradients(
            rows(x)[:, : ctx.valid], rows(y)[:, : ctx.valid], stats, upstream.float().reshape(-1).contiguous(), ctx.kind, ctx.w,
            ctx.scales, *(None if z is None else rows(z)[:, : ctx.valid] for z in found),
        )  # fmt: skip
        return (*found, None, None, None, None, None)


def differentiate(
    x: Any, y: Any, kind: str, w: float, of_y: bool, scales: PerRow, upstream: PerRow, gradient: Any, total: bool = False
) -> Any:  # fmt: skip
    """The divergence of each row of two [rows, columns] arrays, or Σ upstream · divergence if `total`, and in `gradient`, which may be the
    memory of that side, upstream · its derivative to y, or to x."""
    if kind == "kl" and of_y:
        return kl_triton.differentiate(x, y, scales, upstream, gradient, total)
    if mixed_triton.takes(kind, w):
        return mixed_triton.differentiate(x, y, kind, w, of_y, scales, upstream, gradient, total)
    found, stats = values(x, y, kind, w, scales)
    each = torch.full_like(found, upstream[0]) if upstream[1] is None else upstream[0].expand(found.shape).contiguous()
    gradients(x, y, stats, each, kind, w, scales, None if of_y else gradient, gradient if of_y else None)
    return torch.where(each == 0.0, 0.0, each * found).sum() if total else found


class FusedLoss(torch.autograd.Function):  # type: ignore[misc]
    """Σ weight · divergence over rows, with one weight for all or one a row, where one of both sides learns. Its gradient is written in the
    same kernel as the value: it is kept for the first backward, scaled there if need be, and handed over; a second backward through the
    same graph computes it anew."""

    @staticmethod
    def takes(learns: Any) -> bool:
        """Not float16: shares of a mean over thousands of rows vanish in it, unless multiplied by a loss scale first, which comes with
        backward."""
        return bool(learns.dtype != torch.float16)

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, kind: str, w: float, weights: Any, scale: Any, formula: Any, valid: int | None = None) -> Any:
        ctx.side = 1 if ctx.needs_input_grad[1] else 0
        ctx.kind, ctx.w, ctx.scales, ctx.formula, ctx.valid = kind, w, _scales(scale, x, x.shape[:-1]), formula, valid
        per_row = torch.is_tensor(weights)
        ctx.weight = None if per_row else float(weights)
        ctx.save_for_backward(x, y, *([weights] if per_row else []))
        ctx.gradient = _empty_like((x, y)[ctx.side], valid)
        return FusedLoss._differentiate(ctx, x, y, (weights, 1) if per_row else (ctx.weight, None), ctx.gradient, total=True)

    @staticmethod
    def _differentiate(ctx: Any, x: Any, y: Any, upstream: PerRow, gradient: Any, total: bool) -> Any:
        first, second, out = (rows(z)[:, : ctx.valid] for z in (x, y, gradient))
        return differentiate(first, second, ctx.kind, ctx.w, ctx.side == 1, ctx.scales, upstream, out, total)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        x, y, *weights = ctx.saved_tensors
        weight = weights[0] if weights else ctx.weight
        learns = (x, y)[ctx.side]
        if torch.is_grad_enabled():
            with torch.enable_grad():
                first, second = x[..., : ctx.valid], y[..., : ctx.valid]
                if weights:
                    first, second = _without((weight == 0).reshape(x.shape[:-1]), first, second)
                value = (ctx.formula(first, second).reshape(-1) * weight).sum()
                (gradient,) = torch.autograd.grad(value, (learns,), upstream, create_graph=True)
        else:
            gradient, ctx.gradient = ctx.gradient, None
            if gradient is None:
                gradient = _empty_like(learns, ctx.valid)
                scaled = (weight * upstream.float()).reshape(-1)
                FusedLoss._differentiate(ctx, x, y, (scaled, int(scaled.numel() > 1)), gradient, total=False)
            else:
                multiply(gradient, upstream.float())
        found = (None, gradient) if ctx.side else (gradient, None)
        return (*found, None, None, None, None, None, None)

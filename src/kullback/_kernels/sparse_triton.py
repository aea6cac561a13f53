"""The student's side of a sparse teacher in Triton: of a row of logits, those of k categories and one for all the others together.

The row is read once forward (twice where it rises far above its beginning, or the others hold less than 1e-9 of it), and read and written
once backward. What is compared with the teacher afterwards has k + 1 columns, and goes through `rows_triton`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import linear_triton, rows_triton
from .linear_torch import Step
from .triton_math import INF, INTERPRETED, LOG2E, _exp2, _load, _pivot


@triton.jit
def _sum_of_powers(x, row, V, x_row, x_column, pivot, unit, BLOCK: tl.constexpr):
    # In float64: what the k hold is taken off again, and may be nearly all.
    lanes = tl.zeros([BLOCK], tl.float64)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        lanes += _exp2((_load(x, row, columns, V, x_row, x_column) - pivot) * unit).to(tl.float64)
    return tl.sum(lanes, 0)


@triton.jit
def _is_chosen(indices, row, columns, K):
    found = columns < 0
    for i in range(0, K):
        found = found | (columns == tl.load(indices + row * K + i))
    return found


@triton.jit
def coarsen_kernel(
    x, indices, out, pivots, V, K, x_row, x_column, scale,
    BUCKET: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """scale · (logit − pivot) of the chosen, and log Σ exp of that over the others; and the pivot."""
    row = tl.program_id(0).to(tl.int64)
    unit = scale * LOG2E
    places = tl.arange(0, BLOCK_K)
    at = tl.load(indices + row * K + places, mask=places < K, other=0)
    chosen = tl.load(x + row * x_row + at * x_column, mask=places < K, other=-INF).to(tl.float32)
    pivot = _pivot(tl.max(chosen, 0))
    if BUCKET:
        columns = tl.arange(0, BLOCK)
        pivot = tl.maximum(pivot, _pivot(tl.max(_load(x, row, columns, V, x_row, x_column), 0)))
        total = _sum_of_powers(x, row, V, x_row, x_column, pivot, unit, BLOCK)
        if total > 1e18:
            tops = tl.full([BLOCK], -INF, tl.float32)
            for start in range(0, V, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                tops = tl.maximum(tops, _load(x, row, columns, V, x_row, x_column))
            pivot = _pivot(tl.max(tops, 0))
            total = _sum_of_powers(x, row, V, x_row, x_column, pivot, unit, BLOCK)
        # The same exponentials of the same numbers, so that nothing is left of them but what float64 rounds.
        among = tl.sum(tl.where(places < K, _exp2((chosen - pivot) * unit), 0.0).to(tl.float64), 0)
        others = tl.log((total - among).to(tl.float32))
        if total - among < 1e-9 * total:
            # Too little to be found by subtraction: the others alone, relative to their own largest.
            tops = tl.full([BLOCK], -INF, tl.float32)
            for start in range(0, V, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                other = tl.where(_is_chosen(indices, row, columns, K), -INF, _load(x, row, columns, V, x_row, x_column))
                tops = tl.maximum(tops, other)
            top = _pivot(tl.max(tops, 0))
            lanes = tl.zeros([BLOCK], tl.float32)
            for start in range(0, V, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                other = tl.where(_is_chosen(indices, row, columns, K), -INF, _load(x, row, columns, V, x_row, x_column))
                lanes += _exp2((other - top) * unit)
            found = tl.sum(lanes, 0)
            others = tl.where(found > 0.0, (top - pivot) * scale + tl.log(tl.where(found > 0.0, found, 1.0)), -INF)
        tl.store(out + row * (K + 1) + K, others)
        tl.store(out + row * (K + 1) + places, (chosen - pivot) * scale, mask=places < K)
    else:
        tl.store(out + row * K + places, (chosen - pivot) * scale, mask=places < K)
    tl.store(pivots + row, pivot)


@triton.jit
def spread_kernel(x, coarse, pivots, slopes, out, V, K, x_row, x_column, out_row, scale, BUCKET: tl.constexpr, BLOCK: tl.constexpr):
    """To the others: what comes to all of them together, by their shares. To the chosen as well, for the moment."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.float32)
    if BUCKET:
        slope = tl.load(slopes + row * (K + 1) + K)
        a = _load(x, row, columns, V, x_row, x_column)
        share = _exp2((a - tl.load(pivots + row)) * (scale * LOG2E) - tl.load(coarse + row * (K + 1) + K) * LOG2E)
        # A row without a say may hold anything; of the chosen, shares may be infinite.
        found = tl.where(slope == 0.0, 0.0, tl.where(a == -INF, 0.0, slope * scale * share))
    tl.store(out + row * out_row + columns, found.to(out.dtype.element_ty), mask=columns < V)


@triton.jit
def choose_kernel(indices, slopes, out, K, WIDTH, out_row, scale, BLOCK_K: tl.constexpr):
    """To each of the chosen, its own."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK_K)
    at = tl.load(indices + row * K + places, mask=places < K, other=0)
    slope = tl.load(slopes + row * WIDTH + places, mask=places < K, other=0.0)
    tl.store(out + row * out_row + at, (slope * scale).to(out.dtype.element_ty), mask=places < K)


def forward(x: Any, at: Any, scale: float, bucket: bool) -> tuple[Any, Any]:
    """Of logits [rows, columns], those at `at` [rows, k] and one for the others, relative to the pivot that comes with them."""
    n, k = at.shape
    out = torch.empty(n, k + bucket, dtype=torch.float32, device=x.device)
    pivots = torch.empty(n, dtype=torch.float32, device=x.device)
    block, warps = rows_triton._block(x.shape[1])
    with torch.cuda.device_of(x):
        coarsen_kernel[(n,)](
            x, at, out, pivots, x.shape[1], k, *x.stride(), scale,
            BUCKET=bucket, BLOCK=block, BLOCK_K=triton.next_power_of_2(k), num_warps=warps,
        )  # fmt: skip
    return out, pivots


def backward(x: Any, at: Any, coarse: Any, pivots: Any, slopes: Any, scale: float, out: Any) -> None:
    """From derivatives to what `forward` gave, those to the logits; `out` may be x itself."""
    (n, k), columns = at.shape, x.shape[1]
    block = 128 if INTERPRETED else 4096
    with torch.cuda.device_of(x):
        spread_kernel[(n, triton.cdiv(columns, block))](
            x, coarse, pivots, slopes, out, columns, k, *x.stride(), out.stride(0), scale, BUCKET=coarse.shape[1] > k, BLOCK=block
        )
        choose_kernel[(n,)](at, slopes, out, k, coarse.shape[1], out.stride(0), scale, BLOCK_K=triton.next_power_of_2(k))


class Coarsen(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, at: Any, scale: float, bucket: bool, formula: Any) -> Any:
        coarse, pivots = forward(rows_triton.rows(x), rows_triton.rows(at).contiguous(), scale, bucket)
        ctx.save_for_backward(x, at, coarse, pivots)
        ctx.scale, ctx.formula = scale, formula
        return coarse.reshape(*at.shape[:-1], coarse.shape[-1])

    @staticmethod
    def backward(ctx: Any, slopes: Any) -> Any:
        x, at, coarse, pivots = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.enable_grad():
                (found,) = torch.autograd.grad(ctx.formula(x), x, slopes, create_graph=True)
            return found, None, None, None, None
        found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        slopes = rows_triton.rows(slopes.float()).contiguous()
        backward(rows_triton.rows(x), rows_triton.rows(at).contiguous(), coarse, pivots, slopes, ctx.scale, rows_triton.rows(found))
        return found, None, None, None, None


def coarsen(x: Any, at: Any, scale: float, bucket: bool, formula: Any) -> Any:
    """The coarsened logits [..., k + 1] (without bucket [..., k]), up to a constant a row; `formula` makes the same in array operations."""
    return Coarsen.apply(x, at, scale, bucket, formula)


def sparse_step(kind: str, w: float, teacher_first: bool, scale: float, at: Any, teacher: Any, softcap: Any, factors: Any) -> Step:
    """A step of `linear_torch` against a teacher [tokens, k (+ 1)]; `factors`, one a token, multiply losses where given."""
    bucket = teacher.shape[1] > at.shape[1]

    def step(logits: Any, part: slice, upstream: Any, out: Any) -> Any:
        student = logits if softcap is None else softcap.apart(logits, out, upstream)
        places = at[part]
        coarse, pivots = forward(student, places, scale, bucket)
        factor = None if factors is None else factors[part]
        slopes = torch.empty_like(coarse)
        one = linear_triton.scales(1.0, logits)
        weighted = upstream if factor is None or upstream is None else upstream * factor
        values = linear_triton.differentiate(coarse, teacher[part], slopes, kind, w, teacher_first, one, weighted)
        if upstream is not None:
            backward(student, places, coarse, pivots, slopes, scale, out)
            if softcap is not None:
                softcap.chain(out, student)
        return values if factor is None else factor * (values + torch.log(factor))

    return step

"""The student's side of a sparse teacher in Triton: of a row of logits, those of k categories and one for all the others together.

The row is read once forward (twice where it rises far above its beginning, or the others hold less than 1e-9 of it), and read and written
once backward. What is compared with the teacher afterwards has k + 1 columns, and goes through `rows_triton`. Places below 0 are nowhere in
the row: those that another rank has, where a vocabulary is spread over several.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import linear_triton, rows_triton
from .linear_torch import Step
from .math_triton import INF, INTERPRETED, LOG2E, _exp2, _load, _pivot


@triton.jit
def _sum_of_powers(x, row, V, x_row, x_column, pivot, unit, BLOCK: tl.constexpr):
    # In float64: what the k hold is taken off again, and may be nearly all.
    lanes = tl.zeros([BLOCK], tl.float64)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        lanes += _exp2((_load(x, row, columns, V, x_row, x_column) - pivot) * unit).to(tl.float64)
    return tl.sum(lanes, 0)


@triton.jit
def _mean_of_others(x, row, V, x_row, x_column, pivot, chosen, is_place, K, BLOCK: tl.constexpr):
    # −inf where one of the others is absent. Absent ones are counted apart: −inf could not be taken off again.
    lanes = tl.zeros([BLOCK], tl.float64)
    absent = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        a = _load(x, row, columns, V, x_row, x_column)
        there = a != -INF
        lanes += tl.where(there, a - pivot, 0.0).to(tl.float64)
        absent += tl.where(columns < V, tl.where(there, 0.0, 1.0), 0.0)
    among = tl.sum(tl.where(is_place, tl.where(chosen != -INF, chosen - pivot, 0.0), 0.0).to(tl.float64), 0)
    absent_among = tl.sum(tl.where(is_place, tl.where(chosen != -INF, 0.0, 1.0), 0.0), 0)
    return tl.where(tl.sum(absent, 0) > absent_among, -INF, (tl.sum(lanes, 0) - among) / (V - K))


@triton.jit
def _is_chosen(indices, row, columns, K):
    found = columns < 0
    for i in range(0, K):
        found = found | (columns == tl.load(indices + row * K + i))
    return found


@triton.jit
def coarsen_kernel(
    x, indices, out, pivots, flat, V, K, x_row, x_column, scale,
    BUCKET: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """scale · (logit − pivot) of the chosen, and log Σ exp of that over the others; the pivot; with FLAT, KL(uniform‖others)."""
    row = tl.program_id(0).to(tl.int64)
    unit = scale * LOG2E
    places = tl.arange(0, BLOCK_K)
    at = tl.load(indices + row * K + places, mask=places < K, other=0)
    chosen = tl.load(x + row * x_row + at * x_column, mask=(places < K) & (at >= 0), other=-INF).to(tl.float32)
    top = tl.max(chosen, 0)
    pivot = _pivot(top)
    if BUCKET:
        columns = tl.arange(0, BLOCK)
        pivot = _pivot(tl.maximum(top, tl.max(_load(x, row, columns, V, x_row, x_column), 0)))
        total = _sum_of_powers(x, row, V, x_row, x_column, pivot, unit, BLOCK)
        if (total > 1e18) | (total < 1e-18):
            tops = tl.full([BLOCK], -INF, tl.float32)
            for start in range(0, V, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                tops = tl.maximum(tops, _load(x, row, columns, V, x_row, x_column))
            pivot = _pivot(tl.max(tops, 0))
            total = _sum_of_powers(x, row, V, x_row, x_column, pivot, unit, BLOCK)
        # The same exponentials of the same numbers, so that nothing is left of them but what float64 rounds.
        among = tl.sum(tl.where(places < K, _exp2((chosen - pivot) * unit), 0.0).to(tl.float64), 0)
        others = tl.log((total - among).to(tl.float32))
        if total - among <= 1e-9 * total:
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
        if FLAT:
            # log Σ exp − mean − log n, in float64: a flat student leaves little of it.
            power = tl.where(total - among <= 1e-9 * total, others.to(tl.float64), tl.log(total - among))
            mean = _mean_of_others(x, row, V, x_row, x_column, pivot, chosen, places < K, K, BLOCK) * scale
            tl.store(flat + row, (power - mean - tl.log((V - K).to(tl.float64))).to(tl.float32))
    else:
        tl.store(out + row * K + places, (chosen - pivot) * scale, mask=places < K)
    tl.store(pivots + row, pivot)


@triton.jit
def spread_kernel(
    x, coarse, pivots, slopes, flat_slopes, out, V, K, x_row, x_column, out_row, scale,
    BUCKET: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
        if FLAT:
            flat_slope = tl.load(flat_slopes + row) * scale
            found += tl.where(flat_slope == 0.0, 0.0, flat_slope * (share - 1.0 / (V - K)))
    tl.store(out + row * out_row + columns, found.to(out.dtype.element_ty), mask=columns < V)


@triton.jit
def choose_kernel(indices, slopes, out, K, WIDTH, out_row, scale, BLOCK_K: tl.constexpr):
    """To each of the chosen, its own."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK_K)
    at = tl.load(indices + row * K + places, mask=places < K, other=-1)
    slope = tl.load(slopes + row * WIDTH + places, mask=places < K, other=0.0)
    tl.store(out + row * out_row + at, (slope * scale).to(out.dtype.element_ty), mask=at >= 0)


def forward(x: Any, at: Any, scale: float, bucket: bool, flat: bool) -> tuple[Any, Any, Any]:
    """Of logits [rows, columns], those at `at` [rows, k] and one for the others, relative to the pivot that comes with them; and
    KL(uniform‖others), or None."""
    n, k = at.shape
    out = torch.empty(n, k + bucket, dtype=torch.float32, device=x.device)
    pivots = torch.empty(n, dtype=torch.float32, device=x.device)
    uneven = torch.empty_like(pivots) if flat else None
    block, warps = rows_triton._block(x.shape[1])
    with torch.cuda.device_of(x):
        coarsen_kernel[(n,)](
            x, at, out, pivots, uneven if flat else pivots, x.shape[1], k, *x.stride(), scale,
            BUCKET=bucket, FLAT=flat, BLOCK=block, BLOCK_K=triton.next_power_of_2(k), num_warps=warps,
        )  # fmt: skip
    return out, pivots, uneven


def backward(x: Any, at: Any, coarse: Any, pivots: Any, slopes: Any, flat_slopes: Any, scale: float, out: Any) -> None:
    """From derivatives to what `forward` gave, those to the logits; `out` may be x itself."""
    (n, k), columns = at.shape, x.shape[1]
    block = 128 if INTERPRETED else 2048
    with torch.cuda.device_of(x):
        spread_kernel[(n, triton.cdiv(columns, block))](
            x, coarse, pivots, slopes, pivots if flat_slopes is None else flat_slopes, out,
            columns, k, *x.stride(), out.stride(0), scale,
            BUCKET=coarse.shape[1] > k, FLAT=flat_slopes is not None, BLOCK=block, num_warps=8,
        )  # fmt: skip
        choose_kernel[(n,)](at, slopes, out, k, coarse.shape[1], out.stride(0), scale, BLOCK_K=triton.next_power_of_2(k))


class Coarsen(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, at: Any, scale: float, bucket: bool, flat: bool, formula: Any) -> Any:
        coarse, pivots, uneven = forward(rows_triton.rows(x), rows_triton.rows(at).contiguous(), scale, bucket, flat)
        ctx.save_for_backward(x, at, coarse, pivots)
        ctx.scale, ctx.flat, ctx.formula = scale, flat, formula
        found = coarse.reshape(*at.shape[:-1], coarse.shape[-1])
        return (found, uneven.reshape(at.shape[:-1])) if flat else found

    @staticmethod
    def backward(ctx: Any, slopes: Any, flat_slopes: Any = None) -> Any:
        x, at, coarse, pivots = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.enable_grad():
                upstream = (slopes, flat_slopes) if ctx.flat else (slopes,)
                (found,) = torch.autograd.grad(ctx.formula(x), x, upstream, create_graph=True)
            return found, None, None, None, None, None
        found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        slopes = rows_triton.rows(slopes.float()).contiguous()
        flat_slopes = flat_slopes.float().reshape(-1).contiguous() if ctx.flat else None
        places = rows_triton.rows(at).contiguous()
        backward(rows_triton.rows(x), places, coarse, pivots, slopes, flat_slopes, ctx.scale, rows_triton.rows(found))
        return found, None, None, None, None, None


def coarsen(x: Any, at: Any, scale: float, bucket: bool, flat: bool, formula: Any) -> Any:
    """The coarsened logits [..., k + 1] (without bucket [..., k]), up to a constant a row, and with `flat` KL(uniform‖others) beside them;
    `formula` makes the same, a tuple, in array operations."""
    found = Coarsen.apply(x, at, scale, bucket, flat, formula)
    return found if flat else (found, None)


class CoarsenSpread(torch.autograd.Function):  # type: ignore[misc]
    """As `Coarsen`, of rows that are spread over ranks: the same float64 numbers on every rank, and derivatives to this rank's columns."""

    @staticmethod
    def forward(ctx: Any, x: Any, at: Any, scale: float, bucket: bool, ranks: Any) -> Any:
        places = rows_triton.rows(at).contiguous()
        found, pivots, _ = forward(rows_triton.rows(x), places, scale, bucket, False)
        found, pivots, k = found.double(), pivots.double()[:, None], places.shape[1]
        # Relative to the largest pivot of those ranks that have anything.
        top = ranks.largest(torch.where(found.amax(1, keepdim=True) == -torch.inf, -torch.inf, pivots))
        top = torch.where(top == -torch.inf, 0.0, top)
        found = found + (pivots - top) * scale
        found = torch.cat([torch.where(places < 0, 0.0, found[:, :k]), torch.exp(found[:, k:])], 1)
        found = ranks.total(found)
        found[:, k:] = torch.log(found[:, k:])
        ctx.save_for_backward(x, places, found.float(), top[:, 0].float())
        ctx.scale = scale
        return found.reshape(*at.shape[:-1], found.shape[1])

    @staticmethod
    def backward(ctx: Any, slopes: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: rows that are spread over ranks have no second derivatives")
        x, places, coarse, pivots = ctx.saved_tensors
        found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        slopes = rows_triton.rows(slopes.float()).contiguous()
        backward(rows_triton.rows(x), places, coarse, pivots, slopes, None, ctx.scale, rows_triton.rows(found))
        return found, None, None, None, None


def sparse_step(
    kind: str, w: float, teacher_first: bool, scale: float, at: Any, teacher: Any, softcap: Any, masses: Any, rests: Any
) -> Step:  # fmt: skip
    """A step of `linear_torch` against a teacher [tokens, k (+ 1)]. With `masses`, one a token, what "ignore" is; with `rests`, the
    teacher's probability of all others, "uniform"."""
    bucket = teacher.shape[1] > at.shape[1]

    def step(logits: Any, part: slice, upstream: Any, out: Any) -> Any:
        student = logits if softcap is None else softcap.apart(logits, out, upstream)
        places = at[part]
        coarse, pivots, uneven = forward(student, places, scale, bucket, rests is not None)
        slopes = torch.empty_like(coarse)
        weighted = upstream if masses is None or upstream is None else upstream * masses[part]
        one = linear_triton.scales(1.0, logits)
        values = linear_triton.differentiate(coarse, teacher[part], slopes, kind, w, teacher_first, one, weighted)
        if upstream is not None:
            flat_slopes = None if rests is None else upstream * rests[part]
            backward(student, places, coarse, pivots, slopes, flat_slopes, scale, out)
            if softcap is not None:
                softcap.chain(out, student)
        if masses is not None:
            return masses[part] * (values + torch.log(masses[part]))
        return values if rests is None else values + rests[part] * uneven

    return step

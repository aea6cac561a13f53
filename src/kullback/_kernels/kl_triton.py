"""KL(P‖Q) of the rows of two logits arrays in Triton, with the gradient to Q's logits on the way.

A row is cut into slices of some 8,000 columns, a program each. A program sums its slice's exponentials, waits until those of the row's
other slices are there, and reads its slice again, now from the cache, for the divergence. Slices of a row are neighbours in the grid, and
GPUs start programs in the order of the grid: those that are waited for have started. The interpreter, which runs one program after
another, gets the two halves as two launches.

With v = log(q/p), and p from its own normaliser: KL = Σ p φ(v), and q − p = p (v + φ(v)), φ(v) = eᵛ − 1 − v, all in base 2. p eᵛ rather
than q from its own normaliser: the rounding of that would be off by the same for all, which does not cancel. Where eᵛ exceeds 2⁶⁰, p may
have underflown: slices with such columns take q.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from .math_triton import INF, INTERPRETED, LN2, LOG2E, _exp2, _fma, _load, _pivot

# Columns a step, warps; columns a slice. The fastest of those tried on an H200.
_STEP = (128, 4) if INTERPRETED else (1024, 4)
_SLICE = 128 if INTERPRETED else 8192
# As many programs at a time as that leaves room for. An option of NVIDIA's back end alone.
_REGISTERS = {"maxnreg": 64} if torch.version.cuda is not None else {}


@triton.jit
def _sums(x, y, row, low, middle, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK: tl.constexpr):
    """Of columns low to high: Σ 2^(unit·a − at_a), the same of b, and the largest b − a. Up to `middle` no mask is needed."""
    lanes_a = tl.zeros([BLOCK], tl.float32)
    lanes_b = tl.zeros([BLOCK], tl.float32)
    steepest = tl.full([BLOCK], -INF, tl.float32)
    left = x + row * x_row
    right = y + row * y_row
    for start in range(low, middle, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        a = tl.load(left + columns.to(tl.int64) * x_column).to(tl.float32)
        b = tl.load(right + columns.to(tl.int64) * y_column).to(tl.float32)
        lanes_a += _exp2(_fma(a, unit, -at_a))
        lanes_b += _exp2(_fma(b, unit, -at_b))
        steepest = tl.maximum(steepest, b - a)  # but NaN, where both are absent
    for start in range(middle, high, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        a = _load(x, row, columns, tl.minimum(VALID_X, high), x_row, x_column)
        b = _load(y, row, columns, tl.minimum(VALID_Y, high), y_row, y_column)
        lanes_a += _exp2(_fma(a, unit, -at_a))
        lanes_b += _exp2(_fma(b, unit, -at_b))
        steepest = tl.maximum(steepest, b - a)
    return tl.sum(lanes_a, 0), tl.sum(lanes_b, 0), tl.max(steepest, 0)


@triton.jit
def _largest(x, row, low, high, VALID, x_row, x_column, BLOCK: tl.constexpr):
    top = tl.full([BLOCK], -INF, tl.float32)
    for start in range(low, high, BLOCK):
        top = tl.maximum(top, _load(x, row, start + tl.arange(0, BLOCK), tl.minimum(VALID, high), x_row, x_column))
    return tl.max(top, 0)


@triton.jit
def _joined(each, SLICES: tl.constexpr):
    """The sum of a row's slices, and what it is relative to, from what each is relative to and its sum. Slices of nothing do not count."""
    sums = tl.load(each + 1, volatile=True)
    places = tl.where(sums == 0.0, -INF, tl.load(each, volatile=True))
    at = tl.max(places, 0)
    return at, tl.sum(sums * _exp2(places - at), 0)


@triton.jit
def _ratio(a, b, unit, apart, rest, EXACT: tl.constexpr):
    # log2(q/p): inf where only p is absent, NaN where both are. Differences of half-precision numbers are exact; those of float32 carry
    # their rounding error.
    if EXACT:
        return _fma(b - a, unit, -apart) - rest
    d = b - a
    back = d - b
    error = tl.where(tl.abs(d) < INF, (b - (d - back)) - (a + back), 0.0)
    return (_fma(d, unit, -apart) - rest) + error * unit


@triton.jit
def _terms(a, b, unit, at_a, log_a, apart, rest, EXACT: tl.constexpr):
    """p φ(v) and q − p, of eᵛ up to 2⁶⁰."""
    v = tl.minimum(_ratio(a, b, unit, apart, rest, EXACT), 100.0)  # of NaN too, where p = 0 makes nothing of it
    p = _exp2(_fma(a, unit, -at_a) - log_a)
    # φ(v ln 2) for |v| < 0.36, to 1.4e-6 of itself; beyond, it does not cancel.
    near = (v * v) * (0.24022618 + v * (0.055504206 + v * (0.0096381733 + v * 0.0013340161)))
    phi = tl.where(tl.abs(v) < 0.36, near, (_exp2(v) - LN2 * v) - 1.0)
    return p * phi, p * (LN2 * v + phi)


@triton.jit
def _any_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, EXACT: tl.constexpr):
    """The same, with q from its own normaliser where p may be too small for p eᵛ."""
    value, difference = _terms(a, b, unit, at_a, log_a, apart, rest, EXACT)
    ratio = _ratio(a, b, unit, apart, rest, EXACT)
    p = _exp2(_fma(a, unit, -at_a) - log_a)
    q = _exp2(_fma(b, unit, -at_b) - log_b)
    far = ratio >= 60.0
    return tl.where(far, (q - p) - LN2 * p * tl.minimum(ratio, 200.0), value), tl.where(far, q - p, difference)


@triton.jit
def kl_kernel(
    x, y, sums, counts, terms, stats, gradient, upstream,
    V, COMMON, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, g_row, scales, scale_row, WIDTH,
    SLICES: tl.constexpr, EXACT: tl.constexpr, GRADIENT: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """This slice's part of KL(P‖Q) and of Σ q − p into `terms`; with GRADIENT, upstream·(q − p)."""
    row = (tl.program_id(0) // SLICES).to(tl.int64)
    piece = tl.program_id(0) % SLICES
    scale = tl.load(scales + row * scale_row)
    unit = scale * LOG2E
    low = piece * WIDTH
    high = tl.minimum(low + WIDTH, V)
    middle = low + tl.maximum(tl.minimum(high, COMMON) - low, 0) // BLOCK * BLOCK
    # Any pivot does while nothing overflows: the first column's, or else the largest of the slice.
    at_a = _pivot(tl.load(x + row * x_row).to(tl.float32)) * unit
    at_b = _pivot(tl.load(y + row * y_row).to(tl.float32)) * unit
    slot = sums + row * SLICES * 5
    if FIRST:
        sum_a, sum_b, steepest = _sums(
            x, y, row, low, middle, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK
        )  # fmt: skip
        if (sum_a > 1e18) | (sum_b > 1e18) | (sum_a < 1e-18) | (sum_b < 1e-18):
            at_a = _pivot(_largest(x, row, low, high, VALID_X, x_row, x_column, BLOCK)) * unit
            at_b = _pivot(_largest(y, row, low, high, VALID_Y, y_row, y_column, BLOCK)) * unit
            sum_a, sum_b, steepest = _sums(
                x, y, row, low, low, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK
            )  # fmt: skip
        if SLICES > 1:
            tl.store(slot + piece * 2, at_a)
            tl.store(slot + piece * 2 + 1, sum_a)
            tl.store(slot + (SLICES + piece) * 2, at_b)
            tl.store(slot + (SLICES + piece) * 2 + 1, sum_b)
            tl.store(slot + SLICES * 4 + piece, steepest)
            if SECOND:
                there = tl.atomic_add(counts + row, 1, sem="acq_rel") + 1
                while there < SLICES:
                    there = tl.atomic_add(counts + row, 0, sem="acquire")
    if SECOND:
        if SLICES > 1:
            each = tl.arange(0, SLICES) * 2
            at_a, sum_a = _joined(slot + each, SLICES)
            at_b, sum_b = _joined(slot + SLICES * 2 + each, SLICES)
            if not FIRST:
                steepest = tl.load(slot + SLICES * 4 + piece)
        log_a = tl.log2(sum_a)
        log_b = tl.log2(sum_b)
        gain = tl.log2(sum_b / sum_a)
        valid = tl.abs(gain) < INF
        # log2 of the ratio of the normalisers, and what rounding took from it.
        apart, rest = _two_sum(at_b - at_a, gain)
        ordinary = steepest * unit - apart < 60.0
        if GRADIENT:
            factor = tl.load(upstream + row) * scale
            # A row of weight 0 may hold anything.
            ordinary = ordinary & (factor != 0.0)
            factor = tl.where(valid | (factor == 0.0), factor, float("nan"))
            target = gradient + row * g_row
        # Each number is read before its place is written to: the gradient may take the memory of the logits.
        value = tl.zeros([BLOCK], tl.float32)
        excess = tl.zeros([BLOCK], tl.float32)
        left = x + row * x_row
        right = y + row * y_row
        middle = tl.where(ordinary, middle, low)
        for start in range(low, middle, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            a = tl.load(left + columns.to(tl.int64) * x_column, eviction_policy="evict_first").to(tl.float32)
            b = tl.load(right + columns.to(tl.int64) * y_column, eviction_policy="evict_first").to(tl.float32)
            term, difference = _terms(a, b, unit, at_a, log_a, apart, rest, EXACT)
            value += term
            excess += difference
            if GRADIENT:
                tl.store(target + columns, (difference * factor).to(gradient.dtype.element_ty), eviction_policy="evict_first")
        for start in range(middle, high, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            a = _load(x, row, columns, tl.minimum(VALID_X, high), x_row, x_column)
            b = _load(y, row, columns, tl.minimum(VALID_Y, high), y_row, y_column)
            term, difference = _any_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, EXACT)
            value += term
            excess += difference
            if GRADIENT:
                g = tl.where(factor == 0.0, 0.0, difference * factor)
                tl.store(target + columns, g.to(gradient.dtype.element_ty), mask=columns < tl.minimum(VALID_Y, high))
        base = terms + (row * SLICES + piece) * 2
        tl.store(base, tl.where(valid, tl.sum(value, 0), float("nan")))
        tl.store(base + 1, tl.sum(excess, 0))
        if piece == 0:
            # As others take them: relative to logits, not to multiples of the unit.
            pivot_a = at_a / unit
            pivot_b = at_b / unit
            off_a = _fma(pivot_a, unit, -at_a)
            off_b = _fma(pivot_b, unit, -at_b)
            base = stats + row * 7
            tl.store(base, pivot_a)
            tl.store(base + 1, log_a - off_a)
            tl.store(base + 2, pivot_b)
            tl.store(base + 3, log_b - off_b)
            tl.store(base + 4, (gain + (off_a - off_b)) * LN2)


@triton.jit
def _two_sum(x, y):
    # x + y and its rounding error, which is minus what must be added.
    s = x + y
    y_part = s - x
    return s, (x - (s - y_part)) + (y - y_part)


@triton.jit
def finish_kernel(terms, out, stats, N, SLICES: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < N
    each = terms + (row[:, None].to(tl.int64) * SLICES + tl.arange(0, SLICES)[None, :]) * 2
    total = tl.sum(tl.load(each, mask=here[:, None], other=0.0), 1)
    excess = tl.sum(tl.load(each + 1, mask=here[:, None], other=0.0), 1)
    # r is rounded: off by δ, Σ p eᵛ is 1 + X = e^δ instead of 1, and KL = Σ p φ(v) + log1p(X) − X. The true r is r + δ.
    small = tl.abs(excess) < 1e-3
    square = excess * excess
    total = tl.where(small, tl.maximum(total - square * (0.5 - excess * (1.0 / 3.0)), 0.0), total)
    base = stats + row.to(tl.int64) * 7
    r = tl.load(base + 4, mask=here)
    tl.store(base + 4, tl.where(small, r + (excess - 0.5 * square), r), mask=here)
    tl.store(base + 5, total, mask=here)
    tl.store(base + 6, 0.0 * total, mask=here)
    tl.store(out + row, total, mask=here)


def values(x: Any, y: Any, scales: tuple[Any, int], upstream: Any = None, gradient: Any = None) -> tuple[Any, Any]:
    """KL of each row of two [rows, columns] arrays, and seven numbers a row from which gradients can be had. With `upstream` (one a row),
    `gradient` receives upstream · d/dy."""
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    out, stats = (torch.empty(shape, dtype=torch.float32, device=x.device) for shape in ((n,), (n, 7)))
    if n == 0:
        return out, stats
    block = min(_STEP[0], max(128, triton.next_power_of_2(columns)))
    warps = max(1, min(_STEP[1], block // 128))
    # No more programs a row than run at once, on the smallest of GPUs.
    slices = min(32, 1 << max(0, round(math.log2(columns / _SLICE))))
    width = triton.cdiv(triton.cdiv(columns, slices), 64) * 64
    sums, terms = (torch.empty(n, slices, k, dtype=torch.float32, device=x.device) for k in (5, 2))
    counts = torch.zeros(n if slices > 1 else 1, dtype=torch.int32, device=x.device)
    fused = gradient is not None
    halves = [(True, True)] if slices == 1 or not INTERPRETED else [(True, False), (False, True)]
    with torch.cuda.device_of(x):
        for first, second in halves:
            kl_kernel[(n * slices,)](
                x, y, sums, counts, terms, stats, gradient if fused else out, upstream if fused else out,
                columns, min(x.shape[1], y.shape[1]), x.shape[1], y.shape[1], *x.stride(), *y.stride(), gradient.stride(0) if fused else 0,
                *scales, width, SLICES=slices, EXACT=torch.float32 not in (x.dtype, y.dtype), GRADIENT=fused, FIRST=first, SECOND=second,
                BLOCK=block, num_warps=warps, **_REGISTERS,
            )  # fmt: skip
        finish_kernel[(triton.cdiv(n, 32),)](terms, out, stats, n, SLICES=slices, ROWS=32, num_warps=1)
    return out, stats

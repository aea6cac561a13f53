"""KL(P‖Q) of the rows of two logits arrays in Triton, with the gradient to Q's logits on the way.

A row is cut into slices of some 8,000 columns, a program each. A program sums its slice's exponentials, waits until those of the row's
other slices are there, and reads its slice again, now from the cache, for the divergence. Slices of a row are neighbours in the grid, and
GPUs start programs in the order of the grid: those that are waited for have started. The interpreter, which runs one program after
another, gets the two halves as two launches.

With v = log(q/p), and p from its own normaliser: KL = Σ p φ(v), and q − p = p (v + φ(v)), φ(v) = eᵛ − 1 − v, all in base 2. p eᵛ rather
than q from its own normaliser: the rounding of that would be off by the same for all, which does not cancel. Where eᵛ exceeds 2⁶⁰, p may
have underflown: such rows are read once more, with q.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .triton_math import INF, INTERPRETED, LN2, LOG2E, _exp2, _fma, _load, _pivot

# Columns a step, warps; columns a slice. The fastest of those tried on an H200.
_STEP = (128, 4) if INTERPRETED else (1024, 4)
_SLICE = 256 if INTERPRETED else 8192
_REGISTERS = 64  # as many programs at a time as that leaves room for


@triton.jit
def _sums(x, y, row, low, middle, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK: tl.constexpr):
    """Σ 2^(unit·a − at_a) of columns low to high, and the same of b. Up to `middle` no mask is needed."""
    lanes_a = tl.zeros([BLOCK], tl.float32)
    lanes_b = tl.zeros([BLOCK], tl.float32)
    left = x + row * x_row
    right = y + row * y_row
    for start in range(low, middle, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        lanes_a += _exp2(_fma(tl.load(left + columns.to(tl.int64) * x_column).to(tl.float32), unit, -at_a))
        lanes_b += _exp2(_fma(tl.load(right + columns.to(tl.int64) * y_column).to(tl.float32), unit, -at_b))
    for start in range(middle, high, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        a = _load(x, row, columns, tl.minimum(VALID_X, high), x_row, x_column)
        b = _load(y, row, columns, tl.minimum(VALID_Y, high), y_row, y_column)
        lanes_a += _exp2(_fma(a, unit, -at_a))
        lanes_b += _exp2(_fma(b, unit, -at_b))
    return tl.sum(lanes_a, 0), tl.sum(lanes_b, 0)


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
    """p φ(v) and q − p, and v."""
    ratio = _ratio(a, b, unit, apart, rest, EXACT)
    v = tl.minimum(ratio, 100.0)  # of NaN too, where p = 0 makes nothing of it
    p = _exp2(_fma(a, unit, -at_a) - log_a)
    # φ(v ln 2) for |v| < 0.36, to 1.4e-6 of itself; beyond, it does not cancel.
    near = (v * v) * (0.24022618 + v * (0.055504206 + v * (0.0096381733 + v * 0.0013340161)))
    phi = tl.where(tl.abs(v) < 0.36, near, (_exp2(v) - LN2 * v) - 1.0)
    return p * phi, p * (LN2 * v + phi), ratio


@triton.jit
def _careful_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, EXACT: tl.constexpr):
    """The same with q from its own normaliser where p is too small for p eᵛ."""
    value, difference, ratio = _terms(a, b, unit, at_a, log_a, apart, rest, EXACT)
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
    # Any pivot does while nothing overflows: the first column's.
    pivot_a = _pivot(tl.load(x + row * x_row).to(tl.float32))
    pivot_b = _pivot(tl.load(y + row * y_row).to(tl.float32))
    at_a = pivot_a * unit
    at_b = pivot_b * unit
    if FIRST:
        sum_a, sum_b = _sums(
            x, y, row, low, middle, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK
        )  # fmt: skip
        if SLICES > 1:
            base = sums + (row * SLICES + piece) * 2
            tl.store(base, sum_a)
            tl.store(base + 1, sum_b)
            if SECOND:
                there = tl.atomic_add(counts + row, 1, sem="acq_rel") + 1
                while there < SLICES:
                    there = tl.atomic_add(counts + row, 0, sem="acquire")
    if SECOND:
        if SLICES > 1:
            each = sums + (row * SLICES + tl.arange(0, SLICES)) * 2
            sum_a = tl.sum(tl.load(each, volatile=True), 0)
            sum_b = tl.sum(tl.load(each + 1, volatile=True), 0)
        if (sum_a > 1e18) | (sum_b > 1e18) | (sum_a < 1e-18) | (sum_b < 1e-18):
            # Seldom: every slice looks for the largest of the whole row.
            top_a = tl.full([BLOCK], -INF, tl.float32)
            top_b = tl.full([BLOCK], -INF, tl.float32)
            for start in range(0, V, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                top_a = tl.maximum(top_a, _load(x, row, columns, VALID_X, x_row, x_column))
                top_b = tl.maximum(top_b, _load(y, row, columns, VALID_Y, y_row, y_column))
            pivot_a = _pivot(tl.max(top_a, 0))
            pivot_b = _pivot(tl.max(top_b, 0))
            at_a = pivot_a * unit
            at_b = pivot_b * unit
            sum_a, sum_b = _sums(x, y, row, 0, 0, V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK)
        log_a = tl.log2(sum_a)
        log_b = tl.log2(sum_b)
        gain = tl.log2(sum_b / sum_a)
        valid = tl.abs(gain) < INF
        # log2 of the ratio of the normalisers, and what rounding took from it.
        apart, rest = _two_sum(at_b - at_a, gain)
        if GRADIENT:
            factor = tl.load(upstream + row) * scale
            factor = tl.where(valid | (factor == 0.0), factor, float("nan"))
            target = gradient + row * g_row
        value = tl.zeros([BLOCK], tl.float32)
        excess = tl.zeros([BLOCK], tl.float32)
        steepest = tl.full([BLOCK], -INF, tl.float32)
        left = x + row * x_row
        right = y + row * y_row
        for start in range(low, middle, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            a = tl.load(left + columns.to(tl.int64) * x_column, eviction_policy="evict_first").to(tl.float32)
            b = tl.load(right + columns.to(tl.int64) * y_column, eviction_policy="evict_first").to(tl.float32)
            term, difference, ratio = _terms(a, b, unit, at_a, log_a, apart, rest, EXACT)
            value += term
            excess += difference
            steepest = tl.maximum(steepest, ratio)  # but NaN
            if GRADIENT:
                tl.store(target + columns, (difference * factor).to(gradient.dtype.element_ty), eviction_policy="evict_first")
        for start in range(middle, high, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            a = _load(x, row, columns, tl.minimum(VALID_X, high), x_row, x_column)
            b = _load(y, row, columns, tl.minimum(VALID_Y, high), y_row, y_column)
            term, difference, ratio = _terms(a, b, unit, at_a, log_a, apart, rest, EXACT)
            value += term
            excess += difference
            steepest = tl.maximum(steepest, ratio)
            if GRADIENT:
                tl.store(target + columns, (difference * factor).to(gradient.dtype.element_ty), mask=columns < tl.minimum(VALID_Y, high))
        total = tl.sum(value, 0)
        over = tl.sum(excess, 0)
        again = tl.max(steepest, 0) >= 60.0
        if GRADIENT:
            # A row of weight 0 may hold anything.
            again = again | (factor == 0.0)
        if again:
            value = tl.zeros([BLOCK], tl.float32)
            excess = tl.zeros([BLOCK], tl.float32)
            for start in range(low, high, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                a = _load(x, row, columns, tl.minimum(VALID_X, high), x_row, x_column)
                b = _load(y, row, columns, tl.minimum(VALID_Y, high), y_row, y_column)
                term, difference = _careful_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, EXACT)
                value += term
                excess += difference
                if GRADIENT:
                    g = tl.where(factor == 0.0, 0.0, difference * factor)
                    tl.store(target + columns, g.to(gradient.dtype.element_ty), mask=columns < tl.minimum(VALID_Y, high))
            total = tl.sum(value, 0)
            over = tl.sum(excess, 0)
        base = terms + (row * SLICES + piece) * 2
        tl.store(base, tl.where(valid, total, float("nan")))
        tl.store(base + 1, over)
        if piece == 0:
            # Of the exact pivots, times the unit, from here on.
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
    slices = min(32, triton.next_power_of_2(triton.cdiv(columns, _SLICE)))
    width = triton.cdiv(triton.cdiv(columns, slices), 64) * 64
    sums, terms = (torch.empty(n, slices, 2, dtype=torch.float32, device=x.device) for _ in range(2))
    counts = torch.zeros(n if slices > 1 else 1, dtype=torch.int32, device=x.device)
    fused = gradient is not None
    halves = [(True, True)] if slices == 1 or not INTERPRETED else [(True, False), (False, True)]
    with torch.cuda.device_of(x):
        for first, second in halves:
            kl_kernel[(n * slices,)](
                x, y, sums, counts, terms, stats, gradient if fused else out, upstream if fused else out,
                columns, min(x.shape[1], y.shape[1]), x.shape[1], y.shape[1], *x.stride(), *y.stride(), gradient.stride(0) if fused else 0,
                *scales, width, SLICES=slices, EXACT=torch.float32 not in (x.dtype, y.dtype), GRADIENT=fused, FIRST=first, SECOND=second,
                BLOCK=block, num_warps=warps, maxnreg=_REGISTERS,
            )  # fmt: skip
        finish_kernel[(triton.cdiv(n, 32),)](terms, out, stats, n, SLICES=slices, ROWS=32, num_warps=1)
    return out, stats

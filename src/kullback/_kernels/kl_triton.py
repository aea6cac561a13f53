"""KL(P‖Q) of the rows of two logits arrays in Triton, with the gradient to Q's logits on the way.

A row is cut into slices of some 8,000 columns, a program each. A program sums its slice's exponentials, waits until those of the row's
other slices are there, and reads its slice again, last block first and so mostly from its own cache, for the divergence. Slices of a row
are neighbours in the grid, and GPUs start programs in the order of the grid: those that are waited for have started. The interpreter,
which runs one program after another, gets two launches, the second of which sums its slice again; so do rows of more slices than a small
GPU runs at once.

With v = log(q/p), and p from its own normaliser: KL = Σ p φ(v), and q − p = p (v + φ(v)), φ(v) = eᵛ − 1 − v, all in base 2. p eᵛ rather
than q from its own normaliser: the rounding of that would be off by the same for all, which does not cancel. Slices where p may
underflow, or q is absent, take longer formulas.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .math_triton import INF, INTERPRETED, LN2, LOG2E, _exp2, _fma, _least, _load, _log2_ratio, _phi, _pivot, _ratio, _two_sum, _wide

# Columns a step, warps; columns a slice. The fastest of those tried on an H200.
STEP = (128, 4) if INTERPRETED else (1024, 4)
_SLICE = 512 if INTERPRETED else 8192
# As many programs at a time as that leaves room for. An option of NVIDIA's back end alone.
REGISTERS = {"maxnreg": 64} if torch.version.cuda is not None else {}
# Slices of a row that any GPU runs at once.
_AT_ONCE = 64


@triton.jit
def _sums(x, y, row, low, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK: tl.constexpr):
    """Of columns low to high: Σ 2^(unit·a − at_a), and the same of b, lane by lane."""
    lanes_a = tl.zeros([BLOCK], tl.float32)
    lanes_b = tl.zeros([BLOCK], tl.float32)
    for start in range(low, high, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        lanes_a += _exp2(_fma(_load(x, row, columns, tl.minimum(VALID_X, high), x_row, x_column), unit, -at_a))
        lanes_b += _exp2(_fma(_load(y, row, columns, tl.minimum(VALID_Y, high), y_row, y_column), unit, -at_b))
    return lanes_a, lanes_b


@triton.jit
def _largest(x, row, low, high, VALID, x_row, x_column, BLOCK: tl.constexpr):
    top = tl.full([BLOCK], -INF, tl.float32)
    for start in range(low, high, BLOCK):
        top = tl.maximum(top, _load(x, row, start + tl.arange(0, BLOCK), tl.minimum(VALID, high), x_row, x_column))
    return tl.max(top, 0)


@triton.jit
def two_sums(x, y, row, low, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, unit, BLOCK: tl.constexpr):
    """What the exponentials of a slice are relative to, and their sum, of either side: with the largest as pivot, nothing overflows."""
    at_a = _pivot(_largest(x, row, low, high, VALID_X, x_row, x_column, BLOCK)) * unit
    at_b = _pivot(_largest(y, row, low, high, VALID_Y, y_row, y_column, BLOCK)) * unit
    lanes_a, lanes_b = _sums(x, y, row, low, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK)
    return at_a, tl.sum(lanes_a, 0), at_b, tl.sum(lanes_b, 0)


@triton.jit
def add_two(a, b, more_a, more_b):
    return a + more_a, b + more_b


@triton.jit
def least_two(a, b, more_a, more_b):
    return tl.minimum(a, more_a, propagate_nan=tl.PropagateNan.ALL), tl.minimum(b, more_b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _take(block_a, block_b, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit):
    lanes_a += _exp2(_fma(_wide(block_a), unit, -at_a))
    lanes_b += _exp2(_fma(_wide(block_b), unit, -at_b))
    return lanes_a, lanes_b, _least(least_a, block_a), _least(least_b, block_b)


@triton.jit
def far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, EXACT: tl.constexpr):
    """p φ(v) and q − p of whatever a and b: with q from its own normaliser where p may be too small for p eᵛ."""
    ratio = _ratio(a, b, unit, apart, rest, EXACT)
    v = tl.minimum(ratio, 100.0)  # of NaN too, where p = 0 makes nothing of it
    p = _exp2(_fma(a, unit, -at_a) - log_a)
    q = _exp2(_fma(b, unit, -at_b) - log_b)
    phi = _phi(v)
    far = ratio >= 60.0
    value = tl.where(far, (q - p) - LN2 * p * tl.minimum(ratio, 200.0), p * phi)
    return value, tl.where(far | (b == -INF), q - p, p * (LN2 * v + phi))


@triton.jit
def _word(at, total):
    """Two numbers in one, which arrives whole. It is never 0: the sign of the sum, which has none, says that it is there."""
    low = total.to(tl.uint32, bitcast=True).to(tl.int64) | 0x80000000
    return (at.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low


@triton.jit
def _joined(words, here):
    """The sum of a row's slices, and what it is relative to. Slices of nothing do not count."""
    total = tl.where(here, (words & 0x7FFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True), 0.0)
    at = tl.where(total == 0.0, -INF, (words >> 32).to(tl.int32).to(tl.float32, bitcast=True))
    top = tl.max(at, 0)
    return top, tl.sum(total * _exp2(at - top), 0)


@triton.jit
def kl_kernel(
    x, y, words, counts, terms, gradient, upstream, upstream_row,
    V, COMMON, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, g_row, scales, scale_row, WIDTH, COUNT,
    SLICES: tl.constexpr, EXACT: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """upstream·(q − p) into `gradient`; this slice's part of KL(P‖Q) and of Σ q − p into `terms`."""
    row = (tl.program_id(0) // COUNT).to(tl.int64)
    piece = tl.program_id(0) % COUNT
    scale = tl.load(scales + row * scale_row)
    factor = tl.load(upstream + row * upstream_row) * scale
    unit = scale * LOG2E
    low = piece * WIDTH
    high = tl.minimum(low + WIDTH, V)
    left = x + row * x_row
    right = y + row * y_row
    lane = tl.arange(0, BLOCK)
    # Up to here no mask is needed; and a few blocks at a time, so that enough of them are on their way.
    middle = low + tl.maximum(tl.minimum(high, COMMON) - low, 0) // BLOCK * BLOCK
    fourfold = low + (middle - low) // (4 * BLOCK) * (4 * BLOCK)
    # Any pivot does while nothing overflows: the first column's, or else the largest of the slice.
    at_a = _pivot(tl.load(left).to(tl.float32)) * unit
    at_b = _pivot(tl.load(right).to(tl.float32)) * unit
    slot = words + row * COUNT * 2
    least_a = tl.full([BLOCK], INF, x.dtype.element_ty)
    least_b = tl.full([BLOCK], INF, y.dtype.element_ty)
    lanes_a, lanes_b = _sums(x, y, row, middle, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK)
    for start in range(low, fourfold, 4 * BLOCK):
        columns = (start + lane).to(tl.int64)
        a0 = tl.load(left + columns * x_column)
        b0 = tl.load(right + columns * y_column)
        a1 = tl.load(left + (columns + BLOCK) * x_column)
        b1 = tl.load(right + (columns + BLOCK) * y_column)
        a2 = tl.load(left + (columns + 2 * BLOCK) * x_column)
        b2 = tl.load(right + (columns + 2 * BLOCK) * y_column)
        a3 = tl.load(left + (columns + 3 * BLOCK) * x_column)
        b3 = tl.load(right + (columns + 3 * BLOCK) * y_column)
        lanes_a, lanes_b, least_a, least_b = _take(a0, b0, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit)
        lanes_a, lanes_b, least_a, least_b = _take(a1, b1, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit)
        lanes_a, lanes_b, least_a, least_b = _take(a2, b2, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit)
        lanes_a, lanes_b, least_a, least_b = _take(a3, b3, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit)
    for start in range(fourfold, middle, BLOCK):
        columns = (start + lane).to(tl.int64)
        a0 = tl.load(left + columns * x_column)
        b0 = tl.load(right + columns * y_column)
        lanes_a, lanes_b, least_a, least_b = _take(a0, b0, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit)
    sum_a, sum_b = tl.reduce((lanes_a, lanes_b), 0, add_two)
    if (sum_a > 1e18) | (sum_b > 1e18) | (sum_a < 1e-18) | (sum_b < 1e-18):
        at_a, sum_a, at_b, sum_b = two_sums(x, y, row, low, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, unit, BLOCK)
    there = COUNT
    if FIRST and SLICES > 1:
        tl.store(slot + piece, _word(at_a, sum_a))
        tl.store(slot + COUNT + piece, _word(at_b, sum_b))
        if SECOND:
            there = tl.atomic_add(counts + row, 1, sem="relaxed") + 1
    if SECOND:
        lowest_a, lowest_b = tl.reduce((_wide(least_a), _wide(least_b)), 0, least_two)
        if SLICES > 1:
            # One counter to watch: many watchers of many words would be in each other's way. A word that comes later than the count
            # is asked for again.
            while there < COUNT:
                there = tl.atomic_add(counts + row, 0, sem="relaxed")
            each = tl.arange(0, SLICES)
            here = each < COUNT
            words_a = tl.load(slot + each, mask=here, other=1, volatile=True)
            words_b = tl.load(slot + COUNT + each, mask=here, other=1, volatile=True)
            while tl.min(((words_a != 0) & (words_b != 0)).to(tl.int32), 0) == 0:
                words_a = tl.load(slot + each, mask=here, other=1, volatile=True)
                words_b = tl.load(slot + COUNT + each, mask=here, other=1, volatile=True)
            at_a, sum_a = _joined(words_a, here)
            at_b, sum_b = _joined(words_b, here)
        log_a = tl.log2(sum_a)
        log_b = tl.log2(sum_b)
        gain = _log2_ratio(sum_b, sum_a)
        valid = tl.abs(gain) < INF
        # log2 of the ratio of the normalisers, and of what p is multiplied by, each with what rounding took from it.
        apart, rest = _two_sum(at_b - at_a, gain)
        shift, less = _two_sum(at_a, log_a - tl.log2(factor))
        # p·factor does not underflow, nor eᵛ ≤ 1/p overflow, and q is nowhere absent. NaN fails this too.
        ordinary = (lowest_a * unit - shift > -100.0) & (lowest_b > -INF) & (factor > 0.0) & (factor < 1e8)
        target = gradient + row * g_row
        # Each number is read before its place is written to: the gradient may take the memory of the logits.
        value = tl.zeros([BLOCK], tl.float32)
        excess = tl.zeros([BLOCK], tl.float32)
        middle = tl.where(ordinary, middle, low)
        for done in range(low, middle, BLOCK):
            columns = (low + middle - BLOCK - done + lane).to(tl.int64)
            a = _wide(tl.load(left + columns * x_column, eviction_policy="evict_first"))
            b = _wide(tl.load(right + columns * y_column, eviction_policy="evict_first"))
            v = _ratio(a, b, unit, apart, rest, EXACT)
            p = _exp2(_fma(a, unit, -shift))
            phi = _phi(v)
            value += p * phi
            difference = p * (LN2 * v + phi)
            excess += difference
            tl.store(target + columns, difference.to(gradient.dtype.element_ty), eviction_policy="evict_first")
        # This is KL and Σ q − p now but for a factor, which for slices that are out of the ordinary may be anything, or NaN.
        back = tl.where(ordinary, _exp2(-less) / factor, 0.0)
        found, more = tl.reduce((value, excess), 0, add_two)
        factor = tl.where(valid | (factor == 0.0), factor, float("nan"))
        value = tl.zeros([BLOCK], tl.float32)
        excess = tl.zeros([BLOCK], tl.float32)
        for start in range(middle, high, BLOCK):
            columns = start + lane
            a = _load(x, row, columns, tl.minimum(VALID_X, high), x_row, x_column)
            b = _load(y, row, columns, tl.minimum(VALID_Y, high), y_row, y_column)
            term, difference = far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, EXACT)
            value += term
            excess += difference
            # A row of weight 0 may hold anything.
            g = tl.where(factor == 0.0, 0.0, difference * factor)
            tl.store(target + columns, g.to(gradient.dtype.element_ty), mask=columns < tl.minimum(VALID_Y, high))
        far, far_more = tl.reduce((value, excess), 0, add_two)
        base = terms + (row * COUNT + piece) * 2
        tl.store(base, tl.where(valid, found * back + far, float("nan")))
        tl.store(base + 1, more * back + far_more)


@triton.jit
def finish_kernel(terms, out, upstream, upstream_row, N, COUNT, WEIGHTED: tl.constexpr, SLICES: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    each = tl.arange(0, SLICES)
    here = (row < N)[:, None] & (each < COUNT)[None, :]
    at = terms + (row[:, None].to(tl.int64) * COUNT + each[None, :]) * 2
    total = tl.sum(tl.load(at, mask=here, other=0.0), 1)
    excess = tl.sum(tl.load(at + 1, mask=here, other=0.0), 1)
    # log(q/p) is rounded: off by δ, Σ p eᵛ is 1 + X = e^δ instead of 1, and KL = Σ p φ(v) + log1p(X) − X.
    square = excess * excess
    small = tl.abs(excess) < 1e-3
    total = tl.where(small, tl.maximum(total - square * (0.5 - excess * (1.0 / 3.0)), 0.0), total)
    if WEIGHTED:
        weight = tl.load(upstream + row * upstream_row, mask=row < N, other=0.0)
        total = tl.where(weight == 0.0, 0.0, weight * total)
    tl.store(out + row, total, mask=row < N)


def steps(columns: int) -> tuple[int, int]:
    """Columns a step, and warps."""
    block = min(STEP[0], max(128, triton.next_power_of_2(columns)))
    return block, max(1, min(STEP[1], block // 128))


def differentiate(x: Any, y: Any, scales: tuple[Any, int], upstream: Any, gradient: Any, weighted: bool = False) -> Any:
    """KL of each row of two [rows, columns] arrays, times `upstream` if `weighted`; `gradient` receives upstream · d/dy. `upstream` is one
    number, or one a row."""
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    out = torch.empty(n, dtype=torch.float32, device=x.device)
    if n == 0:
        return out
    upstream_row = int(upstream.numel() > 1)
    block, warps = steps(columns)
    count = triton.cdiv(columns, _SLICE)
    slices = triton.next_power_of_2(count)
    words = torch.zeros(n * count * 2 + triton.cdiv(n, 2), dtype=torch.int64, device=x.device)
    terms = torch.empty(n, count, 2, dtype=torch.float32, device=x.device)
    halves = [(True, False), (False, True)] if count > 1 and (INTERPRETED or count > _AT_ONCE) else [(True, True)]
    with torch.cuda.device_of(x):
        for first, second in halves:
            kl_kernel[(n * count,)](
                x, y, words, words[n * count * 2 :].view(torch.int32), terms, gradient, upstream, upstream_row,
                columns, min(x.shape[1], y.shape[1]), x.shape[1], y.shape[1], *x.stride(), *y.stride(), gradient.stride(0), *scales,
                _SLICE, count, SLICES=slices, EXACT=torch.float32 not in (x.dtype, y.dtype), FIRST=first, SECOND=second,
                BLOCK=block, num_warps=warps, **REGISTERS,
            )  # fmt: skip
        finish_kernel[(triton.cdiv(n, 32),)](
            terms, out, upstream, upstream_row, n, count, WEIGHTED=weighted, SLICES=slices, ROWS=32, num_warps=1
        )  # fmt: skip
    return out

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

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .math_triton import (
    INF,
    INTERPRETED,
    LN2,
    LOG2E,
    _exp2,
    _fma,
    _least,
    _load,
    _log2_ratio,
    _lowest,
    _of_row,
    _phi,
    _pivot,
    _ratio,
    _summed,
    _two_sum,
    _wide,
)

# Columns a step, columns a slice: the fastest of those tried on an H200.
STEP = 128 if INTERPRETED else 1024
COLUMNS = 512 if INTERPRETED else 8192
# Slices of a row that any GPU runs at once; rows of one launch, which the second axis of its grid has room for.
_AT_ONCE, _ROWS = 64, 65535

# One number a row, on the device, and their stride; or one for all of them, and None.
PerRow = tuple[Any, int | None]


def registers(most: int) -> dict[str, int]:
    """As many programs at a time as that leaves room for. An option of NVIDIA's back end alone."""
    return {"maxnreg": most} if torch.version.cuda is not None else {}


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
def _take(block_a, block_b, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit, GROUP: tl.constexpr):
    lanes_a += _summed(_exp2(_fma(_wide(block_a), unit, -at_a)), GROUP)
    lanes_b += _summed(_exp2(_fma(_wide(block_b), unit, -at_b)), GROUP)
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
def _terms(block_a, block_b, unit, apart, rest, shift, EXACT: tl.constexpr):
    """p φ(v) and q − p, times what p is multiplied by, where nothing is out of the ordinary."""
    a = _wide(block_a)
    v = _ratio(a, _wide(block_b), unit, apart, rest, EXACT)
    p = _exp2(_fma(a, unit, -shift))
    phi = _phi(v)
    return p * phi, p * (LN2 * v + phi)


@triton.jit
def word(first, second):
    """Two numbers in one, which arrives whole. It is never 0: the sign of the second, a sum, which has none, says that it is there."""
    low = second.to(tl.uint32, bitcast=True).to(tl.int64) | 0x80000000
    return (first.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low


@triton.jit
def numbers(words):
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True), (words & 0x7FFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def awaited(words, here):
    """The words of a row's slices, once they are there. One warp asks, by an operation that goes where they were written to."""
    found = tl.atomic_add(words, 0, mask=here, sem="relaxed")
    while tl.max(((found == 0) & here).to(tl.int32), 0) == 1:
        found = tl.atomic_add(words, 0, mask=here, sem="relaxed")
    return found


@triton.jit
def _joined(words, here):
    """The sum of a row's slices, and what it is relative to. Slices of nothing do not count."""
    at, total = numbers(words)
    total = tl.where(here, total, 0.0)
    at = tl.where(total == 0.0, -INF, at)
    top = tl.max(at, 0)
    return top, tl.sum(total * _exp2(at - top), 0)


@triton.jit
def normalisers(
    x, y, words, own_words, row, piece, low, high, end, unit,
    VALID_X, VALID_Y, x_row, x_column, y_row, y_column, COUNT,
    SLICES: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a row: what the exponentials are relative to, and their sum, of either side; and the least logits of this slice up to `end`, of
    each GROUP. `FIRST` sums this slice, `SECOND` waits for the others."""
    left = x + row * x_row
    right = y + row * y_row
    lane = tl.arange(0, BLOCK)
    # Up to here no mask is needed, and four blocks are read at a time: enough are on their way.
    fourfold = low + (end - low) // (4 * BLOCK) * (4 * BLOCK)
    # Any pivot does while nothing overflows: the first column's.
    at_a = _pivot(tl.load(left).to(tl.float32)) * unit
    at_b = _pivot(tl.load(right).to(tl.float32)) * unit
    least_a = tl.full([BLOCK], INF, x.dtype.element_ty)
    least_b = tl.full([BLOCK], INF, y.dtype.element_ty)
    lanes_a = tl.zeros([BLOCK // GROUP], tl.float32)
    lanes_b = tl.zeros([BLOCK // GROUP], tl.float32)
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
        lanes_a, lanes_b, least_a, least_b = _take(a0, b0, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit, GROUP)
        lanes_a, lanes_b, least_a, least_b = _take(a1, b1, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit, GROUP)
        lanes_a, lanes_b, least_a, least_b = _take(a2, b2, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit, GROUP)
        lanes_a, lanes_b, least_a, least_b = _take(a3, b3, lanes_a, lanes_b, least_a, least_b, at_a, at_b, unit, GROUP)
    for start in range(fourfold, end, BLOCK):
        here = start + lane < end
        columns = (start + lane).to(tl.int64)
        a0 = tl.load(left + columns * x_column, mask=here, other=0.0)
        b0 = tl.load(right + columns * y_column, mask=here, other=0.0)
        lanes_a += _summed(tl.where(here, _exp2(_fma(_wide(a0), unit, -at_a)), 0.0), GROUP)
        lanes_b += _summed(tl.where(here, _exp2(_fma(_wide(b0), unit, -at_b)), 0.0), GROUP)
        least_a = _least(least_a, tl.where(here, a0, INF).to(least_a.dtype))
        least_b = _least(least_b, tl.where(here, b0, INF).to(least_b.dtype))
    if end < high:
        more_a, more_b = _sums(x, y, row, end, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, at_a, at_b, unit, BLOCK)
        lanes_a += _summed(more_a, GROUP)
        lanes_b += _summed(more_b, GROUP)
    sum_a, sum_b = tl.reduce((lanes_a, lanes_b), 0, add_two)
    each = tl.arange(0, SLICES)
    inside = each < COUNT
    slot = words + row * COUNT
    if FIRST and SLICES > 1:
        tl.store(slot + piece, word(sum_a, sum_b))
    # Between what is sent and what is waited for.
    lowest_a = _lowest(least_a, GROUP)
    lowest_b = _lowest(least_b, GROUP)
    if SECOND and SLICES > 1:
        found_a, found_b = numbers(awaited(slot + each, inside))
        sum_a, sum_b = tl.reduce((tl.where(inside, found_a, 0.0), tl.where(inside, found_b, 0.0)), 0, add_two)
    # All slices of a row find the same here. Where the pivot was far off, or there is nothing, or NaN, each takes the largest of its own.
    usual = (sum_a > 1e-18) & (sum_b > 1e-18) & (sum_a < 1e18) & (sum_b < 1e18) & SECOND
    if not usual:
        own = own_words + row * COUNT * 2
        at_a, sum_a, at_b, sum_b = two_sums(x, y, row, low, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, unit, BLOCK)
        if FIRST and SLICES > 1:
            tl.store(own + piece, word(at_a, sum_a))
            tl.store(own + COUNT + piece, word(at_b, sum_b))
        if SECOND and SLICES > 1:
            at_a, sum_a = _joined(awaited(own + each, inside), inside)
            at_b, sum_b = _joined(awaited(own + COUNT + each, inside), inside)
    return at_a, sum_a, at_b, sum_b, lowest_a, lowest_b


@triton.jit
def kl_kernel(
    x, y, words, own_words, terms, gradient, upstream, upstream_row, scales, scale_row,
    V, COMMON, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, g_row, WIDTH, COUNT, FIRST_ROW,
    SLICES: tl.constexpr, EXACT: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """upstream·(q − p) into `gradient`; this slice's part of KL(P‖Q) and of Σ q − p into `terms`."""
    piece = tl.program_id(0)
    row = (FIRST_ROW + tl.program_id(1)).to(tl.int64)
    low = piece * WIDTH
    high = tl.minimum(low + WIDTH, V)
    left = x + row * x_row
    right = y + row * y_row
    lane = tl.arange(0, BLOCK)
    end = tl.maximum(tl.minimum(high, COMMON), low)  # up to here both have columns
    scale = _of_row(scales, row, scale_row)
    factor = _of_row(upstream, row, upstream_row) * scale
    unit = scale * LOG2E
    at_a, sum_a, at_b, sum_b, lowest_a, lowest_b = normalisers(
        x, y, words, own_words, row, piece, low, high, end, unit, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, COUNT,
        SLICES, FIRST, SECOND, GROUP, BLOCK,
    )  # fmt: skip
    if SECOND:
        log_a = tl.log2(sum_a)
        gain = _log2_ratio(sum_b, sum_a)
        valid = tl.abs(gain) < INF
        # log2 of the ratio of the normalisers, and of what p is multiplied by, each with what rounding took from it.
        apart, rest = _two_sum(at_b - at_a, gain)
        shift, less = _two_sum(at_a, log_a - tl.log2(factor))
        # p·factor does not underflow, nor eᵛ ≤ 1/p overflow, and q is nowhere absent. NaN fails this too.
        fine = (lowest_a * unit - shift > -100.0) & (lowest_b > -INF)
        ordinary = (tl.min(fine.to(tl.int32), 0) == 1) & (factor > 0.0) & (factor < 1e8)
        target = gradient + row * g_row
        # Each number is read before its place is written to: the gradient may take the memory of the logits.
        value = tl.zeros([BLOCK // GROUP], tl.float32)
        excess = tl.zeros([BLOCK // GROUP], tl.float32)
        end = tl.where(ordinary, end, low)
        twofold = low + (end - low) // (2 * BLOCK) * (2 * BLOCK)
        for start in range(twofold, end, BLOCK):
            here = start + lane < end
            columns = (start + lane).to(tl.int64)
            a0 = tl.load(left + columns * x_column, mask=here, other=0.0)
            b0 = tl.load(right + columns * y_column, mask=here, other=0.0)
            term, difference = _terms(a0, b0, unit, apart, rest, shift, EXACT)
            value += _summed(tl.where(here, term, 0.0), GROUP)
            excess += _summed(tl.where(here, difference, 0.0), GROUP)
            tl.store(target + columns, difference.to(gradient.dtype.element_ty), mask=here, eviction_policy="evict_first")
        for done in range(low, twofold, 2 * BLOCK):
            columns = (low + twofold - 2 * BLOCK - done + lane).to(tl.int64)
            a1 = tl.load(left + (columns + BLOCK) * x_column, eviction_policy="evict_first")
            b1 = tl.load(right + (columns + BLOCK) * y_column, eviction_policy="evict_first")
            a0 = tl.load(left + columns * x_column, eviction_policy="evict_first")
            b0 = tl.load(right + columns * y_column, eviction_policy="evict_first")
            term, difference = _terms(a1, b1, unit, apart, rest, shift, EXACT)
            value += _summed(term, GROUP)
            excess += _summed(difference, GROUP)
            tl.store(target + columns + BLOCK, difference.to(gradient.dtype.element_ty), eviction_policy="evict_first")
            term, difference = _terms(a0, b0, unit, apart, rest, shift, EXACT)
            value += _summed(term, GROUP)
            excess += _summed(difference, GROUP)
            tl.store(target + columns, difference.to(gradient.dtype.element_ty), eviction_policy="evict_first")
        # This is KL and Σ q − p now but for a factor, which for slices that are out of the ordinary may be anything, or NaN.
        found, more = tl.reduce((value, excess), 0, add_two)
        back = tl.where(ordinary, _exp2(-less) / factor, 0.0)
        found *= back
        more *= back
        if end < high:
            log_b = tl.log2(sum_b)
            factor = tl.where(valid | (factor == 0.0), factor, float("nan"))
            far_value = tl.zeros([BLOCK], tl.float32)
            far_excess = tl.zeros([BLOCK], tl.float32)
            for start in range(end, high, BLOCK):
                a = _load(x, row, start + lane, tl.minimum(VALID_X, high), x_row, x_column)
                b = _load(y, row, start + lane, tl.minimum(VALID_Y, high), y_row, y_column)
                term, difference = far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, EXACT)
                far_value += term
                far_excess += difference
                # A row of weight 0 may hold anything.
                g = tl.where(factor == 0.0, 0.0, difference * factor)
                tl.store(target + start + lane, g.to(gradient.dtype.element_ty), mask=start + lane < tl.minimum(VALID_Y, high))
            far, far_more = tl.reduce((far_value, far_excess), 0, add_two)
            found += far
            more += far_more
        base = terms + (row * COUNT + piece) * 2
        tl.store(base, tl.where(valid, found, float("nan")))
        tl.store(base + 1, more)


@triton.jit
def finish_kernel(
    terms, out, partial, counter, upstream, upstream_row, N, COUNT, PROGRAMS, SETTLED,
    TOTAL: tl.constexpr, SLICES: tl.constexpr, ROWS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """KL of the rows; or Σ upstream · KL, by the last program to get there, always in the same order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    each = tl.arange(0, SLICES)
    here = (row < N)[:, None] & (each < COUNT)[None, :]
    at = terms + (row[:, None].to(tl.int64) * COUNT + each[None, :]) * 2
    kl = tl.sum(tl.load(at, mask=here, other=0.0), 1)
    excess = tl.sum(tl.load(at + 1, mask=here, other=0.0), 1)
    # log(q/p) is rounded: off by δ, Σ p eᵛ is 1 + X = e^δ instead of 1, and KL = Σ p φ(v) + log1p(X) − X.
    square = excess * excess
    small = (tl.abs(excess) < 1e-3) & (kl < SETTLED)
    kl = tl.where(small, tl.maximum(kl - square * (0.5 - excess * (1.0 / 3.0)), 0.0), kl)
    if TOTAL:
        weight = tl.zeros([ROWS], tl.float32) + 1.0
        if upstream_row is None:
            weight *= upstream
        else:
            weight = tl.load(upstream + row * upstream_row, mask=row < N, other=0.0)
        tl.store(partial + tl.program_id(0), tl.sum(tl.where((weight == 0.0) | (row >= N), 0.0, weight * kl), 0))
        if tl.atomic_add(counter, 1, sem="acq_rel") == PROGRAMS - 1:
            total = tl.zeros([ALL], tl.float32)
            for start in range(0, PROGRAMS, ALL):
                i = start + tl.arange(0, ALL)
                total += tl.load(partial + i, mask=i < PROGRAMS, other=0.0, volatile=True)
            tl.store(out, tl.sum(total, 0))
    else:
        tl.store(out + row, kl, mask=row < N)


def steps(columns: int) -> tuple[int, int]:
    """Columns a step, and warps: a thread has eight of them."""
    block = min(STEP, max(256, triton.next_power_of_2(columns)))
    return block, max(1, block // 256)


class Layout(NamedTuple):
    """How the rows of two arrays are cut, and the room their slices need to talk."""

    columns: int
    slices: int  # of a row
    padded: int  # to a power of two
    block: int
    warps: int
    group: int  # neighbours that one thread has
    exact: bool  # are differences of logits?
    apart: bool  # Do slices wait for others in launches of their own?
    launches: list[tuple[int, int]]  # first row, rows
    words: list[Any]  # one a slice each
    terms: Any  # two a slice
    counter: Any


def layout(x: Any, y: Any, words: int) -> Layout:
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    count = triton.cdiv(columns, COLUMNS)
    room = triton.cdiv(n * count, 2) * 2  # so that all pointers are multiples of 16 bytes, whatever n: else there are kernels for either
    zeros = torch.zeros(room * words + 2, dtype=torch.int64, device=x.device)
    exact = torch.float32 not in (x.dtype, y.dtype)
    return Layout(
        columns, count, triton.next_power_of_2(count), *steps(columns), 8 if exact else 4, exact,
        count > 1 and (INTERPRETED or count > _AT_ONCE), [(start, min(_ROWS, n - start)) for start in range(0, n, _ROWS)],
        [zeros[room * i :] for i in range(words)], torch.empty(n, count, 2, dtype=torch.float32, device=x.device),
        zeros[room * words :].view(torch.int32),
    )  # fmt: skip


def finish(here: Layout, upstream: PerRow, total: bool, settled: float = math.inf) -> Any:
    """The divergence of each row from the terms of its slices, or Σ upstream · divergence. Up to `settled`, what the error of the
    normalisers adds is taken off."""
    n, device = here.terms.shape[0], here.terms.device
    programs = triton.cdiv(n, 32)
    out = torch.empty(() if total else (n,), dtype=torch.float32, device=device)
    partial = torch.empty(programs, dtype=torch.float32, device=device)
    if n == 0:
        return out.zero_()
    with torch.cuda.device_of(out):
        finish_kernel[(programs,)](
            here.terms, out, partial, here.counter, *upstream, n, here.slices, programs, settled,
            TOTAL=total, SLICES=here.padded, ROWS=32, ALL=1024, num_warps=1,
        )  # fmt: skip
    return out


def differentiate(x: Any, y: Any, scales: PerRow, upstream: PerRow, gradient: Any, total: bool = False) -> Any:
    """KL of each row of two [rows, columns] arrays, or Σ upstream · KL if `total`; `gradient` receives upstream · d KL / dy."""
    here = layout(x, y, 3)
    with torch.cuda.device_of(x):
        for start, rows in here.launches:
            for first, second in [(True, False), (False, True)] if here.apart else [(True, True)]:
                kl_kernel[(here.slices, rows)](
                    x, y, here.words[0], here.words[1], here.terms, gradient, *upstream, *scales,
                    here.columns, min(x.shape[1], y.shape[1]), x.shape[1], y.shape[1], *x.stride(), *y.stride(), gradient.stride(0),
                    COLUMNS, here.slices, start, SLICES=here.padded, EXACT=here.exact, FIRST=first, SECOND=second,
                    GROUP=here.group, BLOCK=here.block, num_warps=here.warps, **registers(64),
                )  # fmt: skip
    return finish(here, upstream, total)

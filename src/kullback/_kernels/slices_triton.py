"""What the kernels over rows in slices have in common: a row is cut into slices of some 8,000 columns, a program each.

A program sums its slice's exponentials, tells the row's other slices in words that arrive whole, and waits for theirs. Slices of a row are
neighbours in the grid, and GPUs start programs in the order of the grid: those that are waited for have started. The interpreter, which
runs one program after another, gets a launch for each time they wait, where later ones sum their slice again; so do rows of more slices
than a small GPU runs at once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .math_triton import (
    ATOMICS_ANSWER_ALL,
    INF,
    INTERPRETED,
    LOG2E,
    _exp2,
    _fma,
    _least,
    _load,
    _log2_ratio,
    _lowest,
    _of_row,
    _pivot,
    _summed,
    _three_sum,
    _two_sum,
    _wide,
)

# Columns a step, columns a slice: the fastest of those tried on an H200.
STEP = 128 if INTERPRETED else 1024
COLUMNS = 512 if INTERPRETED else 8192
# Slices of a row that wait for each other, at most (where each warp asks for itself, as many as it has lanes: warps would share what only
# some of them have found); rows of one launch, which the second axis of its grid has room for.
_AT_ONCE, _ROWS = 64 if ATOMICS_ANSWER_ALL.value else 32, 65535

# Differences of half-precision logits are exact while the two normalisers are less than this apart, in base 2: a row that a large finite
# number masks everywhere may be at -65504 and more.
EXACT_WITHIN = tl.constexpr(512.0)

# The lowest pivot, in base 2. Its own rounding, 64, stays an ordinary power of 2.
LOWEST = tl.constexpr(-(2.0**31))

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
    """What the exponentials of a slice are relative to, and their sum, of either side: with the largest as pivot, nothing overflows. A
    slice whose logits all lie below LOWEST counts as empty: their multiples may be −inf, or round by more than float32 has powers of 2."""
    at_a = tl.maximum(_pivot(_largest(x, row, low, high, VALID_X, x_row, x_column, BLOCK)) * unit, LOWEST)
    at_b = tl.maximum(_pivot(_largest(y, row, low, high, VALID_Y, y_row, y_column, BLOCK)) * unit, LOWEST)
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
def word(first, second):
    """Two numbers in one, which arrives whole. It is never 0: the sign of the second, a sum, which has none, says that it is there."""
    low = second.to(tl.uint32, bitcast=True).to(tl.int64) | 0x80000000
    return (first.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low


@triton.jit
def numbers(words):
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True), (words & 0x7FFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _asked(words, here):
    # One warp asks for all, by an operation that goes where the words were written to; or else each for itself.
    return tl.atomic_add(words, 0, mask=here, sem="relaxed") if ATOMICS_ANSWER_ALL else tl.load(words, mask=here, other=1, volatile=True)


@triton.jit
def awaited(words, here):
    """The words of a row's slices, once they are there."""
    found = _asked(words, here)
    while tl.max(((found == 0) & here).to(tl.int32), 0) == 1:
        found = _asked(words, here)
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
def store_two(pairs, i, first, second):
    tl.store(pairs + i * 2, first)
    tl.store(pairs + i * 2 + 1, second)


@triton.jit
def normalisers(
    x, y, words, own_words, pivots, row, piece, low, high, end, unit,
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
    # Any pivot does while nothing overflows: the first column's. Later launches get those of the first: by then another program may have
    # written the gradient over that column.
    if FIRST:
        at_a = _pivot(tl.load(left).to(tl.float32)) * unit
        at_b = _pivot(tl.load(right).to(tl.float32)) * unit
        if not SECOND:
            store_two(pivots, row * COUNT + piece, at_a, at_b)
    else:
        at_a = tl.load(pivots + (row * COUNT + piece) * 2)
        at_b = tl.load(pivots + (row * COUNT + piece) * 2 + 1)
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
def place(V, COMMON, WIDTH, FIRST_ROW, upstream, upstream_row, scales, scale_row):
    """Of this program: its row and number in it; the columns from which to which its slice is, and up to which both sides have them; what
    the gradient is multiplied by, 0 for a row that does not count, and logits in base 2."""
    piece = tl.program_id(0)
    row = (FIRST_ROW + tl.program_id(1)).to(tl.int64)
    low = piece * WIDTH
    high = tl.minimum(low + WIDTH, V)
    scale = _of_row(scales, row, scale_row)
    weight = _of_row(upstream, row, upstream_row)
    factor = tl.where(weight == 0.0, 0.0, weight * scale)
    return row, piece, low, high, tl.maximum(tl.minimum(high, COMMON), low), factor, scale * LOG2E


@triton.jit
def ratios(at_a, sum_a, at_b, sum_b, lowest_a, lowest_b, unit, factor, EXACT: tl.constexpr):
    """From the normalisers: log2 of P's sum; is the row two distributions? log2 of their ratio, and of what p is multiplied by, each with
    what rounding took from it; and may this slice take the formulas for ordinary logits?"""
    log_a = tl.log2(sum_a)
    gain = _log2_ratio(sum_b, sum_a)
    apart, rest = _three_sum(at_b, -at_a, gain)
    shift, less = _two_sum(at_a, log_a - tl.log2(factor))
    # p·factor does not underflow, nor eᵛ ≤ 1/p overflow; v ≥ log2 q is not so low that v + φ(v) cancels, nor q absent; and what
    # rounding took from the shift, which gradients lack, is little. NaN fails this too.
    fine = (lowest_a * unit - shift > -100.0) & (lowest_b * unit - (at_b + (log_a + gain)) > -100.0)
    ordinary = (tl.min(fine.to(tl.int32), 0) == 1) & (factor > 0.0) & (factor < 1e8) & (tl.abs(less) < 1e-5)
    if EXACT:
        ordinary = ordinary & (tl.abs(apart) < EXACT_WITHIN)
    return log_a, tl.abs(gain) < INF, apart, rest, shift, less, ordinary


@triton.jit
def finish_kernel(
    terms, out, partial, counter, upstream, upstream_row, N, COUNT, PROGRAMS, SETTLED,
    TOTAL: tl.constexpr, SLICES: tl.constexpr, ROWS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """The divergence of each row, here KL; or Σ upstream · divergence, by the last program to get there, always in the same order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    each = tl.arange(0, SLICES)
    here = (row < N)[:, None] & (each < COUNT)[None, :]
    at = terms + (row[:, None].to(tl.int64) * COUNT + each[None, :]) * 2
    kl = tl.sum(tl.load(at, mask=here, other=0.0), 1)
    excess = tl.sum(tl.load(at + 1, mask=here, other=0.0), 1)
    # log(q/p) is rounded: off by δ, Σ p eᵛ is 1 + X = e^δ instead of 1, and KL = Σ p φ(v) + log1p(X) − X.
    square = excess * excess
    small = (tl.abs(excess) < 1e-3) & (kl < SETTLED)
    kl = tl.where(small, kl - square * (0.5 - excess * (1.0 / 3.0)), kl)
    kl = tl.where(kl < 0.0, 0.0, kl)  # not the greater of both, which NaN is not
    if TOTAL:
        inside = row < N
        weight = tl.full([ROWS], upstream, tl.float32) if upstream_row is None else tl.load(upstream + row * upstream_row, mask=inside)
        tl.store(partial + tl.program_id(0), tl.sum(tl.where(inside & (weight != 0.0), weight * kl, 0.0), 0))
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


def _at_once(device: Any) -> int:
    """Slices of a row that surely run at the same time. A multiprocessor has room for eight programs or so; but in other streams there may
    be some that wait likewise, in rows of which not all have started."""
    return 1 if INTERPRETED else min(_AT_ONCE, 2 * torch.cuda.get_device_properties(device).multi_processor_count)


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
    pivots: Any  # likewise, for later launches
    counter: Any


def layout(x: Any, y: Any, words: int) -> Layout:
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    count = triton.cdiv(columns, COLUMNS)
    room = triton.cdiv(n * count, 2) * 2  # so that all pointers are multiples of 16 bytes, whatever n: else there are kernels for either
    zeros = torch.zeros(room * words + 2, dtype=torch.int64, device=x.device)
    terms = torch.empty(n, count, 2, dtype=torch.float32, device=x.device)
    exact, apart = torch.float32 not in (x.dtype, y.dtype), count > _at_once(x.device)
    return Layout(
        columns, count, triton.next_power_of_2(count), *steps(columns), 8 if exact else 4, exact,
        apart, [(start, min(_ROWS, n - start)) for start in range(0, n, _ROWS)],
        [zeros[room * i :] for i in range(words)], terms, torch.empty_like(terms) if apart else terms,
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

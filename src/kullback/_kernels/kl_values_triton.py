"""KL(P‖Q) of the rows of two logits arrays in Triton, without a gradient: read once.

Of each slice of a row, a program each, for any c: with e = 2^(a − at), v = (b − a) − c in base 2, φ(v) = eᵛ − 1 − v, S = Σ e φ(v) and
X = Σ e (eᵛ − 1), the KL of the slice's own two distributions is S/Z + log1p(X/Z) − X/Z, Z = Σ e. That is exact for every c, and accurate
if c is near the mean of b − a under P; the mean over the slice's first block is, mostly. Slices where it is not, or out of the ordinary,
are read twice more, with their own normalisers. By the chain rule KL is the mean of the slices' KLs under P, and the KL between the
weights that P and Q give to the slices; that is left to float64.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .kl_triton import far_terms
from .math_triton import (
    INF,
    INTERPRETED,
    LN2,
    LOG2E,
    _exp2,
    _fma,
    _least,
    _load,
    _log1p,
    _log2_ratio,
    _lowest,
    _of_row,
    _phi,
    _pivot,
    _ratio,
    _summed,
    _three_sum,
    _wide,
)
from .slices_triton import EXACT_WITHIN, STEP, PerRow, add_two, registers, steps, two_sums

# Columns a slice, at most; fewer, down to the least, where there would be fewer programs than this.
_WIDEST, _NARROWEST, _PROGRAMS = (4 * STEP, STEP, 8) if INTERPRETED else (32768, 8192, 8192)


@triton.jit
def _add_three(a, b, c, more_a, more_b, more_c):
    return a + more_a, b + more_b, c + more_c


@triton.jit
def slices_kernel(
    x, y, found, V, COMMON, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, scales, scale_row, WIDTH, COUNT,
    EXACT: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """at, Z, c, X and S of a slice, and what rounding took from c."""
    row = (tl.program_id(0) // COUNT).to(tl.int64)
    piece = tl.program_id(0) % COUNT
    unit = _of_row(scales, row, scale_row) * LOG2E
    low = piece * WIDTH
    high = tl.minimum(low + WIDTH, V)
    left = x + row * x_row
    right = y + row * y_row
    lane = tl.arange(0, BLOCK)
    middle = low + tl.maximum(tl.minimum(high, COMMON) - low, 0) // BLOCK * BLOCK
    at = _pivot(tl.load(left).to(tl.float32)) * unit
    a = _load(x, row, low + lane, tl.minimum(VALID_X, high), x_row, x_column)
    b = _load(y, row, low + lane, tl.minimum(VALID_Y, high), y_row, y_column)
    weight = _exp2(_fma(a, unit, -at))
    total, mean = tl.reduce((weight, tl.where(weight > 0.0, weight * (b - a), 0.0)), 0, add_two)
    c = mean / total * unit
    least_a = tl.full([BLOCK], INF, x.dtype.element_ty)
    least_b = tl.full([BLOCK], INF, y.dtype.element_ty)
    lanes = tl.zeros([BLOCK // GROUP], tl.float32)
    means = tl.zeros([BLOCK // GROUP], tl.float32)
    parts = tl.zeros([BLOCK // GROUP], tl.float32)
    for start in range(low, middle, BLOCK):
        columns = (start + lane).to(tl.int64)
        block_a = tl.load(left + columns * x_column)
        block_b = tl.load(right + columns * y_column)
        least_a = _least(least_a, block_a)
        least_b = _least(least_b, block_b)
        a = _wide(block_a)
        v = _ratio(a, _wide(block_b), unit, c, 0.0, EXACT)
        e = _exp2(_fma(a, unit, -at))
        lanes += _summed(e, GROUP)
        means += _summed(e * v, GROUP)
        parts += _summed(e * _phi(v), GROUP)
    for start in range(middle, tl.minimum(high, COMMON), BLOCK):
        here = start + lane < tl.minimum(high, COMMON)
        columns = (start + lane).to(tl.int64)
        block_a = tl.load(left + columns * x_column, mask=here, other=0.0)
        block_b = tl.load(right + columns * y_column, mask=here, other=0.0)
        least_a = _least(least_a, tl.where(here, block_a, INF).to(least_a.dtype))
        least_b = _least(least_b, tl.where(here, block_b, INF).to(least_b.dtype))
        a = _wide(block_a)
        v = _ratio(a, _wide(block_b), unit, c, 0.0, EXACT)
        e = tl.where(here, _exp2(_fma(a, unit, -at)), 0.0)
        lanes += _summed(e, GROUP)
        means += _summed(e * v, GROUP)
        parts += _summed(e * _phi(v), GROUP)
    total, mean, part = tl.reduce((lanes, means, parts), 0, _add_three)
    uneven = part + LN2 * mean
    # How much of S is due to c: all but KL. NaN fails every test.
    of_c = uneven / total
    known = of_c > -0.99  # c may be so far off that nothing is left of the difference of both
    of_c = tl.where(tl.abs(of_c) < 0.1, of_c * of_c * (0.5 - of_c * (1.0 / 3.0 - 0.25 * of_c)), of_c - tl.log(1.0 + of_c))
    ordinary = (of_c < 0.75 * (part / total)) | (part < 1e-20 * total)
    ordinary = ordinary & known & (total > 1e-18) & (total < 1e18) & (part < 1e18) & (high <= COMMON)
    if EXACT:
        ordinary = ordinary & (tl.abs(c) < EXACT_WITHIN)
    fine = (_lowest(least_a, GROUP) * unit - at > -100.0) & (_lowest(least_b, GROUP) > -INF)
    ordinary = ordinary & (tl.min(fine.to(tl.int32), 0) == 1)
    rest = 0.0
    if not ordinary:
        at, total, at_b, sum_b = two_sums(x, y, row, low, high, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, unit, BLOCK)
        nothing = total == 0.0
        # Where all of one side is elsewhere, any normaliser does.
        gain = tl.where(nothing | (sum_b == 0.0), 0.0, _log2_ratio(sum_b, total))
        c, rest = _three_sum(at_b, -at, gain)
        differences = tl.zeros([BLOCK // GROUP], tl.float32)
        pieces = tl.zeros([BLOCK // GROUP], tl.float32)
        log_a = tl.where(nothing, 0.0, tl.log2(total))
        log_b = tl.where(sum_b == 0.0, 0.0, tl.log2(sum_b))
        for start in range(low, high, BLOCK):
            a = _load(x, row, start + lane, tl.minimum(VALID_X, high), x_row, x_column)
            b = _load(y, row, start + lane, tl.minimum(VALID_Y, high), y_row, y_column)
            term, difference = far_terms(a, b, unit, at, log_a, at_b, log_b, c, rest)
            pieces += _summed(term, GROUP)
            differences += _summed(difference, GROUP)
        uneven, part = tl.reduce((differences, pieces), 0, add_two)
        uneven = tl.where(sum_b == 0.0, -1.0, uneven) * total
        part = tl.where(part == INF, INF, part * total)
        if nothing:
            at = at_b
            c = 0.0
            rest = 0.0
            uneven = sum_b
            part = tl.where(part == INF, INF, sum_b)
    base = found + (row * COUNT + piece) * 6
    tl.store(base, at)
    tl.store(base + 1, total)
    tl.store(base + 2, c)
    tl.store(base + 3, uneven)
    tl.store(base + 4, part)
    tl.store(base + 5, rest)


@triton.jit
def _phi64(v):
    # eᵛ − 1 − v in float64.
    near = v * v * (0.5 + v * (1.0 / 6.0 + v * (1.0 / 24.0 + v * (1.0 / 120.0 + v * (1.0 / 720.0)))))
    return tl.where(tl.abs(v) < 1e-2, near, tl.exp(v) - 1.0 - v)


@triton.jit
def _near(pivot):
    # Few digits, so that half-precision logits less the pivot are exact; but all of those of a large one, which is that far off otherwise.
    return tl.where(tl.abs(pivot) < 8192.0, pivot.to(tl.bfloat16).to(tl.float32), pivot)


@triton.jit
def join_kernel(
    found, out, stats, scales, scale_row, N, COUNT, SLICES: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """KL of the rows, and what gradients are had from: logits near the normalisers as pivots, log2 of the normalisers relative to them,
    the logarithm of the ratio of these, KL, and what rounding took from that logarithm."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    each = tl.arange(0, SLICES)
    here = (row < N)[:, None] & (each < COUNT)[None, :]
    base = found + (row[:, None] * COUNT + each[None, :]) * 6
    at = tl.load(base, mask=here, other=0.0).to(tl.float64)
    total = tl.load(base + 1, mask=here, other=0.0).to(tl.float64)
    c = tl.load(base + 2, mask=here, other=0.0).to(tl.float64) + tl.load(base + 5, mask=here, other=0.0)
    uneven = tl.load(base + 3, mask=here, other=0.0).to(tl.float64)
    part = tl.load(base + 4, mask=here, other=0.0).to(tl.float64)
    of_q = total + uneven
    top_p = tl.max(tl.where(total != 0.0, at, -INF), 1)
    top_q = tl.max(tl.where(of_q != 0.0, at + c, -INF), 1)
    p = tl.where(total != 0.0, total * tl.exp((at - top_p[:, None]) * LN2), 0.0)
    q = tl.where(of_q != 0.0, of_q * tl.exp((at + c - top_q[:, None]) * LN2), 0.0)
    sum_p = tl.sum(p, 1)
    sum_q = tl.sum(q, 1)
    p = p / sum_p[:, None]
    q = q / sum_q[:, None]
    r = (top_q - top_p) * LN2 + tl.log(sum_q / sum_p)
    share = uneven / tl.where(total > 0.0, total, 1.0)
    change = _log1p(tl.where(share > -1.0, share, 0.0))
    within = part / tl.where(total > 0.0, total, 1.0) + (change - share)
    v = tl.minimum(c * LN2 + change - r[:, None], 700.0)
    between = tl.where(tl.abs(v) < 1.0, p * _phi64(v), q - p - p * v)
    kl = tl.sum(tl.where(p > 0.0, p * within + between, tl.where(part == INF, INF, q)), 1)
    # Nothing on one side, NaN, or an infinite sum.
    valid = tl.abs(r) < INF
    kl = tl.where(valid, tl.where(kl < 0.0, 0.0, kl), float("nan")).to(tl.float32)
    inside = row < N
    scale = tl.full([ROWS], scales, tl.float32) if scale_row is None else tl.load(scales + row * scale_row, mask=inside, other=1.0)
    unit = (scale * LOG2E).to(tl.float64)
    log_p = top_p + tl.log(sum_p) / LN2
    log_q = top_q + tl.log(sum_q) / LN2
    pivot_a = _near((log_p / unit).to(tl.float32))
    pivot_b = _near((log_q / unit).to(tl.float32))
    log_a = log_p - pivot_a.to(tl.float64) * unit
    log_b = log_q - pivot_b.to(tl.float64) * unit
    tl.store(out + row, kl, mask=inside)
    base = stats + row * 7
    tl.store(base, pivot_a, mask=inside)
    tl.store(base + 1, log_a.to(tl.float32), mask=inside)
    tl.store(base + 2, pivot_b, mask=inside)
    tl.store(base + 3, log_b.to(tl.float32), mask=inside)
    # In nats of logits times scale: unit is scale·log2(e) but for rounding, which must be the same on both sides of a difference.
    r = (log_b - log_a) / unit * scale
    tl.store(base + 4, r.to(tl.float32), mask=inside)
    tl.store(base + 5, kl, mask=inside)
    tl.store(base + 6, (r - r.to(tl.float32).to(tl.float64)).to(tl.float32), mask=inside)


def values(x: Any, y: Any, scales: PerRow) -> tuple[Any, Any]:
    """KL of each row of two [rows, columns] arrays, and seven numbers a row from which gradients can be had."""
    n, columns = x.shape[0], max(x.shape[1], y.shape[1])
    out, stats = (torch.empty(shape, dtype=torch.float32, device=x.device) for shape in ((n,), (n, 7)))
    if n == 0:
        return out, stats
    exact = torch.float32 not in (x.dtype, y.dtype)
    block, warps = steps(columns)
    width = _WIDEST
    while width > _NARROWEST and n * triton.cdiv(columns, width) < _PROGRAMS:
        width //= 2
    count = triton.cdiv(columns, width)
    width = triton.cdiv(triton.cdiv(columns, count), block) * block
    found = torch.empty(n, count, 6, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        slices_kernel[(n * count,)](
            x, y, found, columns, min(x.shape[1], y.shape[1]), x.shape[1], y.shape[1], *x.stride(), *y.stride(), *scales, width, count,
            EXACT=exact, GROUP=8 if exact else 4, BLOCK=block, num_warps=warps, **registers(56),
        )  # fmt: skip
        join_kernel[(triton.cdiv(n, 4),)](
            found, out, stats, *scales, n, count, SLICES=triton.next_power_of_2(count), ROWS=4, num_warps=1
        )  # fmt: skip
    return out, stats

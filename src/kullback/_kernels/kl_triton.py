"""KL(P‖Q) of the rows of two logits arrays in Triton, with the gradient to Q's logits on the way.

The programs of `slices_triton` read their slice again once the row's normalisers are known, last block first and so mostly from their own
cache. With v = log(q/p), and p from its own normaliser: KL = Σ p φ(v), and q − p = p (v + φ(v)), φ(v) = eᵛ − 1 − v, all in base 2. p eᵛ
rather than q from its own normaliser: the rounding of that would be off by the same for all, which does not cancel. Slices where p may
underflow, or q is absent, take longer formulas.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .math_triton import INF, LN2, _exp2, _fma, _load, _phi, _ratio, _summed, _wide
from .slices_triton import COLUMNS, PerRow, add_two, finish, layout, normalisers, place, ratios, registers, store_two


@triton.jit
def far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest):
    """p φ(v) and q − p of whatever a and b: far from v = 0, where v + φ(v) cancels, and where p may be too small for p eᵛ, with q from its
    own normaliser. Where only q is absent, the divergence is infinite, however small p is. Numbers of half precision may be so far apart
    that their difference rounds."""
    # Half of v: all of it may be beyond float32 where a finite number stands for −inf. NaN, where both are absent, becomes a number.
    half = tl.maximum(_ratio(a, b, 0.5 * unit, 0.5 * apart, 0.5 * rest, EXACT=False), -3e38)
    far = tl.abs(half) >= 30.0
    v = tl.where(far, 0.0, 2.0 * half)
    p = _exp2(_fma(a, unit, -at_a) - log_a)
    q = _exp2(_fma(b, unit, -at_b) - log_b)
    phi = _phi(v)
    value = tl.where(far, (q - p) - (2.0 * LN2) * p * tl.minimum(half, 100.0), p * phi)
    return tl.where((b == -INF) & (a != -INF), INF, value), tl.where(far, q - p, p * (LN2 * v + phi))


@triton.jit
def _terms(block_a, block_b, unit, apart, rest, shift, EXACT: tl.constexpr):
    """p φ(v) and q − p, times what p is multiplied by, where nothing is out of the ordinary."""
    a = _wide(block_a)
    v = _ratio(a, _wide(block_b), unit, apart, rest, EXACT)
    p = _exp2(_fma(a, unit, -shift))
    phi = _phi(v)
    return p * phi, p * (LN2 * v + phi)


@triton.jit
def kl_kernel(
    x, y, words, own_words, pivots, terms, gradient, upstream, upstream_row, scales, scale_row,
    V, COMMON, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, g_row, WIDTH, COUNT, FIRST_ROW,
    SLICES: tl.constexpr, EXACT: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """upstream·(q − p) into `gradient`; this slice's part of KL(P‖Q) and of Σ q − p into `terms`."""
    row, piece, low, high, end, factor, unit = place(V, COMMON, WIDTH, FIRST_ROW, upstream, upstream_row, scales, scale_row)
    left = x + row * x_row
    right = y + row * y_row
    lane = tl.arange(0, BLOCK)
    at_a, sum_a, at_b, sum_b, lowest_a, lowest_b = normalisers(
        x, y, words, own_words, pivots, row, piece, low, high, end, unit, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, COUNT,
        SLICES, FIRST, SECOND, GROUP, BLOCK,
    )  # fmt: skip
    if SECOND:
        log_a, valid, apart, rest, shift, less, ordinary = ratios(at_a, sum_a, at_b, sum_b, lowest_a, lowest_b, unit, factor, EXACT)
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
            far_value = tl.zeros([BLOCK // GROUP], tl.float32)
            far_excess = tl.zeros([BLOCK // GROUP], tl.float32)
            for start in range(end, high, BLOCK):
                a = _load(x, row, start + lane, tl.minimum(VALID_X, high), x_row, x_column)
                b = _load(y, row, start + lane, tl.minimum(VALID_Y, high), y_row, y_column)
                term, difference = far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest)
                far_value += _summed(term, GROUP)
                far_excess += _summed(difference, GROUP)
                # A row of weight 0 may hold anything.
                g = tl.where(factor == 0.0, 0.0, difference * factor)
                tl.store(target + start + lane, g.to(gradient.dtype.element_ty), mask=start + lane < tl.minimum(VALID_Y, high))
            far, far_more = tl.reduce((far_value, far_excess), 0, add_two)
            found += far
            more += far_more
        store_two(terms, row * COUNT + piece, tl.where(valid, found, float("nan")), more)


def differentiate(x: Any, y: Any, scales: PerRow, upstream: PerRow, gradient: Any, total: bool = False) -> Any:
    """KL of each row of two [rows, columns] arrays, or Σ upstream · KL if `total`; `gradient` receives upstream · d KL / dy."""
    here = layout(x, y, 3)
    with torch.cuda.device_of(x):
        for start, rows in here.launches:
            for first, second in [(True, False), (False, True)] if here.apart else [(True, True)]:
                kl_kernel[(here.slices, rows)](
                    x, y, here.words[0], here.words[1], here.pivots, here.terms, gradient, *upstream, *scales,
                    here.columns, min(x.shape[1], y.shape[1]), x.shape[1], y.shape[1], *x.stride(), *y.stride(), gradient.stride(0),
                    COLUMNS, here.slices, start, SLICES=here.padded, EXACT=here.exact, FIRST=first, SECOND=second,
                    GROUP=here.group, BLOCK=here.block, num_warps=here.warps, **registers(64),
                )  # fmt: skip
    return finish(here, upstream, total)

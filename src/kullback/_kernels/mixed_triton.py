"""The other divergences of rows of two logits arrays in Triton, with the gradient to one side on the way: JS, KL to a mixture, and KL(P‖Q)
with the gradient to P's logits.

All are Σ p A(v), v = log(q/p), and their derivatives y (B(v) − C), where y is p or q, of the side that learns, and C = Σ y B. Slices and
words are those of `slices_triton`, with a third reading after a second exchange, of C. Near 0, where A ~ v² and B ~ v cancel, they are
polynomials. An error δ of the normalisers' ratio, the same in every v, adds A''(0) δ²/2; δ is found from how far C and the value are from
what they are to each other where P and Q are close.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from .math_triton import (
    FAST,
    INF,
    LN2,
    _bregman,
    _exp2,
    _expm1,
    _fma,
    _load,
    _mixture,
    _phi,
    _ratio,
    _summed,
    _wide,
)
from .slices_triton import COLUMNS, PerRow, awaited, finish, layout, normalisers, numbers, place, ratios, registers, store_two, word

KINDS = {"kl": 0, "js": 1, "skew": 2}
_TERMS = 6  # of either polynomial
_NEAR = tl.constexpr(0.72)  # in base 2


@triton.jit
def _log2(x):
    # One instruction, off by 2⁻²² at most; tl.log2 spends more on numbers that are not normal.
    if FAST:
        found = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        found = tl.log2(x)
    return found


@triton.jit
def _slope(v, w, b1, b2, b3, b4, b5, b6, KIND: tl.constexpr, OF_Q: tl.constexpr):
    """B(v), and eᵛ and log2(m/p), which A takes too. v in base 2."""
    if KIND == 0:
        e = v
        log_m = v
        slope = -LN2 * v
    else:
        e = _exp2(v)
        log_m = _log2(_fma(e, w, 1.0 - w))
        near = v * (b1 + v * (b2 + v * (b3 + v * (b4 + v * (b5 + v * b6)))))
        if KIND == 1:
            far = (-LN2 * w) * (log_m - v) if OF_Q else (-LN2 * (1.0 - w)) * log_m
        else:
            ratio = _exp2(-log_m) - 1.0
            far = -w * ratio if OF_Q else -LN2 * log_m - (1.0 - w) * ratio
        slope = tl.where(tl.abs(v) < _NEAR, near, far)
    return slope, e, log_m


@triton.jit
def _term(v, e, log_m, w, a1, a2, a3, a4, a5, a6, KIND: tl.constexpr):
    """A(v)."""
    if KIND == 0:
        term = _phi(v)
    else:
        near = (v * v) * (a1 + v * (a2 + v * (a3 + v * (a4 + v * (a5 + v * a6)))))
        far = -LN2 * ((1.0 - w) * log_m + (w * e) * (log_m - v)) if KIND == 1 else w * (e - 1.0) - LN2 * log_m
        term = tl.where(tl.abs(v) < _NEAR, near, far)
    return term


@triton.jit
def _values(
    block_a, block_b, here, unit, apart, rest, shift, w, a1, a2, a3, a4, a5, a6, b1, b2, b3, b4, b5, b6,
    KIND: tl.constexpr, OF_Q: tl.constexpr, EXACT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Σ p A and Σ y B, times what p is multiplied by, of each GROUP, where nothing is out of the ordinary; `here` is None for all."""
    a = _wide(block_a)
    v = _ratio(a, _wide(block_b), unit, apart, rest, EXACT)
    p = _exp2(_fma(a, unit, -shift))
    slope, e, log_m = _slope(v, w, b1, b2, b3, b4, b5, b6, KIND, OF_Q)
    value = p * _term(v, e, log_m, w, a1, a2, a3, a4, a5, a6, KIND)
    total = (p * e if OF_Q else p) * slope
    if here is not None:
        # Beyond the row eᵛ may be infinite. A p of 0 would not do.
        value = tl.where(here, value, 0.0)
        total = tl.where(here, total, 0.0)
    return _summed(value, GROUP), _summed(total, GROUP)


@triton.jit
def _slopes(
    block_a, block_b, unit, apart, rest, shift, mean, w, b1, b2, b3, b4, b5, b6,
    KIND: tl.constexpr, OF_Q: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    a = _wide(block_a)
    v = _ratio(a, _wide(block_b), unit, apart, rest, EXACT)
    p = _exp2(_fma(a, unit, -shift))
    slope, e, _ = _slope(v, w, b1, b2, b3, b4, b5, b6, KIND, OF_Q)
    return (p * e if OF_Q else p) * (slope - mean)


@triton.jit
def _far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, w, KIND: tl.constexpr, OF_Q: tl.constexpr):
    """p A(v), y and B(v) of whatever a and b."""
    p = _exp2(_fma(a, unit, -at_a) - log_a)
    q = _exp2(_fma(b, unit, -at_b) - log_b)
    # Where p is absent any large number does; both absent would be NaN.
    # In base 2, all of v may be beyond float32 where a finite number stands for −inf.
    v = tl.where(a == -INF, 80.0, (2.0 * LN2) * _ratio(a, b, 0.5 * unit, 0.5 * apart, 0.5 * rest, EXACT=False))
    if KIND == 0:
        # Where only q is absent it is infinite, however small p is.
        value = tl.where((b == -INF) & (a != -INF), INF, _bregman(p, q, v))
        slope = tl.where(p > 0.0, -v, 0.0)
    else:
        m, m_over_p, m_over_q = _mixture(p, q, v, w)
        value = _bregman(p, m, m_over_p)
        if KIND == 1:
            value = (1.0 - w) * value + w * _bregman(q, m, m_over_q)
            slope = -w * m_over_q if OF_Q else -(1.0 - w) * m_over_p
        else:
            ratio = _expm1(-m_over_p)
            slope = -w * ratio if OF_Q else -m_over_p - (1.0 - w) * ratio
    return value, q if OF_Q else p, slope


@triton.jit
def mixed_kernel(
    x, y, words, own_words, c_words, pivots, terms, gradient, upstream, upstream_row, scales, scale_row,
    V, COMMON, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, g_row, WIDTH, COUNT, FIRST_ROW,
    w, among, per, a1, a2, a3, a4, a5, a6, b1, b2, b3, b4, b5, b6,
    KIND: tl.constexpr, OF_Q: tl.constexpr, SLICES: tl.constexpr, EXACT: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """upstream·y (B − C) into `gradient`; this slice's part of the divergence into `terms`."""
    row, piece, low, high, end, factor, unit = place(V, COMMON, WIDTH, FIRST_ROW, upstream, upstream_row, scales, scale_row)
    left = x + row * x_row
    right = y + row * y_row
    lane = tl.arange(0, BLOCK)
    at_a, sum_a, at_b, sum_b, lowest_a, lowest_b = normalisers(
        x, y, words, own_words, pivots, row, piece, low, high, end, unit, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, COUNT,
        SLICES, FIRST, SECOND or THIRD, GROUP, BLOCK,
    )  # fmt: skip
    log_a, valid, apart, rest, shift, less, ordinary = ratios(at_a, sum_a, at_b, sum_b, lowest_a, lowest_b, unit, factor, EXACT)
    log_b = tl.log2(sum_b)
    end = tl.where(ordinary, end, low)
    twofold = low + (end - low) // (2 * BLOCK) * (2 * BLOCK)
    mean = 0.0
    if SECOND:
        value = tl.zeros([BLOCK // GROUP], tl.float32)
        total = tl.zeros([BLOCK // GROUP], tl.float32)
        for start in range(twofold, end, BLOCK):
            columns = (start + lane).to(tl.int64)
            here = start + lane < end
            a0 = tl.load(left + columns * x_column, mask=here, other=0.0)
            b0 = tl.load(right + columns * y_column, mask=here, other=0.0)
            term, part = _values(a0, b0, here, unit, apart, rest, shift, w, a1, a2, a3, a4, a5, a6, b1, b2, b3, b4, b5, b6,
                                 KIND, OF_Q, EXACT, GROUP)  # fmt: skip
            value += term
            total += part
        # The last blocks first: they were read last.
        for done in range(low, twofold, 2 * BLOCK):
            columns = (low + twofold - 2 * BLOCK - done + lane).to(tl.int64)
            later_a = tl.load(left + (columns + BLOCK) * x_column)
            later_b = tl.load(right + (columns + BLOCK) * y_column)
            a0 = tl.load(left + columns * x_column)
            b0 = tl.load(right + columns * y_column)
            term, part = _values(later_a, later_b, None, unit, apart, rest, shift, w, a1, a2, a3, a4, a5, a6, b1, b2, b3, b4, b5, b6,
                                 KIND, OF_Q, EXACT, GROUP)  # fmt: skip
            value += term
            total += part
            term, part = _values(a0, b0, None, unit, apart, rest, shift, w, a1, a2, a3, a4, a5, a6, b1, b2, b3, b4, b5, b6,
                                 KIND, OF_Q, EXACT, GROUP)  # fmt: skip
            value += term
            total += part
        found = tl.sum(value, 0)
        mean = tl.sum(total, 0)
        # This is Σ p A and Σ y B now but for a factor, which for slices that are out of the ordinary may be anything, or NaN.
        back = tl.where(ordinary, _exp2(-less) / factor, 0.0)
        found *= back
        mean *= back
        if end < high:
            far_value = tl.zeros([BLOCK], tl.float32)
            far_total = tl.zeros([BLOCK], tl.float32)
            for start in range(end, high, BLOCK):
                a = _load(x, row, start + lane, tl.minimum(VALID_X, high), x_row, x_column)
                b = _load(y, row, start + lane, tl.minimum(VALID_Y, high), y_row, y_column)
                term, of_side, slope = _far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, w, KIND, OF_Q)
                far_value += term
                far_total += tl.where(of_side > 0.0, of_side * slope, 0.0)
            found += tl.sum(far_value, 0)
            mean = tl.where(found == INF, INF, mean + tl.sum(far_total, 0))
        store_two(terms, row * COUNT + piece, tl.where(valid, found, float("nan")), (mean - among * found) * per)
        if SLICES > 1:
            tl.store(c_words + row * COUNT + piece, word(mean, tl.zeros_like(mean)))
    if THIRD:
        each = tl.arange(0, SLICES)
        inside = each < COUNT
        if SLICES > 1:
            parts, _ = numbers(awaited(c_words + row * COUNT + each, inside))
            mean = tl.sum(tl.where(inside, parts, 0.0), 0)
        # An infinite divergence has no derivative.
        mean = tl.where(valid & (tl.abs(mean) < INF), mean, float("nan"))
        target = gradient + row * g_row
        # Each number is read before its place is written to: the gradient may take the memory of the logits.
        for start in range(low, twofold, 2 * BLOCK):
            columns = (start + lane).to(tl.int64)
            a0 = tl.load(left + columns * x_column, eviction_policy="evict_first")
            b0 = tl.load(right + columns * y_column, eviction_policy="evict_first")
            later_a = tl.load(left + (columns + BLOCK) * x_column, eviction_policy="evict_first")
            later_b = tl.load(right + (columns + BLOCK) * y_column, eviction_policy="evict_first")
            g = _slopes(a0, b0, unit, apart, rest, shift, mean, w, b1, b2, b3, b4, b5, b6, KIND, OF_Q, EXACT)
            tl.store(target + columns, g.to(gradient.dtype.element_ty), eviction_policy="evict_first")
            g = _slopes(later_a, later_b, unit, apart, rest, shift, mean, w, b1, b2, b3, b4, b5, b6, KIND, OF_Q, EXACT)
            tl.store(target + columns + BLOCK, g.to(gradient.dtype.element_ty), eviction_policy="evict_first")
        for start in range(twofold, end, BLOCK):
            columns = (start + lane).to(tl.int64)
            here = start + lane < end
            a0 = tl.load(left + columns * x_column, mask=here, other=0.0)
            b0 = tl.load(right + columns * y_column, mask=here, other=0.0)
            g = _slopes(a0, b0, unit, apart, rest, shift, mean, w, b1, b2, b3, b4, b5, b6, KIND, OF_Q, EXACT)
            tl.store(target + columns, g.to(gradient.dtype.element_ty), mask=here, eviction_policy="evict_first")
        if end < high:
            VALID = VALID_Y if OF_Q else VALID_X
            for start in range(end, high, BLOCK):
                a = _load(x, row, start + lane, tl.minimum(VALID_X, high), x_row, x_column)
                b = _load(y, row, start + lane, tl.minimum(VALID_Y, high), y_row, y_column)
                term, of_side, slope = _far_terms(a, b, unit, at_a, log_a, at_b, log_b, apart, rest, w, KIND, OF_Q)
                # A row of weight 0 may hold anything.
                g = tl.where(factor == 0.0, 0.0, of_side * (slope - mean) * factor)
                tl.store(target + start + lane, g.to(gradient.dtype.element_ty), mask=start + lane < tl.minimum(VALID, high))


def takes(kind: str, w: float) -> bool:
    """Beyond these shares a logarithm of one instruction and six terms are not accurate enough."""
    return kind == "kl" or (0.2 <= w <= 0.8 if kind == "js" else w >= 0.6)


def _over(numerator: list[float], denominator: list[float]) -> list[float]:
    """The power series of a quotient."""
    found: list[float] = []
    for i, x in enumerate(numerator):
        found.append((x - sum(found[j] * denominator[i - j] for j in range(i))) / denominator[0])
    return found


@cache
def series(kind: str, w: float, of_q: bool) -> tuple[float, ...]:
    """The polynomials of A/v² and B/v, v in base 2."""
    order = _TERMS + 2
    exp = [1.0 / math.factorial(i) for i in range(order + 1)]
    mixed = [w * x for x in exp]  # m/p
    mixed[0] = 1.0
    posterior = _over([w * x for x in exp], mixed)  # its logarithm's derivative
    log_m = [0.0, *(x / (i + 1) for i, x in enumerate(posterior[:-1]))]
    ratio = _over([1.0] + [0.0] * order, mixed)  # p/m, less 1
    ratio[0] = 0.0
    if kind == "kl":
        a, b = exp, [0.0, -1.0] + [0.0] * (order - 1)
    elif kind == "js":
        log_m_over_q = [x - (i == 1) for i, x in enumerate(log_m)]
        product = [sum(exp[j] * log_m_over_q[i - j] for j in range(i + 1)) for i in range(order + 1)]
        a = [-(1.0 - w) * x - w * y for x, y in zip(log_m, product)]
        b = [-w * x for x in log_m_over_q] if of_q else [-(1.0 - w) * x for x in log_m]
    else:
        a = [w * x - y for x, y in zip(exp, log_m)]
        b = [-w * x for x in ratio] if of_q else [-x - (1.0 - w) * y for x, y in zip(log_m, ratio)]
    unit = math.log(2.0)
    return (*(a[i] * unit**i for i in range(2, _TERMS + 2)), *(b[i] * unit**i for i in range(1, _TERMS + 1)))


def _closeness(kind: str, w: float, of_q: bool) -> tuple[float, float]:
    """C/value for P and Q without end close, and 1/√A''(0): C less that, times this, is √A''(0) δ."""
    if kind == "js":
        return 1.0 - w if of_q else w, 1.0 / math.sqrt(w * (1.0 - w))
    return (1.0, 1.0) if kind == "kl" else (2.0 * (1.0 - w) if of_q else 2.0 * w - 1.0, 1.0 / w)


def differentiate(
    x: Any, y: Any, kind: str, w: float, of_q: bool, scales: PerRow, upstream: PerRow, gradient: Any, total: bool = False
) -> Any:  # fmt: skip
    """The divergence of each row of two [rows, columns] arrays, or Σ upstream · divergence if `total`; `gradient` receives upstream · its
    derivative to y's logits if `of_q`, to x's otherwise."""
    here = layout(x, y, 4)
    phases = [(True, False, False), (False, True, False), (False, False, True)] if here.apart else [(True, True, True)]
    with torch.cuda.device_of(x):
        for start, rows in here.launches:
            for first, second, third in phases:
                mixed_kernel[(here.slices, rows)](
                    x, y, here.words[0], here.words[1], here.words[3], here.pivots, here.terms, gradient, *upstream, *scales,
                    here.columns, min(x.shape[1], y.shape[1]), x.shape[1], y.shape[1], *x.stride(), *y.stride(), gradient.stride(0),
                    COLUMNS, here.slices, start, w, *_closeness(kind, w, of_q), *series(kind, w, of_q),
                    KIND=KINDS[kind], OF_Q=of_q, SLICES=here.padded, EXACT=here.exact, FIRST=first, SECOND=second, THIRD=third,
                    GROUP=here.group, BLOCK=here.block, num_warps=here.warps, **registers(72),
                )  # fmt: skip
    # Farther apart C and the value tell nothing of δ, which does not matter there.
    return finish(here, upstream, total, 1e-5)

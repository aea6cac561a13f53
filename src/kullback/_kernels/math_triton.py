"""What the Triton kernels have in common: loads of logits as float32, and functions of log-ratios without cancellation."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))


INTERPRET = tl.constexpr(INTERPRETED)
FAST = tl.constexpr(not INTERPRETED and torch.version.cuda is not None)
# Do all warps of a program learn what an atomic operation on several words found? Before Triton 3.5 those that did not take part get
# anything (triton-lang/triton#7402); on AMD's GPUs that was mended later.
_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
ATOMICS_ANSWER_ALL = tl.constexpr(INTERPRETED or (torch.version.cuda is not None and _VERSION >= (3, 5)))


@triton.jit
def _exp2(x):
    # One instruction, results below 2⁻¹²⁶ being 0; tl.exp2 spends three more on those.
    if FAST:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return tl.exp2(x)


@triton.jit
def _fma(x, y, z):
    # x y + z, rounded once.
    if INTERPRET:
        return (x.to(tl.float64) * y + z).to(tl.float32)
    return tl.fma(x, tl.zeros_like(x) + y, tl.zeros_like(x) + z)


@triton.jit
def _wide(x):
    # To float32. Of two bfloat16 in a register, one is shifted and the other masked; the compiler spends an instruction more.
    if FAST and x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t; shl.b32 t, $2, 16; mov.b32 $0, t; and.b32 t, $2, -65536; mov.b32 $1, t; }",
            "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(tl.float32)


@triton.jit
def _least(x, y):
    # The lesser of two, element by element, and NaN if either is; two half-precision ones at a time.
    if FAST and x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise("min.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=x.dtype, is_pure=True, pack=2)
    if FAST and x.dtype == tl.float16:
        return tl.inline_asm_elementwise("min.NaN.f16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=x.dtype, is_pure=True, pack=2)
    return tl.minimum(x.to(tl.float32), y.to(tl.float32), propagate_nan=tl.PropagateNan.ALL).to(x.dtype)


@triton.jit
def _less(x, y):
    if x.dtype == tl.bfloat16:
        found = tl.inline_asm_elementwise("min.NaN.bf16 $0, $1, $2;", "=h,h,h", [x, y], dtype=x.dtype, is_pure=True, pack=1)
    elif x.dtype == tl.float16:
        found = tl.inline_asm_elementwise("min.NaN.f16 $0, $1, $2;", "=h,h,h", [x, y], dtype=x.dtype, is_pure=True, pack=1)
    else:
        found = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    return found


@triton.jit
def _lowest(x, GROUP: tl.constexpr):
    # The least of each GROUP neighbours, in float32, NaN if any of them is.
    if not FAST:
        x = x.to(tl.float32)
    return tl.reduce(tl.reshape(x, [x.shape[0] // GROUP, GROUP]), 1, _less).to(tl.float32)


@triton.jit
def _summed(x, GROUP: tl.constexpr):
    # The sum of each GROUP neighbours, which one thread has: fewer registers than a sum for each of them.
    return tl.sum(tl.reshape(x, [x.shape[0] // GROUP, GROUP]), 1)


@triton.jit
def _of_row(numbers, row, stride):
    # One number a row; or one for all of them, which has no stride.
    return tl.full([], numbers, tl.float32) if stride is None else tl.load(numbers + row * stride)


@triton.jit
def _log2_ratio(x, y):
    # log2(x/y) of two numbers. tl.log2 is good to 2⁻²² near 1: not enough for what normalisers of close distributions differ by.
    t = tl.div_rn(x - y, y)
    series = t * (1.0 - t * (0.5 - t * (1.0 / 3.0 - t * (0.25 - t * (0.2 - t * (1.0 / 6.0 - t * (1.0 / 7.0)))))))
    return tl.where(tl.abs(t) < 0.0625, series * LOG2E, tl.log2(tl.div_rn(x, y)))


@triton.jit
def _two_sum(x, y):
    # x + y as a sum and what its rounding took from it.
    s = x + y
    y_part = s - x
    return s, (x - (s - y_part)) + (y - y_part)


@triton.jit
def _three_sum(x, y, z):
    # x + y + z, likewise.
    s, first = _two_sum(x, y)
    s, second = _two_sum(s, z)
    return s, first + second


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
def _phi(v):
    # eᵛ − 1 − v of v ln 2: by a polynomial for |v| < 0.36, to 1.4e-6 of itself; beyond, it does not cancel.
    near = (v * v) * (0.24022618 + v * (0.055504206 + v * (0.0096381733 + v * 0.0013340161)))
    return tl.where(tl.abs(v) < 0.36, near, (_exp2(v) - 1.0) - LN2 * v)


@triton.jit
def _phi_over_square(v):
    # (eᵛ − 1 − v)/v² for |v| < 1/4, to 1.4e-6 of itself.
    return 0.49999932 + v * (0.16666696 + v * (0.0417535 + v * 0.00833746))


@triton.jit
def _expm1(v):
    near = tl.abs(v) < 0.25
    x = tl.where(near, v, 0.0)
    return tl.where(near, x + x * x * _phi_over_square(x), _exp2(v * LOG2E) - 1.0)


@triton.jit
def _log1p(y):
    u = 1.0 + y
    exact = u == 1.0
    return tl.where(exact, y, tl.log(u) * (y / tl.where(exact, 1.0, u - 1.0)))


@triton.jit
def _bregman(p, q, v):
    # p φ(v) for v = log(q/p): q − p − p v far from 0, where it does not cancel; p·0 where p is absent.
    near = tl.abs(v) < 0.25
    x = tl.where(near, v, 0.0)
    return tl.where(near, p * (x * x) * _phi_over_square(x), (q - p) - tl.where(p > 0.0, p * v, 0.0))


@triton.jit
def _difference(p, q, v):
    # q − p
    near = tl.abs(v) < 0.25
    x = tl.where(near, v, 0.0)
    return tl.where(near, p * (x + x * x * _phi_over_square(x)), q - p)


@triton.jit
def _mixture(p, q, v, w):
    # M = (1 − w) P + w Q: m, log(m/p), log(m/q), from that of the greater of p and q. Beyond |v| = 80 nothing changes in float32.
    v = tl.minimum(tl.maximum(v, -80.0), 80.0)
    less = v < 0.0
    of_greater = _log1p(tl.where(less, w, 1.0 - w) * _expm1(-tl.abs(v)))
    return (1.0 - w) * p + w * q, tl.where(less, of_greater, v + of_greater), tl.where(less, of_greater - v, of_greater)


@triton.jit
def _two_diff(x, y):
    # x − y and its rounding error; 0 for x = −inf.
    d = x - y
    back = d - x
    return d, tl.where(d == -INF, 0.0, (x - (d - back)) - (y + back))


@triton.jit
def _log_ratio(a, b, top_a, top_b, scale, r, EXACT: tl.constexpr):
    # log(q/p), from logits relative to their largest: a constant added to one side must cancel before it rounds anything. Differences of
    # half-precision numbers are exact; those of float32 carry their rounding error.
    if EXACT:
        v = ((b - top_b) - (a - top_a)) * scale - r
    else:
        below_a, error_a = _two_diff(a, top_a)
        below_b, error_b = _two_diff(b, top_b)
        d, error = _two_diff(below_b, below_a)
        v = (d * scale - r) + (error + (error_b - error_a)) * scale
    # Where p is absent any large number does; both absent would be NaN.
    return tl.where(a == -INF, 80.0, v)


@triton.jit
def _load(pointer, row, columns, VALID, stride_row, stride_column):
    at = row.to(tl.int64) * stride_row + columns.to(tl.int64) * stride_column
    return tl.load(pointer + at, mask=columns < VALID, other=-INF).to(tl.float32)


@triton.jit
def _pivot(top):
    return tl.where(top == -INF, 0.0, top)

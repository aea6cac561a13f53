"""Steps of `linear_torch` in Triton: the loss of a chunk of logits, and their derivatives in the same memory.

A softcap costs one more array of the chunk's size, from which its own derivative is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from . import rows_triton
from .linear_torch import Step
from .math_triton import INF, INTERPRETED, _expm1
from .slices_triton import PerRow

_BLOCK = 128 if INTERPRETED else 4096


@triton.jit
def cap_kernel(x, out, VALID, x_row, x_column, out_row, scale, cap, BLOCK: tl.constexpr):
    """cap · tanh(scale · x / cap); −inf stays."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < VALID
    given = tl.load(x + row * x_row + columns.to(tl.int64) * x_column, mask=inside, other=0.0).to(tl.float32)
    u = given * (scale / cap)
    # tanh|u| = −expm1(−2|u|) / (2 + expm1(−2|u|)): nothing overflows, and small u keeps its digits.
    t = _expm1(tl.maximum(-2.0 * tl.abs(u), -80.0))
    tanh = -t / (2.0 + t)
    capped = tl.where(given == -INF, -INF, cap * tl.where(u < 0.0, -tanh, tanh))
    tl.store(out + row * out_row + columns, capped.to(out.dtype.element_ty), mask=inside)


@triton.jit
def cap_slope_kernel(gradient, capped, VALID, g_row, c_row, scale, cap, BLOCK: tl.constexpr):
    """gradient *= d capped / d x = scale · (1 − (capped / cap)²)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < VALID
    t = tl.load(capped + row * c_row + columns, mask=inside, other=0.0).to(tl.float32) / cap
    slope = tl.where(t == -INF, 0.0, scale * (1.0 - t) * (1.0 + t))
    target = gradient + row * g_row + columns
    tl.store(target, (tl.load(target, mask=inside).to(tl.float32) * slope).to(gradient.dtype.element_ty), mask=inside)


class Softcap:
    """x → cap · tanh(scale · x / cap), and its derivative."""

    def __init__(self, cap: float, scale: float) -> None:
        self.cap, self.scale = float(cap), float(scale)

    def of(self, x: Any, out: Any) -> Any:
        n, columns = x.shape
        with torch.cuda.device_of(x):
            cap_kernel[(n, triton.cdiv(columns, _BLOCK))](
                x, out, columns, *x.stride(), out.stride(0), self.scale, self.cap, BLOCK=_BLOCK, num_warps=16
            )
        return out

    def apart(self, x: Any, out: Any, upstream: Any) -> Any:
        """In the memory of x, unless the derivatives are to come there and need these numbers once more."""
        return self.of(x, torch.empty_like(x) if upstream is not None and x.data_ptr() == out.data_ptr() else x)

    def chain(self, gradient: Any, capped: Any) -> None:
        n, columns = gradient.shape
        with torch.cuda.device_of(gradient):
            cap_slope_kernel[(n, triton.cdiv(columns, _BLOCK))](
                gradient, capped, columns, gradient.stride(0), capped.stride(0), self.scale, self.cap, BLOCK=_BLOCK, num_warps=16
            )


def scales(scale: Any, x: Any) -> PerRow:
    """A factor of the logits, or one a row of x, on its device."""
    return rows_triton._scales(scale, x, x.shape[:1])


def part_of(scales: PerRow, part: slice) -> PerRow:
    return (scales[0][part], 1) if scales[1] else scales


def differentiate(student: Any, teacher: Any, out: Any, kind: str, w: float, teacher_first: bool, scales: PerRow, upstream: Any) -> Any:
    """The loss of each row, and upstream · d loss / d student in `out`, which may be the student's own memory."""
    x, y = (teacher, student) if teacher_first else (student, teacher)
    if upstream is None:
        return rows_triton.values(x, y, kind, w, scales)[0]
    return rows_triton.differentiate(x, y, kind, w, teacher_first, scales, (upstream, 1), out)


def dense_step(
    kind: str, w: float, teacher_first: bool, scales: PerRow, teacher: Callable[[slice], Any], made: bool, softcap: Softcap | None
) -> Step:
    """Against the teacher's logits of a part of the tokens; `made` says whether those may be overwritten."""

    def step(logits: Any, part: slice, upstream: Any, out: Any) -> Any:
        other, student = teacher(part), logits
        if softcap is not None:
            other = softcap.of(other, other if made else torch.empty(other.shape, dtype=other.dtype, device=other.device))
            student = softcap.apart(logits, out, upstream)
        values = differentiate(student, other, out, kind, w, teacher_first, part_of(scales, part), upstream)
        if upstream is not None and softcap is not None:
            softcap.chain(out, student)
        return values

    return step

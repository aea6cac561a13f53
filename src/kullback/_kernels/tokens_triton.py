"""What a policy and its reference give for drawn tokens, in Triton: KL of the two next-token distributions, and the token's log-probs.

The forward pass is that of `rows_triton`, whose statistics of a row hold all that the token needs beside its own two logits. Backward reads
both rows once more and writes the gradient to the policy's logits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import rows_triton
from .math_triton import INTERPRETED, LN2, LOG2E, _exp2, _load, _log_ratio, _of_row

# The columns of rows_triton's statistics that are read here: pivots and log2 of the sums relative to them, log(sum_b / sum_a), and what
# rounding took from that.
TOP_A, LOG_A, TOP_B, LOG_B, R, _, REST = range(7)


@triton.jit
def token_gradient_kernel(
    x, y, tokens, out, stats, values, for_kl, for_logp,
    V, VALID_X, VALID_Y, x_row, x_column, y_row, y_column, out_row, STATS, scales, scale_row,
    EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """for_kl · d KL / d x + for_logp · d log p(token) / d x."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = _of_row(scales, row, scale_row)
    base = stats + row * STATS
    top_a = tl.load(base)
    log_a = tl.load(base + 1)
    top_b = tl.load(base + 2)
    r = tl.load(base + 4)
    kl_slope = tl.load(for_kl + row)
    logp_slope = tl.load(for_logp + row)
    a = _load(x, row, columns, VALID_X, x_row, x_column)
    b = _load(y, row, columns, VALID_Y, y_row, y_column)
    p = _exp2((a - top_a) * (scale * LOG2E) - log_a)
    v = _log_ratio(a, b, top_a, top_b, scale, r, EXACT) - tl.load(base + 6)
    # Where nothing comes from above there is nothing, whatever the row holds.
    to_kl = tl.where(p > 0.0, -p * (v + tl.load(values + row)), 0.0)
    to_logp = tl.where(columns == tl.load(tokens + row), 1.0, 0.0) - p
    found = scale * (tl.where(kl_slope == 0.0, 0.0, kl_slope * to_kl) + tl.where(logp_slope == 0.0, 0.0, logp_slope * to_logp))
    tl.store(out + row * out_row + columns, found.to(out.dtype.element_ty), mask=columns < VALID_X)


class TokenTerms(torch.autograd.Function):  # type: ignore[misc]
    """KL(x‖y) of each row, and of its token log p and log q/p, with derivatives to x; and log q. Second ones go through `formula`."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, tokens: Any, scale: Any, formula: Any) -> Any:
        batch = x.shape[:-1]
        scales = rows_triton._scales(scale, x, batch)
        first, second, drawn = rows_triton.rows(x), rows_triton.rows(y), tokens.reshape(-1).contiguous()
        values, stats = rows_triton.values(first, second, "kl", 0.0, scales)
        # In float64, which costs nothing for one number a row: differences of logits must not round.
        top_a, log_a, top_b, log_b, r, rest = (stats[:, column].double() for column in (TOP_A, LOG_A, TOP_B, LOG_B, R, REST))
        at = drawn[:, None]
        factor = scales[0] if scales[1] is None else scales[0].double()
        a, b = ((z.gather(1, at)[:, 0].double() - top) * factor for z, top in ((first, top_a), (second, top_b)))
        logp, logp_ref = ((below - LN2.value * log).float() for below, log in ((a, log_a), (b, log_b)))
        # Both absent: nothing to compare.
        ratio = torch.where((a == -torch.inf) & (b == -torch.inf), 0.0, (b - a) - (r + rest)).float()
        ctx.save_for_backward(x, y, drawn, stats, values)
        ctx.scales, ctx.formula = scales, formula
        found = tuple(z.reshape(batch) for z in (values, logp, ratio, logp_ref))
        ctx.mark_non_differentiable(found[3])
        return found

    @staticmethod
    def backward(ctx: Any, for_kl: Any, for_logp: Any, for_ratio: Any, _: Any) -> Any:
        x, y, drawn, stats, values = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.enable_grad():
                kl, logp, ratio, _ = ctx.formula(x, y)
                (found,) = torch.autograd.grad((kl, logp, ratio), x, (for_kl, for_logp, for_ratio), create_graph=True)
            return found, None, None, None, None
        found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        first, second, out = rows_triton.rows(x), rows_triton.rows(y), rows_triton.rows(found)
        n, columns = first.shape[0], max(first.shape[1], second.shape[1])
        block = 128 if INTERPRETED else 2048
        # log(q/p) of the token falls as its log p rises.
        slopes = [z.float().reshape(-1).contiguous() for z in (for_kl, for_logp - for_ratio)]
        with torch.cuda.device_of(x):
            token_gradient_kernel[(n, triton.cdiv(columns, block))](
                first, second, drawn, out, stats, values, *slopes,
                columns, first.shape[1], second.shape[1], *first.stride(), *second.stride(), out.stride(0), stats.shape[1],
                *ctx.scales, EXACT=rows_triton._exact(x, y), BLOCK=block, num_warps=8,
            )  # fmt: skip
        return found, None, None, None, None

"""The divergence of each row, as `rows_triton.Loss`, for logits that nobody needs afterwards: their gradient is written over them.

In backward, not before: until then the logits are what they were, for whoever else uses them. What has saved them for a backward of its own
that comes later, a second backward here included, is told so by PyTorch, which counts such writes.
"""

from __future__ import annotations

from typing import Any

import torch

from .rows_triton import _scales, gradients, rows, values


class LossInPlace(torch.autograd.Function):  # type: ignore[misc]
    """`side` says whose gradient takes the place of the logits: 0 for x, 1 for y. They must be contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, kind: str, w: float, scale: Any, side: int) -> Any:
        scales = _scales(scale, x, x.shape[:-1])
        found, stats = values(rows(x), rows(y), kind, w, scales)
        ctx.save_for_backward(x, y, stats)
        ctx.kind, ctx.w, ctx.scales, ctx.side = kind, w, scales, side
        return found.reshape(x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: second derivatives need the logits that inplace=True writes over")
        x, y, stats = ctx.saved_tensors
        found = [
            None if not need else z.detach() if i == ctx.side else torch.empty(z.shape, dtype=z.dtype, device=z.device)
            for i, (z, need) in enumerate(zip((x, y), ctx.needs_input_grad[:2]))
        ]
        # Each program reads the elements of both sides before it writes to their places.
        gradients(
            rows(x), rows(y), stats, upstream.float().reshape(-1).contiguous(), ctx.kind, ctx.w, ctx.scales,
            *(None if z is None else rows(z) for z in found),
        )  # fmt: skip
        if found[ctx.side] is not None:
            torch.autograd.graph.increment_version((x, y)[ctx.side])
        return (*found, None, None, None, None)

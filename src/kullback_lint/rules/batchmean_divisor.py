"""KL014: batchmean divides by the wrong number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..call import reduction_of
from ..events import KlCall, Quotient
from .base import Module, Report, Rule

_BATCH = re.compile(r"batch_?size|\.size\(0\)|shape\[0\]|^(bs|bsz)$", re.IGNORECASE)


class BatchmeanDivisor(Rule):
    code = "KL014"
    name = "batchmean-divisor"
    summary = "batchmean divides by axis 0: too little for [B, T, V], the number of categories for a vector, twice where divided again"
    events = (KlCall, Quotient)

    def check(self, module: Module) -> Iterator[Report]:
        calls = {}
        for event in module.of(KlCall):
            if not event.api.torch_like or reduction_of(event.options, event.api.reduction) != "batchmean":
                continue
            calls[id(event.node)] = event
            p, q = event.divergence.p, event.divergence.q
            ranks = {v.rank for v in (p, q)} - {None}
            axes = {v.axis for v in (p, q)} - {None}
            scaled = module.scalings.get(id(event.node), [])
            if 0 in axes and not ranks - {1}:
                yield Report(
                    event.node, 'batchmean divides by the size of axis 0, which is the categories\' axis here: use reduction="sum"'
                )
            elif ranks == {1}:
                yield Report(event.node, 'batchmean of vectors divides by the number of categories: use reduction="sum"')
            elif ranks and min(ranks) >= 3 and not any(s.startswith("/") for s in scaled):
                yield Report(
                    event.node,
                    f"batchmean of {min(ranks)}-D tensors divides by axis 0 only: it grows with the others; flatten to [rows, categories]",
                )
            elif not ranks and axes and max(axes) >= 2 and not any(s.startswith("/") for s in scaled):
                yield Report(
                    event.node,
                    "batchmean divides by axis 0 only: with three axes or more the loss grows; flatten to [rows, categories]",
                )
        for event in module.of(Quotient):
            call = calls.get(id(event.value.data.node))
            if call is not None and _BATCH.search(module.source.segment(event.divisor)):
                yield Report(event.node, "batchmean has divided by the batch already")

"""KL019: a Gaussian's KL averaged over the latent coordinates."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..events import Operation
from ..values import KL, TERMS
from .base import Module, Report, Rule


class VaeMean(Rule):
    code = "KL019"
    name = "latent-kl-averaged"
    summary = "the KL of a Gaussian is averaged over the latent coordinates instead of summed"
    events = (Operation,)

    def look(self, event: Operation, module: Module) -> Iterator[Report]:
        if event.name not in ("mean", "nanmean") or event.values[0].kind != KL:
            return
        made = event.values[0].data
        if made.family not in ("gaussian", "distribution") or made.summed != TERMS:
            return
        try:
            number = None if event.axis is None else ast.literal_eval(event.axis)
        except ValueError:
            return
        if number is None or number in (1, -1) or (isinstance(number, (tuple, list)) and {1, -1} & set(number)):
            yield Report(
                event.node,
                "a KL adds over coordinates; this mean divides it by their number: sum over the latent, then average over the batch",
            )

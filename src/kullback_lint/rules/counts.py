"""KL011: counts where probabilities are wanted."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import KlCall, KlFormula
from ..model import ERROR
from ..values import COUNTS
from .base import Module, Report, Rule


class Counts(Rule):
    code = "KL011"
    name = "unnormalised-counts"
    summary = "counts that were not divided by their sum"
    severity = ERROR
    events = (KlCall, KlFormula)

    def look(self, event: KlCall | KlFormula, module: Module) -> Iterator[Report]:
        if isinstance(event, KlCall):
            if event.api.normalises or event.api.distributions or event.api.keras:
                return
            sides = (
                [(event.api.p, event.divergence.p)]
                if event.api.q_is_log
                else [(event.api.p, event.divergence.p), (event.api.q, event.divergence.q)]
            )
            for side, value in sides:
                if value.kind == COUNTS:
                    yield Report(
                        event.arguments.nodes[side], f"{event.api.name} does not normalise, and these are counts: divide them by their sum"
                    )
        else:
            if event.divergence.family == "categorical" and COUNTS in (event.divergence.p.kind, event.divergence.q.kind):
                yield Report(event.node, "p * log(p / q) of counts: divide them by their sum first")

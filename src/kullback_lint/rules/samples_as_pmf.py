"""KL023: raw samples where probabilities are wanted."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import KlCall, KlFormula
from ..model import ERROR
from ..values import SAMPLES
from .base import Module, Report, Rule


class SamplesAsPmf(Rule):
    code = "KL023"
    name = "samples-as-probabilities"
    summary = "raw samples are passed where a distribution is wanted"
    severity = ERROR
    events = (KlCall, KlFormula)

    def look(self, event: KlCall | KlFormula, module: Module) -> Iterator[Report]:
        if isinstance(event, KlCall):
            if event.api.q_is_log or event.api.distributions or event.api.keras:
                return
            for side, value in ((event.api.p, event.divergence.p), (event.api.q, event.divergence.q)):
                if value.kind == SAMPLES:
                    yield Report(
                        event.arguments.nodes[side],
                        f"{event.api.name} takes probabilities; these are samples: make a histogram of each over the same bins first",
                    )
        else:
            if event.divergence.family == "categorical" and SAMPLES in (event.divergence.p.kind, event.divergence.q.kind):
                yield Report(
                    event.node, "p * log(p / q) of samples, not of probabilities: make a histogram of each over the same bins first"
                )

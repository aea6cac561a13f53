"""KL016: two histograms whose bins differ."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import KlCall, KlFormula
from .base import Module, Report, Rule


class DifferentBins(Rule):
    code = "KL016"
    name = "histograms-with-different-bins"
    summary = "two histograms, each with bins from its own data, are compared bin by bin"
    events = (KlCall, KlFormula)

    def look(self, event: KlCall | KlFormula, module: Module) -> Iterator[Report]:
        made = event.divergence
        a, b = made.p.bins, made.q.bins
        if a is None or b is None or a[0] == b[0] or a[1] == b[1]:
            return
        if any(edges.startswith("edges of ") for edges, _ in (a, b)):
            yield Report(
                event.node,
                f"the bins of {a[1]} and {b[1]} come from the data of each, so they differ: give both histograms the same edges",
            )

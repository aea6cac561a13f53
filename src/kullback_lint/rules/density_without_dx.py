"""KL017: densities summed without dx."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import Operation
from ..values import DENSITY, KL
from .base import Module, Report, Rule


class DensityWithoutDx(Rule):
    code = "KL017"
    name = "density-summed-without-dx"
    summary = "a density is summed as if it were probabilities"
    severity = "error"
    events = (Operation,)

    def look(self, event: Operation, module: Module) -> Iterator[Report]:
        if event.name in ("sum", "nansum") and event.values[0].kind == KL:
            made = event.values[0].data
            if (
                DENSITY in (made.p.kind, made.q.kind)
                and not made.scaled
                and made.summed == "terms"
                and not module.scalings.get(id(made.node))
            ):
                yield Report(
                    event.node,
                    "values of a density are summed without dx: multiply by the grid step, integrate, or normalise both to sum 1",
                )

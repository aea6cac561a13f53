"""KL004: log_target=True with a target of probabilities."""

from __future__ import annotations

from collections.abc import Iterator

from ..call import log_target_of
from ..events import KlCall
from ..model import ERROR
from ..values import COUNTS, ONE_HOT, PROBS, SIGMOID
from .base import Module, Report, Rule


class LogTargetWrong(Rule):
    code = "KL004"
    name = "flag-with-probability-target"
    summary = "log_target=True, but the target is probabilities"
    severity = ERROR
    events = (KlCall,)

    def look(self, event: KlCall, module: Module) -> Iterator[Report]:
        flagged = event.api.p_is_log or (event.api.torch_like and log_target_of(event.options) is True)
        if flagged and event.divergence.p.kind in (PROBS, ONE_HOT, SIGMOID, COUNTS):
            node = event.arguments.nodes[event.api.p]
            yield Report(
                node,
                f"{event.api.name} reads log-probabilities here; this is {event.divergence.p.kind}: drop the flag, or take the log",
            )

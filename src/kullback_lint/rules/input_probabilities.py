"""KL001: the input of a KL that takes log-probabilities is probabilities."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import KlCall
from ..model import ERROR
from ..values import COUNTS, ONE_HOT, PROBS, SIGMOID
from .base import Module, Report, Rule


class InputProbabilities(Rule):
    code = "KL001"
    name = "input-is-probabilities"
    summary = "the input, which must be log-probabilities, is probabilities"
    severity = ERROR
    events = (KlCall,)

    def look(self, event: KlCall, module: Module) -> Iterator[Report]:
        value = event.divergence.q
        if event.api.q_is_log and value.kind in (PROBS, SIGMOID, ONE_HOT, COUNTS):
            node = event.arguments.nodes[event.api.q]
            yield Report(
                node, f"{event.api.name} takes log-probabilities first; this is {value.kind}: use log_softmax of the scores, or .log()"
            )

"""KL002: the input of a KL that takes log-probabilities is raw scores."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import KlCall
from ..model import ERROR
from ..values import LABELS, LOG_RATIO, LOGITS, SAMPLES
from .base import Module, Report, Rule

_WORDS = {LOGITS: "raw scores (logits)", SAMPLES: "random numbers", LABELS: "class indices", LOG_RATIO: "the log of a ratio"}


class InputScores(Rule):
    code = "KL002"
    name = "input-is-raw-scores"
    summary = "the input, which must be log-probabilities, is raw scores"
    severity = ERROR
    events = (KlCall,)

    def look(self, event: KlCall, module: Module) -> Iterator[Report]:
        value = event.divergence.q
        if event.api.q_is_log and value.kind in _WORDS:
            node = event.arguments.nodes[event.api.q]
            yield Report(node, f"{event.api.name} takes log-probabilities first; this is {_WORDS[value.kind]}: use log_softmax")

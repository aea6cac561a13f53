"""KL005: what stands for a distribution is scores, labels or logs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..events import KlCall, KlFormula
from ..model import ERROR
from ..values import LABELS, LOG_PROBS, LOGITS, SAMPLES
from .base import Module, Report, Rule

_WORDS = {LOGITS: "raw scores (logits)", LABELS: "class indices", LOG_PROBS: "log-probabilities", SAMPLES: "random numbers"}


class NotADistribution(Rule):
    code = "KL005"
    name = "target-is-not-a-distribution"
    summary = "the target (or, where both are probabilities, either side) is scores, labels or logs"
    severity = ERROR
    events = (KlCall, KlFormula)

    def look(self, event: KlCall | KlFormula, module: Module) -> Iterator[Report]:
        if isinstance(event, KlCall):
            if event.api.distributions or event.api.keras:
                return
            if event.api.q_is_log:
                if event.divergence.p.kind in (LOGITS, LABELS, SAMPLES):
                    yield _report(event.arguments.nodes[event.api.p], f"the target of {event.api.name}", event.divergence.p.kind)
                return
            for side, value in ((event.api.p, event.divergence.p), (event.api.q, event.divergence.q)):
                if value.kind in (LOGITS, LABELS, LOG_PROBS):
                    yield _report(event.arguments.nodes[side], f"{event.api.name} takes probabilities; this argument", value.kind)
        else:
            for value in (event.divergence.p, event.divergence.q):
                if event.divergence.family == "categorical" and value.kind == LOGITS:
                    yield _report(event.node, "in p * log(p / q), one of the two", value.kind)
                    break


def _report(node: ast.AST, what: str, kind: str) -> Report:
    fix = {
        LOGITS: "softmax it",
        SAMPLES: "softmax or normalise them",
        LABELS: "one-hot them, or use cross-entropy",
        LOG_PROBS: "exponentiate them",
    }[kind]
    return Report(node, f"{what} is {_WORDS[kind]}, not a distribution: {fix}")

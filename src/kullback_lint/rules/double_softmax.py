"""KL020: softmax of a softmax."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..catalog import DISTRIBUTION_MODULES
from ..events import Created, Operation
from ..model import ERROR
from ..values import CONSTANT, PROBS
from .base import Module, Report, Rule


class DoubleSoftmax(Rule):
    code = "KL020"
    name = "double-softmax"
    summary = "softmax is taken of probabilities"
    severity = ERROR
    events = (Operation, Created)

    def look(self, event: Operation | Created, module: Module) -> Iterator[Report]:
        if isinstance(event, Operation):
            value = event.values[0] if event.values else None
            if value is None or value.kind != PROBS or not value.softmax:
                return
            if event.name in ("softmax", "log_softmax"):
                yield Report(
                    event.node,
                    f"{event.name} of what is a softmax already: its output lies between 0 and 1, so the result is nearly uniform",
                )
            elif event.name == "hard" and _takes_scores(event):
                yield Report(event.node, "cross_entropy takes raw scores and applies softmax itself; this is a softmax already")
        else:
            if event.name.startswith(DISTRIBUTION_MODULES) and event.name.rsplit(".", 1)[-1] in ("Categorical", "OneHotCategorical"):
                scores = event.keywords.get("logits") or (
                    event.args[0] if event.args and event.name.startswith("tensorflow_probability") else None
                )
                if scores is not None and scores.kind == PROBS and scores.softmax:
                    yield Report(event.node, "logits= are softmaxed again, and these are probabilities: pass probs=")


def _takes_scores(event: Operation) -> bool:
    function = event.node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    # Paddle's takes probabilities where it is told so.
    told = event.keyword_values.get("use_softmax")
    softmaxes = told is None or (told.kind == CONSTANT and told.data is True)
    return event.library in ("torch", "paddle") and softmaxes and not name.startswith(("nll", "binary", "bce"))

"""KL021: abs() or relu around a KL."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..events import Operation
from ..values import CONSTANT, KL, TERMS
from .base import Module, Report, Rule


class ForcedPositive(Rule):
    code = "KL021"
    name = "forced-positive"
    summary = "abs, relu or clamp(min=0) around a KL hides why it was negative"

    def check(self, module: Module) -> Iterator[Report]:
        for event in module.of(Operation):
            kl = next((v for v in event.values[:2] if v.kind == KL), None)
            if kl is None or kl.data.family == "k3" or kl.data.api == "jensenshannon" or not self._forces(event):
                continue
            if kl.data.summed == TERMS and kl.data.family == "categorical":
                yield Report(event.node, "single terms of a KL may be negative, and must be: forcing them positive changes the sum")
            else:
                yield Report(event.node, "a KL is never negative; if this one is, an argument is wrong: forcing it positive hides that")

    def _forces(self, event: Operation) -> bool:
        if event.name in ("abs", "relu"):
            return True
        if event.name == "clip":
            low = (
                event.keyword_values.get("min") or event.keyword_values.get("a_min") or (event.values[1] if len(event.values) > 1 else None)
            )
            return low is not None and low.kind == CONSTANT and low.data == 0 and not isinstance(low.data, bool) and not _bounded(event)
        if event.name in ("max", "maximum"):
            return any(v.kind == CONSTANT and v.data == 0 for v in event.values[:2])
        return False


def _bounded(event: Operation) -> bool:
    """An upper bound too: the KL is being capped, for which zero is only the other end."""
    upper = event.keywords.get("max") or event.keywords.get("a_max") or (event.nodes[2] if len(event.nodes) > 2 else None)
    return upper is not None and not (isinstance(upper, ast.Constant) and upper.value is None)

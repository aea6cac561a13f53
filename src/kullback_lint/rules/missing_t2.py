"""KL013: a soft loss at temperature T added to a hard one without T²."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..events import Sum
from ..values import HARD, KL
from .base import Module, Report, Rule

_TEMPERATURE = re.compile(r"^(t|tau|.*temp.*|.*_t|t_.*|kd_?t)$", re.IGNORECASE)


class MissingT2(Rule):
    code = "KL013"
    name = "missing-temperature-squared"
    summary = "the soft loss at temperature T is added to a hard loss without the factor T²"
    events = (Sum,)

    def look(self, event: Sum, module: Module) -> Iterator[Report]:
        if not any(value.kind == HARD for _, _, value in event.terms):
            return
        for _, node, value in event.terms:
            if value.kind != KL or node is None:
                continue
            made = value.data
            # With one side at temperature 1 the gradient does not shrink as 1/T².
            temperature = made.p.temperature if made.p.temperature == made.q.temperature else ""
            if made.family == "categorical" and _is_temperature(temperature) and made.powers_of_t < 2:
                missing = "the factor T²" if made.powers_of_t == 0 else "one more factor T"
                yield Report(
                    node, f"gradients at temperature {temperature} shrink as 1/T²: {missing} is missing before the hard loss is added"
                )


def _is_temperature(text: str) -> bool:
    try:
        return float(text) > 1
    except ValueError:
        return bool(_TEMPERATURE.match(re.sub(r"\[.*?\]|\(.*?\)|['\"]", "", text).rsplit(".", 1)[-1].strip())) if text else False

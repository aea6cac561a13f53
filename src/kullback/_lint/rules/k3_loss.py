"""KL025: k3 as a term of a loss, whose gradient is that of the other direction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..events import Sum
from ..model import INFORMATION
from ..values import CONSTANT, KL
from .base import Module, Report, Rule


class K3Loss(Rule):
    code = "KL025"
    name = "k3-as-loss"
    summary = "the gradient of k3 in a loss is that of the other direction of the KL (GRPO's choice)"
    severity = INFORMATION

    def check(self, module: Module) -> Iterator[Report]:
        for event in module.of(Sum):
            for _, node, value in event.terms:
                if value.kind != KL or value.data.family != "k3" or value.detached or event.place.no_grad or node is None:
                    continue
                others = [(n, v) for _, n, v in event.terms if n is not node and v.kind != CONSTANT]
                if not others or any(n is not None and re.search("reward|advantage|score", module.source.segment(n), re.IGNORECASE) for n, _ in others):
                    continue
                if any(re.search("ratio|exp|coef_1|is_weight", s) for s in module.scalings.get(id(value.data.node), ())):
                    continue
                yield Report(node, "in expectation this term's gradient is that of KL(ref‖policy), not KL(policy‖ref): multiply it by the differentiable ratio policy/old")

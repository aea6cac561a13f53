"""KL025: k3 as a term of a loss, whose gradient is that of the other direction."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..events import Sum
from ..model import INFORMATION
from ..values import CONSTANT, KL
from .base import Module, Report, Rule


def _target(module: Module, event: Sum) -> str:
    statement = module.statement(event.node)
    targets = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [statement.target]
        if isinstance(statement, (ast.AugAssign, ast.AnnAssign))
        else []
    )
    return " ".join(ast.unparse(t) for t in targets)


class K3Loss(Rule):
    code = "KL025"
    name = "k3-as-loss"
    summary = "the gradient of k3 in a loss is that of the other direction of the KL (GRPO's choice)"
    severity = INFORMATION
    events = (Sum,)

    def look(self, event: Sum, module: Module) -> Iterator[Report]:
        for _, node, value in event.terms:
            if value.kind != KL or value.data.family != "k3" or value.detached or event.place.no_grad or node is None:
                continue
            others = [(n, v) for _, n, v in event.terms if n is not node and v.kind != CONSTANT]
            around = getattr(event.place.function, "name", "")
            about = [module.source.segment(n) for n, _ in others if n is not None] + [_target(module, event), around]
            if not any(re.search("loss|objective|surr|polic|pg_", text, re.IGNORECASE) for text in about):
                continue
            # A KL taken off the reward carries no gradient; beside ratio * advantage it does.
            if not others or any(
                n is not None
                and re.search("reward|advantage|score", text := module.source.segment(n), re.IGNORECASE)
                and not re.search("ratio|exp\\(|coef", text)
                for n, _ in others
            ):
                continue
            if any(re.search("ratio|exp|coef_1|is_weight", s) for s in module.scalings.get(id(value.data.node), ())):
                continue
            yield Report(
                node,
                "this term's expected gradient is that of KL(ref‖policy), not KL(policy‖ref): multiply it by the ratio policy/old",
            )

"""KL022: the terms that would be infinite are left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..events import KlFormula, Operation, Selected
from ..model import ERROR
from ..values import CONSTANT, KL, Divergence
from .base import Module, Report, Rule

_MESSAGE = "where q is 0 and p is not, the KL is infinite; leaving those terms out makes it too small, even negative"


class DroppedInfinities(Rule):
    code = "KL022"
    name = "infinite-terms-dropped"
    summary = "terms with q = 0 < p are dropped from the sum"
    severity = ERROR
    events = (Selected, KlFormula, Operation)

    def look(self, event: Selected | KlFormula | Operation, module: Module) -> Iterator[Report]:
        if isinstance(event, Selected):
            made = event.value.data
            condition = event.condition_value.data if isinstance(event.condition_value.data, ast.AST) else event.condition
            if made.family == "categorical" and (_finite(condition) or _tests_q(ast.unparse(condition), made)):
                yield Report(event.node, _MESSAGE)
        elif isinstance(event, KlFormula):
            made = event.divergence
            if made.family != "categorical":
                return
            base, masked = made.q.masked
            if event.place.function is not None and module.says(event.place.function, _gives_infinity):
                return
            if (base and _positive(masked, base)) or any(_tests_q(ast.unparse(test), made) for test in event.place.conditions):
                yield Report(event.node, _MESSAGE)
        else:
            if event.name == "nan_to_num" and event.values[0].kind == KL:
                infinite = event.keyword_values.get("posinf")
                if infinite is not None and infinite.kind == CONSTANT and infinite.data == 0:
                    yield Report(event.node, _MESSAGE)
            elif event.name == "masked_invalid" and event.values[0].kind == KL:
                yield Report(event.node, _MESSAGE)


def _gives_infinity(text: str) -> bool:
    """`return np.inf` where q is 0 and p is not: then nothing is dropped."""
    return bool(re.search(r"\binf\b|\binfinity\b", text, re.IGNORECASE))


def _finite(condition: ast.AST) -> bool:
    names = {
        n.func.attr if isinstance(n.func, ast.Attribute) else getattr(n.func, "id", "")
        for n in ast.walk(condition)
        if isinstance(n, ast.Call)
    }
    return bool(names & {"isfinite", "isinf", "is_finite", "is_inf"})


def _tests_q(condition: str, made: Divergence) -> bool:
    return bool(made.q_key) and made.q_key != made.p_key and _positive(condition, made.q_key)


def _positive(condition: str, name: str) -> bool:
    if re.search(r"\bor\b|\|", condition):
        return False
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}\s*(>|!=)\s*0(\.0*)?(?![\w.])", condition))

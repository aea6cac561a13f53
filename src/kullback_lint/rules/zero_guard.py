"""KL010: p * log(p / q) with nothing for p = 0."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..events import KlFormula
from .base import Module, Report, Rule

# Any of these near the formula says that somebody thought of zeros.
_GUARD = re.compile(
    r"where|eps|\d[eE]-\d|clip|clamp|[>≥]\s*=?\s*0|!=\s*0|==\s*0|nonzero|mask|isfinite|isnan|nan_to_num|nansum|xlogy|\bmax\(|maximum|finfo|tiny|smooth"
    r"|pseudo|\+\s*1\b|laplace|alpha|small|delta|any\(|all\(|seterr|errstate|fillna|dropna|\bexcept\b|\+=\s*1",
    re.IGNORECASE,
)
_ARRAY_LOG = re.compile(r"\b(?:np|numpy|math|jnp|cp)\.log")


class ZeroGuard(Rule):
    code = "KL010"
    name = "no-guard-at-zero"
    summary = "p * log(p / q) is NaN where p is 0, and nothing here prevents it"
    events = (KlFormula,)

    def look(self, event: KlFormula, module: Module) -> Iterator[Report]:
        made = event.divergence
        p = made.p
        if made.family != "categorical" or p.positive or made.scaled or event.place.conditions:
            return
        function = event.place.function
        around = next((f for f in (*event.place.outer, function) if f is not None), module.statement(event.node))
        if module.says(around, _guards) or (not p.zeros and module.says(around, _takes_softmax)):
            return
        by_hand = (
            bool(_ARRAY_LOG.search(module.source.segment(event.node)))
            and function is not None
            and self._is_parameter(function, made.p_key)
            and self._is_summed(module, event)
        )
        if p.zeros or by_hand:
            yield Report(event.node, "0 * log(0) is NaN where p is 0: use scipy.special.rel_entr, or where(p > 0, p * log(p / q), 0)")

    def _is_summed(self, module: Module, event: KlFormula) -> bool:
        """Whether it is a KL and not some other m * log(m / b): summed, or in a function that says so."""
        if id(event.node) in module.summed:
            return True
        named = re.search("kl|kullback|diverg|relative", getattr(event.place.function, "name", ""), re.IGNORECASE)
        return bool(named) or isinstance(module.statement(event.node), ast.AugAssign)

    def _is_parameter(self, function: ast.AST, key: str) -> bool:
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        arguments = function.args
        names = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]} - {"self", "cls"}
        return bool(re.match(r"\w+", key)) and re.match(r"\w+", key)[0] in names  # type: ignore[index]


def _guards(text: str) -> bool:
    return bool(_GUARD.search(re.sub(r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|#.*', "", text)))


def _takes_softmax(text: str) -> bool:
    return "softmax" in text

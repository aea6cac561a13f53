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
    events = (Operation,)

    def look(self, event: Operation, module: Module) -> Iterator[Report]:
        kl = next((v for v in event.values[:2] if v.kind == KL), None)
        if kl is None or kl.data.family == "k3" or kl.data.api == "jensenshannon" or not self._forces(event):
            return
        terms = kl.data.summed == TERMS and kl.data.family == "categorical"
        if not terms and _under_a_root(event.node, module):
            return  # a distance: rounding may bring a KL of nearly equal sides below zero, and its root would be NaN
        if terms:
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


def _under_a_root(node: ast.AST, module: Module) -> bool:
    """sqrt(x), x.sqrt(), x ** 0.5 or pow(x, 0.5)."""
    above = module.parents.get(node)
    if isinstance(above, ast.BinOp):
        return isinstance(above.op, ast.Pow) and above.left is node and _is_half(above.right)
    if isinstance(above, ast.Attribute):  # a method, whose call is one further up
        call = module.parents.get(above)
        return isinstance(call, ast.Call) and call.func is above and _is_root(above.attr, call.args)
    if isinstance(above, ast.Call) and above.args and above.args[0] is node:
        name = above.func.attr if isinstance(above.func, ast.Attribute) else getattr(above.func, "id", "")
        return _is_root(name, above.args[1:])
    return False


def _is_root(name: str, exponent: list[ast.expr]) -> bool:
    return name == "sqrt" or (name in ("pow", "power") and len(exponent) == 1 and _is_half(exponent[0]))


def _is_half(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0.5


def _bounded(event: Operation) -> bool:
    """An upper bound too: the KL is being capped, for which zero is only the other end."""
    upper = event.keywords.get("max") or event.keywords.get("a_max") or (event.nodes[2] if len(event.nodes) > 2 else None)
    return upper is not None and not (isinstance(upper, ast.Constant) and upper.value is None)

"""KL024: k3 written as exp(x) - x - 1."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..arithmetic import flatten_sum
from ..events import KlFormula
from ..formulas import is_exp
from ..model import Edit
from ..values import CONSTANT
from .base import Module, Report, Rule


class K3Cancels(Rule):
    code = "KL024"
    name = "k3-cancels"
    summary = "exp(x) - x - 1 loses all digits where x is small; expm1(x) - x keeps more"
    fixable = True
    events = (KlFormula,)

    def look(self, event: KlFormula, module: Module) -> Iterator[Report]:
        if event.divergence.family == "k3" and event.form != "expm1" and event.divergence.p.kind != CONSTANT:
            edits = self._edits(module, event.node) if event.form == "exp" and isinstance(event.node, ast.BinOp) else ()
            yield Report(event.node, "exp(x) - x - 1 cancels where x is small, which is where it is used: write expm1(x) - x", edits)

    def _edits(self, module: Module, node: ast.BinOp) -> tuple[Edit, ...]:
        """Rewrites `exp(x) - x - 1` where it stands in this order, nothing between, and expm1 is beside exp."""
        source = module.source
        terms = flatten_sum(node)
        if len(terms) < 3 or not is_exp(terms[0][1]) or "#" in source.segment(node):
            return ()
        call = terms[0][1]
        if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords or not isinstance(call.func, ast.Attribute):
            return ()
        library = ast.unparse(call.func.value)
        if library not in ("torch", "np", "numpy", "jnp", "jax.numpy", "math", "tf.math"):
            return ()
        text = source.segment(call.args[0])
        last, first = terms[-1][1], terms[1][1]
        wrapped = text if isinstance(call.args[0], (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({text})"
        new = f"{library}.expm1({text}) - {wrapped}"
        if not isinstance(last, ast.Constant) and not isinstance(first, ast.Constant):
            return ()
        start, end = source.span(node)
        return (Edit(start, end, new),)

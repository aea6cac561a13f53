"""KL007: the direction contradicts the names, a comment, or the ELBO."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from ..events import KlCall, KlFormula
from ..values import role_of
from .base import Module, Report, Rule

# KL(p || q) in words.
_STATED = re.compile(
    r"\bD?_?\{?KL\}?\s*[\(\[]\s*(\w+)\s*(?:\(\w+\))?\s*(?:\|\|?|‖|∥|\\\|+|,|;|:|->)\s*(\w+)\s*(?:\(\w+\))?\s*[\)\]]", re.IGNORECASE
)
_MEANT = re.compile(
    r"revers|rkl|mode.?seeking|symm?etr|jeffrey|jensen|\bjs|bidirect|two.?way|mutual|both|backward|inclusive|wake|skew|swap|_inv",
    re.IGNORECASE,
)
# The same anywhere in the function: its own names say what it computes.
_REVERSE = re.compile(r"revers\w*.?kl|\brkl|kl.?revers|mode.?seeking", re.IGNORECASE)
_OPPOSITE = {("student", "teacher"), ("prior", "posterior")}


class Direction(Rule):
    code = "KL007"
    name = "direction-contradicts-names"
    summary = "the KL runs the other way than the names, a comment, or the ELBO say"
    events = (KlCall, KlFormula)

    def check(self, module: Module) -> Iterator[Report]:
        found = [(event, made) for event, made in module.divergences() if made.family in ("categorical", "distribution")]
        directions = {(event.place.function, made.p.role, made.q.role) for event, made in found}
        in_function = Counter(event.place.function for event, _ in found)
        for event, made in found:
            if isinstance(event, KlCall) and event.api.distance:
                continue
            sides = (made.p.role or _name(made.p_key), made.q.role or _name(made.q_key))
            if not all(sides) or sides[0] == sides[1]:
                continue
            both_ways = (event.place.function, *sides[::-1]) in directions
            computed = f"KL({sides[0]}‖{sides[1]})"
            statement = module.statement(event.node)
            stated = self._stated(module, event, statement, alone=in_function[event.place.function] == 1)
            if stated is not None:
                if stated == sides[::-1]:
                    yield Report(event.node, f"this computes {computed}; the code says KL({stated[0]}‖{stated[1]})")
                continue
            if both_ways or _MEANT.search(self._context(module, event, statement)) or self._is_reverse(module, event):
                continue
            if sides in _OPPOSITE and not self._is_forward(event, sides):
                yield Report(
                    event.node, f"this computes {computed}: {sides[0]} and {sides[1]} are the other way round from the usual {_why(sides)}"
                )
            elif sides == ("p", "q") and re.search("elbo", self._context(module, event, statement), re.IGNORECASE):
                yield Report(event.node, "the ELBO has KL(q‖p), posterior first; this computes KL(p‖q)")
            elif sides == ("q", "p") and self._named_pq(event):
                yield Report(event.node, "a function of (p, q), in this order, that computes KL(q‖p)")

    def _is_reverse(self, module: Module, event: KlCall | KlFormula) -> bool:
        function = event.place.function
        return function is not None and module.says(function, _speaks_of_the_reverse)

    def _is_forward(self, event: KlCall | KlFormula, sides: tuple[str, str]) -> bool:
        """A function named after the forward KL means KL(prior‖posterior); `forward` alone is what PyTorch calls every module's method."""
        name = getattr(event.place.function, "name", "")
        return sides == ("prior", "posterior") and "forward" in name.lower() and name != "forward"

    def _stated(self, module: Module, event: KlCall | KlFormula, statement: ast.AST, *, alone: bool) -> tuple[str, str] | None:
        """The direction that the comment, the variable's name or the docstring states, in roles.

        A long function's docstring speaks of its KL only where that is `alone`.
        """
        line = statement.lineno  # type: ignore[attr-defined]
        texts = [module.source.comment(line), module.source.comment(event.node.lineno)]
        function = event.place.function
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and (len(function.body) <= 6 or alone):
            texts.append(ast.get_docstring(function) or "")
        for text in texts:
            found = {(role_of(a) or a, role_of(b) or b) for a, b in _STATED.findall(_without_tex(text))}
            if len(found) == 1:
                return found.pop()
            if found:
                return ("", "")  # it speaks of both
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id.lower()
            match = re.search(r"(?:^|_)kl[d]?_?(?:div_)?(p_?q|q_?p)$", name)
            if match:
                return match[1][0], match[1][-1]
        return None

    def _context(self, module: Module, event: KlCall | KlFormula, statement: ast.AST) -> str:
        function = event.place.function
        outer = [getattr(f, "name", "") for f in (*event.place.outer, function) if f is not None]
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            outer.append(ast.get_docstring(function) or "")
            # The lines above, where the choice between two directions is made.
            outer += [ast.unparse(test) for test in event.place.conditions]
        return " ".join([*outer, module.source.segment(statement)[:400], module.source.comment(statement.lineno)])  # type: ignore[attr-defined]

    def _named_pq(self, event: KlCall | KlFormula) -> bool:
        function = event.place.function
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or not re.search(
            r"kl|kullback|relative", function.name, re.IGNORECASE
        ):
            return False
        roles = [role_of(a.arg) for a in [*function.args.posonlyargs, *function.args.args] if a.arg not in ("self", "cls")]
        return roles[:2] == ["p", "q"] and not re.search(r"qp|q_p", function.name)


def _speaks_of_the_reverse(text: str) -> bool:
    return bool(_REVERSE.search(text))


def _without_tex(text: str) -> str:
    r"""\textrm{KL}(y \Vert \hat{y}) as KL(y || y_hat)."""
    text = re.sub(r"\\(?:textrm|textbf|text|mathrm|mathop|mathbf|operatorname)\*?\{(\w+)\}", r"\1", text)
    text = re.sub(r"\\(hat|tilde|bar)\{(\w+)\}", r"\2_\1", text)
    text = re.sub(r"\\(?:Big|big|left|right)[lr]?(?![a-z])", "", text)
    return re.sub(r"\\(?:Vert|parallel)\b|\\\|", "||", text)


def _name(key: str) -> str:
    """A plain variable's name; other expressions have none."""
    return key if key.isidentifier() else ""


def _why(sides: tuple[str, str]) -> str:
    return "KL(teacher‖student) of distillation" if sides[0] == "student" else "KL(posterior‖prior) of the ELBO"

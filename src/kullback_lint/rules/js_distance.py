"""KL015: the Jensen-Shannon distance under the name of the divergence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..events import Bound, KlCall
from ..values import KL
from .base import Module, Report, Rule

_DIVERGENCE = re.compile(r"diverg|js_?div|jsdiv", re.IGNORECASE)
_DISTANCE = re.compile(r"dist|sqrt|metric|root", re.IGNORECASE)


class JsDistance(Rule):
    code = "KL015"
    name = "js-distance-as-divergence"
    summary = "scipy's jensenshannon is the square root of the divergence"
    events = (Bound, KlCall)

    def look(self, event: Bound | KlCall, module: Module) -> Iterator[Report]:
        if isinstance(event, Bound):
            if event.value.kind == KL and event.value.data.api == "jensenshannon" and _named(event.name):
                yield _report(event.value.data.node)
        else:
            if event.api.distance:
                parent = module.parents.get(event.node)
                while isinstance(parent, (ast.FormattedValue, ast.JoinedStr, ast.Call)) and not _is_print(parent):
                    if isinstance(parent, ast.Call) and not isinstance(parent.func, ast.Name):
                        break
                    parent = module.parents.get(parent)
                if isinstance(parent, ast.Call) and _is_print(parent):
                    words = " ".join(n.value for n in ast.walk(parent) if isinstance(n, ast.Constant) and isinstance(n.value, str))
                    if _named(words):
                        yield _report(event.node)


def _named(name: str) -> bool:
    return bool(_DIVERGENCE.search(name)) and not _DISTANCE.search(name)


def _is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def _report(node: ast.AST) -> Report:
    return Report(node, "scipy's jensenshannon is the distance, the square root of the divergence: square it")

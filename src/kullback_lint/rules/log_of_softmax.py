"""KL008: log(softmax(x))."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..events import Operation
from ..model import Edit
from .base import Module, Report, Rule


def _within_where(module: Module, node: ast.AST) -> bool:
    """where(p > 0, p * log(p), 0): the zeros were thought of."""
    for _ in range(4):
        node = module.parents.get(node, module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "where":
            return True
    return False


def _has_log_softmax_beside(module: Module, call: ast.Call) -> bool:
    """Whether log_softmax stands where this softmax does: not beside a layer, `self.softmax`, nor in the older modules of Keras."""
    operation = module.operations[id(call)]
    is_layer = "dim" in operation.keywords and not any(k.arg == "dim" for k in call.keywords)
    assert isinstance(call.func, ast.Attribute)
    return not is_layer and (operation.library != "tensorflow" or ast.unparse(call.func.value).endswith(("nn", "ops")))


class LogOfSoftmax(Rule):
    code = "KL008"
    name = "log-of-softmax"
    summary = "log(softmax(x)) is -inf where softmax underflows; log_softmax(x) is not"
    fixable = True
    events = (Operation,)

    def look(self, event: Operation, module: Module) -> Iterator[Report]:
        if event.name == "log" and event.values[0].softmax and not _within_where(module, event.node):
            yield Report(
                event.node,
                "log of softmax is -inf, and its gradient NaN, where softmax underflows: use log_softmax",
                self._edits(module, event),
            )

    def _edits(self, module: Module, event: Operation) -> tuple[Edit, ...]:
        inner = event.nodes[0]
        called = event.node.func
        # log2 and log10 are not log_softmax; a bare `softmax` may have no `log_softmax` beside it.
        natural = isinstance(called, ast.Attribute) and called.attr == "log"
        if not natural or not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Attribute) or inner.func.attr != "softmax":
            return ()
        if not _has_log_softmax_beside(module, inner):
            return ()
        source = module.source
        start, end = source.span(event.node)
        inner_start, inner_end = source.span(inner)
        around = source.text[start:inner_start] + source.text[inner_end:end]
        if "#" in around or (len(event.node.args) + len(event.node.keywords) > 1):
            return ()
        name_end = source.span(inner.func)[1]
        if source.text[name_end - 7 : name_end] != "softmax":
            return ()
        edits = [Edit(start, inner_start, ""), Edit(name_end - 7, name_end, "log_softmax"), Edit(inner_end, end, "")]
        return tuple(edit for edit in edits if edit.start != edit.end or edit.text)

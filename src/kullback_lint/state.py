"""What the parts of the data flow share: scopes, the place, recorded events, and the names of expressions."""

from __future__ import annotations

import ast
from typing import Any

from .call import Call
from .events import Operation, Place
from .operations import transfer
from .values import UNKNOWN, Value

_LONGEST = 300  # of a name made of names: a thousand softmaxes in a row must not name one another


class State:
    """The base of the flow; `value`, `binary` and `define` come from the parts built on it."""

    def __init__(self) -> None:
        self.scopes: tuple[Any, ...] = ()
        self.place = Place()
        self.conventions: dict[str, Value] = {}
        self.events: dict[tuple[str, int], Any] = {}
        self.recording = False
        self.texts: dict[int, str] = {}
        self.kept: list[ast.AST] = []
        self.layers: dict[int, Value] = {}  # Keras models built with add(): what their last layer gives

    def value(self, node: ast.expr) -> Value:
        raise NotImplementedError

    def binary(self, node: ast.BinOp) -> Value:
        raise NotImplementedError

    def define(self, node: Any, owner: Any = None) -> Any:
        raise NotImplementedError

    def record(self, event: Any) -> None:
        """Loops walk a node more than once; the last time counts."""
        if self.recording:
            self.events[(type(event).__name__, id(event.node))] = event

    def key(self, value: Value, node: ast.expr | None) -> str:
        """A name for what the expression is about: log(p), p and exp(log_p) share one."""
        if value.of and len(value.of) <= _LONGEST:
            return value.of
        return self.text(node) if node is not None else ""

    def text(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return node.id
        found = self.texts.get(id(node))
        if found is None:
            try:
                found = ast.unparse(node)
            except (RecursionError, ValueError):
                found = f"<{id(node)}>"
            self.texts[id(node)] = found
            self.kept.append(node)  # ids stay unique while the node lives
        return found

    def operate(self, c: Call, library: str, operation: str, *, method: bool = False) -> Value:
        """A known operation: what it gives, and the event of it."""
        if not c.args:
            # softmax(input=x), sum(a=x): the operand by keyword.
            name = next((n for n in ("input", "x", "a", "logits", "tensor", "input_tensor") if n in c.keywords), None)
            if name is None:
                return UNKNOWN
            c = Call(c.node, [c.keyword_nodes[name]], [c.keywords[name]], c.keyword_nodes, c.keywords, c.open)
        result = transfer(self, operation, c)
        if self.recording:
            nodes, values = tuple(c.nodes), tuple(c.args)
            self.record(
                Operation(c.node, library, operation, nodes, values, c.keyword_nodes, result, self.place, c.open, method, c.keywords)
            )
        return result

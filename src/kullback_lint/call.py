"""One call: its nodes and the values of its arguments, and how parameters are read from it. No flow."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from .events import Arguments
from .values import CONSTANT, TUPLE, UNKNOWN, Made, Value


@dataclass
class Call:
    node: ast.Call
    nodes: list[ast.expr] = field(default_factory=list)
    args: list[Value] = field(default_factory=list)
    keyword_nodes: dict[str, ast.expr] = field(default_factory=dict)
    keywords: dict[str, Value] = field(default_factory=dict)
    open: bool = False  # *args or **kwargs may bring more

    @property
    def first(self) -> Value:
        return self.args[0]

    def keyword(self, name: str) -> Value:
        return self.keywords.get(name, UNKNOWN)

    def with_receiver(self, node: ast.expr, value: Value) -> Call:
        """x.f(...) as f(x, ...)."""
        return Call(self.node, [node, *self.nodes], [value, *self.args], self.keyword_nodes, self.keywords, self.open)

    def after(self, made: Made) -> Call:
        """A call of partial(f, ...): the partial's arguments come first."""
        return Call(
            self.node,
            [*made.node.args[1:], *self.nodes],
            [*made.args, *self.args],
            {k.arg: k.value for k in made.node.keywords if k.arg} | self.keyword_nodes,
            dict(made.keywords) | self.keywords,
            self.open or any(k.arg is None for k in made.node.keywords),
        )

    def by_name(self, parameters: tuple[str, ...]) -> Arguments:
        starred = any(isinstance(n, ast.Starred) for n in self.nodes)
        nodes, args = ([], []) if starred else (self.nodes, self.args)
        return Arguments(dict(zip(parameters, nodes)) | self.keyword_nodes, dict(zip(parameters, args)) | self.keywords, self.open)

    def axis(self, position: int = 1) -> Any:
        """The axis as a number; "some" where there is one that is not written out, None where there is none."""
        node = next((self.keyword_nodes[k] for k in ("dim", "axis") if k in self.keyword_nodes), None)
        value = next((self.keywords[k] for k in ("dim", "axis") if k in self.keywords), UNKNOWN)
        if node is None and len(self.nodes) > position:
            node, value = self.nodes[position], self.args[position]
        if node is None:
            return None
        if isinstance(node, ast.Constant):
            return node.value
        if value.kind == CONSTANT:
            return value.data
        if value.kind == TUPLE and all(v.kind == CONSTANT for v in value.data):
            return tuple(v.data for v in value.data)
        return "some"


def creation(made: Made) -> Call:
    """The call that made an object."""
    node = made.node
    named = {k.arg: k.value for k in node.keywords if k.arg}
    is_open = any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args)
    return Call(node, list(node.args), list(made.args), named, dict(made.keywords), is_open)


_BY_NUMBER = {0: "none", 1: "mean", 2: "sum"}


def reduction_of(options: Arguments, default: str) -> str | None:
    """PyTorch's reduction, legacy arguments included; None where it is not written out."""
    if options.open:
        return None
    legacy = [name for name in ("size_average", "reduce") if name in options.nodes]
    if any(options.value(name).kind != CONSTANT for name in legacy):
        return None
    if any(options.value(name).data is not None for name in legacy):
        if "reduce" in legacy and options.value("reduce").data is False:
            return "none"
        return "sum" if "size_average" in legacy and options.value("size_average").data is False else "mean"
    if "reduction" not in options.nodes:
        return default
    value = options.value("reduction")
    if value.kind != CONSTANT:
        return None
    return value.data if isinstance(value.data, str) else _BY_NUMBER.get(value.data)


def log_target_of(options: Arguments) -> bool | None:
    """Whether the target is read as log-probabilities; None where it is not written out."""
    if "log_target" not in options.nodes:
        return None if options.open else False
    value = options.value("log_target")
    return value.data if value.kind == CONSTANT and isinstance(value.data, bool) else None

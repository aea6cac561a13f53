"""Expressions of the data flow: names, attributes, subscripts, comprehensions. Arithmetic is in `arithmetic`, calls are in `calls`."""

from __future__ import annotations

import ast
from typing import Any

from .arithmetic import Arithmetic
from .events import Bound, Selected
from .values import (
    CONSTANT,
    FUNCTION,
    INSTANCE,
    KL,
    METHOD,
    MODULE,
    NUMBERS,
    OBJECT,
    SAMPLES,
    TUPLE,
    UNKNOWN,
    Value,
    constant,
    join,
    role_of,
)

_DEEPEST = 60  # expressions within expressions; deeper ones are unknown


class Expressions(Arithmetic):
    """`value(node)` is what is known of an expression."""

    def __init__(self) -> None:
        super().__init__()
        self.within = 0
        self.handlers: dict[type, Any] = {}

    def value(self, node: ast.expr) -> Value:
        kind = type(node)
        if kind is ast.Name:  # every second expression is one
            return self.of_Name(node)  # type: ignore[arg-type]
        if self.within > _DEEPEST:
            return UNKNOWN
        try:
            handler = self.handlers[kind]
        except KeyError:
            handler = self.handlers[kind] = getattr(self, f"of_{kind.__name__}", self.of_others)
        self.within += 1
        try:
            return handler(node)  # type: ignore[no-any-return]
        finally:
            self.within -= 1

    def of_others(self, node: ast.expr) -> Value:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return UNKNOWN

    # Names and attributes.

    def lookup(self, name: str) -> Value:
        for scope in reversed(self.scopes):
            found: Value | None = scope.values.get(name)
            if found is not None:
                # A closure over a test's random numbers may be called with anything else as well.
                return UNKNOWN if found.kind == SAMPLES and scope is not self.scopes[-1] else found
        return self.conventions.get(name, UNKNOWN)

    def of_Name(self, node: ast.Name) -> Value:
        found = self.lookup(node.id)
        if not found and not found.role:
            role = role_of(node.id)
            return found.having(role=role) if role else found
        return found

    def of_Constant(self, node: ast.Constant) -> Value:
        return constant(node.value)

    def of_Attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        name = node.attr
        if base.kind == MODULE:
            return Value(MODULE, data=f"{base.data}.{name}", role=role_of(name))
        if base.kind == INSTANCE:
            within = self.scopes[-1].values.get(f"self.{name}")
            found = within if within is not None else base.data.find(name)
            if isinstance(found, Value):
                return found if found.role else found.having(role=role_of(name))
            if found is not None:
                if found.property:
                    return found.returns or UNKNOWN
                return Value(FUNCTION, data=found)
            return Value(METHOD, data=(base, name), role=role_of(name))
        role = base.role or role_of(name)
        if base.kind == OBJECT:
            return self.attribute_of_object(base, name).having(role=role)
        if base.kind in NUMBERS and name in ("T", "mT", "data", "values", "real"):
            return base
        return Value(METHOD, data=(base, name), role=role)

    def of_Subscript(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        index = self.value(node.slice) if not isinstance(node.slice, ast.Slice) else UNKNOWN
        if base.kind == KL:
            self.record(Selected(node, base, node.slice, index, self.place))
            return base
        if base.kind == TUPLE and index.kind == CONSTANT and isinstance(index.data, int) and -len(base.data) <= index.data < len(base.data):
            return base.data[index.data]  # type: ignore[no-any-return]
        if (
            base.kind == METHOD
            and base.data[1] == "shape"
            and index.kind == CONSTANT
            and index.data == -1
            and isinstance(node.value, ast.Attribute)
        ):
            return Value(of=f"classes({self.key(base.data[0], node.value.value)})")
        masked = ("", "")
        if isinstance(index.data, (ast.Compare, ast.BinOp)) or isinstance(node.slice, (ast.Compare, ast.BinOp)):
            condition = index.data if isinstance(index.data, ast.AST) else node.slice
            masked = (self.text(node.value), self.text(condition))
        if base.kind in NUMBERS:
            return base.having(rank=_indexed_rank(node.slice), axis=None, bins=base.bins, of="", exp_of="", softmax=False, masked=masked)
        return Value(role=base.role, rank=_indexed_rank(node.slice), masked=masked)

    def of_Tuple(self, node: ast.Tuple) -> Value:
        return Value(TUPLE, data=tuple(_shallow(self.value(e)) for e in node.elts[:1000]))

    def of_List(self, node: ast.List) -> Value:
        return Value(TUPLE, data=tuple(_shallow(self.value(e)) for e in node.elts[:1000]))

    def of_Lambda(self, node: ast.Lambda) -> Value:
        return Value(FUNCTION, data=self.define(node))

    def of_IfExp(self, node: ast.IfExp) -> Value:
        self.value(node.test)
        return join(self.value(node.body), self.value(node.orelse))

    def of_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.scopes[-1].set(node.target.id, value)
        return value

    def of_Await(self, node: ast.Await) -> Value:
        return self.value(node.value)

    def of_Starred(self, node: ast.Starred) -> Value:
        self.value(node.value)
        return UNKNOWN

    def of_Compare(self, node: ast.Compare) -> Value:
        for part in (node.left, *node.comparators):
            self.value(part)
        return Value(data=node)

    def of_Dict(self, node: ast.Dict) -> Value:
        for key, value in zip(node.keys, node.values):
            found = self.value(value)
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.record(Bound(value, key.value, found, value, self.place))
        return UNKNOWN

    def _comprehension(self, node: Any) -> Value:
        scope = self.scopes[-1]
        scope.begin()
        for generator in node.generators:
            source = self.value(generator.iter)
            element = UNKNOWN
            if source.kind == TUPLE and source.data:
                element = source.data[0]
                for other in source.data[1:50]:
                    element = join(element, other)
            for name in ast.walk(generator.target):
                if isinstance(name, ast.Name):
                    scope.set(name.id, element if name is generator.target else UNKNOWN)
            for condition in generator.ifs:
                self.value(condition)
        if isinstance(node, ast.DictComp):
            self.value(node.key)
            self.value(node.value)
            value = UNKNOWN
        else:
            value = self.value(node.elt)
            for generator in node.generators:
                for condition in generator.ifs:
                    if value.kind == KL:
                        self.record(Selected(condition, value, condition, UNKNOWN, self.place))
        scope.undo()
        return value

    def of_ListComp(self, node: Any) -> Value:
        value = self._comprehension(node)
        return value if value.kind == KL else UNKNOWN

    of_GeneratorExp = of_SetComp = of_ListComp

    def of_DictComp(self, node: Any) -> Value:
        self._comprehension(node)
        return UNKNOWN


def _shallow(value: Value) -> Value:
    """Tuples of tuples are followed, deeper ones are not."""
    return UNKNOWN if value.kind == TUPLE and any(part.kind == TUPLE for part in value.data) else value


def _indexed_rank(index: ast.expr) -> int | None:
    """How many axes x[...] shows: x[:, :-1, :] has three, whatever x is, where each part is a slice."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if len(parts) >= 3 and all(isinstance(p, ast.Slice) for p in parts):
        return len(parts)
    return None

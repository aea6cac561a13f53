"""The data flow: walks a module's statements and knows of each expression what it is.

Branches are walked apart and joined, loops twice. Functions are walked with the values that the module's own calls give them, classes
with the attributes their methods set. Everything else is unknown. Nothing is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from .catalog import APIS, CONVENTIONS
from .events import Bound, Place, Selected, Sum
from .expressions import Expressions
from .values import CLASS, CONSTANT, FUNCTION, INSTANCE, KL, MODULE, OBJECT, TUPLE, UNKNOWN, Value, join, role_of

_ROUNDS = 3  # a value crosses at most this many function boundaries
_DEEPEST = 60  # statements within statements

_Def = (ast.FunctionDef, ast.AsyncFunctionDef)


class Function:
    """A def or lambda of the module."""

    def __init__(self, node: Any, owner: Class | None, scopes: tuple[Scope, ...], outer: tuple[ast.AST, ...]) -> None:
        self.node, self.owner, self.scopes, self.outer = node, owner, scopes, outer
        self.parameters: dict[str, Value] = {}
        self.defaults: dict[str, Value] = {}
        self.given: dict[str, Value] = {}  # what this round's calls passed
        self.returns: Value | None = None
        arguments = node.args
        self.positional = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        self.names = self.positional + [a.arg for a in arguments.kwonlyargs]
        decorators = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
        self.static = "staticmethod" in decorators
        self.property = "property" in decorators
        self.no_grad = any("no_grad" in d or "inference_mode" in d for d in decorators)
        self.generator = False

    def note(self, name: str, value: Value) -> None:
        self.given[name] = join(self.given[name], value) if name in self.given else value


class Class:
    """A class of the module: its methods, and what they set on self."""

    def __init__(self, node: ast.ClassDef, bases: list[Value]) -> None:
        self.node, self.bases = node, bases
        self.methods: dict[str, Function] = {}
        self.attributes: dict[str, Value] = {}
        self.noted: dict[str, Value] = {}

    def find(self, name: str, seen: int = 0) -> Function | Value | None:
        if name in self.methods:
            return self.methods[name]
        if name in self.attributes:
            return self.attributes[name]
        for base in self.bases:
            if base.kind == CLASS and seen < 5:
                found = base.data.find(name, seen + 1)
                if found is not None:
                    return found  # type: ignore[no-any-return]
        return None


class Scope:
    """Names and values, with a journal so that branches can be undone and joined at the cost of what they changed."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.journals: list[dict[str, Value | None]] = []

    def set(self, name: str, value: Value) -> None:
        if self.journals and name not in self.journals[-1]:
            self.journals[-1][name] = self.values.get(name)
        self.values[name] = value

    def begin(self) -> None:
        self.journals.append({})

    def undo(self) -> dict[str, Value]:
        """Leave the branch; what it changed, with the values it left."""
        journal = self.journals.pop()
        changed = {name: self.values[name] for name in journal}
        for name, before in journal.items():
            if before is None:
                del self.values[name]
            else:
                self.values[name] = before
        return changed

    def merge(self, branches: list[dict[str, Value]], complete: bool) -> None:
        """Join the branches; `complete` when one of them is certain to be taken."""
        names: dict[str, None] = {}
        for branch in branches:
            names.update(dict.fromkeys(branch))
        for name in names:
            before = self.values.get(name)
            found = [branch.get(name, before) for branch in branches]
            if not complete:
                found.append(before)
            known = [value for value in found if value is not None]
            value = known[0]
            for other in known[1:]:
                value = join(value, other)
            self.set(name, value)


class Flow(Expressions):
    """Walks one module; `events` is what the last round saw."""

    def __init__(self, tree: ast.Module, bound: set[str]) -> None:
        super().__init__()
        self.tree = tree
        self.conventions = {name: Value(MODULE, data=dotted) for name, dotted in CONVENTIONS.items() if name not in bound}
        self.functions: dict[int, Function] = {}
        self.classes: dict[int, Class] = {}
        self.statements: dict[type, Callable[[Any], None] | None] = {}
        self.depth = 0
        self.loops = 0

    def run(self) -> list[Any]:
        before: dict[Any, Value] = {}  # nothing crosses: one round will do
        for _ in range(_ROUNDS):
            self.recording, self.events = True, {}
            self.scopes: tuple[Scope, ...] = (Scope(),)
            self.place = Place()
            self.function: Function | None = None
            self.pending: list[Function] = []
            self.body(self.tree.body)
            while self.pending:
                self.enter(self.pending.pop(0))
            for function in self.functions.values():
                function.parameters, function.given = function.given, {}
            for known in self.classes.values():
                known.attributes, known.noted = known.noted, {}
            known_now = self._crossed()
            if known_now == before:
                break
            before = known_now
        return list(self.events.values())

    def _crossed(self) -> dict[Any, Value]:
        """What is known at the boundaries of functions and classes; where a round added nothing, the next would not either."""
        found: dict[Any, Value] = {}
        for key, function in self.functions.items():
            found.update({(key, name): value for name, value in function.parameters.items() if value})
            if function.returns:
                found[key, None] = function.returns
        for key, known in self.classes.items():
            found.update({(key, "", name): value for name, value in known.attributes.items() if value})
        return found

    # Functions and classes.

    def enter(self, function: Function) -> None:
        outer_scopes, place, previous = self.scopes, self.place, self.function
        scope = Scope()
        self.scopes, self.function = (*function.scopes, scope), function
        self.place = Place(function.node, function.outer, no_grad=function.no_grad)
        for name in function.names:
            value = function.parameters.get(name, function.defaults.get(name, UNKNOWN))
            scope.values[name] = value if value.role else value.having(role=role_of(name))
        if function.owner and function.positional and not function.static:
            scope.values[function.positional[0]] = Value(INSTANCE, data=function.owner)
        function.returns, before = None, function.returns
        try:
            if isinstance(function.node, ast.Lambda):
                function.returns = self.value(function.node.body)
            else:
                self.body(function.node.body)
        finally:
            self.scopes, self.place, self.function = outer_scopes, place, previous
        if function.returns is None:
            function.returns = UNKNOWN if before is None else before

    def define(self, node: Any, owner: Class | None = None) -> Function:
        function = self.functions.get(id(node))
        outer = (*self.place.outer, self.place.function) if self.place.function is not None else self.place.outer
        if function is None:
            function = self.functions[id(node)] = Function(node, owner, self.scopes, outer)
        function.scopes = self.scopes
        # Defaults belong to the scope around. Of theirs only a loss object is believed: a caller who passes nothing gets that.
        given = node.args
        pairs = [*zip(reversed(function.positional), reversed(given.defaults)), *zip((a.arg for a in given.kwonlyargs), given.kw_defaults)]
        for name, default in pairs:
            if default is not None:
                value = self.value(default)
                if value.kind == OBJECT and value.data.name in APIS:
                    function.defaults[name] = value
        self.pending.append(function)
        return function

    def define_class(self, node: ast.ClassDef) -> Class:
        bases = [self.value(base) for base in node.bases]
        known = self.classes.get(id(node))
        if known is None:
            known = self.classes[id(node)] = Class(node, bases)
        known.bases = bases
        scope, before = Scope(), self.scopes
        # Names of the class body are attributes, not names of its methods.
        for statement in node.body:
            if isinstance(statement, _Def):
                known.methods[statement.name] = self.define(statement, known)
            else:
                self.scopes = (*before, scope)
                self.statement(statement)
                self.scopes = before
        for name, value in scope.values.items():
            known.noted.setdefault(name, value)
        return known

    # Statements.

    def body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        kind = type(node)
        try:
            handler = self.statements[kind]
        except KeyError:
            handler = self.statements[kind] = getattr(self, f"on_{kind.__name__}", None)
        if handler is None or self.depth > _DEEPEST:
            return
        self.depth += 1
        try:
            handler(node)
        finally:
            self.depth -= 1

    def on_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def on_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound, dotted = (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
            self.scopes[-1].set(bound, Value(MODULE, data=dotted))

    def on_ImportFrom(self, node: ast.ImportFrom) -> None:
        prefix = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name != "*":
                self.scopes[-1].set(alias.asname or alias.name, Value(MODULE, data=f"{prefix}.{alias.name}"))

    def on_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.scopes[-1].set(node.name, Value(FUNCTION, data=self.define(node)))

    on_AsyncFunctionDef = on_FunctionDef

    def on_ClassDef(self, node: ast.ClassDef) -> None:
        self.scopes[-1].set(node.name, Value(CLASS, data=self.define_class(node)))

    def on_Return(self, node: ast.Return) -> None:
        if node.value is None or self.function is None:
            return
        value = self.value(node.value)
        self.function.returns = value if self.function.returns is None else join(self.function.returns, value)
        self.record(Bound(node, getattr(self.function.node, "name", ""), value, node.value, self.place))

    def on_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value, node.value, node)

    def on_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value), node.value, node)

    def on_AugAssign(self, node: ast.AugAssign) -> None:
        left = ast.copy_location(_loaded(node.target), node.target)
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        if isinstance(node.op, (ast.Add, ast.Sub)):
            signs = (1, 1 if isinstance(node.op, ast.Add) else -1)
            value = self.add([(signs[0], left, self.value(left)), (signs[1], node.value, self.value(node.value))], node, target=name)
        elif isinstance(node.op, (ast.Mult, ast.Div)):
            value = self.binary(ast.copy_location(ast.BinOp(left, node.op, node.value), node))
        else:
            self.value(node.value)
            value = UNKNOWN
        self.bind(node.target, value, None, node)

    def bind(self, target: ast.expr, value: Value, expression: ast.expr | None, node: ast.stmt) -> None:
        if isinstance(target, ast.Name):
            role = role_of(target.id)
            if role and value.role != role and value.kind not in (CONSTANT, MODULE):
                value = value.having(role=role)
            self.scopes[-1].set(target.id, value)
            if expression is not None:
                self.record(Bound(node, target.id, value, expression, self.place))
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts: Any = value.data if value.kind == TUPLE and len(value.data) == len(target.elts) else None
            for number, part in enumerate(target.elts):
                if isinstance(part, ast.Starred):
                    part, parts = part.value, None
                self.bind(part, parts[number] if parts else UNKNOWN, None, node)
        elif isinstance(target, ast.Attribute):
            base = self.value(target.value)
            if base.kind == INSTANCE:
                role = role_of(target.attr)
                noted = base.data.noted
                kept = value.having(role=role) if role and not value.role else value
                noted[target.attr] = join(noted[target.attr], kept) if target.attr in noted else kept
                # Within the method that sets it, the attribute is what was just assigned.
                self.scopes[-1].set(f"self.{target.attr}", kept)
                if expression is not None:
                    self.record(Bound(node, target.attr, value, expression, self.place))
        elif isinstance(target, ast.Subscript):
            key = target.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and expression is not None:
                self.record(Bound(node, key.value, value, expression, self.place))
            if isinstance(target.value, ast.Name):
                held = self.lookup(target.value.id)
                if held.kind == KL:
                    if value.kind == CONSTANT and value.data == 0:
                        self.record(Selected(target, held, key, self.value(key), self.place))
                    return
                if held.kind not in ("", TUPLE):
                    self.scopes[-1].set(target.value.id, Value(role=held.role))

    def on_If(self, node: ast.If) -> None:
        branches: list[dict[str, Value]] = []
        scope = self.scopes[-1]
        rest: list[ast.stmt] = [node]
        while len(rest) == 1 and isinstance(rest[0], ast.If):  # an elif chain may be thousands long
            branch = rest[0]
            self.value(branch.test)
            scope.begin()
            place = self.place
            self.place = replace(place, conditions=(*place.conditions, branch.test))
            self.body(branch.body)
            self.place = place
            changed = scope.undo()
            if not _leaves(branch.body):
                branches.append(changed)
            rest = branch.orelse
        if rest:
            scope.begin()
            self.body(rest)
            changed = scope.undo()
            if not _leaves(rest):
                branches.append(changed)
        if branches:
            scope.merge(branches, complete=bool(rest))

    def _loop(self, statements: list[ast.stmt], first: Callable[[], None]) -> None:
        scope = self.scopes[-1]
        # Once to see what the body changes, then for good; loops within loops only once, or the cost would double with each.
        for recording in (False, self.recording) if self.loops == 0 else (self.recording,):
            before, self.recording = self.recording, recording
            self.loops += 1
            pending = len(self.pending)
            scope.begin()
            first()
            self.body(statements)
            scope.merge([scope.undo()], complete=False)
            self.loops -= 1
            self.recording = before
            if not recording:
                del self.pending[pending:]

    def on_For(self, node: ast.For) -> None:
        iterated = self.value(node.iter)

        def first() -> None:
            element = UNKNOWN
            if iterated.kind == TUPLE and iterated.data:
                element = iterated.data[0]
                for other in iterated.data[1:50]:
                    element = join(element, other)
            self.bind(node.target, element, None, node)

        self._loop(node.body, first)
        self.body(node.orelse)

    on_AsyncFor = on_For

    def on_While(self, node: ast.While) -> None:
        self._loop(node.body, lambda: self._look(node.test))
        self.body(node.orelse)

    def _look(self, node: ast.expr) -> None:
        self.value(node)

    def on_With(self, node: ast.With) -> None:
        place = self.place
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, UNKNOWN, None, node)
            if value.kind == CONSTANT and value.data == "no_grad":
                self.place = replace(place, no_grad=True)
        self.body(node.body)
        self.place = place

    on_AsyncWith = on_With

    def on_Try(self, node: ast.Try) -> None:
        scope = self.scopes[-1]
        scope.begin()
        self.body(node.body)
        self.body(node.orelse)
        branches = [scope.undo()]
        for handler in node.handlers:
            scope.begin()
            if handler.name:
                scope.set(handler.name, UNKNOWN)
            self.body(handler.body)
            changed = scope.undo()
            # `except ImportError: F = None` says nothing about F where it is used.
            branches.append({k: v for k, v in changed.items() if not (v.kind == CONSTANT and v.data is None and branches[0].get(k))})
        certain = [b for b in branches if b]
        if certain:
            scope.merge(certain, complete=True)
        self.body(node.finalbody)

    on_TryStar = on_Try

    def on_Assert(self, node: ast.Assert) -> None:
        self.value(node.test)

    def on_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.scopes[-1].set(target.id, UNKNOWN)

    def on_Match(self, node: Any) -> None:
        self.value(node.subject)
        scope = self.scopes[-1]
        branches = []
        for case in node.cases:
            scope.begin()
            self.body(case.body)
            changed = scope.undo()
            if not _leaves(case.body):
                branches.append(changed)
        if branches:
            scope.merge(branches, complete=False)

    def add(self, terms: list[tuple[int, ast.expr | None, Value]], node: ast.AST, target: str = "") -> Value:
        self.record(Sum(node, tuple(terms), self.place, target))
        return self.add_terms(terms, node)


def _leaves(statements: list[ast.stmt]) -> bool:
    """Whether what follows the branch is not reached from it."""
    return bool(statements) and isinstance(statements[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    return target

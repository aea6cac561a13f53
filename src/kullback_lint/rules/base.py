"""What a rule is: a number, a name, a severity, and a check on what the data flow saw."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from ..events import KlCall, KlFormula, Operation, Product, Quotient
from ..model import WARNING, Edit
from ..source import Source
from ..values import KL, Divergence


@dataclass(frozen=True)
class Report:
    """What a rule says about a node."""

    node: ast.AST
    message: str
    edits: tuple[Edit, ...] = ()


@dataclass
class Module:
    """One parsed file, as rules see it."""

    source: Source
    tree: ast.Module
    events: list[Any] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _looked: dict[tuple[int, Callable[[str], bool]], bool] = field(default_factory=dict)

    def of(self, kind: type[Any]) -> list[Any]:
        return self._by_kind.get(kind, [])

    @cached_property
    def _by_kind(self) -> dict[type[Any], list[Any]]:
        found: dict[type[Any], list[Any]] = {}
        for event in self.events:
            found.setdefault(type(event), []).append(event)
        return found

    def statement(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, ast.stmt) and node in self.parents:
            node = self.parents[node]
        return node

    def says(self, node: ast.AST, look: Callable[[str], bool]) -> bool:
        """What `look` finds in a node's source, asked once: a generated function may hold thousands of KLs."""
        key = (id(node), look)
        if key not in self._looked:
            self._looked[key] = look(self.source.segment(node))
        return self._looked[key]

    @cached_property
    def operations(self) -> dict[int, Operation]:
        """By the node of the call."""
        return {id(event.node): event for event in self.of(Operation)}

    @cached_property
    def scalings(self) -> dict[int, list[str]]:
        """What each KL was multiplied with or divided by later, by the KL's node."""
        found: dict[int, list[str]] = {}
        for event in self.events:
            if isinstance(event, Quotient):
                found.setdefault(id(event.value.data.node), []).append("/" + ast.unparse(event.divisor))
            elif isinstance(event, Product):
                found.setdefault(id(event.value.data.node), []).extend("*" + ast.unparse(node) for node, _ in event.others)
        return found

    def uses(self, created: ast.Call) -> list[KlCall]:
        """The calls of a KL that was created there; of a function, the call itself."""
        return self._uses.get(id(created), [])

    @cached_property
    def _uses(self) -> dict[int, list[KlCall]]:
        found: dict[int, list[KlCall]] = {}
        for event in self.of(KlCall):
            found.setdefault(id(event.created), []).append(event)
        return found

    @cached_property
    def summed(self) -> set[int]:
        """The nodes of the KLs that a sum was taken of."""
        sums = (op.values[0] for op in self.of(Operation) if op.name in ("sum", "nansum"))
        return {id(value.data.node) for value in sums if value.kind == KL}

    def divergences(self) -> Iterator[tuple[KlCall | KlFormula, Divergence]]:
        for event in (*self.of(KlCall), *self.of(KlFormula)):
            yield event, event.divergence


class Rule:
    """Subclass, set the names, write `look`, or `check` where a finding depends on several events.

    The rule is asked only about files that have an event of one of the classes in `events`. A page
    `pages/<code>.md` and fixtures `tests/lint/fixtures/<code>_*.py` go with it."""

    code: ClassVar[str]
    name: ClassVar[str]
    summary: ClassVar[str]
    severity: ClassVar[str] = WARNING
    fixable: ClassVar[bool] = False
    events: ClassVar[tuple[type[Any], ...]]

    def check(self, module: Module) -> Iterator[Report]:
        """What the rule says about a file."""
        for kind in self.events:
            for event in module.of(kind):
                yield from self.look(event, module)

    def look(self, event: Any, module: Module) -> Iterator[Report]:
        """What the rule says about one event."""
        raise NotImplementedError

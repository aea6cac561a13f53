"""What the data flow saw, as rules read it. Each event carries its node, the values around it, and where it stands."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from .catalog import Api
from .values import UNKNOWN, Divergence, Value


@dataclass
class Place:
    """Where an event happened."""

    function: ast.AST | None = None  # the innermost def or lambda
    outer: tuple[ast.AST, ...] = ()  # the defs around it, outermost first
    no_grad: bool = False
    conditions: tuple[ast.expr, ...] = ()  # tests of the ifs around it


@dataclass
class Arguments:
    """A call's arguments by parameter name; `open` when *args or **kwargs may add more."""

    nodes: dict[str, ast.expr] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    open: bool = False

    def value(self, name: str) -> Value:
        return self.values.get(name, UNKNOWN)


@dataclass
class KlCall:
    """A call of a library's KL function, or of an object that is one."""

    node: ast.Call
    api: Api
    arguments: Arguments  # input and target
    options: Arguments  # reduction, log_target: of the call, or of the object's creation
    created: ast.Call  # where options stand: the call itself, or the object's creation
    divergence: Divergence
    place: Place


@dataclass
class KlFormula:
    """A KL written out: p * log(p / q), a Gaussian's closed form, or k3."""

    node: ast.expr
    divergence: Divergence
    place: Place
    form: str = ""  # of k3: "exp" as exp(x) - x - 1, "named" with the exponential under a name, "expm1" as expm1(x) - x


@dataclass
class Made:
    """An object that computes a KL was created."""

    node: ast.Call
    api: Api
    options: Arguments
    place: Place


@dataclass
class Operation:
    """A known operation: `softmax`, `log`, `mean`, ...; the first operand may be the receiver of a method."""

    node: ast.Call
    library: str
    name: str
    nodes: tuple[ast.expr, ...]
    values: tuple[Value, ...]
    keywords: dict[str, ast.expr]
    result: Value
    place: Place
    open: bool = False
    method: bool = False
    keyword_values: dict[str, Value] = field(default_factory=dict)

    @property
    def axis(self) -> ast.expr | None:
        """The argument that names the axis, or None if there is none."""
        second = self.nodes[1] if len(self.nodes) > 1 else None
        return self.keywords.get("dim", self.keywords.get("axis", second))


@dataclass
class Sum:
    """a + b - c, with signs."""

    node: ast.AST
    terms: tuple[tuple[int, ast.expr | None, Value], ...]
    place: Place
    target: str = ""


@dataclass
class Quotient:
    """value / divisor."""

    node: ast.AST
    value: Value
    divisor: ast.expr
    divisor_value: Value
    place: Place


@dataclass
class Product:
    """A KL times other factors."""

    node: ast.AST
    value: Value
    others: tuple[tuple[ast.expr, Value], ...]
    place: Place


@dataclass
class Bound:
    """A value got a name, was returned, or was put under a key."""

    node: ast.AST
    name: str
    value: Value
    expression: ast.expr | None
    place: Place


@dataclass
class Selected:
    """value[mask], or where(condition, value, other)."""

    node: ast.AST
    value: Value
    condition: ast.expr
    condition_value: Value
    place: Place


@dataclass
class Local:
    """A call of one of the file's own functions."""

    node: ast.Call
    function: Any
    nodes: tuple[ast.expr, ...]
    values: tuple[Value, ...]
    place: Place


@dataclass
class Created:
    """An object of another library's class: a layer, a distribution."""

    node: ast.Call
    name: str
    args: tuple[Value, ...]
    keywords: dict[str, Value]
    place: Place


@dataclass
class Compiled:
    """model.compile(loss=...) of Keras, with what the model's last layer gives."""

    node: ast.Call
    loss: ast.expr
    loss_value: Value
    output: Value
    place: Place

"""Expressions of the data flow: names, attributes, arithmetic.

Sums and products are flattened, so that formulas are seen whole and long chains cost no recursion. Calls are in `calls`.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from .calls import Calls
from .events import KlFormula, Product, Quotient, Selected, Sum
from .formulas import gaussian, k3
from .values import (
    CLASS, CONSTANT, COUNTS, DENSITY, FUNCTION, GAUSSIAN, HARD, INSTANCE, KL, LOG_PROBS, LOG_RATIO, LOGITS, METHOD, MODULE, NUMBERS, OBJECT, ONE_HOT,
    PROBS, ROWS, SAMPLES, SCALAR, SIGMOID, TERMS, TUPLE, UNKNOWN, Divergence, Value, constant, join, role_of,
)  # fmt: skip

_DEEPEST = 60  # expressions within expressions; deeper ones are unknown
_SMALL = 1e-2  # a constant this small that is added is a guard against zero

# What may stand in the p / q of a KL; for LOGITS divided by something unknown, that is a temperature.
_RATIOS = (PROBS, ONE_HOT, DENSITY, COUNTS, SIGMOID, SAMPLES, METHOD, "")

Term = tuple[int, ast.expr | None, Value]


class Expressions(Calls):
    """`value(node)` is what is known of an expression."""

    def __init__(self) -> None:
        super().__init__()
        self.within = 0
        self.handlers: dict[type, Any] = {}

    def value(self, node: ast.expr) -> Value:
        handler = self.handlers.get(type(node))
        if handler is None and type(node) not in self.handlers:
            handler = self.handlers[type(node)] = getattr(self, f"of_{type(node).__name__}", None)
        if self.within > _DEEPEST:
            return UNKNOWN
        self.within += 1
        try:
            if handler is not None:
                return handler(node)  # type: ignore[no-any-return]
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.value(child)
            return UNKNOWN
        finally:
            self.within -= 1

    # Names and attributes.

    def lookup(self, name: str) -> Value:
        for scope in reversed(self.scopes):
            found = scope.values.get(name)
            if found is not None:
                return found
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
                    return found.returns or UNKNOWN  # type: ignore[no-any-return]
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
        return Value(TUPLE, data=tuple(self.value(e) for e in node.elts[:1000]))

    def of_List(self, node: ast.List) -> Value:
        return Value(TUPLE, data=tuple(self.value(e) for e in node.elts[:1000]))

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
                self.bound_key(node, key.value, found, value)
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

    # Arithmetic.

    def key(self, value: Value, node: ast.expr | None) -> str:
        """A name for what the expression is about: log(p), p and exp(log_p) share one."""
        return value.of or (self.text(node) if node is not None else "")

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

    def of_BinOp(self, node: ast.BinOp) -> Value:
        return self.binary(node)

    def binary(self, node: ast.BinOp) -> Value:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            terms = [(sign, part, self.value(part)) for sign, part in flatten_sum(node)]
            self.record(Sum(node, tuple(terms), self.place))
            return self.add_terms(terms, node)
        if isinstance(node.op, (ast.Mult, ast.Div)):
            return self.multiply(node)
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Pow) and left.kind == KL and left.data.api == "jensenshannon":
            return UNKNOWN
        if isinstance(node.op, ast.Pow) and left.kind == CONSTANT and right.kind == CONSTANT:
            return UNKNOWN
        if isinstance(node.op, ast.MatMult) and left.kind == PROBS == right.kind:
            return UNKNOWN
        return Value(data=node)

    def of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if not isinstance(node.op, ast.USub):
            return UNKNOWN
        if value.kind == CONSTANT and isinstance(value.data, (int, float)):
            return constant(-value.data)
        if value.kind == LOG_RATIO:
            return value.having(data=(value.data[1], value.data[0]), of="", exp_of="")
        if value.kind in (KL, LOGITS, HARD):
            return value
        return UNKNOWN

    def add_terms(self, terms: list[Term], node: ast.AST) -> Value:
        keyed = [(sign, part, value) for sign, part, value in terms]
        found = gaussian(keyed)
        if found:
            return self.formula(node, Divergence(Value(GAUSSIAN), UNKNOWN, node, TERMS, family="gaussian"))
        estimate = k3(keyed, self.key)
        if estimate is not None:
            written, argument = estimate
            detached = self.place.no_grad or argument.detached
            return self.formula(node, Divergence(argument, UNKNOWN, node, TERMS, family="k3"), form=written, detached=detached)
        values = [value for _, _, value in terms]
        kinds = {value.kind for value in values}
        if len(terms) == 2:
            pair = self._two(terms)
            if pair is not None:
                return pair
        if HARD in kinds:
            return Value(HARD)
        if KL in kinds and kinds <= {KL, CONSTANT}:
            first = next(value for value in values if value.kind == KL)
            if kinds == {KL}:
                return first
            return UNKNOWN  # a margin was taken off, or something added
        roles = {value.role for value in values} - {""}
        role = roles.pop() if len(roles) == 1 else ""
        return Value(role=role, data=node if len(terms) < 6 else None)

    def _two(self, terms: list[Term]) -> Value | None:
        (sign, a_node, a), (other_sign, b_node, b) = terms
        if sign < 0:
            return None
        for value, other in ((a, b), (b, a)):
            if other.kind == CONSTANT and isinstance(other.data, (int, float)) and value is not other:
                if value.kind in (PROBS, COUNTS, DENSITY, ONE_HOT, SIGMOID) and 0 < other.data <= max(_SMALL, float(value.kind == COUNTS)):
                    return value.having(positive=True, zeros=False, softmax=False)
                if value.kind in (LOGITS, SAMPLES):
                    return value.having(of="", exp_of="")
                if value.of.startswith("sum(") and abs(other.data) <= _SMALL:
                    return value
                if not value and 0 < abs(other.data) <= _SMALL:
                    return value.having(positive=True)
        if other_sign > 0:
            parts = a.mixture + b.mixture
            if len(a.mixture) == 1 == len(b.mixture) and parts[0] != parts[1]:
                return Value(PROBS if a.kind == PROBS == b.kind else "", mixture=parts)
            if (a.kind == b.kind == PROBS) or (not a and not b and a_node is not None and b_node is not None):
                whole = (self.key(a, a_node), self.key(b, b_node))
                return Value(mixture=("sum", *whole), data=(a, b), role="")
            if LOGITS in (a.kind, b.kind) and {a.kind, b.kind} <= {LOGITS, ""}:
                return Value(LOGITS, role=a.role or b.role)
            return None
        if a.of.startswith("logsumexp(") or (b.of.startswith("logsumexp(") and b.of == f"logsumexp({self.key(a, a_node)})"):
            return Value(LOG_PROBS, role=a.role, temperature=a.temperature, of=f"softmax({self.key(a, a_node)})")
        if (a.log_of or a.kind == LOG_PROBS) and (b.log_of or b.kind == LOG_PROBS):
            return Value(LOG_RATIO, data=((self.key(a, a_node), a), (self.key(b, b_node), b)))
        return None

    def multiply(self, node: ast.BinOp) -> Value:
        above, below = flatten_product(node)
        over = [(part, self.value(part)) for part in above]
        under = [(part, self.value(part)) for part in below]
        values = [value for _, value in over]
        numbers = [v for v in values if v.kind == CONSTANT and isinstance(v.data, (int, float)) and not isinstance(v.data, bool)]
        rest = [(part, value) for part, value in over if value not in numbers or value.kind != CONSTANT]
        # A KL, scaled.
        scaled = next(((part, value) for part, value in rest if value.kind == KL), None)
        if scaled is not None and sum(value.kind == KL for value in values) > 1:
            return UNKNOWN
        if scaled is not None:
            return self._scaled(node, scaled, [pair for pair in rest if pair[0] is not scaled[0]], under, numbers)
        hard = next((value for _, value in rest if value.kind == HARD), None)
        if hard is not None:
            return hard
        # p · log(p / q)
        for part, value in rest:
            if value.kind == LOG_RATIO:
                (p_key, p), (q_key, q) = value.data
                for other, weight in rest:
                    if other is part:
                        continue
                    key = self.key(weight, other)
                    extra = len(rest) > 2 or bool(under)
                    # (n - 1) * (log(n) - log(n - 1)) is arithmetic of numbers, not of distributions.
                    if key in (p_key, q_key) and not isinstance(other, (ast.BinOp, ast.Constant)):
                        first, second = (p, q) if key == p_key else (q, p)
                        first = _merge(first, weight)
                        keys = (p_key, q_key) if key == p_key else (q_key, p_key)
                        made = Divergence(first, _unlog(second), node, TERMS, scaled=extra, p_key=keys[0], q_key=keys[1])
                        return self.formula(node, made)
        if len(rest) == 1:
            return self._single(node, rest[0], numbers, under)
        if not under and len(rest) == 2:
            (a_node, a), (b_node, b) = rest
            for (_, one), (_, other) in (((a_node, a), (b_node, b)), ((b_node, b), (a_node, a))):
                if one.kind == PROBS and one.softmax and not other:
                    return Value(role=one.role, data=node)
        roles = {value.role for value in values} - {""}
        return Value(role=roles.pop() if len(roles) == 1 else "", data=node if len(over) + len(under) < 6 else None)

    def _scaled(
        self,
        node: ast.BinOp,
        scaled: tuple[ast.expr, Value],
        others: list[tuple[ast.expr, Value]],
        under: list[tuple[ast.expr, Value]],
        numbers: list[Value],
    ) -> Value:
        value = scaled[1]
        made: Divergence = value.data
        for divisor, divisor_value in under:
            self.record(Quotient(node, value, divisor, divisor_value, self.place))
        if others:
            self.record(Product(node, value, tuple(others), self.place))
        temperature = made.p.temperature or made.q.temperature
        powers = sum(self.powers(part, found, temperature) for part, found in others) if temperature else 0
        if temperature and any(_squared(temperature, n.data) for n in numbers):
            powers = 2
        outside = [v for _, v in [*others, *under] if not (v.kind == CONSTANT)]
        changed = replace(made, powers_of_t=made.powers_of_t + powers, scaled=made.scaled or bool(outside))
        return value.having(data=changed)

    def powers(self, node: ast.expr, value: Value, temperature: str) -> int:
        """How often the temperature stands in a factor, through one assignment."""
        defined = value.data if isinstance(value.data, ast.AST) else None
        texts = [self.text(node)] + ([self.text(defined)] if defined is not None else [])
        bare = temperature.rsplit(".", 1)[-1]
        most = 0
        for text in texts:
            compact = text.replace(" ", "")
            count = sum(compact.count(t) for t in {temperature.replace(" ", "")} or {bare})
            if (
                f"{temperature.replace(' ', '')}**2" in compact
                or f"{temperature.replace(' ', '')}.pow(2)" in compact
                or "square(" in compact
            ):
                count = max(count, 2)
            most = max(most, count)
        return most

    def _single(self, node: ast.BinOp, one: tuple[ast.expr, Value], numbers: list[Value], under: list[tuple[ast.expr, Value]]) -> Value:
        """One quantity with numbers and divisors: a temperature, a normalisation, a quotient, half of a mixture."""
        part, value = one
        factor = 1.0
        for number in numbers:
            factor *= float(number.data)
        for _, divisor in under:
            known = divisor.kind == CONSTANT and isinstance(divisor.data, (int, float)) and divisor.data
            factor = factor / float(divisor.data) if known else 0.0
        half = factor == 0.5
        if half and value.mixture[:1] == ("sum",) and isinstance(value.data, tuple):
            a, b = value.data
            return Value(PROBS if a.kind == PROBS == b.kind else "", mixture=value.mixture[1:], positive=a.positive and b.positive)
        if half and (value.kind in (PROBS, "")):
            return Value(value.kind, mixture=(self.key(value, part),), role=value.role)
        if len(under) == 1:
            return self._quotient(node, part, value, *under[0], bool(numbers))
        if not under and numbers:
            if value.kind in (LOGITS, SAMPLES):
                return value.having(of="", exp_of="", temperature=value.temperature)
            if value.kind == LOG_RATIO:
                return value
            return Value(role=value.role, data=node)
        return Value(role=value.role)

    def _quotient(self, node: ast.BinOp, part: ast.expr, value: Value, divisor: ast.expr, by: Value, numbers: bool) -> Value:
        key = self.key(value, part)
        if (
            not numbers
            and by.of in (f"sum({key})", f"len({key})")
            or (by.of.startswith("sum(") and value.kind in (COUNTS, ONE_HOT) and by.of[4:-1] == key)
        ):
            return Value(
                PROBS, value.role, zeros=value.zeros or value.kind == COUNTS, positive=value.positive, rank=value.rank, bins=value.bins
            )
        if not numbers and by.of == f"logsumexp({key})":
            return UNKNOWN
        if value.kind == COUNTS and by.kind not in NUMBERS:
            # Counts over a total that was not followed: shares, by all appearances, but not known to be.
            return Value("", value.role, bins=value.bins, zeros=value.zeros)
        if value.kind in (LOGITS, LOG_PROBS, SAMPLES):
            temperature = "" if by.kind == CONSTANT and by.data == 1 else self.text(divisor)
            if by.kind in (CONSTANT, "", METHOD):
                return Value(
                    LOGITS if value.kind != SAMPLES else SAMPLES,
                    value.role,
                    temperature=temperature,
                    rank=value.rank,
                    detached=value.detached,
                )
        if not value and by.kind == CONSTANT:
            return Value(role=value.role, temperature="" if by.data == 1 else self.text(divisor), data=node, detached=value.detached)
        if value.kind in _RATIOS and by.kind in _RATIOS:
            return Value(
                role=value.role if not by.role else "",
                temperature=self.text(divisor),
                data=("quotient", (key, value), (self.key(by, divisor), by)),
                detached=value.detached,
            )
        return Value(role=value.role)

    def formula(self, node: Any, divergence: Divergence, form: str = "", detached: bool = False) -> Value:
        self.record(KlFormula(node, divergence, self.place, form))
        return Value(KL, data=divergence, detached=detached)


def _squared(temperature: str, number: float) -> bool:
    try:
        return float(temperature) ** 2 == number
    except ValueError:
        return False


def _merge(logged: Value, weight: Value) -> Value:
    """What is known of p from both its places in p · log p."""
    found = weight if weight else _unlog(logged)
    positive = logged.positive or weight.positive or logged.kind == LOG_PROBS
    return found.having(positive=positive, role=weight.role or logged.role, temperature=weight.temperature or logged.temperature)


def _unlog(value: Value) -> Value:
    return value.having(kind=PROBS, positive=True) if value.kind == LOG_PROBS else value


def flatten_sum(node: ast.BinOp) -> list[tuple[int, ast.expr]]:
    """The signed terms of a + b - c, in order."""
    terms: list[tuple[int, ast.expr]] = []
    stack: list[tuple[int, ast.expr]] = [(1, node)]
    while stack:
        sign, part = stack.pop()
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub)):
            stack.append((sign if isinstance(part.op, ast.Add) else -sign, part.right))
            stack.append((sign, part.left))
        elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub) and not isinstance(part.operand, ast.Constant):
            stack.append((-sign, part.operand))
        else:
            terms.append((sign, part))
    return terms


def flatten_product(node: ast.BinOp) -> tuple[list[ast.expr], list[ast.expr]]:
    """Factors and divisors of a * b / c, in order; divisors that are sums or products stay whole."""
    above: list[ast.expr] = []
    below: list[ast.expr] = []
    stack: list[tuple[bool, ast.expr]] = [(True, node)]
    while stack:
        up, part = stack.pop()
        if up and isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Mult, ast.Div)):
            stack.append((isinstance(part.op, ast.Mult), part.right))
            stack.append((True, part.left))
        else:
            (above if up else below).append(part)
    return above, below


def _indexed_rank(index: ast.expr) -> int | None:
    """How many axes x[...] shows: x[:, :-1, :] has three, whatever x is, where each part is a slice."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if len(parts) >= 3 and all(isinstance(p, ast.Slice) for p in parts):
        return len(parts)
    return None


__all__ = ["CLASS", "ROWS", "SCALAR", "Expressions", "flatten_product", "flatten_sum"]

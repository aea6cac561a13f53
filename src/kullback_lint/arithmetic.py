"""Arithmetic of the data flow: what sums, products and quotients of known values are.

Sums and products are flattened, so that formulas are seen whole and long chains cost no recursion.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from .calls import Calls
from .events import KlFormula, Product, Quotient, Sum
from .formulas import Term, gaussian, k3
from .values import (
    CONSTANT,
    COUNTS,
    DENSITY,
    GAUSSIAN,
    HARD,
    KL,
    LOG_PROBS,
    LOG_RATIO,
    LOGITS,
    METHOD,
    NUMBERS,
    ONE_HOT,
    PROBS,
    SAMPLES,
    SIGMOID,
    TERMS,
    UNKNOWN,
    Divergence,
    Value,
    constant,
)  # fmt: skip

_SMALL = 1e-2  # a constant this small that is added is a guard against zero
# What may stand in the p / q of a KL; for LOGITS divided by something unknown, that is a temperature.
_RATIOS = (PROBS, ONE_HOT, DENSITY, COUNTS, SIGMOID, SAMPLES, METHOD, "")


class Arithmetic(Calls):
    """Mixed into the flow; `binary` is its entry."""

    def of_BinOp(self, node: ast.BinOp) -> Value:
        return self.binary(node)

    def binary(self, node: ast.BinOp) -> Value:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            terms: list[Term] = [(sign, part, self.value(part)) for sign, part in flatten_sum(node)]
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
                return Value(mixture=("sum", *whole), data=(_plain(a), _plain(b)), role="")
            if LOGITS in (a.kind, b.kind) and {a.kind, b.kind} <= {LOGITS, ""}:
                return Value(LOGITS, role=a.role or b.role)
            return None
        if a.of.startswith("logsumexp(") or (b.of.startswith("logsumexp(") and b.of == f"logsumexp({self.key(a, a_node)})"):
            return Value(LOG_PROBS, role=a.role, temperature=a.temperature, of=f"softmax({self.key(a, a_node)})")
        if b.log_of == f"sum({self.key(a, a_node)})":
            return UNKNOWN  # log p - log(sum of p) normalises; there is no second distribution
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
            constants = [pair for pair in over if pair[1].kind == CONSTANT and pair not in rest]
            return self._scaled(node, scaled, [pair for pair in rest if pair[0] is not scaled[0]], under, constants)
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
        roles = {value.role for value in values} - {""}
        return Value(role=roles.pop() if len(roles) == 1 else "", data=node if len(over) + len(under) < 6 else None)

    def _scaled(
        self,
        node: ast.BinOp,
        scaled: tuple[ast.expr, Value],
        others: list[tuple[ast.expr, Value]],
        under: list[tuple[ast.expr, Value]],
        numbers: list[tuple[ast.expr, Value]],
    ) -> Value:
        value = scaled[1]
        made: Divergence = value.data
        for divisor, divisor_value in under:
            self.record(Quotient(node, value, divisor, divisor_value, self.place))
        if others:
            self.record(Product(node, value, tuple(others), self.place))
        temperature = made.p.temperature or made.q.temperature
        powers = sum(self.powers(part, found, temperature) for part, found in [*others, *numbers]) if temperature else 0
        if temperature and any(_squared(temperature, n.data) for _, n in numbers):
            powers = 2
        outside = [v for _, v in [*others, *under] if v.kind != CONSTANT]
        changed = replace(made, powers_of_t=made.powers_of_t + powers, scaled=made.scaled or bool(outside))
        return value.having(data=changed)

    def powers(self, node: ast.expr, value: Value, temperature: str) -> int:
        """How often the temperature stands in a factor, through one assignment."""
        wanted = temperature.replace(" ", "")
        if isinstance(node, ast.Constant):
            return int(self.text(node) == wanted)  # "4.0" is not in 14.0
        most = 0
        for part in (node, value.data):
            if isinstance(part, ast.AST):
                compact = self.text(part).replace(" ", "")
                squared = f"{wanted}**2" in compact or f"{wanted}.pow(2)" in compact or "square(" in compact
                most = max(most, compact.count(wanted), 2 if squared else 0)
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
        if (not numbers and by.of in (f"sum({key})", f"len({key})")) or (
            by.of.startswith("sum(") and value.kind in (COUNTS, ONE_HOT) and by.of[4:-1] == key
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
                data=("quotient", (key, _plain(value)), (self.key(by, divisor), _plain(by))),
                detached=value.detached,
            )
        return Value(role=value.role)

    def formula(self, node: Any, divergence: Divergence, form: str = "", detached: bool = False) -> Value:
        self.record(KlFormula(node, divergence, self.place, form))
        return Value(KL, data=divergence, detached=detached)


def _plain(value: Value) -> Value:
    """Without what it was made from: a thousand divisions in a row must not nest a thousand deep."""
    return value.having(data=None) if isinstance(value.data, tuple) else value


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

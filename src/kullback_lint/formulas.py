"""Closed forms recognised in sums: the Gaussian KL of a VAE, and the k3 estimator."""

from __future__ import annotations

import ast
from collections.abc import Callable

from .values import CONSTANT, Value

Term = tuple[int, ast.expr | None, Value]


def _is_number(value: Value, number: float) -> bool:
    return value.kind == CONSTANT and not isinstance(value.data, bool) and isinstance(value.data, (int, float)) and value.data == number


def _called(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_square(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return isinstance(node.right, ast.Constant) and node.right.value in (2, 2.0)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.dump(node.left) == ast.dump(node.right)
    name = _called(node)
    if name in ("pow", "pow_", "power"):
        return (
            isinstance(node, ast.Call) and bool(node.args) and isinstance(node.args[-1], ast.Constant) and node.args[-1].value in (2, 2.0)
        )
    return name in ("square", "square_")


def is_exp(node: ast.expr | None) -> bool:
    return _called(node) in ("exp", "exp_")


def gaussian(terms: list[Term]) -> bool:
    """1 + log σ² − μ² − σ² with either sign: minus twice the KL of N(μ, σ²) from N(0, 1), coordinate by coordinate."""
    if len(terms) != 4:
        return False
    ones = [(sign, node) for sign, node, value in terms if _is_number(value, 1)]
    if len(ones) != 1:
        return False
    sign, one = ones[0]
    against = [node for s, node, _ in terms if s == -sign]
    beside = [node for s, node, _ in terms if s == sign and node is not one]
    if len(against) != 2 or len(beside) != 1:
        return False
    squares = [node for node in against if is_square(node)]
    if is_exp(beside[0]) or is_square(beside[0]):
        return False
    variance = [node for node in against if is_exp(node)]
    if len(squares) == 1 and len(variance) == 1:
        return True
    return len(squares) == 2 and "log" in _called(beside[0])


def k3(terms: list[Term], key: Callable[[Value, ast.expr | None], str]) -> tuple[str, Value] | None:
    """exp(x) − x − 1, or expm1(x) − x: which (see `KlFormula`), and what is known of x; None where neither stands there."""
    if terms[0][0] == 1 and terms[0][2].exp_of.startswith("expm1:"):
        argument = terms[0][2].exp_of[6:]
        if len(terms) == 2 and terms[1][0] == -1:
            return ("expm1", terms[1][2]) if argument == key(terms[1][2], terms[1][1]) else None
        return ("expm1", Value()) if _is_opened(terms[1:], argument) else None
    if len(terms) != 3 and not (len(terms) == 4 and sum(s for s, _, _ in terms) <= 0):
        return None
    exps = [(node, value) for sign, node, value in terms if sign == 1 and value.exp_of]
    ones = [1 for sign, _, value in terms if sign == -1 and _is_number(value, 1)]
    if len(exps) != 1 or len(ones) != 1:
        return None
    node, value = exps[0]
    rest = [(s, n, v) for s, n, v in terms if n is not node and not (s == -1 and _is_number(v, 1))]
    if len(rest) == 1 and rest[0][0] == -1 and rest[0][1] is not None:
        same = key(rest[0][2], rest[0][1]) == value.exp_of or ast.unparse(rest[0][1]) == value.exp_of
        return ("exp" if is_exp(node) else "named", rest[0][2]) if same else None
    return ("exp" if is_exp(node) else "named", Value()) if _is_opened(rest, value.exp_of) else None


def _is_opened(terms: list[Term], argument: str) -> bool:
    """−(a − b) arrives with its bracket opened, as −a + b."""
    if len(terms) != 2 or sorted(sign for sign, _, _ in terms) != [-1, 1]:
        return False
    minus, plus = sorted(terms, key=lambda term: term[0])
    return minus[1] is not None and plus[1] is not None and f"{ast.unparse(minus[1])} - {ast.unparse(plus[1])}" == argument

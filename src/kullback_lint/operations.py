"""What known operations do to what is known: the transfer functions of the data flow.

One small function an operation, the same for every library. Shapes and axes are followed only as far as a rule asks.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .call import Call
from .events import Selected
from .values import (
    CONSTANT,
    COUNTS,
    DENSITY,
    HARD,
    KL,
    LABELS,
    LOG_PROBS,
    LOG_RATIO,
    LOGITS,
    NUMBERS,
    OBJECT,
    ONE_HOT,
    PROBS,
    ROWS,
    SAMPLES,
    SCALAR,
    SIGMOID,
    TERMS,
    TUPLE,
    UNKNOWN,
    Made,
    Value,
    constant,
    join,
)  # fmt: skip


def transfer(flow: Any, operation: str, call: Call) -> Value:
    handler = _TRANSFER.get(operation)
    return UNKNOWN if handler is None else handler(_Seen(flow, call))


class _Seen:
    """A call and the flow around it, as the transfer functions see them."""

    def __init__(self, flow: Any, call: Call) -> None:
        self.flow, self.node = flow, call.node
        self.nodes, self.args, self.keyword_nodes, self.keywords = call.nodes, call.args, call.keyword_nodes, call.keywords
        self.first, self.axis = call.first, call.axis

    def key(self) -> str:
        return self.flow.key(self.args[0], self.nodes[0])  # type: ignore[no-any-return]


def _softmax(c: _Seen) -> Value:
    x, axis = c.first, c.axis()
    rank = x.rank
    return Value(
        PROBS, x.role, temperature=x.temperature, positive=True, rank=rank, axis=axis if isinstance(axis, int) else None, softmax=True,
        of=f"softmax({c.key()})", detached=x.detached or c.flow.place.no_grad,
    )  # fmt: skip


def _log_softmax(c: _Seen) -> Value:
    return _softmax(c).having(kind=LOG_PROBS, softmax=False, log_of=f"softmax({c.key()})")


def _log(c: _Seen) -> Value:
    x = c.first
    if isinstance(x.data, tuple) and x.data[:1] == ("quotient",):
        return Value(LOG_RATIO, data=(x.data[1], x.data[2]))
    if x.kind in (PROBS, SIGMOID):
        return x.having(kind=LOG_PROBS if x.kind == PROBS else "", softmax=False, log_of=c.key(), of=c.key(), positive=x.positive)
    if x.kind in (COUNTS, DENSITY, ONE_HOT, ""):
        return Value("", x.role, log_of=c.key(), of=c.key(), positive=x.positive, temperature=x.temperature, mixture=x.mixture)
    return Value(role=x.role, log_of=c.key(), of=c.key())


def _exp(c: _Seen) -> Value:
    x = c.first
    if x.kind == LOG_PROBS:
        return x.having(kind=PROBS, of=x.of or c.key(), exp_of=c.key(), log_of="", softmax=False)
    text = c.key() if not x.of else x.of
    return Value("", x.role, exp_of=text, positive=False, detached=x.detached, of=x.of if x.log_of else "")


def _sum(c: _Seen) -> Value:
    x = c.first
    if x.kind == TUPLE and x.data:
        return UNKNOWN
    if x.kind == KL:
        made = x.data
        if made.summed == TERMS:
            axis = c.axis()
            return x.having(data=replace(made, summed=SCALAR if axis is None else ROWS))
        return x.having(data=replace(made, summed=SCALAR if c.axis() is None else made.summed))
    if x.kind == HARD:
        return x
    return Value(of=f"sum({c.key()})")


def _mean(c: _Seen) -> Value:
    x, axis = c.first, c.axis()
    if x.kind == KL:
        made = x.data
        if made.summed == TERMS and axis == 0:
            return x
        return x.having(data=replace(made, summed=SCALAR if axis is None else ROWS, averaged=made.averaged or made.summed == TERMS))
    if x.kind == HARD:
        return x
    if axis is not None and x.kind in (PROBS, LOGITS):
        return Value(x.kind, x.role)
    return Value(role=x.role)


def _clip(c: _Seen) -> Value:
    x = c.first
    if x.kind in (PROBS, COUNTS, DENSITY, ONE_HOT, SIGMOID):
        return x.having(positive=True, zeros=False, softmax=False)
    if x.kind in (LOG_PROBS, LOGITS, KL, HARD):
        return x
    return Value(role=x.role, positive=True)


def _keep(c: _Seen) -> Value:
    x = c.first
    if x.kind in NUMBERS:
        return x.having(rank=None, axis=x.axis)
    return x if x.kind in (KL, HARD, TUPLE) or not x else Value(role=x.role)


def _detach(c: _Seen) -> Value:
    return _keep(c).having(detached=True)


def _reshape(c: _Seen) -> Value:
    x = c.first
    sizes = c.args[1:]
    if len(sizes) == 1 and sizes[0].kind == TUPLE:
        sizes = list(sizes[0].data)
    rank = len(sizes) if len(sizes) > 1 and not any(isinstance(n, ast.Starred) for n in c.nodes) else None
    if x.kind in NUMBERS:
        return x.having(rank=rank, axis=x.axis if x.axis == -1 else None)
    return Value(role=x.role, rank=rank) if not x else x if x.kind in (KL, HARD) else Value(role=x.role)


def _tensor(c: _Seen) -> Value:
    """tensor([[0.1, 0.9]]): numbers written out, judged by what they are."""
    x = c.first
    if x.kind in NUMBERS:
        return x
    rows = _numbers(c.nodes[0])
    if rows is None:
        return Value(role=x.role)
    rank, flat, row = rows
    if len(row) > 1 and all(n >= 0 for n in flat) and abs(sum(row) - 1) < 1e-6:
        return Value(PROBS, literal=True, rank=rank, zeros=0 in flat, positive=0 not in flat)
    if any(n < 0 for n in flat):
        return Value(LOGITS, literal=True, rank=rank) if any(n > 0 for n in flat) else Value(literal=True, rank=rank)
    if len(row) > 1 and sum(row) > 1.5 and all(float(n).is_integer() for n in flat) and rank == 1:
        return Value("", literal=True, rank=rank)
    return Value(literal=True, rank=rank, positive=all(n > 0 for n in flat))


def _numbers(node: ast.expr) -> tuple[int, list[float], list[float]] | None:
    """Rank, all numbers, and one innermost row of a list written out."""
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    rank, row = 0, found
    while isinstance(row, (list, tuple)) and row:
        rank, inner = rank + 1, row
        row = row[0]
    if not rank or not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in inner):
        return None
    flat: list[float] = []
    stack: list[Any] = [found]
    while stack:
        part = stack.pop()
        if isinstance(part, (list, tuple)):
            stack.extend(part)
        elif isinstance(part, (int, float)):
            flat.append(part)
        else:
            return None
    return rank, flat, list(inner)


def _where(c: _Seen) -> Value:
    if len(c.args) < 3:
        return UNKNOWN
    a, b = c.args[1], c.args[2]
    for value, other in ((a, b), (b, a)):
        if value.kind == KL and other.kind != KL:
            c.flow.record(Selected(c.node, value, c.nodes[0], c.args[0], c.flow.place))
            return value.having(data=replace(value.data, scaled=True))
        if value.kind in (LOGITS, LOG_PROBS) and other.kind in (CONSTANT, ""):
            return Value(value.kind, value.role) if other.kind == CONSTANT else UNKNOWN
        if value.kind in (PROBS, COUNTS) and other.kind == CONSTANT:
            return Value("", value.role, positive=True)
    return join(a, b)


def _hist(c: _Seen) -> Value:
    bins = c.keyword_nodes.get("bins", c.nodes[1] if len(c.nodes) > 1 else None)
    span = c.keyword_nodes.get("range", c.keyword_nodes.get("min", c.nodes[2] if len(c.nodes) > 2 else None))
    density = any(c.keywords.get(k, UNKNOWN).data is True for k in ("density", "normed"))
    edges = "" if bins is None else c.flow.text(bins)
    known = c.keywords.get("bins", c.args[1] if len(c.args) > 1 else UNKNOWN)
    automatic = span is None and (bins is None or (known.kind == CONSTANT and isinstance(known.data, (int, str))))
    data = c.flow.text(c.nodes[0])
    # Edges that depend on the data are named after it, also where a second histogram borrows them.
    own = f"edges of {data}"
    key = (
        own
        if automatic
        else known.of
        if known.of.startswith("edges of ")
        else "given: " + edges + ("" if span is None else c.flow.text(span))
    )
    counted = Value(DENSITY if density else COUNTS, zeros=True, bins=(key, data))
    if any(k in c.keyword_nodes for k in ("weights",)):
        counted = Value(zeros=True)
    if isinstance(c.node.func, ast.Attribute) and c.node.func.attr == "histc":
        return counted
    return Value(TUPLE, data=(counted, Value(of=key)))


def _one_hot(c: _Seen) -> Value:
    return Value(ONE_HOT, zeros=True)


def _select(c: _Seen) -> Value:
    x = c.first
    return Value(role=x.role, log_of=x.log_of, detached=x.detached) if x.kind == LOG_PROBS else Value(role=x.role)


def _joined(c: _Seen) -> Value:
    x = c.first
    if x.kind == TUPLE and x.data:
        found = x.data[0]
        for other in x.data[1:]:
            found = join(found, other)
        return found.having(rank=None, axis=None) if found.kind in NUMBERS else UNKNOWN
    return UNKNOWN


def _topk(c: _Seen) -> Value:
    x = c.first
    kept = Value(x.kind, x.role) if x.kind in (LOGITS, LOG_PROBS) else UNKNOWN
    return Value(TUPLE, data=(kept, Value(LABELS)))


def _masked_fill(c: _Seen) -> Value:
    x = c.first
    if x.kind == KL:
        return x.having(data=replace(x.data, scaled=True))
    return x if x.kind in (LOGITS, LOG_PROBS) else Value(role=x.role)


def _nan_to_num(c: _Seen) -> Value:
    return c.first


def _abs(c: _Seen) -> Value:
    return c.first if c.first.kind == KL else UNKNOWN


def _divide(c: _Seen) -> Value:
    if len(c.args) < 2:
        return UNKNOWN
    node = ast.copy_location(ast.BinOp(c.nodes[0], ast.Div(), c.nodes[1]), c.node)
    return _quietly(c, node)


def _multiply(c: _Seen) -> Value:
    if len(c.args) < 2:
        return UNKNOWN
    return _quietly(c, ast.copy_location(ast.BinOp(c.nodes[0], ast.Mult(), c.nodes[1]), c.node))


def _subtract(c: _Seen) -> Value:
    if len(c.args) < 2:
        return UNKNOWN
    return _quietly(c, ast.copy_location(ast.BinOp(c.nodes[0], ast.Sub(), c.nodes[1]), c.node))


def _logical_and(c: _Seen) -> Value:
    """The condition, as `a & b` would be."""
    if len(c.args) < 2:
        return UNKNOWN
    node = ast.fix_missing_locations(ast.copy_location(ast.BinOp(c.nodes[0], ast.BitAnd(), c.nodes[1]), c.node))
    c.flow.kept.append(node)
    return Value(data=node)


def _quietly(c: _Seen, node: ast.BinOp) -> Value:
    """The same as the operator; the operands were evaluated already, so events of theirs are only replaced."""
    ast.fix_missing_locations(node)
    c.flow.kept.append(node)
    return c.flow.binary(node)  # type: ignore[no-any-return]


def _normalize(c: _Seen) -> Value:
    order = c.keywords.get("p", c.args[1] if len(c.args) > 1 else UNKNOWN)
    return (
        Value(PROBS, c.first.role, zeros=c.first.zeros)
        if order.kind == CONSTANT and order.data == 1 and c.first.kind in (COUNTS, PROBS)
        else UNKNOWN
    )


def _xlogy(c: _Seen) -> Value:
    return UNKNOWN


def _chunk(c: _Seen) -> Value:
    return UNKNOWN


def _scatter(c: _Seen) -> Value:
    last = c.args[-1] if len(c.args) > 3 else UNKNOWN
    zero = c.first.kind == CONSTANT and c.first.data == "zeros"
    return Value(ONE_HOT, zeros=True) if zero and last.kind == CONSTANT and last.data in (1, 1.0) else UNKNOWN


def _size(c: _Seen) -> Value:
    return Value(of=f"classes({c.key()})") if c.axis() == -1 else UNKNOWN


_TRANSFER: dict[str, Callable[[_Seen], Value]] = {
    "softmax": _softmax, "log_softmax": _log_softmax, "log": _log, "exp": _exp, "sum": _sum, "nansum": _sum, "mean": _mean,
    "nanmean": _mean,
    "clip": _clip, "maximum": _clip, "keep": _keep, "detach": _detach, "reshape": _reshape, "tensor": _tensor, "where": _where,
    "histogram": _hist, "one_hot": _one_hot, "select": _select, "stack": _joined, "concat": _joined, "topk": _topk,
    "masked_fill": _masked_fill,
    "nan_to_num": _nan_to_num, "abs": _abs, "relu": _abs, "divide": _divide, "multiply": _multiply, "subtract": _subtract,
    "normalize": _normalize,
    "xlogy": _xlogy, "expm1": lambda c: Value("", c.first.role, exp_of=f"expm1:{c.key()}", detached=c.first.detached),
    "numel": lambda c: Value(of=f"numel({c.key()})"),
    "chunk": _chunk, "scatter": _scatter, "size": _size, "logical_and": _logical_and,
    "sigmoid": lambda c: Value(SIGMOID, c.first.role),
    "argmax": lambda c: Value(LABELS),
    "labels": lambda c: Value(LABELS),
    "samples": lambda c: Value(SAMPLES),
    "randn": lambda c: Value(SAMPLES, rank=_drawn_rank(c)),
    "rand": lambda c: Value(SAMPLES, rank=_drawn_rank(c)),
    "dirichlet": lambda c: Value(PROBS, positive=True),
    "gumbel_softmax": lambda c: Value(PROBS, c.first.role, positive=False),
    "counter": lambda c: Value(COUNTS),
    "bincount": lambda c: Value(COUNTS, zeros=True),
    "value_counts": lambda c: Value(PROBS if c.keywords.get("normalize", UNKNOWN).data is True else COUNTS),
    "hard": lambda c: Value(HARD),
    "zeros": lambda c: constant("zeros"),
    "no_grad": lambda c: constant("no_grad"),
    "kde": lambda c: Value(OBJECT, data=Made("scipy.stats.gaussian_kde", c.node)),
    "logsumexp": lambda c: Value(of=f"logsumexp({c.key()})"),
    "unique": lambda c: Value(TUPLE, data=(UNKNOWN, Value(COUNTS))) if c.keywords.get("return_counts", UNKNOWN).data is True else UNKNOWN,
    "masked_invalid": lambda c: c.first,
    "max": lambda c: next((v for v in c.args if v.kind == KL), UNKNOWN) if len(c.args) == 2 else UNKNOWN,
}  # fmt: skip


def _drawn_rank(c: _Seen) -> int | None:
    return len(c.args) if len(c.args) > 1 and all(not isinstance(n, ast.Starred) for n in c.nodes) else None

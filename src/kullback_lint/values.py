"""What the data flow knows of an expression: its kind, and the few facts rules ask for.

A value is immutable, and `UNKNOWN` is the honest default: two paths that disagree give it, and no rule speaks about it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

# Numbers.
LOGITS = "logits"  # raw scores: any real numbers
LOG_PROBS = "log-probabilities"
PROBS = "probabilities"
SIGMOID = "probabilities of yes or no"  # each in [0, 1], the row does not sum to 1
COUNTS = "counts"
ONE_HOT = "one-hot labels"
LABELS = "class indices"
SAMPLES = "samples"
DENSITY = "a density"
LOG_RATIO = "a log-ratio"
# Results.
KL = "a KL"
HARD = "a loss against labels"
GAUSSIAN = "a Gaussian"
# Things of Python.
MODULE = "module"  # data: dotted name
CONSTANT = "constant"  # data: the value
TUPLE = "tuple"  # data: tuple of values
FUNCTION = "function"  # data: flow.Function
CLASS = "class"  # data: flow.Class
INSTANCE = "instance"  # data: flow.Class
OBJECT = "object"  # data: Made, an object of another library's class
PARTIAL = "partial"  # data: Made of a function
METHOD = "method"  # data: (receiver value, name)

NUMBERS = frozenset({LOGITS, LOG_PROBS, PROBS, SIGMOID, COUNTS, ONE_HOT, LABELS, SAMPLES, DENSITY})

# How far a KL has been summed: over nothing, over the categories of each row, over everything.
TERMS, ROWS, SCALAR = "terms", "rows", "scalar"


@dataclass(frozen=True)
class Divergence:
    """KL(p‖q) as it was computed somewhere."""

    p: Value
    q: Value
    node: ast.AST
    summed: str
    api: str = ""  # the function's name, "" for a formula written out
    family: str = "categorical"  # or gaussian, k3, distribution
    powers_of_t: int = 0  # how often the temperature was multiplied on
    averaged: bool = False  # a mean was taken; rules have seen it
    scaled: bool = False  # multiplied or divided by something that is not a plain number
    p_key: str = ""  # the source of p and q, or what they are logs of
    q_key: str = ""


@dataclass(frozen=True)
class Made:
    """A call whose result is a function or an object: `partial(f, ...)`, `nn.KLDivLoss(...)`, `Categorical(...)`."""

    name: str
    node: ast.Call
    args: tuple[Value, ...] = ()
    keywords: tuple[tuple[str, Value], ...] = ()
    inner: Value | None = None

    def keyword(self, name: str) -> Value | None:
        return next((value for key, value in self.keywords if key == name), None)


@dataclass(unsafe_hash=True)  # and never changed; but a frozen one takes four times as long to make, and thousands are made a file
class Value:
    kind: str = ""
    role: str = ""  # teacher, student, prior, posterior, p, q: from names
    data: Any = None
    temperature: str = ""  # source of what logits were divided by
    positive: bool = False  # no element can be zero
    zeros: bool = False  # elements are known to be zero at times
    rank: int | None = None
    axis: int | None = None  # the axis softmax went along
    softmax: bool = False  # comes straight out of a softmax
    exp_of: str = ""  # source of what exp() was taken of
    log_of: str = ""  # source of what log() was taken of
    of: str = ""  # source of the distribution it is, its log or its total
    mixture: tuple[str, ...] = ()  # sources of the parts of an average
    bins: tuple[str, str] | None = None  # histogram: (edges as written, data as written)
    literal: bool = False  # numbers written out in the source
    detached: bool = False  # no gradient flows through it
    masked: tuple[str, str] = ("", "")  # x[condition]: sources of x and of the condition

    def having(self, **facts: Any) -> Value:
        """The same but for these; `dataclasses.replace` is several times slower, and this is called for every expression."""
        new = object.__new__(Value)
        new.__dict__.update(self.__dict__)
        new.__dict__.update(facts)
        return new

    def __bool__(self) -> bool:
        return self.kind != ""


UNKNOWN = Value()


def constant(value: Any) -> Value:
    return Value(CONSTANT, data=value)


def join(a: Value, b: Value) -> Value:
    """What is known of a value that is `a` or `b`."""
    if a == b:
        return a
    role = a.role if a.role == b.role else ""
    if a.kind != b.kind or a.kind == "":
        return Value(role=role)
    if a.kind in NUMBERS:
        return Value(
            a.kind,
            role=role,
            temperature=a.temperature if a.temperature == b.temperature else "",
            positive=a.positive and b.positive,
            zeros=a.zeros and b.zeros,
            rank=a.rank if a.rank == b.rank else None,
            axis=a.axis if a.axis == b.axis else None,
            softmax=a.softmax and b.softmax,
            detached=a.detached and b.detached,
        )
    if a.kind == TUPLE and len(a.data) == len(b.data):
        return Value(TUPLE, data=tuple(map(join, a.data, b.data)))
    if a.kind == HARD:
        return Value(HARD, role=role)
    if a.kind == KL and a.data.node is b.data.node and a.data.summed == b.data.summed:
        # The same KL, masked or scaled on one of the ways.
        powers, scaled = max(a.data.powers_of_t, b.data.powers_of_t), a.data.scaled or b.data.scaled
        averaged = a.data.averaged or b.data.averaged
        return Value(KL, data=replace(a.data, powers_of_t=powers, scaled=scaled, averaged=averaged), detached=a.detached and b.detached)
    return Value(role=role)


_TOKENS = {
    "teacher": "teacher", "teachers": "teacher", "tea": "teacher", "student": "student", "students": "student", "stu": "student",
    "prior": "prior", "priors": "prior", "posterior": "posterior", "posteriors": "posterior",
    "post": "posterior", "p": "p", "q": "q",
    "logp": "p", "logq": "q",
}  # fmt: skip
# What may stand beside p or q in a name without changing which side it is: log_p, p_probs, q_dist.
_BESIDE = frozenset(
    {"log", "prob", "probs", "logit", "logits", "dist", "soft", "softmax", "tensor", "norm", "flat", "safe", "logprob", "logprobs"}
)


@lru_cache(maxsize=20_000)
def role_of(name: str) -> str:
    """The side a name puts a distribution on, "" if none or several."""
    tokens = _split(name)
    roles = {_TOKENS[t] for t in tokens if t in _TOKENS}
    if len(roles) > 1:
        roles -= {"p", "q"}
    if len(roles) != 1:
        return ""
    role = roles.pop()
    if role in ("p", "q") and not all(t in _TOKENS or t in _BESIDE for t in tokens):
        return ""
    return role


def _split(name: str) -> list[str]:
    tokens, word = [], ""
    for before, letter in zip(" " + name, name):
        if letter == "_" or letter.isdigit() or (letter.isupper() and before.islower()):
            tokens.append(word)
            word = ""
        if letter.isalpha():
            word += letter.lower()
    return [t for t in [*tokens, word] if t]

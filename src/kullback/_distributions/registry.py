"""The closed forms of pairs of families, and the search for one. `users` has the pairs of users' classes.

A pair is registered once. A second formula for it is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from . import supports
from .families import FAMILIES, Record

Array = Any
# (ops, P, Q) -> KL(P‖Q), one value per batch element. All parameters are arrays of one framework and dtype.
Formula = Callable[[Any, Any, Any], Array]
Function = TypeVar("Function", bound=Formula)


class ClosedForm(NamedTuple):
    """A formula, a condition on the parameters (None: it always holds), and the line that registered it."""

    formula: Formula
    when: str | None
    file: str
    line: int


_closed_forms: dict[tuple[type[Record], type[Record]], ClosedForm] = {}
# The answer for every pair that is infinite because of its supports.
INFINITE = ClosedForm(supports.infinite, None, supports.__file__, supports.infinite.__code__.co_firstlineno)


def closed_form(p: type[Record], q: type[Record], when: str | None = None) -> Callable[[Function], Function]:
    """Register the function below as KL(p‖q). If the condition `when` does not hold, its value is NaN."""
    caller = sys._getframe(1)
    file, line = caller.f_code.co_filename, caller.f_lineno

    def register(function: Function) -> Function:
        if (p, q) in _closed_forms:
            raise ValueError(f"KL({p.__name__}‖{q.__name__}) is registered already")
        _closed_forms[p, q] = ClosedForm(function, when, file, line)
        return function

    return register


def in_float32(function: Function) -> Function:
    """Mark a formula whose float32 parameters may stay float32.

    Apart from `gap`, it subtracts nothing but parameters as they come.
    """
    function.in_float32 = True  # type: ignore[attr-defined]
    return function


class Match(NamedTuple):
    """The closed form for two families, and the families it takes: these two, or others in their `also`."""

    closed_form: ClosedForm
    p: type[Record]
    q: type[Record]


def look_up(p: type[Record], q: type[Record]) -> Match | None:
    for first in (p, *p.also):
        for second in (q, *q.also):
            known = _closed_forms.get((first, second))
            if known is None and supports.apart(first, second):
                known = INFINITE
            if known is not None:
                return Match(known, first, second)
    return None


class Found(NamedTuple):
    """A closed form, and the two records that it takes."""

    function: Formula
    p: Record
    q: Record
    when: str | None


def find(p: Record, q: Record) -> Found | None:
    """The closed form for these two, as they are or as members of another family with the same law."""
    match = look_up(type(p), type(q))
    if match is None:
        return None
    formula, when, *_ = match.closed_form
    return Found(formula, _as_member(p, match.p), _as_member(q, match.q), when)


def _as_member(x: Record, family: type[Record]) -> Record:
    return x if type(x) is family else next(same for same in x.same_law() if type(same) is family)


def families_with(p: type[Record]) -> tuple[list[str], list[str]]:
    """Names of the families Q with a formula for KL(p‖Q), and of the families P with one for KL(P‖p)."""
    after = [q.__name__ for q in FAMILIES if (p, q) in _closed_forms]
    before = [q.__name__ for q in FAMILIES if (q, p) in _closed_forms]
    return sorted(after), sorted(before)


def pairs_with_formulas() -> list[tuple[type[Record], type[Record]]]:
    return list(_closed_forms)

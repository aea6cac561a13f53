"""Which pairs of families have a closed form, and how one is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .families import Record

Array = Any
# (ops, P, Q) -> KL(P‖Q), one value per batch element. The parameters of P and Q are arrays of one framework and dtype.
ClosedForm = Callable[[Any, Any, Any], Array]

_closed_forms: dict[tuple[type[Record], type[Record]], ClosedForm] = {}


def closed_form(p: type[Record], q: type[Record]) -> Callable[[ClosedForm], ClosedForm]:
    """Registers the function as KL(p‖q)."""

    def register(function: ClosedForm) -> ClosedForm:
        if (p, q) in _closed_forms:
            raise ValueError(f"KL({p.__name__}‖{q.__name__}) is registered already")
        _closed_forms[p, q] = function
        return function

    return register


class Found(NamedTuple):
    function: ClosedForm
    p: Record
    q: Record


def find(p: Record, q: Record) -> Found | None:
    """The closed form for these two, as they are or as members of another family with the same law."""
    for first in _views(p):
        for second in _views(q):
            function = _closed_forms.get((type(first), type(second)))
            if function is not None:
                return Found(function, first, second)
    return None


def _views(x: Record) -> Iterator[Record]:
    yield x
    yield from x.same_law()


def families_with(p: type[Record]) -> tuple[list[str], list[str]]:
    """Names of the families Q with KL(p‖Q), and of those P with KL(P‖p)."""
    after = sorted(second.__name__ for first, second in _closed_forms if first is p)
    before = sorted(first.__name__ for first, second in _closed_forms if second is p)
    return after, before


def pairs() -> list[tuple[type[Record], type[Record]]]:
    return list(_closed_forms)

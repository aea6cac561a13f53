"""Which pairs have a closed form, and how one is found: pairs of families, written here, and pairs of classes that users register.

No duplicates, and no guessing where two of a user's pairs fit equally well: both are errors that name both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from .families import Record

Array = Any
# (ops, P, Q) -> KL(P‖Q), one value per batch element. The parameters of P and Q are arrays of one framework and dtype.
ClosedForm = Callable[[Any, Any, Any], Array]
# (P, Q) -> KL(P‖Q), of the objects as they were passed.
UserForm = Callable[[Any, Any], Array]
Function = TypeVar("Function", bound=Callable[..., Array])

_closed_forms: dict[tuple[type[Record], type[Record]], ClosedForm] = {}
_user_forms: dict[tuple[type, type], UserForm] = {}


def closed_form(p: type[Record], q: type[Record]) -> Callable[[ClosedForm], ClosedForm]:
    """Registers the function as KL(p‖q)."""

    def register(function: ClosedForm) -> ClosedForm:
        if (p, q) in _closed_forms:
            raise ValueError(f"KL({p.__name__}‖{q.__name__}) is registered already")
        _closed_forms[p, q] = function
        return function

    return register


def in_float32(function: ClosedForm) -> ClosedForm:
    """Marks a closed form that subtracts parameters as they come and, but for `gap`, nothing else: what came as float32 may stay so."""
    function.in_float32 = True  # type: ignore[attr-defined]
    return function


class Found(NamedTuple):
    function: ClosedForm
    p: Record
    q: Record


def find(p: Record, q: Record) -> Found | None:
    """The closed form for these two, as they are or as members of another family with the same law."""
    function = _closed_forms.get((type(p), type(q)))
    if function is not None:
        return Found(function, p, q)
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


# --- users' own ---------------------------------------------------------------------------------------------------------------------------


def user_pairs() -> list[tuple[type, type]]:
    return list(_user_forms)


def add_user_form(p: type, q: type, function: UserForm) -> None:
    _user_forms[p, q] = function


def remove_user_form(p: type, q: type) -> None:
    del _user_forms[p, q]


def most_specific(p: type, q: type, candidates: list[tuple[type, type]]) -> tuple[type, type] | None:
    """The pair of classes that is nearest to (p, q) on both sides; an error where there are several nearest ones."""
    ranks = {
        (first, second): (p.__mro__.index(first), q.__mro__.index(second))
        for first, second in candidates
        if first in p.__mro__ and second in q.__mro__
    }
    if not ranks:
        return None
    nearest = [pair for pair, (i, j) in ranks.items() if not any(k <= i and m <= j and (k, m) != (i, j) for k, m in ranks.values())]
    if len(nearest) > 1:
        listed = " and ".join(f"KL({first.__name__}‖{second.__name__})" for first, second in nearest)
        raise TypeError(
            f"KL({p.__name__}‖{q.__name__}) is ambiguous: {listed} fit equally well; "
            f"register KL({p.__name__}‖{q.__name__}) itself with kullback.register_kl"
        )
    return nearest[0]


def user_form(pair: tuple[type, type]) -> UserForm | None:
    return _user_forms.get(pair)


def is_registered(kind: type) -> bool:
    """Does a user's pair concern this class or one it inherits from?"""
    return any(cls in kind.__mro__ for pair in _user_forms for cls in pair if cls is not object)

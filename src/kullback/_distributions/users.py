"""Users' own pairs: how they are registered, and whether one of them, or a built-in one, answers for two objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .families import Record
from .registry import UserForm, add_user_form, most_specific, user_form, user_pairs
from .table import ecosystem_of, families_of, has_closed_form

Function = TypeVar("Function", bound=Callable[..., Any])
# For two types, the user's function that answers, or None where a built-in form does (or nothing). Emptied when a pair is registered.
_memo: dict[tuple[type, type], UserForm | None] = {}


def register_kl(p: type, q: type) -> Callable[[Function], Function]:
    """Registers a function as KL(P‖Q) for objects of two classes, and of classes derived from them.

    `kullback.kl` then calls it with the two objects, as they were passed. What it returns is the result: one value per batch element, as an
    array of the objects' own library. Of the pairs that fit, built-in ones included, the one nearest to the objects' classes answers; where
    two are equally near, that is an error that names both, and so is a pair that is there already.

    Parameters
    ----------
    p, q : type
        Classes of one library (torch.distributions, TFP, numpyro, distrax, `kullback.distributions`), or your own.

    Examples
    --------
    >>> import kullback as kb
    >>> class Constant:
    ...     def __init__(self, value):
    ...         self.value = value
    >>> @kb.register_kl(Constant, Constant)
    ... def kl_constant_constant(p, q):
    ...     return 0.0 if p.value == q.value else float("inf")
    >>> kb.kl(Constant(1.0), Constant(2.0))
    inf
    """
    for name, kind in (("P", p), ("Q", q)):
        if not inspect.isclass(kind):
            raise TypeError(f"{name} is {kind!r}: register_kl takes two classes, and decorates a function of two objects")
        if kind is object:
            raise TypeError(f"{name} is object, which everything is an instance of: name the class you mean")
    libraries = [ecosystem_of(kind) for kind in (p, q)]
    if None not in libraries and libraries[0] != libraries[1]:
        raise TypeError(
            f"KL({p.__name__}‖{q.__name__}) would be of two libraries, {libraries[0]} and {libraries[1]}: register a pair for each of them"
        )

    def register(function: Function) -> Function:
        built_in = any(has_closed_form(first, second) for first in families_of(p) for second in families_of(q))
        if built_in or user_form((p, q)) is not None:
            raise ValueError(
                f"KL({p.__name__}‖{q.__name__}) is registered already"
                + (", by kullback: derive a class of your own to have another" if built_in else f", as {_place(user_form((p, q)))}")
            )
        add_user_form(p, q, function)
        _memo.clear()
        return function

    return register


def _place(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def find_user_form(p: type, q: type) -> UserForm | None:
    """The user's function nearest to these two types, unless a built-in form is nearer. Ambiguity is an error."""
    if (p, q) not in _memo:
        candidates = user_pairs()
        built_in = _built_in(p, q)
        if built_in is not None:
            candidates.append(built_in)
        found = most_specific(p, q, candidates)
        _memo[p, q] = None if found is None else user_form(found)
    return _memo[p, q]


def _built_in(p: type, q: type) -> tuple[type, type] | None:
    """The two classes whose objects a built-in form takes."""
    known = [next((cls for cls in kind.__mro__ if families_of(cls) and cls is not Record), None) for kind in (p, q)]
    if known[0] is None or known[1] is None:
        return None
    fits = any(has_closed_form(first, second) for first in families_of(known[0]) for second in families_of(known[1]))
    return (known[0], known[1]) if fits else None

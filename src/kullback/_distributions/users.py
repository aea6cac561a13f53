"""Pairs that users register: `register_kl`, and the choice between them and the built-in pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .._ops import Array
from .adapters import ecosystem_of, families_of
from .families import Record
from .registry import look_up

# (P, Q) -> KL(P‖Q), of the objects as they were passed.
UserFunction = Callable[[Any, Any], Array]
Function = TypeVar("Function", bound=UserFunction)
_functions: dict[tuple[type, type], UserFunction] = {}
# For two types, the user's function that answers, or None. Emptied when a pair is registered.
_memo: dict[tuple[type, type], UserFunction | None] = {}


def register_kl(p: type, q: type) -> Callable[[Function], Function]:
    """Register a function as KL(P‖Q) for objects of two classes, and of classes derived from them.

    `kullback.kl` then calls the function with the two objects, as they were passed. The function returns one
    value per batch element, as an array of the objects' own library. If several pairs fit, the pair nearest to the
    objects' classes answers. Built-in pairs count too. Two pairs that are equally near are an error that names
    both. A pair can be registered only once.

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
        built_in = _is_built_in(p, q)
        if built_in or (p, q) in _functions:
            by = "by kullback: derive a class of your own to have another"
            place = by if built_in else f"as {_place(_functions[p, q])}"
            raise ValueError(f"KL({p.__name__}‖{q.__name__}) is registered already, {place}")
        _functions[p, q] = function
        _memo.clear()
        return function

    return register


def _place(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def _is_built_in(p: type, q: type) -> bool:
    return any(look_up(first, second) is not None for first in families_of(p) for second in families_of(q))


def user_pairs() -> list[tuple[type, type]]:
    return list(_functions)


def is_registered(kind: type) -> bool:
    """Does a user's pair concern this class or one it inherits from?"""
    return any(cls in kind.__mro__ for pair in _functions for cls in pair if cls is not object)


def find_user_function(p: type, q: type) -> UserFunction | None:
    """The user's function nearest to these two types, unless a built-in closed form is nearer. Ambiguity is an error."""
    if not _functions:
        return None
    if (p, q) not in _memo:
        built_in = _built_in(p, q)
        found = _most_specific(p, q, [*_functions, *([] if built_in is None else [built_in])])
        _memo[p, q] = None if found is None else _functions.get(found)
    return _memo[p, q]


def _built_in(p: type, q: type) -> tuple[type, type] | None:
    """The two classes whose objects a built-in closed form takes."""
    first, second = (_known_base(kind) for kind in (p, q))
    if first is None or second is None or not _is_built_in(first, second):
        return None
    return first, second


def _known_base(kind: type) -> type | None:
    """The nearest class among this one and its bases whose objects are read into families."""
    return next((cls for cls in kind.__mro__ if families_of(cls) and cls is not Record), None)


def _most_specific(p: type, q: type, candidates: list[tuple[type, type]]) -> tuple[type, type] | None:
    """The pair of classes that is nearest to (p, q) on both sides. Several nearest pairs are an error."""
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

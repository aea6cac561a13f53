"""The pairs there are, per ecosystem, told by the registry and the readers themselves. Imports no library and makes no objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from types import CodeType
from typing import Any, NamedTuple

from . import adapters, families, readers
from .families import Record
from .readers import from_scipy
from .registry import pairs, user_pairs

# Names of the ecosystems by where their classes live; TFP has two substrates, which share one reader.
ECOSYSTEMS = {
    "torch.distributions": "torch",
    "numpyro.distributions": "numpyro",
    "tensorflow_probability": "tfp",
    "distrax": "distrax",
    "scipy.stats": "scipy",
}
OWN = "kullback"
USER = "yours"


class RegisteredPair(NamedTuple):
    """KL(p‖q), where p and q are names of families or classes; the ecosystems that have both; and how it is computed."""

    p: str
    q: str
    ecosystems: tuple[str, ...]
    kind: str


def _readers() -> dict[str, dict[str, Any]]:
    return {**adapters.LIBRARIES, "scipy.stats": from_scipy.TABLE}


def ecosystem_of(kind: type) -> str | None:
    """The library a class, or one it inherits from, belongs to."""
    for cls in kind.__mro__:
        if issubclass(cls, Record):
            return OWN
        for prefix, name in ECOSYSTEMS.items():
            if cls.__module__.startswith(prefix):
                return name
    return None


def families_made(reader: Callable[..., Any]) -> set[type[Record]]:
    """The families a reader may return: those its code, and that of the helpers it calls, names."""
    made: set[type[Record]] = set()
    for x in _named(reader, set()):
        if isinstance(x, type) and issubclass(x, Record) and x is not Record:
            made.add(x)
    return made


def _named(function: Any, seen: set[Any]) -> Iterator[Any]:
    code: CodeType | None = getattr(function, "__code__", None)
    if code is None or code in seen:
        return
    seen.add(code)
    found = [cell.cell_contents for cell in function.__closure__ or ()]
    found += [function.__globals__.get(name) for name in _all_names(code)]
    for x in found:
        yield x
        # Helpers of the readers, but not `read`, which reads anything.
        if callable(x) and not isinstance(x, type) and getattr(x, "__module__", "").startswith(readers.__name__):
            yield from _named(x, seen)


def _all_names(code: CodeType) -> set[str]:
    inner = (_all_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*inner)


def families_by_ecosystem() -> dict[str, set[type[Record]]]:
    found = {ECOSYSTEMS[prefix]: set().union(*map(families_made, table.values())) for prefix, table in _readers().items()}
    own = {x for x in vars(families).values() if isinstance(x, type) and issubclass(x, Record) and x is not Record}
    return {OWN: own, **found}


def families_of(kind: type) -> set[type[Record]]:
    """What objects of exactly this class are read into."""
    if issubclass(kind, Record):
        return {kind}
    for prefix, table in _readers().items():
        if kind.__module__.startswith(prefix) and kind.__name__ in table:
            return families_made(table[kind.__name__])
    return set()


def views(family: type[Record]) -> set[type[Record]]:
    """The family, and others that its members belong to under another name."""
    try:
        example: Any = family(*(1.0 for _ in fields(family)))
        return {family, *(type(x) for x in example.same_law())}
    except (TypeError, ValueError, AttributeError, IndexError):  # not every family can be made of ones: then it has no views
        return {family}


def has_closed_form(p: type[Record], q: type[Record]) -> bool:
    known = set(pairs())
    return any((first, second) in known for first in views(p) for second in views(q))


def closed_forms() -> list[RegisteredPair]:
    """Of families, in alphabetical order, and of users' classes after them."""
    everywhere = families_by_ecosystem()
    all_views = {family: views(family) for family in everywhere[OWN]}
    known = set(pairs())
    listed = []
    for p in sorted(everywhere[OWN], key=lambda x: x.__name__):
        for q in sorted(everywhere[OWN], key=lambda x: x.__name__):
            if any((first, second) in known for first in all_views[p] for second in all_views[q]):
                listed.append(RegisteredPair(p.__name__, q.__name__, _with_both(everywhere, p, q), "closed form"))
    for first, second in user_pairs():
        where = {ecosystem_of(cls) for cls in (first, second)} - {None}
        listed.append(RegisteredPair(first.__name__, second.__name__, tuple(str(x) for x in where) or (USER,), "yours"))
    return listed


def _with_both(everywhere: dict[str, set[type[Record]]], p: type[Record], q: type[Record]) -> tuple[str, ...]:
    return tuple(name for name, there in everywhere.items() if p in there and q in there)

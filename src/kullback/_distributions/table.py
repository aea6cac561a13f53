"""The list of pairs, with the libraries that have both families. Imports no library and makes no objects."""

from __future__ import annotations

from typing import NamedTuple

from .adapters import ecosystem_of, families_by_ecosystem
from .families import FAMILIES
from .registry import INFINITE, look_up
from .users import user_pairs

USER = "yours"


class RegisteredPair(NamedTuple):
    """The names of two families or classes, the libraries that have both, and how KL(p‖q) is computed."""

    p: str
    q: str
    ecosystems: tuple[str, ...]
    kind: str


def closed_forms() -> list[RegisteredPair]:
    """The pairs of families in alphabetical order, and then the pairs of users' classes."""
    everywhere = families_by_ecosystem()
    families = sorted(FAMILIES, key=lambda x: x.__name__)
    listed = []
    for p in families:
        for q in families:
            match = look_up(p, q)
            if match is not None:
                where = tuple(name for name, there in everywhere.items() if p in there and q in there)
                kind = "infinite" if match.closed_form is INFINITE else "closed form"
                listed.append(RegisteredPair(p.__name__, q.__name__, where, kind))
    for first, second in user_pairs():
        libraries = sorted({str(ecosystem_of(cls)) for cls in (first, second)} - {"None"})
        listed.append(RegisteredPair(first.__name__, second.__name__, tuple(libraries) or (USER,), "yours"))
    return listed

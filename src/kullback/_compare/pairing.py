"""Shards of two sides, matched by their names: one that is missing on a side must not shift those after it.

Names that have nothing in common, and sides that are cut into shards differently, say nothing: then rows go by their position.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from .._errors import Option, saying
from .._read import ReadError
from .shards import natural
from .sources import Source

PARTIAL = Option("allow_partial", True)

Sides = tuple[Source, Source]


def aligned(sides: Sides, allow_partial: bool) -> tuple[Sides, tuple[str, ...]]:
    """Both sides with the same shards of the same numbers of rows, some of which are not there; and notes on those. Unequal ones are
    refused, unless they are allowed."""
    if max(len(side.pieces) for side in sides) < 2 or not all(map(_is_several, sides)):
        return sides, ()
    names = [_names(side) for side in sides]
    keys = _keys([_without_suffix(each) for each in names])
    if keys is None:
        return sides, ()
    found = [dict(zip(each, side.pieces)) for each, side in zip(keys, sides)]
    both = [key for key in found[0] if key in found[1]]
    equal = [found[0][key].rows == found[1][key].rows for key in both]
    complete = len(both) == len(found[0]) == len(found[1])
    if 2 * sum(equal) < len(both) or (complete and sides[0].rows == sides[1].rows):
        return sides, ()  # the same rows, cut differently
    notes = []
    for i in (1, 0):
        side, other = sides[i], sides[1 - i]
        lacking = [piece for key, piece in found[1 - i].items() if key not in found[i]]
        if lacking:
            more = f" and {len(lacking) - 1:,} more shards of {other.name}" if len(lacking) > 1 else ""
            sentence = f"{side.name} has no counterpart of {lacking[0].path}{more}"
            if not allow_partial:
                raise saying(ReadError, f"{sentence}; ", PARTIAL, " compares the shards that both have")
            notes.append(f"{sentence}: {sum(piece.rows for piece in lacking):,} rows were left out.")
    for p, q in ((found[0][key], found[1][key]) for key in both):
        if p.rows != q.rows:
            sentence = f"{p.path} has {p.rows:,} rows and {q.path} {q.rows:,}"
            if not allow_partial:
                raise saying(ReadError, f"{sentence}: ", PARTIAL, f" compares the first {min(p.rows, q.rows):,} of them")
            notes.append(f"{sentence}: the first {min(p.rows, q.rows):,} of them were compared.")
    order = dict(zip(keys[1], names[1])) | dict(zip(keys[0], names[0]))  # P's, where it has them: its rows keep their numbers
    union = sorted(order, key=lambda key: natural(order[key]) if isinstance(key, str) else key)
    rows = {key: max(own[key].rows for own in found if key in own) for key in union}
    # A shard that is not there has rows, of which none is whole.
    made = [
        Source(
            side.name,
            side.kind,
            [(own[key] if key in own else side.pieces[0]._replace(path="", whole=0))._replace(rows=rows[key]) for key in union],
        )
        for side, own in zip(sides, found)
    ]
    return (made[0], made[1]), tuple(notes)


def _is_several(side: Source) -> bool:
    """A folder or a pattern, no matter how many files it stands for."""
    return side.pieces[0].path != side.name and not os.path.isfile(side.name)


def _names(side: Source) -> list[str]:
    """Of the shards, below the folder they have in common."""
    folders = [os.path.dirname(piece.path) or "." for piece in side.pieces]
    root = os.path.commonpath(folders)
    return [os.path.relpath(piece.path, root) for piece in side.pieces]


def _without_suffix(names: list[str]) -> list[str]:
    """If it is one for all: the other side's may be another."""
    parts = [os.path.splitext(name) for name in names]
    return [name for name, _ in parts] if len({suffix for _, suffix in parts}) == 1 else names


def _keys(names: Sequence[list[str]]) -> Sequence[list[Any]] | None:
    """What to match shards by: their names, or the one number in which those of a side differ; None where they have none in common."""
    if set(names[0]) & set(names[1]):
        return names
    p, q = map(_numbers, names)
    if not p or not q or 2 * len(set(p) & set(q)) < min(len(p), len(q)):
        return None  # numbers of different things; some may be equal by chance
    # As many, and one further throughout: counted from 0 and from 1.
    return None if len(p) == len(q) and len({a - b for a, b in zip(sorted(p), sorted(q))}) == 1 else (p, q)


def _numbers(names: list[str]) -> list[int]:
    """Empty if names differ in anything but one number."""
    if len({re.sub(r"\d+", "0", name) for name in names}) > 1:
        return []
    columns = [set(column) for column in zip(*(re.findall(r"\d+", name) for name in names))]
    varying = [i for i, column in enumerate(columns) if len(column) > 1]
    if len(varying) != 1:
        return []
    found = [int(re.findall(r"\d+", name)[varying[0]]) for name in names]
    return found if len(set(found)) == len(found) else []

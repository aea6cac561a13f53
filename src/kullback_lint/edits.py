"""Edits that rules propose, and how they are applied: only text is changed, everything else stays as it was."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .model import Edit
from .source import Source


def add_keyword(source: Source, call: ast.Call, keyword: str) -> tuple[Edit, ...]:
    """Put a keyword at the end of a call's arguments, before a trailing comma or comment."""
    arguments = [*call.args, *(k.value for k in call.keywords)]
    end = source.span(call)[1]
    if source.text[end - 1 : end] != ")":
        return ()
    if not arguments:
        inside = source.text[source.span(call.func)[1] : end]
        if inside.replace(" ", "") != "()":
            return ()  # a comment or line break stands in the parentheses
        return (Edit(end - 1, end - 1, keyword),)
    last = max(source.span(a)[1] for a in arguments)
    if any(isinstance(a, ast.GeneratorExp) for a in arguments):
        return ()
    tail = source.text[last : end - 1]
    closing = 0  # parentheses around the last argument belong to it
    for letter in tail:
        if letter == "#":
            break
        if letter == ")":
            closing += 1
    at = last
    while closing:
        at = source.text.index(")", at) + 1
        closing -= 1
    return (Edit(at, at, f", {keyword}"),)


def _meet(a: Edit, b: Edit) -> bool:
    """Two insertions at one place meet too: the first keyword of a call wants no comma before it, the second does."""
    return (a.start < b.end and b.start < a.end) or a.start == b.start


def apply(text: str, groups: Iterable[tuple[Edit, ...]]) -> tuple[str, int]:
    """Apply groups of edits; a group that overlaps one already taken is left for the next run. The text, and how many were applied."""
    taken: list[Edit] = []
    applied = 0
    for group in groups:
        new = [edit for edit in group if edit not in taken]
        if new and not any(_meet(edit, other) for edit in new for other in taken):
            taken += new
            applied += 1
    for edit in sorted(taken, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, applied

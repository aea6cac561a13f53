"""The plugin for flake8: the same findings, under the same numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from .check import check


class Plugin:
    """flake8 gives the lines; `# noqa` and `# kullback: ignore` both silence."""

    name = "kullback"
    version = "1"

    def __init__(self, tree: ast.AST, lines: list[str], filename: str = "(none)") -> None:
        self.lines, self.filename = lines, filename

    def run(self) -> Iterator[tuple[int, int, str, type[Any]]]:
        for found in check("".join(self.lines), self.filename):
            yield found.line, found.column - 1, f"{found.rule} {found.message}", type(self)

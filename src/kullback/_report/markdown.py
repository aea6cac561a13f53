"""Markdown as GitHub shows it: names that stay names, and tables."""

from __future__ import annotations

import re
from collections.abc import Container

from .cells import printable
from .sheet import Grid

# Words without characters that end a code span, and the Markdown characters between words.
_WORDS = re.compile(r"""[^\s'"(),;<>|`\\]+|[<>|`\\]""")
# In words that GitHub makes links of, and tells people about: @names and addresses, #1, GH-1, commits.
_LIVE = re.compile(r"@|://|www\.|#\d|\bGH-\d|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+±]?\d+(\.\d*(e[-+]?\d+)?|e[-+]\d+)?[.:%]*")
_MARKUP = re.compile(r"[\\`*_{}\[\]#|<>~$&]")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a table too. A word that would become a link becomes code."""

    def escape(found: re.Match[str]) -> str:
        return "&lt;" if found[0] == "<" else f"\\{found[0]}"

    def inert(found: re.Match[str]) -> str:
        live = _LIVE.search(found[0]) and not _NUMBER.fullmatch(found[0])
        return f"`{found[0]}`" if live else _MARKUP.sub(escape, found[0])

    return _WORDS.sub(inert, printable(text))


def table(grid: Grid, *, space: str = " ", bold: Container[int] = ()) -> list[str]:
    """Lines. `space` surrounds the marks of the second line. `bold` has the rows whose first cell is bold."""
    marks = [f"{space}{'---' if i < grid.left else '---:'}{space}" for i in range(len(grid.headers))]
    lines = [_line(list(map(escaped, grid.headers))), f"|{'|'.join(marks)}|"]
    for i, row in enumerate(grid.rows):
        first, *others = map(escaped, row)
        lines.append(_line([f"**{first}**" if i in bold else first, *others]))
    return lines


def details(title: str, *lines: str) -> list[str]:
    """Lines that are hidden until a reader asks for them."""
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"

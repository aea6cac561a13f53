"""A file's text and the ways between its lines, columns, bytes and characters. Also its comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cached_property

_IGNORE = re.compile(r"#\s*kullback:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)


def _comment(line: str) -> str:
    """What follows a # outside quotes; good enough for one line that is not within a longer string."""
    return re.sub(r"\"[^\"\n]*\"|'[^'\n]*'", "", line).partition("#")[2] if "#" in line else ""


class Source:
    """`text` with line ends as they are in the file."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path

    @cached_property
    def lines(self) -> list[str]:
        # As the parser counts them: form feeds and the like end no line.
        return io.StringIO(self.text, newline="").readlines() if "\r" in self.text else io.StringIO(self.text).readlines()

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [0], 0
        for line in self.lines:
            at += len(line)
            starts.append(at)
        return starts

    def column(self, line: int, byte: int) -> int:
        """Characters before a byte offset of a line (from 1), which is what `ast` counts."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return byte if text.isascii() else len(text.encode()[:byte].decode(errors="ignore"))

    def offset(self, line: int, byte: int) -> int:
        return self._starts[line - 1] + self.column(line, byte)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def comment(self, line: int) -> str:
        """The comment on a line, and those alone on the lines above it."""
        found = [_comment(self.lines[line - 1])]
        while line > 1 and self.lines[line - 2].lstrip().startswith("#"):
            line -= 1
            found.append(self.lines[line - 1].strip())
        return " ".join(found)

    @cached_property
    def _comments(self) -> dict[int, str]:
        found: dict[int, str] = {}
        if "#" in self.text:
            try:
                for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                    if token.type == tokenize.COMMENT:
                        found[token.start[0]] = token.string
            except (tokenize.TokenError, SyntaxError, IndentationError):
                pass  # what was read so far
        return found

    @cached_property
    def ignored(self) -> dict[int, frozenset[str]]:
        """Line → rules silenced there; an empty set silences all."""
        if not re.search(r"kullback:\s*ignore", self.text, re.IGNORECASE):
            return {}
        found: dict[int, frozenset[str]] = {}
        for line, comment in self._comments.items():
            match = _IGNORE.search(comment)
            if match:
                found[line] = frozenset(code.strip().upper() for code in (match[1] or "").split(",") if code.strip())
        return found

    def silences(self, rule: str, first: int, last: int) -> bool:
        return any(line in self.ignored and (not self.ignored[line] or rule in self.ignored[line]) for line in range(first, last + 1))

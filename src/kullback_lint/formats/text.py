"""For people: place, rule, message, the line of code and a caret."""

from __future__ import annotations

import unicodedata

from ..model import Finding
from ..notebooks import cell_lines
from ..run import Linted
from ..source import Source

_WIDEST = 160  # of a line of code; generated files have longer ones


def render(linted: Linted) -> list[str]:
    """Blocks of text, one a finding."""
    if not linted.findings:
        return []
    cells = cell_lines(linted.text) if linted.path.endswith(".ipynb") else {}
    whole = [line.rstrip("\r\n") for line in Source(linted.text, linted.path).lines]
    return [_block(finding, cells.get(finding.cell or 0, whole)) for finding in linted.findings]


def _block(finding: Finding, lines: list[str]) -> str:
    cell = f"cell {finding.cell}:" if finding.cell is not None else ""
    mark = " [fixable]" if finding.edits else ""
    head = f"{finding.path}:{cell}{finding.line}:{finding.column}: {finding.rule} {finding.severity}: {finding.message}{mark}"
    if not 1 <= finding.line <= len(lines):
        return head
    line = lines[finding.line - 1]
    end = finding.end_column if finding.end_line == finding.line else len(line) + 1
    start = finding.column - 1
    length = max(min(end - 1, len(line)) - start, 1)
    if len(line) > _WIDEST:
        cut = max(start - 40, 0)
        line, start = line[cut : cut + _WIDEST], start - cut
        length = max(min(length, len(line) - start), 1)
    line = line.replace("\t", " ")
    stripped = line.lstrip()
    start -= len(line) - len(stripped)
    if start < 0:
        return head
    caret = " " * _width(stripped[:start]) + "^" + "~" * (_width(stripped[start : start + length]) - 1)
    return f"{head}\n    {stripped.rstrip()}\n    {caret}"


def _width(text: str) -> int:
    return max(sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text), 0)

"""Notebooks: their code cells as one module, so that values are followed from cell to cell, and back to cells.

A cell that does not parse is reported and left out. Lines of IPython (%, !, ?) are blanked.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from .check import Unparsable, check, parse, unparsable
from .edits import apply
from .model import Finding
from .rules.base import Rule

_MAGIC = re.compile(r"^(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*|\w+\s*=\s*[%!].*)$")


class _Cell:
    def __init__(self, number: int, source: str) -> None:
        self.number, self.source = number, source
        # An empty cell magic (%%time, %%capture) leaves Python; others (%%bash) do not.
        magic = re.match(r"\s*%%(\w+)", source)
        python = magic is None or magic[1] in ("time", "timeit", "capture", "prun", "px", "matplotlib")
        lines = source.split("\n") if python else []
        self.code = "\n".join(
            re.sub(_MAGIC, r"\1pass", line) if _MAGIC.match(line) and not _inside(lines, n) else line for n, line in enumerate(lines)
        )


def _inside(lines: list[str], number: int) -> bool:
    """Whether the line continues a statement, where % is an operator."""
    return number > 0 and lines[number - 1].rstrip().endswith(("\\", ",", "(", "[", "{", "+", "-", "*", "/", "%"))


def _cells(notebook: Any) -> list[_Cell]:
    found = []
    for number, cell in enumerate(notebook.get("cells", []), 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            found.append(_Cell(number, "".join(source) if isinstance(source, list) else str(source)))
    return found


def read(text: str) -> Any:
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unparsable(f"not a notebook: {error}", 1, 1) from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells", []), list):
        raise Unparsable("not a notebook: it has no cells", 1, 1)
    return notebook


def check_notebook(text: str, path: str, rules: tuple[Rule, ...]) -> list[Finding]:
    """Findings with `cell`, and lines within the cell; edits are in characters of the cell."""
    try:
        notebook = read(text)
    except Unparsable as error:
        return [unparsable(path, error)]
    language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    if language not in ("python", "", None):
        return []
    findings: list[Finding] = []
    pieces: list[str] = []
    starts: list[tuple[int, int, _Cell]] = []  # first line, first character, cell
    line, at = 1, 0
    for cell in _cells(notebook):
        code = cell.code
        try:
            parse(code)
        except Unparsable as error:
            findings.append(unparsable(path, error, cell.number))
            code = ""
        starts.append((line, at, cell))
        pieces.append(code + "\n")
        line += pieces[-1].count("\n")
        at += len(pieces[-1])
    for found in check("".join(pieces), path, rules):
        if not starts:
            break
        first, offset, cell = max((s for s in starts if s[0] <= found.line), key=lambda s: s[0])
        # An edit in a cell with blanked lines would meet other text than it was made for.
        fits = cell.code == cell.source and all(offset <= e.start and e.end <= offset + len(cell.source) for e in found.edits)
        edits = tuple(replace(e, start=e.start - offset, end=e.end - offset) for e in found.edits) if fits else ()
        findings.append(replace(found, line=found.line - first + 1, end_line=found.end_line - first + 1, cell=cell.number, edits=edits))
    return sorted(findings, key=lambda f: f.place)


def cell_lines(text: str) -> dict[int, list[str]]:
    """The lines of each code cell, to print beside a finding."""
    try:
        return {cell.number: cell.source.split("\n") for cell in _cells(read(text))}
    except Unparsable:
        return {}


def fix_notebook(text: str, findings: list[Finding]) -> tuple[str, int]:
    """The notebook with its cells mended; unchanged where writing it back would touch more than that."""
    notebook = read(text)
    for indent in (1, 2, 4, None):
        end = "\n" if text.endswith("\n") else ""
        for ascii_only in (False, True):
            if json.dumps(notebook, indent=indent, ensure_ascii=ascii_only) + end == text:
                break
        else:
            continue
        break
    else:
        return text, 0
    applied = 0
    for number, cell in enumerate(notebook["cells"], 1):
        groups = [f.edits for f in findings if f.cell == number and f.edits]
        if groups:
            lines = cell["source"]
            source, count = apply("".join(lines) if isinstance(lines, list) else lines, groups)
            cell["source"] = source.splitlines(keepends=True) if isinstance(lines, list) else source
            applied += count
    return json.dumps(notebook, indent=indent, ensure_ascii=ascii_only) + end, applied

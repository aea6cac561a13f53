"""What the linter reports: findings with a place, and edits that mend them. No logic beyond that."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, INFORMATION = "error", "warning", "information"
SEVERITIES = (ERROR, WARNING, INFORMATION)


@dataclass(frozen=True, order=True)
class Edit:
    """Replace a piece of the source; offsets count characters from its start."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """One defect. Lines and columns count from 1; `cell` is a notebook's cell, from 1 too."""

    path: str
    line: int
    column: int
    rule: str
    message: str
    severity: str
    end_line: int
    end_column: int
    cell: int | None = None
    edits: tuple[Edit, ...] = ()

    @property
    def place(self) -> tuple[str, int, int, int, str]:
        return (self.path, self.cell or 0, self.line, self.column, self.rule)

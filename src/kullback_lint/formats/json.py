"""For programs: a list of findings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..model import Finding


def render(findings: Iterable[Finding]) -> str:
    return json.dumps([as_dict(f) for f in findings], indent=2, ensure_ascii=False)


def as_dict(finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "rule": finding.rule,
        "severity": finding.severity,
        "message": finding.message,
        "fixable": bool(finding.edits),
    }
    if finding.cell is not None:
        found["cell"] = finding.cell
    return found

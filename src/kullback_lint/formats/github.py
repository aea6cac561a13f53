"""Workflow commands of GitHub Actions, which become annotations on the diff."""

from __future__ import annotations

from collections.abc import Iterable

from ..model import ERROR, WARNING, Finding

_LEVELS = {ERROR: "error", WARNING: "warning"}


def render(findings: Iterable[Finding]) -> str:
    return "\n".join(map(_line, findings))


def _line(finding: Finding) -> str:
    level = _LEVELS.get(finding.severity, "notice")
    place, where = f",line={finding.line},endLine={finding.end_line}", ""
    place += f",col={finding.column},endColumn={finding.end_column}"
    if finding.cell is not None:  # GitHub counts the lines of the notebook's JSON
        place, where = "", f"cell {finding.cell}, line {finding.line}: "
    return f"::{level} file={_property(finding.path)}{place},title={finding.rule}::{_data(where + finding.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

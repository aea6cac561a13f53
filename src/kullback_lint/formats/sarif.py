"""SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ..model import ERROR, WARNING, Finding
from ..pages import page
from ..rules import RULES

_LEVELS = {ERROR: "error", WARNING: "warning"}


def render(findings: Iterable[Finding], version: str) -> str:
    listed = list(findings)
    used = {f.rule for f in listed}
    rules: list[dict[str, Any]] = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "help": {"text": page(rule.code), "markdown": page(rule.code)},
            "defaultConfiguration": {"level": _LEVELS.get(rule.severity, "note")},
        }
        for rule in RULES
    ]
    if "KL000" in used:
        rules.append({"id": "KL000", "name": "does-not-parse", "shortDescription": {"text": "the file does not parse"}})
    driver = {"name": "kullback lint", "version": version, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [_result(f) for f in listed]}],
    }
    return json.dumps(log, indent=2, ensure_ascii=False)


def _result(finding: Finding) -> dict[str, Any]:
    path = PurePath(finding.path)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    start = {"startLine": finding.line, "startColumn": finding.column}
    region, where = start | {"endLine": finding.end_line, "endColumn": finding.end_column}, ""
    if finding.cell is not None:  # SARIF counts the lines of the notebook's JSON
        region, where = {"startLine": 1}, f" (cell {finding.cell}, line {finding.line})"
    return {
        "ruleId": finding.rule,
        "level": _LEVELS.get(finding.severity, "note"),
        "message": {"text": finding.message + where},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}],
    }

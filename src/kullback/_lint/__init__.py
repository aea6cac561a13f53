"""Finds the wrong KL in other people's code. Parses only: nothing it reads is imported or run.

Standard library only, and nothing else of kullback. `check` is one source, `run` is files; a rule is a class with a page.
"""

from __future__ import annotations

from .check import check
from .model import ERROR, INFORMATION, SEVERITIES, WARNING, Edit, Finding
from .pages import page
from .rules import BY_CODE, RULES
from .run import Options, lint_text, run
from .settings import Settings, SettingsError, read_settings

__all__ = [
    "BY_CODE", "ERROR", "INFORMATION", "RULES", "SEVERITIES", "WARNING", "Edit", "Finding", "Options", "Settings", "SettingsError", "check",
    "lint_text", "page", "read_settings", "run",
]  # fmt: skip

"""Finds the wrong KL in other people's code. Parses only: nothing it reads is imported or run.

It imports the standard library only, and nothing of kullback. `check` reads one source, and `run` reads files. A
rule is one class in `rules`, with a page in `pages`. `kullback_command.lint` has the options and prints the findings.
"""

from __future__ import annotations

from .check import check
from .model import SEVERITIES
from .pages import page
from .rules import RULES
from .run import lint_text

__all__ = ["RULES", "SEVERITIES", "check", "lint_text", "page"]

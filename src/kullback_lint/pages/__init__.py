"""The rules' pages: Markdown, shipped with the package, printed by `--explain`."""

from __future__ import annotations

from pathlib import Path


def page(code: str) -> str:
    """The page of a rule, by its number."""
    return Path(__file__).with_name(f"{code}.md").read_text(encoding="utf-8")

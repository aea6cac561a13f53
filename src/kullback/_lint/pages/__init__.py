"""The rules' pages: Markdown, shipped with the package, printed by `--explain`."""

from __future__ import annotations

from importlib.resources import files


def page(code: str) -> str:
    """The page of a rule, by its number."""
    return files(__name__).joinpath(f"{code}.md").read_text(encoding="utf-8")

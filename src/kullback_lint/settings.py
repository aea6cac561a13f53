"""Which rules run, and on which files: the section [tool.kullback.lint] of pyproject.toml, and what the command line puts over it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any

from .model import INFORMATION, Finding
from .rules import BY_CODE, RULES
from .rules.base import Rule

_SECTION = "[tool.kullback.lint]"
# Never descended into, unless given by name.
SKIPPED = frozenset({".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache",
    ".pytest_cache",
                     ".ipynb_checkpoints", "build", "dist", ".eggs"})  # fmt: skip


class SettingsError(ValueError):
    """What is wrong with the settings, in one sentence."""


@dataclass(frozen=True)
class Settings:
    """`select` and `ignore` are rule numbers or their beginnings: KL006, KL02."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def over(self, *, select: tuple[str, ...] | None = None, ignore: tuple[str, ...] | None = None) -> Settings:
        """The command line's choice; `--ignore` adds to what the file ignores, `--select` replaces."""
        return replace(self, select=self.select if select is None else select, ignore=self.ignore + (ignore or ()))

    def rules(self) -> tuple[Rule, ...]:
        return tuple(
            r for r in RULES if (not self.select or r.code.startswith(self.select)) and not (self.ignore and r.code.startswith(self.ignore))
        )

    def fails(self, finding: Finding) -> bool:
        """Whether a finding sets the exit code: information does only where its rule was selected by its full number."""
        return finding.severity != INFORMATION or finding.rule in self.select

    def excludes(self, path: PurePath) -> bool:
        text = path.as_posix().removeprefix("./")
        return any(
            fnmatch(text, pattern) or fnmatch(text, f"*/{pattern}") or any(fnmatch(part, pattern) for part in path.parts)
            for pattern in self.exclude
        )


def codes(given: Any, where: str) -> tuple[str, ...]:
    """Rule numbers, or beginnings of them, that exist."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(code, str) for code in given):
        raise SettingsError(f'{where} must be a list of rule numbers, such as ["KL006"]')
    found = tuple(code.strip().upper() for code in given if code.strip())
    for code in found:
        if not any(rule.startswith(code) for rule in BY_CODE):
            raise SettingsError(f"{where} names {code}, which is no rule (they are {RULES[0].code} to {RULES[-1].code})")
    return found


def read_settings(start: Path) -> Settings:
    """The section of the nearest pyproject.toml at or above `start` that has one."""
    for folder in (start.resolve(), *start.resolve().parents):
        path = folder / "pyproject.toml"
        try:
            data = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        if b"kullback" not in data:
            continue
        section = _section(data, path)
        if section is not None:
            return section
    return Settings()


def _section(data: bytes, path: Path) -> Settings | None:
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError:
            raise SettingsError(f"{path}: to read {_SECTION}, Python 3.10 needs the package tomli") from None
    try:
        whole = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    tool = whole.get("tool", {}).get("kullback", {})
    if not isinstance(tool, dict) or "lint" not in tool:
        return None
    section = tool["lint"]
    if not isinstance(section, dict):
        raise SettingsError(f"{path}: {_SECTION} must be a table")
    unknown = sorted(set(section) - {"select", "ignore", "exclude"})
    if unknown:
        raise SettingsError(f"{path}: {_SECTION} has no setting {unknown[0]!r} (select, ignore, exclude)")
    exclude = section.get("exclude", [])
    if not isinstance(exclude, list) or not all(isinstance(pattern, str) for pattern in exclude):
        raise SettingsError(f"{path}: exclude in {_SECTION} must be a list of patterns")
    return Settings(
        codes(section.get("select", []), f"{path}: select"), codes(section.get("ignore", []), f"{path}: ignore"), tuple(exclude)
    )  # fmt: skip

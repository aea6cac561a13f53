"""Files, directories, notebooks and standard input → findings. One file's trouble never stops the run."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .check import Unparsable, check, parse, unparsable
from .edits import apply
from .model import Finding
from .notebooks import check_notebook, fix_notebook
from .rules.base import Rule
from .settings import SKIPPED, Settings

_PASSES = 10  # of mending: an edit may lay open or overlap another


@dataclass(frozen=True)
class Options:
    settings: Settings = field(default_factory=Settings)
    fix: bool = False


@dataclass
class Linted:
    """One file: what was found (after mending, if asked for), and the mended text where it differs."""

    path: str
    text: str  # what the findings speak of
    findings: list[Finding]
    fixed: str | None = None
    mended: int = 0
    original: str = ""
    readable: bool = True


def lint_text(text: str, path: str, rules: tuple[Rule, ...], *, notebook: bool | None = None, fix: bool = False) -> Linted:
    """Findings of one source, by its name a notebook or not."""
    is_notebook = path.endswith(".ipynb") if notebook is None else notebook
    look = check_notebook if is_notebook else check
    found = Linted(path, text, look(text, path, rules), original=text)
    if not fix:
        return found
    for _ in range(_PASSES):
        groups = [f.edits for f in found.findings if f.edits]
        if not groups:
            break
        new, count = fix_notebook(found.text, found.findings) if is_notebook else apply(found.text, groups)
        if new == found.text or not (is_notebook or _parses(new)):
            break  # never hand back what does not parse
        found = Linted(path, new, look(new, path, rules), new, found.mended + count, text)
    return found


def _parses(text: str) -> bool:
    try:
        parse(text)
    except Unparsable:
        return False
    return True


def find(paths: Iterable[str], settings: Settings) -> Iterator[Path]:
    """The Python files and notebooks under the paths, in order, each once; a file that was named is taken whatever its ending."""
    seen: set[str] = set()
    for given in paths:
        path = Path(given)
        for found in sorted(_walk(path, settings)) if path.is_dir() else [path]:
            if str(found) not in seen:
                seen.add(str(found))
                yield found


def _walk(root: Path, settings: Settings) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.endswith(".egg-info") and not settings.excludes(here / f))
        for name in names:
            if name.endswith((".py", ".pyi", ".ipynb", ".pyw")) and not settings.excludes(here / name) and (here / name).is_file():
                yield here / name  # not a named pipe, which would be waited for


def encoding_of(data: bytes) -> str:
    """As Python reads source: by a byte-order mark or a coding comment, UTF-8 otherwise."""
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]


def decode(data: bytes) -> str:
    """The text of a source. Line ends stay."""
    try:
        return data.decode(encoding_of(data))
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unparsable(str(error), 1, 1) from None


def run(paths: Iterable[str], options: Options) -> Iterator[Linted]:
    """Lint what the paths name; mended files are written only where `fix` is set."""
    rules = options.settings.rules()
    for path in find(paths, options.settings):
        name = str(path)
        try:
            data = path.read_bytes()
            text = decode(data)
        except OSError as error:
            yield Linted(name, "", [unparsable(name, Unparsable(f"cannot be read ({error.strerror})", 1, 1))], readable=False)
            continue
        except Unparsable as error:
            yield Linted(name, "", [unparsable(name, error)])
            continue
        yield lint_text(text, name, rules, fix=options.fix)

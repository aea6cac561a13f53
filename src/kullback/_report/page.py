"""Pages from templates, and files that are written whole or not at all.

`render` fills a template of `templates/` that extends base.html; everything is escaped, and the page's policy lets only its one script run.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

from .._read import ReadError
from .._version import __version__


def jinja() -> Any:
    """The module, which a report needs."""
    try:
        import jinja2
    except ImportError:
        raise ReadError("a report needs Jinja: pip install 'kullback[cli]'") from None
    return jinja2


def render(template: str, **values: Any) -> str:
    """The page as text. `title` is among the values; `version`, `style` and `script` are added."""
    jinja2 = jinja()

    folder = resources.files(__package__).joinpath("templates")

    def load(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = load("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page: str = environment.get_template(template).render(
        version=__version__, style=load("report.css"), script=script, script_hash=f"sha256-{digest}", **values
    )
    return page


def check_target(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Can a file be made there, and is it none of the inputs (names, folders, patterns)? Said before hours of work, not after."""
    if not os.fspath(path):
        raise ReadError("cannot write to a file with no name: name it, e.g. out.html")
    for source in inputs:
        if _is_among(path, os.fspath(source)):
            raise ReadError(f"cannot write {path}: it is read, as {source}; choose another name")
    if _is_stream(path):
        return
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise ReadError(f"cannot write {path}: it is a directory")
        if os.fspath(path).endswith((os.sep, os.altsep or os.sep)):
            raise ReadError(f"cannot write {path}: that is the name of a directory; a file's has no {os.sep} at its end")
        if target.is_symlink():  # what it leads to is then no file, and never will be
            raise ReadError(f"cannot write {path}: it is a link that leads to itself")
        if not target.parent.is_dir():
            folder = (target if os.path.islink(path) else Path(path)).parent
            raise ReadError(f"cannot write {path}: there is no directory {folder}")
        with _beside(target):
            pass
    except OSError as error:
        raise ReadError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A new private file in the target's folder, which is gone at the end unless it was moved.

    Its name is known before the file is there, so an interrupt at any moment finds what to remove. The name does not contain the target's,
    which may be as long as a name can be."""
    made = target.parent / f".kullback.{secrets.token_hex(8)}"
    try:
        made.touch(0o600, exist_ok=False)
        yield made
    finally:
        try:
            _remove(made)
        except BaseException:  # a signal that came in between; the same again changes nothing for a while
            _remove(made)
            raise


def _remove(file: Path) -> None:
    with suppress(OSError):  # what went wrong before is what the caller is to hear of
        file.unlink()


def replace(target: Path, data: bytes, mode: int) -> None:
    """Write a file beside the target, then move it to the target's place: the target is always whole, the old one or the new."""
    with _beside(target) as made:
        with open(made, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(made, mode)
        os.replace(made, target)


def _is_among(path: str | os.PathLike[str], source: str) -> bool:
    if not os.path.exists(path):
        return False
    if os.path.isdir(source):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
    else:
        found = glob.glob(source, recursive=True)
    # The last report may lie among the files: no page is ever read, unless by its own name.
    files = [source, *(file for file in found if not file.lower().endswith((".html", ".htm")))]
    return any(os.path.exists(file) and os.path.samefile(file, path) for file in files)


def _is_stdout(path: str | os.PathLike[str]) -> bool:
    try:
        return sys.stdout is not None and os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """A device or a pipe, which is written to and never replaced; or standard output, whatever it leads to."""
    return _is_stdout(path) or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """A full disk or an interrupt leaves what was there before, or nothing. A link stays, and its target is replaced. A device or a pipe is
    written to."""
    if _is_stream(path):
        _write_stream(path, text)
        return
    mask = os.umask(0)
    os.umask(mask)
    target = Path(os.path.realpath(path))
    try:
        replace(target, text.encode(), 0o666 & ~mask)
    except OSError as error:
        left = "; nothing was left there" if target.parent.is_dir() else ""
        raise ReadError(f"cannot write {path}: {error.strerror or error}{left}") from None


def _write_stream(path: str | os.PathLike[str], text: str) -> None:
    try:
        # Opened anew, standard output that leads to a file would begin again at its start.
        handle = os.dup(1) if _is_stdout(path) else os.open(path, os.O_WRONLY)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise ReadError(f"cannot write {path}: {error.strerror or error}") from None

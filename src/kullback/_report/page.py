"""Pages from templates, and files that are written whole or not at all.

`render` fills a template of `templates/` that extends base.html; everything is escaped, and the page's policy lets only its one script run.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from .._read import ReadError


def jinja() -> Any:
    """The module, which a report needs."""
    try:
        import jinja2
    except ImportError:
        raise ReadError("a report needs Jinja: pip install 'kullback[cli]'") from None
    return jinja2


def render(template: str, **values: Any) -> str:
    """The page as text. `title` is among the values; `version`, `style` and `script` are added."""
    from .. import __version__

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
        handle, beside = _make_beside(target)
        try:
            os.close(handle)
        finally:
            os.unlink(beside)
    except OSError as error:
        raise ReadError(f"cannot write {path}: {error.strerror or error}") from None


def _make_beside(target: Path) -> tuple[int, str]:
    return tempfile.mkstemp(prefix=".kullback.", dir=target.parent)  # the target's own name may be as long as one can be


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
    """Beside it first, then in its place: a full disk or an interrupt leaves what was there before, or nothing. A link stays, and what it
    points to is replaced. A device or a pipe is written to."""
    if _is_stream(path):
        _write_stream(path, text)
        return
    target = Path(os.path.realpath(path))
    try:
        handle, beside = _make_beside(target)
    except OSError as error:
        raise ReadError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # As any new file of this user's would be; mkstemp makes it private.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(beside, 0o666 & ~mask)
        os.replace(beside, target)
    except BaseException as error:
        Path(beside).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ReadError(f"cannot write {path}: {error.strerror or error}; nothing was left there") from None
        raise


def _write_stream(path: str | os.PathLike[str], text: str) -> None:
    try:
        # Opened anew, standard output that leads to a file would begin again at its start.
        handle = os.dup(1) if _is_stdout(path) else os.open(path, os.O_WRONLY)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise ReadError(f"cannot write {path}: {error.strerror or error}") from None

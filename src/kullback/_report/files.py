"""Reports and profiles as files: is the name good, and then the whole file or nothing."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from kullback_files import beside, replace

from .._errors import Unwritable


def check_target(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Raise if the file cannot be written, or if it is among the inputs (names, folders, patterns).

    The command calls this before hours of work, not after."""
    if not os.fspath(path):
        raise Unwritable("cannot write to a file with no name: name it, e.g. out.html")
    for source in inputs:
        if _is_among(path, os.fspath(source)):
            raise Unwritable(f"cannot write {path}: it is read, as {source}; choose another name")
    if _is_stream(path):
        return
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise Unwritable(f"cannot write {path}: it is a directory")
        if os.fspath(path).endswith((os.sep, os.altsep or os.sep)):
            raise Unwritable(f"cannot write {path}: that is the name of a directory; a file's has no {os.sep} at its end")
        if target.is_symlink():  # what it leads to is then no file, and never will be
            raise Unwritable(f"cannot write {path}: it is a link that leads to itself")
        if not target.parent.is_dir():
            folder = (target if os.path.islink(path) else Path(path)).parent
            raise Unwritable(f"cannot write {path}: there is no directory {folder}")
        with beside(target):
            pass
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from None


def _is_among(path: str | os.PathLike[str], source: str) -> bool:
    if not os.path.exists(path):
        return False
    if os.path.isdir(source):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
    else:
        found = glob.glob(source, recursive=True)
    # The last report may lie among the files. Pages count as inputs only if they are named.
    files = [source, *(file for file in found if not file.lower().endswith((".html", ".htm")))]
    return any(os.path.exists(file) and os.path.samefile(file, path) for file in files)


def _is_stdout(path: str | os.PathLike[str]) -> bool:
    try:
        return sys.stdout is not None and os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """A device or a pipe, which is never replaced, or standard output, wherever it leads."""
    return _is_stdout(path) or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file. A full disk or an interrupt leaves the old file, or nothing.

    A link stays, and its target is replaced. A device or a pipe is written to."""
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
        raise Unwritable(f"cannot write {path}: {error.strerror or error}{left}") from None


def _write_stream(path: str | os.PathLike[str], text: str) -> None:
    try:
        # Opened anew, standard output that leads to a file would begin again at its start.
        handle = os.dup(1) if _is_stdout(path) else os.open(path, os.O_WRONLY)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from None

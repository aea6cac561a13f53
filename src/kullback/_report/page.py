"""Pages from templates, and files that are written whole or not at all.

`render` fills a template of `templates/` that extends base.html; everything is escaped, and the page's policy lets only its one script run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from .._read import ReadError


def render(template: str, **values: Any) -> str:
    """The page as text. `title` is among the values; `version`, `style` and `script` are added."""
    try:
        import jinja2
    except ImportError:
        raise ReadError("a report needs Jinja: pip install 'kullback[cli]'") from None
    from .. import __version__

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


def check_target(path: str | os.PathLike[str]) -> None:
    """Can a file be made there? Said before hours of work, not after."""
    target = Path(path)
    if target.is_dir():
        raise ReadError(f"cannot write {target}: it is a directory")
    if not target.parent.is_dir():
        raise ReadError(f"cannot write {target}: there is no directory {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise ReadError(f"cannot write {target}: its directory may not be written to")


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Beside it first, then in its place: a full disk or an interrupt leaves what was there before, or nothing."""
    target = Path(path)
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise ReadError(f"cannot write {target}: {error.strerror or error}") from None
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
            raise ReadError(f"cannot write {target}: {error.strerror or error}; nothing was left there") from None
        raise

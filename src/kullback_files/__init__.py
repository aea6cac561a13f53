"""Files that are written whole or not at all.

The library writes profiles and reports with it, and `kullback lint --fix` writes source files with it. It needs
the standard library only. It is not a module of kullback, because `import kullback` loads NumPy, and the linter
must not.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A new private file in the target's folder. At the end it is removed, unless the caller has moved it.

    Its name is known before the file exists, so that an interrupt at any moment leaves nothing behind. The
    name does not contain the target's name, which may be as long as the system allows."""
    made = target.parent / f".kullback.{secrets.token_hex(8)}"
    try:
        made.touch(0o600, exist_ok=False)
        yield made
    finally:
        try:
            _remove(made)
        except BaseException:  # a signal came first; further signals are ignored for a while
            _remove(made)
            raise


def _remove(file: Path) -> None:
    with suppress(OSError):  # an earlier error matters more to the caller
        file.unlink()


def replace(target: Path, data: bytes, mode: int) -> None:
    """Write a file beside the target and move it to its place. The target is always whole: old or new."""
    with beside(target) as made:
        with open(made, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(made, mode)
        os.replace(made, target)

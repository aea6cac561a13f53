"""Other libraries' functions replaced by ours, for a while or for good, and put back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# (module, name, replacement)
Replacement = tuple[Any, str, Any]


class Patch:
    """A set of replacements in place while anyone asks for them: blocks may nest, and overlap on several threads."""

    def __init__(self, replacements: Sequence[Replacement]) -> None:
        self._replacements = replacements
        self._originals: list[Any] = []
        self._blocks = 0
        self._installed = False
        self._lock = threading.Lock()

    def _update(self, *, blocks: int = 0, installed: bool | None = None) -> None:
        with self._lock:
            self._blocks += blocks
            self._installed = self._installed if installed is None else installed
            wanted = self._installed or self._blocks > 0
            if wanted and not self._originals:
                self._originals = [getattr(module, name) for module, name, _ in self._replacements]
                for module, name, ours in self._replacements:
                    setattr(module, name, ours)
            elif not wanted and self._originals:
                for (module, name, ours), original in zip(self._replacements, self._originals):
                    if getattr(module, name) is ours:  # else someone has replaced it after us, and it is theirs
                        setattr(module, name, original)
                self._originals = []

    def install(self) -> None:
        self._update(installed=True)

    def uninstall(self) -> None:
        self._update(installed=False)

    @contextmanager
    def patched(self) -> Iterator[None]:
        self._update(blocks=1)
        try:
            yield
        finally:
            self._update(blocks=-1)

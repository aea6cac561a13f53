"""What patched(), install() and uninstall() promise, whichever library they patch: each check takes a `Surface`.

Run by test_patching.py for PyTorch and JAX, and by keras_script.py on each backend of Keras, which takes a process of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Surface(NamedTuple):
    """`module` has the three functions; `who()` says whose functions are in place, "ours" or "theirs"; `place` is one of these names."""

    module: Any
    who: Callable[[], str]
    place: tuple[Any, str]


def restores_after_nesting_and_exceptions(surface: Surface) -> None:
    patched, who = surface.module.patched, surface.who
    assert who() == "theirs"
    with patched():
        assert who() == "ours"
        with patched():
            assert who() == "ours"
        assert who() == "ours"
    assert who() == "theirs"
    with contextlib.suppress(ZeroDivisionError), patched():
        raise ZeroDivisionError
    assert who() == "theirs"


def installs_and_uninstalls(surface: Surface) -> None:
    module, who = surface.module, surface.who
    try:
        module.install()
        module.install()
        with module.patched():
            pass
        assert who() == "ours"
        with module.patched():
            module.uninstall()
            assert who() == "ours"
        assert who() == "theirs"
    finally:
        module.uninstall()
    module.uninstall()
    assert who() == "theirs"


def counts_overlapping_threads(surface: Surface) -> None:
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]

    def block(i: int) -> None:
        with surface.module.patched():
            inside.wait(10)
            leave[i].wait(10)

    threads = [threading.Thread(target=block, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    leave[0].set()
    threads[0].join(10)
    assert surface.who() == "ours"  # the other is still inside
    leave[1].set()
    threads[1].join(10)
    assert surface.who() == "theirs"


def leaves_a_later_patch_by_someone_else_alone(surface: Surface) -> None:
    original = getattr(*surface.place)

    def someone_elses() -> None:
        pass

    try:
        with surface.module.patched():
            setattr(*surface.place, someone_elses)
        assert getattr(*surface.place) is someone_elses
    finally:
        setattr(*surface.place, original)
    assert surface.who() == "theirs"


CHECKS = [
    restores_after_nesting_and_exceptions,
    installs_and_uninstalls,
    counts_overlapping_threads,
    leaves_a_later_patch_by_someone_else_alone,
]

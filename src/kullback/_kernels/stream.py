"""Work on a stream of blocks, several at a time, with what comes out in order: a thread takes a block from where it is read to its
figures, and waits for no other. What blocks are, and what is done with them, it does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .cpu import on_threads


def in_order(
    tasks: Sequence[Any], read: Callable[[Any], Any], work: Callable[[Any], Any], take: Callable[[Any], None], *, size: int
) -> None:
    """take(work(read(task))) for each task.

    `read` is called for one task after another, by any thread; `work` on several threads at once; `take` in the order of the tasks, in the
    caller's thread. What any of them raises is raised here, the first task's first, after what came before it was taken. `size`: how many
    elements there are in all.
    """
    reading = threading.Lock()
    caller = threading.get_ident()
    found: dict[int, tuple[Any, Exception | None]] = {}
    taken, stopped = 0, False

    def job(queue: Iterator[int]) -> None:
        nonlocal stopped
        try:
            while not stopped:
                with reading:
                    number = next(queue, None)
                    if number is None:
                        return
                    try:
                        block = read(tasks[number])
                    except Exception as error:
                        found[number], stopped = (None, error), True
                        return
                try:
                    found[number] = work(block), None
                except Exception as error:
                    found[number], stopped = (None, error), True
                del block
                if threading.get_ident() == caller:
                    settle()
        except BaseException:
            stopped = True  # the others need not go on
            raise

    def settle() -> None:
        nonlocal taken
        while taken in found:
            result, error = found.pop(taken)
            if error is not None:
                raise error
            take(result)
            taken += 1

    on_threads(job, list(range(len(tasks))), size)
    settle()

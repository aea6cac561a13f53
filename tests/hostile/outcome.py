"""The outcome of a case is the right number, one of our errors, or a file refused with its name. Everything else is a failure."""

from __future__ import annotations

import ast
import functools
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import kullback

PACKAGE = Path(kullback.__file__).resolve().parent

RIGHT, ERROR, REFUSED, FAILURE = "right", "documented error", "refused", "failure"
# Words from the errors of interpreters and frameworks. They tell users nothing about their input.
INTERNAL = (
    "'NoneType'", "of NoneType",
    "object has no attribute", "unexpected keyword", "positional argument", "invalid data type",
    "not iterable", "not subscriptable", "unsupported operand", "dtype('O')", "could not be broadcast",
    "operands could not", "reshape array", "cannot reshape", "Traceback", "INTERNAL ASSERT", "index out of range", "not supported for",
    "not implemented for", "np.str_", "numpy.ndarray",
)  # fmt: skip


class Outcome(NamedTuple):
    status: str
    why: str = ""

    @property
    def failed(self) -> bool:
        return self.status == FAILURE


class TookTooLong(BaseException):
    """A BaseException, so that no handler of ours takes it for an error of the input."""


@functools.cache
def _raises(file: str) -> list[tuple[int, int]]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return [(node.lineno, node.end_lineno or node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Raise)]


def place(error: BaseException) -> str:
    """The module and line that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def last_of_ours(error: BaseException) -> str:
    """The last line of kullback in the traceback. Failures that share this line most likely share their cause."""
    found = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(PACKAGE)]
    return f"{Path(found[-1].filename).relative_to(PACKAGE)}:{found[-1].lineno}" if found else "?"


def is_ours(error: BaseException) -> str | None:
    """None if a `raise` statement of ours made this error and its sentence speaks of the input; else what is wrong with it."""
    described = f"{type(error).__name__}: {str(error)[:300]}"
    if not isinstance(error, (ValueError, TypeError)):
        return f"{described} (at {last_of_ours(error)})"
    frames = traceback.extract_tb(error.__traceback__)
    file, line = frames[-1].filename, frames[-1].lineno or 0
    if not Path(file).resolve().is_relative_to(PACKAGE) or not any(a <= line <= b for a, b in _raises(file)):
        return f"{described} (not ours, raised at {place(error)} below {last_of_ours(error)})"
    return sentence_fault(str(error))


def sentence_fault(message: str) -> str | None:
    """The fault of an error's sentence, or None."""
    if not message.strip() or "\n" in message.strip():
        return f"an error that is not one sentence: {message[:300]!r}"
    inside = next((word for word in INTERNAL if word in message), None)
    return None if inside is None else f"an error that speaks of internals ({inside!r}): {message[:300]!r}"


def of_exception(error: BaseException) -> Outcome:
    wrong = is_ours(error)
    return Outcome(ERROR, str(error)[:200]) if wrong is None else Outcome(FAILURE, wrong)


def failure(why: str, *parts: Any) -> Outcome:
    return Outcome(FAILURE, why.format(*parts) if parts else why)

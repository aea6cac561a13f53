"""The sentences of the library's errors, for users of the command, who know options instead of arguments."""

from __future__ import annotations

from kullback._errors import KullbackError, NotComparable, Option, sentence


def of_error(error: Exception) -> str:
    """The sentence of an error."""
    parts = error.parts if isinstance(error, KullbackError) else ()
    found = None if isinstance(error, NotComparable) else getattr(error, "complaint", None)
    if found is not None:  # about one of two distributions, without weights; comparisons say where a row is
        parts = sentence(found, found.side, "", f"pass {_spelled(Option('prior'))} to add pseudo-counts")
    return "".join(map(_spelled, parts)) or str(error)


def _spelled(part: object) -> str:
    if not isinstance(part, Option):
        return str(part)
    name, value = f"--{part.name.replace('_', '-')}", part.value
    if value in (None, True):
        return name
    return f"{name} {','.join(value) if isinstance(value, tuple) else value}"

"""The sentences of the library's errors, for users of the command, who know options instead of arguments."""

from __future__ import annotations

from kullback._errors import InvalidValue, KullbackError, NotComparable, Option, sentence


def of_error(error: Exception) -> str:
    """The sentence of an error."""
    parts = error.parts if isinstance(error, KullbackError) else ()
    if isinstance(error, InvalidValue) and error.complaint is not None and not isinstance(error, NotComparable):
        # One distribution on each side, without weights. Comparisons of files say where the row is.
        add = f"pass {_spelled(Option('prior'))} to add pseudo-counts"
        parts = sentence(error.complaint, error.complaint.side, "", add)
    return "".join(map(_spelled, parts)) or str(error)


def _spelled(part: object) -> str:
    if not isinstance(part, Option):
        return str(part)
    name, value = f"--{part.name.replace('_', '-')}", part.value
    return name if value in (None, True) else f"{name} {','.join(value) if isinstance(value, tuple) else value}"

"""The exceptions that kullback raises, and the sentence about an invalid row.

Each class is also the built-in exception that callers would expect, so `except ValueError` catches it. Errors carry
data for the command and for comparisons of files, which use other words: the `Complaint` about a row, and the
options that a sentence names. This module imports nothing of kullback.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

PLURAL = {"probs": "probabilities", "log_probs": "log-probabilities", "logits": "logits", "counts": "counts"}


class Complaint(NamedTuple):
    """Why a row is not a distribution."""

    #: The name of the argument, such as "p" or "student". It is "" if both sides are possible.
    side: str
    #: Where the row is in the batch.
    row: tuple[int, ...]
    #: "negative", "sum", "no_mass", "plus_inf", "not_finite" or "nan".
    problem: str
    #: The number that is wrong, or the sum.
    value: float | None
    #: Where that number is in the row.
    category: int | None
    #: The form that the row was given in.
    form: str
    #: The form that it looks like.
    likely: str | None
    #: The forms of all sides, as given.
    forms: tuple[str, ...]


class Option(NamedTuple):
    """An argument that a sentence names: `allow_partial=True`, which the command spells `--allow-partial`."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return f"{self.name}={'' if self.value is None else repr(self.value)}"


class KullbackError(Exception):
    """Any error that kullback raises on purpose."""

    #: The message in pieces, if it names options.
    parts: tuple[object, ...] = ()
    if not TYPE_CHECKING:
        # tf.function replaces an error by one of its own class, unless the error's method is this very one.
        __init__ = Exception.__init__


class InvalidValue(KullbackError, ValueError):
    """Numbers that are not a distribution, or arrays whose shapes do not match."""

    #: The first invalid row, if the error is about a row.
    complaint: Complaint | None = None


class NotComparable(InvalidValue):
    """A row that `compare` or `Comparison` cannot compare. The complaint counts rows as the message does."""

    complaint: Complaint


class InvalidOption(KullbackError, ValueError):
    """An argument such as `form`, `axis` or `reduction` with a value that it does not take."""


class WrongType(KullbackError, TypeError):
    """An argument of a type that is not accepted there."""


class CannotRun(KullbackError, RuntimeError):
    """Something that was asked for, such as `impl="triton"`, does not run here."""


class NoClosedForm(KullbackError, NotImplementedError):
    """No formula is registered for KL between these two distributions."""


class Unreadable(KullbackError, ValueError):
    """A file, a table or a typed distribution that cannot be read."""


class Unwritable(Unreadable):
    """A report or a profile that cannot be written."""


# Tracebacks and pickles name a class as its users do, wherever it is defined.
for _public in (Complaint, KullbackError, *KullbackError.__subclasses__(), NotComparable, Unwritable):
    _public.__module__ = "kullback"

Error = TypeVar("Error", bound=KullbackError)


def saying(kind: type[Error], *parts: object, **data: object) -> Error:
    """An error whose message consists of these parts, text and Options, and that carries these data."""
    error = kind("".join(map(str, parts)))
    vars(error).update(data, parts=parts)
    return error


def one_of(name: str, given: object, allowed: Collection[object]) -> None:
    """Raise unless the argument takes this value."""
    if given not in allowed:
        raise InvalidOption(f"{name} is {given!r}: it must be one of {', '.join(map(repr, allowed))}")


def what_is_wrong(complaint: Complaint) -> str:
    """The problem of a row, without its place and without advice."""
    problem, form = complaint.problem, complaint.form
    if problem == "no_mass":
        return {"probs": "sums to 0, not 1", "counts": "has no counts at all"}.get(form, "is -inf everywhere")
    if problem == "sum":
        sums = "has exponentials that sum" if form == "log_probs" else "sums"
        return f"{sums} to {complaint.value:.6g}, not 1"
    if problem in ("negative", "plus_inf"):
        return f"holds {complaint.value:{'+' if problem == 'plus_inf' else ''}.6g} at category {complaint.category}"
    return "holds NaN" if problem == "nan" else "holds inf"


def sentence(complaint: Complaint, place: str, leave_out: str, no_counts: str) -> tuple[object, ...]:
    """The problem of a row and the advice against it, as text and Options.

    Callers pass the advice about a row without mass: how to leave the row out ("" if they cannot), and what to do
    about a row without counts."""
    problem, form, likely = complaint.problem, complaint.form, complaint.likely
    start = f"{place} {what_is_wrong(complaint)}"
    if problem == "nan":
        return (start,)
    if problem == "no_mass" and form == "counts":
        return (f"{start}: {no_counts}",)
    if problem == "no_mass":
        return (f"{start}: no category has any probability{'; ' if leave_out else ''}{leave_out}",)
    if problem == "plus_inf":
        return (f"{start}: a logit may be -inf (probability 0) but not +inf",)
    if likely is None:
        return (f"{start}: {PLURAL[form]} are {'not negative' if problem == 'negative' else 'finite'}",)
    return (f"{start}: {PLURAL[likely]}? pass ", *_suggested(complaint, likely))


def _suggested(complaint: Complaint, likely: str) -> tuple[object, ...]:
    side, forms = complaint.side, complaint.forms
    # A caller who named one form for both most likely has two of the other.
    if len(set(forms)) == 1:
        return (Option("form", likely),)
    if side.lower() not in ("p", "q"):  # whose pairs of forms may be in another order
        return (Option("form", likely), f" for {side}")
    return (Option("form", (likely, forms[1]) if side.lower() == "p" else (forms[0], likely)),)


def invalid_row(complaint: Complaint) -> InvalidValue:
    """The error about a row of a caller's arrays, in Python's words."""
    row = complaint.row[0] if len(complaint.row) == 1 else complaint.row
    place = complaint.side + (f" row {row}" if complaint.row else "")
    leave_out = "give the row weight 0"
    add = f"pass {Option('prior')} to add pseudo-counts, or {leave_out}"
    parts = sentence(complaint, place, f"{leave_out} to leave it out", add)
    return saying(InvalidValue, *parts, complaint=complaint)

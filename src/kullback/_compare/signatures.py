"""The arguments of `compare`, for type checkers. A test compares the options with the functions behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict

from .tables.profile import Profile

FileName = str | os.PathLike[str]


class ArrayLike(Protocol):
    """An array of any framework."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


class Frame(Protocol):
    """A table of pandas, polars or Arrow."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class SparkFrame(Protocol):
    @property
    def sparkSession(self) -> Any: ...


# Not any tuple, because a profile is a tuple.
ModelOutput = FileName | ArrayLike | list[Any] | tuple[Sequence[Any] | ArrayLike, ...]
TableLike = Frame | SparkFrame | Profile


class ModelOptions(TypedDict, total=False):
    form: str | tuple[str, str] | None
    tokens: Any
    base: float | None
    top: int
    allow_partial: bool
    progress: Callable[[int, int], None] | None


class TableOptions(TypedDict, total=False):
    columns: Sequence[str] | None
    pairs: Sequence[str | tuple[str, str]] | None
    bins: int | None
    levels: int | None
    prior: float
    base: float | None
    common: bool
    delimiter: str | None
    engine: str
    master: str | None
    memory: str
    progress: bool

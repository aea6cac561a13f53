"""How each library's distribution classes are read into records. A file has the table of one library.

Every reader declares the families of its records, so that no object is needed to list a library's pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..families import Record

# (an object) -> its record
Read = Callable[[Any], Record]


class Reader(NamedTuple):
    """How objects of one class are read, and which families their records belong to.

    `make(d, read)` gives the record of an object d. It calls `read` for the distributions that d is made of.
    """

    families: tuple[type[Record], ...]
    make: Callable[..., Record]


def reads_into(*families: type[Record]) -> Callable[[Callable[..., Record]], Reader]:
    """Make a reader of the function below, which returns records of these families only."""
    return lambda make: Reader(families, make)

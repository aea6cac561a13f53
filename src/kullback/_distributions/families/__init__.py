"""Families of distributions as light records: their parameters, nothing else. Public as `kullback.distributions`.

Every library's objects are read into records (`adapters`). The closed forms take pairs of records (`closed`).
So each formula serves all frameworks. Parameters may be numbers, lists or arrays of any framework.
They broadcast.
"""

# ruff: noqa: F403  each file lists its families

from . import counts, interval, line, matrices, positive, structure, vectors
from .base import Record as Record
from .counts import *
from .interval import *
from .line import *
from .matrices import *
from .positive import *
from .structure import *
from .vectors import *

_FILES = (counts, interval, line, matrices, positive, structure, vectors)
FAMILIES: tuple[type[Record], ...] = tuple(getattr(file, name) for file in _FILES for name in file.__all__)

"""Families of distributions as light records: their parameters, nothing else. Public as `kullback.distributions`.

Every library's objects are read into these (`adapters`). The closed forms are formulas for pairs of these (`closed`), so that each formula
serves all frameworks. Parameters may be numbers, lists or arrays of any framework, and broadcast.
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

FAMILIES: tuple[type[Record], ...] = tuple(
    getattr(module, name) for module in (counts, interval, line, matrices, positive, structure, vectors) for name in module.__all__
)

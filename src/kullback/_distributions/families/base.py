"""The base class of all families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from ..._ops import ops_of

Array = Any

# By family, the parameters that are arrays: asked for with every call.
_names: dict[type, tuple[str, ...]] = {}


@dataclass(frozen=True, eq=False)
class Record:
    """A distribution given by its parameters."""

    # Parameters that must be positive, at least 0, and between 0 and 1.
    # The number of trailing axes of each parameter that belong to one event, and of axes of an event.
    positive: ClassVar[tuple[str, ...]] = ()
    non_negative: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[tuple[str, ...]] = ()
    parameter_ndims: ClassVar[dict[str, int]] = {}
    event_ndim: ClassVar[int] = 0
    # The support of the family, one of `supports.NAMES`. Other families have "".
    support: ClassVar[str] = ""
    # Other families that hold every distribution of this one: the types of `same_law`, in its order.
    also: ClassVar[tuple[type[Record], ...]] = ()

    def parameters(self) -> dict[str, Array]:
        kind = type(self)
        if kind not in _names:
            _names[kind] = tuple(f.name for f in fields(self) if f.metadata.get("array", True))
        held = self.__dict__
        return {name: held[name] for name in _names[kind]}

    def with_parameters(self, arrays: Iterable[Array]) -> Any:
        """The same family, of these parameters in their order."""
        # Past the frozen dataclass's own way, which takes longer than some formulas.
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(zip(self.parameters(), arrays))
        return made

    def same_law(self) -> Iterator[Record]:
        """The same distribution as a member of other families, nearest first."""
        yield from ()


def exponential(x: Any) -> Array:
    """e^x, of a number, a list or an array of any framework."""
    return getattr(ops_of(x), "exp", np.exp)(x)

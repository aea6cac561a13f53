"""Other libraries' distribution objects, read into records. Parameters are taken as the object stores them.

A class is known by its name and the library it comes from (`readers`), so no library needs to be imported for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._ops import ops_of
from .families import FAMILIES, Record
from .readers import Read, Reader, from_distrax, from_numpyro, from_scipy, from_tfp, from_torch

# Short names of the libraries, by the module of their classes. One reader serves both substrates of TFP.
ECOSYSTEMS = {
    "torch.distributions": "torch",
    "numpyro.distributions": "numpyro",
    "tensorflow_probability": "tfp",
    "distrax": "distrax",
    "scipy.stats": "scipy",
}
OWN = "kullback"
LIBRARIES: dict[str, dict[str, Reader]] = {
    "torch.distributions": from_torch.TABLE,
    "numpyro.distributions": from_numpyro.TABLE,
    "tensorflow_probability": from_tfp.TABLE,
    "distrax": from_distrax.TABLE,
    "scipy.stats": from_scipy.TABLE,
}


def is_distribution(x: Any) -> bool:
    """Is it an object of a library, or a record, and not an array, a number, a list or a mapping?"""
    if isinstance(x, Record):
        return True
    if x is None or isinstance(x, (bool, int, float, list, tuple, dict, np.ndarray)):
        return False
    if "torch" in sys.modules:
        import torch  # torch.compile follows this import, but not the lines below

        if isinstance(x, torch.Tensor):
            return False
        if isinstance(x, torch.distributions.Distribution):
            return True
    return ops_of(x) is None and any(cls.__module__.startswith(tuple(LIBRARIES)) for cls in type(x).__mro__)


def name_of(d: Any) -> str:
    return d.dist.name if hasattr(d, "dist") else type(d).__name__


def read(d: Any) -> Record:
    if isinstance(d, Record):
        return d
    kind = type(d)
    if kind not in _makers:
        found = _find_maker(kind)
        if found is None:
            raise TypeError(f"{kind.__module__}.{kind.__name__} is not a family kullback knows")
        _makers[kind] = found
    return _makers[kind](d, read)


_JAX = ("numpyro.", "distrax.", "tensorflow_probability.substrates.jax")


def at_home(value: Any, d: Any) -> Any:
    """A NumPy result as an array of the framework of d's library. numpyro and distrax keep NumPy arrays and numbers as parameters."""
    kind = type(d)
    if kind not in _jax_kinds:
        _jax_kinds[kind] = any(cls.__module__.startswith(_JAX) for cls in kind.__mro__)
    if not _jax_kinds[kind]:
        return value
    import jax.numpy as jnp

    return jnp.asarray(value)


_jax_kinds: dict[type, bool] = {}

_makers: dict[type, Callable[[Any, Read], Record]] = {}


def _find_maker(kind: type) -> Callable[[Any, Read], Record] | None:
    for cls in kind.__mro__:
        for prefix, readers in LIBRARIES.items():
            if cls.__module__.startswith(prefix):
                if prefix == "scipy.stats" and cls.__name__ == "rv_frozen":
                    return from_scipy.univariate
                if cls.__name__ in readers:
                    return readers[cls.__name__].make
    return None


def ecosystem_of(kind: type) -> str | None:
    """The library that a class, or one it inherits from, belongs to."""
    for cls in kind.__mro__:
        if issubclass(cls, Record):
            return OWN
        for prefix, name in ECOSYSTEMS.items():
            if cls.__module__.startswith(prefix):
                return name
    return None


def families_of(kind: type) -> set[type[Record]]:
    """The families of the records that objects of exactly this class are read into."""
    if issubclass(kind, Record):
        return {kind}
    for prefix, readers in LIBRARIES.items():
        if kind.__module__.startswith(prefix) and kind.__name__ in readers:
            return set(readers[kind.__name__].families)
    return set()


def families_by_ecosystem() -> dict[str, set[type[Record]]]:
    """The families that each library has. kullback has all of them."""
    found = {OWN: set(FAMILIES)}
    for prefix, readers in LIBRARIES.items():
        found[ECOSYSTEMS[prefix]] = {family for reader in readers.values() for family in reader.families}
    return found

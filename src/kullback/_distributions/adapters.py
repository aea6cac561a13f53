"""Other libraries' distribution objects, read into records. Parameters are taken as the object stores them.

A class is known by its name and the library it comes from (`readers`), so no library needs to be imported for it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .._ops import ops_of
from .families import Record
from .readers import from_distrax, from_numpyro, from_scipy, from_tfp, from_torch
from .readers.shared import Reader


def is_distribution(x: Any) -> bool:
    """Is it an object of a library, or a record, and not an array, a number, a list or a mapping?"""
    if isinstance(x, Record):
        return True
    if x is None or isinstance(x, (bool, int, float, list, tuple, dict, np.ndarray)):
        return False
    if "torch" in sys.modules:
        import torch  # torch.compile follows this, and none of what is below

        if isinstance(x, torch.Tensor):
            return False
        if isinstance(x, torch.distributions.Distribution):
            return True
    modules = (*LIBRARIES, "scipy.stats")
    return ops_of(x) is None and any(cls.__module__.startswith(modules) for cls in type(x).__mro__)


def name_of(d: Any) -> str:
    return d.dist.name if hasattr(d, "dist") else type(d).__name__


def read(d: Any) -> Record:
    if isinstance(d, Record):
        return d
    kind = type(d)
    if kind not in _readers:
        found = _find_reader(kind)
        if found is None:
            raise TypeError(f"{kind.__module__}.{kind.__name__} is not a family kullback knows")
        _readers[kind] = found
    return _readers[kind](d)


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

# By the module a class is defined in.
LIBRARIES: dict[str, dict[str, Reader]] = {
    "torch.distributions": from_torch.table(read),
    "numpyro.distributions": from_numpyro.table(read),
    "tensorflow_probability": from_tfp.table(read),
    "distrax": from_distrax.table(read),
}
_readers: dict[type, Reader] = {}


def _find_reader(kind: type) -> Reader | None:
    for cls in kind.__mro__:
        for prefix, readers in LIBRARIES.items():
            if cls.__module__.startswith(prefix) and cls.__name__ in readers:
                return readers[cls.__name__]
        if cls.__module__.startswith("scipy.stats"):
            if cls.__name__ == "rv_frozen":
                return from_scipy.univariate
            if cls.__name__ in from_scipy.MULTIVARIATE:
                return from_scipy.MULTIVARIATE[cls.__name__]
    return None

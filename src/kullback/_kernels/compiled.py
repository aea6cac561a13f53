"""The compiled kernels of comparisons, `comparison.c` and `clipped.h`, if installed: there are systems without a C compiler.

Loads a library, nothing more. ctypes lets other threads run while it works.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = Any

# One of these a row, as `Row` of comparison.c has it, and as `Pooled` of clipped.h.
ROW = np.dtype(
    [(name, "f8") for name in ("kl_pq", "kl_qp", "js", "log_p", "log_q")] + [(name, "i8") for name in ("top_p", "top_q", "decided")]
)
POOLED_ROW = np.dtype(ROW.descr + [(name, "f8") for name in ("bucket_p", "bucket_q", "theirs")])
# NumPy has no bfloat16: here its bits are told from whole numbers by a name.
BFLOAT16 = np.dtype([("bfloat16", "u2")])
# Types of numbers, by their place in comparison.c.
TYPES = (np.dtype("f4"), np.dtype("f8"), np.dtype("f2"), BFLOAT16)


class _Arrays(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("type_x", ctypes.c_int32),
        ("type_y", ctypes.c_int32),
        ("logs", ctypes.c_int32),
        ("tolerances", ctypes.c_double * 2),
        ("columns", ctypes.c_int64),
        ("chosen", ctypes.c_void_p),
    ]


class _Stored(ctypes.Structure):
    _fields_ = [
        ("codes", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        ("low", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("tolerance", ctypes.c_double),
    ]


class _Clipped(ctypes.Structure):
    _fields_ = [("p", _Stored), ("q", _Stored), ("columns", ctypes.c_int64), ("chosen", ctypes.c_void_p)]


class Kernels(NamedTuple):
    """compare(x, y, logs, tolerances, chosen, rows): of two contiguous (n, categories) arrays of TYPES, into n entries of ROW.

    compare_clipped(p, q, chosen, rows): of two sides that are each (codes, scale, low), as a llama.cpp file has them, codes one after
    another within a row, or (a contiguous array of TYPES, tolerance), logarithms of weights whose sum may be off from 1 by that, into n
    entries of POOLED_ROW.
    """

    compare: Callable[..., None]
    compare_clipped: Callable[..., None]


def _at(x: Array | None) -> int | None:
    return None if x is None else x.ctypes.data


def _stored(side: Any) -> _Stored:
    if len(side) == 2:
        numbers, tolerance = side
        return _Stored(numbers=_at(numbers), type=TYPES.index(numbers.dtype), tolerance=tolerance)
    codes, scale, low = side
    return _Stored(_at(codes), codes.strides[0] // codes.itemsize, _at(scale), _at(low))


def load(path: Path) -> Kernels:
    """Raises OSError, AttributeError or ValueError if this is no such library, or not of this version."""
    library = ctypes.CDLL(str(path))
    sizes = ctypes.sizeof(_Arrays), ROW.itemsize, ctypes.sizeof(_Clipped), POOLED_ROW.itemsize
    if tuple((ctypes.c_int64 * len(sizes)).in_dll(library, "kullback_sizes")) != sizes:
        raise OSError(f"{path} is of another version")
    of_arrays, of_clipped = library.kullback_compare, library.kullback_compare_clipped
    of_arrays.argtypes = [ctypes.POINTER(_Arrays), ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    of_clipped.argtypes, of_clipped.restype = [ctypes.POINTER(_Clipped), ctypes.c_int64, ctypes.c_void_p], None

    def compare(x: Array, y: Array, logs: bool, tolerances: tuple[float, float], chosen: Array | None, rows: Array) -> None:
        arrays = _Arrays(
            _at(x), _at(y), TYPES.index(x.dtype), TYPES.index(y.dtype), logs, (ctypes.c_double * 2)(*tolerances), x.shape[1], _at(chosen)
        )
        if of_arrays(ctypes.byref(arrays), 0, len(x), _at(rows)):
            raise MemoryError("no memory to compare rows in")

    def compare_clipped(p: Any, q: Any, chosen: Array | None, rows: Array) -> None:
        of_clipped(ctypes.byref(_Clipped(_stored(p), _stored(q), p[0].shape[1], _at(chosen))), len(rows), _at(rows))

    return Kernels(compare, compare_clipped)


def _installed() -> Kernels | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name("_comparison" + suffix)
        if path.exists():
            try:
                return load(path)
            except (OSError, AttributeError, ValueError):  # built for another system, of another version, or not by us
                return None
    return None


kernels = _installed()

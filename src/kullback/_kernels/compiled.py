"""The compiled kernel of comparisons, `comparison.c`, if this installation has it: there are systems without a C compiler.

Loads a library, nothing more. ctypes lets other threads run while it works.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np

Array = Any

# One of these a row, as `Row` of comparison.c has it.
ROW = np.dtype(
    [(name, "f8") for name in ("kl_pq", "kl_qp", "js", "log_p", "log_q")] + [(name, "i8") for name in ("top_p", "top_q", "decided")]
)
# Its types of numbers, by their place there.
TYPES = tuple(np.dtype(name) for name in ("f4", "f8", "f2"))


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


def load(path: Path) -> Callable[..., None]:
    """compare(x, y, logs, tolerances, chosen, rows): of two contiguous (n, categories) arrays of TYPES, into n entries of ROW."""
    kernel = ctypes.CDLL(str(path)).kullback_compare
    kernel.argtypes = [ctypes.POINTER(_Arrays), ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]

    def compare(x: Array, y: Array, logs: bool, tolerances: tuple[float, float], chosen: Array | None, rows: Array) -> None:
        arrays = _Arrays(
            x.ctypes.data, y.ctypes.data, TYPES.index(x.dtype), TYPES.index(y.dtype), logs, (ctypes.c_double * 2)(*tolerances), x.shape[1],
            None if chosen is None else chosen.ctypes.data,
        )  # fmt: skip
        if kernel(ctypes.byref(arrays), 0, len(x), rows.ctypes.data):
            raise MemoryError("no memory to compare rows in")

    return compare


def _installed() -> Callable[..., None] | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name("_comparison" + suffix)
        if path.exists():
            try:
                return load(path)
            except (OSError, AttributeError):  # built for another system, or not by us
                return None
    return None


compare = _installed()

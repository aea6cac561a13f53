"""NumPy primitives. No gradients; values are always at hand."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .direct import marked
from .scalar import LARGEST_FLOAT32, rounded_to_float32

name = "NumPy"
exact_float32 = True
float32, float64 = np.float32, np.float64
exp, log, log1p, sin, isnan, where = np.exp, np.log, np.log1p, np.sin, np.isnan, np.where
expand, total, length = np.expand_dims, np.sum, len
to_numpy = np.asarray

call_host = None
has_row_kernels = None
gauss_newton = None
double = None
_this = sys.modules[__name__]


def sum(x: Any, axes: Any) -> Any:
    # Across memory NumPy adds one by one: 4e-4 off over 100,000 float32.
    return np.add.reduce(x, axes, np.float64, keepdims=True).astype(x.dtype)


def max(x: Any, axes: Any) -> Any:
    return np.maximum.reduce(x, axes, keepdims=True)


def min(x: Any, axes: Any) -> Any:
    return np.minimum.reduce(x, axes, keepdims=True)


def mean(x: Any) -> Any:
    with np.errstate(invalid="ignore"):  # no rows: NaN, without a warning
        return np.divide(np.sum(x), x.size, dtype=x.dtype)


def sums_before(x: Any) -> Any:
    return np.concatenate([np.zeros_like(x[..., :1]), np.cumsum(x, -1)[..., :-1]], -1)


def squeeze(x: Any, axes: Any) -> Any:
    return np.squeeze(x, axes)[()]  # a NumPy number, not an array without axes


def broadcast(arrays: Any) -> Any:
    return np.broadcast_arrays(*arrays)


def floats(arrays: Any) -> Any:
    """Python floats of numbers and arrays without axes, their common dtype, and that no derivative is wanted; or None."""
    kinds = {type(x) if type(x) is not np.ndarray or x.ndim > 0 else x.dtype.type for x in arrays}
    # A Python float beside float32 is float32: left to the general way.
    if kinds <= {float, np.float64}:
        return [float(x) for x in arrays], np.float64, False
    return ([float(x) for x in arrays], np.float32, False) if kinds == {np.float32} else None


def from_float(x: float, dtype: Any) -> Any:
    return dtype(x if x <= LARGEST_FLOAT32 or dtype is np.float64 else rounded_to_float32(x))  # or NumPy warns


def rows_like(v: Any, x: Any, axes: Any) -> Any:
    return np.broadcast_to(v, tuple(1 if i in axes else n for i, n in enumerate(x.shape)))


def astype(x: Any, dtype: Any) -> Any:
    return x.astype(dtype, copy=False)


def asarray(x: Any, like: Any) -> Any:
    """NumPy arrays keep their dtype; lists and numbers take that of the array they accompany."""
    if isinstance(x, np.ndarray):
        x = x if type(x) is np.ndarray else np.asarray(x)  # for np.matrix, * is the matrix product
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    made = np.asarray(x)
    if like is None or made.dtype.kind not in "fiub" or isinstance(x, np.generic):
        return made
    dtype = like.dtype.newbyteorder("=")
    return made.astype(dtype) if dtype.kind == "f" or dtype.name == "bfloat16" else made


def default_float(x: Any) -> Any:
    return np.float64


def is_float(x: Any) -> bool:
    return x.dtype in (np.float64, np.float32, np.float16) or x.dtype.name == "bfloat16"


def is_half(x: Any) -> bool:
    return x.dtype == np.float16 or x.dtype.name == "bfloat16"


def is_integer(x: Any) -> bool:
    return x.dtype.kind in "iub"


def widest(x: Any) -> Any:
    return np.float64


def stop_gradient(x: Any) -> Any:
    return x


def barrier(x: Any) -> Any:
    return x


def high(x: Any) -> Any:
    if x.dtype == np.float32:
        return (x.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    return (x.view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64)


def may_look(x: Any) -> bool:
    return True


def can_look(x: Any) -> bool:
    return True


def host_view(x: Any) -> Any:
    return x


def constant_view(x: Any) -> Any:
    return x


def from_view(x: Any, like: Any) -> Any:
    return x


def is_constant(x: Any) -> bool:
    return True


def stack(arrays: Any) -> Any:
    return np.stack(arrays)


def diagonal(x: Any) -> Any:
    return np.diagonal(x, axis1=-2, axis2=-1)


def solve_lower(matrix: Any, x: Any) -> Any:
    return np.linalg.solve(matrix, x)


matmul, concatenate = np.matmul, np.concatenate


def transpose(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def cholesky(x: Any) -> Any:
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        raise ValueError(
            "a covariance, precision or scale matrix is singular or not positive definite: its distribution has no density; "
            "drop the coordinates that the others determine"
        ) from None


def from_host(x: Any) -> Any:
    return x


def apply(evaluate: Any, gradients: Any, spec: Any, *arrays: Any) -> Any:
    # Branches not taken may divide by zero; what is wrong with the caller's numbers is said elsewhere.
    with np.errstate(all="ignore"):
        return evaluate(_this, spec, *arrays)


def pad_last(x: Any, count: int, value: float) -> Any:
    return np.concatenate([x, np.full((*x.shape[:-1], count), value, x.dtype)], -1)


def take_last(x: Any, at: Any) -> Any:
    return np.take_along_axis(x, at, -1)


def put_last(x: Any, at: Any, value: Any) -> Any:
    new = x.copy()
    np.put_along_axis(new, at, value, -1)
    return new


def join_last(x: Any, y: Any) -> Any:
    return np.concatenate([x, y], -1)


def indices(x: Any, like: Any) -> Any:
    return np.asarray(x)


direct_ops = marked(globals())

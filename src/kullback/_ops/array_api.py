"""Primitives for any array with `__array_namespace__` (CuPy, array-api-strict, ...). No gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


class Namespace:
    """The names of `Ops`, bound to the functions of one array API namespace."""

    exact_float32 = True
    call_host = None
    has_row_kernels = None
    gauss_newton = None
    double = None

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.name = xp.__name__
        self.float32, self.float64 = xp.float32, xp.float64
        self.exp, self.log, self.log1p, self.sin, self.isnan = xp.exp, xp.log, xp.log1p, xp.sin, xp.isnan
        self.where, self.total, self.mean = xp.where, xp.sum, xp.mean
        self.astype = xp.astype

    def sum(self, x: Any, axes: Any) -> Any:
        return self.xp.sum(x, axis=axes, keepdims=True)

    def max(self, x: Any, axes: Any) -> Any:
        return self.xp.max(x, axis=axes, keepdims=True) if axes else x

    def min(self, x: Any, axes: Any) -> Any:
        return self.xp.min(x, axis=axes, keepdims=True) if axes else x

    def sums_before(self, x: Any) -> Any:
        cumulative = getattr(self.xp, "cumulative_sum", None) or self.xp.cumsum  # the name before the standard of 2023
        return self.xp.concat([self.xp.zeros_like(x[..., :1]), cumulative(x, axis=-1)[..., :-1]], axis=-1)

    def length(self, x: Any) -> Any:
        return x.shape[0]

    def squeeze(self, x: Any, axes: Any) -> Any:
        return self.xp.squeeze(x, axis=axes)

    def expand(self, x: Any, axes: Any) -> Any:
        for axis in sorted(axes):
            x = self.xp.expand_dims(x, axis=axis)
        return x

    def broadcast(self, arrays: Any) -> Any:
        return self.xp.broadcast_arrays(*arrays)

    def rows_like(self, v: Any, x: Any, axes: Any) -> Any:
        return self.xp.broadcast_to(v, tuple(1 if i in axes else n for i, n in enumerate(x.shape)))

    def asarray(self, x: Any, like: Any) -> Any:
        if isinstance(x, (np.ndarray, np.generic)):
            x = x.tolist()  # namespaces need not understand each other's arrays
        elif hasattr(x, "__array_namespace__"):
            return x
        made = self.xp.asarray(x, device=None if like is None else like.device)
        return self.astype(made, like.dtype) if like is not None and self.is_float(like) else made

    def default_float(self, x: Any) -> Any:
        return self.xp.float64

    widest = default_float

    def is_float(self, x: Any) -> bool:
        return bool(self.xp.isdtype(x.dtype, "real floating"))

    def is_half(self, x: Any) -> bool:
        return self.is_float(x) and x.dtype not in (self.float32, self.float64)

    def is_integer(self, x: Any) -> bool:
        return bool(self.xp.isdtype(x.dtype, ("integral", "bool")))

    def stop_gradient(self, x: Any) -> Any:
        return x

    def barrier(self, x: Any) -> Any:
        return x

    def high(self, x: Any) -> Any:
        # Veltkamp's splitting: the standard has no bit casts. Right as long as the namespace runs operation by operation.
        scaled = x * (4097.0 if x.dtype == self.float32 else 134217729.0)
        return scaled - (scaled - x)

    def can_look(self, x: Any) -> bool:
        return True

    def may_look(self, x: Any) -> bool:
        return "cpu" in str(x.device).lower()

    def to_numpy(self, x: Any) -> Any:
        return np.from_dlpack(x) if not hasattr(x, "get") else x.get()

    def stack(self, arrays: Any) -> Any:
        return self.xp.stack(arrays)

    def diagonal(self, x: Any) -> Any:
        return self.xp.linalg.diagonal(x)

    def pad_last(self, x: Any, count: int, value: float) -> Any:
        return self.xp.concat([x, self.xp.full((*x.shape[:-1], count), value, dtype=x.dtype, device=x.device)], axis=-1)

    def take_last(self, x: Any, at: Any) -> Any:
        return self.xp.take_along_axis(x, at, axis=-1)

    def put_last(self, x: Any, at: Any, value: Any) -> Any:
        # One after another: the standard has no assignment to places given by an array.
        columns = self.xp.arange(x.shape[-1], dtype=at.dtype, device=x.device)
        for i in range(at.shape[-1]):
            x = self.xp.where(columns == at[..., i : i + 1], value if isinstance(value, float) else value[..., i : i + 1], x)
        return x

    def join_last(self, x: Any, y: Any) -> Any:
        return self.xp.concat([x, y], axis=-1)

    def indices(self, x: Any, like: Any) -> Any:
        return x if hasattr(x, "__array_namespace__") and not isinstance(x, np.ndarray) else self.xp.asarray(np.asarray(x).tolist())

    def solve_lower(self, matrix: Any, x: Any) -> Any:
        return self.xp.linalg.solve(matrix, x)

    def matmul(self, x: Any, y: Any) -> Any:
        return self.xp.matmul(x, y)

    def transpose(self, x: Any) -> Any:
        return self.xp.matrix_transpose(x)

    def cholesky(self, x: Any) -> Any:
        return self.xp.linalg.cholesky(x)

    def host_view(self, x: Any) -> Any:
        return None

    def from_host(self, x: Any) -> Any:
        return self.xp.asarray(x.tolist())

    def apply(self, evaluate: Any, gradients: Any, spec: Any, *arrays: Any) -> Any:
        return evaluate(self, spec, *arrays)


@cache
def _bound(xp: Any) -> Namespace:
    return Namespace(xp)


def namespace(x: Any) -> Namespace:
    return _bound(x.__array_namespace__())

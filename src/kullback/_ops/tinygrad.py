"""tinygrad primitives.

tinygrad has no log1p, its float32 exp is off by up to 4e-6, and its simplifier cancels (s - a) + a to s, rounding included;
so here log1p is a series, the formulas run in float64 where the device has it, and `barrier` materialises.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.engine.realize import capturing
from tinygrad.function import _function, function

from .direct import marked

name = "tinygrad"
exact_float32 = False
float32, float64 = dtypes.float32, dtypes.float64
exp, log, sin, isnan, total, mean = Tensor.exp, Tensor.log, Tensor.sin, Tensor.isnan, Tensor.sum, Tensor.mean
stop_gradient, barrier, to_numpy = Tensor.detach, Tensor.contiguous, Tensor.numpy

call_host = None
has_row_kernels = None
double = None
_this = sys.modules[__name__]


def log1p(x: Any) -> Any:
    # log(1+x) = 2 atanh(s), s = x/(2+x), |s| < 1/3: 16 terms reach the last bit of float64.
    inside = x.abs() < 0.5
    y = inside.where(x, 0)
    s = y / (y + 2)
    s2 = s * s
    series = s2 * 0 + 1 / 33
    for n in range(31, 0, -2):
        series = series * s2 + 1 / n
    return inside.where(2 * s * series, (inside.where(0, x) + 1).log())


def where(condition: Any, x: Any, y: Any) -> Any:
    return condition.where(x, y)


def sum(x: Any, axes: Any) -> Any:
    return x.sum(axes, keepdim=True) if axes else x


def max(x: Any, axes: Any) -> Any:
    return x.max(axes, keepdim=True) if axes else x


def min(x: Any, axes: Any) -> Any:
    return x.min(axes, keepdim=True) if axes else x


def length(x: Any) -> Any:
    return x.shape[0]


def squeeze(x: Any, axes: Any) -> Any:
    return x.reshape([n for i, n in enumerate(x.shape) if i not in axes and i - x.ndim not in axes])


def expand(x: Any, axes: Any) -> Any:
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x


def broadcast(arrays: Any) -> Any:
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    ndim = len(shape)
    return [x.reshape((1,) * (ndim - x.ndim) + x.shape).expand(shape) for x in arrays]


def rows_like(v: Any, x: Any, axes: Any) -> Any:
    return v.expand([1 if i in axes else n for i, n in enumerate(x.shape)])


def astype(x: Any, dtype: Any) -> Any:
    return x.cast(dtype)


def asarray(x: Any, like: Any) -> Any:
    if isinstance(x, Tensor):
        return x
    x = np.asarray(x)
    if x.dtype.kind not in "fiub" and x.dtype.name != "bfloat16":
        raise TypeError(f"dtype {x.dtype}")
    if like is None:
        return Tensor(x)
    made = Tensor(x, device=like.device)
    return made.cast(like.dtype) if dtypes.is_float(like.dtype) else made


def widest(x: Any) -> Any:
    return dtypes.float32 if str(x.device).split(":")[0] in ("METAL", "WEBGPU", "QCOM") else dtypes.float64


default_float = widest


def is_float(x: Any) -> bool:
    return x.dtype in (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)


def is_half(x: Any) -> bool:
    return x.dtype in (dtypes.float16, dtypes.bfloat16)


def is_integer(x: Any) -> bool:
    return dtypes.is_int(x.dtype) or x.dtype == dtypes.bool


def high(x: Any) -> Any:
    x = barrier(x)  # a bit cast of what has been simplified to a constant does not compile
    if x.dtype == dtypes.float32:
        return (x.bitcast(dtypes.int32) & -4096).bitcast(dtypes.float32)
    return (x.bitcast(dtypes.int64) & -134217728).bitcast(dtypes.float64)


def can_look(x: Any) -> bool:
    """False while TinyJit captures and inside a tinygrad `function`, where a value would be baked in."""
    return not capturing and _function.depth == 0


def may_look(x: Any) -> bool:
    return can_look(x) and str(x.device).split(":")[0] in ("CPU", "PYTHON", "NPY", "None")


def stack(arrays: Any) -> Any:
    return Tensor.stack(*arrays)


def diagonal(x: Any) -> Any:
    size = x.shape[-1]
    return (x * Tensor.eye(size, dtype=x.dtype)).sum(-1)


def solve_lower(matrix: Any, x: Any) -> Any:
    # Row by row: tinygrad has no solver.
    size = matrix.shape[-1]
    batch = broadcast([matrix[..., :1, :1], x[..., :1, :1]])[0].shape[:-2]
    matrix, x = matrix.expand(*batch, size, size), x.expand(*batch, size, x.shape[-1])
    rows: list[Any] = []
    for i in range(size):
        rest = x[..., i : i + 1, :]
        for j, row in enumerate(rows):
            rest = rest - matrix[..., i : i + 1, j : j + 1] * row
        rows.append(rest / matrix[..., i : i + 1, i : i + 1])
    return Tensor.cat(*rows, dim=-2)


def sums_before(x: Any) -> Any:
    return x.cumsum(-1).pad((1, 0))[..., :-1]


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for branch in (tree.values() if isinstance(tree, dict) else tree) for leaf in _leaves(branch)]


def _rebuilt(tree: Any, leaves: Any) -> Any:
    if isinstance(tree, Tensor):
        return next(leaves)
    if isinstance(tree, dict):
        return {key: _rebuilt(branch, leaves) for key, branch in tree.items()}
    return type(tree)(_rebuilt(branch, leaves) for branch in tree)


def gauss_newton(function: Any, parameters: Any, vector: Any, metric: Any, damping: float) -> Any:
    # There is no forward mode: J v is the derivative to u of (Jᵀ u)·v, which is linear in u.
    leaves, directions = _leaves(parameters), _leaves(vector)
    y = function(parameters)
    u = Tensor.zeros(y.shape, dtype=y.dtype, device=y.device).contiguous()
    pulled = (y * u).sum().gradient(*leaves)
    along = [(x * v).sum() for x, v in zip(pulled, directions)]
    (change,) = Tensor.stack(*along).sum().gradient(u)
    product = (y * metric(y, change).cast(y.dtype).detach()).sum().gradient(*leaves)
    return _rebuilt(parameters, iter([x + damping * v for x, v in zip(product, directions)]))


matmul = Tensor.matmul


def transpose(x: Any) -> Any:
    return x.transpose(-1, -2)


def cholesky(x: Any) -> Any:
    # Column by column, each written as a whole row of zeros and the rest.
    size = x.shape[-1]
    columns: list[Any] = []
    for i in range(size):
        rest = x[..., :, i]
        for column in columns:
            rest = rest - column * column[..., i : i + 1]
        pivot = rest[..., i : i + 1]
        below = Tensor([0.0] * i + [1.0] * (size - i), dtype=x.dtype, device=x.device)
        columns.append(rest / pivot.sqrt() * below)
    return Tensor.stack(*columns, dim=-1)


def host_view(x: Any) -> Any:
    return None


def from_host(x: Any) -> Any:
    return Tensor(x)


def apply(evaluate: Any, gradients: Any, spec: Any, *arrays: Any) -> Any:
    # tinygrad passes each distinct input once and knows constants (which have no device) without passing them.
    inputs = [x.uop for x in arrays]
    distinct = [u for u in dict.fromkeys(inputs) if u.device is not None]

    def backward(upstream: Any, call: Any) -> Any:
        given = dict(zip(distinct, (Tensor(u) for u in call.src[1:])))
        slopes = gradients(_this, spec, *(given.get(u, x) for u, x in zip(inputs, arrays)))
        found: dict[Any, Any] = {}
        for u, x, slope in zip(inputs, arrays, slopes):
            part = (Tensor(upstream) * slope).cast(x.dtype)
            found[u] = found[u] + part if u in found else part
        return tuple(found[u].uop for u in distinct)

    return function(lambda *xs: evaluate(_this, spec, *xs), grad_fxn=backward)(*arrays)


def pad_last(x: Any, count: int, value: float) -> Any:
    return x.pad(((0, 0),) * (x.ndim - 1) + ((0, count),), value=value)


def take_last(x: Any, at: Any) -> Any:
    # Within one kernel, tinygrad rewrites the gather and all that leads to x as a whole, and gives up on a long formula.
    return x.contiguous().gather(-1, at)


def put_last(x: Any, at: Any, value: Any) -> Any:
    # By comparison: tinygrad's scatter has no derivative that is 0 where it wrote.
    there = at.unsqueeze(-1) == Tensor.arange(x.shape[-1], dtype=at.dtype).to(x.device)
    if isinstance(value, Tensor):
        value = there.where(value.unsqueeze(-1), 0.0).sum(-2)
    return there.any(-2).where(value, x)


def join_last(x: Any, y: Any) -> Any:
    return x.cat(y, dim=-1)


def indices(x: Any, like: Any) -> Any:
    return x if isinstance(x, Tensor) else Tensor(np.asarray(x), device=like.device)


direct_ops = marked(globals())

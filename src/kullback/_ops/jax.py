"""JAX primitives. float64 exists only where jax_enable_x64 is on."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from .direct import marked

name = "JAX"
exact_float32 = True
float32, float64 = jnp.float32, jnp.float64
exp, log, log1p, sin, isnan, where = jnp.exp, jnp.log, jnp.log1p, jnp.sin, jnp.isnan, jnp.where
total, mean, length, squeeze, expand = jnp.sum, jnp.mean, len, jnp.squeeze, jnp.expand_dims
stop_gradient, to_numpy = jax.lax.stop_gradient, np.asarray

call_host = None
has_row_kernels = None
_this = sys.modules[__name__]


def sum(x: Any, axes: Any) -> Any:
    return jnp.sum(x, axes, keepdims=True)


def max(x: Any, axes: Any) -> Any:
    return jnp.max(x, axes, keepdims=True)


def min(x: Any, axes: Any) -> Any:
    return jnp.min(x, axes, keepdims=True)


def broadcast(arrays: Any) -> Any:
    return jnp.broadcast_arrays(*arrays)


def rows_like(v: Any, x: Any, axes: Any) -> Any:
    return jnp.broadcast_to(v, [1 if i in axes else n for i, n in enumerate(x.shape)])


def astype(x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


def asarray(x: Any, like: Any) -> Any:
    if isinstance(x, jax.Array):
        return x
    made = np.asarray(x) if like is not None else jnp.asarray(x)
    if like is None or not jnp.issubdtype(like.dtype, jnp.floating) or made.dtype.kind == "c":
        return jnp.asarray(made)
    return jnp.asarray(made, dtype=like.dtype)


def default_float(x: Any) -> Any:
    return widest(x)


def is_float(x: Any) -> bool:
    return x.dtype in (jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16)


def is_half(x: Any) -> bool:
    return x.dtype in (jnp.float16, jnp.bfloat16)


def is_integer(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == jnp.bool_)


def widest(x: Any) -> Any:
    return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32


def barrier(x: Any) -> Any:
    return x


def high(x: Any) -> Any:
    # XLA may drop a cast to a narrower float and back; reduce_precision it must keep.
    if x.dtype == jnp.float32:
        return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=11)
    return jax.lax.reduce_precision(x, exponent_bits=11, mantissa_bits=25)


def can_look(x: Any) -> bool:
    return not isinstance(x, jax.core.Tracer) and x.is_fully_addressable


def may_look(x: Any) -> bool:
    return can_look(x) and all(device.platform == "cpu" for device in x.devices())


def on_accelerator(x: Any) -> bool:
    if isinstance(x, jax.core.Tracer):
        return bool(jax.default_backend() != "cpu")
    return all(device.platform != "cpu" for device in x.devices())


def host_view(x: Any) -> Any:
    return None


def constant_view(x: Any) -> Any:
    return np.asarray(x) if may_look(x) and len(x.devices()) == 1 else None


def from_view(x: Any, like: Any) -> Any:
    made = jnp.asarray(x)
    return made if made.devices() == like.devices() else jax.device_put(made, next(iter(like.devices())))


stack, matmul = jnp.stack, jnp.matmul


def diagonal(x: Any) -> Any:
    return jnp.diagonal(x, axis1=-2, axis2=-1)


def solve_lower(matrix: Any, x: Any) -> Any:
    batch = jnp.broadcast_shapes(matrix.shape[:-2], x.shape[:-2])
    matrix, x = (jnp.broadcast_to(a, batch + a.shape[-2:]) for a in (matrix, x))
    return jax.lax.linalg.triangular_solve(matrix, x, left_side=True, lower=True)


def sums_before(x: Any) -> Any:
    return jnp.concatenate([jnp.zeros_like(x[..., :1]), jnp.cumsum(x, -1)[..., :-1]], -1)


def gauss_newton(function: Any, parameters: Any, vector: Any, metric: Any, damping: float) -> Any:
    y, push = jax.linearize(function, parameters)
    _, pull = jax.vjp(function, parameters)
    (product,) = pull(astype(metric(y, push(vector)), y.dtype))
    return jax.tree.map(lambda x, v: x + damping * v, product, vector)


def transpose(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def cholesky(x: Any) -> Any:
    return jnp.linalg.cholesky(x)


def double() -> Any:
    if not hasattr(jax, "enable_x64"):  # before JAX 0.8
        from jax.experimental import enable_x64

        return enable_x64(True)
    return jax.enable_x64(True)


def from_host(x: Any) -> Any:
    return jnp.asarray(x)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _op(evaluate: Any, gradients: Any, spec: Any, *arrays: Any) -> Any:
    return evaluate(_this, spec, *arrays)


def _op_jvp(evaluate: Any, gradients: Any, spec: Any, arrays: Any, tangents: Any) -> Any:
    value = _op(evaluate, gradients, spec, *arrays)
    # XLA would compute what is multiplied by a tangent of zeros.
    needs = tuple(not isinstance(tangent, SymbolicZero) for tangent in tangents)
    slopes = gradients(_this, spec, *arrays, needs=needs)
    change = jnp.zeros_like(value)
    for slope, tangent, need in zip(slopes, tangents, needs):
        if need:
            change = change + sum(slope * tangent, spec.axes)
    return value, astype(change, value.dtype)


_op.defjvp(_op_jvp, symbolic_zeros=True)


def apply(evaluate: Any, gradients: Any, spec: Any, *arrays: Any) -> Any:
    return _op(evaluate, gradients, spec, *arrays)


def pad_last(x: Any, count: int, value: float) -> Any:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)], constant_values=value)


def take_last(x: Any, at: Any) -> Any:
    return jnp.take_along_axis(x, at, -1)


def put_last(x: Any, at: Any, value: Any) -> Any:
    batch = [jax.lax.broadcasted_iota(at.dtype, at.shape, axis) for axis in range(at.ndim - 1)]
    places = (*batch, at)
    return x.at[places].set(value)


def join_last(x: Any, y: Any) -> Any:
    return jnp.concatenate([x, y], -1)


def indices(x: Any, like: Any) -> Any:
    return jnp.asarray(x)


direct_ops = marked(globals())

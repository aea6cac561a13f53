"""TensorFlow primitives."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from .direct import marked

name = "TensorFlow"
exact_float32 = True
float32, float64 = tf.float32, tf.float64
exp, log, log1p, sin, isnan = tf.math.exp, tf.math.log, tf.math.log1p, tf.math.sin, tf.math.is_nan
total, mean, squeeze = tf.reduce_sum, tf.reduce_mean, tf.squeeze
stop_gradient, astype, from_host = tf.stop_gradient, tf.cast, tf.convert_to_tensor

call_host = None
has_row_kernels = None
double = None
_this = sys.modules[__name__]


def check_mode() -> None:
    """An error in TensorFlow 1's graphs, and in any `tf.function` called there: `==` compares identities, and the formulas compare numbers
    with 0."""
    in_graph = not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function
    if in_graph or not (tf.Tensor._USE_EQUALITY and tf.compat.v1.executing_eagerly_outside_functions()):
        raise NotImplementedError(
            "kullback does not work in graphs of TensorFlow 1, where == compares tensors by identity: call it eagerly or in a tf.function, "
            "and leave out tf.compat.v1.disable_v2_behavior()"
        )


def where(condition: Any, x: Any, y: Any) -> Any:
    # tf.where makes float32 of a Python number, whatever stands beside it, and so does tf.cast.
    if not tf.is_tensor(x):
        x = tf.cast(np.float64(x), y.dtype)
    elif not tf.is_tensor(y):
        y = tf.cast(np.float64(y), x.dtype)
    return tf.where(condition, x, y)


def sum(x: Any, axes: Any) -> Any:
    # TensorFlow's XLA adds float32 one by one: 4e-5 off over 100,000 terms. Accumulated in float64 that is nothing.
    return tf.cast(tf.reduce_sum(tf.cast(x, tf.float64), axes, keepdims=True), x.dtype)


def max(x: Any, axes: Any) -> Any:
    return tf.reduce_max(x, axes, keepdims=True)


def min(x: Any, axes: Any) -> Any:
    return tf.reduce_min(x, axes, keepdims=True)


def length(x: Any) -> Any:
    return tf.cast(tf.shape(x)[0], x.dtype)


def expand(x: Any, axes: Any) -> Any:
    for axis in sorted(axes):
        x = tf.expand_dims(x, axis)
    return x


def broadcast(arrays: Any) -> Any:
    # Dynamic shapes: the sizes may be unknown while a tf.function is traced.
    shape = tf.shape(arrays[0])
    static = arrays[0].shape
    for x in arrays[1:]:
        shape = tf.broadcast_dynamic_shape(shape, tf.shape(x))
        static = tf.broadcast_static_shape(static, x.shape)
    return [tf.ensure_shape(tf.broadcast_to(x, shape), static) for x in arrays]


def rows_like(v: Any, x: Any, axes: Any) -> Any:
    sizes = [1 if i in axes else n for i, n in enumerate(tf.unstack(tf.shape(x)))]
    return tf.ensure_shape(tf.broadcast_to(v, sizes), [1 if i in axes else n for i, n in enumerate(x.shape)])


def asarray(x: Any, like: Any) -> Any:
    if isinstance(x, tf.RaggedTensor):
        raise TypeError("it is ragged: pass .to_tensor() of it, and weights of 0 for the padding")
    if isinstance(x, tf.SparseTensor):
        raise TypeError("it is sparse: pass tf.sparse.to_dense(...) of it")
    if tf.is_tensor(x) or isinstance(x, tf.Variable):
        return tf.convert_to_tensor(x)
    if like is not None and like.dtype.is_floating and isinstance(x, (int, float, list, tuple)):
        # At once: on the way 0.9 would be rounded to float32.
        with contextlib.suppress(TypeError, ValueError):
            return tf.convert_to_tensor(x, like.dtype)
    made = tf.convert_to_tensor(x)
    if like is not None and made.dtype == float32 and not any(hasattr(v, "dtype") for v in tf.nest.flatten(x)):
        made = tf.convert_to_tensor(x, float64)  # as whole numbers beside it become
    castable = made.dtype.is_floating or made.dtype.is_integer or made.dtype.is_bool
    return tf.cast(made, like.dtype) if like is not None and like.dtype.is_floating and castable else made


def default_float(x: Any) -> Any:
    return tf.float64


def is_float(x: Any) -> bool:
    return x.dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16)


def is_half(x: Any) -> bool:
    return x.dtype in (tf.float16, tf.bfloat16)


def is_integer(x: Any) -> bool:
    return bool(x.dtype.is_integer or x.dtype.is_bool)


def widest(x: Any) -> Any:
    return tf.float64


def barrier(x: Any) -> Any:
    return x


def high(x: Any) -> Any:
    # A mask: XLA may drop a cast to a narrower float and back.
    if x.dtype == tf.float32:
        return tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), -4096), tf.float32)
    return tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(x, tf.int64), tf.constant(-134217728, tf.int64)), tf.float64)


def can_look(x: Any) -> bool:
    return tf.executing_eagerly() and hasattr(x, "numpy")


def may_look(x: Any) -> bool:
    return can_look(x) and "CPU" in x.device


def to_numpy(x: Any) -> Any:
    return np.asarray(x.numpy())


sums_before = partial(tf.cumsum, axis=-1, exclusive=True)


def gauss_newton(function: Any, parameters: Any, vector: Any, metric: Any, damping: float) -> Any:
    leaves, directions = tf.nest.flatten(parameters), tf.nest.flatten(vector)
    with tf.GradientTape() as tape, tf.autodiff.ForwardAccumulator(leaves, directions) as forward:
        tape.watch(leaves)
        y = function(parameters)
    # What y does not depend on has no derivative here, not one of 0.
    change = forward.jvp(y, unconnected_gradients="zero")
    pulled = tape.gradient(y, leaves, output_gradients=astype(metric(y, change), y.dtype), unconnected_gradients="zero")
    return tf.nest.pack_sequence_as(parameters, [x + damping * v for x, v in zip(pulled, directions)])


stack, diagonal, transpose, matmul, cholesky = (
    tf.stack,
    tf.linalg.diag_part,
    tf.linalg.matrix_transpose,
    tf.linalg.matmul,
    tf.linalg.cholesky,
)


diagonal_matrix = tf.linalg.diag


def solve_lower(matrix: Any, x: Any) -> Any:
    return tf.linalg.triangular_solve(matrix, x, lower=True)


def same_sizes(arrays: Any, axes: Any) -> Any:
    message = "p and q have different numbers of categories: categories never broadcast"
    checks = [tf.debugging.assert_equal(tf.shape(x)[axis], tf.shape(arrays[0])[axis], message=message) for x in arrays[1:] for axis in axes]
    with tf.control_dependencies(checks):
        return [tf.identity(x) for x in arrays]


def host_view(x: Any) -> Any:
    return None


def constant_view(x: Any) -> Any:
    # Any tape that is open may want a derivative.
    return None if not may_look(x) or record.could_possibly_record() else np.asarray(memoryview(x))  # .numpy() copies


def from_view(x: Any, like: Any) -> Any:
    return tf.convert_to_tensor(x)


def apply(evaluate: Any, gradients: Any, spec: Any, *arrays: Any) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def op(*arrays: Any) -> Any:
        def backward(upstream: Any) -> Any:
            slopes = gradients(_this, spec, *arrays)
            return [tf.cast(tf.cast(upstream, slope.dtype) * slope, x.dtype) for slope, x in zip(slopes, arrays)]

        return evaluate(_this, spec, *arrays), backward

    return op(*arrays)


def pad_last(x: Any, count: int, value: float) -> Any:
    x = tf.convert_to_tensor(x)
    return tf.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, count)], constant_values=tf.cast(value, x.dtype))


def take_last(x: Any, at: Any) -> Any:
    return tf.gather(x, at, axis=-1, batch_dims=len(x.shape) - 1)


def put_last(x: Any, at: Any, value: Any) -> Any:
    rows, at = tf.reshape(x, [-1, tf.shape(x)[-1]]), tf.reshape(at, [-1, tf.shape(at)[-1]])
    row = tf.broadcast_to(tf.range(tf.shape(at)[0], dtype=at.dtype)[:, None], tf.shape(at))
    places = tf.reshape(tf.stack([row, at], -1), [-1, 2])
    new = tf.broadcast_to(tf.reshape(tf.cast(value, x.dtype), [-1]), tf.shape(places)[:1])
    return tf.ensure_shape(tf.reshape(tf.tensor_scatter_nd_update(rows, places, new), tf.shape(x)), x.shape)


def join_last(x: Any, y: Any) -> Any:
    return tf.concat([x, y], -1)


def indices(x: Any, like: Any) -> Any:
    return tf.convert_to_tensor(x)


direct_ops = marked(globals())

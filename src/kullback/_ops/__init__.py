"""Which framework an array belongs to, and the primitives the formulas use in it.

Each framework has one module here with the same names (`Ops` below), bound to the framework's own functions.
A framework's module is imported when the first of its arrays arrives, so only frameworks the caller
already uses are ever loaded. Nothing here knows what a divergence is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from . import numpy as numpy_ops

Array = Any
Axes = tuple[int, ...]


class Ops(Protocol):
    """The primitives. `sum`, `max` and `min` keep the reduced axes, so that results broadcast back.

    apply(evaluate, gradients, spec, *arrays)
        evaluate(ops, spec, *arrays), whose derivatives the framework takes from
        gradients(ops, spec, *arrays): for each array, d value / d array, itself differentiable. The keyword `needs` may say
        of which arrays it is asked for; in place of others there may be None.
    exact_float32
        Are float32 exp and log good to the last digits?
    rows_like(v, x, axes)
        v broadcast to the shape of x with `axes` of size 1.
    sums_before(x)
        Along the last axis, the sum of the elements before each; 0 for the first.
    gauss_newton(function, parameters, vector, metric, damping)
        Jᵀ metric(y, J vector) + damping · vector, for y = function(parameters) and J its Jacobian there. Parameters, vector and result are
        arrays, or containers of them as the framework's own transformations take. None where a framework has no derivatives.
    pad_last(x, count, value)
        `count` more along the last axis.
    take_last(x, at), put_last(x, at, value), join_last(x, y), indices(x, like)
        Along the last axis: x's entries at integer positions, a batch of them for a batch of rows; a copy of x with `value` there, a
        number or an array like `at`; x followed by y. Integers of this framework, beside `like`.
    stack(arrays), diagonal(x), transpose(x), matmul(x, y), solve_lower(L, x), cholesky(x)
        Along a new first axis; of the last two axes; the last two axes exchanged; of matrices, batches broadcast;
        L⁻¹ x for lower triangular matrices, batches broadcast; the lower triangular factor.
    diagonal_matrix(x)
        Matrices with these diagonals, of sizes that are known only when the code runs. Need not be there.
    concatenate(arrays)
        Along the first axis, of arrays on the CPU; for frameworks whose operations each pass over memory. Others need not have it.
    direct_ops
        The same primitives, marked for numbers that came as float32 (`direct`). Need not be there.
    double()
        A context in which `widest` is float64, for frameworks where that is a setting. None where it is not.
    high(x)
        x with the lower half of its significand cleared: products of two such numbers are exact.
    barrier(x)
        x, hidden from a simplifier that would cancel rounding errors algebraically.
    may_look(x), can_look(x)
        Are the values at hand for free (on the CPU, outside any tracer); are they at hand at all?
    check_mode()
        An error where the framework is in a mode in which the formulas would be wrong. Need not be there.
    has_symbolic_sizes()
        Are sizes symbols here, which should not be compared? Need not be there.
    is_capturing()
        Is a graph of the accelerator being captured, which waiting for a value would abort? Need not be there.
    host_view(x)
        x as a NumPy array on the same memory, or None where a framework must do the work itself.
    constant_view(x), from_view(v, like)
        x as a NumPy array on the same memory, where it may be looked at and no derivative to it is wanted, else None; and a NumPy array
        as one of this framework, on the device of `like`. Need not be there.
    is_constant(x)
        Is no derivative to x wanted? Asked only of what has a `host_view`.
    call_host(spec, draft, *arrays)
        While code is being compiled for this CPU: a call, when that code runs, of the function registered with `on_host`, which gets
        what `draft(ops, spec, *arrays)` has come to. None elsewhere; the attribute is None where the framework has no such thing.
    has_row_kernels(*arrays)
        Do the GPU's kernels over rows of logits take these as they are? None where the framework has none.
    """

    name: str
    exact_float32: bool
    float32: Any
    float64: Any
    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    log1p: Callable[[Array], Array]
    sin: Callable[[Array], Array]
    isnan: Callable[[Array], Array]
    call_host: Callable[..., Array | None] | None
    has_row_kernels: Callable[..., bool] | None
    gauss_newton: Callable[..., Any] | None
    double: Callable[[], Any] | None

    def where(self, condition: Array, x: Array, y: Array) -> Array: ...
    def sum(self, x: Array, axes: Axes) -> Array: ...
    def max(self, x: Array, axes: Axes) -> Array: ...
    def min(self, x: Array, axes: Axes) -> Array: ...
    def total(self, x: Array) -> Array: ...
    def mean(self, x: Array) -> Array: ...
    def length(self, x: Array) -> Any: ...
    def squeeze(self, x: Array, axes: Axes) -> Array: ...
    def expand(self, x: Array, axes: Axes) -> Array: ...
    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]: ...
    def sums_before(self, x: Array) -> Array: ...
    def stack(self, arrays: Sequence[Array]) -> Array: ...
    def diagonal(self, x: Array) -> Array: ...
    def transpose(self, x: Array) -> Array: ...
    def matmul(self, x: Array, y: Array) -> Array: ...
    def solve_lower(self, matrix: Array, x: Array) -> Array: ...
    def pad_last(self, x: Array, count: int, value: float) -> Array: ...
    def take_last(self, x: Array, at: Array) -> Array: ...
    def put_last(self, x: Array, at: Array, value: Any) -> Array: ...
    def join_last(self, x: Array, y: Array) -> Array: ...
    def indices(self, x: Any, like: Array) -> Array: ...
    def cholesky(self, x: Array) -> Array: ...
    def rows_like(self, v: Array, x: Array, axes: Axes) -> Array: ...
    def astype(self, x: Array, dtype: Any) -> Array: ...
    def asarray(self, x: Any, like: Array | None) -> Array: ...
    def default_float(self, x: Array) -> Any: ...
    def is_float(self, x: Array) -> bool: ...
    def is_half(self, x: Array) -> bool: ...
    def is_integer(self, x: Array) -> bool: ...
    def widest(self, x: Array) -> Any: ...
    def stop_gradient(self, x: Array) -> Array: ...
    def barrier(self, x: Array) -> Array: ...
    def high(self, x: Array) -> Array: ...
    def may_look(self, x: Array) -> bool: ...
    def can_look(self, x: Array) -> bool: ...
    def to_numpy(self, x: Array) -> np.ndarray[Any, Any]: ...
    def host_view(self, x: Array) -> np.ndarray[Any, Any] | None: ...
    def is_constant(self, x: Array) -> bool: ...
    def from_host(self, x: np.ndarray[Any, Any]) -> Array: ...
    def apply(self, evaluate: Any, gradients: Any, spec: Any, *arrays: Array) -> Array: ...


# What `call_host` calls, with the primitives, the fields of a spec, the draft, and arrays. Set by the layer that has the formulas.
host_function: list[Callable[..., Array]] = []


def on_host(function: Callable[..., Array]) -> Callable[..., Array]:
    host_function[:] = [function]
    return function


# Types met so far. Values are modules or `array_api.Namespace` objects, both with the names of `Ops`.
_by_type: dict[type, Any] = {np.ndarray: numpy_ops}


def ops_of(x: Any) -> Any:
    """The primitives for `x`, or None if `x` belongs to no framework (a list, a number, nothing)."""
    # torch.compile traces this on a first ("cold") call: it follows literal import statements and isinstance, but not importlib.
    if x is None or isinstance(x, (bool, int, float, list, tuple, dict)):
        return None
    if "torch" in sys.modules:
        import torch

        if isinstance(x, torch.Tensor):
            from . import torch as torch_ops

            return torch_ops
    if type(x) not in _by_type:
        _by_type[type(x)] = _find(x)
    return _by_type[type(x)]


def _find(x: Any) -> Any:
    if isinstance(x, (np.ndarray, np.generic)):
        return numpy_ops
    if "jax" in sys.modules:
        import jax

        if isinstance(x, jax.Array):
            from . import jax as jax_ops

            return jax_ops
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        if tf.is_tensor(x) or isinstance(x, tf.Variable):
            from . import tensorflow as tensorflow_ops

            return tensorflow_ops
    if "tinygrad" in sys.modules:
        import tinygrad

        if isinstance(x, tinygrad.Tensor):
            from . import tinygrad as tinygrad_ops

            return tinygrad_ops
    if hasattr(x, "__array_namespace__"):
        from . import array_api

        return array_api.namespace(x)
    return None


def common_ops(arguments: Sequence[tuple[str, Any]]) -> Any:
    """The primitives shared by all named arguments; NumPy arrays, lists and numbers join any other framework."""
    found: Any = None
    owner = ""
    for name, x in arguments:
        ops = ops_of(x)
        if ops is None or ops is numpy_ops:
            continue
        if found is None:
            found, owner = ops, name
        elif ops is not found:
            raise TypeError(
                f"{owner} is a {found.name} array and {name} a {ops.name} array: one call, one framework; "
                f"convert one of them (NumPy arrays, lists and numbers mix with any framework)"
            )
    if found is None:
        return numpy_ops
    if hasattr(found, "check_mode"):
        found.check_mode()
    return found

"""JAX's and optax's names with the right answers, for code that changes an import, or one line.

`rel_entr` and `kl_div` stand in for those of jax.scipy.special; `kl_divergence`, `kl_divergence_with_log_targets` and
`generalized_kl_divergence` for those of optax.losses. The same signatures and formulas: none of them normalises. optax is not needed.

>>> import jax, jax.numpy as jnp
>>> from kullback.jax import kl_divergence
>>> log_q, p = jnp.log(jnp.array([0.25, 0.25, 0.5])), jnp.array([0.5, 0.5, 0.0])
>>> [round(float(g), 4) for g in jax.grad(kl_divergence, argnums=1)(log_q, p)]  # optax: the last is NaN
[1.6931, 1.6931, 0.0]
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

try:
    from jax import enable_x64
except ImportError:  # its name before JAX 0.8
    from jax.experimental import enable_x64

from . import _divergences
from ._calculus import ALL, Needs, Slopes, evaluate_literal, literal_gradients
from ._forms import parse_axes
from ._ops import Array
from ._ops import jax as ops
from ._pairs import Spec, bregman, compute_dtype
from ._patching import Patch, Replacement

__all__ = [
    "generalized_kl_divergence", "install", "kl_div", "kl_divergence", "kl_divergence_with_log_targets", "patched", "rel_entr", "uninstall",
]  # fmt: skip

ArrayLike = Any

_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _refuse_if_no_array(function: str, name: str, x: Any) -> None:
    if not isinstance(x, _ARRAYS):
        fix = f": pass jnp.asarray({name})" if isinstance(x, (list, tuple)) else ""
        raise TypeError(f"{function}: {name} must be an array or a number, not {type(x).__name__}{fix}")


def _as_arrays(function: str, *, floating: bool, **named: ArrayLike) -> tuple[list[Array], Any]:
    """The arguments as JAX arrays, and the dtype that JAX promotes them to."""
    for name, x in named.items():
        x = named[name] = jnp.asarray(x) if hasattr(x, "__jax_array__") else x
        _refuse_if_no_array(function, name, x)
        try:
            dtype = jnp.result_type(x)
        except TypeError:
            dtype = x.dtype  # of objects, or strings
        if not (jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_):
            raise TypeError(f"{function}: {name} has dtype {dtype}, and must hold numbers")
        if floating and not jnp.issubdtype(dtype, jnp.floating):
            fix = "real" if jnp.issubdtype(dtype, jnp.complexfloating) else "astype(jnp.float32)"
            raise TypeError(f"{function}: {name} has dtype {dtype}, and must be floating-point: pass {name}.{fix}")
    dtype = jnp.result_type(*named.values())  # of what was given: a Python number gives way to the dtype of an array
    return [jnp.asarray(x) for x in named.values()], dtype


def _broadcast(function: str, dtype: Any, **named: Array) -> list[Array]:
    """Both of one shape and dtype."""
    x, y = named.values()
    try:
        jnp.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        shapes = " and ".join(f"{name} has shape {a.shape}" for name, a in named.items())
        raise TypeError(f"{function}: {shapes}, which do not broadcast") from None
    if jax.config.jax_numpy_rank_promotion != "allow":
        jax.eval_shape(jnp.subtract, x, y)  # warns or refuses, as JAX does under that setting
    return list(jnp.broadcast_arrays(x.astype(dtype), y.astype(dtype)))


# --- jax.scipy.special --------------------------------------------------------------------------------------------------------------


# Compiled: an eager call is then one step, and jax_debug_nans sees the result rather than what a `where` in it drops.
_rel_entr, _kl_div = jax.jit(_divergences.rel_entr), jax.jit(_divergences.kl_div)
_apply = jax.jit(ops.apply, static_argnums=(0, 1, 2))


def _elementwise(function: Any, p: ArrayLike, q: ArrayLike) -> Array:
    name = function.__name__
    (p, q), dtype = _as_arrays(name, floating=False, p=p, q=q)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        which = "p" if jnp.issubdtype(p.dtype, jnp.complexfloating) else "q"
        raise ValueError(f"{name}: {which} is complex, and probabilities are real numbers: pass {which}.real")
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.float64 if dtype.itemsize == 8 else jnp.float32
    x, y = _broadcast(name, dtype, p=p, q=q)
    wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
    return function(x.astype(wide), y.astype(wide)).astype(dtype)


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """`jax.scipy.special.rel_entr`, mended: p log(p/q) element by element, 0 at p = 0 ≤ q, inf at q = 0 < p and for negative numbers.

    What differs from JAX:

    - NaN stays NaN (JAX returns inf);
    - no digits are lost where p is close to q, and half precision is computed in float32 and rounded once.

    The derivative to p at p = 0 is defined as 0; the true one is −inf.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> p, q = jnp.array([0.5, 0.0, 0.5, jnp.nan]), jnp.array([0.25, 0.75, 0.0, 1.0])
    >>> print(rel_entr(p, q).round(4))
    [0.3466 0.        inf    nan]
    >>> print(jax.grad(lambda p: rel_entr(p, q[:2]).sum())(p[:2]).round(4))
    [1.6931 0.    ]
    """
    return _elementwise(_rel_entr, p, q)


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """`jax.scipy.special.kl_div`, mended: p log(p/q) − p + q ≥ 0 element by element, q at p = 0 ≤ q, inf at q = 0 < p and for negative
    numbers.

    What differs from JAX:

    - NaN stays NaN, and is not inf where p alone is;
    - no digits are lost where p is close to q, no value is negative, and half precision is computed in float32 and rounded once.

    The derivative to p at p = 0 is defined as 0; the true one is −inf.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> p, q = jnp.array([0.5, 0.0, 0.5]), jnp.array([0.25, 0.75, 0.5001])
    >>> [f"{value:.3g}" for value in kl_div(p, q)]  # JAX: 0 for the last
    ['0.0966', '0.75', '1e-08']
    >>> print(jax.grad(lambda p: kl_div(p, q).sum())(p)[:2].round(4))
    [0.6931 0.    ]
    """
    return _elementwise(_kl_div, p, q)


# --- optax --------------------------------------------------------------------------------------------------------------------------


def _in_float64(evaluate: Any) -> Any:
    """`evaluate` in float64, rounded once, even where x64 is off: the terms have both signs, and float32 keeps few digits of their sum.

    No transform meets that float64: it stays inside a function whose derivatives are given. Platforms that lack it use float32.
    """

    def value(ops: Any, spec: Spec, x: Array, t: Array) -> Array:
        def plain(x: Array, t: Array) -> Array:
            return ops.astype(evaluate(ops, spec, x, t), x.dtype)

        def wide(x: Array, t: Array) -> Array:
            with enable_x64(True):
                return plain(x, t)

        return jax.lax.platform_dependent(x, t, cpu=wide, cuda=wide, rocm=wide, default=plain)

    return value


# Generalised KL of a target t and the logarithm x of a prediction: t (log t - x) - t + e^x >= 0, e^x where t = 0.
# Its derivatives are e^x - t and log t - x; the latter is defined as 0 where t = 0.


def _evaluate_generalized(ops: Any, spec: Spec, x: Array, t: Array) -> Array:
    dtype = compute_dtype(ops, spec, (x, t))
    x, t = ops.astype(x, dtype), ops.astype(t, dtype)
    absent, prediction = t == 0.0, ops.exp(x)
    log_ratio = ops.where(absent, 0.0, x) - ops.log(ops.where(absent, 1.0, t))
    return ops.sum(ops.where(absent, prediction, bregman(ops, t, prediction, log_ratio)), spec.axes)


def _generalized_gradients(ops: Any, spec: Spec, x: Array, t: Array, *, needs: Needs = ALL) -> Slopes:
    dtype = compute_dtype(ops, spec._replace(wide=False), (x, t))
    x, t = ops.astype(x, dtype), ops.astype(t, dtype)
    absent = t == 0.0
    to_t = ops.log(ops.where(absent, 1.0, t)) - ops.where(absent, 0.0, x)
    return ops.exp(x) - t, to_t


_literal_value, _generalized_value = _in_float64(evaluate_literal), _in_float64(_evaluate_generalized)


def _as_mask(function: str, where: ArrayLike, ndim: int) -> Array:
    _refuse_if_no_array(function, "where", where)
    mask = jnp.asarray(where)
    if mask.dtype != jnp.bool_:
        raise ValueError(f"{function}: where has dtype {mask.dtype}, and must be boolean: pass where != 0")
    if mask.ndim > ndim:
        # optax counts the axis before broadcasting, and sums over another one.
        raise ValueError(f"{function}: where has {mask.ndim} axes and the arrays {ndim}: it must broadcast to their shape")
    return mask


def _loss(
    function: str, value: Any, gradients: Any, axis: Any, where: ArrayLike | None, *, log_target: bool = False, **named: ArrayLike
) -> Array:
    """Σ over `axis` of what `value` makes of log-predictions and targets, both named as the caller knows them."""
    arrays, dtype = _as_arrays(function, floating=True, **named)
    x, t = _broadcast(function, dtype, **dict(zip(named, arrays)))
    axis = tuple(range(x.ndim)) if axis is None else axis
    axes = () if isinstance(axis, (tuple, list)) and not axis else parse_axes(axis, x.ndim)
    if where is not None:
        mask = _as_mask(function, where, x.ndim)
        try:
            x, t, mask = jnp.broadcast_arrays(x, t, mask)
        except ValueError:
            raise ValueError(f"{function}: where has shape {mask.shape}, which does not broadcast with the arrays, {x.shape}") from None
        # Before rather than after, so that what is left out may be anything and its derivatives are 0.
        x, t = jnp.where(mask, x, -jnp.inf), jnp.where(mask, t, -jnp.inf if log_target else 0.0)
    spec = Spec("literal", 0.0, ("log_probs", "log_probs" if log_target else "probs"), axes, (), True)
    return ops.squeeze(_apply(value, gradients, spec, x, t), axes)


def kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None
) -> Array:
    """`optax.losses.kl_divergence`, mended: Σ targets · (log targets − log_predictions) over `axis`, of the elements in `where`.

    The same formula: it does not normalise. What differs from optax:

    - where target = 0 the term is 0 and so are its derivatives, whatever the log-prediction (−inf included): no NaN;
    - what `where` leaves out may be anything, NaN included, and its derivatives are 0;
    - summed in float64 and rounded once, with x64 or without (not on TPUs).

    `kullback.kl(p, log_q, form=("probs", "log_probs"))` is the one that normalises and checks.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> log_q, p = jnp.array([-jnp.inf, -0.7, -0.7]), jnp.array([0.0, 0.5, 0.5])
    >>> value, gradients = jax.value_and_grad(kl_divergence, argnums=(0, 1))(log_q, p)
    >>> print(f"{value:.6f}", gradients[0], gradients[1].round(4))
    0.006853 [-0.  -0.5 -0.5] [0.     1.0069 1.0069]
    """
    return _loss("kl_divergence", _literal_value, literal_gradients, axis, where, log_predictions=log_predictions, targets=targets)


def kl_divergence_with_log_targets(
    log_predictions: ArrayLike, log_targets: ArrayLike, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None
) -> Array:
    """`optax.losses.kl_divergence_with_log_targets`, mended: Σ exp(log_targets) · (log_targets − log_predictions) over `axis`.

    As `kl_divergence`; a target of probability 0 is a log-target of −inf.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> log_p = jnp.array([-jnp.inf, -0.7, -0.7])
    >>> value = kl_divergence_with_log_targets(jnp.array([-1.1, -1.1, -1.1]), log_p)
    >>> print(f"{value:.6f}")
    0.397268
    """
    return _loss(
        "kl_divergence_with_log_targets", _literal_value, literal_gradients, axis, where, log_target=True,
        log_predictions=log_predictions, log_targets=log_targets,
    )  # fmt: skip


def generalized_kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None
) -> Array:
    """`optax.losses.generalized_kl_divergence`, mended: Σ targets · (log targets − log_predictions) − targets + exp(log_predictions) ≥ 0.

    As `kl_divergence`; a target of 0 adds exp(log_prediction), and the derivative to it is defined as 0. No term is negative and none
    cancels: digits are not lost where the prediction is close to the target.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> print(generalized_kl_divergence(jnp.log(jnp.array([0.25, 0.5])), jnp.array([0.0, 0.5001])))
    0.25
    """
    return _loss(
        "generalized_kl_divergence", _generalized_value, _generalized_gradients, axis, where,
        log_predictions=log_predictions, targets=targets,
    )  # fmt: skip


# --- patching -----------------------------------------------------------------------------------------------------------------------


def _replacements() -> list[Replacement]:
    found: list[Replacement] = [(jax.scipy.special, "rel_entr", rel_entr), (jax.scipy.special, "kl_div", kl_div)]
    try:
        import optax
    except ImportError:
        return found
    # The last is where optax's own functions look each other up: convex_kl_divergence calls generalized_kl_divergence.
    modules = {id(m): m for m in (optax, optax.losses, sys.modules[optax.losses.kl_divergence.__module__])}
    for ours in (kl_divergence, kl_divergence_with_log_targets, generalized_kl_divergence):
        found += [(module, ours.__name__, ours) for module in modules.values() if hasattr(module, ours.__name__)]
    return found


_patch: Patch | None = None
_lock = threading.Lock()


def _the_patch() -> Patch:
    """Made when first asked for: optax takes a while to import."""
    global _patch
    with _lock:
        _patch = _patch or Patch(_replacements())
        return _patch


def patched() -> Any:
    """`with kullback.jax.patched():` makes jax.scipy.special's `rel_entr` and `kl_div` ours, and optax's `kl_divergence`,
    `kl_divergence_with_log_targets` and `generalized_kl_divergence` (with its old name `convex_kl_divergence`), where optax is installed.

    For the whole process, until the last such block is left, by an exception or not, on whichever thread. optax is imported if it is
    installed, so that it does not matter which of the two comes first.

    Out of reach is what was taken before: a function imported by name (`from optax import kl_divergence`), and whatever `jax.jit` has
    traced, which it does not look up again. For the same reason a function traced inside the block keeps ours after it. Enter the block,
    or call `install()`, before anything is traced; or call `jax.clear_caches()` after.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> p, q = jnp.array([jnp.nan, 0.0]), jnp.array([0.5, 0.5])
    >>> with patched():
    ...     print(jax.scipy.special.rel_entr(p, q))
    [nan  0.]
    >>> print(jax.scipy.special.rel_entr(p, q))
    [inf  0.]
    """
    return _the_patch().patched()


def install() -> None:
    """What `patched` does, until `uninstall`.

    Examples
    --------
    >>> import jax
    >>> install()
    >>> jax.scipy.special.rel_entr is rel_entr
    True
    >>> uninstall()
    """
    _the_patch().install()


def uninstall() -> None:
    """Undo `install`. Blocks of `patched` that are open stay in force until they are left.

    Examples
    --------
    >>> import jax
    >>> uninstall()
    >>> jax.scipy.special.rel_entr is rel_entr
    False
    """
    _the_patch().uninstall()

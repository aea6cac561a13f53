"""Products with the Fisher matrix of a categorical policy, which is the Hessian of its KL, for TRPO and natural gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._errors import InvalidOption, InvalidValue, WrongType
from .._forms import is_number, shown
from .._ops import Array, common_ops, ops_of
from ..estimators.policy import token_mask


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping):
        return [leaf for branch in tree.values() for leaf in _leaves(branch)]
    if isinstance(tree, (list, tuple)):
        return [leaf for branch in tree for leaf in _leaves(branch)]
    return [tree]


def _alike(tree: Any, other: Any) -> bool:
    if isinstance(tree, Mapping):
        return isinstance(other, Mapping) and list(tree) == list(other) and all(_alike(tree[key], other[key]) for key in tree)
    if isinstance(tree, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(tree) == len(other) and all(map(_alike, tree, other))
    return not isinstance(other, (Mapping, list, tuple))


def fisher_vector_product(
    logits: Callable[[Any], Array], parameters: Any, vector: Any, *, damping: float = 0.0, mask: Any = None
) -> Any:  # fmt: skip
    """F·v, where F is the Hessian at θ' = θ of the mean KL(π_θ‖π_θ'), the Fisher matrix, plus damping·v.

    By one product with the Jacobian of the logits and one with its transpose, Jᵀ(diag p − p pᵀ)J v: no second derivatives, no matrix.

    Parameters
    ----------
    logits : callable
        From parameters to logits, with the categories along the last axis and any batch axes before it.
    parameters : array, or dict, list or tuple of arrays
        Of PyTorch, JAX, TensorFlow or tinygrad. In PyTorch, ``dict(module.named_parameters())`` with ``torch.func.functional_call``.
    vector
        As `parameters`.
    damping : float
        Added to the diagonal of F.
    mask : array_like, optional
        0 or False: a row of logits that does not count, and may hold anything.

    Returns
    -------
    array, or dict, list or tuple of arrays
        As `parameters`.

    Examples
    --------
    >>> import torch
    >>> from kullback.losses import fisher_vector_product
    >>> theta = torch.tensor([0.0, 1.0, 2.0])
    >>> fisher_vector_product(lambda theta: theta, theta, torch.tensor([1.0, 0.0, 0.0]))      # the first column of diag p − p pᵀ
    tensor([ 0.0819, -0.0220, -0.0599])
    """
    if not (is_number(damping) and damping >= 0):
        raise InvalidOption(f"damping is {shown(damping)}: it must be a number ≥ 0")
    if not callable(logits):
        raise WrongType(f"logits is {logits!r}: it must be a function from parameters to logits")
    leaves, directions = _leaves(parameters), _leaves(vector)
    wrong = "no arrays" if not leaves else next((f"{leaf!r}" for leaf in leaves if ops_of(leaf) is None), None)
    if wrong is not None:
        raise WrongType(f"parameters hold {wrong}: derivatives need PyTorch, JAX, TensorFlow or tinygrad arrays")
    if any(ops_of(leaf) is not ops_of(leaves[0]) for leaf in directions):
        raise WrongType(f"vector must hold {ops_of(leaves[0]).name} arrays, as the parameters do")
    if not _alike(parameters, vector) or any(tuple(a.shape) != tuple(b.shape) for a, b in zip(leaves, directions)):
        raise InvalidValue("vector and parameters differ: they must hold arrays of the same shapes, in the same order")
    ops = common_ops([(f"array {i} of the parameters", leaf) for i, leaf in enumerate(leaves)])
    if ops.gauss_newton is None:
        raise WrongType(f"parameters are {type(leaves[0]).__name__}: derivatives need PyTorch, JAX, TensorFlow or tinygrad arrays")

    def metric(y: Array, change: Array) -> Array:
        # Per row (diag p − p pᵀ)·change, the mean over rows. Half precision in float32.
        dtype = ops.widest(y) if not ops.exact_float32 else ops.float64 if y.dtype == ops.float64 else ops.float32
        y, change = ops.astype(y, dtype), ops.astype(change, dtype)
        last = (len(y.shape) - 1,)
        keep = token_mask(ops, mask, y[..., 0])
        if keep is not None:
            keep = ops.expand(keep, last)
            y, change = ops.where(keep, y, 0.0), ops.where(keep, change, 0.0)
        weight = ops.exp(y - ops.max(y, last))
        p = weight / ops.sum(weight, last)
        product = p * (change - ops.sum(p * change, last))
        rows = ops.total(ops.astype(y[..., :1] == y[..., :1] if keep is None else keep, dtype))
        return product / ops.where(rows == 0.0, 1.0, rows)

    return ops.gauss_newton(logits, parameters, vector, metric, float(damping))

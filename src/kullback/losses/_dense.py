"""The loss of rows of two logits arrays, by the formulas that take them fastest: Triton kernels for PyTorch, few passes for JAX.

Array operations for everything else are in `_divergences`; rows that are spread over devices in `_parallel`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._divergences import divergence
from .._errors import InvalidValue
from .._forms import inverse_temperature, is_number, weight_per_row
from .._ops import Array
from .._reduce import reduce_values, row_weights, share_of_each
from ._scaling import inverse, learns

# The advice of `kl_loss` to a caller whose sides have different sizes.
FIX = "pass valid={}"


def same_categories(ops: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """The shorter array padded with absent categories; two empty arrays get one. `matched` has checked that this is right."""
    sizes = [x.shape[-1], y.shape[-1]]
    if sizes[0] == sizes[1] != 0:
        return x, y
    longer = max(*sizes, 1)
    x, y = (ops.pad_last(z, longer - size, -math.inf) if size < longer else z for z, size in zip((x, y), sizes))
    return x, y


def matched(ops: Any, sides: dict[str, Array], weights: Any, valid: int | None, fix: str, *, look: bool = True) -> tuple[Array, Array]:
    """Both sides (a dict from names to logits), checked: their categories must correspond one by one. The longer side must have logits of
    -inf in its other categories, or `valid` must leave these out. `fix` says what else the caller can do."""
    (name, x), (other, y) = sides.items()
    sizes = x.shape[-1], y.shape[-1]
    if sizes[0] == sizes[1] or None in sizes or (valid is not None and valid <= min(sizes)):
        return x, y
    sentence = different_sizes(name, sizes[0], other, sizes[1], fix)
    if sizes[0] > sizes[1]:
        return only_padding(ops, x, slice(sizes[1], valid), weights, sentence, look=look), y
    return x, only_padding(ops, y, slice(sizes[0], valid), weights, sentence, look=look)


def different_sizes(name: str, size: int, other: str, other_size: int, fix: str) -> str:
    least = min(size, other_size)
    return (
        f"{name} has {size} categories and {other} {other_size}, and the rest of the longer side is not known to be padding: different "
        f"vocabularies cannot be compared category by category; if the first {least} are the same in both, {fix.format(least)}"
    )


def only_padding(ops: Any, x: Array, rest: slice, weights: Any, sentence: str, *, look: bool = True) -> Array:
    """x, if its logits in these columns are -inf in every row that counts. Otherwise this raises `sentence`, and also in compiled
    functions, which cannot see the values. It waits for an accelerator, because a NaN would not say which sizes disagree. A rank that does
    not `look`, and a CUDA graph, make such rows NaN."""
    last = (len(x.shape) - 1,)
    found = ops.sum(ops.astype(x[..., rest] != -math.inf, ops.float32), last)
    if not look or getattr(ops, "is_capturing", bool)():
        return x + ops.astype(ops.where(found > 0.0, math.nan, found), x.dtype)
    if not ops.can_look(found):
        raise InvalidValue(f"{sentence} (a compiled function cannot look for padding)")
    wrong = np.asarray(ops.to_numpy(ops.squeeze(found, last))) > 0.0
    if weights is not None:
        wrong = wrong & (np.asarray(ops.to_numpy(weights_of_rows(ops, weights, x))) != 0.0)
    if wrong.any():
        raise InvalidValue(sentence)
    return x


def weights_of_rows(ops: Any, weights: Any, x: Array) -> Array | None:
    """One a row of x."""
    last = (len(x.shape) - 1,)
    return None if weights is None else ops.squeeze(weight_per_row(ops, weights, x, last), last)


def why_too_one_sided(kind: str, share: float) -> str | None:
    """Why formulas for accelerators, in float32, do not take this mixture: they would lose the digits of log(m/p), or of 1 - mix."""
    if kind == "kl" or 0.01 <= share <= 0.99:
        return None
    return "mix lies within 0.01 of 0 or 1, where its kernels lose digits"


def takes_few_passes(ops: Any, x: Array, y: Array, kind: str, share: float) -> bool:
    if why_too_one_sided(kind, share) is not None:
        return False
    return ops.name == "JAX" and x.shape[:-1] == y.shape[:-1] and ops.on_accelerator(x) and ops.float64 not in (x.dtype, y.dtype)


def few_passes(
    ops: Any, x: Array, y: Array, kind: str, share: float, temperature: Any, weights: Any, reduction: str
) -> Array:  # fmt: skip
    """The loss by formulas laid out for XLA's fusion on accelerators."""
    from .._kernels import rows_jax

    x, y = same_categories(ops, x, y)
    last = (len(x.shape) - 1,)
    scale = None if is_number(temperature) and temperature == 1 else inverse_temperature(ops, temperature, x, last)
    if weights is None:
        return reduce_values(ops, rows_jax.values(x, y, kind, share, scale), None, reduction)
    weights = weight_per_row(ops, weights, x, last)
    values = rows_jax.values(x, y, kind, share, scale, weights != 0.0)
    return reduce_values(ops, values, ops.squeeze(weights, last), reduction)


def why_not_fused(ops: Any, student: Array, teacher: Array, temperature: Any, kind: str = "kl", share: float = 0.0) -> str | None:
    if ops.has_row_kernels is None:
        return f"its kernels take PyTorch tensors, and these are {ops.name} arrays"
    if why_too_one_sided(kind, share) is not None:
        return why_too_one_sided(kind, share)
    if learns(temperature) and not ops.is_constant(temperature):
        return "the temperature learns, which needs its derivative"
    if student.shape[:-1] != teacher.shape[:-1]:
        return f"student and teacher have different batches, {tuple(student.shape[:-1])} and {tuple(teacher.shape[:-1])}"
    if not ops.has_row_kernels(student, teacher):
        needed = "CUDA tensors of float16, bfloat16 or float32, not empty, on Ampere or later, with Triton installed"
        return f"it needs {needed}, outside torch.compile and torch.func"
    return None


def fused(
    ops: Any, x: Array, y: Array, kind: str, share: float, temperature: Any, weights: Any, reduction: str, valid: int | None
) -> Array:  # fmt: skip
    """The loss in Triton kernels."""
    from .._kernels import rows_triton

    formula = formula_of(ops, kind, share, temperature)
    scale, weights = inverse(ops, temperature, x), weights_of_rows(ops, weights, x)
    weights_learn = weights is not None and not ops.is_constant(weights)
    one_learns = ops.is_constant(x) != ops.is_constant(y) and not weights_learn
    if reduction != "none" and one_learns and rows_triton.FusedLoss.takes(y if ops.is_constant(x) else x):
        shares: Any = share_of_each(x.shape[:-1], reduction)
        if weights is not None:
            shares = row_weights(ops, x[..., 0], weights, reduction).reshape(-1).contiguous()
        return rows_triton.FusedLoss.apply(x, y, kind, share, shares, scale, formula, valid)
    return reduce_values(ops, rows_triton.Loss.apply(x, y, kind, share, scale, formula, valid), weights, reduction)


def fused_in_place(
    ops: Any, x: Array, y: Array, kind: str, share: float, temperature: Any, weights: Any, reduction: str, side: int
) -> Array:  # fmt: skip
    """The same, with the gradient to one of both, by its number, written over it."""
    from .._kernels import inplace_triton

    weights = weights_of_rows(ops, weights, x)
    return reduce_values(
        ops, inplace_triton.LossInPlace.apply(x, y, kind, share, inverse(ops, temperature, x), side), weights, reduction
    )  # fmt: skip


def formula_of(ops: Any, kind: str, share: float, temperature: Any) -> Any:
    """The same quantity in array operations, for second derivatives."""

    def formula(first: Array, second: Array) -> Array:
        first, second = same_categories(ops, first, second)
        return divergence(
            kind, share, first, second, form="logits", axis=-1, keepdims=False, weights=None, reduction="none", base=None,
            temperature=temperature, prior=None, check=False,
        )  # fmt: skip

    return formula

"""KL divergence as other libraries write it: of a target and a prediction, neither of them normalised."""

from __future__ import annotations

from typing import Any

from ._calculus import evaluate_literal, evaluate_literal_probs, literal_gradients, literal_probs_gradients
from ._divergences import kl
from ._ops import Array
from ._pairs import Spec


def literal_terms(ops: Any, log_prediction: Array, target: Array, *, log_target: bool = False) -> Array:
    """Element by element, in the wider of float32 and the arrays' dtypes. Both of one shape."""
    return _apply(ops, log_prediction, target, log_target, ())


def literal_sum(ops: Any, log_prediction: Array, target: Array, axes: tuple[int, ...], *, log_target: bool = False) -> Array:
    """The sum over `axes` (counted from the front, at least one), in float64 where the framework has it."""
    return ops.squeeze(_apply(ops, log_prediction, target, log_target, axes), axes)


def _apply(ops: Any, x: Array, t: Array, log_target: bool, axes: tuple[int, ...]) -> Array:
    spec = Spec("literal", 0.0, ("log_probs", "log_probs" if log_target else "probs"), axes, (), True)
    return ops.apply(evaluate_literal, literal_gradients, spec, x, t)


def literal_sum_of_probs(ops: Any, target: Array, prediction: Array, axes: tuple[int, ...]) -> Array:
    """Σ target log(target/prediction) over `axes`, both of one shape and dtype. Its derivative is 0 where the quotient overflows."""
    spec = Spec("literal", 0.0, (), axes, (), not ops.exact_float32)
    return ops.squeeze(ops.apply(evaluate_literal_probs, literal_probs_gradients, spec, target, prediction), axes)


def literal_sum_of_logits(ops: Any, target: Array, logits: Array, axes: tuple[int, ...]) -> Array:
    """Σ target · KL(normalised target‖softmax(logits)): 0 for a row of zeros."""
    # A target of 0 is a constant here, as it is in kl: its derivative is 0.
    total = ops.astype(ops.sum(ops.astype(ops.where(target == 0.0, 0.0, target), ops.widest(target)), axes), logits.dtype)
    empty = total == 0.0
    values = kl(ops.where(empty, 1.0, target), logits, form=("probs", "logits"), axis=axes, keepdims=True, check=False)
    return ops.squeeze(total * ops.where(empty, 0.0, values), axes)

"""KL divergence as other libraries write it: t (log t - x) of a target t and a log-prediction x, neither of them normalised."""

from __future__ import annotations

from typing import Any

from ._calculus import evaluate_literal, literal_gradients
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

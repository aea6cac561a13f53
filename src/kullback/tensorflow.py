"""KL divergence for plain TensorFlow, in the manner of `tf.nn`: labels first, one value per distribution.

Keras' names are in `kullback.keras`; this module does not need Keras.

>>> import tensorflow as tf
>>> from kullback.tensorflow import kl_divergence, kl_divergence_with_logits
>>> labels = tf.constant([[0.0, 0.5, 0.5]])
>>> print(f"{kl_divergence(labels, tf.constant([[0.5, 0.25, 0.25]]))[0]:.6f}")
0.693147
>>> print(f"{kl_divergence_with_logits(labels, tf.constant([[-300.0, 0.0, 1.0]]))[0]:.6f}")
0.120115
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ._forms import left_pad, same_categories_when_run
from ._literal import literal_sum_of_logits, literal_sum_of_probs
from ._ops import tensorflow as ops

__all__ = ["kl_divergence", "kl_divergence_with_logits"]


def kl_divergence(labels: Any, predictions: Any, axis: int = -1, name: str | None = None) -> tf.Tensor:
    r"""Σ labels · log(labels / predictions) over `axis`, of probabilities as they are: nothing is normalised, nothing clipped.

    The formula of `tf.keras.losses.kl_divergence`, which clips, and in float32 loses its digits where predictions are close to labels;
    this one does not: it adds up Σ (labels · log(labels / predictions) − labels + predictions), whose terms are all ≥ 0, and
    Σ (labels − predictions), in float64. Labels of 0 add nothing; beneath other labels, predictions of 0 give inf and negative ones NaN.

    Gradients reach both arguments, and are finite for finite input. Where labels are 0 they are 0. Where a prediction is 0, or so small
    that the derivative overflows, beneath a label that is not, the derivative is defined as 0: an infinite one would turn every weight
    behind a softmax that has underflown into NaN. `kl_divergence_with_logits` has the right one.

    Parameters
    ----------
    labels, predictions : tensors or array_like
        Probabilities, of shapes that broadcast; categories must agree. Labels are cast to the dtype of the predictions, which is that of
        the result; half precision is computed in float32, and rounded once.
    axis : int
        The categories.
    name : str, optional
        Of the operation.

    Examples
    --------
    >>> import tensorflow as tf
    >>> predictions = tf.Variable([[0.5, 0.5], [1.0, 0.0]])
    >>> with tf.GradientTape() as tape:
    ...     values = kl_divergence([[0.0, 1.0], [0.5, 0.5]], predictions)
    >>> [round(float(x), 6) for x in values]
    [0.693147, inf]
    >>> tape.gradient(values, predictions).numpy().tolist()
    [[0.0, -2.0], [-0.5, 0.0]]
    """
    with tf.name_scope(name or "kl_divergence"):
        x, y, axis, dtype = _prepare("kl_divergence", "predictions", labels, predictions, axis)
        return tf.cast(literal_sum_of_probs(ops, x, y, (axis,)), dtype)


def kl_divergence_with_logits(labels: Any, logits: Any, axis: int = -1, name: str | None = None) -> tf.Tensor:
    r"""KL(labels‖softmax(logits)) over `axis`, the softmax never formed.

    It is `tf.nn.softmax_cross_entropy_with_logits` less the entropy of the labels, without the cancellation.
    Labels are normalised, and the value is multiplied by their sum: a row of zeros, as padding has, gives 0, and rounding in that sum
    does not blur a small divergence. The derivative to the logits is that of the cross-entropy, sum(labels) · softmax(logits) − labels.
    It is right however far apart the logits are; −inf means probability 0. The derivative to a label of 0 is defined as 0.

    Parameters
    ----------
    labels, logits : tensors or array_like
        Of shapes that broadcast; categories must agree. Labels are cast to the dtype of the logits, which is that of the result; half
        precision is computed in float32, and rounded once.
    axis : int
        The categories.
    name : str, optional
        Of the operation.

    Examples
    --------
    >>> import tensorflow as tf
    >>> logits = tf.Variable([[0.0, 0.0], [1000.0, 0.0]])
    >>> with tf.GradientTape() as tape:
    ...     values = kl_divergence_with_logits([[1.0, 0.0], [0.0, 1.0]], logits)
    >>> [round(float(x), 6) for x in values]
    [0.693147, 1000.0]
    >>> tape.gradient(values, logits).numpy().tolist()
    [[-0.5, 0.5], [1.0, -1.0]]
    """
    with tf.name_scope(name or "kl_divergence_with_logits"):
        x, z, axis, dtype = _prepare("kl_divergence_with_logits", "logits", labels, logits, axis)
        return tf.cast(literal_sum_of_logits(ops, x, z, (axis,)), dtype)


def _prepare(function: str, second: str, labels: Any, given: Any, axis: int) -> tuple[tf.Tensor, tf.Tensor, int, tf.DType]:
    """Both as float32 or float64 of one shape, the axis counted from the front, and the dtype of the result."""
    y = _tensor(function, second, given)
    dtype = y.dtype
    ops.check_mode()
    if not ops.is_float(y):
        _refuse(f"{function}(): {second} has dtype {dtype.name}: cast it to a float type", TypeError)
    y = tf.cast(y, tf.float32) if ops.is_half(y) else y
    x = _tensor(function, "labels", labels, y.dtype)
    if x.shape.rank is None or y.shape.rank is None:
        raise ValueError(f"{function}(): the number of axes is unknown: state it with tf.ensure_shape")
    rank = max(x.shape.rank, y.shape.rank)
    if rank == 0:
        _refuse(f"{function}(): labels and {second} are single numbers: a distribution needs an axis of categories")
    if not -rank <= axis < rank:
        _refuse(f"{function}(): axis is {axis}, and the arrays have rank {rank}")
    axis %= rank
    shapes = [[1] * (rank - a.shape.rank) + list(a.shape) for a in (x, y)]
    for i, (n, m) in enumerate(zip(*shapes)):
        if n is not None and m is not None and n != m and (1 not in (n, m) or i == axis):
            why = "which do not broadcast" if 1 not in (n, m) else "and categories do not broadcast"
            _refuse(f"{function}(): labels has shape {tuple(x.shape)} and {second} {tuple(y.shape)}, {why}")
    x, y = same_categories_when_run(ops, [left_pad(ops, a, rank) for a in (x, y)], (axis,))
    x, y = ops.broadcast([x, y])
    return x, y, axis, dtype


def _tensor(function: str, name: str, x: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    try:
        if dtype is None or tf.is_tensor(x) or isinstance(x, tf.Variable) or hasattr(x, "dtype"):
            x = tf.convert_to_tensor(x)
            return x if dtype is None else tf.cast(x, dtype)
        return tf.convert_to_tensor(x, dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{function}(): {name} cannot be read as a tensor of numbers: {error}") from None


def _refuse(sentence: str, traced: type[Exception] = ValueError) -> None:
    """As TensorFlow does: one error from an operation that runs, another while it is traced."""
    raise tf.errors.InvalidArgumentError(None, None, sentence) if tf.executing_eagerly() else traced(sentence)

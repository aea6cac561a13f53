"""`keras.losses.KLDivergence` and `keras.losses.kl_divergence`, without the clipping, with `from_logits` and `axis`."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import keras
import numpy as np

from .._forms import judged_weights, parse_axes, with_rank
from .._literal import literal_sum_of_logits, literal_sum_of_probs
from .._ops import ops_of

try:
    from keras.src.backend import get_keras_mask
except ImportError:  # the first versions of Keras 3

    def get_keras_mask(x: Any) -> Any:
        return getattr(x, "_keras_mask", None)


__all__ = ["KLDivergence", "kl_divergence"]


def kl_divergence(y_true: Any, y_pred: Any, from_logits: bool = False, axis: int = -1) -> Any:
    r"""`keras.losses.kl_divergence`, mended: Σ y_true · log(y_true / y_pred), one value per distribution.

    The same formula, which does not normalise, and the same dtype. What differs from Keras:

    - nothing is clipped: y_true = 0 adds nothing, y_pred = 0 < y_true gives inf, negative numbers beneath other labels give NaN;
    - it keeps its digits where y_pred is close to y_true: it is computed as Σ (y_true · log(y_true / y_pred) − y_true + y_pred), whose
      terms are all ≥ 0, plus Σ (y_true − y_pred), and summed in float64 where the backend has that;
    - half precision is computed in float32, and rounded once.

    Gradients reach both arguments, and are finite for finite input. Where y_true = 0 they are 0. Where y_pred is 0, or so small that the
    derivative overflows, beneath a y_true that is not, the derivative is defined as 0, which is also Keras' own: an infinite one
    would turn every weight behind a softmax that has underflown into NaN. With `from_logits=True` there is the right one.

    Parameters
    ----------
    y_true, y_pred : tensors or array_like
        Probabilities, of one shape or shapes that broadcast; categories must agree.
    from_logits : bool
        y_pred holds logits, whose softmax is never formed. y_true is then normalised, and the value multiplied by its sum (a row
        of zeros gives 0), so that rounding in that sum does not blur a small divergence.
    axis : int
        The categories.

    Examples
    --------
    >>> from kullback.keras.losses import kl_divergence
    >>> [round(float(x), 6) for x in kl_divergence([[0.0, 1.0], [0.5, 0.5]], [[0.25, 0.75], [1.0, 0.0]])]
    [0.287682, inf]
    >>> round(float(kl_divergence([0.0, 0.5, 0.5], [-300.0, 0.0, 1.0], from_logits=True)), 6)
    0.120115
    """
    if any(isinstance(x, keras.KerasTensor) for x in (y_true, y_pred)):
        return _KLDivergence(from_logits=from_logits, axis=axis)(y_true, y_pred)
    y_pred = _tensor("y_pred", y_pred, None)
    values = divergences(y_true, y_pred, from_logits, axis)
    return keras.ops.cast(values, y_pred.dtype) if keras.backend.standardize_dtype(y_pred.dtype) in _HALF else values


@keras.saving.register_keras_serializable(package="kullback", name="losses.KLDivergence")
class KLDivergence(keras.losses.KLDivergence):  # type: ignore[misc]
    """`keras.losses.KLDivergence` on our `kl_divergence`: the same arguments and meaning, and `from_logits` and `axis`.

    Rows of weight 0, or masked, add nothing, also where their divergence is infinite. A model saved with this loss can be loaded after
    `import kullback.keras`.

    Examples
    --------
    >>> from kullback.keras.losses import KLDivergence
    >>> loss = KLDivergence(from_logits=True)
    >>> round(float(loss([[1.0, 0.0], [0.5, 0.5]], [[0.0, 0.0], [3.0, 3.0]])), 6)  # log(2) / 2
    0.346574
    >>> loss.get_config()["from_logits"]
    True
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "kl_divergence",
        dtype: Any = None,
        from_logits: bool = False,
        axis: int = -1,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.from_logits, self.axis = from_logits, axis
        self.fn = partial(kl_divergence, from_logits=from_logits, axis=axis)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras takes nested lists apart, down to their numbers.
        y_true, y_pred = _array(y_true), _array(y_pred)
        return super().__call__(where_counted(y_true, y_pred, sample_weight, self.axis), y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dtype": self.dtype, "from_logits": self.from_logits, "axis": self.axis}


@keras.saving.register_keras_serializable(package="kullback", name="operations.KLDivergence")
class _KLDivergence(keras.Operation):  # type: ignore[misc]
    """The function as a node of a functional model."""

    def __init__(self, *, from_logits: bool, axis: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.from_logits, self.axis = from_logits, axis

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return kl_divergence(y_true, y_pred, self.from_logits, self.axis)

    def compute_output_spec(self, y_true: Any, y_pred: Any) -> Any:
        like = keras.ops.sum(keras.ops.cast(y_true, y_pred.dtype) * y_pred, axis=self.axis)
        return keras.KerasTensor(like.shape, like.dtype)


keras.saving.register_keras_serializable(package="kullback")(kl_divergence)

_HALF = ("float16", "bfloat16")
_THEIRS = keras.losses.kl_divergence


def divergences(y_true: Any, y_pred: Any, from_logits: bool = False, axis: int = -1) -> Any:
    """`kl_divergence`, in float32 at least."""
    given = y_true
    y_pred = _tensor("y_pred", y_pred, None)
    dtype = str(keras.backend.standardize_dtype(y_pred.dtype))
    if dtype.startswith(("complex", "str")):
        _refuse(given, y_pred, f"y_pred has dtype {dtype}: probabilities are real numbers")
    if dtype not in ("float32", "float64"):
        dtype = "float32" if dtype in _HALF else keras.config.floatx()
        y_pred = keras.ops.cast(y_pred, dtype)
    y_true = _tensor("y_true", y_true, dtype)
    true_shape, shape = (tuple(with_rank(name, x).shape) for name, x in (("y_true", y_true), ("y_pred", y_pred)))
    # Sizes are None while TensorFlow traces.
    if any(isinstance(n, int) and isinstance(m, int) and n != m and 1 not in (n, m) for n, m in zip(true_shape[::-1], shape[::-1])):
        _refuse(given, y_pred, f"y_true has shape {true_shape} and y_pred {shape}, which do not broadcast")
    ndim = max(len(true_shape), len(shape))
    if ndim == 0:
        _refuse(given, y_pred, "y_true and y_pred are single numbers: a distribution needs an axis of categories")
    axes = parse_axes(axis, ndim)
    ops = ops_of(y_pred)
    if hasattr(ops, "check_mode"):
        ops.check_mode()
    sizes = [((1,) * (ndim - len(s)) + s)[axes[0]] for s in (true_shape, shape)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ValueError(
            f"kl_divergence(): y_true has {sizes[0]} categories and y_pred {sizes[1]} along axis {axis}: they do not broadcast"
        )
    x, y = ops.broadcast([y_true, y_pred])
    return (literal_sum_of_logits if from_logits else literal_sum_of_probs)(ops, x, y, axes)


def where_counted(y_true: Any, y_pred: Any, weights: Any, axis: int, pad: int = 0) -> Any:
    """y_true, made 0 in rows that have no weight or are masked: 0 times an infinite divergence would be NaN. Weights below 0 or of NaN are
    refused, or make y_true NaN where nobody can look at them.

    Weights with fewer axes than the batch are padded at `pad`: a loss broadcasts them from the right (0), a metric from the left (-1).
    """
    for weight in (weights, get_keras_mask(y_pred)):
        if weight is None:
            continue
        y_true = keras.ops.convert_to_tensor(_array(y_true))
        weight = keras.ops.convert_to_tensor(_array(weight))
        if keras.backend.is_float_dtype(weight.dtype):
            weight = judged_weights(ops_of(weight), weight)
        batch = len(y_true.shape) - 1
        if len(weight.shape) == batch + 1 and weight.shape[-1] == 1:
            weight = keras.ops.squeeze(weight, axis=-1)
        if len(weight.shape) > batch:
            return y_true  # Keras will say what is wrong
        for _ in range(batch - len(weight.shape)):
            weight = keras.ops.expand_dims(weight, axis=pad)
        weight = keras.ops.expand_dims(weight, axis=axis)
        y_true = keras.ops.where(keras.ops.cast(weight, "bool"), y_true, keras.ops.zeros_like(y_true))
        if keras.backend.is_float_dtype(weight.dtype) and not ops_of(weight).may_look(weight):
            dtype = y_true.dtype if keras.backend.is_float_dtype(y_true.dtype) else weight.dtype
            y_true = keras.ops.cast(y_true, dtype) + keras.ops.cast(weight * 0.0, dtype)  # NaN where the weight is
    return y_true


def _array(x: Any) -> Any:
    """Lists of numbers as an array, in float64: a tensor made of them would be float32."""
    return np.asarray(x) if isinstance(x, (list, tuple)) and all(isinstance(v, (int, float)) for v in keras.tree.flatten(x)) else x


def _tensor(name: str, x: Any, dtype: str | None) -> Any:
    try:
        return keras.ops.convert_to_tensor(x, dtype=dtype)
    except Exception as error:
        raise _restated(error, f"{name} cannot be read as a tensor of numbers: {error}") from None


def _refuse(y_true: Any, y_pred: Any, sentence: str) -> NoReturn:
    """The error that Keras itself has for these on this backend, with a better sentence."""
    try:
        _THEIRS(y_true, y_pred)
    except Exception as error:
        raise _restated(error, sentence) from None
    raise _restated(ValueError(), sentence)


def _restated(error: Exception, sentence: str) -> Exception:
    sentence = f"kl_divergence(): {sentence}"
    if hasattr(error, "node_def"):  # TensorFlow's errors also carry the operation
        return type(error)(error.node_def, error.op, sentence)  # type: ignore[attr-defined]
    return type(error)(sentence)

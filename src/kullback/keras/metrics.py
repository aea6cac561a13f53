"""`keras.metrics.KLDivergence`, without the clipping, with `from_logits` and `axis`."""

from __future__ import annotations

from typing import Any

import keras

from .losses import divergences, kl_divergence, where_counted

__all__ = ["KLDivergence", "kl_divergence"]


@keras.saving.register_keras_serializable(package="kullback", name="metrics.KLDivergence")
class KLDivergence(keras.metrics.KLDivergence):  # type: ignore[misc]
    """`keras.metrics.KLDivergence` on our `kl_divergence`: the mean over all distributions of all batches, weighted by `sample_weight`.

    The same arguments and meaning, and `from_logits` and `axis`. Half precision is computed in float32. Samples of weight 0, or
    masked, add nothing, also where their divergence is infinite. Under `tf.distribute` the totals are summed over replicas, by Keras. A
    long run is better added up in float64, `dtype="float64"`, where the backend has that.

    Examples
    --------
    >>> from kullback.keras.metrics import KLDivergence
    >>> metric = KLDivergence()
    >>> metric.update_state([[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]])
    >>> metric.update_state([[0.5, 0.5]], [[0.5, 0.5]])
    >>> round(float(metric.result()), 6)  # log(2) / 3
    0.231049
    """

    def __init__(
        self,
        name: str | None = "kl_divergence",
        dtype: Any = None,
        from_logits: bool = False,
        axis: int = -1,
    ) -> None:
        # Past the constructor of keras.metrics.KLDivergence, which takes no other function.
        keras.metrics.MeanMetricWrapper.__init__(self, divergences, name=name, dtype=dtype, from_logits=from_logits, axis=axis)
        self.from_logits, self.axis = from_logits, axis
        self._direction = "down"  # less is better, as Keras notes it of its own

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(where_counted(y_true, y_pred, sample_weight, self.axis, pad=-1), y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "from_logits": self.from_logits, "axis": self.axis}

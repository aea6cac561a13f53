"""Mean KL over all batches of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._divergences import kl

try:
    from torchmetrics import Metric
except ImportError:
    Metric = None


class _PlainMetric(nn.Module):  # type: ignore[misc]
    """The part of `torchmetrics.Metric` used below, for those who do not have it."""

    def __init__(self) -> None:
        super().__init__()
        self._defaults: dict[str, Tensor] = {}

    def add_state(self, name: str, default: Tensor, dist_reduce_fx: str) -> None:
        self._defaults[name] = default
        self.register_buffer(name, default.clone(), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # Moved with the model, but not cast with it: sums in half precision would overflow.
        for name in self._defaults:
            state = getattr(self, name)
            setattr(self, name, state.to(fn(state).device))
        return self

    def reset(self) -> None:
        for name, default in self._defaults.items():
            getattr(self, name).copy_(default)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Update, and return the value of this batch alone."""
        before = {name: getattr(self, name).clone() for name in self._defaults}
        self.reset()
        self.update(*args, **kwargs)
        batch = self._value(*(getattr(self, name) for name in self._defaults))
        for name, value in before.items():
            getattr(self, name).add_(value)
        return batch

    def compute(self) -> Tensor:
        states = [getattr(self, name).clone() for name in self._defaults]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for state in states:
                torch.distributed.all_reduce(state)
        return self._value(*states)


if TYPE_CHECKING:
    _Base = nn.Module
elif Metric is None:
    _Base = _PlainMetric
else:

    class _Base(Metric):
        def compute(self) -> Tensor:  # torchmetrics has summed the states over processes by then
            return self._value(self.total, self.weight)


class KLMetric(_Base):  # type: ignore[misc,valid-type]
    """Mean KL(P‖Q) over all distributions of all batches: `update`, `compute`, `reset`, summed over processes.

    A `torchmetrics.Metric` where torchmetrics is installed, else an `nn.Module` with the same methods. Calling it updates it and returns
    the value of that batch alone.

    Parameters
    ----------
    reduction : {"mean", "sum"}
        Over distributions: Σ w KL / Σ w, or Σ w KL.
    form, axis, base, temperature, prior, check
        As in `kullback.kl`.
    **kwargs
        For `torchmetrics.Metric`.

    Examples
    --------
    >>> import torch
    >>> metric = KLMetric(form="probs")
    >>> metric.update(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0.5, 0.5]))
    >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([0.5, 0.5]))
    >>> round(metric.compute().item(), 6)  # log(2) / 3
    0.231049
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    def __init__(
        self,
        *,
        form: Any = "probs",
        reduction: str = "mean",
        axis: Any = -1,
        base: float | None = None,
        temperature: float | None = None,
        prior: float | None = None,
        check: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {reduction!r}: it must be 'mean' or 'sum'")
        self.reduction = reduction
        self.options = {"form": form, "axis": axis, "base": base, "temperature": temperature, "prior": prior, "check": check}
        for name in ("total", "weight"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, p: Tensor, q: Tensor, weights: Tensor | None = None) -> None:
        """Distributions of one batch, and optionally one weight each."""
        with torch.no_grad():
            values = kl(p, q, weights=weights, **self.options)
            counted = torch.ones_like(values) if weights is None else torch.as_tensor(weights, device=values.device).expand(values.shape)
            self.total += values.sum(dtype=self.total.dtype)
            self.weight += counted.sum(dtype=self.weight.dtype)

    def _value(self, total: Tensor, weight: Tensor) -> Tensor:
        return total if self.reduction == "sum" else total / weight

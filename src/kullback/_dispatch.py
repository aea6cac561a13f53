"""The public `kl`: arrays go to the array formulas, distribution objects to their closed forms."""

from __future__ import annotations

import math
from typing import Any

from . import _divergences
from ._distributions.adapters import is_distribution
from ._distributions.objects import object_kl
from ._ops import Array, ops_of
from ._reduce import check_options


def kl(
    p: Any,
    q: Any,
    *,
    form: Any = "probs",
    axis: Any = -1,
    keepdims: bool = False,
    weights: Any = None,
    reduction: str = "none",
    base: float | None = None,
    temperature: Any = None,
    prior: float | None = None,
    check: bool | None = None,
) -> Array:
    if not (is_distribution(p) or is_distribution(q)):
        return _divergences.kl(
            p, q, form=form, axis=axis, keepdims=keepdims, weights=weights, reduction=reduction, base=base, temperature=temperature,
            prior=prior, check=check,
        )  # fmt: skip
    for x, name, other in ((p, "p", "q"), (q, "q", "p")):
        if not is_distribution(x):
            raise TypeError(f"{name} is a {type(x).__name__} and {other} a distribution object: both must be one or the other")
    given = {"form": form != "probs", "axis": axis != -1, "keepdims": keepdims, "weights": weights is not None,
             "temperature": temperature is not None, "prior": prior is not None}  # fmt: skip
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} is for arrays: distribution objects say themselves what their numbers are")
    check_options(reduction, keepdims, base)
    value = object_kl(p, q)
    if base is not None:
        value = value / math.log(base)
    if reduction == "none":
        return value
    ops = ops_of(value)
    if reduction == "mean":
        return ops.mean(value)
    total = ops.total(value)
    return total / ops.length(value) if reduction == "batchmean" and len(value.shape) > 0 else total


kl.__doc__ = _divergences.kl.__doc__
relative_entropy = kl

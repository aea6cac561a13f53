"""Entropy and cross-entropy of arrays."""

from __future__ import annotations

from typing import Any

from ._calculus import cross_entropy_gradients, entropy_gradients, evaluate_cross_entropy, evaluate_entropy
from ._checks import raise_if_invalid
from ._forms import prepare
from ._ops import Array
from ._reduce import check_options, reduce_rows


def entropy(
    p: Any,
    *,
    form: str = "probs",
    axis: Any = -1,
    keepdims: bool = False,
    weights: Any = None,
    reduction: str = "none",
    base: float | None = None,
    temperature: Any = None,
    prior: float | None = None,
    check: bool | None = None,
) -> Array:
    """Shannon entropy H(P) = −Σ p log p, in nats, one value per distribution.

    Parameters as in `kl`. p = 0 adds nothing, and the derivative to it (form "probs") is defined as 0; the true one is inf.

    Examples
    --------
    >>> import kullback as kb
    >>> float(kb.entropy([0.5, 0.25, 0.25], base=2))
    1.5
    """
    check_options(reduction, keepdims, base)
    inputs = prepare((("p", p),), form=form, axis=axis, weights=weights, temperature=temperature, prior=prior, check=check)
    arrays = inputs.arrays if inputs.scale is None else (*inputs.arrays, inputs.scale)
    values = inputs.ops.apply(evaluate_entropy, entropy_gradients, inputs.spec("entropy"), *arrays)
    raise_if_invalid(inputs, values)
    return reduce_rows(inputs, values, reduction=reduction, keepdims=keepdims, base=base)


def cross_entropy(
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
    """Cross-entropy H(P, Q) = −Σ p log q, in nats, one value per distribution. P, the true distribution, comes first.

    Parameters as in `kl`. q = 0 < p gives inf. At p = 0 the derivative to p (form "probs") is the true one, −log q − H(P, Q).

    Examples
    --------
    >>> import kullback as kb
    >>> p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    >>> float(kb.cross_entropy(p, q).round(12))
    1.054920167986
    >>> abs(float(kb.cross_entropy(p, q) - kb.entropy(p) - kb.kl(p, q))) < 1e-15
    True
    """
    check_options(reduction, keepdims, base)
    inputs = prepare((("p", p), ("q", q)), form=form, axis=axis, weights=weights, temperature=temperature, prior=prior, check=check)
    arrays = inputs.arrays if inputs.scale is None else (*inputs.arrays, inputs.scale)
    values = inputs.ops.apply(evaluate_cross_entropy, cross_entropy_gradients, inputs.spec("cross_entropy"), *arrays)
    raise_if_invalid(inputs, values)
    return reduce_rows(inputs, values, reduction=reduction, keepdims=keepdims, base=base)

"""The public divergences between arrays: KL, Jeffreys, Jensen-Shannon, Rényi, and SciPy's elementwise terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calculus import elementwise_gradients, evaluate, evaluate_elementwise, gradients
from ._checks import raise_if_invalid
from ._errors import InvalidOption
from ._forms import float_arrays, has_rank, is_number, left_pad, must_broadcast, prepare, shown
from ._kernels.small import small_kl
from ._ops import Array, common_ops, ops_of
from ._ops import numpy as numpy_ops
from ._pairs import Spec
from ._reduce import check_options, reduce_rows


def divergence(
    kind: str,
    parameter: float,
    p: Any,
    q: Any,
    *,
    form: Any,
    axis: Any,
    keepdims: bool,
    weights: Any,
    reduction: str,
    base: float | None,
    temperature: Any,
    prior: Any,
    check: bool | None,
    names: tuple[str, str] = ("p", "q"),
) -> Array:
    """`names`: what the caller called them, for errors."""
    check_options(reduction, keepdims, base)
    inputs = prepare(
        tuple(zip(names, (p, q))), form=form, axis=axis, weights=weights, temperature=temperature, prior=prior, check=check
    )  # fmt: skip
    ops = inputs.ops
    arrays = inputs.arrays if inputs.scale is None else (*inputs.arrays, inputs.scale)
    values = ops.apply(evaluate, gradients, inputs.spec(kind, parameter), *arrays)
    raise_if_invalid(inputs, values)
    return reduce_rows(inputs, values, reduction=reduction, keepdims=keepdims, base=base)


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
    r"""Relative entropy KL(P‖Q) = Σ p log(p/q), P first, in nats, one value per distribution.

    The result is the divergence of the *normalised* inputs, exact to the last digits of the dtype, and never negative:
    it is not computed as a difference of larger numbers. Also called `relative_entropy`.

    Parameters
    ----------
    p, q : array_like, or mappings or pandas Series, or distribution objects
        Arrays of NumPy, PyTorch, JAX, TensorFlow, tinygrad or any `__array_namespace__`; the result is of the same kind, on the
        same device, differentiable and compilable there. NumPy arrays, lists and numbers join the other argument's framework.
        Batch axes broadcast, categories do not. Mappings and Series are aligned by label; a missing label has probability 0.
        Objects of torch.distributions, TFP, numpyro, distrax and SciPy, and `kullback.distributions`, take `reduction`, `base` and
        what is below `check` only; a pair without a closed form raises `NoClosedForm`.
    form : {"probs", "log_probs", "logits", "counts"} or a pair of these
        What the numbers are, for both or for p and q in turn. Nothing is guessed.
    axis : int or tuple of int
        The categories.
    keepdims : bool
        Keep the category axes, with size 1.
    weights : array_like, optional
        One weight per distribution, finite and at least 0, broadcast to the batch shape. Rows of weight 0 may hold anything, NaN included.
    reduction : {"none", "sum", "mean", "batchmean"}
        Over distributions, never over categories. "mean" is Σwx/Σw under weights; "batchmean" divides the sum by the length of the
        first batch axis.
    base : float, optional
        Unit: 2 for bits. Nats by default.
    temperature : float or array, optional
        Divides the logits of both sides; may be learnable. No T² factor.
    prior : float, optional
        Pseudo-counts added to every category of both sides (form "counts"), or the share of the uniform distribution mixed into both
        (form "probs"). Never by default.
    check : bool, optional
        Invalid rows (negative, wrong sum, +inf logits, no counts) raise a ValueError where their values are at hand for free: CPU arrays
        outside any tracer. Elsewhere they give NaN. True: also look on an accelerator. False: never look, and accept any sum.
    method : {"auto"}, optional
        Of two distribution objects, whether or not they have a closed form: that, else a sum with a proven bound (counts), else adaptive
        quadrature (the real line), else Monte Carlo. The result is an `estimators.Estimate`, which says how it was made and how far off it
        may be, for each element of the batch; for mixtures with a lower and an upper bound. Numbers, without gradients.
    tol : float, optional
        With `method`: the relative error to stop at, 1e-9 unless told (Monte Carlo: the standard error; unless told, the budget is used).
    budget : int, optional
        With `method`: how many terms, nodes or samples at most (10 million; 1 million samples).
    rng : random state, optional
        With `method`, for Monte Carlo: as in `estimators.monte_carlo`.

    Returns
    -------
    array
        float64 for float64 and integer input, else float32 (half precision is computed and returned in float32).
        With `method="auto"`, an Estimate.

    Notes
    -----
    p = 0 adds nothing; q = 0 < p gives inf; NaN in a row gives NaN for that row.

    Gradients reach both arguments (and the temperature), to second order and beyond. At p = 0 in form "probs" the derivative to that p is
    defined as 0; the true one is -inf, and would turn a softmax behind it into NaN.

    `kl = cross_entropy - entropy` holds to rounding; it is not how kl is computed, since for P close to Q it cancels.

    Examples
    --------
    >>> import kullback as kb
    >>> float(kb.kl([0.5, 0.3, 0.2], [0.4, 0.4, 0.2]).round(12))
    0.025267153922
    >>> float(kb.kl([0.5, 0.5], [1.0, 0.0]))
    inf
    >>> kb.kl([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]], [0.0, 1.0, 2.0], form="logits").round(6)
    array([1.150421, 0.308994])
    >>> float(kb.kl({"cat": 3, "dog": 1}, {"dog": 2, "owl": 2}, form="counts", prior=0.5).round(6))
    0.952678
    """
    if (
        weights is None and temperature is None and prior is None and check is None and base is None
        and reduction == "none" and axis == -1 and not keepdims
    ):  # fmt: skip
        value = _small(p, q, form)
        if value is not None:
            return value
    return divergence(
        "kl", 0.0, p, q, form=form, axis=axis, keepdims=keepdims, weights=weights, reduction=reduction, base=base,
        temperature=temperature, prior=prior, check=check,
    )  # fmt: skip


relative_entropy = kl


def _small(p: Any, q: Any, form: Any) -> Any:
    """KL of two short vectors whose values are at hand and of which no derivative is wanted, or None."""
    if type(p) is np.ndarray and type(q) is np.ndarray:
        return small_kl(p, q, form)
    ops = ops_of(p)
    if ops is None or ops is numpy_ops or ops_of(q) is not ops or getattr(p, "is_nested", False) or getattr(q, "is_nested", False):
        return None
    if not has_rank(p) or len(p.shape) != 1 or p.shape != q.shape or not (ops.is_float(p) and ops.is_float(q)):
        return None
    x, y = ops.host_view(p), ops.host_view(q)
    if x is None or y is None or not (ops.is_constant(p) and ops.is_constant(q)):
        return None
    value = small_kl(x, y, form)
    return None if value is None else ops.from_host(np.asarray(value))


def jeffreys(
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
    """Jeffreys divergence KL(P‖Q) + KL(Q‖P) = Σ (q − p) log(q/p): symmetric, infinite unless the supports agree.

    Parameters, zeros and gradients as in `kl`.

    Examples
    --------
    >>> import kullback as kb
    >>> p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    >>> abs(float(kb.jeffreys(p, q) - kb.kl(p, q) - kb.kl(q, p))) < 1e-15
    True
    """
    return divergence(
        "jeffreys", 0.0, p, q, form=form, axis=axis, keepdims=keepdims, weights=weights, reduction=reduction, base=base,
        temperature=temperature, prior=prior, check=check,
    )  # fmt: skip


def js(
    p: Any,
    q: Any,
    *,
    mix: float = 0.5,
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
    """Jensen-Shannon divergence (1 − mix)·KL(P‖M) + mix·KL(Q‖M) with M = (1 − mix)·P + mix·Q. Always finite.

    This is the divergence, at most log 2 (1 bit) for the default mix. The *distance*, a metric, is its square root:
    ``kb.js(p, q, base=2) ** 0.5`` is what `scipy.spatial.distance.jensenshannon(p, q, 2)` returns.

    Parameters, zeros and gradients as in `kl`; `mix` is the weight of Q in the mixture, 0 < mix < 1. The derivative to a probability
    that is 0 is defined as 0.

    Examples
    --------
    >>> import kullback as kb
    >>> float(kb.js([1.0, 0.0], [0.0, 1.0], base=2))
    1.0
    >>> float(kb.js([0.9, 0.1], [0.5, 0.5]).round(12))
    0.101749225079
    """
    if not (is_number(mix) and 0 < mix < 1):
        raise InvalidOption(f"mix is {mix!r}: it must lie between 0 and 1; at the ends the divergence is 0 (for a one-sided one, use kl)")
    return divergence(
        "js", float(mix), p, q, form=form, axis=axis, keepdims=keepdims, weights=weights, reduction=reduction, base=base,
        temperature=temperature, prior=prior, check=check,
    )  # fmt: skip


def renyi(
    p: Any,
    q: Any,
    *,
    order: float,
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
    """Rényi divergence of the given order: log(Σ p^order q^(1−order)) / (order − 1).

    The limits are there: order 1 is `kl`, order 0 is −log Q(p > 0), order inf is log max p/q.

    Parameters, zeros and gradients as in `kl`. Orders above 1 are infinite where q = 0 < p, orders below 1 only for disjoint supports.

    Examples
    --------
    >>> import kullback as kb
    >>> p, q = [0.5, 0.5], [0.25, 0.75]
    >>> [float(kb.renyi(p, q, order=a).round(6)) for a in (0.0, 0.5, 1.0, 2.0, float("inf"))]
    [0.0, 0.069336, 0.143841, 0.287682, 0.693147]
    """
    if not (is_number(order) and order >= 0):
        raise InvalidOption(f"order is {shown(order)}: it must be a number ≥ 0 (inf included)")
    kind = "kl" if order == 1 else "renyi"
    return divergence(
        kind, float(order), p, q, form=form, axis=axis, keepdims=keepdims, weights=weights, reduction=reduction, base=base,
        temperature=temperature, prior=prior, check=check,
    )  # fmt: skip


def _elementwise(kind: str, x: Any, y: Any) -> Array:
    named = (("x", x), ("y", y))
    ops = common_ops(named)
    arrays = float_arrays(ops, named, any_rank=True)
    if all(map(has_rank, arrays)):
        must_broadcast([a.shape for a in arrays], ("x", "y"), "they")
        ndim = max(len(a.shape) for a in arrays)
        arrays = [left_pad(ops, a, ndim) for a in arrays]
    x, y = ops.broadcast(arrays)
    spec = Spec(kind, 0.0, (), (), (), not ops.exact_float32)
    value = ops.apply(evaluate_elementwise, elementwise_gradients, spec, x, y)
    return value[()] if ops is numpy_ops else value  # a NumPy number, not an array without axes


def rel_entr(x: Any, y: Any) -> Array:
    """Elementwise x log(x/y), as `scipy.special.rel_entr`: 0 at x = 0 ≤ y, inf outside x ≥ 0, y ≥ 0 and at y = 0 < x. NaN stays NaN.

    Neither normalises nor raises. The derivative to x at x = 0 is defined as 0.

    Examples
    --------
    >>> import kullback as kb
    >>> kb.rel_entr([0.5, 0.0, 0.5], [0.25, 0.75, 0.0]).round(6)
    array([0.346574, 0.      ,      inf])
    """
    return _elementwise("rel_entr", x, y)


def kl_div(x: Any, y: Any) -> Array:
    """Elementwise x log(x/y) − x + y ≥ 0, as `scipy.special.kl_div`: y at x = 0 ≤ y, inf outside x ≥ 0, y ≥ 0 and at y = 0 < x.

    Neither normalises nor raises; accurate for x close to y, where the difference as written cancels. The derivative to x at x = 0 is
    defined as 0. Not PyTorch's `kl_div`.

    Examples
    --------
    >>> import kullback as kb
    >>> kb.kl_div([0.5, 0.0], [0.25, 0.75]).round(6)
    array([0.096574, 0.75    ])
    """
    return _elementwise("kl_div", x, y)

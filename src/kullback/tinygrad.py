"""KL divergence for tinygrad, which has none of its own: `kl_div` as PyTorch spells it, and the exact `kl_divergence`, `entropy` and
`cross_entropy`, on `Tensor`, eagerly and under `TinyJit`.

>>> from tinygrad import Tensor
>>> from kullback.tinygrad import kl_div, kl_divergence
>>> p, log_q = Tensor([[0.5, 0.5, 0.0]]), Tensor([[0.25, 0.25, 0.5]]).log()
>>> round(kl_div(log_q, p, reduction="batchmean").item(), 6)
0.693147
>>> round(kl_divergence(p, log_q, form=("probs", "log_probs"), reduction="mean").item(), 6)
0.693147

A step that minimises a KL (optimisers want `Context(TRAINING=1)`):

>>> from tinygrad import Context, TinyJit
>>> from tinygrad.nn.optim import SGD
>>> logits = Tensor.zeros(1, 3).contiguous().realize()
>>> optimiser = SGD([logits], lr=1.0)
>>> @TinyJit
... @Context(TRAINING=1)
... def step():
...     optimiser.zero_grad()
...     loss = kl_divergence(p, logits, form=("probs", "logits"), reduction="mean").backward()
...     return loss.realize(*optimiser.schedule_step())
>>> losses = [step().item() for _ in range(20)]
>>> [round(loss, 3) for loss in losses[::5]]
[0.405, 0.106, 0.06, 0.041]
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from tinygrad import Tensor, dtypes
from tinygrad.dtype import least_upper_dtype, least_upper_float

from . import _entropies
from ._divergences import kl
from ._literal import literal_sum, literal_terms
from ._ops import tinygrad as ops

__all__ = ["cross_entropy", "entropy", "kl_div", "kl_divergence"]

_REDUCTIONS = ("mean", "sum", "none", "batchmean")


def _tensors(function: str, **named: Any) -> list[Tensor]:
    """The arguments, each of a dtype with a width: tinygrad types numbers and one-hots weakly, and so they take that of their neighbour."""
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{function}(): {name} must be a tinygrad Tensor, not {type(x).__name__}: pass Tensor({name})")
    common = least_upper_dtype(*(x.dtype for x in named.values()))
    common = dtypes.default_float if common in dtypes.weaks else common
    return [x.cast(common) if x.dtype in dtypes.weaks else x for x in named.values()]


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target · (log target − input), the input being log-probabilities: `torch.nn.functional.kl_div` for tinygrad.

    The formula as it stands, for code that comes from PyTorch: Q comes first, nothing is normalised or checked, and "mean" divides by the
    number of elements, which is not KL ("batchmean" is, for inputs of shape [batch, categories]), so it warns. `kl_divergence` is the
    unsurprising one. What differs from PyTorch:

    - float32 and half precision are summed in float64, where the device has it, and rounded once;
    - where target = 0 (or −inf under `log_target`) the term is 0 and so is its gradient, whatever the input: no NaN;
    - "batchmean" divides by the length of the broadcast batch, not of `input` alone;
    - integers, such as a one-hot target, are numbers as they are everywhere in tinygrad.

    Parameters
    ----------
    input, target : Tensor
        Log-probabilities of Q; probabilities of P, or their logs if `log_target`. They broadcast.
    reduction : {"mean", "sum", "none", "batchmean"}
        Those of `Tensor.cross_entropy`, but over all elements, and PyTorch's "batchmean".
    log_target : bool

    Examples
    --------
    >>> from tinygrad import Tensor
    >>> target = Tensor([[0.5, 0.5, 0.0]])
    >>> log_q = Tensor([[0.25, 0.25, 0.5]]).log()
    >>> value = kl_div(log_q, target, reduction="batchmean").backward()
    >>> round(value.item(), 6)
    0.693147
    >>> target.grad.numpy().round(4)
    array([[1.6931, 1.6931, 0.    ]], dtype=float32)
    """
    x, t = _tensors("kl_div", input=input, target=target)
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}: it must be one of {', '.join(map(repr, _REDUCTIONS))}")
    if reduction == "mean":
        warnings.warn(
            "reduction='mean' divides by the number of elements, which is not the KL divergence: use 'batchmean', or kl_divergence",
            stacklevel=2,
        )
    if x.device != t.device and x.device is not None and t.device is not None:  # constants have none
        raise RuntimeError(f"kl_div(): input is on {x.device} and target on {t.device}: move one of them")
    dtype = least_upper_float(least_upper_dtype(x.dtype, t.dtype))
    # Integers become floats; what is narrower than float16 has no room for a log.
    x, t = (a if ops.is_float(a) else a.cast(dtype) for a in (x, t))
    try:
        x, t = ops.broadcast([x, t])
    except ValueError:
        raise RuntimeError(f"kl_div(): input has shape {input.shape} and target {target.shape}, which do not broadcast") from None
    if reduction == "none" or x.ndim == 0:
        return literal_terms(ops, x, t, log_target=log_target).cast(dtype)
    total = literal_sum(ops, x, t, tuple(range(x.ndim)), log_target=log_target)
    if reduction != "sum":
        total = total / (math.prod(x.shape) if reduction == "mean" else x.shape[0])
    return total.cast(dtype)


def kl_divergence(p: Tensor, q: Tensor, *, form: Any = "probs", axis: Any = -1, reduction: str = "none", **options: Any) -> Tensor:
    """Exact KL(P‖Q), P first, of the normalised distributions: `kullback.kl` for Tensors only.

    Parameters
    ----------
    p, q : Tensor
    form : {"probs", "log_probs", "logits", "counts"} or a pair of these
        What the numbers are.
    axis : int or tuple of int
        The categories.
    reduction : {"mean", "sum", "none", "batchmean"}
        Over distributions, never over categories.
    **options
        keepdims, weights, base, temperature, prior, check: as in `kullback.kl`.

    Examples
    --------
    >>> from tinygrad import Tensor
    >>> logits = Tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    >>> value = kl_divergence(Tensor([1.0, 0.0, 0.0]), logits, form=("probs", "logits"))
    >>> value.numpy().round(5)
    array([2.40761, 1.09861], dtype=float32)
    >>> value.sum().gradient(logits)[0].numpy().round(4)
    array([[-0.91  ,  0.2447,  0.6652],
           [-0.6667,  0.3333,  0.3333]], dtype=float32)
    """
    p, q = _tensors("kl_divergence", p=p, q=q)
    return kl(p, q, form=form, axis=axis, reduction=reduction, **options)


def entropy(p: Tensor, *, form: str = "probs", axis: Any = -1, reduction: str = "none", **options: Any) -> Tensor:
    """Shannon entropy −Σ p log p of the normalised distributions: `kullback.entropy` for Tensors only.

    Parameters as in `kl_divergence`. p = 0 adds nothing, and the derivative to it (form "probs") is defined as 0.

    Examples
    --------
    >>> from tinygrad import Tensor
    >>> entropy(Tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]]), base=2).tolist()
    [1.5, 2.0]
    """
    (p,) = _tensors("entropy", p=p)
    return _entropies.entropy(p, form=form, axis=axis, reduction=reduction, **options)


def cross_entropy(p: Tensor, q: Tensor, *, form: Any = "probs", axis: Any = -1, reduction: str = "none", **options: Any) -> Tensor:
    """Cross-entropy −Σ p log q of the normalised distributions, P (the truth) first: `kullback.cross_entropy` for Tensors only.

    `logits.cross_entropy(labels)` is ``cross_entropy(labels.one_hot(n), logits, form=("probs", "logits"), reduction="mean")``.
    tinygrad's takes Q first, as logits, and P as labels or probabilities; its classes lie on axis 1, and "mean" is its default.
    Here p = 0 adds nothing even where q = 0; there that is NaN for logits of −inf beside probabilities.

    Parameters as in `kl_divergence`, which is `cross_entropy` − `entropy(p)` but is not computed so.

    Examples
    --------
    >>> from tinygrad import Tensor
    >>> logits, labels = Tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]]), Tensor([0, 1])
    >>> round(cross_entropy(labels.one_hot(3), logits, form=("probs", "logits"), reduction="mean").item(), 6)
    0.251264
    >>> round(logits.cross_entropy(labels).item(), 6)
    0.251264
    """
    p, q = _tensors("cross_entropy", p=p, q=q)
    return _entropies.cross_entropy(p, q, form=form, axis=axis, reduction=reduction, **options)

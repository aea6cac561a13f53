"""PyTorch's names with the right answers: `kl_div` and `KLDivLoss` as drop-ins, `KLLoss` and `KLMetric` as they should have been.

>>> import torch
>>> from kullback.torch import kl_div, KLLoss
>>> target, log_input = torch.tensor([[0.0, 1.0]]), torch.tensor([[-0.7, -0.7]], requires_grad=True)
>>> round(kl_div(log_input, target, reduction="batchmean").item(), 6)
0.7
>>> teacher, student = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[1.0, 1.0, 1.0]])
>>> round(KLLoss()(student=student, teacher=teacher).item(), 6)
0.266217
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._distributions.objects import object_kl
from .._distributions.users import find_user_function
from .._divergences import divergence
from .._errors import NoClosedForm
from .._forms import parse_form
from .._literal import literal_sum, literal_terms
from .._ops import torch as ops
from .._patching import Patch
from .._reduce import check_options
from ..losses._scaling import check_scaling, learns
from ..losses.distillation import kl_loss

__all__ = ["KLDivLoss", "KLLoss", "KLMetric", "install", "kl_div", "kl_divergence", "patched", "uninstall"]

_REDUCTIONS = ("none", "mean", "batchmean", "sum")


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    r"""`torch.nn.functional.kl_div`, mended: target · (log target − input), the input being log-probabilities.

    The same formula, signature and warnings: it does not normalise, and "mean" divides by the number of elements, which is not KL
    ("batchmean" is, for inputs of shape [batch, categories]). What differs from PyTorch:

    - float32 and half precision are summed in float64 and rounded once;
    - where target = 0 (or −inf under `log_target`) the term is 0 and so is its gradient, whatever the input: no NaN;
    - "batchmean" divides by the length of the broadcast batch, not of `input` alone.

    It cannot be scripted (`torch.jit.script`, which PyTorch has deprecated); it can be compiled, exported and traced.
    `kullback.kl` and `KLLoss` are the unsurprising ones.

    Examples
    --------
    >>> import torch
    >>> target = torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)
    >>> log_q = torch.tensor([[0.25, 0.25, 0.5]]).log()
    >>> value = kl_div(log_q, target, reduction="batchmean")
    >>> round(value.item(), 6)
    0.693147
    >>> value.backward()
    >>> target.grad
    tensor([[1.6931, 1.6931, 0.0000]])
    """
    if has_torch_function_variadic(input, target):
        return handle_torch_function(
            kl_div, (input, target), input, target, size_average=size_average, reduce=reduce, reduction=reduction, log_target=log_target
        )
    for name, x in (("input", input), ("target", target)):
        if not isinstance(x, Tensor):
            raise TypeError(f"kl_div(): {name} must be a Tensor, not {type(x).__name__}")
        why = ops.why_not_dense(x)
        if why is not None:
            raise RuntimeError(f"kl_div(): {name} is {why}")
        if not x.dtype.is_floating_point or x.dtype.itemsize < 2:
            fix = f"probabilities are real numbers: pass {name}.real" if x.dtype.is_complex else f"pass {name}.float()"
            raise RuntimeError(f"kl_div(): {name} has dtype {x.dtype}: {fix}")
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    elif reduction == "mean":
        warnings.warn(
            "reduction='mean' divides by the number of elements, which is not the KL divergence: use 'batchmean' "
            "(PyTorch announces that 'mean' will become 'batchmean')",
            stacklevel=2,
        )
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{reduction!r} is not a valid value for reduction: use one of {', '.join(map(repr, _REDUCTIONS))}")
    if input.device != target.device:
        raise RuntimeError(f"kl_div(): input is on {input.device} and target on {target.device}: move one of them")
    try:
        x, t = torch.broadcast_tensors(input, target)
    except RuntimeError:
        raise RuntimeError(
            f"kl_div(): input has shape {tuple(input.shape)} and target {tuple(target.shape)}, which do not broadcast"
        ) from None
    dtype = _result_dtype(input, target)
    if dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled(x.device.type):
        dtype = torch.float32  # as autocast has it for PyTorch's own
    if reduction == "none":
        return ops.astype(literal_terms(ops, x, t, log_target=log_target), dtype)
    if x.dim() == 0:
        total = literal_terms(ops, x, t, log_target=log_target)
    else:
        total = literal_sum(ops, x, t, tuple(range(x.dim())), log_target=log_target)
    if reduction == "mean":
        total = total / x.numel()
    elif reduction == "batchmean" and x.dim() > 0:
        total = total / x.shape[0]
    return ops.astype(total, dtype)


def _result_dtype(input: Tensor, target: Tensor) -> torch.dtype:
    # torch.result_type, which PyTorch 2.11 cannot compile.
    if (input.dim() == 0) != (target.dim() == 0):
        return target.dtype if input.dim() == 0 else input.dtype
    return torch.promote_types(input.dtype, target.dtype)


class KLDivLoss(nn.KLDivLoss):  # type: ignore[misc]
    """`torch.nn.KLDivLoss` on our `kl_div`: the same arguments, attributes and meaning.

    Examples
    --------
    >>> import torch
    >>> loss = KLDivLoss(reduction="batchmean", log_target=True)
    >>> x = torch.tensor([[0.25, 0.75]]).log()
    >>> loss(x, x).item()
    0.0
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class KLLoss(nn.Module):  # type: ignore[misc]
    """Exact KL divergence between a student and a teacher, averaged over distributions.

    KL(teacher‖student) for `direction="forward"`, KL(student‖teacher) for `"reverse"`. Called by keyword, so that the direction
    cannot be mixed up. Gradients reach both sides: detach a teacher that is not to learn.

    Parameters
    ----------
    form : {"logits", "log_probs", "probs", "counts"} or a pair of these
        What the numbers are; a pair is for (student, teacher).
    direction : {"forward", "reverse"}
    temperature : float
        Divides the logits of both.
    scale_t2 : bool
        Multiply by temperature², so that gradients keep their size as the temperature changes (Hinton et al., 2015).
    reduction : {"mean", "sum", "batchmean", "none"}
        Over distributions, never over categories.
    axis, base, check
        As in `kullback.kl`.

    Examples
    --------
    >>> import torch
    >>> loss = KLLoss(temperature=2.0, scale_t2=True)
    >>> student, teacher = torch.zeros(4, 10, 3), torch.tensor([2.0, 0.0, 1.0]).expand(4, 10, 3)
    >>> round(loss(student=student, teacher=teacher).item(), 6)
    0.313684
    >>> mask = torch.arange(10) < 7  # tokens that count
    >>> round(loss(student=student, teacher=teacher, weights=mask).item(), 6)
    0.313684
    """

    def __init__(
        self,
        *,
        form: Any = "logits",
        direction: str = "forward",
        temperature: float = 1.0,
        scale_t2: bool = False,
        reduction: str = "mean",
        axis: Any = -1,
        base: float | None = None,
        check: bool | None = None,
    ) -> None:
        super().__init__()
        check_options(reduction, False, base)
        parse_form(form, 2, ("student", "teacher"))
        check_scaling(temperature, scale_t2=scale_t2)
        if direction not in ("forward", "reverse"):
            raise ValueError(f"direction is {direction!r}: it must be 'forward', KL(teacher‖student), or 'reverse', KL(student‖teacher)")
        self.form = form if isinstance(form, str) else tuple(form)
        self.direction, self.temperature, self.scale_t2 = direction, temperature, scale_t2
        self.reduction, self.axis, self.base, self.check = reduction, axis, base, check

    def forward(self, *, student: Tensor, teacher: Tensor, weights: Tensor | None = None) -> Tensor:
        student_form, teacher_form = (self.form,) * 2 if isinstance(self.form, str) else self.form
        if student_form == teacher_form == "logits" and self._in_kernels(student, teacher):
            value = kl_loss(
                student=student, teacher=teacher, direction=self.direction, temperature=self.temperature, scale_t2=self.scale_t2,
                weights=weights, reduction=self.reduction, impl="triton",
            )  # fmt: skip
            return value if self.base is None else value / math.log(self.base)
        sides = ("teacher", teacher, teacher_form), ("student", student, student_form)
        names, arrays, forms = zip(*(sides if self.direction == "forward" else sides[::-1]))
        # A temperature of 1 is none: other forms than logits then need no exception.
        value = divergence(
            "kl", 0.0, *arrays, form=forms, axis=self.axis, keepdims=False, weights=weights, reduction=self.reduction, base=self.base,
            temperature=self.temperature, prior=None, check=self.check, names=names,
        )  # fmt: skip
        return value * self.temperature**2 if self.scale_t2 else value

    def _in_kernels(self, student: Tensor, teacher: Tensor) -> bool:
        """Can the loss run in the fused kernels, which write the gradient while they compute it?"""
        return (
            isinstance(student, Tensor)
            and isinstance(teacher, Tensor)
            and not (student.is_nested or teacher.is_nested)
            and student.shape == teacher.shape
            and self.axis in (-1, student.dim() - 1)
            and self.check is not True
            and not learns(self.temperature)
            and ops.has_row_kernels(student, teacher)
        )

    def extra_repr(self) -> str:
        shown = ("form", "direction", "temperature", "scale_t2", "reduction", "axis", "base")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)


_their_kl_divergence = torch.distributions.kl.kl_divergence


def kl_divergence(p: torch.distributions.Distribution, q: torch.distributions.Distribution) -> Tensor:
    """`torch.distributions.kl_divergence`, exact: KL(P‖Q) of two distribution objects.

    `kullback.kl` where it has the pair; PyTorch's own, or what was registered with `torch.distributions.register_kl`, where it has not, and
    where the latter is yours.

    Examples
    --------
    >>> from torch.distributions import Gamma, Poisson
    >>> kl_divergence(Poisson(torch.tensor(0.0)), Poisson(torch.tensor(1.0)))     # PyTorch: NaN
    tensor(1.)
    """
    if _is_yours(type(p), type(q)):
        return _their_kl_divergence(p, q)
    try:
        return object_kl(p, q)
    except NoClosedForm:
        return _their_kl_divergence(p, q)


def _is_yours(p: type, q: type) -> bool:
    """Would PyTorch call a function that is not its own, and that no pair registered with us stands in front of?"""
    if find_user_function(p, q) is not None:
        return False
    found = _their_memo.get((p, q))
    if found is None:
        # Their dispatch; it says NotImplemented where nothing fits.
        found = _their_memo[p, q] = torch.distributions.kl._dispatch_kl(p, q)
    return found is not NotImplemented and getattr(found, "__module__", "") != torch.distributions.kl.__name__


_their_memo = torch.distributions.kl._KL_MEMOIZE
_patch = Patch([
    (nn.functional, "kl_div", kl_div),
    (torch.distributions, "kl_divergence", kl_divergence),
    (torch.distributions.kl, "kl_divergence", kl_divergence),
])  # fmt: skip
install, uninstall = _patch.install, _patch.uninstall


def patched() -> Any:
    """`with kullback.torch.patched():` makes `torch.nn.functional.kl_div` ours, and with it every `nn.KLDivLoss`, existing ones included;
    and `torch.distributions.kl_divergence`.

    For the whole process, until the last such block is left, by an exception or not, on whichever thread. `install()` does it for good,
    `uninstall()` undoes that. Out of reach: `kl_div` that was imported by name before, `torch.kl_div`, graphs already exported
    or scripted; and inside the block `torch.jit.script` does not take what calls it.

    Examples
    --------
    >>> import torch
    >>> p = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> with patched():
    ...     torch.nn.functional.kl_div(torch.tensor([[-1.0, -1.0]]), p, reduction="batchmean").backward()
    >>> p.grad
    tensor([[2., 0.]])
    """
    return _patch.patched()


def __getattr__(name: str) -> Any:
    # Not before it is asked for: torchmetrics takes a second to import.
    if name == "KLMetric":
        from ._metric import KLMetric

        return KLMetric
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

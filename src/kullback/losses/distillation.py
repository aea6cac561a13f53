"""KL between a student's and a teacher's logits as a training loss: every direction in use, in any framework; on CUDA in fused kernels."""

from __future__ import annotations

from typing import Any

from .._divergences import divergence
from .._errors import CannotRun, InvalidOption, InvalidValue, WrongType, one_of
from .._forms import float_arrays, is_number
from .._ops import Array, common_ops
from .._reduce import check_options, reduce_values
from . import _parallel
from ._dense import FIX, few_passes, fused, fused_in_place, matched, same_categories, takes_few_passes, weights_of_rows, why_not_fused
from ._scaling import capped, check_scaling, check_valid, divided_by
from .sparse import TopK, sparse_loss

DIRECTIONS = ("forward", "reverse", "js", "skew", "reverse_skew")


def kl_loss(
    *,
    student: Any,
    teacher: Any,
    direction: str = "forward",
    mix: float | None = None,
    temperature: Any = 1.0,
    scale_t2: bool = False,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    weights: Any = None,
    reduction: str = "mean",
    valid: int | None = None,
    group: Any = None,
    inplace: bool = False,
    impl: str = "auto",
) -> Array:
    """Exact divergence between the distributions of two logits arrays [..., categories], averaged over distributions.

    Parameters
    ----------
    student, teacher : arrays of one framework
        Logits over the same categories. The side with more of them must have logits of -inf in the rest (a padded vocabulary), or `valid`
        must leave the rest out: models of different vocabularies are refused. Without `valid` the call looks at that rest, which compiled
        functions cannot: they need `valid` or equal sizes.
        Gradients reach both sides: detach a teacher that is not to learn. A teacher of whom only the likeliest categories are known is a
        `TopK`, a constant, to which softcap and logit_scale are not applied.
    direction : {"forward", "reverse", "js", "skew", "reverse_skew"}
        KL(T‖S); KL(S‖T); mix·KL(T‖M) + (1 − mix)·KL(S‖M) with M = mix·T + (1 − mix)·S; KL(T ‖ mix·T + (1 − mix)·S);
        KL(S ‖ mix·S + (1 − mix)·T).
    mix : float, optional
        0 < mix < 1; by default 0.5 for "js" and 0.1 for the skewed ones.
    temperature : float or array that broadcasts to the batch shape
        Divides the logits of both; positive and finite. It may learn, in array operations.
    scale_t2 : bool
        Multiply by temperature², so that gradients keep their size as the temperature changes (Hinton et al., 2015).
    softcap : float, optional
        Logits x become softcap · tanh(x / softcap) first, on both sides (Gemma).
    logit_scale : float
        Multiplies the logits of both, before the softcap (Cohere). Above 0.
    weights : array, optional
        One a distribution, at least 0; 0/1 is a padding mask. What has weight 0 may hold anything, NaN included.
    reduction : {"mean", "sum", "batchmean", "none"}
        Over distributions, never over categories; "mean" is Σwx/Σw under weights.
    valid : int, optional
        Categories from this one on are absent, whatever their logits: a vocabulary that is padded for the hardware.
    group : torch.distributed process group, optional
        Its ranks hold the same rows and different categories of each, in slices of any size and order, the same of student and teacher.
        Every rank gets the same loss, and the gradient of its slices. Ranks exchange nine numbers a row or fewer, in forward only; no
        second derivatives. `valid` counts in this rank's slice. A `TopK` counts categories over the slices in the order of the ranks, and
        k + 2 numbers a row travel. DTensors need no group: they may be sharded along categories (``Shard(-1)``), batch or both, and the
        loss is a DTensor.
    inplace : bool
        Backward writes the gradient to the student over its logits: no memory but theirs, one pass more than without, no second
        derivatives. For logits that nothing reads after that; what would, a second backward included, raises. In Triton kernels only.
    impl : {"auto", "array", "triton"}
        "auto" runs PyTorch's CUDA tensors of 16 or 32 bits through Triton kernels that read the logits twice and write nothing of their
        size but the gradient, JAX's arrays on accelerators through formulas that XLA compiles to as little, and everything else through
        array operations. "triton" raises where the kernels cannot run.

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.losses import kl_loss
    >>> teacher, student = np.array([[2.0, 0.0, 1.0]]), np.array([[1.0, 1.0, 1.0]])
    >>> float(kl_loss(student=student, teacher=teacher).round(6))
    0.266217
    >>> float(kl_loss(student=student, teacher=teacher, direction="reverse").round(6))
    0.308994
    >>> float(kl_loss(student=student, teacher=teacher, direction="js", mix=0.5).round(6))
    0.068712
    """
    kind, share, teacher_first = _direction(direction, mix)
    check_options(reduction, False, None)
    one_of("impl", impl, ("auto", "array", "triton"))
    check_scaling(temperature, scale_t2=scale_t2, softcap=softcap, logit_scale=logit_scale)
    if isinstance(student, TopK):
        raise WrongType("student is a TopK: only a teacher can be one; of a student all logits must be there")
    if isinstance(teacher, TopK):
        if inplace:
            raise InvalidOption("inplace is for teachers whose logits are all there, not for a TopK")
        value = sparse_loss(
            student, teacher, direction, (kind, share, teacher_first), temperature=temperature, softcap=softcap, logit_scale=logit_scale,
            weights=weights, reduction=reduction, valid=valid, group=group, impl=impl,
        )  # fmt: skip
    elif any(type(x).__name__ == "DTensor" for x in (student, teacher)):
        if group is not None:
            raise InvalidOption("group is for plain tensors: DTensors know theirs")
        if inplace:
            raise InvalidOption("inplace is for plain tensors on one device")
        if valid is not None:
            check_valid(valid, student, teacher)
        return _parallel.of_dtensors(
            kl_loss, student=student, teacher=teacher, direction=direction, mix=mix, temperature=temperature, scale_t2=scale_t2,
            softcap=softcap, logit_scale=logit_scale, weights=weights, reduction=reduction, valid=valid, impl=impl,
        )  # fmt: skip
    else:
        ops = common_ops([("student", student), ("teacher", teacher), ("weights", weights), ("temperature", temperature)])
        student, teacher = float_arrays(ops, [("student", student), ("teacher", teacher)])
        for name, x in (("student", student), ("teacher", teacher)):
            if len(x.shape) == 0:
                raise InvalidValue(f"{name} is a single number: a distribution needs an axis of categories")
            if x.shape[-1] == 0 and group is None:
                raise InvalidValue(f"{name} has no categories: its shape is {tuple(x.shape)}")
        if valid is not None:
            check_valid(valid, student, teacher, least=1 if group is None else 0)
        if inplace:
            reason = _why_not_in_place(student, teacher, softcap, logit_scale, valid, group)
            reason = reason or why_not_fused(ops, student, teacher, temperature, kind, share)
            if reason is not None or impl == "array":
                raise CannotRun(f"inplace=True cannot be: {reason or 'impl is array'}")
        if group is None:
            student, teacher = matched(ops, {"student": student, "teacher": teacher}, weights, valid, FIX)
        divisor, logit_scale = divided_by(temperature, logit_scale, softcap)
        student, teacher = (capped(ops, x, logit_scale, softcap, y) for x, y in ((student, teacher), (teacher, student)))
        compared = {"temperature": divisor, "weights": weights, "reduction": reduction}
        if group is not None:
            called = f"direction {direction!r}" + (f", temperature {temperature:g}" if is_number(temperature) else "")
            student, teacher = student[..., :valid], teacher[..., :valid]
            value = _spread(ops, student, teacher, kind, share, teacher_first, **compared, group=group, impl=impl, called=called)
        else:
            value = _whole(ops, student, teacher, kind, share, teacher_first, **compared, valid=valid, inplace=inplace, impl=impl)
    return value * temperature**2 if scale_t2 else value


def _whole(
    ops: Any, student: Array, teacher: Array, kind: str, share: float, teacher_first: bool, *, temperature: Any, weights: Any,
    reduction: str, valid: int | None, inplace: bool, impl: str,
) -> Array:  # fmt: skip
    """The loss of logits that are all here."""
    first, second = (teacher, student) if teacher_first else (student, teacher)
    if inplace:
        return fused_in_place(ops, first, second, kind, share, temperature, weights, reduction, int(teacher_first))
    reason = "impl='array' asks for array operations" if impl == "array" else why_not_fused(ops, student, teacher, temperature, kind, share)
    if reason is None:
        # The kernels take `valid` as it is: a gradient of the part would be copied into one of the whole.
        return fused(ops, first, second, kind, share, temperature, weights, reduction, valid)
    if impl == "triton":
        raise CannotRun(f"impl='triton' cannot run: {reason}; impl='auto' falls back")
    if valid is not None:
        first, second = first[..., :valid], second[..., :valid]
    if impl == "auto" and takes_few_passes(ops, first, second, kind, share):
        return few_passes(ops, first, second, kind, share, temperature, weights, reduction)
    first, second = same_categories(ops, first, second)
    return divergence(
        kind, share, first, second, form="logits", axis=-1, keepdims=False, weights=weights, reduction=reduction, base=None,
        temperature=temperature, prior=None, check=None, names=("teacher", "student") if teacher_first else ("student", "teacher"),
    )  # fmt: skip


def _spread(
    ops: Any, student: Array, teacher: Array, kind: str, share: float, teacher_first: bool, *, temperature: Any, weights: Any,
    reduction: str, group: Any, impl: str, called: str,
) -> Array:  # fmt: skip
    """The loss where each rank of a group has some categories of every row."""
    _parallel.check_framework(ops)
    if student.shape[:-1] != teacher.shape[:-1]:
        raise InvalidValue(
            f"student has shape {tuple(student.shape)} and teacher {tuple(teacher.shape)}: under group= their batches must be equal"
        )
    try:
        student, teacher = matched(ops, {"student": student, "teacher": teacher}, weights, None, FIX, look=ops.may_look(student))
    except ValueError as error:
        _parallel.refuse_together(group, str(error))
    if 0 in (student.shape[-1], teacher.shape[-1]):
        # A rank without categories must take part in the same exchanges as the others.
        student, teacher = same_categories(ops, student, teacher)
    reason = "impl='array' asks for array operations" if impl == "array" else why_not_fused(ops, student, teacher, temperature, kind, share)
    if impl == "triton" and reason is not None:
        raise CannotRun(f"impl='triton' cannot run: {reason}; impl='auto' falls back")
    if reason is not None:
        student, teacher = same_categories(ops, student, teacher)
    weights, scale = weights_of_rows(ops, weights, student), _parallel.row_scale(ops, temperature, student)
    first, second = (teacher, student) if teacher_first else (student, teacher)
    values = _parallel.row_values(ops, first, second, kind, share, scale, group, fused=reason is None, called=called)
    return reduce_values(ops, values, weights, reduction)


def _direction(direction: str, mix: float | None) -> tuple[str, float, bool]:
    """The kind of divergence, the weight of its second argument in the mixture, and whether the teacher comes first."""
    one_of("direction", direction, DIRECTIONS)
    if direction in ("forward", "reverse"):
        if mix is not None:
            raise InvalidOption(f"mix is for directions with a mixture, not for {direction!r}")
        return "kl", 0.0, direction == "forward"
    mix = (0.5 if direction == "js" else 0.1) if mix is None else mix
    if not (is_number(mix) and 0 < mix < 1):
        raise InvalidOption(
            f"mix is {mix!r}: it must lie between 0 and 1; at the ends there is nothing to mix: "
            "use direction='forward', KL(teacher‖student), or 'reverse', KL(student‖teacher)"
        )
    if direction == "js" and mix < 0.5:
        return "js", float(mix), False  # 1 - mix would round
    return ("js" if direction == "js" else "skew"), 1.0 - float(mix), direction != "reverse_skew"


def _why_not_in_place(
    student: Array, teacher: Array, softcap: float | None, logit_scale: float, valid: int | None, group: Any
) -> str | None:
    if softcap is not None or logit_scale != 1.0:
        return "softcap and logit_scale make other numbers of the logits, and there is nothing to overwrite"
    if valid is not None or group is not None:
        return "it takes whole rows: give padding logits of -inf instead of valid, and no group"
    if hasattr(student, "is_contiguous") and not student.is_contiguous():
        return "the student's logits do not lie side by side: pass student.contiguous()"
    if hasattr(student, "untyped_storage") and student.untyped_storage().data_ptr() == teacher.untyped_storage().data_ptr():
        return "student and teacher share memory, and the teacher's logits would be overwritten too"
    return None

"""KL between a student's and a teacher's logits as a training loss: every direction in use, in any framework; on CUDA in fused kernels."""

from __future__ import annotations

import math
from typing import Any

from .._divergences import divergence
from .._forms import check_temperature, float_arrays, inverse_temperature, is_number, per_row
from .._ops import Array, common_ops
from .._pairs import expm1
from .._reduce import check_options, reduce_values
from . import _parallel
from .sparse import TopK, check_top_k, coarse_student, coarse_teacher, completed, known, rest_of, sparse_losses, unevenness, why_no_kernel

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
        Logits. Categories that only one side has (a padded vocabulary) count as absent from the other, as do logits of -inf.
        Gradients reach both sides: detach a teacher that is not to learn. A teacher of whom only the likeliest categories are known is a
        `TopK`, a constant, to which softcap and logit_scale are not applied.
    direction : {"forward", "reverse", "js", "skew", "reverse_skew"}
        KL(T‖S); KL(S‖T); mix·KL(T‖M) + (1 − mix)·KL(S‖M) with M = mix·T + (1 − mix)·S; KL(T ‖ mix·T + (1 − mix)·S);
        KL(S ‖ mix·S + (1 − mix)·T).
    mix : float, optional
        0 < mix < 1; by default 0.5 for "js" and 0.1 for the skewed ones.
    temperature : float or array that broadcasts to the batch shape
        Divides the logits of both.
    scale_t2 : bool
        Multiply by temperature², so that gradients keep their size as the temperature changes (Hinton et al., 2015).
    softcap : float, optional
        Logits x become softcap · tanh(x / softcap) first, on both sides (Gemma).
    logit_scale : float
        Multiplies the logits of both, before the softcap (Cohere).
    weights : array, optional
        One a distribution; 0/1 is a padding mask. What has weight 0 may hold anything, NaN included.
    reduction : {"mean", "sum", "batchmean", "none"}
        Over distributions, never over categories; "mean" is Σwx/Σw under weights.
    valid : int, optional
        Categories from this one on are absent, whatever their logits: a vocabulary that is padded for the hardware.
    group : torch.distributed process group, optional
        Its ranks hold the same rows and different categories of each, in slices of any size and order, the same of student and teacher.
        Every rank gets the same loss, and the gradient of its slices. Ranks exchange eight numbers a row or fewer, in forward only; no
        second derivatives. `valid` counts in this rank's slice. DTensors need no group: they may be sharded along categories
        (``Shard(-1)``), batch or both, and the loss is a DTensor.
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
    if impl not in ("auto", "array", "triton"):
        raise ValueError(f"impl is {impl!r}: it must be 'auto', 'array' or 'triton'")
    check_temperature(temperature)
    if isinstance(teacher, TopK):
        check_top_k(teacher, direction, temperature)
        if group is not None or valid is not None or inplace:
            raise ValueError("group, valid and inplace are for teachers whose logits are all there, not for a TopK")
        value = _sparse(student, teacher, (kind, share, teacher_first), softcap, logit_scale, weights, reduction, impl)
        return value * temperature**2 if scale_t2 else value
    if any(type(x).__name__ == "DTensor" for x in (student, teacher)):
        if group is not None:
            raise ValueError("group is for plain tensors: DTensors know theirs")
        if inplace:
            raise ValueError("inplace is for plain tensors on one device")
        if valid is not None:
            _check_valid(student, teacher, valid, least=1)
        return _parallel.of_dtensors(
            kl_loss, student=student, teacher=teacher, direction=direction, mix=mix, temperature=temperature, scale_t2=scale_t2,
            softcap=softcap, logit_scale=logit_scale, weights=weights, reduction=reduction, valid=valid, impl=impl,
        )  # fmt: skip
    ops = common_ops([("student", student), ("teacher", teacher)])
    if scale_t2 and not is_number(temperature) and len(getattr(temperature, "shape", ())) > 0:
        raise ValueError("scale_t2 needs one temperature: multiply reduction='none' by your temperatures squared")
    student, teacher = (_capped(ops, x, logit_scale, softcap) for x in float_arrays(ops, [("student", student), ("teacher", teacher)]))
    if inplace:
        reason = _why_not_in_place(student, teacher, softcap, logit_scale, valid, group) or _why_not_fused(
            ops, student, teacher, temperature
        )
        if reason is not None or impl == "array":
            raise RuntimeError(f"inplace=True cannot be: {reason or 'impl is array'}")
    if valid is not None:
        _check_valid(student, teacher, valid, least=1 if group is None else 0)
    if valid is not None and (group is not None or impl == "array" or _why_not_fused(ops, student, teacher, temperature) is not None):
        # The kernels take it as it is: a gradient of the part would be copied into one of the whole.
        student, teacher, valid = student[..., :valid], teacher[..., :valid], None
    first, second = (teacher, student) if teacher_first else (student, teacher)
    if group is not None:
        called = f"direction {direction!r}" + (f", temperature {temperature:g}" if is_number(temperature) else "")
        value = _spread(ops, first, second, kind, share, temperature, weights, reduction, group, impl, called)
        return value * temperature**2 if scale_t2 else value
    if impl == "auto" and ops.name == "JAX" and _takes_few_passes(ops, first, second):
        value = _few_passes(ops, first, second, kind, share, temperature, weights, reduction)
        return value * temperature**2 if scale_t2 else value
    if inplace:
        from .._kernels import inplace_triton, rows_triton

        value = inplace_triton.LossInPlace.apply(first, second, kind, share, _inverse(ops, temperature), int(teacher_first))
        value = value if weights is None and reduction == "none" else rows_triton.reduce(value, weights, reduction)
        return value * temperature**2 if scale_t2 else value
    fused = (
        None
        if impl == "array"
        else _fused(ops, first, second, kind, share, temperature, weights, reduction, valid, required=impl == "triton")
    )
    if fused is not None:
        value = fused
    else:
        first, second = _same_categories(ops, first, second)
        value = divergence(
            kind, share, first, second, form="logits", axis=-1, keepdims=False, weights=weights, reduction=reduction, base=None,
            temperature=temperature, prior=None, check=None,
        )  # fmt: skip
    return value * temperature**2 if scale_t2 else value


def _sparse(
    student: Any,
    top: TopK,
    kind: tuple[str, float, bool],
    softcap: float | None,
    logit_scale: float,
    weights: Any,
    reduction: str,
    impl: str,
) -> Array:
    ops = common_ops([("student", student), ("indices", top.indices), ("log_probs", top.log_probs), ("weights", weights)])
    (student,) = float_arrays(ops, [("student", student)])
    student = _capped(ops, student, logit_scale, softcap)
    if len(student.shape) == 0:
        raise ValueError("student is a single number: a distribution needs an axis of categories")
    last = (len(student.shape) - 1,)
    weights = None if weights is None else ops.squeeze(per_row(ops, "weights", weights, student, last), last)
    at, logs = known(ops, top, student, student.shape[:-1], student.shape[-1], weights)
    reason = "impl='array' asks for array operations" if impl == "array" else _why_not_fused(ops, student, student, 1.0)
    reason = reason or why_no_kernel(top.tail, kind)
    if reason is not None and impl == "triton":
        raise RuntimeError(f"impl='triton' cannot run: {reason}; impl='auto' falls back")
    if reason is None:
        from .._kernels import rows_triton, sparse_triton

        teacher = ops.astype(coarse_teacher(ops, logs, top.tail, student.shape[-1]), ops.float32)
        bucket = teacher.shape[-1] > at.shape[-1]
        uniform = bucket and top.tail == "uniform"

        def coarse_formula(x: Array) -> tuple[Array, ...]:
            x = ops.astype(x, ops.float32) / top.temperature
            found = ops.astype(coarse_student(ops, x, at, top.tail), ops.float32)
            return (found, unevenness(ops, x, at)) if uniform else (found,)

        coarse, uneven = sparse_triton.coarsen(student, at, 1.0 / top.temperature, bucket, uniform, coarse_formula)
        first, second = (teacher, coarse) if kind[2] else (coarse, teacher)
        values = rows_triton.Loss.apply(first, second, kind[0], kind[1], 1.0, _formula(ops, *kind[:2], 1.0))
        values = completed(ops, values, logs, top.tail)
        if uniform:
            values = values + ops.astype(rest_of(ops, logs), ops.float32) * uneven
    else:
        if top.temperature != 1.0:
            student = (ops.astype(student, ops.float32) if ops.is_half(student) else student) / top.temperature
        values = sparse_losses(ops, student, at, logs, top.tail, *kind, weights)
    return reduce_values(ops, values, weights, reduction)


def _direction(direction: str, mix: float | None) -> tuple[str, float, bool]:
    """The kind of divergence, the weight of its second argument in the mixture, and whether the teacher comes first."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction is {direction!r}: it must be one of {', '.join(map(repr, DIRECTIONS))}")
    if direction in ("forward", "reverse"):
        if mix is not None:
            raise ValueError(f"mix is for directions with a mixture, not for {direction!r}")
        return "kl", 0.0, direction == "forward"
    mix = (0.5 if direction == "js" else 0.1) if mix is None else mix
    if not (is_number(mix) and 0 < mix < 1):
        raise ValueError(
            f"mix is {mix!r}: it must lie between 0 and 1; at the ends there is nothing to mix: "
            "use direction='forward', KL(teacher‖student), or 'reverse', KL(student‖teacher)"
        )
    return ("js" if direction == "js" else "skew"), 1.0 - float(mix), direction != "reverse_skew"


def _capped(ops: Any, x: Array, logit_scale: float, softcap: float | None) -> Array:
    if softcap is None and logit_scale == 1.0:
        return x
    if softcap is not None and not (is_number(softcap) and softcap > 0):
        raise ValueError(f"softcap is {softcap!r}: it must be a number above 0")
    if ops.is_half(x):
        x = ops.astype(x, ops.float32)
    x = x * logit_scale
    if softcap is None:
        return x
    # tanh|u| = −expm1(−2|u|) / (1 + e^−2|u|): nothing overflows, and small u keeps its digits. −inf stays absent.
    absent = x == -math.inf
    u = ops.where(absent, 0.0, x / softcap)
    negative = u < 0.0
    twice = -2.0 * ops.where(negative, -u, u)
    tanh = -expm1(ops, twice) / (1.0 + ops.exp(twice))
    return ops.where(absent, -math.inf, softcap * ops.where(negative, -tanh, tanh))


def _check_valid(student: Array, teacher: Array, valid: int, *, least: int) -> None:
    most = max(student.shape[-1], teacher.shape[-1])
    if not (isinstance(valid, int) and not isinstance(valid, bool) and least <= valid <= most):
        raise ValueError(f"valid is {valid!r}: it must be a number of categories, from {least} to the {most} there are")


def _spread(
    ops: Any,
    x: Array,
    y: Array,
    kind: str,
    share: float,
    temperature: Any,
    weights: Any,
    reduction: str,
    group: Any,
    impl: str,
    called: str,
) -> Array:
    """The loss where each rank of a group has some categories of every row."""
    if ops.name != "PyTorch":
        raise TypeError(
            f"group is of torch.distributed, and these are {ops.name} arrays" + "; in JAX, shard the arrays" * (ops.name == "JAX")
        )
    if x.shape[:-1] != y.shape[:-1]:
        raise ValueError(f"batches have different shapes: {tuple(x.shape[:-1])} and {tuple(y.shape[:-1])}: under group= they must be equal")
    if getattr(temperature, "requires_grad", False):
        raise ValueError("the temperature learns, which group= has no derivative for: pass temperature.detach()")
    if 0 in (x.shape[-1], y.shape[-1]):
        # A rank without categories must take part in the same exchanges as the others.
        x, y = _same_categories(ops, x, y)
    reason = None if impl == "array" else _why_not_fused(ops, x, y, temperature)
    if impl == "triton" and reason is not None:
        raise RuntimeError(f"impl='triton' cannot run: {reason}; impl='auto' falls back")
    fused = impl != "array" and reason is None
    if not fused:
        x, y = _same_categories(ops, x, y)
    last = (len(x.shape) - 1,)
    scale = _parallel.row_scale(ops, temperature, x)
    values = _parallel.row_values(ops, x, y, kind, share, scale, group, fused=fused, called=called)
    return reduce_values(ops, values, None if weights is None else ops.squeeze(per_row(ops, "weights", weights, x, last), last), reduction)


def _same_categories(ops: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """The shorter one padded with absent categories; one of them where there are none."""
    sizes = [x.shape[-1], y.shape[-1]]
    if sizes[0] == sizes[1] != 0:
        return x, y
    longer = max(*sizes, 1)
    x, y = (ops.pad_last(z, longer - size, -math.inf) if size < longer else z for z, size in zip((x, y), sizes))
    return x, y


def _takes_few_passes(ops: Any, x: Array, y: Array) -> bool:
    return x.shape[:-1] == y.shape[:-1] and ops.on_accelerator(x) and ops.float64 not in (x.dtype, y.dtype)


def _few_passes(
    ops: Any, x: Array, y: Array, kind: str, share: float, temperature: Any, weights: Any, reduction: str
) -> Array:  # fmt: skip
    """The loss by formulas laid out for XLA's fusion on accelerators."""
    from .._kernels import rows_jax

    x, y = _same_categories(ops, x, y)
    last = (len(x.shape) - 1,)
    scale = None if is_number(temperature) and temperature == 1 else inverse_temperature(ops, temperature, x, last)
    if weights is None:
        return reduce_values(ops, rows_jax.values(x, y, kind, share, scale), None, reduction)
    weights = per_row(ops, "weights", weights, x, last)
    values = rows_jax.values(x, y, kind, share, scale, weights != 0.0)
    return reduce_values(ops, values, ops.squeeze(weights, last), reduction)


def _fused(
    ops: Any,
    x: Array,
    y: Array,
    kind: str,
    share: float,
    temperature: Any,
    weights: Any,
    reduction: str,
    valid: int | None,
    *,
    required: bool,
) -> Array | None:
    """The loss in Triton kernels, or None where they cannot run."""
    reason = _why_not_fused(ops, x, y, temperature)
    if reason is not None:
        if required:
            raise RuntimeError(f"impl='triton' cannot run: {reason}; impl='auto' falls back")
        return None
    from .._kernels import rows_triton

    formula = _formula(ops, kind, share, temperature)
    scale = _inverse(ops, temperature)
    if kind == "kl" and reduction != "none" and ops.is_constant(x) and not ops.is_constant(y):
        return rows_triton.FusedLoss.apply(x, y, rows_triton.row_weights(x, weights, reduction), scale, formula, valid)
    values = rows_triton.Loss.apply(x, y, kind, share, scale, formula, valid)
    if weights is None and reduction == "none":
        return values
    return rows_triton.reduce(values, weights, reduction)


def _inverse(ops: Any, temperature: Any) -> Any:
    """As kernels take it; NaN where an array's is not positive."""
    return 1.0 / (temperature if is_number(temperature) else ops.where(temperature > 0.0, temperature, math.nan))


def _formula(ops: Any, kind: str, share: float, temperature: Any) -> Any:
    """The same quantity in array operations, for second derivatives."""

    def formula(first: Array, second: Array) -> Array:
        first, second = _same_categories(ops, first, second)
        return divergence(
            kind, share, first, second, form="logits", axis=-1, keepdims=False, weights=None, reduction="none", base=None,
            temperature=temperature, prior=None, check=False,
        )  # fmt: skip

    return formula


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


def _why_not_fused(ops: Any, x: Array, y: Array, temperature: Any) -> str | None:
    if ops.has_row_kernels is None:
        return f"its kernels take PyTorch tensors, and these are {ops.name} arrays"
    learns = getattr(temperature, "requires_grad", False)
    if learns:
        return "the temperature learns, which needs its derivative"
    if x.shape[:-1] != y.shape[:-1]:
        return f"batches have different shapes: {tuple(x.shape[:-1])} and {tuple(y.shape[:-1])}"
    if not ops.has_row_kernels(x, y):
        return "it needs CUDA tensors of float16, bfloat16 or float32, with Triton installed, outside torch.compile and torch.func"
    return None

"""A teacher of whom only the likeliest categories are known: the divergence of a student from it, by the named ways to treat the rest.

All of them come down to divergences of k or k + 1 categories: the student's logits of those k, and one for everything else together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._divergences import divergence
from .._errors import CannotRun, InvalidOption, InvalidValue, WrongType, one_of
from .._forms import float_arrays, is_number, places, shown
from .._ops import Array, common_ops
from .._reduce import reduce_values
from . import _parallel
from ._dense import formula_of, weights_of_rows, why_not_fused, why_too_one_sided
from ._scaling import capped, check_valid

Kind = tuple[str, float, bool]  # of divergence, the weight of its second argument in the mixture, and whether the teacher comes first

# What a convention says about the rest of the vocabulary, and the directions it has a meaning in.
TAILS = {
    "bucket": ("forward", "reverse", "js", "skew", "reverse_skew"),
    "renormalize": ("forward", "reverse", "js", "skew", "reverse_skew"),
    "renormalize_teacher": ("forward", "js", "skew", "reverse_skew"),
    "uniform": ("forward", "reverse", "js", "skew", "reverse_skew"),
    "ignore": ("forward",),
}
_WHY_NOT = {
    "renormalize_teacher": "the teacher has no probability outside the k, and the student has: it is infinite",
    "ignore": "summed over the k alone it is no divergence, and least for a student that has left most of the k",
}


class TopK(NamedTuple):
    """The likeliest k categories of a teacher, as servers and stored logits have them, for `kl_loss` and `linear_kl`.

    Parameters
    ----------
    indices : integer array [..., k]
        Which categories, each once, in any order.
    log_probs : array [..., k]
        Natural logarithms of their probabilities among *all* categories. A constant.
    tail : {"bucket", "renormalize", "renormalize_teacher", "uniform", "ignore"}
        What becomes of the other categories, with p the teacher's and q the student's probabilities and m = Σp ≤ 1 over the k:

        "bucket": one category, of probability 1 − m in the teacher and 1 − Σq in the student. A true KL, of coarsened distributions: at
        least 0, 0 only if both agree on the k, never above the full one, and equal to it if student and teacher agree on how the rest is
        divided. Every direction.

        "renormalize": they do not exist; both are divided by their sums over the k. A true KL of conditional distributions, at most the
        bucket's divided by m. It never asks the student to stay within the k. Every direction.

        "renormalize_teacher": the teacher's p are divided by m, the student keeps the whole vocabulary. A true KL from a teacher more
        certain than it was: its minimum is at q = p/m, not at p. Not for "reverse", which is infinite.

        "uniform": the teacher's 1 − m is spread evenly over them. A true KL from a teacher that knows nothing of the rest; it asks the
        student to be as ignorant. Every direction; other than "forward" in array operations only, with arrays of the logits' size.

        "ignore": Σ p log(p/q) over the k as it stands. No divergence: it is 0 at q = p, and below 0 beyond, down to m·log m at q = p/m. Its
        gradient is that of "renormalize_teacher", times m. "forward" only.
    temperature : float
        At which the log-probs were taken. The loss's temperature must be the same one: at another one the teacher's probabilities are
        not known without the rest.

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.losses import TopK, kl_loss
    >>> teacher, student = np.array([[3.0, 1.0, 0.0, 0.0, -1.0]]), np.array([[2.0, 1.0, 1.0, 0.0, 0.0]])
    >>> log_probs = teacher - np.log(np.exp(teacher).sum())
    >>> top = TopK(np.array([[0, 1]]), log_probs[:, :2])
    >>> for tail in ("bucket", "renormalize", "renormalize_teacher", "uniform", "ignore"):
    ...     print(f"{tail:<20}{kl_loss(student=student, teacher=top._replace(tail=tail)):.5f}")
    bucket              0.20372
    renormalize         0.06713
    renormalize_teacher 0.45023
    uniform             0.21496
    ignore              0.31837
    >>> print(f"all categories      {kl_loss(student=student, teacher=teacher):.5f}")
    all categories      0.21424
    """

    indices: Any
    log_probs: Any
    tail: str = "bucket"
    temperature: float = 1.0


def check_top_k(top: TopK, direction: str, temperature: Any) -> None:
    one_of("tail", top.tail, TAILS)
    if direction not in TAILS[top.tail]:
        raise InvalidOption(f"tail={top.tail!r} has no direction={direction!r}: {_WHY_NOT[top.tail]}; tail='bucket' has every direction")
    if not (is_number(top.temperature) and 0 < top.temperature < math.inf):
        raise InvalidOption(f"the temperature of a TopK is {shown(top.temperature)}: it must be a number above 0")
    if not is_number(temperature) or temperature != top.temperature:
        raise InvalidOption(
            f"temperature is {temperature!r} and the teacher's log_probs were taken at {top.temperature!r}: they are not known at another "
            "one; take them at the loss's temperature, and say so in TopK(..., temperature=...)"
        )


def called(top: TopK) -> str:
    """What must be the same on all ranks."""
    return f"a TopK of {np.shape(top.indices)}, tail {top.tail!r}"


def why_no_kernel(tail: str, kind: Kind, group: Any) -> str | None:
    if tail == "uniform" and not (kind[0] == "kl" and kind[2]):
        return "tail='uniform' has a kernel for direction='forward' only"
    if tail == "uniform" and group is not None:
        return "tail='uniform' has no kernel for slices of a vocabulary"
    return why_too_one_sided(*kind[:2])


def known(ops: Any, top: TopK, like: Array, batch: Any, size: Any, weights: Array | None) -> tuple[Array, Array]:
    """Indices and log-probs for a batch of logits over `size` categories, in the framework of `like`; those of rows to leave out made
    harmless. What is wrong raises where it can be seen, and makes its row NaN elsewhere (indices given twice stay unseen there)."""
    at = places(ops, "indices", top.indices, like)
    _, logs = float_arrays(ops, [("student", like), ("log_probs", top.log_probs)])
    shape = (*batch, at.shape[-1] if len(at.shape) > 0 else 0)
    for name, x in (("indices", at), ("log_probs", logs)):
        if len(x.shape) != len(shape) or any(isinstance(n, int) and isinstance(m, int) and n != m for n, m in zip(x.shape, shape)):
            raise InvalidValue(
                f"{name} have shape {tuple(x.shape)}: beside this student they must have {tuple(shape)}, k for each distribution"
            )
    if size is None or shape[-1] is None:
        raise InvalidValue("a traced TopK needs k and the number of categories: give both in the input signature")
    if not 0 < shape[-1] <= size:
        raise InvalidValue(f"a TopK of {shape[-1]} among {size} categories: k must lie between 1 and their number")
    tolerance = 5e-2 if ops.is_half(logs) else 1e-3
    logs = ops.astype(ops.stop_gradient(logs), ops.widest(logs))
    if weights is not None:
        left_out = ops.expand(weights, (len(shape) - 1,)) == 0.0
        at, logs = ops.where(left_out, at * 0, at), ops.where(left_out, -math.log(2.0 * shape[-1]), logs)
    valid = (at >= 0) & (at < size)
    if ops.may_look(at) and ops.may_look(logs):
        _look(ops, at, logs, valid, weights, size, tolerance, top.tail)
    wrong = ~valid | (ops.sum(ops.exp(logs), (len(shape) - 1,)) > 1.0 + tolerance)
    return ops.where(valid, at, at * 0), ops.where(wrong, math.nan, logs)


def _look(ops: Any, at: Array, logs: Array, valid: Array, weights: Array | None, size: int, tolerance: float, tail: str) -> None:
    places, inside, values = (np.asarray(ops.to_numpy(x)) for x in (at, valid, logs))
    kept = np.ones(places.shape[:-1], bool) if weights is None else np.asarray(ops.to_numpy(weights)) != 0
    if not inside.all():
        bad = tuple(np.argwhere(~inside)[0])
        raise InvalidValue(f"indices{_row(bad[:-1])} hold {places[bad]}: categories are 0 to {size - 1}")
    ordered = np.sort(places, -1)
    twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1) & kept
    if twice.any():
        bad = tuple(np.argwhere(twice)[0])
        raise InvalidValue(f"indices{_row(bad)} name a category twice: each must be there once")
    total = np.exp(values).sum(-1)
    if tail in ("renormalize", "renormalize_teacher") and (total == 0).any():
        bad = tuple(np.argwhere(total == 0)[0])
        raise InvalidValue(
            f"log_probs{_row(bad)} are -inf everywhere, and tail={tail!r} divides by their sum, which is 0: give the row weight 0, or take "
            "tail='bucket'"
        )
    if (total > 1 + tolerance).any():
        bad = tuple(np.argwhere(total > 1 + tolerance)[0])
        raise InvalidValue(
            f"log_probs{_row(bad)} have exponentials that sum to {total[bad]:.6g}, above 1: logits? subtract their logsumexp over all"
        )


def _row(index: Any) -> str:
    return f" of row {index[0] if len(index) == 1 else tuple(int(i) for i in index)}" if len(index) else ""


# The teacher's log-probs and the student's logits of the coarsened problem are in the widest dtype there is: 1 − m cancels.


def coarse_teacher(ops: Any, logs: Array, tail: str, size: Any) -> Array:
    if tail == "renormalize" or logs.shape[-1] == size:
        return logs
    rest = 1.0 - ops.sum(ops.exp(logs), (len(logs.shape) - 1,))
    if tail in ("renormalize_teacher", "ignore"):
        rest = rest * 0.0
    return ops.join_last(logs, _log(ops, rest))


def _log(ops: Any, x: Array) -> Array:
    """−inf where there is nothing, or, by rounding, less than that; NaN stays."""
    empty = x <= 0.0
    return ops.where(empty, -math.inf, ops.log(ops.where(empty, 1.0, x)))


def coarse_student(ops: Any, logits: Array, at: Array, tail: str) -> Array:
    """The student's logits of the k, and one for all others together, where they count."""
    logits = ops.astype(logits, ops.widest(logits))
    chosen = ops.take_last(logits, at)
    if tail == "renormalize" or at.shape[-1] == logits.shape[-1]:
        return chosen
    last = (len(logits.shape) - 1,)
    others = ops.put_last(logits, at, -math.inf)
    top = ops.stop_gradient(ops.max(others, last))
    top = ops.where(top == -math.inf, 0.0, top)
    return ops.join_last(chosen, top + _log(ops, ops.sum(ops.exp(others - top), last)))


def rest_of(ops: Any, logs: Array) -> Array:
    """The teacher's probability of all others together, one a row."""
    last = (len(logs.shape) - 1,)
    rest = ops.squeeze(1.0 - ops.sum(ops.exp(logs), last), last)
    return ops.where(rest <= 0.0, 0.0, rest)


def unevenness(ops: Any, logits: Array, at: Array) -> Array:
    """KL of the uniform distribution over the others from the student's own: what "uniform" has beyond the bucket, a unit of its mass."""
    last = (len(logits.shape) - 1,)
    others = ops.put_last(logits, at, -math.inf)
    flat = ops.put_last(logits * 0.0, at, -math.inf)
    return divergence(
        "kl", 0.0, flat, others, form="logits", axis=last, keepdims=False, weights=None, reduction="none", base=None, temperature=None,
        prior=None, check=False,
    )  # fmt: skip


def uniform_teacher(ops: Any, logits: Array, at: Array, logs: Array) -> Array:
    """The teacher's log-probs of all categories, the rest spread evenly."""
    rest = (1.0 - ops.sum(ops.exp(logs), (len(logs.shape) - 1,))) / max(logits.shape[-1] - logs.shape[-1], 1)
    return ops.put_last(ops.rows_like(_log(ops, rest), logits, ()), at, logs)


def completed(ops: Any, values: Array, logs: Array, tail: str) -> Array:
    """ "ignore" from the divergence of the renormalised teacher: Σ p log(p/q) = m·(KL + log m)."""
    if tail != "ignore":
        return values
    last = (len(logs.shape) - 1,)
    mass = ops.astype(ops.squeeze(ops.sum(ops.exp(logs), last), last), values.dtype)
    nothing = mass == 0.0  # a sum of terms that are all 0
    return ops.where(nothing, 0.0, mass * (ops.where(nothing, 0.0, values) + ops.log(ops.where(nothing, 1.0, mass))))


def sparse_losses(
    ops: Any, student: Array, at: Array, logs: Array, tail: str, kind: str, share: float, teacher_first: bool, weights: Array | None
) -> Array:
    """The loss of each distribution, from the student's logits at the teacher's temperature and what `known` gave."""
    if ops.is_half(student):
        student = ops.astype(student, ops.float32)
    student = _kept(ops, student, weights)
    if tail == "uniform":
        sides = uniform_teacher(ops, student, at, logs), ops.astype(student, logs.dtype)
    else:
        sides = coarse_teacher(ops, logs, tail, student.shape[-1]), coarse_student(ops, student, at, tail)
    values = _values(ops, *sides, (kind, share, teacher_first))
    return ops.astype(completed(ops, values, logs, tail), student.dtype)


def _kept(ops: Any, x: Array, weights: Array | None) -> Array:
    """Zeros in rows to leave out."""
    return x if weights is None else ops.where(ops.expand(weights, (len(x.shape) - 1,)) == 0.0, 0.0, x)


def _values(ops: Any, teacher: Array, student: Array, kind: Kind) -> Array:
    first, second = (teacher, student) if kind[2] else (student, teacher)
    return divergence(
        *kind[:2], first, second, form="logits", axis=-1, keepdims=False, weights=None, reduction="none", base=None, temperature=None,
        prior=None, check=False,
    )  # fmt: skip


def spread_losses(
    ops: Any, student: Array, at: Array, logs: Array, tail: str, kind: Kind, temperature: float, weights: Array | None,
    part: _parallel.Slice, *, fused: bool,
) -> Array:  # fmt: skip
    """The loss of each distribution, from the student's logits of this rank's categories. k + 2 numbers a row travel; for "uniform" those
    of a teacher whose logits are all there. `fused`: this rank's part in Triton kernels."""
    out = ops.float32 if ops.is_half(student) else student.dtype
    width = student.shape[-1]
    place = at - part.start
    here = (place >= 0) & (place < part.columns)
    if tail == "uniform":
        values = _spread_uniform(ops, student, ops.where(here, place, width), logs, kind, temperature, weights, part)
        return ops.astype(values, out)
    teacher = coarse_teacher(ops, logs, tail, part.size)
    bucket = teacher.shape[-1] > at.shape[-1]
    if fused:
        from .._kernels import sparse_triton

        coarse = sparse_triton.CoarsenSpread.apply(student, ops.where(here, place, -1), 1.0 / temperature, bucket, part.ranks)
    else:
        from .._kernels import parallel_torch

        student = ops.astype(student, logs.dtype) / temperature
        coarse = parallel_torch.Chosen.apply(student, ops.where(here, place, width), bucket, part.ranks)
    values = _values(ops, teacher, _kept(ops, coarse, weights), kind)
    return ops.astype(completed(ops, values, logs, tail), out)


def _spread_uniform(
    ops: Any, student: Array, place: Array, logs: Array, kind: Kind, temperature: float, weights: Array | None, part: _parallel.Slice
) -> Array:
    student = _kept(ops, ops.astype(student, logs.dtype) / temperature, weights)
    rest = (1.0 - ops.sum(ops.exp(logs), (len(logs.shape) - 1,))) / max(part.size - logs.shape[-1], 1)
    # Places of other ranks are put into a column that is cut off again.
    teacher = ops.pad_last(ops.rows_like(_log(ops, rest), student, ()), 1, 0.0)
    teacher = ops.put_last(teacher, place, logs)[..., :-1]
    if part.columns == 0:
        teacher = student
    first, second = (teacher, student) if kind[2] else (student, teacher)
    return _parallel.row_values(ops, first, second, *kind[:2], None, part.ranks.groups)


def sparse_loss(
    student: Any, top: TopK, direction: str, kind: Kind, *, temperature: Any, softcap: float | None, logit_scale: float, weights: Any,
    reduction: str, valid: int | None, group: Any, impl: str,
) -> Array:  # fmt: skip
    """`kl_loss` from such a teacher."""
    check_top_k(top, direction, temperature)
    if type(student).__name__ == "DTensor":
        raise WrongType("student is a DTensor beside a TopK, which knows no placements: pass student.to_local(), and group=")
    ops = common_ops([("student", student), ("indices", top.indices), ("log_probs", top.log_probs), ("weights", weights)])
    (student,) = float_arrays(ops, [("student", student)])
    if len(student.shape) == 0:
        raise InvalidValue("student is a single number: a distribution needs an axis of categories")
    if valid is not None:
        check_valid(valid, student, least=1 if group is None else 0)
        student = student[..., :valid]
    columns = student.shape[-1]
    if columns == 0:
        if group is None:
            raise InvalidValue(f"student has no categories: its shape is {tuple(student.shape)}")
        # A rank without categories must take part in the same exchanges as the others.
        student = ops.pad_last(student, 1, -math.inf)
    reason = "impl='array' asks for array operations" if impl == "array" else why_not_fused(ops, student, student, 1.0)
    reason = reason or why_no_kernel(top.tail, kind, group)
    if reason is not None and impl == "triton":
        raise CannotRun(f"impl='triton' cannot run: {reason}; impl='auto' falls back")
    student = capped(ops, student, logit_scale, softcap, student)
    weights = weights_of_rows(ops, weights, student)
    batch, at_temperature = student.shape[:-1], float(top.temperature)
    if group is not None:
        part = _parallel.slice_of(
            ops, group, columns, student,
            f"logits of batch shape {tuple(batch)}, {called(top)}, {direction!r}{' in Triton' * (reason is None)}",
        )  # fmt: skip
        at, logs = known(ops, top, student, batch, part.size, weights)
        values = spread_losses(ops, student, at, logs, top.tail, kind, at_temperature, weights, part, fused=reason is None)
        return reduce_values(ops, values, weights, reduction)
    at, logs = known(ops, top, student, batch, columns, weights)
    if reason is None:
        values = _fused_values(ops, student, top, at, logs, kind)
    else:
        dtype = ops.float32 if ops.is_half(student) else student.dtype
        if at_temperature != 1.0:
            # In the widest dtype: a finite mask may be the lowest float32, which overflows when divided.
            student = ops.astype(student, ops.widest(student)) / at_temperature
        values = ops.astype(sparse_losses(ops, student, at, logs, top.tail, *kind, weights), dtype)
    return reduce_values(ops, values, weights, reduction)


def _fused_values(ops: Any, student: Array, top: TopK, at: Array, logs: Array, kind: Kind) -> Array:
    """In Triton kernels."""
    from .._kernels import rows_triton, sparse_triton

    teacher = ops.astype(coarse_teacher(ops, logs, top.tail, student.shape[-1]), ops.float32)
    bucket = teacher.shape[-1] > at.shape[-1]
    uniform = bucket and top.tail == "uniform"

    def coarse_formula(x: Array) -> tuple[Array, ...]:
        x = ops.astype(x, ops.float32) / float(top.temperature)
        found = ops.astype(coarse_student(ops, x, at, top.tail), ops.float32)
        return (found, unevenness(ops, x, at)) if uniform else (found,)

    coarse, uneven = sparse_triton.coarsen(student, at, 1.0 / float(top.temperature), bucket, uniform, coarse_formula)
    first, second = (teacher, coarse) if kind[2] else (coarse, teacher)
    values = completed(ops, rows_triton.Loss.apply(first, second, *kind[:2], 1.0, formula_of(ops, *kind[:2], 1.0)), logs, top.tail)
    return values + ops.astype(rest_of(ops, logs), ops.float32) * uneven if uniform else values

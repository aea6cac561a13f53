"""The final projection of a language model and the divergence of its logits from a teacher's, without ever holding all logits.

In PyTorch and JAX by chunks of tokens, gradients included (`_kernels/linear_torch`, `linear_jax`), in NumPy likewise. TensorFlow and
tinygrad hold all logits at once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._divergences import divergence
from .._errors import CannotRun, InvalidValue, WrongType
from .._forms import check_temperature, float_arrays, is_number, row_temperature
from .._ops import Array, common_ops
from .._reduce import check_options, reduce_values, row_weights, share_of_each
from . import _parallel
from ._dense import different_sizes, only_padding, same_categories, weights_of_rows
from ._linear_checks import check_linear_arrays, check_linear_options
from ._scaling import capped, look_at_temperatures
from .distillation import _direction
from .sparse import TopK, called, check_top_k, coarse_teacher, known, rest_of, sparse_losses, spread_losses, why_no_kernel

# Bytes for arrays of a chunk's size, beside the gradients; twice that where the teacher's logits are made here too.
BUDGET = 256 << 20
# Array operations make about as many arrays of a chunk's size, in float32, as PyTorch keeps for backward.
_ARRAYS_OF_FORMULAS = 16


class Rows(NamedTuple):
    """What belongs to each token: the teacher's logits, hidden state, or log-probs at indices; a temperature where it differs; 1 or 0 for
    tokens to keep."""

    teacher: Array
    indices: Array | None
    temperature: Array | None
    keep: Array | None


class Losses(NamedTuple):
    """The loss of each token, from the student's logits, in array operations. Made of constants, so that compilers know it again."""

    ops: Any
    kind: str
    share: float
    teacher_first: bool
    temperature: float | None
    softcap: float | None
    logit_scale: float
    tail: str

    def __call__(self, logits: Array, rows: Rows, shared: tuple[Array, ...]) -> Array:
        ops = self.ops
        if rows.indices is not None:
            student = capped(ops, logits, self.logit_scale, self.softcap, logits)
            if self.temperature != 1.0:
                student = (ops.astype(student, ops.float32) if ops.is_half(student) else student) / self.temperature
            return sparse_losses(ops, student, rows.indices, rows.teacher, self.tail, *self[1:4], rows.keep)
        teacher = project(ops, rows.teacher, *shared) if shared else rows.teacher
        student, teacher = (capped(ops, x, self.logit_scale, self.softcap, logits) for x in (logits, teacher))
        first, second = same_categories(ops, *((teacher, student) if self.teacher_first else (student, teacher)))
        return divergence(
            self.kind, self.share, first, second, form="logits", axis=-1, keepdims=False, weights=rows.keep, reduction="none", base=None,
            temperature=rows.temperature if self.temperature is None else self.temperature, prior=None, check=False,
        )  # fmt: skip


def project(ops: Any, hidden: Array, weight: Array, bias: Array | None = None) -> Array:
    logits = ops.matmul(hidden, ops.transpose(weight))
    return logits if bias is None else logits + bias


def linear_kl(
    *,
    hidden: Any,
    weight: Any,
    teacher: TopK | None = None,
    teacher_logits: Any = None,
    teacher_hidden: Any = None,
    teacher_weight: Any = None,
    bias: Any = None,
    teacher_bias: Any = None,
    direction: str = "forward",
    mix: float | None = None,
    temperature: Any = 1.0,
    scale_t2: bool = False,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    weights: Any = None,
    reduction: str = "mean",
    logit_dtype: str = "hidden",
    accumulate: str = "float32",
    group: Any = None,
    impl: str = "auto",
) -> Array:
    """`kl_loss` of the logits hidden·weightᵀ + bias, which are made, used and forgotten in chunks of tokens.

    Parameters
    ----------
    hidden : array [..., width]
        The student's last hidden states.
    weight : array [categories, width]
        Of the student's final projection ("lm_head"), of the same dtype. The side that has more categories must have logits of -inf in the
        rest: in `teacher_logits`, or by a bias of -inf.
    teacher_logits : array [..., categories], optional
        The teacher's logits; or, in their place:
    teacher : TopK, optional
        The teacher's likeliest categories.
    teacher_hidden, teacher_weight : arrays, optional
        The teacher's hidden states and projection, whose width may differ from the student's. Their logits are made in chunks too.
    bias, teacher_bias : arrays [categories], optional
    direction, mix, temperature, scale_t2, softcap, logit_scale, weights, reduction
        As in `kl_loss`; `temperature` is a constant.
    logit_dtype : {"hidden", "float32"}
        Of the logits that PyTorch makes from 16-bit arguments: rounded to 16 bits, as its own projection has them, or float32, which takes
        longer and makes gradients several times as accurate. JAX always has float32.
    accumulate : {"float32", "weight"}
        Where the gradient of a weight of 16 bits is added up over chunks. "float32" takes up to twice the weight's own size for the time of
        the call. "weight" adds in the weight's dtype, and rounds once a chunk. float16, which sums over tokens would overflow, is always
        added up in float32, and kept so until backward has scaled it.
    group : torch.distributed process group, optional
        Its ranks hold the same hidden states and different rows of `weight` and `bias`, and of `teacher_weight` and `teacher_bias` or
        columns of `teacher_logits` alike: slices of the vocabulary. Every rank gets the same loss, the gradient of its rows, and all of
        that to `hidden`, for which an array of its size is added up over ranks. `teacher` counts categories over the slices in the order of
        the ranks. No second derivatives. The host waits for one number a rank.
    impl : {"auto", "array", "triton"}
        As in `kl_loss`.

    Returns
    -------
    array
        Differentiable with respect to hidden, weight and bias. The teacher is a constant: a tensor of PyTorch that asks for a gradient is
        refused, in other frameworks none reaches it.

    Notes
    -----
    What is held beside the arguments and the gradients. PyTorch: 256 MiB of logits (512 MiB with `teacher_hidden`) and, with
    ``accumulate="float32"``, what is said there; as long as all logits fit into that room, which takes those of 2·width tokens, they and
    then their derivatives are kept in it, and nothing needs adding up. JAX: 256 MiB of float32 logits, and a float32 sum of the weight's
    gradient. NumPy: one chunk. TensorFlow and tinygrad: all logits.

    In PyTorch the gradients are made in forward, unless ``reduction="none"`` or under `torch.no_grad`; a second backward through the same
    graph makes them anew, and a second derivative holds all logits. Under `torch.compile` the call breaks the graph and runs as it is.
    In JAX backward makes the logits a second time, and there is no forward mode (`jax.jvp`).

    Whatever the logits are, all that follows is float32 (float64 from float64).

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.losses import kl_loss, linear_kl
    >>> rng = np.random.default_rng(0)
    >>> hidden, weight, teacher = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)), rng.normal(size=(5, 7))
    >>> float(linear_kl(hidden=hidden, weight=weight, teacher_logits=teacher).round(6))
    0.96771
    >>> float(kl_loss(student=hidden @ weight.T, teacher=teacher).round(6))
    0.96771
    """
    arrays = {
        "hidden": hidden, "weight": weight, "bias": bias,
        "teacher_logits": teacher_logits, "teacher_hidden": teacher_hidden, "teacher_weight": teacher_weight, "teacher_bias": teacher_bias,
    }  # fmt: skip
    kind = _direction(direction, mix)
    check_options(reduction, False, None)
    check_linear_options(temperature, scale_t2, softcap, logit_scale, logit_dtype, accumulate, impl)
    if teacher is not None:
        if not isinstance(teacher, TopK):
            raise WrongType(f"teacher is a {type(teacher).__name__}: it must be a TopK; logits are teacher_logits")
        check_top_k(teacher, direction, temperature)
        arrays |= {"indices": teacher.indices, "log_probs": teacher.log_probs}
    ops = common_ops([*arrays.items(), ("weights", weights), ("temperature", temperature)])
    options = _Options(
        *kind, temperature, softcap, float(logit_scale), weights, reduction, logit_dtype == "float32", accumulate, impl, teacher, group
    )
    if ops.name == "PyTorch":
        from .._kernels import linear_torch

        value = linear_torch.outside_graphs(_linear_kl, ops, arrays, options)
    else:
        value = _linear_kl(ops, arrays, options)
    return value * temperature**2 if scale_t2 else value


class _Options(NamedTuple):
    kind: str
    share: float
    teacher_first: bool
    temperature: Any
    softcap: float | None
    logit_scale: float
    weights: Any
    reduction: str
    wide_logits: bool
    accumulate: str
    impl: str
    top: TopK | None
    group: Any


class _Tokens(NamedTuple):
    """The arguments, checked, in one framework."""

    hidden: Array
    weight: Array
    bias: Array | None
    rows: Rows
    shared: tuple[Array, ...]
    losses: Losses

    def part(self, part: slice) -> Rows:
        return Rows(*(None if x is None else x[part] for x in self.rows))


def _linear_kl(ops: Any, given: dict[str, Any], options: _Options) -> Array:
    named = [
        (name, x) for name, x in given.items() if name in ("hidden", "weight") or (x is not None and name not in ("indices", "log_probs"))
    ]
    arrays: dict[str, Any] = {**given, **dict(zip((name for name, _ in named), float_arrays(ops, named)))}
    check_linear_arrays(ops, arrays, options.top, spread=options.group is not None)
    arrays, wrong = _matched(ops, arrays, options)
    hidden = arrays["hidden"]
    batch, last = hidden.shape[:-1], (len(hidden.shape) - 1,)
    weights = weights_of_rows(ops, options.weights, hidden)
    number = is_number(options.temperature)
    check_temperature(options.temperature, "float64" if hidden.dtype == ops.float64 else "float32")
    temperature = None if number else ops.squeeze(row_temperature(ops, options.temperature, hidden, last), last)
    if temperature is not None and options.group is None:  # ranks would not all raise
        look_at_temperatures(ops, temperature, weights)
    part = _slice(ops, arrays["weight"], options)
    keep = None if weights is None else ops.astype(weights != 0.0, weights.dtype)
    if options.top is None:
        indices, tail = None, ""
        teacher = ops.stop_gradient(arrays["teacher_logits"] if arrays["teacher_hidden"] is None else arrays["teacher_hidden"])
        if hidden.dtype != ops.float64 and teacher.dtype == ops.float64 and arrays["teacher_hidden"] is None:
            teacher = ops.astype(teacher, ops.float32)  # the student's logits are no more exact
    else:
        size = arrays["weight"].shape[0] if part is None else part.size
        indices, teacher = known(ops, options.top, hidden, batch, size, weights)
        tail = options.top.tail
    tokens = _Tokens(
        hidden, arrays["weight"], arrays["bias"],
        Rows(teacher, indices, None if temperature is None else ops.stop_gradient(temperature), keep),
        tuple(ops.stop_gradient(arrays[name]) for name in ("teacher_weight", "teacher_bias") if arrays[name] is not None),
        Losses(ops, *options[:3], float(options.temperature) if number else None, options.softcap, options.logit_scale, tail),
    )  # fmt: skip
    if ops.name == "PyTorch" and ops.can_look(hidden):
        return _in_torch(ops, _flat(tokens), options, part, weights, batch, wrong)
    if options.group is not None:
        raise WrongType(f"group is of torch.distributed, for PyTorch tensors outside torch.func, and these are {ops.name} arrays")
    if options.impl == "triton":
        raise CannotRun(f"impl='triton' cannot run: its kernels take PyTorch tensors outside torch.func, and these are {ops.name} arrays")
    in_chunks = {"NumPy": _in_numpy, "JAX": _in_jax}.get(ops.name)
    values = _at_once(ops, tokens) if in_chunks is None else in_chunks(_flat(tokens)).reshape(batch)
    return reduce_values(ops, values, weights, options.reduction)


def _matched(ops: Any, arrays: dict[str, Any], options: _Options) -> tuple[dict[str, Any], str]:
    """The arguments of a student and a teacher over the same categories, and what is wrong with them if a group is to hear of it. Where one
    side has more categories, its logits there must be -inf: in teacher_logits, or by the bias."""
    logits = arrays["teacher_logits"]
    teacher = "teacher_logits" if logits is not None else "teacher_weight"
    size = arrays["weight"].shape[0]
    other = size if arrays[teacher] is None else arrays[teacher].shape[-1 if logits is not None else 0]
    if size == other or None in (size, other):
        return arrays, ""
    name = "bias" if size > other else "teacher_bias" if logits is None else teacher
    sentence = different_sizes("weight", size, teacher, other, "pass the first {} of each")
    try:
        if arrays[name] is None:
            raise InvalidValue(sentence)
        weights, look = options.weights if name == teacher else None, options.group is None or ops.may_look(arrays[name])
        return arrays | {name: only_padding(ops, arrays[name], slice(min(size, other), None), weights, sentence, look=look)}, ""
    except ValueError:
        if options.group is None:
            raise
        return arrays, sentence


def _flat(tokens: _Tokens) -> _Tokens:
    """All tokens along one axis."""
    teacher, indices, *single = tokens.rows
    count = math.prod(tokens.hidden.shape[:-1])  # not −1, which nothing tells of an array without columns
    rows = [None if x is None else x.reshape(count, x.shape[-1]) for x in (teacher, indices)]
    rows += [None if x is None else x.reshape(count) for x in single]
    return tokens._replace(hidden=tokens.hidden.reshape(count, tokens.hidden.shape[-1]), rows=Rows(*rows))


def _at_once(ops: Any, tokens: _Tokens) -> Array:
    hidden, rows = tokens.hidden, tokens.rows
    single = len(hidden.shape) == 1  # not every framework multiplies a vector by a matrix
    if single:
        hidden, rows = ops.expand(hidden, (0,)), Rows(*(None if x is None else ops.expand(x, (0,)) for x in rows))
    values = tokens.losses(project(ops, hidden, tokens.weight, tokens.bias), rows, tokens.shared)
    return ops.squeeze(values, (0,)) if single else values


def _in_numpy(tokens: _Tokens) -> Array:
    ops = tokens.losses.ops
    size = max(1, BUDGET // (_ARRAYS_OF_FORMULAS * 8 * tokens.weight.shape[0]))
    parts = [slice(start, start + size) for start in range(0, max(tokens.hidden.shape[0], 1), size)]
    return ops.concatenate(
        [tokens.losses(project(ops, tokens.hidden[part], tokens.weight, tokens.bias), tokens.part(part), tokens.shared) for part in parts]
    )


def _in_jax(tokens: _Tokens) -> Array:
    from .._kernels import linear_jax

    size = max(1, BUDGET // (4 * tokens.weight.shape[0]))
    return linear_jax.losses(tokens.losses, size, tokens.hidden, tokens.weight, tokens.bias, tokens.rows, tokens.shared)


def _slice(ops: Any, weight: Array, options: _Options) -> _parallel.Slice | None:
    """Where this rank's categories lie, if a TopK over those of all ranks has to know."""
    if options.group is None or options.top is None:
        return None
    return _parallel.slice_of(ops, options.group, weight.shape[0], weight, f"{called(options.top)}, kind {options[:3]}")


def _in_torch(
    ops: Any, tokens: _Tokens, options: _Options, part: _parallel.Slice | None, weights: Array | None, batch: tuple[int, ...], wrong: str
) -> Array:  # fmt: skip
    from .._kernels import linear_torch

    hidden, weight, bias, *shared = linear_torch.autocast_inputs(tokens.hidden, tokens.weight, tokens.bias, *tokens.shared)
    tokens = tokens._replace(hidden=hidden, weight=weight, bias=bias, shared=tuple(shared))
    if shared:
        (teacher,) = linear_torch.autocast_inputs(tokens.rows.teacher)
        tokens = tokens._replace(rows=tokens.rows._replace(teacher=teacher))
    wide = options.wide_logits and hidden.dtype.itemsize < 4
    reason = "impl='array' asks for array operations" if options.impl == "array" else _why_not_triton(ops, tokens, options.group)
    if reason is not None and options.impl == "triton":
        raise CannotRun(f"impl='triton' cannot run: {reason}; impl='auto' falls back")
    vocabulary, total = weight.shape[0], None
    if options.group is not None:
        step, total, vocabulary = _spread_step(ops, tokens, options, part, wide, wrong, fused=reason is None)
        # Array operations; or logits, derivatives of both sides, and the teacher's logits.
        arrays = _ARRAYS_OF_FORMULAS * 4 // hidden.dtype.itemsize if reason is not None else 4 * (1 + wide)
    elif reason is None:
        step, arrays = _triton_step(tokens, wide)
    else:
        if wide and shared:
            rows = tokens.rows._replace(teacher=ops.astype(tokens.rows.teacher, ops.float32))
            tokens = tokens._replace(rows=rows, shared=tuple(ops.astype(x, ops.float32) for x in shared))
        step = linear_torch.array_step(lambda logits, part: tokens.losses(logits, tokens.part(part), tokens.shared))
        arrays = _ARRAYS_OF_FORMULAS * 4 // hidden.dtype.itemsize
    sizes = (hidden.shape[0], vocabulary, weight.shape[1], hidden.dtype.itemsize)
    room = {"budget": 2 * BUDGET if shared else BUDGET, "arrays": arrays}
    plan = linear_torch.plan(*sizes, **room, float32=options.accumulate == "float32", kept=linear_torch.kept_dtype(weight).itemsize)
    values_chunk = linear_torch.plan(*sizes, **room, float32=False).chunk

    def formula(hidden: Array, weight: Array, bias: Array | None) -> Array:
        if options.group is not None:
            raise CannotRun("create_graph=True: rows that are spread over ranks have no second derivatives")
        return tokens.losses(project(ops, hidden, weight, bias), tokens.rows, tokens.shared)

    keep = None if tokens.rows.keep is None else tokens.rows.keep != 0.0
    job = linear_torch.Job(step, plan, values_chunk, wide, keep, formula, total)
    weights_learn = weights is not None and not ops.is_constant(weights)
    if options.reduction == "none" or weights_learn or not hidden.shape[0]:  # of no tokens, what `kl_loss` says of none
        return reduce_values(ops, linear_torch.loss(hidden, weight, bias, None, job).reshape(batch), weights, options.reduction)
    if weights is None:
        return linear_torch.loss(hidden, weight, bias, share_of_each(batch, options.reduction), job)
    shares = row_weights(ops, hidden[:, 0].reshape(batch), weights, options.reduction)
    return linear_torch.loss(hidden, weight, bias, shares.reshape(-1).contiguous(), job)


def _spread_step(
    ops: Any, tokens: _Tokens, options: _Options, part: _parallel.Slice | None, wide: bool, wrong: str, *, fused: bool
) -> tuple[Any, Any, int]:
    """The step where each rank of a group has some categories, what adds up over ranks, and the most categories that one of them has:
    chunks must be the same everywhere, or ranks would wait for each other for ever. For the same reason all of them raise if one finds
    something `wrong`."""
    from .._kernels import linear_torch, parallel_torch

    ranks = parallel_torch.Ranks(options.group)
    vocabulary, least = ranks.most_and_least(-1 if wrong else tokens.weight.shape[0], tokens.hidden.device)
    if least < 0:
        raise InvalidValue(wrong or "another rank of the group has different numbers of categories for the student and for the teacher")
    if least == 0:
        raise InvalidValue("a rank of the group has no categories: each needs one row of weight at least")
    losses = tokens.losses

    def of_logits(logits: Array, of_tokens: slice) -> Array:
        rows = tokens.part(of_tokens)
        temperature: Any = rows.temperature if losses.temperature is None else losses.temperature
        if part is not None:
            student = capped(ops, logits, losses.logit_scale, losses.softcap, logits)
            return spread_losses(
                ops, student, rows.indices, rows.teacher, losses.tail, losses[1:4], temperature, rows.keep, part, fused=fused
            )  # fmt: skip
        weight, bias = (*tokens.shared, None, None)[:2]
        teacher = rows.teacher if weight is None else linear_torch.project_new(rows.teacher, weight, bias, wide)
        student, teacher = (capped(ops, x, losses.logit_scale, losses.softcap, logits) for x in (logits, teacher))
        first, second = same_categories(ops, *((teacher, student) if losses.teacher_first else (student, teacher)))
        scale = _parallel.row_scale(ops, temperature, first)
        return _parallel.row_values(ops, first, second, losses.kind, losses.share, scale, options.group, fused=fused)

    return linear_torch.array_step(of_logits), ranks.total, vocabulary


def _why_not_triton(ops: Any, tokens: _Tokens, group: Any) -> str | None:
    reason = why_no_kernel(tokens.losses.tail, tokens.losses[1:4], group)
    if reason is not None:
        return reason
    teacher = tokens.rows.teacher if tokens.rows.indices is None else None
    if not ops.has_row_kernels(tokens.hidden, tokens.weight, tokens.bias, teacher, *tokens.shared):
        return "it needs CUDA tensors of float16, bfloat16 or float32, not empty, on Ampere or later, with Triton installed"
    return None


def _triton_step(tokens: _Tokens, wide: bool) -> tuple[Any, int]:
    """The step, and how many arrays of a chunk's size and of the dtype of the arguments there are at a time."""
    from .._kernels import linear_torch, linear_triton

    rows, losses, made = tokens.rows, tokens.losses, bool(tokens.shared)
    # A factor of the logits is as good as one of the temperature, unless the softcap comes in between.
    softcap = None if losses.softcap is None else linear_triton.Softcap(losses.softcap, losses.logit_scale)
    temperature: Any = rows.temperature if losses.temperature is None else losses.temperature
    scale = (1.0 if softcap is not None else losses.logit_scale) / temperature
    if rows.indices is not None:
        from .._kernels import sparse_triton

        ops = losses.ops
        teacher = ops.astype(coarse_teacher(ops, rows.teacher, losses.tail, tokens.weight.shape[0]), ops.float32)
        masses = ops.astype(ops.total(ops.exp(rows.teacher), -1), ops.float32) if losses.tail == "ignore" else None
        at = rows.indices.contiguous()
        uniform = losses.tail == "uniform" and teacher.shape[-1] > at.shape[-1]
        rests = ops.astype(rest_of(ops, rows.teacher), ops.float32) if uniform else None
        step = sparse_triton.sparse_step(*losses[1:4], scale, at, teacher.contiguous(), softcap, masses, rests)
        return step, 3 if wide else 1 if softcap is None else 2

    def teacher_of(part: slice) -> Array:
        if not made:
            return rows.teacher[part]
        weight, bias = (*tokens.shared, None)[:2]
        return linear_torch.project_new(rows.teacher[part], weight, bias, wide)

    step = linear_triton.dense_step(*losses[1:4], linear_triton.scales(scale, tokens.hidden), teacher_of, made, softcap)
    # Derivatives, which take the place of the logits unless those are wider; the teacher's logits; what a softcap makes of both.
    return step, (3 if wide else 1) + (1 + wide) * made + (0 if softcap is None else (1 - made) + (not wide))

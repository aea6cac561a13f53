"""A final projection and a loss of its logits in PyTorch, by chunks of tokens: no array of all logits, and gradients on the way.

The loop knows nothing of the loss. It hands each chunk of logits to a `Step`, which gives the loss of each token and turns logits into
their derivatives: in Triton, in array operations, or with a reduction over devices between the two. What else differs is the `Plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

# step(logits, part, upstream, out): of the tokens in the slice `part`, one loss each; and upstream · d loss / d logits in `out`, which may
# be the logits' own memory, unless upstream is None. It may overwrite the logits.
Step = Callable[[Any, slice, Any, Any], Any]


class Plan(NamedTuple):
    """Tokens whose logits are made at a time; tokens whose derivatives wait for one matmul; and whether what such blocks give for the
    weight is added up in float32. One block needs no adding up: the matmul itself is float32 inside."""

    chunk: int
    block: int
    float32: bool


class Job(NamedTuple):
    """A loss: its step; its plan, and how many tokens to take at a time where no gradient is wanted; whether half-precision arguments make
    float32 logits; tokens to keep (None: all); the same losses in array operations, for second derivatives; and what adds up the parts
    that devices have of an array, where there are several."""

    step: Step
    plan: Plan
    values_chunk: int
    wide_logits: bool
    keep: Any
    formula: Callable[[Any, Any, Any], Any]
    total: Callable[[Any], Any] | None = None


def kept_dtype(weight: Any) -> Any:
    """Of the weight's gradient until backward: derivatives are kept large enough for float16, and their sum over tokens would overflow."""
    return torch.float32 if weight.dtype == torch.float16 else weight.dtype


def plan(tokens: int, vocabulary: int, width: int, itemsize: int, *, budget: int, arrays: int, float32: bool, kept: int = 0) -> Plan:
    """Sizes for `arrays` arrays of a chunk's size within `budget` bytes, beside the gradients. `kept`: the size of an element of the
    weight's gradient until backward, where that is not `itemsize`.

    Adding up half-precision gradients in float32 takes 4·vocabulary·width bytes, read and written once a chunk: 8 bytes for every 2·chunk
    operations, where an H200 does 190 operations in the time of a byte. The derivatives of 2·width tokens fit in that room instead, and
    then there is nothing to add.
    """
    row = _length(vocabulary) * itemsize
    each = budget // arrays
    room = (4 - max(kept - itemsize, 0)) * vocabulary * width if float32 and itemsize < 4 else 0
    if tokens * row <= room + each:
        # The derivatives take one array's part, or none; the others share the rest.
        left = budget - max(tokens * row - room, 0)
        return Plan(max(tokens, 1) if arrays == 1 else _even(left // (arrays - 1) // row), max(tokens, 1), False)
    chunk = _even(each // row)
    return Plan(chunk, chunk, float32)


def _even(tokens: int) -> int:
    """A multiple of the tiles of a matmul, where there is room for one."""
    return max(1, tokens if tokens < 128 else tokens // 128 * 128)


# Matmuls whose rows begin at multiples of this many elements go well. Others, or of a length that is no multiple of eight, take several
# times as long on an H200, which below so many categories does not matter.
_ALIGNED, _MANY = 64, 4096
# So many tokens, and so many categories, are multiplied at a time: an H200 takes a little less for most sizes than for all at once, since
# libraries choose tiles by the size, and not always the best.
_TOKENS_AT_ONCE, _CATEGORIES_AT_ONCE = 2048, 65536


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _length(columns: int) -> int:
    """Of a row in memory."""
    return columns if columns < _MANY else _padded(columns)


def _room(rows: int, columns: int, dtype: Any, device: Any) -> Any:
    """Uninitialised, each row at an aligned place."""
    return torch.empty(rows, _length(columns), dtype=dtype, device=device)[:, :columns]


def _equal(size: int, most: int) -> list[slice]:
    """Aligned parts of about the same size."""
    step = max(1, _padded(-(-size // max(1, -(-size // most)))))
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _categories(size: int, most: int | None = None) -> list[slice]:
    """Parts of at most so many, and last, where the whole is not aligned, what is left over."""
    whole = size if size % 8 == 0 or size < _MANY else size // _ALIGNED * _ALIGNED
    return [*_equal(whole, most or size), *([slice(whole, size)] if whole < size else [])]


class _Sum:
    """Σ derivativesᵀ · hidden over blocks."""

    def __init__(self, like: Any, float32: bool) -> None:
        self.like, self.kept = like, kept_dtype(like)
        self.wide = like.dtype.itemsize < 4 and (float32 or self.kept == torch.float32)
        self.found: Any = None

    def add(self, derivatives: Any, hidden: Any) -> None:
        begins = self.found is None
        if begins:
            self.found = torch.empty(self.like.shape, dtype=torch.float32 if self.wide else self.like.dtype, device=self.like.device)
        for part in _categories(self.like.shape[0], _CATEGORIES_AT_ONCE):
            factor, out = derivatives[:, part].t(), self.found[part]
            if self.wide:
                (_product if begins else _add_product)(factor, hidden, out)
            elif begins:
                torch.mm(factor, hidden, out=out)
            else:
                out.addmm_(factor, hidden)

    def result(self) -> Any:
        return torch.zeros_like(self.like, dtype=self.kept) if self.found is None else self.found.to(self.kept)


# Elements of a product that is made only to be added.
_SLICE = 1 << 24


@cache
def _writes_float32(device: Any, added: bool) -> bool:
    """May a matmul of half-precision matrices write float32 here (PyTorch 2.8, CUDA); also added to float32 (later versions)?"""
    x = torch.zeros(16, 16, dtype=torch.bfloat16, device=device)
    out = torch.zeros(16, 16, dtype=torch.float32, device=device)
    try:
        if added:
            torch.addmm(out, x, x, out_dtype=torch.float32, out=out)
        else:
            torch.mm(x, x, out_dtype=torch.float32, out=out)
    except (TypeError, NotImplementedError, RuntimeError):
        return False
    return True


def _product(x: Any, y: Any, out: Any) -> None:
    """out = x @ y, out being float32."""
    if _writes_float32(x.device, False):
        torch.mm(x, y, out_dtype=torch.float32, out=out)
    else:
        _add_in_slices(x, y, out.zero_())


def _add_product(x: Any, y: Any, out: Any) -> None:
    """out += x @ y, out being float32."""
    if _writes_float32(x.device, True):
        torch.addmm(out, x, y, out_dtype=torch.float32, out=out)
    else:
        _add_in_slices(x, y, out)


def _add_in_slices(x: Any, y: Any, out: Any) -> None:
    # A product of the whole size would take as much memory again.
    rows = max(1, _SLICE // max(y.shape))
    for start in range(0, out.shape[0], rows):
        part = x[start : start + rows]
        if _writes_float32(x.device, False):
            out[start : start + rows].add_(torch.mm(part, y, out_dtype=torch.float32))
        elif x.is_cuda and x.dtype != torch.float16:
            out[start : start + rows].add_(torch.mm(part, y))  # rounded once a block, which float16 may not hold
        else:
            out[start : start + rows].addmm_(part.float(), y.float())


def project(hidden: Any, weight: Any, bias: Any, out: Any) -> Any:
    """The logits, in the dtype of `out`."""
    for part in _categories(weight.shape[0]):
        rows, some = weight[part].t(), out[:, part]
        if out.dtype != hidden.dtype:
            _product(hidden, rows, some)
            if bias is not None:
                some.add_(bias[part])
        elif bias is None:
            torch.mm(hidden, rows, out=some)
        else:
            torch.addmm(bias[part], hidden, rows, out=some)
    return out


def _project_back(derivatives: Any, weight: Any, out: Any) -> None:
    """derivatives @ weight. What is left over of the categories comes first: it is rounded before the rest is added, and is little."""
    last, *rest = reversed(_categories(weight.shape[0]))
    for tokens in _equal(out.shape[0], _TOKENS_AT_ONCE):
        torch.mm(derivatives[tokens, last], weight[last], out=out[tokens])
        for part in rest:
            out[tokens].addmm_(derivatives[tokens, part], weight[part])


def project_new(hidden: Any, weight: Any, bias: Any, wide: bool) -> Any:
    dtype = torch.float32 if wide else hidden.dtype
    return project(hidden, weight, bias, _room(hidden.shape[0], weight.shape[0], dtype, hidden.device))


def run(hidden: Any, weight: Any, bias: Any, job: Job, upstream: Any, needs: tuple[bool, bool, bool]) -> tuple[Any, list[Any]]:
    """The loss of each token, and the derivatives of Σ upstream · loss to hidden [tokens, width], weight [vocabulary, width] and bias,
    where needed; without `upstream`, none. For float16 the latter two are float32. Over slices of a vocabulary, what comes back for hidden
    is the sum over devices."""
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    chunk, block, float32 = job.plan if upstream is not None and needs[1] else (job.values_chunk, job.values_chunk, False)
    wide = _wide(hidden)
    if upstream is not None:
        upstream = upstream.to(wide).contiguous()  # that of a sum is one number, seen from everywhere
    values = torch.empty(tokens, dtype=wide, device=hidden.device)
    to_hidden = torch.empty_like(hidden, memory_format=torch.contiguous_format) if upstream is not None and needs[0] else None
    to_weight = _Sum(weight, float32)
    to_bias: Any = None if bias is None else torch.zeros(vocabulary, dtype=wide, device=hidden.device)
    size = min(tokens, block)
    buffer = _room(size, vocabulary, hidden.dtype, hidden.device)
    apart = None
    if job.wide_logits and hidden.dtype.itemsize < 4:
        apart = _room(min(tokens, chunk), vocabulary, torch.float32, hidden.device)
    for first in range(0, tokens, max(size, 1)):
        last = min(first + size, tokens)
        inputs = hidden[first:last]
        if job.keep is not None:
            # 0 · NaN is NaN in a matmul: what is left out must not hold any.
            inputs = torch.where(job.keep[first:last, None], inputs, 0.0)
        for start in range(first, last, chunk):
            part = slice(start, min(start + chunk, last))
            within = slice(part.start - first, part.stop - first)
            logits = buffer[within] if apart is None else apart[: part.stop - part.start]
            project(inputs[within], weight, bias, logits)
            values[part] = job.step(logits, part, None if upstream is None else upstream[part], buffer[within])
        if upstream is None:
            continue
        derivatives = buffer[: last - first]
        if to_hidden is not None:
            _project_back(derivatives, weight, to_hidden[first:last])
        if needs[1]:
            to_weight.add(derivatives, inputs)
        if needs[2]:
            to_bias += derivatives.sum(0, dtype=wide)
    if upstream is None:
        return values, [None, None, None]
    if to_hidden is not None and job.total is not None:
        job.total(to_hidden)
    return values, [to_hidden, to_weight.result() if needs[1] else None, to_bias.to(kept_dtype(bias)) if needs[2] else None]


# Derivatives to logits below 6e-8 vanish in float16, and those of a mean over thousands of tokens are: they are kept larger by
# this much than those of a single token, and what is missing is made up for in backward, where a loss scale arrives.
_FLOAT16_HEADROOM = 256.0


class Losses(torch.autograd.Function):  # type: ignore[misc]
    """The loss of each token; backward makes the logits anew."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, job: Job) -> Any:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.job = job
        return run(hidden, weight, bias, job, None, (False, False, False))[0]

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        hidden, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            return (*_differentiable(ctx.job, hidden, weight, bias, needs, upstream), None)
        return (*_scaled_gradients(hidden, weight, bias, ctx.job, upstream, needs), None)


class Loss(torch.autograd.Function):  # type: ignore[misc]
    """Σ row_weights · loss, with a number for all or one a token. Gradients are made in forward, kept for the first backward, which scales
    them, and handed over; a second one through the same graph makes them anew."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, row_weights: Any, job: Job) -> Any:
        needs = ctx.needs_input_grad[:3]
        each = row_weights if torch.is_tensor(row_weights) else hidden.new_full(hidden.shape[:1], row_weights, dtype=_wide(hidden))
        ctx.save_for_backward(hidden, weight, bias, each)
        ctx.job = job
        upstream, ctx.factor = _normal(each, hidden.dtype)
        values, ctx.gradients = run(hidden, weight, bias, job, upstream, needs)
        return _total(values, row_weights)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        hidden, weight, bias, row_weights = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            return (*_differentiable(ctx.job, hidden, weight, bias, needs, upstream * row_weights), None, None)
        found, ctx.gradients = ctx.gradients, None
        if found is None:
            return (*_scaled_gradients(hidden, weight, bias, ctx.job, upstream * row_weights, needs), None, None)
        factor = upstream if ctx.factor is None else upstream * ctx.factor
        return (*(_scale(x, factor, hidden.dtype) for x in found), None, None)


def _wide(x: Any) -> Any:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _total(values: Any, row_weights: Any) -> Any:
    if not torch.is_tensor(row_weights):
        return values.sum() * row_weights
    # A token of weight 0 may hold anything.
    return torch.where(row_weights == 0, 0.0, values * row_weights).sum()


def _normal(upstream: Any, dtype: Any) -> tuple[Any, Any]:
    """`upstream` as it goes into half-precision derivatives, and the factor to make up for it afterwards (None: 1)."""
    if dtype != torch.float16 or upstream.numel() == 0:
        return upstream, None
    largest = upstream.abs().max() / _FLOAT16_HEADROOM
    largest = torch.where(largest == 0, 1.0, largest)
    return upstream / largest, largest


def _scaled_gradients(hidden: Any, weight: Any, bias: Any, job: Job, upstream: Any, needs: Any) -> Any:
    upstream, factor = _normal(upstream, hidden.dtype)
    _, found = run(hidden, weight, bias, job, upstream, needs)
    return [_scale(x, factor, hidden.dtype) for x in found]


def _scale(x: Any, factor: Any, dtype: Any) -> Any:
    """x · factor in place (None: 1), then in this dtype. Nothing is read where the factor is 1, and the host need not know."""
    if x is None:
        return None
    if factor is not None:
        _multiply(x, factor)
    return x.to(dtype)


def _multiply(x: Any, factor: Any) -> None:
    if x.is_cuda:
        try:
            from . import rows_triton
        except ImportError:
            pass
        else:
            rows_triton.multiply(x, factor)
            return
    x.mul_(factor)


def _differentiable(job: Job, hidden: Any, weight: Any, bias: Any, needs: Any, upstream: Any) -> Any:
    with torch.enable_grad():
        inputs = [x for x, need in zip((hidden, weight, bias), needs) if need]
        found = iter(torch.autograd.grad(job.formula(hidden, weight, bias), inputs, upstream, create_graph=True))
    return [next(found) if need else None for need in needs]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def outside_graphs(function: Callable[..., Any], *arguments: Any) -> Any:
    """torch.compile runs this as it is, between what it compiles."""
    return function(*arguments)


def loss(hidden: Any, weight: Any, bias: Any, row_weights: Any, job: Job) -> Any:
    """Σ row_weights · loss, which are a number for all or one a token; without them, one loss a token."""
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden, weight, bias))
    with torch.autocast(hidden.device.type, enabled=False):
        if not learns:
            values = run(hidden, weight, bias, job, None, (False, False, False))[0]
            return values if row_weights is None else _total(values, row_weights)
        if row_weights is None:
            return Losses.apply(hidden, weight, bias, job)
        return Loss.apply(hidden, weight, bias, row_weights, job)


def array_step(losses: Callable[[Any, slice], Any]) -> Step:
    """A step from losses of logits that PyTorch differentiates."""

    def step(logits: Any, part: slice, upstream: Any, out: Any) -> Any:
        if upstream is None:
            return losses(logits, part)
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            values = losses(leaf, part)
            (derivative,) = torch.autograd.grad(values, leaf, upstream.to(values.dtype))
        out.copy_(derivative)
        return values.detach()

    return step


def autocast_inputs(*arrays: Any) -> list[Any]:
    """As torch.autocast would hand them to a matmul."""
    device = arrays[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(arrays)
    dtype = torch.get_autocast_dtype(device)
    return [x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in arrays]

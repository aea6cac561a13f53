"""What can be wrong with the arguments of `linear_kl`, in one sentence each. Reads shapes and dtypes, never values."""

from __future__ import annotations

from typing import Any

from .._errors import InvalidOption, InvalidValue, one_of
from ._scaling import check_scaling, learns
from .sparse import TopK


def check_linear_options(
    temperature: Any, scale_t2: bool, softcap: Any, logit_scale: Any, logit_dtype: str, accumulate: str, impl: str
) -> None:  # fmt: skip
    if logit_dtype not in ("hidden", "float32"):
        raise InvalidOption(f"logit_dtype is {logit_dtype!r}: it must be 'hidden', the dtype of the hidden states, or 'float32'")
    one_of("impl", impl, ("auto", "array", "triton"))
    if accumulate not in ("float32", "weight"):
        raise InvalidOption(f"accumulate is {accumulate!r}: it must be 'float32' or 'weight', the weight's own dtype")
    check_scaling(temperature, scale_t2=scale_t2, softcap=softcap, logit_scale=logit_scale)
    if learns(temperature):
        raise InvalidOption("temperature asks for a gradient, and linear_kl has none for it: use kl_loss on logits, or detach it")


def check_linear_arrays(ops: Any, arrays: dict[str, Any], top: TopK | None, *, spread: bool) -> None:
    """`spread`: over ranks, of which one may have no categories; then all of them are to say so."""
    hidden, weight = arrays["hidden"], arrays["weight"]
    given = [name for name in ("teacher_logits", "teacher_hidden") if arrays[name] is not None]
    if len(given) + (top is not None) != 1:
        what = "none is given" if not given else f"{' and '.join([*given, *(['teacher'] if top is not None else [])])} are given"
        raise InvalidOption(f"pass one of teacher_logits, teacher (a TopK), or teacher_hidden with teacher_weight: {what}")
    if (arrays["teacher_hidden"] is None) != (arrays["teacher_weight"] is None):
        raise InvalidOption("teacher_hidden and teacher_weight go together: their product is the teacher's logits")
    if arrays["teacher_bias"] is not None and arrays["teacher_weight"] is None:
        raise InvalidOption("teacher_bias goes with teacher_hidden and teacher_weight: teacher_logits have it in them")
    for h, w, b in (("hidden", "weight", "bias"), ("teacher_hidden", "teacher_weight", "teacher_bias")):
        if arrays[w] is not None:
            _check_projection(h, w, b, arrays)
            if arrays[w].shape[0] == 0 and not spread:
                raise InvalidValue(f"{w} has no categories: its shape is {tuple(arrays[w].shape)}")
    if given:
        _same(given[0], arrays[given[0]].shape[:-1], "hidden", hidden.shape[:-1], "one teacher's row for each token")
    if arrays["bias"] is not None and ops.name == "PyTorch" and arrays["bias"].dtype != weight.dtype:
        raise InvalidValue(f"bias is {arrays['bias'].dtype} and weight {weight.dtype}: cast one of them")
    if ops.name == "PyTorch":
        for name, x in arrays.items():
            if name.startswith("teacher") and x is not None and x.requires_grad and not ops.is_constant(x):
                raise InvalidValue(f"{name} asks for a gradient, and linear_kl has none for the teacher: pass {name}.detach()")


def _check_projection(h: str, w: str, b: str, arrays: dict[str, Any]) -> None:
    hidden, weight, bias = arrays[h], arrays[w], arrays[b]
    if len(hidden.shape) == 0 or len(weight.shape) != 2:
        raise InvalidValue(
            f"{h} must have shape [..., width] and {w} [categories, width], not {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    _same(h, hidden.shape[-1:], w, weight.shape[-1:], "the widths; a weight has one row a category")
    if hidden.dtype != weight.dtype:
        raise InvalidValue(f"{h} is {hidden.dtype} and {w} {weight.dtype}: cast one of them")
    if bias is not None:
        _same(b, bias.shape, w, weight.shape[:1], "one entry a category")


def _same(name: str, shape: Any, other: str, expected: Any, what: str) -> None:
    known = len(shape) == len(expected) and all(n == m for n, m in zip(shape, expected) if isinstance(n, int) and isinstance(m, int))
    if not known:
        raise InvalidValue(f"{name} has {tuple(shape)} where {other} has {tuple(expected)}: {what}")

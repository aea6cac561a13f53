"""From what a caller passes to arrays of one framework, dtype and shape, with the category axes made explicit.

Reads forms, axes, labels and priors, and says in one sentence what is wrong with them. Values are judged in `_checks`.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._errors import InvalidOption, InvalidValue, WrongType
from ._ops import Array, common_ops, ops_of
from ._ops import numpy as numpy_ops
from ._pairs import LOG_FORMS, Spec

DTYPES = "float16, bfloat16, float32, float64 or an integer type"
FORMS = ("probs", "log_probs", "logits", "counts")


class Inputs(NamedTuple):
    """Arguments made uniform: arrays of one framework, broadcast against each other; axes counted from the front."""

    ops: Any
    names: tuple[str, ...]
    arrays: tuple[Array, ...]
    forms: tuple[str, ...]
    axes: tuple[int, ...]
    tolerances: tuple[float, ...]
    weights: Array | None
    scale: Array | None
    check: bool | None
    # float32 arguments that were widened: the result is to be float32 again.
    narrow: bool

    def spec(self, kind: str, parameter: float = 0.0) -> Spec:
        # Logs beside probabilities, and counts, need a log or a quotient that float32 would round.
        mixed = len({form in LOG_FORMS for form in self.forms}) > 1
        wide = mixed or "counts" in self.forms or not self.ops.exact_float32
        return Spec(kind, parameter, self.forms, self.axes, self.tolerances, wide)


_LARGEST = int(sys.float_info.max)


def is_number(x: Any) -> bool:
    """One that a float can hold."""
    if isinstance(x, int):
        return not isinstance(x, bool) and -_LARGEST <= x <= _LARGEST
    return isinstance(x, (float, np.number)) and not isinstance(x, np.complexfloating)


def shown(x: Any) -> str:
    """A number in an error."""
    if isinstance(x, int) and not is_number(x) and not isinstance(x, bool):
        return f"an integer of about 10^{int(x.bit_length() * math.log10(2))}, larger than any float"
    return repr(x)


def parse_form(form: Any, count: int, names: Sequence[str] = ("p", "q")) -> tuple[str, ...]:
    forms = (form,) * count if isinstance(form, str) else tuple(form) if isinstance(form, Sequence) else (form,)
    if len(forms) != count or not all(f in FORMS for f in forms):
        accepted = ", ".join(repr(f) for f in FORMS)
        extra = f", or a pair of these, for {names[0]} and for {names[1]}" if count == 2 else ""
        raise InvalidOption(f"form is {form!r}: it must be one of {accepted}{extra}")
    return forms


def _count_axes(n: int) -> str:
    return "1 axis" if n == 1 else f"{n} axes"


def parse_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    given = (axis,) if not isinstance(axis, (tuple, list)) else tuple(axis)
    if not given:
        raise InvalidOption("axis is empty: name the axis (or axes) that hold the categories")
    axes = []
    for a in given:
        if isinstance(a, bool) or not isinstance(a, (int, np.integer)):
            raise WrongType(f"axis is {axis!r}: it must be an int or a tuple of ints")
        if not -ndim <= a < ndim:
            raise InvalidOption(f"axis {a} is out of range: the arrays have {_count_axes(ndim)}")
        axes.append(int(a) % ndim)
    if len(set(axes)) != len(axes):
        raise InvalidOption(f"axis {axis!r} names the same axis twice")
    return tuple(sorted(axes))


def has_labels(x: Any) -> bool:
    return isinstance(x, Mapping) or (hasattr(x, "iloc") and x.ndim == 1)  # a pandas Series


def align(named: Sequence[tuple[str, Any]], forms: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Arrays over the union of the labels, in order of first appearance, and those labels. A label not there has probability 0."""
    for name, x in named:
        if not has_labels(x):
            other = next(n for n, y in named if has_labels(y))
            raise WrongType(
                f"{other} has labels and {name} ({type(x).__name__}) has none: pass both as mappings or Series, or both as arrays"
            )
        if not isinstance(x, Mapping) and not x.index.is_unique:
            twice = x.index[x.index.duplicated()][0]
            raise InvalidValue(f"{name} has the label {twice!r} twice: sum its rows first, e.g. {name}.groupby(level=0).sum()")
    tables = [dict(x.items()) for _, x in named]
    labels = list(dict.fromkeys(label for table in tables for label in table))
    arrays = []
    for (name, _), table, form in zip(named, tables, forms):
        for label, v in table.items():
            if isinstance(v, (str, bytes, np.complexfloating)) or not hasattr(v, "__float__") or np.ndim(v) > 0:
                raise WrongType(f"{name}[{label!r}] is {v!r}: labelled distributions hold one number a label")
            if isinstance(v, int) and not isinstance(v, bool) and not is_number(v):
                raise InvalidValue(f"{name}[{label!r}] is {shown(v)}")
        missing = -math.inf if form in LOG_FORMS else 0.0
        arrays.append(np.array([float(table.get(label, missing)) for label in labels]))
    return arrays, labels


def _refuse_what_is_no_array(name: str, x: Any) -> None:
    """One sentence for all frameworks about arguments that no framework reads as an array of numbers."""
    why, inner, above = None, x, 0
    while isinstance(inner, (list, tuple)) and len(inner) > 0 and not hasattr(inner, "_fields"):
        inner, above = inner[0], above + 1
    if isinstance(x, np.ma.MaskedArray):
        why = "is a masked array: pass its data, and the mask as weights (0 for rows to leave out)"
    elif hasattr(x, "iloc"):
        why = f"is a pandas {type(x).__name__}: pass {name}.to_numpy() (a Series, beside another, is aligned by label)"
    elif above == 0 and (x is None or isinstance(x, (str, bytes))):
        why = f"is {x!r}: it must be an array of numbers"
    elif inner is None or isinstance(inner, (str, bytes)):
        why = f"has dtype {np.asarray([inner]).dtype}: use {DTYPES}"
    elif isinstance(inner, (complex, np.complexfloating)):
        why = "is complex: probabilities are real numbers"
    elif hasattr(inner, "_fields"):
        why = f"is a {type(inner).__name__}: it must be an array of numbers"
    elif hasattr(x, "toarray") and hasattr(x, "nnz"):
        why = f"is a sparse matrix ({type(x).__name__}): pass {name}.toarray()"
    elif above > 0 and ops_of(inner) not in (None, numpy_ops):
        why = f"is a list of {ops_of(inner).name} arrays: stack them, so that it is one array"
    if why is not None:
        raise WrongType(f"{name} {why}")


def _as_float_array(ops: Any, name: str, x: Any, like: Any) -> Array:
    # Plain NumPy arrays skip these questions, which torch.compile cannot follow.
    if (
        isinstance(x, np.ma.MaskedArray)
        or not (isinstance(x, np.ndarray) or hasattr(x, "dtype"))
        or hasattr(x, "iloc")
        or hasattr(x, "nnz")
    ):
        _refuse_what_is_no_array(name, x)
    try:
        array = ops.asarray(x, like)
        if getattr(array.dtype, "kind", "") == "O":
            raise WrongType(f"it has dtype {array.dtype}")
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        array = ops.asarray(_from_large_integers(name, x, error), like)
    if ops.is_float(array):
        return array
    if not ops.is_integer(array):
        what = "is complex: probabilities are real numbers" if "complex" in str(array.dtype) else f"has dtype {array.dtype}: use {DTYPES}"
        raise WrongType(f"{name} {what}")
    return ops.astype(array, ops.default_float(array))


def _from_large_integers(name: str, x: Any, error: Exception) -> Array:
    """Integers that a framework's own integers cannot hold, as float64; anything else is an error, in the words of the framework."""
    made: Any = None
    if hasattr(x, "todense"):
        raise WrongType(f"{name} is sparse ({type(x).__name__}): pass {name}.todense()") from None
    if not hasattr(x, "dtype") and not isinstance(x, (list, tuple, int)):
        raise WrongType(f"{name} is a {type(x).__name__}: it must be an array of numbers") from None
    if not hasattr(x, "dtype") or (isinstance(x, np.ndarray) and x.dtype == object):
        with contextlib.suppress(ValueError):
            made = np.asarray(x, dtype=object)
    if made is None or made.size == 0 or not all(isinstance(v, (int, float, np.integer, np.floating)) for v in made.flat):
        if isinstance(x, np.ndarray):
            raise WrongType(f"{name} has dtype {x.dtype}: use {DTYPES}") from None
        raise InvalidValue(f"{name} cannot be read as an array of numbers: {error}") from error
    for v in made.flat:
        if isinstance(v, int) and not isinstance(v, bool) and not is_number(v):
            raise InvalidValue(f"{name} holds {shown(v)}") from None
    return made.astype(np.float64)


def places(ops: Any, name: str, x: Any, like: Array) -> Array:
    """An array of category numbers, checked."""
    _refuse_what_is_no_array(name, x)
    try:
        at = ops.indices(x, like)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InvalidValue(f"{name} cannot be read as an array of integers: {error}") from error
    if ops.is_float(at) or not ops.is_integer(at) or "bool" in str(at.dtype):
        raise WrongType(f"{name} have dtype {at.dtype}: they must be integers, the places of categories")
    return with_rank(name, at)


def float_arrays(ops: Any, named: Sequence[tuple[str, Any]], *, any_rank: bool = False) -> list[Array]:
    """Lists and numbers, and NumPy arrays beside another framework's, take the dtype and device of the first array that is at home."""
    like = next((x for _, x in named if ops_of(x) is ops and hasattr(x, "dtype")), None)
    arrays = [_as_float_array(ops, name, x, like) for name, x in named]
    if any_rank or not hasattr(ops, "same_sizes"):  # which only TensorFlow has, and only there is a rank unknown
        return arrays
    return [with_rank(name, x) for (name, _), x in zip(named, arrays)]


def widest_of(ops: Any, arrays: Sequence[Array]) -> Array:
    """The array whose dtype the result will have."""
    return next((x for x in arrays if x.dtype == ops.float64), arrays[0])


def has_rank(x: Array) -> bool:
    """False for a TensorFlow tensor whose number of axes is known only when the code runs."""
    return getattr(x.shape, "rank", 0) is not None


def with_rank(name: str, x: Array) -> Array:
    if not has_rank(x):
        raise InvalidValue(f"the number of axes of {name} is unknown: state it with tf.ensure_shape")
    return x


def left_pad(ops: Any, x: Array, ndim: int) -> Array:
    return ops.expand(x, tuple(range(ndim - len(x.shape)))) if len(x.shape) < ndim else x


def _known(n: Any) -> bool:
    return isinstance(n, int)


def _same_categories(names: Sequence[str], shapes: Sequence[Sequence[Any]], axes: tuple[int, ...]) -> None:
    for axis in axes:
        sizes = [shape[axis] for shape in shapes]
        if all(_known(n) for n in sizes) and len(set(sizes)) > 1:
            both = " and ".join(f"{name} has {n}" for name, n in zip(names, sizes))
            raise InvalidValue(
                f"{both} categories along axis {axis}, and categories never broadcast: pad the shorter side with probability 0, "
                "or give both sides labels (in mappings, pandas Series or label,value files), which are then aligned"
            )
        if 0 in sizes:
            raise InvalidValue(f"{names[0]} has no categories along axis {axis}")


def same_categories_when_run(ops: Any, arrays: Sequence[Array], axes: tuple[int, ...]) -> Sequence[Array]:
    """Sizes that TensorFlow does not know while it traces are compared when the code runs."""
    compare = getattr(ops, "same_sizes", None)
    unknown = [axis for axis in axes if any(x.shape[axis] is None for x in arrays)]
    return compare(arrays, unknown) if compare is not None and unknown else arrays


def must_broadcast(shapes: Sequence[Sequence[Any]], names: Sequence[str], what: str) -> None:
    if all(_known(n) for shape in shapes for n in shape):
        try:
            np.broadcast_shapes(*(tuple(shape) for shape in shapes))
        except ValueError:
            listed = " and ".join(f"{name} has shape {tuple(shape)}" for name, shape in zip(names, shapes))
            raise InvalidValue(f"{listed}: {what} do not broadcast") from None


def per_row(ops: Any, name: str, v: Any, x: Array, axes: tuple[int, ...], judge: Callable[[Any, Array], Array] | None = None) -> Array:
    """A number or an array over the batch, laid out so that it broadcasts against x. `judge` sees its values before that."""
    # Beside half precision they are float32, as all that is computed.
    dtype = ops.float64 if x.dtype == ops.float64 else ops.float32
    v = ops.astype(_as_float_array(ops, name, v, ops.astype(x, dtype) if ops.is_half(x) and ops_of(v) is not ops else x), dtype)
    batch = len(x.shape) - len(axes)
    shape = tuple(with_rank(name, v).shape)
    if len(shape) > batch:
        raise InvalidValue(
            f"{name} has shape {shape}: it must broadcast to the batch shape, which has {batch} ax{'i' if batch == 1 else 'e'}s"
        )
    v = v if judge is None else judge(ops, v)
    v = ops.expand(left_pad(ops, v, batch), axes)
    rows = [1 if i in axes else n for i, n in enumerate(x.shape)]
    if any(_known(n) and _known(m) and n not in (1, m) for n, m in zip(v.shape, rows)):
        expected = tuple(n for i, n in enumerate(x.shape) if i not in axes)
        raise InvalidValue(f"{name} has shape {shape}: it must broadcast to the batch shape, {expected}")
    return ops.rows_like(v, x, axes)


def weight_per_row(ops: Any, weights: Any, x: Array, axes: tuple[int, ...], check: bool | None = None) -> Array:
    return per_row(ops, "weights", weights, x, axes, lambda ops, weights: judged_weights(ops, weights, check))


def must_be_mask(mask: Any) -> None:
    """NaN would count in full, and so would -inf, which attention masks have for what is left out."""
    wrong = np.argwhere(~(mask >= 0))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        where = f" at {place[0] if len(place) == 1 else place}" if place else ""
        raise InvalidValue(f"mask holds {mask[place]}{where}: it must be 0 for what is left out, and 1 for what counts")


def judged_weights(ops: Any, weights: Array, check: bool | None = None) -> Array:
    """Weights that are negative, infinite or NaN raise where values can be looked at, and become NaN elsewhere."""
    if check is False or not (ops.can_look(weights) if check else ops.may_look(weights)):
        return ops.where((weights >= 0.0) & (weights < math.inf), weights, math.nan)
    found = np.asarray(ops.to_numpy(weights))
    if not (found.min(initial=0.0) >= 0.0 and found.max(initial=0.0) < math.inf):
        bad = tuple(int(i) for i in np.argwhere(~((found >= 0.0) & (found < math.inf)))[0])
        where = f" at {bad[0] if len(bad) == 1 else bad}" if bad else ""
        value = "inf in float32" if found[bad] == math.inf and found.dtype == np.float32 else f"{found[bad]:g}"  # it may have been less
        raise InvalidValue(f"weights hold {value}{where}: a weight must be a finite number of at least 0; a weight of 0 leaves its row out")
    return weights


# A temperature must be above the first bound and at most the second: the inverse of a subnormal number may be infinite.
_TEMPERATURES = {"float64": (2.0**-1022, 2.0**1023), "float32": (2.0**-126, 2.0**127)}


def check_temperature(temperature: Any, dtype: str = "float64") -> None:
    if not is_number(temperature):
        return
    if not 0 < temperature < math.inf:
        raise InvalidOption(f"temperature is {shown(temperature)}: it must be positive and finite")
    least, most = _TEMPERATURES[dtype]
    # NumPy's float32 would cast the bounds to float32, and an int may be larger than any float.
    if not least < (temperature if isinstance(temperature, int) else float(temperature)) <= most:
        raise InvalidOption(
            f"temperature is {shown(temperature)}, and {dtype} logits can only be divided by numbers between {least:.3g} and {most:.3g}"
        )


def row_temperature(ops: Any, temperature: Any, x: Array, axes: tuple[int, ...]) -> Array:
    """What divides the logits x, row by row; NaN where it is not positive and finite, which nobody looks at here."""
    dtype = "float64" if x.dtype == ops.float64 else "float32"
    check_temperature(temperature, dtype)
    temperature = per_row(ops, "temperature", temperature, x, axes)
    return ops.where((temperature > _TEMPERATURES[dtype][0]) & (temperature < math.inf), temperature, math.nan)


def inverse_temperature(ops: Any, temperature: Any, x: Array, axes: tuple[int, ...]) -> Array:
    """What multiplies them."""
    return 1.0 / row_temperature(ops, temperature, x, axes)


def _with_prior(ops: Any, x: Array, form: str, axes: tuple[int, ...], prior: float) -> Array:
    if form in LOG_FORMS:
        raise InvalidOption(f"prior needs form 'counts' or 'probs', not {form!r}")
    # Invalid numbers stay as they are, and keep out of the sum, where inf times 0 would be NaN.
    valid = (x >= 0.0) & (x < math.inf)
    safe = ops.where(valid, x, 0.0)
    if form == "counts":
        mixed = safe + prior
    else:
        categories, total = math.prod(x.shape[axis] for axis in axes), ops.sum(safe, axes)
        mixed = safe * (1.0 - prior) + ops.where(total < math.inf, total, 0.0) * (prior / categories)
    return ops.where(valid, mixed, x)


def _parse_prior(prior: Any, forms: Sequence[str]) -> float:
    if not (is_number(prior) and 0 <= prior < math.inf):
        raise InvalidOption(f"prior is {shown(prior)}: it must be a number ≥ 0 (pseudo-counts for counts, a share of uniform for probs)")
    if "probs" in forms and prior > 1:
        raise InvalidOption(f"prior is {prior!r}: for form 'probs' it is the share of uniform mixed in, between 0 and 1")
    return float(prior)


def prepare(
    named: Sequence[tuple[str, Any]],
    *,
    form: Any,
    axis: Any,
    weights: Any,
    temperature: Any,
    prior: Any,
    check: bool | None,
) -> Inputs:
    """The arguments of one call, made uniform."""
    names = tuple(name for name, _ in named)
    forms = parse_form(form, len(named), names)
    if check not in (None, True, False):
        raise InvalidOption(f"check is {check!r}: it must be None, True or False")
    check = None if check is None else bool(check)
    if any(has_labels(x) for _, x in named):
        named = list(zip(names, align(named, forms)[0]))
    ops = common_ops([*named, ("weights", weights), ("temperature", temperature)])
    arrays = float_arrays(ops, named)
    tolerances = tuple(math.inf if check is False else 5e-2 if ops.is_half(x) else 1e-3 for x in arrays)
    if ops is not numpy_ops:
        # Here rather than behind: gradients are then added up in float32 and rounded once. NumPy's are cast block by block.
        arrays = [ops.astype(x, ops.float32) if ops.is_half(x) else x for x in arrays]

    ndim = max(len(x.shape) for x in arrays)
    if ndim == 0:
        raise InvalidValue(f"{names[0]} is a single number: a distribution needs an axis of categories")
    narrow = False
    arrays = [left_pad(ops, x, ndim) for x in arrays]
    axes = parse_axes(axis, ndim)
    _same_categories(names, [x.shape for x in arrays], axes)
    must_broadcast([x.shape for x in arrays], names, "their batch axes")
    arrays = list(same_categories_when_run(ops, arrays, axes))
    if prior is not None:
        share = _parse_prior(prior, forms)
        # The sum rounds: in float64, where there is one.
        narrow = all(x.dtype == ops.float32 or ops.is_half(x) for x in arrays)
        arrays = [ops.astype(x, ops.widest(x)) for x in arrays]
        arrays = [_with_prior(ops, x, f, axes, share) for x, f in zip(arrays, forms)]
    if len(arrays) > 1:
        arrays = list(ops.broadcast(arrays))

    scale = None
    if temperature is not None and not (is_number(temperature) and temperature == 1):
        if any(f not in LOG_FORMS for f in forms):
            raise InvalidOption("temperature divides logits: it needs form 'logits' or 'log_probs'")
        scale = inverse_temperature(ops, temperature, widest_of(ops, arrays), axes)
    if weights is not None:
        weights = weight_per_row(ops, weights, widest_of(ops, arrays), axes, check)
        # Rows of weight 0 may hold anything; a harmless row in their place keeps it out of the derivatives.
        # NumPy's own `where` would make float64 of bfloat16 beside Python's number.
        arrays = [ops.astype(ops.where(weights == 0.0, 0.0 if f in LOG_FORMS else 1.0, x), x.dtype) for x, f in zip(arrays, forms)]
    return Inputs(ops, names, tuple(arrays), forms, axes, tolerances, weights, scale, check, narrow)

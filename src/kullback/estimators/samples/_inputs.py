"""Two samples as arrays on the host: rows are points, columns coordinates. What is wrong with them is said here, in one sentence.

Arrays of any framework are copied to NumPy, without their gradient: an estimate from neighbours has none. Nothing is estimated here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._errors import InvalidOption, InvalidValue, WrongType
from ..._ops import ops_of

Points = np.ndarray[Any, np.dtype[np.float64]]


class Samples(NamedTuple):
    """x is n × d and y is m × d. `labels` are the columns that held no numbers: their entries are codes."""

    x: Points
    y: Points
    labels: tuple[int, ...] = ()


def generator(rng: Any) -> np.random.Generator:
    """A Generator from one, from a seed, or, for None, from seed 0: the same data give the same estimate."""
    if rng is None or isinstance(rng, (int, np.integer, np.random.Generator, np.random.SeedSequence)):
        return np.random.default_rng(0 if rng is None else rng)
    raise WrongType(f"rng is a {type(rng).__name__}: pass a seed or a numpy.random.Generator")


def check_level(level: float) -> float:
    if not isinstance(level, (int, float)) or not 0.0 < level < 1.0:
        raise InvalidOption(f"level is {level!r}: it must lie between 0 and 1, e.g. 0.95")
    return float(level)


def check_k(k: int, n: int, m: int | None = None) -> int:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InvalidOption(f"k is {k!r}: the number of neighbours must be a whole number, 1 or more")
    if k >= n:
        raise InvalidOption(f"k is {k} and x has {n} rows, so a point has {n - 1} neighbours: lower k or bring more rows")
    if m is not None and k > m:
        raise InvalidOption(f"k is {k} and y has {m} rows: lower k or bring more rows")
    return int(k)


def _columns(name: str, value: Any, labels: list[Any] | None = None) -> list[np.ndarray[Any, Any]]:
    """The columns, of whatever types their entries have; of a frame those named."""
    if isinstance(value, np.ma.MaskedArray):
        raise WrongType(f"{name} is a masked array: drop the masked rows first, e.g. {name}[~{name}.mask.any(1)].data")
    if value is None or isinstance(value, (str, bytes, dict)):
        raise WrongType(f"{name} is {value!r:.60}: it must be an array, one row a point")
    labels = labels or _labels(value)
    if labels:
        # Column by column: one array of all would turn dates and numbers beside text into objects.
        columns = [np.asarray(value[label].to_numpy()) for label in labels]
        if len(columns[0]) == 0:
            raise InvalidValue(f"{name} is empty, of shape {value.shape}: there is nothing to estimate from")
        return [_plain_column(name, j, column) for j, column in enumerate(columns)]
    ops = ops_of(value)
    try:
        array: np.ndarray[Any, Any] = np.asarray(value if ops is None else ops.to_numpy(value))
        if array.dtype.kind in "US" and isinstance(value, (list, tuple)):
            array = np.asarray(value, dtype=object)  # numbers beside words stay numbers
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidValue(f"{name} cannot be read as an array of points: rows of different lengths? ({error})") from error
    if array.ndim == 0 and array.dtype.kind == "O":
        raise WrongType(f"{name} is a {type(value).__name__}: it must be an array or a list, one row a point")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InvalidValue(f"{name} has {array.ndim} axes: a sample has two, points × coordinates (or one, for d = 1)")
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidValue(f"{name} is empty, of shape {array.shape}: there is nothing to estimate from")
    return [_plain_column(name, j, column) for j, column in enumerate(array.T)]


def _labels(value: Any) -> list[Any] | None:
    """Names of the columns of a frame (pandas, polars, Arrow), if they tell them apart."""
    labels = getattr(value, "column_names", None) or getattr(value, "columns", None)
    if labels is None or not hasattr(value, "__getitem__"):
        return None
    return list(labels) if len(set(labels)) == len(labels) else None


def _plain_column(name: str, j: int, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Dates as numbers; complex numbers not at all."""
    if column.dtype.kind == "c":
        raise WrongType(f"{name} is complex: pass real and imaginary parts as two columns")
    if column.dtype.kind in "mM":
        if np.isnat(column).any():
            row = int(np.flatnonzero(np.isnat(column))[0])
            raise InvalidValue(f"{name} has NaT at row {row}, column {j}: drop such rows, or fill them in")
        return column.astype(f"{column.dtype.kind}8[us]").astype(np.int64)
    return column


def _both_columns(x: Any, y: Any) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Columns of frames are matched by name."""
    labels, other = _labels(x), _labels(y)
    if labels and other and len(labels) == len(other) and set(labels) != set(other):
        odd = next(c for c in labels if c not in set(other))
        raise InvalidValue(f"column {odd!r} of x is not in y: rename it, or pass x.to_numpy() and y.to_numpy() to match columns by place")
    same = labels is not None and other is not None and set(labels) == set(other)
    first, second = _columns("x", x, labels), _columns("y", y, labels if same else other)
    if len(first) != len(second):
        raise InvalidValue(f"x has {len(first)} columns and y {len(second)}: both samples must be points of the same space")
    return first, second


def _numbers(name: str, columns: list[np.ndarray[Any, Any]]) -> Points:
    numbers = np.empty((len(columns[0]), len(columns)))
    for j, column in enumerate(columns):
        try:
            numbers[:, j] = column
        except (ValueError, TypeError) as error:
            raise WrongType(f"{name} holds entries that are not numbers ({column.dtype}): {error}") from error
    bad = ~np.isfinite(numbers)
    if bad.any():
        row, j = np.argwhere(bad)[0]
        raise InvalidValue(
            f"{name} has {numbers[row, j]} at row {row}, column {j} ({np.any(bad, 1).sum()} such rows in all): drop them, or fill them in"
        )
    return numbers


def read_points(x: Any, y: Any) -> Samples:
    """Numbers only."""
    first, second = _both_columns(x, y)
    return Samples(_numbers("x", first), _numbers("y", second))


def read_one(x: Any) -> Points:
    return _numbers("x", _columns("x", x))


def read_any(x: Any, y: Any) -> Samples:
    """Numbers, and columns of labels (text, booleans), which become codes shared by both samples."""
    first, second = _both_columns(x, y)
    labels = []
    for j, (a, b) in enumerate(zip(first, second)):
        if a.dtype.kind in "iuf" and b.dtype.kind in "iuf":
            continue
        both = [*a.tolist(), *b.tolist()]
        # A NumPy array of text may hold numbers that were written out when it was made.
        if all(_is_number(v) for v in both) or (a.dtype.kind == b.dtype.kind == "U" and all(_reads_as_number(v) for v in both)):
            first[j], second[j] = a.astype(np.float64), b.astype(np.float64)
            continue
        missing = [i for i, v in enumerate(both) if v is None or type(v).__name__ in ("NAType", "NaTType") or v != v]
        if missing:
            name, row = ("x", missing[0]) if missing[0] < len(a) else ("y", missing[0] - len(a))
            where = f"{both[missing[0]]!r} at row {row}, column {j}"
            raise InvalidValue(f"{name} has {where}: drop such rows or give them a label of their own")
        codes = np.unique([str(v) for v in both], return_inverse=True)[1]
        first[j], second[j] = codes[: len(a)], codes[len(a) :]
        labels.append(j)
    return Samples(_numbers("x", first), _numbers("y", second), tuple(labels))


def _is_number(v: Any) -> bool:
    return isinstance(v, (int, float, np.number)) and not isinstance(v, bool)


def _reads_as_number(v: str) -> bool:
    try:
        float(v)
    except ValueError:
        return False
    return True


def is_constant(*samples: Points) -> Any:
    """Of each column, in all of these samples."""
    return np.all([np.all(sample == samples[0][:1], axis=0) for sample in samples], axis=0)


def in_range(*samples: Points) -> tuple[Any, ...]:
    """All times 2^−e, and e, such that squares neither overflow nor vanish; e is 0, and nothing is copied, in all usual units."""
    exponent = int(np.frexp(max(float(max(sample.max(), -sample.min())) for sample in samples))[1])
    if abs(exponent) <= 100:
        return (*samples, 0)
    return (*(np.ldexp(sample, -exponent) for sample in samples), exponent)


def refuse_constant_columns(x: Points, y: Points | None) -> None:
    """A column with one value has no density: distances ignore it, and the dimension must too."""
    for name, sample in (("x", x), ("y", y)):
        if sample is not None and len(sample) > 1:
            flat = np.flatnonzero(is_constant(sample))
            if len(flat):
                raise InvalidValue(
                    f"column {flat[0]} of {name} is constant ({sample[0, flat[0]]:g}): it has no density; drop it, or call from_samples, "
                    f"which knows what it means"
                )

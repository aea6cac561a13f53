"""Two samples as arrays on the host: rows are points, columns coordinates. What is wrong with them is said here, in one sentence.

Arrays of any framework are copied to NumPy, without their gradient: an estimate from neighbours has none. Nothing is estimated here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
    raise TypeError(f"rng is a {type(rng).__name__}: pass a seed or a numpy.random.Generator")


def check_level(level: float) -> float:
    if not isinstance(level, (int, float)) or not 0.0 < level < 1.0:
        raise ValueError(f"level is {level!r}: it must lie between 0 and 1, e.g. 0.95")
    return float(level)


def check_k(k: int, n: int, m: int | None = None) -> int:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k is {k!r}: the number of neighbours must be a whole number, 1 or more")
    if k >= n:
        raise ValueError(f"k is {k} and x has {n} rows: a point has only {n - 1} neighbours in its own sample; lower k or bring more rows")
    if m is not None and k > m:
        raise ValueError(f"k is {k} and y has {m} rows: lower k or bring more rows")
    return int(k)


def _table(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Rows × columns, of whatever type the entries have."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: drop the masked rows first, e.g. {name}[~{name}.mask.any(1)].data")
    if value is None or isinstance(value, (str, bytes, dict)):
        raise TypeError(f"{name} is {value!r:.60}: it must be an array, one row a point")
    ops = ops_of(value)
    try:
        on_host = value.to_numpy() if hasattr(value, "iloc") else value if ops is None else ops.to_numpy(value)
        array: np.ndarray[Any, Any] = np.asarray(on_host)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be read as an array of points: rows of different lengths? ({error})") from error
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise ValueError(f"{name} has {array.ndim} axes: a sample has two, points × coordinates (or one, for d = 1)")
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(f"{name} is empty, of shape {array.shape}: there is nothing to estimate from")
    if array.dtype.kind == "c":
        raise TypeError(f"{name} is complex: pass real and imaginary parts as two columns")
    return array


def _numbers(name: str, array: np.ndarray[Any, Any]) -> Points:
    try:
        numbers = array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{name} holds entries that are not numbers ({array.dtype}): {error}") from error
    bad = ~np.isfinite(numbers)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} has {numbers[row, column]} at row {row}, column {column} ({np.any(bad, 1).sum()} such rows in all): "
            f"drop them, or fill them in"
        )
    return np.ascontiguousarray(numbers)


def _same_width(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"x has {x.shape[1]} columns and y {y.shape[1]}: both samples must be points of the same space")


def read_points(x: Any, y: Any) -> Samples:
    """Numbers only."""
    first, second = _table("x", x), _table("y", y)
    _same_width(first, second)
    return Samples(_numbers("x", first), _numbers("y", second))


def read_one(x: Any) -> Points:
    return _numbers("x", _table("x", x))


def read_any(x: Any, y: Any) -> Samples:
    """Numbers, and columns of labels (text, booleans), which become codes shared by both samples."""
    first, second = _table("x", x), _table("y", y)
    _same_width(first, second)
    if first.dtype.kind in "iuf" and second.dtype.kind in "iuf":
        return Samples(_numbers("x", first), _numbers("y", second))
    columns, labels = [], []
    for j in range(first.shape[1]):
        both = np.concatenate([first[:, j], second[:, j]])
        if both.dtype.kind not in "iuf" and not all(isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in both):
            missing = [i for i, v in enumerate(both) if v is None or v != v]
            if missing:
                name, row = ("x", missing[0]) if missing[0] < len(first) else ("y", missing[0] - len(first))
                raise ValueError(
                    f"{name} has {both[missing[0]]!r} at row {row}, column {j}: drop such rows or give them a label of their own"
                )
            both = np.unique([str(v) for v in both], return_inverse=True)[1]
            labels.append(j)
        columns.append(both)
    table = (
        np.stack([np.asarray(c, dtype=object) for c in columns], 1) if not labels else np.stack([c.astype(np.float64) for c in columns], 1)
    )
    return Samples(_numbers("x", table[: len(first)]), _numbers("y", table[len(first) :]), tuple(labels))


def refuse_constant_columns(x: Points, y: Points | None) -> None:
    """A column with one value has no density: distances ignore it, and the dimension must too."""
    for name, sample in (("x", x), ("y", y)):
        if sample is not None and len(sample) > 1:
            flat = np.flatnonzero(np.ptp(sample, axis=0) == 0.0)
            if len(flat):
                raise ValueError(
                    f"column {flat[0]} of {name} is constant ({sample[0, flat[0]]:g}): it has no density; drop it, or call from_samples, "
                    f"which knows what it means"
                )

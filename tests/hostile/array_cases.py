"""Generated calls of the functions of arrays: every form, dtype, layout and option, with values from the edges of each.

A case is a JSON object, so that it can be stored and replayed: the function, the framework, arrays as texts of numbers with dtype and
layout, and the options. `generate` makes one of a seed, `run` judges it, `smaller` yields simpler cases for the search for the smallest
failure.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import judge
import ml_dtypes
import mpmath as mp
import numpy as np
from frames import FRAMES
from outcome import RIGHT, Outcome, failure, is_ours, of_exception

import kullback as kb

Case = dict[str, Any]

FUNCTIONS = ("kl", "js", "jeffreys", "renyi", "entropy", "cross_entropy", "rel_entr", "kl_div")
ELEMENTWISE = ("rel_entr", "kl_div")
INTEGERS = ("int64", "int32", "uint8")
ORDERS = (0.0, 0.3, 0.5, 0.999, 1.0, 1.0001, 1.0000001, 1 + 1e-9, 1 - 1e-12, 1 + 1e-15, 2.0, 3.0, 17.5, 1e5, 1e15, 1e-15, 1e-5, math.inf)


def numbers(values: Any) -> np.ndarray:
    """float64 of the texts of a case."""
    return np.array([float(v) for v in values], dtype=np.float64)


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def as_numpy(array: Case) -> np.ndarray:
    """The numbers as the dtype holds them, in a plain layout."""
    with np.errstate(all="ignore"):
        return numbers(array["values"]).astype(dtype_of(array["dtype"])).reshape(array["shape"])


def described(values: np.ndarray, dtype: str, layout: str) -> Case:
    if layout in ("zero-stride", "expanded") and values.ndim > 1 and len(values):
        values = np.broadcast_to(values[0], values.shape)
    return {
        "values": [repr(float(v)) for v in values.reshape(-1)],
        "shape": list(values.shape),
        "dtype": dtype,
        "layout": layout,
    }


# ---- numbers


def _near(rng: np.random.Generator, row: np.ndarray) -> np.ndarray:
    return row * (1 + 10.0 ** rng.uniform(-9, -0.5) * rng.uniform(-1, 1, row.shape))


def _probs(rng: np.random.Generator, k: int) -> np.ndarray:
    p = rng.dirichlet(np.full(k, 10.0 ** rng.uniform(-1.5, 1.0)))
    choice = rng.integers(12)
    if choice == 0:
        p = p * (rng.random(k) < 0.6)
    elif choice == 1:
        p[rng.integers(k)] = rng.choice([5e-324, 1e-310, 1e-40, 1e-300, 1e-38, 2e-308, -0.0])
    elif choice == 2:
        p = np.zeros(k)
        p[rng.integers(k)] = 1.0
    elif choice == 3:
        p = np.full(k, 1 / k)
    elif choice == 4:
        p = 10.0 ** rng.uniform(-30, 0, k)
    total = p.sum()
    p = p / total if total > 0 else np.full(k, 1 / k)
    if rng.random() < 0.15:
        p = p * rng.choice([1.0009, 0.9992, 1.0005])
    return p


def _logits(rng: np.random.Generator, k: int) -> np.ndarray:
    x = rng.normal(size=k) * 10.0 ** rng.uniform(-3, 1.5)
    choice = rng.integers(14)
    if choice == 0:
        x += rng.choice([100.0, -100.0, 1e4, -3e4])
    elif choice == 1:
        x[rng.random(k) < 0.4] = -np.inf
        if np.isinf(x).all():
            x[0] = 0.0
    elif choice in (2, 3):
        hidden = rng.random(k) < 0.4
        hidden[rng.integers(k)] = False
        x[hidden] = rng.choice([-1e9, -1e30, -3.4028234663852886e38, -65504.0, -1e4, -1e300])
    elif choice == 4:
        x *= 10.0 ** rng.uniform(1, 30)
    elif choice == 5:
        x *= 10.0 ** rng.uniform(-40, -3)
    elif choice == 6:
        x[rng.integers(k)] = rng.choice([5e-324, 1e-310, -0.0, 0.0, 700.0, 88.8, -745.0])
    return x


def _log_probs(rng: np.random.Generator, k: int) -> np.ndarray:
    x = _logits(rng, k)
    with np.errstate(all="ignore"):
        top = x.max()
        return x - (top + np.log(np.exp(x - top).sum()))


def _counts(rng: np.random.Generator, k: int) -> np.ndarray:
    x = np.floor(rng.exponential(10.0 ** rng.uniform(-0.5, 6), k))
    choice = rng.integers(10)
    if choice == 0:
        x = x * rng.choice([1e-301, 1e-20, 1e14, 1e30, 1e290])
    elif choice == 1:
        x = rng.exponential(1.0, k)
    elif choice == 2:
        x[rng.integers(k)] = rng.choice([0.0, -0.0, 1e-310, 1e300, 2.0**53])
    if x.sum() <= 0:
        x[rng.integers(k)] = 3.0
    return x


_ROWS = {"probs": _probs, "log_probs": _log_probs, "logits": _logits, "counts": _counts}


def _spoil(rng: np.random.Generator, row: np.ndarray) -> np.ndarray:
    row = row.copy()
    i = rng.integers(len(row))
    choice = rng.integers(7)
    if choice == 0:
        row[:] = rng.choice([0.0, -np.inf, np.inf, -1.0])
    elif choice == 1:
        row = row * rng.choice([1.5, 0.5, 7.3, -1.0])
    else:
        row[i] = rng.choice([np.nan, np.inf, -np.inf, -0.25, -1e-30, 1e308])
    return row


def _batch(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Batch shapes that mostly broadcast against each other."""
    whole = rng.choice([(), (), (1,), (2,), (3,), (2, 2), (0,), (2, 1)])
    found = []
    for _ in range(count):
        shape = tuple(1 if n > 1 and rng.random() < 0.12 else n for n in whole)
        found.append(shape[rng.randint(0, len(shape)) :] if rng.random() < 0.15 else shape)
    if rng.random() < 0.04:
        found[-1] = (5, *found[-1])[: max(1, len(found[-1]))]
    return found


def _layout(rng: random.Random, framework: str) -> str:
    return rng.choice(["plain"] * 3 + list(FRAMES[framework].layouts))


def _settle(case: Case) -> Case:
    """A list or a NumPy array needs a tensor beside it, and PyTorch does not differentiate inference tensors."""
    arrays = case["arrays"]
    for a in arrays:
        if a["layout"] == "numpy" and a["dtype"] == "bfloat16":
            a["layout"] = "plain"
    if case["framework"] != "numpy" and all(a["layout"] in ("list", "numpy") for a in arrays):
        arrays[0]["layout"] = "plain"
    if any(a["layout"] == "parameter" for a in arrays) or case["gradient"]:
        for a in arrays:
            a["layout"] = "plain" if a["layout"] == "inference" else a["layout"]
    return case


def generate(seed: int, framework: str) -> Case:
    rng, np_rng = random.Random(seed), np.random.default_rng(seed)
    frame = FRAMES[framework]
    function = rng.choice(frame.functions)
    if function in ELEMENTWISE:
        return _elementwise_case(rng, np_rng, framework, function)
    sides = 1 if function == "entropy" else 2
    forms = [rng.choice(["probs", "probs", "logits", "logits", "log_probs", "counts"])] * sides
    if sides == 2 and rng.random() < frame.mixed:
        forms = [rng.choice(judge_forms()) for _ in range(2)]
    shapes = _batch(rng, sides) if frame.shape is None else [frame.shape[:-1]] * sides
    k = rng.choice([1, 2, 2, 3, 4, 5, 8]) if frame.shape is None else frame.shape[-1]
    arrays, dtype = [], rng.choice(frame.dtypes)
    pristine = rng.random() < 0.75
    for i, (form, shape) in enumerate(zip(forms, shapes)):
        own = dtype if rng.random() < 0.85 else rng.choice(frame.dtypes)
        if form == "counts" and rng.random() < 0.3 and frame.integers:
            own = rng.choice(INTEGERS)
        rows = []
        for j in range(math.prod(shape)):
            row = _ROWS[form](np_rng, k)
            if i == 1 and form == forms[0] and form in ("probs", "logits") and rng.random() < 0.35 and shape == shapes[0]:
                first = numbers(arrays[0]["values"]).reshape(-1, k)[j]
                with np.errstate(all="ignore"):
                    row = _near(np_rng, first)
                    row = row / row.sum() if form == "probs" else row
            if not pristine and rng.random() < 0.4:
                row = _spoil(np_rng, row)
            rows.append(row)
        values = np.array(rows, dtype=np.float64).reshape(*shape, k)
        if own in INTEGERS:
            values = np.clip(np.nan_to_num(values, nan=0.0, posinf=9.0, neginf=-3.0), -3, 255)
            values = np.maximum(values, 0) if own == "uint8" else values
        arrays.append(described(values, own, _layout(rng, framework)))
    options = _options(rng, np_rng, function, forms, shapes, k, frame)
    gradient = frame.gradients and rng.random() < 0.3 and not any(a["dtype"] in INTEGERS for a in arrays)
    return _settle(
        {"kind": "arrays", "framework": framework, "function": function, "arrays": arrays, "options": options, "gradient": gradient}
    )


def judge_forms() -> list[str]:
    return ["probs", "log_probs", "logits", "counts"]


def _options(
    rng: random.Random, np_rng: np.random.Generator, function: str, forms: list[str], shapes: list[tuple[int, ...]], k: int, frame: Any
) -> Case:
    options: Case = {}
    options["form"] = forms[0] if len(set(forms)) == 1 else forms
    try:
        batch = np.broadcast_shapes(*shapes)
    except ValueError:
        batch = ()
    if function == "renyi":
        options["order"] = rng.choice(ORDERS) if frame.any_order else rng.choice([0.5, 2.0, 1.0001])
    if function == "js" and rng.random() < 0.3:
        options["mix"] = rng.choice([0.1, 0.5, 0.999, 1e-6])
    if rng.random() < frame.plain:
        return options
    if rng.random() < 0.25:
        options["reduction"] = rng.choice(["sum", "mean", "batchmean", "none"])
    if rng.random() < 0.15:
        options["base"] = rng.choice([2, 10, 2.718281828, 1.0000001, 1e300])
    if rng.random() < 0.1 and "reduction" not in options:
        options["keepdims"] = True
    if rng.random() < 0.25:
        shape = batch[rng.randint(0, len(batch)) :]
        weights = np_rng.choice([0.0, 1.0, 1.0, 0.5, 3.0, 1e-3, 1e10], shape)
        if rng.random() < 0.08:
            weights = np.asarray(np_rng.choice([1.0, -1.0, 2.0, np.nan, np.inf], shape))
        options["weights"] = described(np.asarray(weights), rng.choice(["float64", "float32"]), "plain")
    if all(form in judge.LOG_FORMS for form in forms) and rng.random() < 0.3:
        if rng.random() < 0.7:
            options["temperature"] = rng.choice([0.9, 2.0, 1.0, 0.07, 1e-3, 1e4, 1e-310, 1e300])
        else:
            options["temperature"] = described(np_rng.choice([0.5, 1.0, 0.9, 3.0], batch), "float64", "plain")
    if all(form not in judge.LOG_FORMS for form in forms) and rng.random() < 0.15:
        options["prior"] = rng.choice([0.5, 1.0, 0.0, 1e-9, 0.01])
    if rng.random() < 0.1:
        options["check"] = rng.choice([True, False])
    if rng.random() < 0.12 and k > 1 and frame.shape is None:
        options["move"] = rng.randint(0, max(map(len, shapes)))  # the categories come to this axis
    return options


def _elementwise_case(rng: random.Random, np_rng: np.random.Generator, framework: str, function: str) -> Case:
    frame = FRAMES[framework]
    shape = rng.choice([(), (1,), (4,), (2, 3), (0,)]) if frame.shape is None else frame.shape
    arrays = []
    dtype = rng.choice(frame.dtypes)
    for i in range(2):
        x = 10.0 ** np_rng.uniform(-3, 3, shape)
        choice = rng.randint(0, 5)
        if choice == 0:
            x = 10.0 ** np_rng.uniform(-300, 300, shape)
        elif choice == 1:
            x = np.asarray(np_rng.choice([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, -1.0, 5e-324, 1e-310, 1e308, 1e-40, 1e38], shape))
        elif choice == 2 and i == 1:
            x = _near(np_rng, numbers(arrays[0]["values"]).reshape(shape))
        arrays.append(described(np.asarray(x), dtype if rng.random() < 0.85 else rng.choice(frame.dtypes), _layout(rng, framework)))
    gradient = frame.gradients and rng.random() < 0.2
    return _settle({"kind": "arrays", "framework": framework, "function": function, "arrays": arrays, "options": {}, "gradient": gradient})


# ---- what must come out


class Expected:
    """`error`: it must be refused. `rows`: the truth of each row, with the error that is allowed."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.may_fail = False  # rounding decides whether a row is refused
        self.dtype = "float64"
        self.shape: tuple[int, ...] = ()
        self.values: list[Any] = []  # mpf, or NaN
        self.slack: list[float] = []
        self.invalid: list[bool] = []


def effective_dtypes(arrays: list[Case]) -> list[str]:
    """Lists are float64, and they, like NumPy's arrays beside another framework's, take the dtype of the first array that is at home."""
    guests = [a["layout"] == "numpy" or (a["layout"] == "list" and math.prod(a["shape"]) > 0) for a in arrays]
    home = next((a["dtype"] for a, guest in zip(arrays, guests) if not guest), None)
    found = []
    for a, guest in zip(arrays, guests):
        if guest and home is not None and home not in INTEGERS:
            found.append(home)
        else:
            found.append("float64" if guest and a["layout"] == "list" and a["dtype"] not in INTEGERS else a["dtype"])
    return found


def result_dtype(dtypes: list[str]) -> str:
    """float64 of float64 and of whole numbers; else float32."""
    return "float64" if {"float64", *INTEGERS} & set(dtypes) else "float32"


def expectation(case: Case) -> Expected:
    found = Expected()
    frame, options, function = FRAMES[case["framework"]], case["options"], case["function"]
    dtypes = effective_dtypes(case["arrays"])
    found.dtype = result_dtype(dtypes)
    with np.errstate(all="ignore"):
        exact = [as_numpy(a).astype(dtype_of(dtype)).astype(np.float64) for a, dtype in zip(case["arrays"], dtypes)]
    if function in ELEMENTWISE:
        return _expected_elements(found, exact, function, frame.flushes)
    forms = [options["form"]] * len(exact) if isinstance(options["form"], str) else list(options["form"])
    try:
        batch = np.broadcast_shapes(*(x.shape[:-1] for x in exact))
    except ValueError:
        found.error = "the batch axes do not broadcast"
        return found
    k = exact[0].shape[-1]
    rows = [np.broadcast_to(x, (*batch, k)).reshape(-1, k) for x in exact]
    count = math.prod(batch)
    weights, wrong = np.ones(count), np.zeros(count, bool)
    if "weights" in options:
        given = as_numpy(options["weights"]).astype(np.float64)
        weights = np.broadcast_to(given, batch).reshape(-1)
        wrong = ~((weights >= 0) & (weights < math.inf))
        if not ((given >= 0) & (given < math.inf)).all() and options.get("check") is not False:
            found.error = "weights are numbers from 0"
            return found
    temperatures = np.ones(count)
    if "temperature" in options:
        t = options["temperature"]
        t = np.asarray(as_numpy(t) if isinstance(t, dict) else t, np.float64)
        temperatures = np.broadcast_to(t, batch).reshape(-1)
        # One that the dtype rounds to 0 or to infinity, or whose inverse is, cannot be divided by, and may be refused.
        found.may_fail |= bool(((t < 1 / judge.LARGEST[found.dtype]) | (t > judge.LARGEST[found.dtype])).any())
    check = options.get("check")
    values, slack, invalid = [], [], []
    for i in range(count):
        if wrong[i]:
            values.append(math.nan), slack.append(0.0), invalid.append(False)
            continue
        if weights[i] == 0:
            values.append(mp.mpf(0)), slack.append(0.0), invalid.append(False)
            continue
        complaints = []
        for x, form, own in zip(rows, forms, dtypes):
            tolerance = math.inf if check is False else 5e-2 if own in ("float16", "bfloat16") else 1e-3
            complaints.append(judge.complaint([float(v) for v in x[i]], form, tolerance, options.get("prior")))
        if judge.INVALID in complaints or "unsure" in complaints:
            sure = judge.INVALID in complaints and "nan" not in complaints
            values.append(math.nan if sure or "nan" in complaints else None), slack.append(0.0), invalid.append(sure)
            found.may_fail |= not sure
        elif "nan" in complaints:
            values.append(math.nan), slack.append(0.0), invalid.append(False)
        elif found.dtype == "float32" and not 1 / judge.LARGEST["float32"] < temperatures[i] < judge.LARGEST["float32"]:
            values.append(None), slack.append(0.0), invalid.append(False)  # refused, or NaN where that is not to be looked at
        elif frame.flushes and any(0 < abs(float(v)) < judge.TINY[own] * 2 for x, own in zip(rows, wide(dtypes)) for v in x[i]):
            # docs/numerics.md: XLA, and TensorFlow on a CPU, take such numbers for zero.
            values.append(None), slack.append(0.0), invalid.append(False)
            found.may_fail = True
        else:
            value, allowed = _row(function, [x[i] for x in rows], forms, float(temperatures[i]), options, found.dtype, frame)
            # A value that overflows before its weight is applied may stay infinite.
            beyond = weights[i] < 1 and mp.isfinite(value) and abs(value) > judge.LARGEST[found.dtype]
            values.append(None if beyond else value), slack.append(allowed), invalid.append(False)
    if any(invalid) and check is not False:
        # Where nothing may be looked at, the row is NaN.
        if frame.looks:
            found.error = "a row that is no distribution"
            found.may_fail = (
                True if any(isinstance(v, float) and math.isnan(v) and not bad for v, bad in zip(values, invalid)) else found.may_fail
            )
        else:
            found.may_fail = True
    found.invalid = invalid
    _reduced(found, options, values, slack, weights, batch)
    return found


def _row(
    function: str, rows: list[Any], forms: list[str], temperature: float, options: Case, dtype: str, frame: Any
) -> tuple[mp.mpf, float]:
    """The truth of one row, and the absolute error that the documents allow."""
    plain = [[float(v) for v in row] for row in rows]
    parameter = options.get("order") if function == "renyi" else options.get("mix") if function == "js" else None
    with mp.workdps(judge.digits_for(plain, forms, temperature)):

        def truth(t: mp.mpf) -> mp.mpf:
            logs = [judge.log_normalised(row, form, t, options.get("prior")) for row, form in zip(plain, forms)]
            return judge.divergence(function, logs[0], logs[-1], parameter)

        value = truth(mp.mpf(temperature))
        if not mp.isfinite(value):
            return value, 0.0
        bound, epsilon = judge.VALUE_BOUND[dtype], judge.EPSILON[dtype]
        size = max(value, mp.mpf(judge.LEAST_KL))
        allowed = bound * size + judge.TINY[dtype]
        wide = dtype == "float32" and frame.double
        mixed = len({form in judge.LOG_FORMS for form in forms}) > 1
        if (mixed or "counts" in forms) and not wide and (mixed or not frame.double):
            # docs/numerics.md: a log or a quotient of this dtype rounds, by 2 eps max|log p| in the log-ratio.
            logs = [v for row, form in zip(plain, forms) for v in judge.log_normalised(row, form, mp.mpf(temperature), None)]
            most = max([abs(v) for v in logs if mp.isfinite(v)] or [mp.mpf(0)])
            allowed += 2 * epsilon * most * mp.sqrt(size)
        if options.get("prior") is not None:
            # Each sum with the prior rounds in float64 (JAX: float32), which moves each log-ratio by that much.
            rounding = judge.EPSILON["float64" if frame.double else dtype]
            allowed += 4 * rounding * mp.sqrt(size) + 4 * rounding**2
        if temperature != 1:
            # 1/T is rounded, and so is the product: the truth of temperatures two units to either side is right too.
            step = 1 + 2 * mp.mpf(epsilon)
            allowed += max(abs(truth(mp.mpf(temperature) * step) - value), abs(truth(mp.mpf(temperature) / step) - value))
        return value, judge.as_float(allowed)


def _reduced(found: Expected, options: Case, values: list[Any], slack: list[float], weights: Any, batch: tuple[int, ...]) -> None:
    scale = mp.mpf(1)
    if options.get("base") is not None:
        scale = 1 / mp.log(mp.mpf(options["base"]))
        # log(base) of a base near 1 is as good as float64 makes it, and that is all that a caller can ask.
    bound = judge.VALUE_BOUND[found.dtype]

    def times(v: Any, w: mp.mpf) -> Any:
        return v if v is None or (isinstance(v, float) and math.isnan(v)) else v * w

    def total(entries: list[Any]) -> Any:
        if any(v is None for v in entries):
            return None
        return math.nan if any(isinstance(v, float) and math.isnan(v) for v in entries) else mp.fsum(entries)

    exact = [mp.mpf(float(w)) if math.isfinite(w) else mp.mpf(1) for w in weights]
    values = [times(v, scale * w) if w != 0 else mp.mpf(0) for v, w in zip(values, exact)]
    slack = [judge.as_float(mp.mpf(s) * scale * w) for s, w in zip(slack, exact)]
    reduction = options.get("reduction", "none")
    if reduction == "none":
        found.values, found.slack, found.shape = values, slack, batch
        return
    divisor = mp.mpf(1)
    if reduction == "mean":
        divisor = mp.fsum(exact) if "weights" in options else mp.mpf(len(values))
        if divisor == 0 and "weights" in options:
            divisor = mp.mpf(1)
    elif reduction == "batchmean" and batch:
        divisor = mp.mpf(batch[0])
    whole = total(values)
    found.shape = ()
    if divisor == 0:
        found.values, found.slack = [math.nan], [0.0]
        return
    found.values = [times(whole, 1 / divisor)]
    found.slack = [
        judge.as_float((mp.fsum(slack) + bound * abs(whole if isinstance(whole, mp.mpf) and mp.isfinite(whole) else 0)) / divisor)
    ]


def wide(dtypes: list[str]) -> list[str]:
    """The dtypes in which arrays of these are computed."""
    return ["float64" if dtype in ("float64", *INTEGERS) else "float32" for dtype in dtypes]


def _expected_elements(found: Expected, exact: list[np.ndarray], function: str, flushes: bool) -> Expected:
    try:
        x, y = np.broadcast_arrays(*exact)
    except ValueError:
        found.error = "the shapes do not broadcast"
        return found
    found.shape = x.shape
    for a, b in zip(x.reshape(-1), y.reshape(-1)):
        truth = judge.elementwise(function, float(a), float(b))
        if flushes and (any(0 < abs(v) < 2 * judge.TINY["float32"] for v in (a, b)) or (truth is not None and abs(truth) < 1e-300)):
            truth = None
        found.values.append(truth)
        finite = truth is not None and mp.isfinite(truth)
        found.slack.append(judge.VALUE_BOUND[found.dtype] * abs(judge.as_float(truth)) + judge.TINY[found.dtype] if finite else 0.0)
        found.invalid.append(False)
    return found


# ---- running and judging


def run(case: Case) -> Outcome:
    frame = FRAMES[case["framework"]]
    expected = expectation(case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value, gradients = frame.call(case, getattr(kb, case["function"]))
    except Exception as error:
        wrong = is_ours(error)
        if wrong is not None:
            return failure(wrong)
        if expected.error is None and not expected.may_fail:
            return failure(f"right input was refused: {error}")
        return of_exception(error)
    if expected.error is not None and not expected.may_fail:
        return failure(f"{expected.error}, and there was no error but {np.asarray(value).tolist()!r}"[:400])
    wrong = wrong_value(value, expected, keepdims=case["options"].get("keepdims", False))
    if wrong is None and gradients is not None:
        wrong = wrong_gradient(case, gradients, expected)
    return Outcome(RIGHT) if wrong is None else failure(wrong)


def wrong_value(value: Any, expected: Expected, keepdims: bool = False) -> str | None:
    value = np.asarray(value)
    if value.dtype.name != expected.dtype:
        return f"the result is {value.dtype.name}, not {expected.dtype}"
    if keepdims and value.ndim == len(expected.shape) + 1 and 1 in value.shape:
        value = value.reshape(expected.shape) if value.size == math.prod(expected.shape) else value
    if value.shape != expected.shape:
        return f"the result has shape {value.shape}, not {expected.shape}"
    for i, (got, truth, slack) in enumerate(zip(value.reshape(-1).astype(np.float64), expected.values, expected.slack)):
        wrong = wrong_number(float(got), truth, slack, expected.dtype)
        if wrong is not None:
            return f"{wrong} (entry {i})"
    return None


def wrong_number(got: float, truth: Any, slack: float, dtype: str) -> str | None:
    if truth is None:
        return None
    if isinstance(truth, float) and math.isnan(truth):
        return None if math.isnan(got) else f"{got!r} where NaN is right"
    right = judge.as_float(truth)
    if math.isnan(got):
        return f"NaN where {right!r} is right"
    if got == right:
        return None
    if math.isinf(right) or abs(right) > judge.LARGEST[dtype] * (1 - judge.VALUE_BOUND[dtype]):
        big = judge.LARGEST[dtype] * (1 - judge.VALUE_BOUND[dtype])
        return (
            None
            if got == math.copysign(math.inf, right) or (not mp.isinf(truth) and abs(got) > big)
            else f"{got!r} where {right!r} is right"
        )
    off = abs(mp.mpf(got) - truth)
    if not off <= slack:
        return f"{got!r} where {mp.nstr(mp.mpf(truth), 17)} is right, off by {mp.nstr(off, 3)}, and {slack:.3g} is allowed"
    return None


def wrong_gradient(case: Case, gradients: list[Any], expected: Expected) -> str | None:
    """No NaN where the value is finite; and the truth, where the row lies inside the domain and nothing but the form is given."""
    arrays = case["arrays"]
    options = case["options"]
    fine = all(isinstance(v, mp.mpf) and mp.isfinite(v) and abs(v) < judge.LARGEST[expected.dtype] for v in expected.values)
    if not fine or case["function"] in ELEMENTWISE:
        return None
    for name, g in zip("pq", gradients):
        if g is not None and np.isnan(np.asarray(g, dtype=np.float64)).any():
            return f"the gradient to {name} holds NaN where the values are finite: {np.asarray(g).tolist()!r}"[:400]
    if set(options) - {"form", "order", "mix"} or len({a["dtype"] for a in arrays}) > 1 or arrays[0]["dtype"] in ("float16", "bfloat16"):
        return None
    if not isinstance(options["form"], str) or len({tuple(a["shape"]) for a in arrays}) > 1 or any(a["layout"] == "list" for a in arrays):
        return None
    form, k = options["form"], arrays[0]["shape"][-1]
    rows = [as_numpy(a).astype(np.float64).reshape(-1, k) for a in arrays]
    parameter = options.get("order") if case["function"] == "renyi" else options.get("mix")
    for i in range(len(rows[0])):
        row = [[float(v) for v in x[i]] for x in rows]
        flat = [v for r in row for v in r]
        if not all(map(math.isfinite, flat)) or (form not in judge.LOG_FORMS and min(flat) <= 0) or (parameter in (0.0, math.inf)):
            continue
        with mp.workdps(min(judge.digits_for(row, [form] * len(row), 1.0), 400)):
            for which, g in enumerate(gradients):
                if g is None:
                    continue
                truth = _differences(case["function"], row, form, parameter, which)
                got = [mp.mpf(float(v)) for v in np.asarray(g, dtype=np.float64).reshape(-1, k)[i]]
                off = mp.sqrt(mp.fsum((a - b) ** 2 for a, b in zip(got, truth)))
                size = mp.sqrt(mp.fsum(b**2 for b in truth))
                if size > judge.LARGEST[expected.dtype] / 4:
                    continue
                # A gradient is of the size of the square root of its KL.
                allowed = judge.GRADIENT_BOUND[expected.dtype] * max(size, mp.sqrt(judge.LEAST_KL)) + judge.TINY[expected.dtype] * k
                if not off <= allowed:
                    return (
                        f"the gradient to {'pq'[which]} of row {i} is {[mp.nstr(v, 9) for v in got]} where "
                        f"{[mp.nstr(v, 9) for v in truth]} is right: off by {mp.nstr(off / (size or 1), 3)} of its size"
                    )
    return None


def _differences(function: str, rows: list[list[float]], form: str, parameter: float | None, which: int) -> list[mp.mpf]:
    """Symmetric differences, with a third more digits than the step takes away."""
    found = []
    with mp.extradps(mp.mp.dps):
        for j in range(len(rows[which])):
            x = mp.mpf(rows[which][j])
            # Of a mask of -1e300, a share of 1e-100 would not be small.
            h = (abs(x) if form not in judge.LOG_FORMS else mp.mpf(1)) * mp.mpf(10) ** (-mp.mp.dps // 4)
            h = h if h else mp.mpf(10) ** (-mp.mp.dps // 4)
            ends = []
            for sign in (1, -1):
                moved: list[list[Any]] = [[mp.mpf(v) for v in row] for row in rows]
                moved[which][j] = x + sign * h
                logs = [judge.log_normalised(row, form, mp.mpf(1), None) for row in moved]
                ends.append(judge.divergence(function, logs[0], logs[-1], parameter))
            found.append((ends[0] - ends[1]) / (2 * h))
    return found


# ---- smaller cases


def smaller(case: Case) -> Iterator[Case]:
    """Simpler cases, the boldest steps first."""

    def changed(**changes: Any) -> Case:
        return {**copy.deepcopy(case), **changes}

    for name in [name for name in case["options"] if name not in ("form", "order")]:
        yield changed(options={n: copy.deepcopy(v) for n, v in case["options"].items() if n != name})
    if case["gradient"]:
        yield changed(gradient=False)
    arrays = case["arrays"]
    for i, a in enumerate(arrays):
        if a["layout"] != "plain":
            simpler = changed()
            simpler["arrays"][i]["layout"] = "plain"
            yield simpler
    elementwise = case["function"] in ELEMENTWISE
    # One row (or entry) of the broadcast arrays alone.
    dependent = any(isinstance(case["options"].get(name), dict) for name in ("weights", "temperature"))
    try:
        batch = np.broadcast_shapes(*(tuple(a["shape"] if elementwise else a["shape"][:-1]) for a in arrays))
    except ValueError:
        batch = ()
    if batch and not dependent:
        full = [
            np.broadcast_to(np.array(a["values"], dtype=object).reshape(a["shape"]), (*batch, *([] if elementwise else a["shape"][-1:])))
            for a in arrays
        ]
        for index in itertools.product(*map(range, batch)):
            one = changed()
            for a, f in zip(one["arrays"], full):
                a["values"], a["shape"] = list(np.asarray(f[index], dtype=object).reshape(-1)), ([] if elementwise else [a["shape"][-1]])
            one["options"].pop("move", None)
            yield one
    if not elementwise and len({a["shape"][-1] for a in arrays}) == 1 and arrays[0]["shape"][-1] > 1:
        for j in range(arrays[0]["shape"][-1]):
            less = changed()
            for a in less["arrays"]:
                kept = np.delete(np.array(a["values"], dtype=object).reshape(a["shape"]), j, axis=-1)
                a["values"], a["shape"] = list(kept.reshape(-1)), list(kept.shape)
            yield less
    for i, a in enumerate(arrays):
        for j, text in enumerate(a["values"]):
            v = float(text)
            for simple in (0.0, 1.0, 0.5, round(v, 1) if math.isfinite(v) else v, float(f"{v:.2g}")):
                if repr(simple) != text and len(repr(simple)) < len(text):
                    plain = changed()
                    plain["arrays"][i]["values"][j] = repr(simple)
                    yield plain


def command(case: Case) -> str:
    """The call, as a person would type it."""
    parts = [f"{a['dtype']}{'' if a['layout'] == 'plain' else ' ' + a['layout']} {as_numpy(a).tolist()}" for a in case["arrays"]]
    options = {n: (as_numpy(v).tolist() if isinstance(v, dict) else v) for n, v in case["options"].items()}
    return f"{case['framework']}: {case['function']}({', '.join(parts)}, {', '.join(f'{n}={v!r}' for n, v in options.items())})"

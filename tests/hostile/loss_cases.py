"""Generated calls of the losses: dense and sparse distillation, token terms, policy penalties, with their masks, temperatures and edges."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import judge
import mpmath as mp
import numpy as np
from array_cases import _logits, _near, as_numpy, described, wrong_number
from frames import FRAMES
from outcome import RIGHT, Outcome, failure, is_ours, of_exception

from kullback import losses

Case = dict[str, Any]

DIRECTIONS = ("forward", "reverse", "js", "skew", "reverse_skew")
# e^88 is the largest power that float32 holds: log-ratios beyond these are out of the range of every estimate.
MOST = {"float32": 80.0, "float64": 700.0}
# Above this log-ratio k3, whose gradient is useless there, may be clipped as in the documents of the losses, or refused.
LARGEST_RATIO = 19.9


def generate(seed: int, framework: str) -> Case:
    rng, np_rng = random.Random(seed), np.random.default_rng(seed)
    return rng.choice([_kl_loss, _kl_loss, _kl_loss, _token_terms, _policy, _policy])(rng, np_rng, framework)


def _kl_loss(rng: random.Random, np_rng: np.random.Generator, framework: str) -> Case:
    k, shape = rng.choice([1, 2, 3, 5, 8]), rng.choice([(), (1,), (3,), (2, 2), (0,)])
    dtype = rng.choice(["float32", "float64", "float16"])
    n = math.prod(shape)
    student = np.array([_logits(np_rng, k) for _ in range(n)]).reshape(*shape, k)
    with np.errstate(all="ignore"):
        near = _near(np_rng, student) if rng.random() < 0.3 else np.array([_logits(np_rng, k) for _ in range(n)]).reshape(*shape, k)
    if rng.random() < 0.08 and n:
        near[..., np_rng.integers(k)] = np_rng.choice([np.nan, np.inf])
    arrays = [
        described(
            x, dtype, rng.choice(["plain"] * 3 + [name for name in FRAMES[framework].layouts if name not in ("inference", "list", "numpy")])
        )
        for x in (student, near)
    ]
    direction = rng.choice(DIRECTIONS)
    options: Case = {"direction": direction}
    if direction not in ("forward", "reverse") and rng.random() < 0.5:
        options["mix"] = rng.choice([0.5, 0.9, 0.01])
    if rng.random() < 0.4:
        options["temperature"] = rng.choice([2.0, 0.9, 0.07, 1.0, 100.0])
        if rng.random() < 0.4:
            options["scale_t2"] = True
    if rng.random() < 0.12:
        options["softcap"] = rng.choice([30.0, 5.0])
    if rng.random() < 0.1:
        options["logit_scale"] = rng.choice([0.0625, 2.0])
    if rng.random() < 0.3:
        weights = np_rng.choice([0.0, 1.0, 1.0, 0.5], shape)
        if rng.random() < 0.15:
            weights = np.asarray(np_rng.choice([-1.0, 1.0, np.nan], shape))
        options["weights"] = described(np.asarray(weights), "float32", "plain")
    if rng.random() < 0.5:
        options["reduction"] = rng.choice(["mean", "sum", "batchmean", "none"])
    if rng.random() < 0.15:
        options["valid"] = rng.randint(1, k)
    return {"kind": "losses", "framework": framework, "function": "kl_loss", "arrays": arrays, "options": options}


def _token_terms(rng: random.Random, np_rng: np.random.Generator, framework: str) -> Case:
    k, n = rng.choice([1, 2, 5]), rng.choice([1, 2, 4, 0])
    dtype = rng.choice(["float32", "float64"])
    logits, reference = (np.array([_logits(np_rng, k) for _ in range(n)]).reshape(n, k) for _ in range(2))
    tokens = np_rng.integers(k, size=n)
    if rng.random() < 0.1 and n:
        tokens[0] = rng.choice([-1, k, -100])
    options: Case = {}
    if rng.random() < 0.3:
        options["temperature"] = rng.choice([2.0, 0.5])
    if rng.random() < 0.3:
        options["mask"] = described(np_rng.integers(2, size=n).astype(float), "float32", "plain")
    arrays = [described(x, dtype, "plain") for x in (logits, reference)] + [described(tokens.astype(float), "int64", "plain")]
    return {"kind": "losses", "framework": framework, "function": "token_terms", "arrays": arrays, "options": options}


def _policy(rng: random.Random, np_rng: np.random.Generator, framework: str) -> Case:
    shape, dtype = rng.choice([(3,), (2, 3), (1,), (2, 0)]), rng.choice(["float32", "float64"])
    size = rng.choice([1e-3, 1.0, 20.0, 60.0])
    logp = -np.abs(np_rng.normal(size=shape)) * size
    reference = np.minimum(logp + np_rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 1.2), 0.0)
    if rng.random() < 0.15 and logp.size:
        reference.reshape(-1)[np_rng.integers(logp.size)] = np_rng.choice([-np.inf, 0.0, -1000.0, np.nan])
    function = rng.choice(["policy_kl", "policy_kl", "grpo", "kimi_k15"])
    options: Case = {}
    if function == "policy_kl":
        options["kind"] = rng.choice(["k1", "k2", "k3", "abs"])
        options["gradient"] = rng.choice(["exact", "as_written"])
    if rng.random() < 0.5:
        options["mask"] = described(np_rng.integers(2, size=shape).astype(float), "float32", "plain")
    if rng.random() < 0.6:
        options["reduction"] = rng.choice(["none", "sum", "mean", "batchmean"] + ["sequence_mean"] * (function != "kimi_k15"))
    arrays = [described(x, dtype, "plain") for x in (logp, reference)]
    return {"kind": "losses", "framework": framework, "function": function, "arrays": arrays, "options": options}


# ---- the truth


class Expected:
    def __init__(self, shape: tuple[int, ...] = (), error: str | None = None, may_fail: bool = False) -> None:
        self.error, self.may_fail, self.shape = error, may_fail, shape
        self.values: list[Any] = []
        self.slack: list[float] = []


def expectation(case: Case) -> Expected:
    return {"kl_loss": _expected_kl_loss, "token_terms": _expected_terms}.get(case["function"], _expected_policy)(case)


def _dtype(case: Case) -> str:
    return "float64" if case["arrays"][0]["dtype"] == "float64" else "float32"


def _weights(options: Case, name: str, shape: tuple[int, ...]) -> list[float]:
    given = as_numpy(options[name]).astype(float) if name in options else np.ones(())
    return [float(w) for w in np.broadcast_to(given, shape).reshape(-1)]


def _reduce(
    found: Expected, values: list[Any], slack: list[float], weights: list[float], reduction: str, shape: tuple[int, ...], dtype: str
) -> Expected:
    """As docs/losses.md has it: what has weight 0 does not count, whatever it is."""
    values = [mp.mpf(0) if w == 0 else v if v is None or mp.isnan(v) else v * mp.mpf(w) for v, w in zip(values, weights)]
    slack = [0.0 if w == 0 else s * w for s, w in zip(slack, weights)]
    if reduction == "none":
        found.values, found.slack, found.shape = values, slack, shape
        return found
    total = None if any(v is None for v in values) else math.nan if any(mp.isnan(v) for v in values) else mp.fsum(values)
    divisor, found.shape = mp.mpf(1), ()
    if reduction == "mean":
        divisor = mp.fsum(map(mp.mpf, weights))
    elif reduction == "batchmean" and shape:
        divisor = mp.mpf(shape[0])
    if not values:
        found.values, found.slack = [None], [0.0]  # the mean of nothing is NaN or 0
        return found
    divisor = divisor or mp.mpf(1)
    found.values = [total if total is None or mp.isnan(total) else total / divisor]
    sizes = mp.fsum(abs(v) for v in values if v is not None and mp.isfinite(v))
    found.slack = [judge.as_float((mp.fsum(slack) + judge.VALUE_BOUND[dtype] * sizes) / divisor)]
    return found


def _expected_kl_loss(case: Case) -> Expected:
    options, dtype = case["options"], _dtype(case)
    student, teacher = (as_numpy(a).astype(np.float64) for a in case["arrays"])
    shape, k = student.shape[:-1], student.shape[-1]
    found = Expected(shape)
    weights = _weights(options, "weights", shape)
    if any(w < 0 or math.isnan(w) for w in weights):
        found.error = "weights are numbers from 0"
        return found
    valid, t = options.get("valid", k), options.get("temperature", 1.0)
    values, slack = [], []
    for s, w, q in zip(student.reshape(-1, k), weights, teacher.reshape(-1, k)):
        if w == 0:
            values.append(mp.mpf(0)), slack.append(0.0)
            continue
        rows = [[float(v) for v in x[:valid]] for x in (q, s)]
        complaints = [judge.complaint(row, "logits", math.inf) for row in rows]
        if judge.INVALID in complaints:
            # A softcap makes a number of +inf, which nobody has promised.
            found.may_fail = True
            open_ = "nan" in complaints or "softcap" in options
            found.error = found.error if open_ else "a row that is no distribution"
            values.append(None), slack.append(0.0)
            continue
        if "nan" in complaints:
            values.append(math.nan), slack.append(0.0)
            continue
        value, allowed = _one_loss(rows, options, t, dtype)
        values.append(value), slack.append(allowed)
    return _reduce(found, values, slack, weights, options.get("reduction", "mean"), shape, dtype)


def _one_loss(rows: list[list[float]], options: Case, t: float, dtype: str) -> tuple[mp.mpf, float]:
    scale, cap = mp.mpf(options.get("logit_scale", 1.0)), options.get("softcap")
    with mp.workdps(judge.digits_for(rows, ["logits"] * 2, t)):
        changed = [[v * scale if math.isfinite(v) else mp.mpf(v) for v in map(mp.mpf, row)] for row in rows]
        if cap is not None:
            # -inf stays absent.
            changed = [[cap * mp.tanh(v / cap) if mp.isfinite(v) else v for v in row] for row in changed]

        def truth(temperature: mp.mpf) -> mp.mpf:
            p, q = (judge.log_normalised(row, "logits", temperature, None) for row in changed)
            direction, mix = options["direction"], options.get("mix")
            if direction == "forward":
                return judge.kl(p, q)
            if direction == "reverse":
                return judge.kl(q, p)
            share = mp.mpf((0.5 if direction == "js" else 0.1) if mix is None else mix)
            if direction == "js":  # mix·KL(T‖M) + (1 − mix)·KL(S‖M), M = mix·T + (1 − mix)·S
                return judge.js(p, q, 1 - share)
            return judge.skew(p, q, 1 - share) if direction == "skew" else judge.skew(q, p, 1 - share)

        value = truth(mp.mpf(t))
        squared = mp.mpf(t) ** 2 if options.get("scale_t2") else mp.mpf(1)
        if not mp.isfinite(value):
            return value, 0.0
        epsilon, size = judge.EPSILON[dtype], max(value, mp.mpf(judge.LEAST_KL))
        allowed = judge.VALUE_BOUND[dtype] * size + judge.TINY[dtype]
        if t != 1:  # 1/T and the product are rounded
            step = 1 + 2 * mp.mpf(epsilon)
            allowed += max(abs(truth(mp.mpf(t) * step) - value), abs(truth(mp.mpf(t) / step) - value))
        if cap is not None or scale != 1:
            # Scaled and capped logits are arrays like any others: each is rounded, which moves the log-ratio by that.
            most = max(abs(v) for row in changed for v in row if mp.isfinite(v)) / mp.mpf(t)
            allowed += 4 * epsilon * most * mp.sqrt(size) + (4 * epsilon * most) ** 2
        return value * squared, judge.as_float(allowed * squared)


def _expected_terms(case: Case) -> Expected:
    options, dtype = case["options"], _dtype(case)
    x, y = (as_numpy(a).astype(np.float64) for a in case["arrays"][:2])
    tokens = as_numpy(case["arrays"][2])
    k, n = x.shape[-1], len(x)
    found = Expected((n,))
    kept = [w != 0 for w in _weights(options, "mask", (n,))]
    if any(keep and not 0 <= t < k for keep, t in zip(kept, tokens)):
        found.error = "a token that is no category"
        return found
    t = mp.mpf(options.get("temperature", 1.0))
    for p_row, q_row, keep in zip(x, y, kept):
        rows = [[float(v) for v in row] for row in (p_row, q_row)]
        if not keep:
            found.values.append(mp.mpf(0)), found.slack.append(0.0)
            continue
        if any(judge.complaint(row, "logits", math.inf) for row in rows):
            found.may_fail = True
            found.values.append(None), found.slack.append(0.0)
            continue
        with mp.workdps(judge.digits_for(rows, ["logits"] * 2, float(t))):
            p, q = (judge.log_normalised(row, "logits", t, None) for row in rows)
            value = judge.kl(p, q)
            size = max(value, mp.mpf(judge.LEAST_KL)) if mp.isfinite(value) else mp.mpf(0)
            found.values.append(value)
            found.slack.append(judge.as_float(judge.VALUE_BOUND[dtype] * size * (20 if t != 1 else 1) + judge.TINY[dtype]))
    return found


def _expected_policy(case: Case) -> Expected:
    options, dtype, function = case["options"], _dtype(case), case["function"]
    logp, reference = (as_numpy(a).astype(np.float64) for a in case["arrays"])
    shape = logp.shape
    kept = _weights(options, "mask", shape)
    default = {"policy_kl": "mean", "grpo": "sequence_mean", "kimi_k15": "mean"}[function]
    reduction = options.get("reduction", default)
    found = Expected(shape)
    values, slack = [], []
    bound = judge.VALUE_BOUND[dtype]
    kind = options.get("kind", "k3")
    for a, b, keep in zip(logp.reshape(-1), reference.reshape(-1), kept):
        if keep == 0:
            values.append(mp.mpf(0)), slack.append(0.0)
        elif math.isnan(b):
            values.append(math.nan), slack.append(0.0)
        elif math.isinf(b) or abs(b - a) > MOST[dtype] or (b - a > LARGEST_RATIO and kind == "k3"):
            # Beyond the range that is documented: a number or an error, but no NaN.
            values.append(None), slack.append(0.0)
            found.may_fail = True
        else:
            with mp.workdps(60):
                l = mp.mpf(float(b)) - mp.mpf(float(a))
                k1, k2 = -l, l * l / 2
                value = {"k1": k1, "k2": k2, "k3": mp.expm1(l) - l, "abs": abs(l)}[kind if function != "kimi_k15" else "k1"]
                # l is a difference of two numbers of the dtype, which rounds by half a unit of itself.
                extra = 2 * judge.EPSILON[dtype] * abs(l) * (1 + mp.exp(l))
                (
                    values.append(value),
                    slack.append(judge.as_float(bound * abs(value) + judge.TINY[dtype] + (extra if kind == "k3" and l > 1 else 0))),
                )
    if function == "kimi_k15" or reduction in ("sequence_mean", "batchmean"):
        return _over_sequences(found, case, values, slack, kept, reduction, shape, dtype)
    return _reduce(found, values, slack, kept, reduction, shape, dtype)


def _over_sequences(
    found: Expected,
    case: Case,
    values: list[Any],
    slack: list[float],
    kept: list[float],
    reduction: str,
    shape: tuple[int, ...],
    dtype: str,
) -> Expected:
    length = shape[-1]
    if length == 0 or any(v is None for v in values):
        found.values, found.slack = [None] * (math.prod(shape[:-1]) if reduction == "none" else 1), [0.0]
        found.slack *= len(found.values)
        found.shape = shape[:-1] if reduction == "none" else ()
        return found
    rows = [values[i : i + length] for i in range(0, len(values), length)]
    off = [mp.fsum(slack[i : i + length]) for i in range(0, len(values), length)]
    counts = [sum(kept[i : i + length]) for i in range(0, len(values), length)]
    sums = [math.nan if any(mp.isnan(v) for v in row) else mp.fsum(row) for row in rows]
    if case["function"] == "kimi_k15":
        sizes = [mp.fsum(abs(v) for v in row) if not mp.isnan(s) else mp.mpf(0) for row, s in zip(rows, sums)]
        off = [
            abs(s) * (o + 8 * judge.EPSILON[dtype] * z) + (o + 8 * judge.EPSILON[dtype] * z) ** 2 if not mp.isnan(s) else mp.mpf(0)
            for s, o, z in zip(sums, off, sizes)
        ]
        sums = [s if mp.isnan(s) else s * s / 2 for s in sums]
        any_token = [float(c > 0) for c in counts]
        return _reduce(
            found,
            sums,
            [judge.as_float(o) for o in off],
            any_token if reduction == "mean" else [1.0] * len(sums),
            reduction,
            shape[:-1],
            dtype,
        )
    bound = judge.VALUE_BOUND[dtype]
    sizes = [mp.fsum(abs(v) for v in row) if not mp.isnan(s) else mp.mpf(0) for row, s in zip(rows, sums)]
    if reduction == "sequence_mean":
        sums = [s if mp.isnan(s) else s / (c or 1) for s, c in zip(sums, counts)]
        off = [o / (c or 1) for o, c in zip(off, counts)]
        sizes = [z / (c or 1) for z, c in zip(sizes, counts)]
        # Responses without a token are left out of the mean.
        kept_rows = [float(c > 0) for c in counts]
        total = mp.fsum(s for s in sums if not mp.isnan(s)) if not any(mp.isnan(s) for s in sums) else math.nan
        n = sum(kept_rows) or 1
    else:
        total, n = (math.nan if any(mp.isnan(s) for s in sums) else mp.fsum(sums)), len(sums)
    found.shape = ()
    found.values = [total if mp.isnan(total) else total / n]
    found.slack = [judge.as_float((mp.fsum(off) + bound * mp.fsum(sizes)) / n)]
    return found


# ---- running and judging


def run(case: Case) -> Outcome:
    frame, dtype = FRAMES[case["framework"]], _dtype(case)
    expected = expectation(case)
    arrays = [frame.array(as_numpy(a), a["layout"]) for a in case["arrays"]]
    options = {n: frame.option(as_numpy(v)) if isinstance(v, dict) else v for n, v in case["options"].items()}
    function = getattr(losses, case["function"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = (
                function(student=arrays[0], teacher=arrays[1], **options) if case["function"] == "kl_loss" else function(*arrays, **options)
            )
            if case["function"] == "token_terms":
                value = value.kl
        value = frame.numpy(value)
    except Exception as error:
        wrong = is_ours(error)
        if wrong is not None:
            return failure(wrong)
        if expected.error is None and not expected.may_fail:
            return failure(f"right input was refused: {error}")
        return of_exception(error)
    if expected.error is not None:
        return failure(f"{expected.error}, and there was no error but {value.tolist()!r}"[:300])
    if value.dtype.name != dtype:
        return failure(f"the result is {value.dtype.name}, not {dtype}")
    if value.shape != expected.shape:
        return failure(f"the result has shape {value.shape}, not {expected.shape}")
    for got, truth, slack in zip(value.reshape(-1).astype(np.float64), expected.values, expected.slack):
        wrong = wrong_number(float(got), truth, slack, dtype)
        if wrong is not None:
            return failure(wrong)
    return Outcome(RIGHT)


def smaller(case: Case) -> Iterator[Case]:
    for name in [name for name in case["options"] if name not in ("direction", "kind")]:
        less = copy.deepcopy(case)
        del less["options"][name]
        yield less
    arrays = case["arrays"]
    tokens = case["function"] not in ("kl_loss", "token_terms")
    if not any(isinstance(v, dict) for v in case["options"].values()):
        n = math.prod(arrays[0]["shape"] if tokens else arrays[0]["shape"][:-1])
        for i in range(n if n > 1 else 0):
            less = copy.deepcopy(case)
            for a in less["arrays"]:
                width = 1 if tokens or len(a["shape"]) < len(arrays[0]["shape"]) else a["shape"][-1]
                a["values"] = a["values"][i * width : (i + 1) * width]
                a["shape"] = [1] if width == 1 and (tokens or len(a["shape"]) < len(arrays[0]["shape"])) else [1, width]
            yield less
    if case["function"] == "kl_loss" and arrays[0]["shape"][-1] > 1:
        for j in range(arrays[0]["shape"][-1]):
            less = copy.deepcopy(case)
            for a in less["arrays"]:
                kept = np.delete(np.array(a["values"], dtype=object).reshape(a["shape"]), j, axis=-1)
                a["values"], a["shape"] = list(kept.reshape(-1)), list(kept.shape)
            yield less
    for i, a in enumerate(arrays):
        if a["layout"] != "plain":
            less = copy.deepcopy(case)
            less["arrays"][i]["layout"] = "plain"
            yield less
        for j, text in enumerate(a["values"]):
            for simple in (0.0, 1.0, float(f"{float(text):.2g}")):
                if len(repr(simple)) < len(text) and a["dtype"] != "int64":
                    less = copy.deepcopy(case)
                    less["arrays"][i]["values"][j] = repr(simple)
                    yield less


def command(case: Case) -> str:
    parts = [f"{a['dtype']} {as_numpy(a).tolist()}" for a in case["arrays"]]
    options = {n: (as_numpy(v).tolist() if isinstance(v, dict) else v) for n, v in case["options"].items()}
    return f"{case['framework']}: {case['function']}({', '.join(parts)}, {', '.join(f'{n}={v!r}' for n, v in options.items())})"

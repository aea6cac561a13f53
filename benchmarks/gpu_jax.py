"""Speed of `losses.kl_loss` in JAX on a GPU, beside jit of the obvious form: loss and gradient to the student, bfloat16, mean over rows.

    python benchmarks/gpu_jax.py            # or: --rows 8192 --columns 128256 --only "kullback;obvious"
    python benchmarks/gpu_jax.py --passes   # no times: bytes an element that the compiled program moves, and memory beside the gradient

The floor is reading both arrays and writing a third, six bytes an element, in the same run. "error" is that of the loss against float64,
over rows of KL 1e-8 and more, at two distances; "slope" that of the gradient, by norm. Writes benchmarks/results/gpu_jax.csv, which names
GPU and versions, and the table in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kullback._kernels import rows_jax
from kullback.losses import kl_loss

RESULTS = Path(__file__).resolve().parent / "results" / "gpu_jax.csv"
DOCS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- gpu-jax:begin -->", "<!-- gpu-jax:end -->"


def obvious(student: jax.Array, teacher: jax.Array) -> jax.Array:
    log_s, log_t = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in (student, teacher))
    return (jnp.exp(log_t) * (log_t - log_s)).sum(-1)


def kullback(direction: str, **options: object) -> Callable[..., jax.Array]:
    return lambda student, teacher: kl_loss(student=student, teacher=teacher, direction=direction, reduction="none", **options)


def normalised(how: str) -> Callable[..., jax.Array]:
    """One of `rows_jax.NORMALISERS`, or, for none, what float32 takes."""
    return lambda student, teacher: rows_jax._values(rows_jax.Call("kl", 0.0, True, how), teacher, student, jnp.float32(1.0), None)


CANDIDATES: dict[str, tuple[str, Callable[..., jax.Array]]] = {
    "obvious": ("forward", obvious),
    "kullback": ("forward", kullback("forward")),
    "kullback, largest": ("forward", normalised("largest")),
    "kullback, first": ("forward", normalised("first")),
    "kullback, as float32": ("forward", normalised("")),
    "kullback, array": ("forward", kullback("forward", impl="array")),
    "kullback, reverse": ("reverse", kullback("reverse")),
    "kullback, js": ("js", kullback("js", mix=0.5)),
    "kullback, temperature 2": ("temperature", kullback("forward", temperature=2.0)),
}


def milliseconds(function: Callable[[], object], rounds: int = 15) -> float:
    """Of ten calls at a time, so that the host's part is hidden."""
    jax.block_until_ready(function())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(10):
            found = function()
        jax.block_until_ready(found)
        times.append((time.perf_counter() - start) * 100)
    return statistics.median(times)


def truth(student: np.ndarray, teacher: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The divergence of each row by definition, in float64, and its gradient to the student."""
    scale = 0.5 if kind == "temperature" else 1.0
    log_s, log_t = (
        x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
        for x in (scale * student.astype(np.float64), scale * teacher.astype(np.float64))
    )
    s, t = np.exp(log_s), np.exp(log_t)
    if kind in ("forward", "temperature"):
        return (t * (log_t - log_s)).sum(-1), scale * (s - t)
    if kind == "reverse":
        value = (s * (log_s - log_t)).sum(-1)
        return value, s * (log_s - log_t - value[:, None])
    log_m = np.logaddexp(log_s, log_t) - math.log(2)
    part = (s * (log_s - log_m)).sum(-1)
    return 0.5 * (t * (log_t - log_m)).sum(-1) + 0.5 * part, 0.5 * s * (log_s - log_m - part[:, None])


def errors(kind: str, loss: Callable[..., jax.Array], columns: int) -> dict[str, str]:
    """Relative to float64: of numbers that are far apart, and of those of which one in 401 differs by one spacing."""
    rng = np.random.default_rng(1)
    teacher = np.asarray(jnp.asarray(2 * rng.normal(size=(32, columns)), jnp.bfloat16))
    far = np.asarray(jnp.asarray(teacher.astype(np.float32) + 0.3 * rng.normal(size=teacher.shape), jnp.bfloat16))
    close = teacher.copy()
    close[:, ::401] = np.nextafter(close[:, ::401], np.asarray(np.inf, teacher.dtype))
    found = {}
    step = jax.jit(lambda s, t: (loss(s, t), jax.grad(lambda s: loss(s, t).sum())(s)))
    for name, student in (("far", far), ("close", close)):
        value, slope = (np.asarray(x, np.float64) for x in step(jnp.asarray(student), jnp.asarray(teacher)))
        expected, expected_slope = truth(student, teacher, kind)
        kept = expected >= 1e-8  # what is promised
        value, slope, expected, expected_slope = value[kept], slope[kept], expected[kept], expected_slope[kept]
        found[f"kl_{name}"] = f"{np.median(expected):.0e}"
        found[f"error_{name}"] = f"{(np.abs(value - expected) / expected).max():.1e}"
        slope_error = np.linalg.norm(slope - expected_slope, axis=-1) / np.linalg.norm(expected_slope, axis=-1)
        found[f"slope_{name}"] = f"{slope_error.max():.1e}"
    return found


def moved_bytes(compiled: jax.stages.Compiled) -> float:
    """Read and written by the kernels of the compiled program, but for branches that are hardly ever taken."""
    widths = {"bf16": 2, "f16": 2, "f32": 4, "pred": 1, "s32": 4, "u32": 4}
    entry = compiled.as_text().split("ENTRY")[1]
    sizes: dict[str, int] = {}
    total = 0
    for line in entry.splitlines():
        seen = re.match(r"\s*(?:ROOT )?%(\S+) = (.*?) ([\w-]+)\((.*?)\)", line)
        if seen is None:
            continue
        name, shape, operation, arguments = seen.groups()
        shapes = re.findall(r"(\w+)\[([\d,]*)\]", shape)
        sizes[name] = sum(widths.get(kind, 4) * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in shapes)
        if operation not in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "conditional"):
            read = [sizes.get(x.strip().lstrip("%"), 0) for x in re.sub(r"/\*.*?\*/", "", arguments).split(",")]
            if "kind=kLoop" in line:  # one element of each for one element of the result
                read = [min(size, 4 * sizes[name]) for size in read]
            total += sizes[name] + sum(read)
    return total


def measure(rows: int, columns: int, only: list[str], passes: bool) -> list[dict[str, object]]:
    device = jax.devices()[0]
    if device.platform == "cpu":
        raise SystemExit("no accelerator: JAX sees CPUs only")
    keys = jax.random.split(jax.random.key(0))
    # By parts, so that the float32 numbers they are made from need no more room than the logits.
    make = jax.jit(lambda key: 2 * jax.random.normal(key, (rows, columns), jnp.bfloat16))
    teacher = make(keys[0])
    student = jax.jit(lambda t, key: t + 0.3 * jax.random.normal(key, t.shape, t.dtype))(teacher, keys[1])
    add = jax.jit(jnp.add)
    floor = milliseconds(lambda: add(student, teacher))
    print(f"{device.device_kind}, JAX {jax.__version__}, {rows} x {columns}, floor {floor:.3f} ms", flush=True)
    found = []
    for name in only or CANDIDATES:
        kind, loss = CANDIDATES[name]
        row: dict[str, object] = {"what": name, "rows": rows, "columns": columns}
        try:
            step = jax.jit(jax.value_and_grad(lambda s, t, loss=loss: loss(s, t).mean())).lower(student, teacher).compile()
            row["bytes_an_element"] = round(moved_bytes(step) / (rows * columns), 1)
            row["temporary_gib"] = round(step.memory_analysis().temp_size_in_bytes / 2**30, 2)
            if not passes:
                ms = milliseconds(functools.partial(step, student, teacher))
                row |= {"ms": round(ms, 3), "floor_ms": round(floor, 3), "times_floor": round(ms / floor, 2)}
                row |= errors(kind, loss, columns)
        except Exception as error:  # one candidate that fails must not hide the others
            row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        found.append(row | {"gpu": device.device_kind, "jax": jax.__version__})
        print(row, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=128256)
    parser.add_argument("--only", default="", help="names, separated by semicolons")
    parser.add_argument("--passes", action="store_true")
    given = parser.parse_args()
    found = measure(given.rows, given.columns, [name for name in given.only.split(";") if name], given.passes)
    if not given.passes:
        fields = list(dict.fromkeys(field for row in found for field in row))
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(found)
        document()


def document() -> None:
    """The table in docs/benchmarks.md, from the file."""
    with RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    lines = [
        f"{first['gpu']}, JAX {first['jax']}; bfloat16, {first['rows']} × {first['columns']}.",
        "",
        f"| what | bytes an element | ms | × floor | error at KL {first['kl_far']} | at KL {first['kl_close']} |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['what']} | {r['bytes_an_element']} | {r['ms']} | {r['times_floor']} | {r['error_far']} | {r['error_close']} |" for r in rows
    ]
    before, rest = DOCS.read_text().split(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

"""Speed on the CPU: kullback beside SciPy, NumPy, PyTorch and JAX, as multiples of the time it takes to read both arrays once.

    python benchmarks/cpu.py [--quick]

Writes benchmarks/results/cpu.csv and the table in docs/benchmarks.md. Every candidate runs in every round, next to the floor (np.dot of the
two arrays), and its best round counts: on a machine that others use too, times jump, the best of several less so.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
import timeit
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Threads of the library measured last must not spin while the next one is measured.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F

import kullback as kb
import kullback.torch

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- cpu:begin -->", "<!-- cpu:end -->"
INTRO = f"""# Benchmarks

Ratios are what counts: absolute times belong to the machine named below. Each table is written by the script named beside it.

## CPU

`python benchmarks/cpu.py`; raw numbers in `benchmarks/results/cpu.csv`.

{BEGIN}
{END}
"""


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def torch_from_probs(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return F.kl_div(q.log(), p, reduction="none").sum(-1)


def torch_from_logits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.kl_div(F.log_softmax(b, -1), F.log_softmax(a, -1), reduction="none", log_target=True).sum(-1)


def jax_from_logits(a: jax.Array, b: jax.Array) -> jax.Array:
    log_p, log_q = jax.nn.log_softmax(a), jax.nn.log_softmax(b)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)


def ours_from_logits(a: Any, b: Any) -> Any:
    return kb.kl(a, b, form="logits")


def candidates(rows: int, columns: int) -> dict[tuple[str, str], Callable[[], Any]]:
    """(library, input): a call without arguments that returns one value a row."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, columns), dtype=np.float32) for _ in "ab")
    close = (a + np.float32(1e-3) * b).astype(np.float32)
    p, q, close_q = softmax(a), softmax(b), softmax(close)
    masked_a, masked_b = a.copy(), b.copy()
    masked_a[:, ::10], masked_b[:, ::10] = -np.inf, -np.inf
    ta, tb, tp, tq = (torch.from_numpy(x) for x in (a, b, p, q))
    ja, jb, jp, jq = (jax.device_put(x) for x in (a, b, p, q))
    compiled = {name: torch.compile(f) for name, f in (("probs", torch_from_probs), ("logits", torch_from_logits))}
    ours_compiled = {"probs": torch.compile(lambda x, y: kb.kl(x, y)), "logits": torch.compile(ours_from_logits)}
    jitted = {"probs": jax.jit(lambda x, y: jnp.sum(x * jnp.log(x / y), -1)), "logits": jax.jit(jax_from_logits)}
    ours_jitted = {"probs": jax.jit(lambda x, y: kb.kl(x, y)), "logits": jax.jit(ours_from_logits)}
    return {
        ("read both arrays: np.dot", ""): lambda: np.dot(p.reshape(-1), q.reshape(-1)),
        ("kullback, NumPy", "probs"): lambda: kb.kl(p, q),
        ("kullback, NumPy", "logits"): lambda: kb.kl(a, b, form="logits"),
        ("kullback, NumPy", "probs, KL 5e-7"): lambda: kb.kl(p, close_q),
        ("kullback, NumPy", "logits, KL 5e-7"): lambda: kb.kl(a, close, form="logits"),
        ("kullback, NumPy", "logits, a tenth -inf"): lambda: kb.kl(masked_a, masked_b, form="logits"),
        ("kullback, PyTorch", "probs"): lambda: kb.kl(tp, tq),
        ("kullback, PyTorch", "logits"): lambda: kb.kl(ta, tb, form="logits"),
        ("kullback, torch.compile", "probs"): lambda: ours_compiled["probs"](tp, tq),
        ("kullback, torch.compile", "logits"): lambda: ours_compiled["logits"](ta, tb),
        ("kullback, jax.jit", "probs"): lambda: ours_jitted["probs"](jp, jq).block_until_ready(),
        ("kullback, jax.jit", "logits"): lambda: ours_jitted["logits"](ja, jb).block_until_ready(),
        ("scipy.special.rel_entr, sum", "probs"): lambda: scipy.special.rel_entr(p, q).sum(-1),
        ("scipy.stats.entropy", "probs"): lambda: scipy.stats.entropy(p, q, axis=-1),
        ("NumPy by hand", "probs"): lambda: (p * np.log(p / q)).sum(-1),
        ("PyTorch kl_div", "probs"): lambda: torch_from_probs(tp, tq),
        ("PyTorch log_softmax, kl_div", "logits"): lambda: torch_from_logits(ta, tb),
        ("the same, torch.compile", "probs"): lambda: compiled["probs"](tp, tq),
        ("the same, torch.compile", "logits"): lambda: compiled["logits"](ta, tb),
        ("jax.jit by hand", "probs"): lambda: jitted["probs"](jp, jq).block_until_ready(),
        ("jax.jit by hand", "logits"): lambda: jitted["logits"](ja, jb).block_until_ready(),
    }


def measure(rows: int, columns: int, rounds: int, only: str) -> list[dict[str, Any]]:
    calls = {key: call for key, call in candidates(rows, columns).items() if not key[1] or only in " ".join(key)}
    floor = next(iter(calls))
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()  # compiles, and wakes the threads
    for _ in range(rounds):
        for key in calls:
            for which in (floor, key):
                start = time.perf_counter()
                calls[which]()
                best[which] = min(best[which], time.perf_counter() - start)
    per = 1e9 / (rows * columns)
    return [
        {"group": "throughput", "what": what, "input": form, "value": t * per, "unit": "ns/element", "x floor": t / best[floor]}
        for (what, form), t in best.items()
    ]


def forward_and_backward(rows: int, columns: int, rounds: int) -> list[dict[str, Any]]:
    """A loss, and its gradient to the prediction."""
    a, b = torch.randn(rows, columns), torch.randn(rows, columns)
    log_input, target = b.log_softmax(-1).requires_grad_(), a.softmax(-1)
    student = b.clone().requires_grad_()
    calls: dict[tuple[str, str], tuple[torch.Tensor, Callable[[], torch.Tensor]]] = {
        ("PyTorch kl_div", "log-probs, probs"): (log_input, lambda: F.kl_div(log_input, target, reduction="batchmean")),
        ("kullback.torch.kl_div", "log-probs, probs"): (
            log_input, lambda: kullback.torch.kl_div(log_input, target, reduction="batchmean"),
        ),
        ("PyTorch log_softmax, kl_div", "logits"): (student, lambda: torch_from_logits(a, student).mean()),
        ("kullback.torch.KLLoss", "logits"): (student, lambda: kullback.torch.KLLoss()(student=student, teacher=a)),
    }  # fmt: skip
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for key, (leaf, loss) in calls.items():
            leaf.grad = None
            start = time.perf_counter()
            loss().backward()
            best[key] = min(best[key], time.perf_counter() - start)
    group = f"loss and gradient, {rows} × {columns}"
    return [
        {"group": group, "what": what, "input": form, "value": t * 1e9 / (rows * columns), "unit": "ns/element"}
        for (what, form), t in best.items()
    ]


def one_call() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(8), 2)
    a, b = np.log(p), np.log(q)
    tp, tq, ta, tb = (torch.from_numpy(x) for x in (p, q, a, b))
    calls: dict[tuple[str, str], Callable[[], Any]] = {
        ("kullback, NumPy", "probs"): lambda: kb.kl(p, q),
        ("kullback, NumPy", "logits"): lambda: kb.kl(a, b, form="logits"),
        ("kullback, PyTorch", "probs"): lambda: kb.kl(tp, tq),
        ("kullback, PyTorch", "logits"): lambda: kb.kl(ta, tb, form="logits"),
        ("scipy.special.rel_entr, sum", "probs"): lambda: scipy.special.rel_entr(p, q).sum(),
        ("scipy.stats.entropy", "probs"): lambda: scipy.stats.entropy(p, q),
        ("PyTorch kl_div", "probs"): lambda: torch_from_probs(tp, tq),
        ("PyTorch log_softmax, kl_div", "logits"): lambda: torch_from_logits(ta, tb),
    }
    found = []
    for (what, form), call in calls.items():
        best = min(timeit.repeat(call, number=300, repeat=15)) / 300
        found.append({"group": "one call, 8 elements", "what": what, "input": form, "value": best * 1e6, "unit": "µs"})
    return found


def import_time(module: str) -> float:
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(7)]
    return min(times) * 1e3


def imports() -> list[dict[str, Any]]:
    return [
        {"group": "import", "what": module, "input": "", "value": import_time(module), "unit": "ms"}
        for module in ("kullback", "scipy.special", "numpy")
    ]


def memory(columns: int) -> list[dict[str, Any]]:
    found = []
    rng = np.random.default_rng(0)
    for rows in (64, 256):
        a, b = (rng.standard_normal((rows, columns), dtype=np.float32) for _ in "ab")
        kb.kl(a, b, form="logits")
        tracemalloc.start()
        kb.kl(a, b, form="logits")
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        found.append({"group": "extra memory", "what": "kullback, NumPy", "input": f"{rows} rows", "value": peak, "unit": "MiB"})
    return found


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def table(found: list[dict[str, Any]], rows: int, columns: int) -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "torch", "jax"))
    lines = [f"{processor()}; Python {platform.python_version()}, {versions}.", ""]
    lines += [f"{rows} × {columns} float32, one value a row, checks on; the floor is the time to read both arrays once.", ""]
    lines += ["| what | from | ns an element | × floor |", "|---|---|---|---|"]
    for row in found:
        if row["group"] == "throughput":
            ours = "**" if row["what"].startswith("kullback") else ""
            lines.append(f"| {ours}{row['what']}{ours} | {row['input']} | {row['value']:.2f} | {row['x floor']:.1f} |")
    lines += ["", "| also | | |", "|---|---|---|"]
    for row in found:
        if row["group"] != "throughput":
            lines.append(f"| {row['group']} | {' '.join(filter(None, (row['what'], row['input'])))} | {row['value']:.3g} {row['unit']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a 16th of the size, fewer rounds; writes nothing")
    parser.add_argument("--only", default="", help="only candidates whose name holds this text; writes nothing")
    options = parser.parse_args()
    rows, columns, rounds = (32, 65536, 3) if options.quick else (512, 65536, 6)
    found = measure(rows, columns, rounds, options.only)
    if not options.only:
        found += forward_and_backward(rows, columns, rounds) + one_call() + imports() + memory(columns)
    text = table(found, rows, columns)
    print(text)
    if options.quick or options.only:
        return
    results = HERE / "results" / "cpu.csv"
    results.parent.mkdir(exist_ok=True)
    with results.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["group", "what", "input", "value", "unit", "x floor"])
        writer.writeheader()
        writer.writerows(found)
    DOCS.parent.mkdir(exist_ok=True)
    page = DOCS.read_text() if DOCS.exists() else INTRO
    before, _, rest = page.partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

"""Speed of `kullback compare` on files beside `kb.kl` on the same arrays in memory, and how its memory grows.

    python benchmarks/compare.py [--rows 4096] [--categories 32768] [--rounds 5]

Writes benchmarks/results/compare.csv and the tables in docs/compare.md. The comparison reads both files (from the page cache) and computes
KL both ways, JS, top-1 agreement and Δp; kb.kl computes KL(P‖Q) only. Both run in every round; the best of each is shown, and the median
of their ratios, which others on the machine change least: CPU time on one thread, the system's share (mapping the files) included, and wall
time on all threads. For the memory each size runs in a process of its own. What NumPy's functions cost is measured beside it, on tiles as
the kernel has them.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import kullback as kb

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "compare.md"
BEGIN, END = "<!-- compare:begin -->", "<!-- compare:end -->"
PEAK = """
import re, sys, kullback as kb, kullback._compare.models
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = peak()
kb.compare(sys.argv[1], sys.argv[2], form="logits")
print((peak() - before) / 1024)
"""


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def measured(functions, rounds):
    """For CPU time on one thread and wall time on all: the least of each function, and the last's in times each, the median over rounds."""
    found = []
    for threads, clock in (("1", time.process_time), ("", time.perf_counter)):
        os.environ["OMP_NUM_THREADS"] = threads
        times = np.empty((rounds, len(functions)))
        for one in times:
            for i, function in enumerate(functions):
                start = clock()
                function()
                one[i] = clock() - start
        found.append((times.min(0), np.median(times[:, -1:] / times, 0)))
    return found


def costs() -> dict[str, float]:
    """CPU ns an element of the passes that a row goes through, over float32 tiles of 1 MiB."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.standard_normal((8, 32768), dtype=np.float32))
    y, out = x[::-1].copy(), np.empty_like(x)
    pieces, others, sums = x.reshape(-1, 256), y.reshape(-1, 256), np.empty(1024, np.float32)
    passes = {
        "exp": lambda: np.exp(y, out=out), "exp2": lambda: np.exp2(y, out=out), "expm1": lambda: np.expm1(y, out=out),
        "log": lambda: np.log(x, out=out), "log2": lambda: np.log2(x, out=out), "log1p": lambda: np.log1p(y, out=out),
        "divide": lambda: np.divide(y, x, out=out), "subtract": lambda: np.subtract(y, x, out=out),
        "add a number": lambda: np.add(x, 1.5, out=out),
        "dot, in pieces of 256": lambda: np.vecdot(pieces, others, out=sums), "min": lambda: x.min(1), "argmax": lambda: x.argmax(1),
    }  # fmt: skip
    found = {}
    for name, function in passes.items():
        times = []
        for _ in range(30):
            start = time.process_time_ns()
            for _ in range(4):
                function()
            times.append((time.process_time_ns() - start) / 4)
        found[name] = min(times) / x.size
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--categories", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows, categories = arguments.rows, arguments.categories
    rng = np.random.default_rng(0)
    p = 2 * rng.standard_normal((rows, categories), dtype=np.float32)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        first, second = (os.path.join(folder, f"{name}.npy") for name in "pq")
        # Rows alike, and rows as different as those of a model, from a close one (KL from 1e-6 to 1) to another.
        alike = (0.015, 0.05, 0.1, 0.3, 0.7, 1.0, 2.0)
        differing = [np.minimum(3.0, 10 ** rng.normal(centre, 0.45, (rows, 1))).astype(np.float32) for centre in (-1.1, -0.5, -0.1)]
        for form, noise in ((form, noise) for form in ("logits", "probs") for noise in (*alike, *differing)):
            q = p + np.float32(noise) * rng.standard_normal(p.shape, dtype=np.float32)
            x, y = (p, q) if form == "logits" else (softmax(p), softmax(q))
            np.save(first, x)
            np.save(second, y)
            functions = [lambda f=form: kb.compare(first, second, form=f), lambda x=x, y=y, f=form: kb.kl(x, y, form=f)]
            mean = f"{kb.kl(x, y, form=form).mean():.2g}"
            row = {"form": form, "mean_kl": mean if isinstance(noise, float) else f"{mean}, rows differ"}
            for name, ((ours, theirs), speeds) in zip(("cpu", "wall"), measured(functions, arguments.rounds)):
                row |= {f"compare_{name}_ns": f"{ours / p.size * 1e9:.2f}", f"kl_{name}_ns": f"{theirs / p.size * 1e9:.2f}"}
                row[f"speed_{name}"] = f"{speeds[0]:.0%}"
            found.append(row)
            print(row, flush=True)
        memory = []
        for count in (rows // 4, rows // 2, rows):
            np.save(first, p[:count])
            np.save(second, p[:count, ::-1])
            peak = float(subprocess.run([sys.executable, "-c", PEAK, first, second], capture_output=True, text=True, check=True).stdout)
            memory.append((count, 2 * count * categories * 4 / 2**20, peak))
            print(memory[-1], flush=True)
    with open(HERE / "results" / "compare.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, found[0].keys())
        writer.writeheader()
        writer.writerows(found)
    keys = [key for key in found[0] if key not in ("form", "mean_kl")]
    passes = costs()
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, NumPy {np.__version__}; "
        f"{rows} × {categories} float32. ns an element, the best: CPU on one thread, wall on all. Speed: the median over rounds.",
        "",
        "| from | mean KL | `compare` on files, CPU | `kb.kl` in memory, CPU | speed | `compare`, wall | `kb.kl`, wall | speed |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {r['form']} | {r['mean_kl']} | {' | '.join(r[key] for key in keys)} |" for r in found),
        "",
        f"A pass over a tile, CPU ns an element: {', '.join(f'{name} {cost:.2f}' for name, cost in passes.items())}.",
        "",
        "| rows | both files | memory above importing |",
        "|---|---|---|",
        *(f"| {count:,} | {size:.0f} MiB | {peak:.0f} MiB |" for count, size, peak in memory),
    ]
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

"""Speed of `kullback compare` on files beside `kb.kl` on the same arrays in memory, and how its memory grows.

    python benchmarks/compare.py [--size 134217728] [--categories 32000] [--rounds 5]

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
from typing import NamedTuple

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


class Case(NamedTuple):
    """Logits of P are 2 N(0, 1) + level, those of Q these + noise N(0, 1) + shift; noise is 10^N(centre, 0.45) a row where it is None."""

    form: str
    noise: float | None
    categories: int
    dtype: str = "float32"
    level: float = 0.0
    shift: float = 0.0
    centre: float = 0.0

    def arrays(self, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        p = 2 * rng.standard_normal((size // self.categories, self.categories), dtype=np.float32)
        noise = np.minimum(3.0, 10 ** rng.normal(self.centre, 0.45, (len(p), 1))).astype(np.float32) if self.noise is None else self.noise
        q = p + np.float32(noise) * rng.standard_normal(p.shape, dtype=np.float32)
        if self.form == "logits":
            p, q = p + np.float32(self.level), q + np.float32(self.level + self.shift)
        else:
            p, q = softmax(p), softmax(q)
        return p.astype(self.dtype), q.astype(self.dtype)

    def words(self) -> str:
        about = (
            ["rows differ"] * (self.noise is None)
            + [f"both {self.level:+g}"] * bool(self.level)
            + [f"Q {self.shift:+g}"] * bool(self.shift)
        )
        return ", ".join(about)


def cases(categories: int) -> list[Case]:
    """Rows alike, and rows as different as those of a model, from a close one (KL from 1e-6 to 1) to another; then other arrays."""
    found = []
    for form in ("logits", "probs"):
        found += [Case(form, noise, categories) for noise in (0.015, 0.05, 0.1, 0.3, 0.7, 1.0, 2.0)]
        found += [Case(form, None, categories, centre=centre) for centre in (-1.1, -0.5, -0.1)]
    for form in ("logits", "probs"):
        found += [Case(form, 0.7, other) for other in (1000, 50_257, 128_256, 151_936)]
        found += [Case(form, noise, categories, "float64") for noise in (0.015, 0.1, 0.7)] + [Case(form, 0.7, 128_256, "float64")]
    found += [Case("logits", 0.7, 128_256, "float16"), Case("logits", 0.7, 128_256, level=25.0), Case("logits", 2.0, 128_256, level=25.0)]
    return found + [Case("logits", noise, 128_256, shift=shift) for noise in (0.015, 0.3, 0.7, 2.0) for shift in (0.5, 3.0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1 << 27, help="numbers of either side")
    parser.add_argument("--categories", type=int, default=32_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    categories = arguments.categories
    rng = np.random.default_rng(0)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        first, second = (os.path.join(folder, f"{name}.npy") for name in "pq")
        for case in cases(categories):
            x, y = case.arrays(arguments.size, rng)
            form = case.form
            np.save(first, x)
            np.save(second, y)
            functions = [lambda f=form: kb.compare(first, second, form=f), lambda x=x, y=y, f=form: kb.kl(x, y, form=f)]
            row = {"form": form, "dtype": case.dtype, "categories": f"{case.categories:,}", "about": case.words()}
            row["mean_kl"] = f"{kb.kl(x, y, form=form).mean(dtype=np.float64):.2g}"
            for name, ((ours, theirs), speeds) in zip(("cpu", "wall"), measured(functions, arguments.rounds)):
                row |= {f"compare_{name}_ns": f"{ours / x.size * 1e9:.2f}", f"kl_{name}_ns": f"{theirs / x.size * 1e9:.2f}"}
                row[f"speed_{name}"] = f"{speeds[0]:.0%}"
            found.append(row)
            print(row, flush=True)
        memory = []
        p = 2 * rng.standard_normal((arguments.size // categories, categories), dtype=np.float32)
        for count in (len(p) // 4, len(p) // 2, len(p)):
            np.save(first, p[:count])
            np.save(second, p[:count, ::-1])
            peak = float(subprocess.run([sys.executable, "-c", PEAK, first, second], capture_output=True, text=True, check=True).stdout)
            memory.append((count, 2 * count * categories * 4 / 2**20, peak))
            print(memory[-1], flush=True)
    with open(HERE / "results" / "compare.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, found[0].keys())
        writer.writeheader()
        writer.writerows(found)
    passes = costs()
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, NumPy {np.__version__}; {arguments.size:,} "
        f"numbers a side. ns a number, the best: CPU on one thread, wall on all. Speed: the median over {arguments.rounds} rounds.",
        "",
        "| from | numbers | categories | mean KL | | `compare` on files, CPU | `kb.kl` in memory, CPU | speed "
        "| `compare`, wall | `kb.kl`, wall | speed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r['form']} | {r['dtype']} | {r['categories']} | {r['mean_kl']} | {r['about']} | "
            + " | ".join(value for key, value in r.items() if "cpu" in key or "wall" in key)
            + " |"
            for r in found
        ),
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

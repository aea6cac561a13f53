"""Speed of `kullback compare` on files beside `kb.kl` on the same arrays in memory, and how its memory grows.

    python benchmarks/compare.py [--rows 1024] [--categories 32768] [--rounds 5]

Writes benchmarks/results/compare.csv and the table in docs/compare.md. The comparison reads both files (from the page cache) and computes
KL both ways, JS, top-1 agreement and Δp; kb.kl computes KL(P‖Q) only. Both run in every round, and the best of each counts. Times are of
the CPU, the system's share (mapping the files) included, on one thread: a machine that others use too changes them less.
For the memory each size runs in a process of its own.
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

os.environ["OMP_NUM_THREADS"] = "1"

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


def best(functions, rounds):
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times):
            start = time.process_time()
            function()
            found.append(time.process_time() - start)
    return [min(found) for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--categories", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows, categories = arguments.rows, arguments.categories
    rng = np.random.default_rng(0)
    p = 2 * rng.standard_normal((rows, categories), dtype=np.float32)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        first, second = (os.path.join(folder, f"{name}.npy") for name in "pq")
        for form, noise in (("logits", 0.03), ("logits", 0.1), ("logits", 0.3), ("logits", 1.0), ("probs", 0.1), ("probs", 1.0)):
            q = p + np.float32(noise) * rng.standard_normal(p.shape, dtype=np.float32)
            x, y = (p, q) if form == "logits" else (softmax(p), softmax(q))
            np.save(first, x)
            np.save(second, y)
            compare, kl = best(
                [lambda f=form: kb.compare(first, second, form=f), lambda x=x, y=y, f=form: kb.kl(x, y, form=f)], arguments.rounds
            )
            found.append(
                {
                    "form": form, "mean_kl": f"{kb.kl(x, y, form=form).mean():.2g}", "compare_ns": f"{compare / p.size * 1e9:.2f}",
                    "kl_ns": f"{kl / p.size * 1e9:.2f}", "share": f"{kl / compare:.0%}",
                }
            )  # fmt: skip
            print(found[-1], flush=True)
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
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, NumPy {np.__version__}; "
        f"{rows} × {categories} float32.",
        "",
        "| from | mean KL | `compare` on files, CPU ns an element | `kb.kl` in memory | speed |",
        "|---|---|---|---|---|",
        *(f"| {r['form']} | {r['mean_kl']} | {r['compare_ns']} | {r['kl_ns']} | {r['share']} |" for r in found),
        "",
        "| rows | both files | memory above importing |",
        "|---|---|---|",
        *(f"| {count:,} | {size:.0f} MiB | {peak:.0f} MiB |" for count, size, peak in memory),
    ]
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

"""Speed of `kullback compare` on files beside `kb.kl` on the same arrays in memory, and how its memory grows.

    python benchmarks/compare.py [--size 67108864] [--rounds 5] [--only llama.cpp]

Writes benchmarks/results/compare.csv and the tables in docs/compare.md. The comparison reads both files (from the page cache) and computes
KL both ways, JS, top-1 agreement and Δp; kb.kl computes KL(P‖Q) only. Both run in every round; the best of each is shown, and the median
of their ratios, which others on the machine change least: CPU time on one thread, the system's share (mapping the files) included, and wall
time on all threads. Of two llama.cpp files kb.kl is given the numbers as they are decoded, which is another KL, and once what the
comparison takes, with a bucket for what is clipped. For the memory each size runs in a process of its own. Accuracy is that of the same
rows, against extended precision.
"""

from __future__ import annotations

import argparse
import csv
import json
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
from kullback._compare.comparison import compare_batch
from kullback._compare.llama import open_llama, pool

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "compare.csv"
DOCS = HERE.parent / "docs" / "compare.md"
BEGIN, END = "<!-- compare:begin -->", "<!-- compare:end -->"
# Of llama.cpp's files: tokens of a chunk, and rows of it.
CONTEXT, CHUNK = 64, 31
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


class Case(NamedTuple):
    """Logits of P are spread N(0, 1) + level, of Q these + noise N(0, 1) + shift; noise is 10^N(centre, 0.45) a row where it is None."""

    form: str
    noise: float | None
    categories: int
    dtype: str = "float32"
    level: float = 0.0
    shift: float = 0.0
    centre: float = 0.0
    kinds: tuple[str, str] = (".npy", ".npy")
    spread: float = 2.0

    def arrays(self, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        rows = size // self.categories
        if ".kld" in self.kinds:
            rows = rows // CHUNK * CHUNK
        p = np.float32(self.spread) * rng.standard_normal((rows, self.categories), dtype=np.float32)
        noise = np.minimum(3.0, 10 ** rng.normal(self.centre, 0.45, (len(p), 1))).astype(np.float32) if self.noise is None else self.noise
        q = p + np.float32(noise) * rng.standard_normal(p.shape, dtype=np.float32)
        if self.form == "logits":
            p, q = p + np.float32(self.level), q + np.float32(self.level + self.shift)
        else:
            p, q = softmax(p), softmax(q)
        if self.form == "log_probs":
            p, q = np.log(p), np.log(q)
        elif self.form == "counts":
            p, q = (1 + np.round(50 * self.categories * x) for x in (p, q))
        if self.dtype == "bfloat16":
            return tuple((x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (p, q))
        return p.astype(self.dtype), q.astype(self.dtype)

    def write(self, x: np.ndarray, path: str) -> np.ndarray:
        """To a file of the kind that its name says; returns the numbers as they are in it."""
        if path.endswith(".npy"):
            np.save(path, x)
        elif path.endswith(".safetensors"):
            bits = (x.view(np.uint32) >> 16).astype("<u2")
            header = json.dumps({"logits": {"dtype": "BF16", "shape": x.shape, "data_offsets": [0, bits.nbytes]}}).encode()
            Path(path).write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
        else:
            # As llama.cpp does: codes of 16 bits, down to 16 below the largest.
            count, categories = x.shape
            top, least = x.max(1, keepdims=True), x.min(1, keepdims=True)
            least = np.maximum(least, top - 16)
            scale = (top - least) / np.float32(65535)
            codes = np.rint(np.maximum(x - least, 0) / scale).astype("<u2")
            low = (least - top - np.log(np.exp((x - top).astype(np.float64)).sum(1, keepdims=True))).astype("<f4")
            ends = np.concatenate([scale, low], 1).astype("<f4").view("<u2")
            with open(path, "wb") as file:
                file.write(b"_logits_" + np.array([CONTEXT, categories, count // CHUNK], "<i4").tobytes())
                file.write(bytes(4 * CONTEXT * (count // CHUNK)))
                np.concatenate([ends, codes, np.zeros((count, categories % 2), "<u2")], 1).tofile(file)
            return (scale * codes + low).astype(np.float32)
        return x

    def clipped(self, x: np.ndarray, y: np.ndarray) -> str:
        """What part of the numbers llama.cpp's files do not have."""
        parts = [np.mean(side == side.min(1, keepdims=True)) for side, kind in zip((x, y), self.kinds) if kind == ".kld"]
        return f", {np.mean(parts):.0%} clipped" if parts else ""

    def words(self) -> str:
        files = " and ".join(name for name, kind in zip("PQ", self.kinds) if kind == ".kld")
        about = (
            [f"llama.cpp's {files}"] * bool(files)
            + ["rows differ"] * (self.noise is None)
            + [f"both {self.level:+g}"] * bool(self.level)
            + [f"Q {self.shift:+g}"] * bool(self.shift)
        )
        return ", ".join(about)


CASES = [
    # Rows alike, and rows as different as those of a model, from a close one (KL from 1e-6 to 1) to another.
    *(Case(form, noise, 32_000) for form in ("logits", "probs") for noise in (0.015, 0.1, 0.3, 0.7, 2.0)),
    *(Case(form, None, 32_000, centre=centre) for form in ("logits", "probs") for centre in (-1.1, -0.1)),
    # Other arrays.
    *(Case(form, 0.7, categories) for form in ("logits", "probs") for categories in (10, 1000, 50_257, 128_256)),
    *(Case(form, noise, 32_000, "float64") for form in ("logits", "probs") for noise in (0.1, 0.7)),
    Case("logits", 0.7, 128_256, "float16"), Case("logits", 0.7, 128_256, "bfloat16", kinds=(".safetensors",) * 2),
    Case("log_probs", 0.7, 32_000),
    # llama.cpp's files, of which much is clipped, a part, or nothing; and one beside an array.
    *(Case("logits", noise, 32_000, kinds=(".kld",) * 2, spread=6.0) for noise in (0.1, 0.7, 2.0)),
    *(Case("logits", noise, 128_256, kinds=(".kld",) * 2, spread=spread) for noise, spread in ((0.3, 6.0), (0.3, 3.0))),
    *(Case("logits", noise, 128_256, kinds=(".kld",) * 2, spread=spread) for noise, spread in ((1.0, 3.0), (2.0, 4.0))),
    *(Case("logits", noise, 32_000, kinds=(".kld",) * 2) for noise in (0.1, 0.7, 2.0)),
    *(Case("logits", noise, 32_000, kinds=(".kld",) * 2, spread=0.7) for noise in (0.1, 0.7, 1.7)),
    *(Case("logits", noise, 32_000, kinds=(".kld", ".npy"), spread=spread) for noise, spread in ((0.7, 2.0), (2.0, 2.0), (1.7, 0.7))),
    Case("counts", 0.7, 32_000), Case("counts", 0.7, 32_000, "int32"),
    # The two models' logits off by a constant, as they are.
    *(Case("logits", noise, 128_256, level=25.0, shift=3.0) for noise in (0.015, 0.7, 2.0)),
]  # fmt: skip


def with_bucket(first: str, second: str, part: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """A part of the rows of two llama.cpp files as the comparison takes them: what is clipped is 0, and a bucket more."""
    pieces = [open_llama(Path(path)) for path in (first, second)]
    pooled = pool(*(piece.read(0, piece.rows // part) for piece in pieces), None)
    return pooled.p.astype(np.float32), pooled.q.astype(np.float32)


def errors(x: np.ndarray, y: np.ndarray, form: str, rows: int = 8) -> float:
    """The worst relative error of the three divergences in some of the rows, each beside others as it is in a file."""
    wide = [side[:rows].astype(np.longdouble) for side in (x, y)]
    p, q = (softmax(side) if form in ("logits", "log_probs") else side / side.sum(1, keepdims=True) for side in wide)
    m = (p + q) / 2
    kl_pm, kl_qm = (p * np.log(p / m)).sum(1), (q * np.log(q / m)).sum(1)
    right = (p * np.log(p / q)).sum(1), (q * np.log(q / p)).sum(1), (kl_pm + kl_qm) / 2
    found = compare_batch(x, y, (form, form), (x.dtype == np.float16, y.dtype == np.float16), None)
    return max(float(np.abs(values[:rows] / expected - 1).max()) for values, expected in zip(found[:3], right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1 << 26, help="numbers of either side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="the cases whose description holds this; the others stay as they are in the CSV")
    arguments = parser.parse_args()
    categories = 32_000
    found = []
    if arguments.only:
        with open(RESULTS, newline="") as file:
            before = list(csv.DictReader(file))
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(CASES):
            if arguments.only not in case.words():
                found.append(before[i])
                continue
            rng = np.random.default_rng(i)
            first, second = (os.path.join(folder, f"{name}{kind}") for name, kind in zip("pq", case.kinds))
            x, y = (case.write(side, path) for side, path in zip(case.arrays(arguments.size, rng), (first, second)))
            form = case.form
            functions = [lambda p=first, q=second, f=form: kb.compare(p, q, form=f), lambda x=x, y=y, f=form: kb.kl(x, y, form=f)]
            row = {"form": form, "dtype": case.dtype, "categories": f"{case.categories:,}", "about": case.words() + case.clipped(x, y)}
            row["mean_kl"] = f"{kb.kl(x, y, form=form).mean(dtype=np.float64):.2g}"
            for name, ((ours, theirs), speeds) in zip(("cpu", "wall"), measured(functions, arguments.rounds)):
                row |= {f"compare_{name}_ns": f"{ours / x.size * 1e9:.2f}", f"kl_{name}_ns": f"{theirs / x.size * 1e9:.2f}"}
                row[f"speed_{name}"] = f"{speeds[0]:.0%}"
            row["bucket"] = ""
            if case.kinds == (".kld", ".kld"):
                p, q = with_bucket(first, second)
                row["bucket"] = ", ".join(
                    f"{best[0] / p.size * 1e9:.1f}" for best, _ in measured([lambda p=p, q=q: kb.kl(p, q, form="log_probs")], 1)
                )
            row["error"] = "" if ".kld" in case.kinds else f"{errors(x, y, form):.0e}"  # theirs has a bucket: tests
            found.append(row)
            print(row, flush=True)
        memory = []
        first, second = (os.path.join(folder, f"{name}.npy") for name in "pq")
        p = 2 * np.random.default_rng(0).standard_normal((arguments.size // categories, categories), dtype=np.float32)
        for count in (len(p) // 4, len(p) // 2, len(p)):
            np.save(first, p[:count])
            np.save(second, p[:count, ::-1])
            peak = float(subprocess.run([sys.executable, "-c", PEAK, first, second], capture_output=True, text=True, check=True).stdout)
            memory.append((count, 2 * count * categories * 4 / 2**20, peak))
            print(memory[-1], flush=True)
    with open(RESULTS, "w", newline="") as file:
        writer = csv.DictWriter(file, found[0].keys())
        writer.writeheader()
        writer.writerows(found)
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, NumPy {np.__version__}; {arguments.size:,} "
        f"numbers a side. ns a number, the best: CPU on one thread, wall on all. Speed: the median over {arguments.rounds} rounds. "
        "Error: the worst of eight rows, relative, of any of the three divergences.",
        "",
        "| from | numbers | categories | mean KL | | `compare` on files, CPU | `kb.kl` in memory, CPU | speed "
        "| `compare`, wall | `kb.kl`, wall | speed | `kb.kl` with the bucket, CPU, wall | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r['form']} | {r['dtype']} | {r['categories']} | {r['mean_kl']} | {r['about']} | "
            + " | ".join(value for key, value in r.items() if "cpu" in key or "wall" in key or key in ("bucket", "error"))
            + " |"
            for r in found
        ),
        "",
        "| rows | both files | memory above importing |",
        "|---|---|---|",
        *(f"| {count:,} | {size:.0f} MiB | {peak:.0f} MiB |" for count, size, peak in memory),
    ]
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

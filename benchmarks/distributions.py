"""A million pairs of distributions: kullback beside torch.distributions and TFP on the same framework.

Writes results/distributions.csv and the table in docs/benchmarks.md.

[OMP_NUM_THREADS=1] python benchmarks/distributions.py [--size 1000000] [--rounds 5] [--near]
The two take turns, and the smallest time of each counts. On one thread it is CPU time, which other work on the machine disturbs least; on
several, the time that passes. --near: Q differs from P by a thousandth, where plain sums are no longer good enough for some.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import torch
import torch.distributions as td

import kullback as kb

RESULTS = Path(__file__).parent / "results" / "distributions.csv"
DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- distributions:begin -->", "<!-- distributions:end -->"
THREADS = int(os.environ["OMP_NUM_THREADS"])
tfd = tfp.distributions


def parameters(n, rng, change=0.5):
    """By family: P's parameters and Q's, float32."""
    positive = lambda *shape: (10 ** rng.uniform(-1, 2, shape)).astype(np.float32)  # noqa: E731
    near = lambda x: (x * rng.uniform(1 - change, 1 + change, x.shape)).astype(np.float32)  # noqa: E731
    tril = np.tril(rng.normal(size=(n // 16, 16, 16)) * 0.1) + np.eye(16)
    made = {
        "Normal": (rng.normal(size=n).astype(np.float32), positive(n)),
        "Gamma": (positive(n), positive(n)),
        "Beta": (positive(n), positive(n)),
        "Dirichlet": (positive(n // 10, 10),),
        "MultivariateNormal": (rng.normal(size=(n // 16, 16)).astype(np.float32), tril.astype(np.float32)),
    }
    shift = 0.1 * change * np.eye(16, dtype=np.float32)
    return {name: (p, tuple(near(x) if x.ndim < 3 else x + shift for x in p)) for name, p in made.items()}


def torch_object(name, p):
    p = [torch.from_numpy(x) for x in p]
    if name == "MultivariateNormal":
        return td.MultivariateNormal(p[0], scale_tril=p[1], validate_args=False)
    return getattr(td, name)(*p, validate_args=False)


def tfp_object(name, p):
    p = [tf.constant(x) for x in p]
    return tfd.MultivariateNormalTriL(*p) if name == "MultivariateNormal" else getattr(tfd, name)(*p)


def seconds(rounds, *functions):
    clock = time.process_time if THREADS == 1 else time.perf_counter
    best = [float("inf")] * len(functions)
    for function in functions:
        function()
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = clock()
            function()
            best[i] = min(best[i], clock() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--near", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    rows = []
    for name, (p, q) in parameters(given.size, np.random.default_rng(1), 1e-3 if given.near else 0.5).items():
        for framework, make, theirs in (("torch", torch_object, td.kl_divergence), ("tensorflow", tfp_object, tfd.kl_divergence)):
            first, second = make(name, p), make(name, q)
            with torch.no_grad():
                ours, other = seconds(given.rounds, lambda a=first, b=second: kb.kl(a, b), lambda a=first, b=second, f=theirs: f(a, b))
            rows.append((framework, name, f"{1e3 * ours:.1f}", f"{1e3 * other:.1f}", f"{ours / other:.2f}"))
            print(*rows[-1], flush=True)
    if given.near or given.size != 1_000_000 or THREADS > 1:
        return  # other figures than those in the file
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("framework", "family", "kullback ms", "theirs ms", "ratio"))
        writer.writerows(rows)
    versions = f"PyTorch {torch.__version__}, TensorFlow {tf.__version__}, TFP {tfp.__version__}"
    table = [f"{platform.machine()}; Python {platform.python_version()}, {versions}.", ""]
    table += ["| a million, float32 | theirs, ms | kullback, ms | ratio |", "|---|---|---|---|"]
    table += [f"| {name}, {framework} | {theirs} | {ours} | {ratio} |" for framework, name, ours, theirs, ratio in rows]
    text = DOCS.read_text()
    if BEGIN not in text:
        words = "one thread, CPU time; 10 categories make 100,000 Dirichlet pairs, and 16 dimensions 62,500 normal ones"
        text += f"\n## A million pairs\n\n`python benchmarks/distributions.py`; {words}.\n\n{BEGIN}\n{END}\n"
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCS.write_text(text[:start] + "\n" + "\n".join(table) + "\n" + text[end:])


if __name__ == "__main__":
    main()

"""What one call costs: KL of a single pair of PyTorch distributions, ours beside torch.distributions.kl_divergence.

    python benchmarks/dispatch.py

Writes benchmarks/results/dispatch.csv and the table in docs/benchmarks.md. Both run in turns, in short rounds, and the best of each counts.
"""

from __future__ import annotations

import csv
import timeit
from pathlib import Path

import torch
import torch.distributions as td

import kullback as kb

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- dispatch:begin -->", "<!-- dispatch:end -->"
# Rounds of a millisecond or so: longer ones are interrupted on a machine that others use too.
ROUNDS, CALLS = 800, 20
PAIRS = {
    "Normal": (td.Normal, (0.0, 1.0), (1.0, 1.5)),
    "Laplace": (td.Laplace, (0.0, 1.0), (1.0, 1.5)),
    "Exponential": (td.Exponential, (2.0,), (3.0,)),
    "Gamma": (td.Gamma, (2.0, 1.0), (3.0, 1.5)),
    "Beta": (td.Beta, (2.0, 1.0), (3.0, 1.5)),
    "Bernoulli": (td.Bernoulli, (0.2,), (0.3,)),
    "Poisson": (td.Poisson, (2.0,), (3.0,)),
    "Uniform": (td.Uniform, (0.0, 1.0), (-1.0, 2.0)),
}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, (family, a, b) in PAIRS.items():
        p, q = (family(*map(torch.tensor, x)) for x in (a, b))
        best = {}
        for _ in range(ROUNDS):
            for who, call in (("torch", td.kl_divergence), ("kullback", kb.kl)):
                seconds = timeit.timeit(lambda call=call, p=p, q=q: call(p, q), number=CALLS) / CALLS
                best[who] = min(best.get(who, seconds), seconds)
        rows.append((name, best["torch"] * 1e6, best["kullback"] * 1e6, best["kullback"] / best["torch"]))
        print("{}: torch {:.1f} µs, kullback {:.1f} µs, × {:.2f}".format(*rows[-1]))
    with open(HERE / "results" / "dispatch.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["pair", "torch_us", "kullback_us", "ratio"])
        writer.writerows((name, f"{x:.2f}", f"{y:.2f}", f"{r:.2f}") for name, x, y, r in rows)
    table = ["| single pair, PyTorch | torch.distributions, µs | kullback, µs | ratio |", "|---|---|---|---|"]
    table += [f"| {name}‖{name} | {x:.1f} | {y:.1f} | {r:.2f} |" for name, x, y, r in rows]
    text = DOCS.read_text()
    if BEGIN not in text:
        text += f"\n## One call\n\n`python benchmarks/dispatch.py`; scalars, float32, no gradient.\n\n{BEGIN}\n{END}\n"
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCS.write_text(text[:start] + "\n" + "\n".join(table) + "\n" + text[end:])


if __name__ == "__main__":
    main()

"""What one call costs: KL of a single pair of PyTorch distributions, ours beside torch.distributions.kl_divergence.

    python benchmarks/dispatch.py

Writes benchmarks/results/dispatch.csv and the table in docs/benchmarks.md. Both run in turns, in short rounds of CPU time, and the best of
each counts. With gradients: parameters that require them, and the time of the call and of `backward`.
"""

from __future__ import annotations

import csv
import platform
import time
from pathlib import Path

import torch
import torch.distributions as td

import kullback as kb

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- dispatch:begin -->", "<!-- dispatch:end -->"
# Rounds of a millisecond or so: longer ones are interrupted on a machine that others use too.
ROUNDS, CALLS = 200, 20
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


def microseconds(p, q, after=lambda value: value):
    """Of theirs and of ours."""
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        for i, call in enumerate((td.kl_divergence, kb.kl)):
            start = time.process_time_ns()
            for _ in range(CALLS):
                after(call(p, q))
            best[i] = min(best[i], (time.process_time_ns() - start) / CALLS / 1e3)
    return best


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, (family, a, b) in PAIRS.items():
        plain = microseconds(*(family(*map(torch.tensor, x)) for x in (a, b)))
        wanted = [family(*(torch.tensor(y, requires_grad=True) for y in x), validate_args=False) for x in (a, b)]
        call = microseconds(*wanted)
        both = microseconds(*wanted, after=lambda value: value.backward(retain_graph=True))
        rows.append((name, *(figure for pair in (plain, call, both) for figure in (*pair, pair[1] / pair[0]))))
        said = "{}: torch {:.1f} µs, kullback {:.1f} µs, × {:.2f}; with gradients × {:.2f}, and backward × {:.2f}"
        print(said.format(*(rows[-1][i] for i in (0, 1, 2, 3, 6, 9))), flush=True)
    with open(HERE / "results" / "dispatch.csv", "w", newline="") as file:
        writer = csv.writer(file)
        kinds = ("", "_requires_grad", "_with_backward")
        writer.writerow(["pair", *(f"{what}{kind}" for kind in kinds for what in ("torch_us", "kullback_us", "ratio"))])
        writer.writerows((row[0], *(f"{x:.2f}" for x in row[1:])) for row in rows)
    table = [f"{platform.machine()}; Python {platform.python_version()}, PyTorch {torch.__version__}.", ""]
    table += [
        "| single pair, PyTorch | torch, µs | kullback, µs | ratio | with requires_grad | and backward |",
        "|---|---|---|---|---|---|",
    ]
    table += [f"| {r[0]}‖{r[0]} | {r[1]:.1f} | {r[2]:.1f} | {r[3]:.2f} | {r[6]:.2f} | {r[9]:.2f} |" for r in rows]
    text = DOCS.read_text()
    if BEGIN not in text:
        text += f"\n## One call\n\n`python benchmarks/dispatch.py`; scalars, float32, CPU time.\n\n{BEGIN}\n{END}\n"
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCS.write_text(text[:start] + "\n" + "\n".join(table) + "\n" + text[end:])


if __name__ == "__main__":
    main()

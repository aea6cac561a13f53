"""The plots of the benchmarks, from the files in benchmarks/results that the tables are written from."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.figure import Figure

from themed import FAINT, INK, P, Q, themed

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def read(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def plainly(value: float, _: int | None = None) -> str:
    """A number on a logarithmic axis, without a raised exponent, which would be tiny on a phone."""
    return f"{value:g}" if 1e-3 <= value <= 1e3 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def is_ours(what: str) -> bool:
    return what.startswith("kullback")


@themed(5.4, 5.6)
def accuracy(figure: Figure) -> None:
    """Worst relative error over the true KL: one line a candidate."""
    rows = read("accuracy")
    for axis, form in zip(figure.subplots(2, 1, sharex=True, sharey=True), ("probs", "logits")):
        for what in dict.fromkeys(row["what"] for row in rows if row["form"] == form):
            points = sorted(
                (float(row["true KL"]), float(row["worst relative error"])) for row in rows if row["form"] == form and row["what"] == what
            )
            colour, style = (P, "-") if is_ours(what) else (Q, "--")
            axis.plot(*zip(*points), color=colour, linestyle=style, marker="o", markersize=3, linewidth=1.2)
        axis.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axis.text(1.5e-14, 1.6, "nothing right", fontsize=10, va="bottom")
        axis.text(1e-8, 8e-7, "kullback, every framework", color=P, ha="center")
        axis.text(3e-9, 3e3, "SciPy, PyTorch, JAX, optax, Keras" if form == "probs" else "SciPy, PyTorch, JAX", color=Q, ha="left")
        axis.set(xscale="log", yscale="log", title=f"from {form}", ylabel="worst relative error")
        axis.yaxis.set_major_formatter(plainly)
        axis.grid(axis="y", linewidth=0.5)
    axis.set_xlabel("true KL")
    axis.xaxis.set_major_formatter(plainly)


def bars(figure: Figure, named: list[tuple[str, float]], label: str, floor: float | None = None) -> None:
    axis = figure.subplots()
    names, values = zip(*named[::-1])
    colours = [P if is_ours(name) else Q for name in names]
    drawn = axis.barh(range(len(names)), values, color=colours, alpha=0.55)
    for bar, name in zip(drawn, names):
        if not is_ours(name):
            bar.set(hatch="//", edgecolor=Q, linewidth=0.5)
    axis.set_yticks(range(len(names)), names, fontsize=10)
    for i, value in enumerate(values):
        axis.text(value, i, f" {value:.3g}", va="center", fontsize=10)
    if floor is not None:
        axis.axvline(floor, color=INK, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlabel=label, xlim=(None, max(values) * 2))
    axis.xaxis.set_major_formatter(plainly)
    axis.xaxis.set_minor_formatter("")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", linewidth=0.5, color=FAINT)


@themed(5.4, 5.2)
def cpu(figure: Figure) -> None:
    rows = [row for row in read("cpu") if row["group"] == "throughput" and row["input"]]
    bars(figure, [(f"{row['what']}, {row['input']}", float(row["x floor"])) for row in rows], "× the time to read both arrays", 1)


@themed(5.4, 3.0)
def gpu(figure: Figure) -> None:
    rows = [row for row in read("gpu") if (row["rows"], row["columns"]) == ("8192", "128256")]
    bars(figure, [(row["what"], float(row["times_floor"])) for row in rows], "× the time to read both arrays and write a third", 1)


@themed(5.4, 3.4)
def dispatch(figure: Figure) -> None:
    named = [(f"{who}: {row['pair']}", float(row[f"{who}_us"])) for row in read("dispatch") for who in ("kullback", "torch")]
    bars(figure, named, "µs a call")


@themed(5.4, 2.0)
def samples(figure: Figure) -> None:
    bars(figure, [(row["library"], float(row["times_kullback"])) for row in read("samples_speed")], "× kullback's time", 1)

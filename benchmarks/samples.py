"""Estimates from samples: how far off, how often the interval covers the truth, and how fast, over a zoo of pairs whose KL is known.

    python benchmarks/samples.py accuracy [--seeds 20] [--only D,N] [--table]
    python benchmarks/samples.py coverage [--seeds 20]
    python benchmarks/samples.py speed --peers PYTHON [--rows 1000000]

`accuracy` takes an hour on one core; `--only` measures one dimension and sample size, and leaves the other rows as they are; `--table`
measures nothing. `coverage` is of the other estimators' intervals. They write benchmarks/results/samples.csv, samples_coverage.csv and
samples_speed.csv, and the tables in docs/estimators-samples.md.
`--peers` is the interpreter of an environment that has infomeasure and divergence. Peers and kullback run in turn, each in a process of
its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "estimators-samples.md"
Sampler = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _quad(log_p: Callable[[float], float], log_q: Callable[[float], float], low: float, high: float) -> float:
    from scipy.integrate import quad

    return float(quad(lambda t: math.exp(log_p(t)) * (log_p(t) - log_q(t)), low, high, limit=400)[0])


def zoo(d: int) -> dict[str, tuple[Sampler, float]]:
    """Name: a sampler of n points of each, and KL(P‖Q), by formula or by quadrature in one dimension."""
    from scipy import special, stats

    first = np.eye(d)[0]

    def gauss(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((n, d))

    def bimodal(n: int, rng: np.random.Generator) -> np.ndarray:
        x = gauss(n, rng)
        x[:, 0] += 2.0 * rng.choice([-1, 1], n)
        return x

    def bent(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[:, :1], x[:, 1:2] + x[:, :1] ** 2, x[:, 2:]], 1)

    def ring(n: int, rng: np.random.Generator, radius: float, width: float) -> np.ndarray:
        x, r, angle = gauss(n, rng), radius + width * rng.standard_normal(n), rng.uniform(0, 2 * np.pi, n)
        x[:, 0], x[:, 1] = r * np.cos(angle), r * np.sin(angle)
        return x

    def tied(n: int, rng: np.random.Generator) -> np.ndarray:
        x = gauss(n, rng)
        x[:, 1] = 0.9 * x[:, 0] + math.sqrt(1 - 0.81) * x[:, 1]
        return x

    def labelled(n: int, rng: np.random.Generator, p: float, shift: float) -> np.ndarray:
        x, label = gauss(n, rng), rng.random(n) < p
        x[:, 1] += shift * label
        x[:, 0] = label
        return x

    # Two ratios that no model in kullback can express.
    def waves(n: int, rng: np.random.Generator) -> np.ndarray:
        """On the cube, of density 1 + sin 4πx₀ sin 4πx₁, by rejection."""
        x = rng.random((3 * n, d))
        accepted = x[2 * rng.random(3 * n) < 1 + np.sin(4 * np.pi * x[:, 0]) * np.sin(4 * np.pi * x[:, 1])][:n]
        assert len(accepted) == n
        return accepted

    def octants(n: int, rng: np.random.Generator) -> np.ndarray:
        """Normal where x₀x₁x₂ > 0."""
        x = gauss(n, rng)
        x[:, 0] *= np.sign(x[:, 0] * x[:, 1] * x[:, 2])
        return x

    middle = np.sin(4 * np.pi * (np.arange(1000) + 0.5) / 1000)
    ripples = 1 + middle[:, None] * middle  # at the middles of 1000² cells: right to 1e-6
    t3, wide = stats.t(3), stats.t(3, 1, 1.5)
    two = lambda t: float(np.logaddexp(stats.norm.logpdf(t, -2), stats.norm.logpdf(t, 2)) - math.log(2))  # noqa: E731
    beta = float(special.digamma(2) + 2 * special.digamma(3) - 3 * special.digamma(5) - special.betaln(2, 3))
    laplace = math.log(1.2) + (math.exp(-0.6) + 0.6) / 1.2 - 1
    pairs: dict[str, tuple[Sampler, float]] = {
        "normal, shifted": (lambda n, r: (gauss(n, r), gauss(n, r) + first), 0.5),
        "the same": (lambda n, r: (gauss(n, r), gauss(n, r)), 0.0),
        "normal, wider": (lambda n, r: (gauss(n, r), 1.3 * gauss(n, r)), d * (math.log(1.3) + 0.5 / 1.69 - 0.5)),
        "Laplace": (lambda n, r: (r.laplace(size=(n, d)), r.laplace(0.6, 1.2, (n, d))), d * laplace),
        "beta, uniform": (lambda n, r: (r.beta(2, 3, (n, d)), r.random((n, d))), d * beta),
        "uniform, wider": (lambda n, r: (r.random((n, d)), 1.2 * r.random((n, d))), d * math.log(1.2)),
        "Student t3": (
            lambda n, r: (r.standard_t(3, (n, d)), 1 + 1.5 * r.standard_t(3, (n, d))),
            d * _quad(lambda t: float(t3.logpdf(t)), lambda t: float(wide.logpdf(t)), -np.inf, np.inf),
        ),
        "lognormal, shifted": (lambda n, r: (np.exp(1.5 * gauss(n, r)), np.exp(1.5 * (gauss(n, r) + first))), 0.5),
        "two modes, one": (
            lambda n, r: (bimodal(n, r), gauss(n, r) * (1 + (math.sqrt(5) - 1) * first)),
            _quad(two, lambda t: float(stats.norm.logpdf(t, 0, math.sqrt(5))), -14, 14),
        ),
    }
    if d > 1:
        second = np.eye(d)[1]
        label = 0.6 * math.log(0.6 / 0.4) + 0.4 * math.log(0.4 / 0.6)
        pairs |= {
            "banana": (lambda n, r: (bent(gauss(n, r)), bent(gauss(n, r) + second)), 0.5),
            "correlated": (lambda n, r: (tied(n, r), gauss(n, r)), -0.5 * math.log(1 - 0.81)),
            "ring": (lambda n, r: (ring(n, r, 3, 0.3), ring(n, r, 3.2, 0.4)), math.log(4 / 3) + 0.13 / 0.32 - 0.5),
            "waves": (lambda n, r: (waves(n, r), r.random((n, d))), float(np.mean(ripples * np.log(ripples)))),
            "label and normal": (lambda n, r: (labelled(n, r, 0.6, 1.0), labelled(n, r, 0.4, 0.0)), label + 0.6 * 0.5),
        }
    if d > 2:
        pairs["octants"] = (lambda n, r: (octants(n, r), gauss(n, r)), math.log(2))
    return pairs


def _measure(name: str, d: int, n: int, count: int, sample: Sampler, truth: float) -> dict[str, Any]:
    from kullback.estimators import from_samples, nearest_neighbours

    plain, auto, errors, covered, widths, seconds = [], [], [], [], [], 0.0
    for seed in range(count):
        x, y = sample(n, np.random.default_rng(seed))
        if name != "label and normal":  # a label has no density
            plain.append(nearest_neighbours(x, y, interval=False).value)
        start = time.process_time()
        found = from_samples(x, y)
        seconds += time.process_time() - start
        auto.append(found.value)
        errors.append(found.stderr)
        covered.append(found.interval[0] <= truth <= found.interval[1])
        widths.append(0.5 * (found.interval[1] - found.interval[0]))
    row = {"kl": truth}
    off = {}
    for method, values in (("plain", plain), ("auto", auto)):
        off[method] = np.abs(np.array(values or [math.nan]) - truth)
        row |= {f"{method}_mean": np.mean(values or [math.nan]), f"{method}_off": np.mean(off[method])}
    # How much farther off auto is, on the same samples, in standard errors of that mean.
    excess = off["auto"] - off["plain"]
    row["worse_by"] = float(np.mean(excess) / max(np.std(excess, ddof=1) / math.sqrt(count), 1e-9)) if plain else math.nan
    row |= {"auto_sd": np.std(auto), "stderr": np.mean(errors), "half_width": np.mean(widths), "coverage": np.mean(covered)}
    row["cpu_seconds"] = seconds / count
    return {"pair": name, "d": d, "n": n, "seeds": count, **{k: float(f"{v:.4g}") for k, v in row.items()}}


GRID = [*((d, n) for n in (1000, 10_000) for d in (10, 5, 3, 2, 1)), (20, 1000), (50, 1000)]


def _seeds(name: str, d: int, n: int, seeds: int) -> int:
    """Coverage takes many; ten thousand points take two seconds in three dimensions, ten in ten."""
    if n == 1000 and d <= 5:
        return 5 * seeds
    if d <= 2 or (d == 10 and (n == 1000 or name == "normal, shifted")):
        return seeds
    return max(seeds // (8 if d == 10 else 4), 2)


def accuracy(seeds: int, only: tuple[int, int] | None, table: bool) -> None:
    path = HERE / "results" / "samples.csv"
    rows = {}
    if only or table:
        with path.open(newline="") as file:
            for r in csv.DictReader(file):
                numbers = {k: float(v) for k, v in r.items() if k != "pair"}
                rows[r["pair"], int(r["d"]), int(r["n"])] = {"pair": r["pair"], **numbers, **{k: int(r[k]) for k in ("d", "n", "seeds")}}
    cells = [(name, d, n) for name in zoo(3) for d, n in GRID if name in zoo(d)]
    for name, d, n in cells:
        if table or (only and only != (d, n)) or (d > 20 and name != "normal, shifted"):
            continue
        sample, truth = zoo(d)[name]
        rows[name, d, n] = _measure(name, d, n, _seeds(name, d, n, seeds), sample, truth)
        print(rows[name, d, n], flush=True)
        _write(path, [rows[cell] for cell in cells if cell in rows])
    _table("accuracy", _accuracy_table([rows[cell] for cell in cells if cell in rows]))


def _accuracy_table(rows: list[dict[str, Any]]) -> list[str]:
    from scipy.special import stdtrit

    worse = [f"{r['pair']}, d = {r['d']}, n = {r['n']}" for r in rows if r["worse_by"] > stdtrit(r["seeds"] - 1, 0.975)]
    short = [f"{r['pair']}, d = {r['d']}, n = {r['n']}" for r in rows if r["coverage"] < 0.9]
    lines = [
        f"Farther off than plain, beyond the noise of so many seeds (95%): {'; '.join(worse) or 'none'}.",
        "",
        f"Intervals that cover the truth less than 90% of the time: {'; '.join(short) or 'none'}.",
        "",
        "| pair | d | n | KL | plain: mean | off by | auto: mean | off by | interval ± | covers |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        plain = ("", "") if math.isnan(r["plain_mean"]) else (f"{r['plain_mean']:.3f}", f"{r['plain_off']:.3f}")
        lines.append(
            f"| {r['pair']} | {r['d']} | {r['n']} | {r['kl']:.3f} | {plain[0]} | {plain[1]} | {r['auto_mean']:.3f} | {r['auto_off']:.3f} | "
            f"{r['half_width']:.2f} | {100 * r['coverage']:.0f}% of {r['seeds']} |"
        )
    return lines


def _others() -> list[tuple[str, str, int, float, Callable[[int, np.random.Generator], Any]]]:
    """Estimator, data, rows, KL, and one estimate from so many rows: everything that `accuracy` does not measure."""
    from scipy import stats

    from kullback.estimators import nearest_neighbours, one_sample, plug_in, variational

    out: list[tuple[str, str, int, float, Callable[[int, np.random.Generator], Any]]] = []
    for d in (1, 2, 3, 5):
        sample = zoo(d)["normal, shifted"][0]
        shift = stats.multivariate_normal(np.eye(d)[0], np.eye(d)).logpdf
        out += [
            ("nearest_neighbours", f"normal, shifted, d = {d}", 1000, 0.5, lambda n, r, s=sample: nearest_neighbours(*s(n, r))),
            (
                "nearest_neighbours, adaptive, k = 3",
                f"normal, shifted, d = {d}",
                1000,
                0.5,
                lambda n, r, s=sample: nearest_neighbours(*s(n, r), 3, variant="adaptive"),
            ),
            ("one_sample, k = 3", f"normal, shifted, d = {d}", 1000, 0.5, lambda n, r, s=sample, q=shift: one_sample(s(n, r)[0], q, 3)),
        ]
    for size, n in ((4, 100), (4, 1000), (30, 1000)):
        p, q = (np.arange(1, size + 1.0) ** power for power in (-1.0, -0.7))
        p, q = p / p.sum(), q / q.sum()
        for correction in (None, "miller_madow", "bayes"):
            out.append(
                (
                    f"plug_in, {correction}",
                    f"{size} categories",
                    n,
                    float(np.sum(p * np.log(p / q))),
                    lambda n, r, c=correction, p=p, q=q: plug_in(r.choice(len(p), n, p=p), r.choice(len(q), n, p=q), correction=c),
                )
            )
    sample = zoo(3)["normal, shifted"][0]
    for bound in ("donsker_varadhan", "nwj", "classifier"):
        out.append(
            (f"variational, {bound}", "normal, shifted, d = 3", 2000, 0.5, lambda n, r, b=bound: variational(*sample(n, r), bound=b))
        )
        out.append(
            (
                f"variational, {bound}, log p/q as critic",
                "normal, shifted, d = 3",
                1000,
                0.5,
                lambda n, r, b=bound: variational(*sample(n, r), bound=b, critic=lambda z: 0.5 - z[:, 0]),
            )
        )
    return out


def coverage(seeds: int) -> None:
    rows = []
    for estimator, data, n, truth, draw in _others():
        count = seeds // 2 if estimator.startswith("variational") and "critic" not in estimator else 5 * seeds
        found = [draw(n, np.random.default_rng(seed)) for seed in range(count)]
        covered = np.mean([e.interval[0] <= truth <= e.interval[1] for e in found])
        below = np.mean([e.lower <= truth for e in found]) if found[0].lower is not None else math.nan
        half = np.mean([0.5 * (e.interval[1] - e.interval[0]) for e in found])
        row = {"kl": truth, "mean": np.mean([e.value for e in found]), "half_width": half, "coverage": covered, "bound_holds": below}
        rows.append({"estimator": estimator, "data": data, "n": n, "seeds": count, **{k: float(f"{v:.4g}") for k, v in row.items()}})
        print(rows[-1], flush=True)
    _write(HERE / "results" / "samples_coverage.csv", rows)
    lines = ["| estimator | data | n | KL | mean | interval ± | covers KL | `lower` holds |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        holds = "" if math.isnan(r["bound_holds"]) else f"{100 * r['bound_holds']:.0f}%"
        lines.append(
            f"| {r['estimator']} | {r['data']} | {r['n']} | {r['kl']:.3f} | {r['mean']:.3f} | {r['half_width']:.3f} | "
            f"{100 * r['coverage']:.0f}% of {r['seeds']} | {holds} |"
        )
    _table("coverage", lines)


_RUN = """
import json, resource, sys, time
import numpy as np
rng = np.random.default_rng(0)
n = int(sys.argv[2])
x, y = rng.standard_normal((n, 3)), rng.standard_normal((n, 3)) + 0.5
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "kullback":
    from kullback.estimators import nearest_neighbours
    call = lambda: nearest_neighbours(x, y, k=4, interval=False).value
elif sys.argv[1] == "kullback, with interval":
    from kullback.estimators import nearest_neighbours
    call = lambda: nearest_neighbours(x, y, k=4).value
elif sys.argv[1] == "divergence":
    from divergence.knn import knn_kl_divergence
    call = lambda: knn_kl_divergence(x, y, k=4)
else:
    import infomeasure
    call = lambda: infomeasure.kullback_leiber_divergence(x, y, approach="metric", k=4)
start = time.perf_counter()
value = float(call())
seconds = time.perf_counter() - start
peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
from importlib.metadata import version
print(json.dumps({"seconds": seconds, "value": value, "extra_mb": peak, "version": version(sys.argv[1].split(",")[0])}))
"""


def speed(peers: str, rows: int, rounds: int) -> None:
    names = ["kullback", "kullback, with interval", "divergence", "infomeasure"]
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name in names:
            python = sys.executable if name.startswith("kullback") else peers
            done = subprocess.run([python, "-c", _RUN, name, str(rows)], capture_output=True, text=True, check=True, timeout=1800)
            found = json.loads(done.stdout.splitlines()[-1])
            print(name, found, flush=True)
            if name not in best or found["seconds"] < best[name]["seconds"]:
                best[name] = found
    out = [
        {"library": name, "version": best[name].pop("version"), "rows": rows, **{k: float(f"{v:.4g}") for k, v in best[name].items()}}
        for name in names
    ]
    for r in out:
        r["times_kullback"] = float(f"{r['seconds'] / out[0]['seconds']:.3g}")
    _write(HERE / "results" / "samples_speed.csv", out)
    lines = [f"| n = m = {rows:,}, d = 3, k = 4 | × kullback's time | memory beyond the data | estimate (KL 0.375) |", "|---|---|---|---|"]
    lines += [f"| {r['library']} {r['version']} | {r['times_kullback']:.2g} | {r['extra_mb']:.0f} MB | {r['value']:.4f} |" for r in out]
    _table("speed", lines)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _table(name: str, lines: list[str]) -> None:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = DOCS.read_text()
    before, rest = text.split(begin)
    DOCS.write_text(before + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["accuracy", "coverage", "speed"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if given.part == "accuracy":
        accuracy(given.seeds, given.only, given.table)
    elif given.part == "coverage":
        coverage(given.seeds)
    else:
        speed(given.peers, given.rows, given.rounds)

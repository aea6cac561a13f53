"""Makes truths.csv: KL of every finite pair of one-dimensional families by the definition (`densities.definition`), to 20 digits.

`python tests/helpers/truths.py` adds the rows that are missing. The whole file takes half an hour. The tests read it, and recompute
a few rows.
Parameters are numbers that float32 holds, so that one row serves both precisions.
"""

from __future__ import annotations

import csv
import multiprocessing
import sys
import zlib
from pathlib import Path

import mpmath as mp
import numpy as np

import densities
from kullback._distributions import closed  # noqa: F401  registers the pairs, and nothing else of it is used
from kullback._distributions.registry import look_up, pairs_with_formulas

FILE = Path(__file__).with_name("truths.csv")

# What each parameter is. "scale" and "loc" are in the unit of x; "spread" is its square, "log_loc" its logarithm.
PARAMETERS = {
    "Normal": "loc scale",
    "Laplace": "loc scale",
    "Cauchy": "loc scale",
    "Gumbel": "loc scale",
    "Logistic": "loc scale",
    "Moyal": "loc scale",
    "ExpGamma": "conc free_rate",
    "ExpGammaLog": "conc free",
    "ExpInverseGamma": "conc free_rate",
    "ExpInverseGammaLog": "conc free",
    "GeneralizedNormal": "loc scale power",
    "NormalLogScale": "loc log_scale",
    "VonMises": "free conc",
    "Gamma": "conc rate",
    "GammaLog": "conc free",
    "GammaScale": "conc scale",
    "InverseGamma": "conc scale",
    "Exponential": "rate",
    "Chi2": "df",
    "HalfNormal": "scale",
    "HalfCauchy": "scale",
    "LogNormal": "log_loc width",
    "Weibull": "power scale",
    "Pareto": "tail scale",
    "InverseGaussian": "scale scale",
    "GeneralizedGamma": "conc power scale",
    "Chi": "df",
    "Rayleigh": "scale",
    "Maxwell": "scale",
    "Nakagami": "conc spread",
    "InverseWeibull": "power scale",
    "Levy": "scale",
    "Uniform": "interval interval",
    "Beta": "conc conc",
    "LogitNormal": "free width",
    "ContinuousBernoulli": "prob",
    "ContinuousBernoulliLogits": "free",
    "Kumaraswamy": "power power",
    "TruncatedNormal": "loc scale interval interval",
    "Bernoulli": "prob",
    "BernoulliLogits": "free",
    "ProbitBernoulli": "free",
    "Geometric": "prob",
    "Poisson": "count",
    "PoissonLog": "free",
    "Binomial": "trials prob",
    "NegativeBinomial": "failures prob",
    "BinomialLogits": "trials free",
    "GeometricLogits": "free",
    "NegativeBinomialLogits": "failures free",
}
# Of these the closed form asks for something more than both families.
SAME = {
    ("Logistic", "Logistic"): 1,
    ("GeneralizedNormal", "GeneralizedNormal"): 0,
    ("GeneralizedNormal", "Laplace"): 0,
    ("Laplace", "GeneralizedNormal"): 0,
    ("Normal", "GeneralizedNormal"): 0,
    ("Kumaraswamy", "Kumaraswamy"): 0,
    **{(f"{f}{a}", f"{f}{b}"): 0 for f in ("Binomial", "NegativeBinomial") for a in ("", "Logits") for b in ("", "Logits")},
}
UNIT = ("Beta", "ContinuousBernoulli", "ContinuousBernoulliLogits", "Kumaraswamy", "LogitNormal")
ROUNDS = ("moderate", "extreme", "extreme", "near", "near")
# Members of both families that are one law, or nearly so.
NESTED = {
    ("Exponential", "Gamma"): ((1.3,), (1.0, 1.3)),
    ("Gamma", "Exponential"): ((1.0, 1.3), (1.3,)),
    ("Chi2", "Gamma"): ((3.0,), (1.5, 0.5)),
    ("Gamma", "Chi2"): ((1.5, 0.5), (3.0,)),
    ("Gamma", "GammaLog"): ((2.5, 1.3), (2.5, 0.2623643)),
    ("GammaLog", "Gamma"): ((2.5, 0.3), (2.5, 1.3498588)),
    ("Poisson", "PoissonLog"): ((1.3,), (0.2623643,)),
    ("PoissonLog", "Poisson"): ((0.3,), (1.3498588,)),
    ("GammaScale", "Gamma"): ((2.5, 0.25), (2.5, 4.0)),
    ("Weibull", "Gamma"): ((1.0, 0.5), (1.0, 2.0)),
    ("Gamma", "GeneralizedGamma"): ((2.5, 1.0), (2.5, 1.0, 1.0)),
    ("GeneralizedGamma", "Weibull"): ((1.0, 1.5, 2.0), (1.5, 2.0)),
    ("Exponential", "Weibull"): ((2.0,), (1.0, 0.5)),
    ("HalfNormal", "Chi"): ((1.0,), (1.0,)),
    ("Rayleigh", "Chi"): ((1.0,), (2.0,)),
    ("Maxwell", "Chi"): ((1.0,), (3.0,)),
    ("Uniform", "Beta"): ((0.0, 1.0), (1.0, 1.0)),
    ("Beta", "Uniform"): ((1.0, 1.0), (0.0, 1.0)),
    ("Uniform", "ContinuousBernoulli"): ((0.0, 1.0), (0.5,)),
    ("Beta", "ContinuousBernoulli"): ((1.0, 1.0), (0.5,)),
    ("ContinuousBernoulli", "Uniform"): ((0.5,), (0.0, 1.0)),
    ("GeneralizedNormal", "Normal"): ((0.0, 1.0, 2.0), (0.0, 0.70710678)),
    ("Laplace", "GeneralizedNormal"): ((0.0, 1.0), (0.0, 1.0, 1.0)),
    ("Geometric", "NegativeBinomial"): ((0.25,), (1.0, 0.75)),
    ("Bernoulli", "Binomial"): ((0.25,), (1.0, 0.25)),
    ("Levy", "InverseGamma"): ((2.0,), (0.5, 1.0)),
    ("Gamma", "Normal"): ((1e6, 1.0), (1e6, 1e3)),
    ("Beta", "Normal"): ((1e5, 2e5), (1 / 3, 8.6066e-4)),
    ("Beta", "Gamma"): ((2.0, 1e5), (2.0, 1e5)),
    ("LogNormal", "Gamma"): ((0.0, 1e-2), (1e4, 1e4)),
    ("LogNormal", "Normal"): ((0.0, 1e-2), (1.0, 1e-2)),
    ("Gamma", "LogNormal"): ((1e4, 1e4), (0.0, 1e-2)),
    ("TruncatedNormal", "Normal"): ((0.3, 0.1, -0.5, 1.0), (0.3, 0.1)),
    ("ContinuousBernoulli", "Exponential"): ((1e-6,), (13.8155,)),
}


def _one(kind, rng, extreme, unit):
    wide = 10 ** rng.uniform(-3, 6) if extreme else 10 ** rng.uniform(-0.2, 0.7)
    near = 10 ** rng.uniform(-1, 1) if extreme else 10 ** rng.uniform(-0.3, 0.3)
    return {
        "loc": unit * rng.normal(),
        "scale": unit * near,
        "rate": near / unit,
        "spread": unit * unit * near,
        "log_scale": np.log(unit * near),
        "log_loc": np.log(unit) + rng.normal(),
        "width": 10 ** (rng.uniform(-2, 0.3) if extreme else rng.uniform(-0.5, 0.2)),
        "conc": wide,
        "df": wide if extreme else 2 * wide,
        "power": 10 ** (rng.uniform(-0.7, 0.9) if extreme else rng.uniform(-0.2, 0.4)),
        "tail": 3.0 + wide,
        "free": 3 * rng.normal() if extreme else rng.normal(),
        "free_rate": 10 ** rng.uniform(-2, 2) if extreme else near,
        "prob": rng.choice([10 ** rng.uniform(-5, -1), 1 - 10 ** rng.uniform(-3, -1)]) if extreme else rng.uniform(0.15, 0.85),
        "count": 10 ** rng.uniform(-3, 2) if extreme else near,
        "trials": float(rng.integers(1, 40)),
        "failures": near,
        "interval": 0.0,
    }[kind]


def _interval(p, q, rng, extreme, unit):
    """The ends of P's Uniform or truncated interval, and Q's: that of P inside."""
    if p in UNIT or q in UNIT:
        inner = (
            sorted(rng.uniform(0, 1, 2)) if not extreme else sorted(rng.choice([0.0, 1e-4, 0.3, 0.300001, 1 - 1e-4, 1.0], 2, replace=False))
        )
        return inner, [-rng.uniform(0, 1), 1 + rng.uniform(0, 1)]
    low = unit * rng.uniform(0.1, 2)
    inner = [low, low + unit * 10 ** (rng.uniform(-4, 2) if extreme else rng.uniform(-0.3, 0.3))]
    return inner, [inner[0] - unit * rng.uniform(0.1, 1), inner[1] + unit * rng.uniform(0.1, 1)]


def parameters(p, q, kind, rng):
    """Two tuples of numbers that float32 holds, or None."""
    kinds = [PARAMETERS[p].split(), PARAMETERS[q].split()]
    if kind == "near":
        if p == q:
            first = [_one(k, rng, False, 1.0) for k in kinds[0]]
            if p == "Uniform":
                return None
            if p == "TruncatedNormal":
                first[2:] = [first[0] - 1.0, first[0] + 2.0]
            second = list(first)
        elif (p, q) in NESTED:
            first, second = (list(x) for x in NESTED[p, q])
        else:
            return None
        step = 10.0 ** rng.uniform(-5, -1)
        fixed = {"trials", "failures", "interval"}
        first = [np.float32(x) for x in first]
        second = [
            x if k in fixed or SAME.get((p, q)) == i else x * (1 + step * rng.uniform(-1, 1))
            for i, (x, k) in enumerate(zip(second, kinds[1]))
        ]
        if p == q == "Pareto":
            second[1] = min(second[1], first[1])
        return [float(x) for x in first], [float(np.float32(x)) for x in second]
    extreme = kind == "extreme"
    unit = (
        10 ** rng.uniform(-6, 6)
        if extreme and not {p, q} & {*UNIT, "Chi", "Chi2", "ExpGamma", "ExpGammaLog", "VonMises", "Bernoulli"}
        else 1.0
    )
    first, second = ([_one(k, rng, extreme, unit) for k in side] for side in kinds)
    if extreme and p == q and rng.uniform() < 0.7:  # else of concentrations that have nothing in common
        second = [x * 10 ** rng.uniform(-0.5, 0.5) for x in first]
    if p in ("Beta", "Kumaraswamy"):
        first[1] = max(first[1], 0.3)  # below, its mass lies closer to 1 than any number of digits can tell
    inner, outer = _interval(p, q, rng, extreme, unit)
    for side, ends, values in ((kinds[0], inner, first), (kinds[1], outer, second)):
        if "interval" in side:
            start = side.index("interval")
            values[start : start + 2] = ends
    if (p, q) == ("Pareto", "Pareto"):
        second[1] = min(second[1], first[1])
    if (p, q) == ("Uniform", "Pareto"):
        second[1] = first[0] * rng.uniform(0.1, 1.0)
    if (p, q) in SAME:
        second[SAME[p, q]] = first[SAME[p, q]]
    if q == "Cauchy" and p == "HalfCauchy":
        second[0] = 0.0
    if "Geometric" in p and "Negative" in q:
        second[0] = 1.0
    if "Negative" in p and "Geometric" in q:
        first[0] = 1.0
    return tuple([float(np.float32(x)) for x in side] for side in (first, second))


def finite_pairs():
    names = [(p.__name__, q.__name__) for p, q in pairs_with_formulas() if _computed(p, q)]
    return [pair for pair in names if all(name in PARAMETERS for name in pair)]


def _computed(p, q):
    # Counts beyond what Q can reach are inf, but for degenerate parameters: tested by themselves.
    beyond = (p.support, q.support) in (("counts", "trials"), ("counts", "binary"), ("trials", "binary"), ("real", "truncated"))
    return not beyond and "Delta" not in (p.__name__, q.__name__)


def condition(p, q):
    """What the closed form of two families asks of the parameters, in words."""
    match = look_up(p, q)
    return None if match is None else match.closed_form.when


def rows_of(pair):
    p, q = pair
    rng = np.random.default_rng(zlib.crc32(f"{p} {q}".encode()))
    found = []
    for kind in ROUNDS:
        for _ in range(6):  # until the truth is a number that float32 holds
            given = parameters(p, q, kind, rng)
            if given is None or given[0] == given[1]:
                break
            if any(
                x <= 0
                for side, names in zip(given, pair)
                for x, k in zip(side, PARAMETERS[names].split())
                if k in ("prob", "rate", "scale")
            ):
                continue
            try:
                truth = densities.definition(p, given[0], q, given[1], 35 if kind == "near" else 20)
            except (ValueError, TypeError, ZeroDivisionError, mp.libmp.NoConvergence, OverflowError):  # outside the parameters' range
                continue
            if isinstance(truth, mp.mpf) and mp.isfinite(truth) and 1e-20 < truth < 1e30:
                found.append((p, *map(_text, given[:1]), q, *map(_text, given[1:]), kind, mp.nstr(truth, 17)))
                break
    return found


def _text(numbers):
    return " ".join(repr(x) for x in numbers)


def read():
    with FILE.open() as file:
        for p, a, q, b, kind, truth in csv.reader(file):
            yield p, [float(x) for x in a.split()], q, [float(x) for x in b.split()], kind, float(truth)


def main() -> None:
    wanted = finite_pairs()
    rows = []
    if FILE.exists():
        with FILE.open() as file:
            rows = [tuple(row) for row in csv.reader(file) if (row[0], row[2]) in wanted]
    there = {(row[0], row[2]) for row in rows}
    wanted = [pair for pair in wanted if pair not in there]
    with multiprocessing.Pool(2) as pool:
        for i, found in enumerate(pool.imap_unordered(rows_of, wanted)):
            rows += found
            if i % 20 == 19:
                _write(rows)
            print(
                i + 1, len(wanted), len(rows), found[0][0] if found else "none", found[0][2] if found else "", file=sys.stderr, flush=True
            )
    _write(rows)


def _write(rows) -> None:
    with FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(sorted(rows))


if __name__ == "__main__":
    main()

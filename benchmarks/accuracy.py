"""How many digits of a KL survive: kullback and what people call today, float32, against 50-digit truth.

    python benchmarks/accuracy.py

Writes benchmarks/results/accuracy.csv and the tables between the `accuracy` markers of README.md and docs/numerics.md.
Needs the frameworks of requirements-test.txt.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import keras
import mpmath as mp
import numpy as np
import optax
import scipy.special
import scipy.stats
import tensorflow as tf
import tinygrad
import torch
import torch.nn.functional as F

import kullback as kb

ROOT = Path(__file__).resolve().parents[1]
CATEGORIES, ROWS = 1000, 20
TARGETS = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-14)
mp.mp.dps = 50


def make(target: float, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs of float32 rows with a KL of about `target`, as logits and as probabilities."""
    a = rng.normal(size=(ROWS, CATEGORIES)).astype(np.float32)
    b = (a + np.sqrt(2 * target) * rng.normal(size=a.shape)).astype(np.float32)
    p, q = (scipy.special.softmax(z.astype(np.float64), -1).astype(np.float32) for z in (a, b))
    return {"logits": (a, b), "probs": (p, q)}


def truth(x: np.ndarray, y: np.ndarray, form: str) -> mp.mpf:
    def log_normalised(row):
        values = [mp.mpf(float(v)) for v in row]
        logs = values if form == "logits" else [mp.log(v) for v in values]
        total = mp.log(mp.fsum(mp.exp(v) for v in logs))
        return [v - total for v in logs]

    log_p, log_q = log_normalised(x), log_normalised(y)
    return mp.fsum(mp.exp(lp) * (lp - lq) for lp, lq in zip(log_p, log_q))


def torch_logits(a, b):
    return F.kl_div(torch.log_softmax(torch.tensor(b), -1), torch.log_softmax(torch.tensor(a), -1), log_target=True, reduction="none").sum(
        -1
    )


def jax_logits(a, b):
    log_p, log_q = jax.nn.log_softmax(jnp.asarray(a)), jax.nn.log_softmax(jnp.asarray(b))
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)


PEERS = {
    "probs": {
        "torch F.kl_div": lambda p, q: F.kl_div(torch.tensor(q).log(), torch.tensor(p), reduction="none").sum(-1),
        "jax.scipy rel_entr": lambda p, q: jnp.sum(jax.scipy.special.rel_entr(jnp.asarray(p), jnp.asarray(q)), -1),
        "optax kl_divergence": lambda p, q: optax.losses.kl_divergence(jnp.log(jnp.asarray(q)), jnp.asarray(p)),
        "keras kl_divergence": lambda p, q: keras.losses.kl_divergence(p, q),
        "scipy rel_entr": lambda p, q: scipy.special.rel_entr(p, q).sum(-1),
        "scipy.stats.entropy": lambda p, q: scipy.stats.entropy(p, q, axis=-1),
        "kullback, NumPy": lambda p, q: kb.kl(p, q),
        "kullback, PyTorch": lambda p, q: kb.kl(torch.tensor(p), torch.tensor(q)),
        "kullback, PyTorch compiled": lambda p, q: torch.compile(kb.kl, fullgraph=True)(torch.tensor(p), torch.tensor(q)),
        "kullback, JAX jit": lambda p, q: jax.jit(kb.kl)(jnp.asarray(p), jnp.asarray(q)),
        "kullback, TensorFlow": lambda p, q: kb.kl(tf.constant(p), tf.constant(q)),
        "kullback, tinygrad": lambda p, q: kb.kl(tinygrad.Tensor(p), tinygrad.Tensor(q)).numpy(),
    },
    "logits": {
        "torch log_softmax + F.kl_div": torch_logits,
        "jax log_softmax": jax_logits,
        "scipy log_softmax": lambda a, b: scipy.special.rel_entr(scipy.special.softmax(a, -1), scipy.special.softmax(b, -1)).sum(-1),
        "kullback, NumPy": lambda a, b: kb.kl(a, b, form="logits"),
        "kullback, PyTorch": lambda a, b: kb.kl(torch.tensor(a), torch.tensor(b), form="logits"),
        "kullback, PyTorch compiled": lambda a, b: torch.compile(lambda a, b: kb.kl(a, b, form="logits"), fullgraph=True)(
            torch.tensor(a), torch.tensor(b)
        ),
        "kullback, JAX jit": lambda a, b: jax.jit(lambda a, b: kb.kl(a, b, form="logits"))(jnp.asarray(a), jnp.asarray(b)),
        "kullback, TensorFlow": lambda a, b: kb.kl(tf.constant(a), tf.constant(b), form="logits"),
        "kullback, tinygrad": lambda a, b: kb.kl(tinygrad.Tensor(a), tinygrad.Tensor(b), form="logits").numpy(),
    },
}


def shown(error: float, negative: int) -> str:
    if error < 1e-3:
        text = f"{error:.0e}".replace("e-0", "e-")
    elif error < 1:
        text = f"{100 * error:.2g}%"
    else:
        text = f"×{error:.0f}" if error < 1000 else f"×{error:.0e}".replace("e+0", "e")
    return f"{text}, {negative} of {ROWS} negative" if negative else text


def table(rows: list[dict], form: str, only: tuple[str, ...] | None = None) -> str:
    lines = [
        f"| from {form}, true KL | " + " | ".join(f"{t:.0e}".replace("e-0", "e-") for t in TARGETS) + " |",
        "|---" * (len(TARGETS) + 1) + "|",
    ]
    names = list(dict.fromkeys(r["what"] for r in rows if r["form"] == form))
    for name in names:
        if only is None or name in only:
            cells = [shown(r["worst relative error"], r["negative"]) for r in rows if r["form"] == form and r["what"] == name]
            bold = "**" if name.startswith("kullback") else ""
            lines.append(f"| {bold}{name}{bold} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def put(path: Path, text: str) -> None:
    page = path.read_text()
    path.write_text(re.sub(r"(<!-- accuracy:begin -->\n).*?(<!-- accuracy:end -->)", lambda m: m[1] + text + "\n" + m[2], page, flags=re.S))


def main() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for target in TARGETS:
        for form, (x, y) in make(target, rng).items():
            exact = np.array([float(truth(a, b, form)) for a, b in zip(x, y)])
            for name, function in PEERS[form].items():
                found = np.asarray(function(x, y), dtype=np.float64)
                error = float(np.max(np.abs(found - exact) / exact))
                rows.append(
                    {"form": form, "true KL": target, "what": name, "worst relative error": error, "negative": int((found < 0).sum())}
                )
                print(f"{form:7} {target:.0e} {name:32} {error:.1e}", flush=True)
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    with open(results / "accuracy.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    short = (
        "torch F.kl_div", "jax.scipy rel_entr", "keras kl_divergence", "scipy.stats.entropy",
        "kullback, NumPy", "kullback, PyTorch compiled", "kullback, JAX jit",
    )  # fmt: skip
    put(ROOT / "README.md", table(rows, "probs", short))
    put(ROOT / "docs" / "numerics.md", table(rows, "probs") + "\n\n" + table(rows, "logits"))


if __name__ == "__main__":
    main()

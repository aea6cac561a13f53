"""A small network that tells two samples apart, trained in JAX. Arrays of NumPy in, a function of such arrays out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._inputs import Points

BATCH = 1024
PATIENCE = 10  # looks at the rows set aside, one each 20 steps
RATE, DECAY = 2e-3, 1e-2


def _network(weights: Any, z: Any) -> Any:
    for matrix, shift in weights[:-1]:
        z = jax.nn.silu(z @ matrix + shift)
    matrix, shift = weights[-1]
    return (z @ matrix + shift)[:, 0]


def _loss(objective: str, weights: Any, x: Any, y: Any) -> Any:
    f_x, f_y = _network(weights, x), _network(weights, y)
    if objective == "classifier":
        return 0.5 * (jax.nn.softplus(-f_x).mean() + jax.nn.softplus(f_y).mean())
    if objective == "nwj":
        return -f_x.mean() + jnp.exp(f_y).mean()
    return -f_x.mean() + jax.scipy.special.logsumexp(f_y) - jnp.log(len(f_y))


def train(x: Points, y: Points, *, objective: str, hidden: tuple[int, ...], steps: int, seed: int) -> Callable[[Points], Points]:
    rng = np.random.default_rng(seed)
    widths = (x.shape[1], *hidden, 1)
    weights = [
        (jnp.asarray(rng.normal(0, (2.0 / a) ** 0.5 * (0.1 if b == 1 else 1.0), (a, b)), jnp.float32), jnp.zeros(b, jnp.float32))
        for a, b in pairwise(widths)
    ]
    first, second = x.astype(np.float32), y.astype(np.float32)
    aside_x, aside_y = max(len(first) // 5, 1), max(len(second) // 5, 1)
    train_x, train_y = first[aside_x:], second[aside_y:]

    def update_once(weights: Any, mean: Any, square: Any, step: Any, rows_x: Any, rows_y: Any) -> Any:
        """Adam with decoupled decay and the gradient's norm held at 1 at most."""
        slope = jax.grad(lambda w: _loss(objective, w, rows_x, rows_y))(weights)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(slope)))
        slope = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), slope)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, slope)
        scale, size = 1.0 / (1.0 - 0.9**step), 1.0 / (1.0 - 0.999**step)
        weights = jax.tree.map(lambda w, m, v: w - RATE * (m * scale / (jnp.sqrt(v * size) + 1e-8) + DECAY * w), weights, mean, square)
        return weights, mean, square

    update = jax.jit(update_once)
    judge = jax.jit(lambda weights: _loss(objective, weights, first[:aside_x], second[:aside_y]))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    mean, square, best, kept, waited = zeros, zeros, np.inf, weights, 0
    for step in range(steps):
        rows_x = train_x[rng.integers(len(train_x), size=min(BATCH, len(train_x)))]
        rows_y = train_y[rng.integers(len(train_y), size=min(BATCH, len(train_y)))]
        weights, mean, square = update(weights, mean, square, step + 1.0, rows_x, rows_y)
        if step % 20 == 19:
            now = float(judge(weights))
            if now < best:
                best, kept, waited = now, weights, 0
            elif (waited := waited + 1) >= PATIENCE:
                break
    return lambda points: np.asarray(_network(kept, points.astype(np.float32)), np.float64)

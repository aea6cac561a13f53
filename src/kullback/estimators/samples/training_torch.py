"""A small network that tells two samples apart, trained in PyTorch on the CPU. Arrays of NumPy in, a function of such arrays out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ._inputs import Points

BATCH = 1024
PATIENCE = 10  # looks at the rows set aside, one each 20 steps
RATE, DECAY = 2e-3, 1e-2


def _loss(objective: str, f_x: Any, f_y: Any) -> Any:
    if objective == "classifier":
        return 0.5 * (torch.nn.functional.softplus(-f_x).mean() + torch.nn.functional.softplus(f_y).mean())
    if objective == "nwj":
        return -f_x.mean() + f_y.exp().mean()
    return -f_x.mean() + torch.logsumexp(f_y, 0) - float(np.log(len(f_y)))


def _adam(parameters: list[Any]) -> Callable[[Any], None]:
    """A step of Adam down a loss, with decoupled decay and the gradient's norm held at 1 at most.

    Not torch.optim: that loads torch.compile and Triton, which takes seconds, and aborts where TensorFlow's LLVM is loaded already.
    """
    mean, square = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = 0

    def step(loss: Any) -> None:
        nonlocal steps
        steps += 1
        slopes = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g * g).sum() for g in slopes))
        with torch.no_grad():
            for p, m, v, g in zip(parameters, mean, square, slopes):
                g = g / norm.clamp(min=1.0)
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g * g)
                p.sub_(RATE * (m / (1.0 - 0.9**steps) / (torch.sqrt(v / (1.0 - 0.999**steps)) + 1e-8) + DECAY * p))

    return step


def train(x: Points, y: Points, *, objective: str, hidden: tuple[int, ...], steps: int, seed: int) -> Callable[[Points], Points]:
    generator = torch.Generator().manual_seed(seed)
    widths = (x.shape[1], *hidden, 1)
    layers: list[Any] = []
    for a, b in pairwise(widths):
        layer = torch.nn.Linear(a, b)
        # Drawn from our own generator, so that the caller's random state stays as it is.
        with torch.no_grad():
            layer.weight.copy_(torch.randn(b, a, generator=generator) * (2.0 / a) ** 0.5 * (0.1 if b == 1 else 1.0))
            layer.bias.zero_()
        layers += [layer, torch.nn.SiLU()]
    network = torch.nn.Sequential(*layers[:-1])
    first, second = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)
    aside_x, aside_y = max(len(first) // 5, 1), max(len(second) // 5, 1)
    train_x, train_y = first[aside_x:], second[aside_y:]
    update = _adam(list(network.parameters()))
    best, state, waited = np.inf, copy.deepcopy(network.state_dict()), 0
    with torch.enable_grad():
        for step in range(steps):
            rows_x = torch.randint(len(train_x), (min(BATCH, len(train_x)),), generator=generator)
            rows_y = torch.randint(len(train_y), (min(BATCH, len(train_y)),), generator=generator)
            update(_loss(objective, network(train_x[rows_x])[:, 0], network(train_y[rows_y])[:, 0]))
            if step % 20 == 19:
                with torch.no_grad():
                    now = float(_loss(objective, network(first[:aside_x])[:, 0], network(second[:aside_y])[:, 0]))
                if now < best:
                    best, state, waited = now, copy.deepcopy(network.state_dict()), 0
                elif (waited := waited + 1) >= PATIENCE:
                    break
    network.load_state_dict(state)

    def critic(points: Points) -> Points:
        with torch.no_grad():
            return np.asarray(network(torch.as_tensor(points, dtype=torch.float32))[:, 0].numpy(), np.float64)

    return critic

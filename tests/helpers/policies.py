"""Tabular policies whose every outcome can be listed: the truth about a KL and its gradient, by direct sums and complex steps.

Nothing of kullback is used here. Derivatives are taken by f(x + ih)/h: no cancellation, so exact to float64.
"""

from __future__ import annotations

from itertools import product

import numpy as np


def log_softmax(z):
    top = z.real.max(-1, keepdims=True)
    return z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))


def slope(function, x):
    """Derivatives of function(x), of any shape, to the vector x: one axis more, the last."""
    steps = 1e-30j * np.eye(len(x))
    return np.stack([function(x + step).imag / 1e-30 for step in steps], -1)


class Policies:
    """`size` tokens, `steps` of them at most; with `stops`, token 0 ends a sequence. A policy is one vector of all its logits."""

    def __init__(self, size, steps, *, stops=False):
        self.size = size
        ends = [s for n in range(1, steps + 1) for s in product(range(size), repeat=n)]
        ends = [s for s in ends if len(s) == steps or (stops and s[-1] == 0)]
        ends = [s for s in ends if not (stops and 0 in s[:-1])]
        self.sequences = ends
        prefixes = sorted({s[:t] for s in ends for t in range(len(s))})
        self.parameters = len(prefixes) * size
        # Padding points at the first row and is masked.
        self.mask = np.array([[t < len(s) for t in range(steps)] for s in ends])
        self.row = np.array([[prefixes.index(s[:t]) if t < len(s) else 0 for t in range(steps)] for s in ends])
        self.token = np.array([[s[t] if t < len(s) else 0 for t in range(steps)] for s in ends])

    def random(self, rng, scale=1.0):
        return scale * rng.normal(size=self.parameters)

    def table(self, theta):
        return log_softmax(theta.reshape(-1, self.size))

    def logits(self, theta):
        return theta.reshape(-1, self.size)[self.row]

    def logp(self, theta):
        """Log-probs of every token of every sequence, 0 where there is none."""
        return np.where(self.mask, self.table(theta)[self.row, self.token], 0)

    def probs(self, theta):
        return np.exp(self.logp(theta).sum(-1))

    def token_kl(self, theta, ref, drawn):
        """Σ over prefixes, as often as `drawn` visits them, of the KL of the next token."""
        p, q = self.table(theta), self.table(ref)
        each = (np.exp(p) * (p - q)).sum(-1)
        return (self.probs(drawn)[:, None] * np.where(self.mask, each[self.row], 0)).sum()

    def sequence_kl(self, theta, ref, drawn=None):
        return (self.probs(theta) * (self.logp(theta) - self.logp(ref)).sum(-1)).sum()

    def kl(self, level):
        return self.token_kl if level == "token" else self.sequence_kl

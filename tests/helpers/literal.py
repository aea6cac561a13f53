"""Σ x log(x/y) of the numbers as they are, which need not be normalised: the truth for the surfaces of TensorFlow and Keras.

By hand in float64 where that is well conditioned, in 40 digits where it is not. Nothing of kullback.
"""

from __future__ import annotations

import mpmath
import numpy as np


def by_hand(x, y, axis=-1):
    """Element by element in float64; 0 at x = 0."""
    x, y = np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float))
    terms = np.zeros(x.shape)
    there = x > 0
    with np.errstate(divide="ignore"):
        terms[there] = x[there] * (np.log(x[there]) - np.log(y[there]))
    return terms.sum(axis)


def softmax(z, axis=-1):
    e = np.exp(np.asarray(z, float) - np.max(z, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def draw(*shape, seed=0, zeros=True, dtype=np.float64):
    rng = np.random.default_rng(seed)
    x, y = (rng.dirichlet(np.ones(shape[-1]), shape[:-1]) for _ in range(2))
    if zeros:
        x[..., 0] = 0  # no longer normalised, which is no matter
        y[..., :1] = 0
    return x.astype(dtype), y.astype(dtype)


def close_pair(step, seed):
    """Labels, predictions and logits, float32, of 1000 categories whose logits differ by about `step`."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=1000)
    b = a + step * rng.normal(size=1000)
    return softmax(a).astype(np.float32), softmax(b).astype(np.float32), b.astype(np.float32)


def exact(x, y):
    with mpmath.workdps(40):
        return mpmath.fsum(mpmath.mpf(float(a)) * (mpmath.log(float(a)) - mpmath.log(float(b))) for a, b in zip(x, y))


def exact_with_logits(x, z):
    """Of the normalised labels, times their sum."""
    with mpmath.workdps(40):
        total = mpmath.fsum(map(float, x))
        log_z = mpmath.log(mpmath.fsum(mpmath.exp(float(c)) for c in z))
        return mpmath.fsum(float(a) * (mpmath.log(float(a)) - mpmath.log(total) - float(c) + log_z) for a, c in zip(x, z))

"""kullback.jax's functions, the originals, arguments for each, and the truth in 50 digits."""

from __future__ import annotations

import jax.scipy.special as special
import mpmath
import numpy as np
import optax

THEIRS = {
    "rel_entr": special.rel_entr,
    "kl_div": special.kl_div,
    "kl_divergence": optax.losses.kl_divergence,
    "kl_divergence_with_log_targets": optax.losses.kl_divergence_with_log_targets,
    "generalized_kl_divergence": optax.losses.generalized_kl_divergence,
}
ELEMENTWISE = ["rel_entr", "kl_div"]
LOSSES = ["kl_divergence", "kl_divergence_with_log_targets", "generalized_kl_divergence"]
EVERY = ELEMENTWISE + LOSSES
EPS = {np.float32: 2.0**-24, np.float64: 2.0**-53}  # half a unit in the last place, relative


def pair(name, shape=(4, 6), dtype=np.float32, spread=1.0, seed=1):
    """Arguments of that function: distributions over the last axis whose logits differ by about `spread`, each in its form."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(shape)
    b = a + spread * rng.standard_normal(shape)
    log_p, log_q = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (a, b))
    forms = {"kl_divergence_with_log_targets": (log_q, log_p)}
    x, y = forms.get(name, (log_q, np.exp(log_p)) if name in LOSSES else (np.exp(log_p), np.exp(log_q)))
    return x.astype(dtype), y.astype(dtype)


def term(name, x, y):
    """One term in 50 digits, of the numbers as they are stored; positive probabilities, zeros of the target, and -inf logs."""
    x, y = float(x), float(y)
    p, log_q = {"rel_entr": (x, None), "kl_div": (x, None), "kl_divergence_with_log_targets": (mpmath.exp(y), x)}.get(name, (y, x))
    if name in ELEMENTWISE:
        q, log_q = mpmath.mpf(y), mpmath.log(y)
    else:
        q = mpmath.exp(log_q)
    log_p = mpmath.mpf(y) if name == "kl_divergence_with_log_targets" else mpmath.log(p) if p else 0
    value = mpmath.mpf(p) * (log_p - log_q) if p else mpmath.mpf(0)
    return value - p + q if name in ("kl_div", "generalized_kl_divergence") else value


def exact(name, x, y):
    """Rows for the losses, elements for the others."""
    x, y = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    with mpmath.workdps(50):
        terms = [term(name, a, b) for a, b in zip(x.ravel(), y.ravel())]
        if name in ELEMENTWISE:
            return terms
        width = x.shape[-1]
        return [mpmath.fsum(terms[i : i + width]) for i in range(0, len(terms), width)]


def relative_errors(found, truth):
    with mpmath.workdps(50):
        return np.array([float(abs(mpmath.mpf(float(f)) / t - 1)) for f, t in zip(np.ravel(found), truth)])

"""Laws of numbers that SciPy does not have: of a function of another law's variable, on an interval, on the circle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import expit, i0e, logit

from .._distributions.curves import sinhc
from .._ops import numpy as numpy_ops
from ._law import Law, ScipyLaw

Array = Any


class NegatedLaw(Law):
    """The law of -x for x of another."""

    def __init__(self, base: ScipyLaw) -> None:
        self.base, self.batch_shape, self.invalid, self.flaw = base, base.batch_shape, base.invalid, base.flaw
        self.low, self.high = -np.asarray(base.high), -np.asarray(base.low)

    def magnitude(self, x: Array) -> Array:
        return self.base.magnitude(-x)

    def draw(self, n: int, source: Any) -> Array:
        return -self.base.draw(n, source)

    def density(self, x: Array) -> Array:
        return self.base.density(-x)

    def quantile(self, u: Array) -> Array:
        return -self.base.upper_quantile(u)

    def upper_quantile(self, u: Array) -> Array:
        return -self.base.quantile(u)

    def cdf(self, x: Array) -> Array:
        return self.base.frozen.sf(-x)


class LogitNormalLaw(Law):
    """The law of 1/(1 + e^-x) for x of a normal one."""

    def __init__(self, base: ScipyLaw) -> None:
        self.base, self.batch_shape, self.invalid, self.flaw = base, base.batch_shape, base.invalid, base.flaw
        self.low, self.high = np.zeros(self.batch_shape), np.ones(self.batch_shape)

    def draw(self, n: int, source: Any) -> Array:
        return expit(self.base.draw(n, source))

    def density(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.base.density(logit(x)) - np.log(x) - np.log1p(-x)

    def quantile(self, u: Array) -> Array:
        return expit(self.base.quantile(u))

    def upper_quantile(self, u: Array) -> Array:
        return expit(self.base.upper_quantile(u))

    def cdf(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.base.cdf(logit(np.clip(x, 0.0, 1.0)))


class TiltedLaw(Law):
    """Density ∝ exp(tilt x) on (0, 1)."""

    def __init__(self, tilt: Array) -> None:
        self.tilt, self.batch_shape = tilt, tilt.shape
        self.low, self.high = np.zeros(self.batch_shape), np.ones(self.batch_shape)
        # log((e^tilt - 1)/tilt)
        self._log_total = 0.5 * tilt + sinhc(numpy_ops, 0.5 * tilt).value

    def draw(self, n: int, source: Any) -> Array:
        return self.quantile(source.random((n, *self.batch_shape)))

    def density(self, x: Array) -> Array:
        return self.tilt * x - self._log_total

    def _below(self, u: Array, tilt: Array) -> Array:
        """log(1 + u (e^t - 1))/t for t <= 0: nothing overflows."""
        u = np.asarray(u, float)
        u = u.reshape(u.shape + (1,) * len(self.batch_shape)) if u.ndim == 1 else u
        flat = tilt > -1e-12
        safe = np.where(flat, -1.0, tilt)
        return np.where(flat, u, np.log1p(u * np.expm1(safe)) / safe)

    def quantile(self, u: Array) -> Array:
        # Of the mirror image where the density rises.
        return np.where(self.tilt > 0.0, 1.0 - self._below(1.0 - np.asarray(u), -np.abs(self.tilt)), self._below(u, -np.abs(self.tilt)))

    def upper_quantile(self, u: Array) -> Array:
        return np.where(self.tilt > 0.0, 1.0 - self._below(u, -np.abs(self.tilt)), self._below(1.0 - np.asarray(u), -np.abs(self.tilt)))

    def cdf(self, x: Array) -> Array:
        # As above, of the mirror image where the density rises: expm1(t y)/expm1(t), t <= 0.
        x, rises = np.clip(x, 0.0, 1.0), self.tilt > 0.0
        y, down = np.where(rises, 1.0 - x, x), -np.abs(self.tilt)
        flat = down > -1e-12
        safe = np.where(flat, -1.0, down)
        share = np.where(flat, y, np.expm1(safe * y) / np.expm1(safe))
        return np.where(rises, 1.0 - share, share)


class VonMisesLaw(Law):
    """Density ∝ exp(concentration cos(x - loc)) from -π to π."""

    def __init__(self, loc: Array, concentration: Array) -> None:
        self.loc, self.concentration = loc, concentration
        self.batch_shape = np.broadcast_shapes(loc.shape, concentration.shape)
        self.low, self.high = np.full(self.batch_shape, -math.pi), np.full(self.batch_shape, math.pi)

    def draw(self, n: int, source: Any) -> Array:
        return source.vonmises(self.loc, self.concentration, (n, *self.batch_shape))

    def density(self, x: Array) -> Array:
        # cos(y) - 1 = -2 sin²(y/2)
        turn = np.sin(0.5 * (x - self.loc))
        return -2.0 * self.concentration * turn * turn - np.log(2.0 * math.pi * i0e(self.concentration))

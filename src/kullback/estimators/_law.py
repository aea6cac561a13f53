"""What estimation needs to know of a distribution, the same for every library: a density, a sampler, a support.

`Law` is that; `law_of` makes one of any distribution object. All of it is float64, on the parameters as the object stores them.
Densities are evaluated here and drawn from; nothing is integrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._distributions.adapters import name_of, read
from .._distributions.families import Record
from .._distributions.readers.from_scipy import refuse_singular
from .._distributions.structures import STRUCTURES
from .._errors import WrongType
from .._ops import ops_of

Array = Any


class Tail(NamedTuple):
    """How a pmf on the integers falls off: bounds of its steps p(k+1)/p(k), which hold from any k on.

    ratio(k): no step at or beyond k is larger. steep(k): (a, b) with |log of the step at j| ≤ a + b log(j + 1) for every j ≥ k.
    """

    ratio: Callable[[float], Array]
    steep: Callable[[float], tuple[Array, float]]


class Mixture(NamedTuple):
    """Logs of the weights, the components along the last axis, and the law of all components (which has that axis in its batch)."""

    log_weights: Array
    parts: Any
    objects: Any


class Law:
    """A distribution as the estimators see it. Points have shape (n, *batch_shape, *event_shape), densities (n, *batch_shape)."""

    name = ""
    library = "numpy"
    batch_shape: tuple[int, ...] = ()
    event_shape: tuple[int, ...] = ()
    discrete = False
    # Where the density is 0 outside of, per batch element, ends included; of numbers only.
    low: Array = -math.inf
    high: Array = math.inf
    tail: Tail | None = None
    mixture: Mixture | None = None
    # Points where a density may have a corner, (m, *batch_shape).
    corners: Array = None
    # Which batch elements have parameters that make no distribution, and a sentence about the first of them.
    invalid: Array = np.False_
    flaw = ""
    # Are its log-densities logarithms of densities, and so -inf where these underflow?
    underflows = False

    def source(self, rng: Any) -> Any:
        """Random state made of what the caller passed, as `draw` takes it."""
        return numpy_source(rng)

    def draw(self, n: int, source: Any) -> Array:
        """n points, as arrays of the library."""
        raise NotImplementedError

    def density(self, x: Array) -> Array:
        """Logs of the density at points of the library's own kind."""
        raise NotImplementedError

    def own(self, x: Array) -> Array:
        """NumPy points as the library's own."""
        return x

    def numpy(self, x: Array) -> Array:
        return np.asarray(x, dtype=np.float64)

    def log_prob(self, x: Array, like: Law | None = None) -> Array:
        """Logs of the density, -inf outside the support. `like` is the law that drew x, if it is not NumPy's."""
        if like is None or like.library != self.library:
            x = x if like is None else like.numpy(x)
            value = self.numpy(self.density(self.own(x)))
        else:
            value = self.numpy(self.density(x))
            x = like.numpy(x)
        if not self.event_shape:
            # Ends that are NaN are those of invalid parameters: the value then is NaN, too, and not a density of 0.
            value = np.where((x < self.low) | (x > self.high), -math.inf, value)
        return value

    def quantile(self, u: Array) -> Array | None:
        """Points below which lie the shares u, (m,) -> (m, *batch_shape); None if unknown."""
        return None

    def upper_quantile(self, u: Array) -> Array | None:
        """Points above which lie the shares u."""
        return None

    def cdf(self, x: Array) -> Array | None:
        return None

    def from_uniform(self, u: Array) -> Array | None:
        """Independent uniform numbers, (n, *batch_shape, *event_shape), turned into points; None where there is no such map."""
        return self.quantile(u) if self.is_scalar else None

    def magnitude(self, x: Array) -> Array:
        """Size of the numbers the log-density at x is made of, which is where it is rounded; beside that of the log-density itself."""
        return 0.0

    def place(self) -> tuple[Array, Array] | None:
        """A location and a scale of the mass; None if unknown."""
        return None

    def moved(self, shift: Array) -> Law | None:
        """The law of x - shift, computed without the rounding of x; None if unknown."""
        return None

    @property
    def is_scalar(self) -> bool:
        return not self.event_shape


def numpy_source(rng: Any) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None or (isinstance(rng, (int, np.integer)) and not isinstance(rng, bool)):
        return np.random.default_rng(rng)
    from .adapters import numpy_source_from

    return numpy_source_from(rng)


_LOGS: dict[str, Callable[..., Array]] = {
    "laplace": lambda y: -np.abs(y) - math.log(2.0),
    "pareto": lambda y, b: np.log(b) - (b + 1.0) * np.log(y),
    "moyal": lambda y: -0.5 * (y + np.exp(-y) + math.log(2.0 * math.pi)),
    "levy": lambda y: -0.5 * (1.0 / y + 3.0 * np.log(y) + math.log(2.0 * math.pi)),
    "invweibull": lambda y, c: np.log(c) - (c + 1.0) * np.log(y) - np.exp(-c * np.log(y)),
}


# SciPy squares these variables: from here on the logarithm of the density is that of its leading power.
_VAST = 1e150
# log 1e-60: no log-ratio makes such mass count.
_NEXT_TO_0 = -138.0
_VAST_LOGS: dict[str, Callable[..., Array]] = {
    "cauchy": lambda y: -2.0 * np.log(np.abs(y)) - math.log(math.pi),
    "halfcauchy": lambda y: -2.0 * np.log(np.abs(y)) - math.log(0.5 * math.pi),
    "t": lambda y, v: _t_total(v) - (v + 1.0) * (np.log(np.abs(y)) - 0.5 * np.log(v)),
}


def _t_total(v: Array) -> Array:
    from scipy.special import gammaln

    return gammaln(0.5 * (v + 1.0)) - gammaln(0.5 * v) - 0.5 * np.log(math.pi * v)


class ScipyLaw(Law):
    """A frozen distribution of scipy.stats on the numbers."""

    # Logs of the probabilities of counts, where they are known better than SciPy's.
    log_mass: Callable[[Array], Array] | None = None

    def __init__(self, frozen: Any, name: str, tail: Tail | None = None, corners: Array = None) -> None:
        self.frozen, self.name, self.tail = frozen, name, tail
        self.discrete = hasattr(frozen.dist, "pmf")
        shapes, loc, scale = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
        names = [x.strip() for x in (frozen.dist.shapes or "").split(",") if x.strip()]
        numbers = dict(zip([*names, "loc", "scale"], (np.asarray(x) for x in (*shapes, loc, scale))))
        numbers = dict(list(numbers.items())[:-1]) if self.discrete else numbers
        with np.errstate(invalid="ignore"):
            good = np.asarray(frozen.dist._argcheck(*shapes), bool) & (np.asarray(scale) > 0)
            for parameter, x in numbers.items():
                unbounded = frozen.dist.name == "truncnorm" or (frozen.dist.name, parameter) == ("t", "df")
                good = good & (~np.isnan(x) if unbounded and parameter in names else np.isfinite(x))
        self.batch_shape = good.shape
        if not good.all():
            self.invalid, self.flaw = ~good, described(name, numbers, {}, ~good)
            if good.any():
                mended = with_valid(numbers, {}, ~good)
                self.frozen = frozen = frozen.dist(**mended)
                shapes, loc, scale = frozen.dist._parse_args(**mended)
        self._shapes, self._loc, self._scale = shapes, loc, scale
        self.underflows = _takes_logs(frozen.dist) and name not in _LOGS
        with np.errstate(invalid="ignore"):
            self.low, self.high = (np.broadcast_to(np.asarray(x, float), self.batch_shape) for x in frozen.support())
        self.corners = None if corners is None else np.broadcast_to(corners, (1, *self.batch_shape))
        # log Γ of the shapes, and of counts; an infinite shape is a limit that is computed without it.
        self._size = sum((np.abs(s) * np.log(2.0 + np.abs(s)) for s in (np.where(np.isfinite(s), s, 0.0) for s in shapes)), 0.0)

    def magnitude(self, x: Array) -> Array:
        return self._size + np.abs(x) * np.log(2.0 + np.abs(x)) if self.discrete else self._size

    def draw(self, n: int, source: Any) -> Array:
        return np.asarray(self.frozen.rvs(size=(n, *self.batch_shape), random_state=source), dtype=np.float64)

    def density(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            if self.log_mass is not None:
                possible = (x >= self.low) & (x <= self.high) & (x == np.floor(x))
                return np.where(possible, self.log_mass(np.where(possible, x, self.low)), -math.inf)
            if self.frozen.dist.name in _LOGS:  # which SciPy takes of a density that has underflown
                return _LOGS[self.frozen.dist.name]((x - self._loc) / self._scale, *self._shapes) - np.log(self._scale)
            value = self.frozen.logpmf(x) if self.discrete else self.frozen.logpdf(x)
            if self.frozen.dist.name in _VAST_LOGS:
                y = (x - self._loc) / self._scale
                value = np.where((np.abs(y) > _VAST) & (value == -math.inf), _VAST_LOGS[self.frozen.dist.name](y, *self._shapes), value)
            return value

    def quantile(self, u: Array) -> Array:
        return self._at(self.frozen.ppf, u)

    def upper_quantile(self, u: Array) -> Array:
        return self._at(self.frozen.isf, u)

    def _at(self, function: Any, u: Array) -> Array:
        u = np.asarray(u, float)
        with np.errstate(all="ignore"):
            return function(u.reshape(u.shape + (1,) * len(self.batch_shape)) if u.ndim == 1 else u) + np.zeros(self.batch_shape)

    def cdf(self, x: Array) -> Array:
        return self.frozen.cdf(x)

    def place(self) -> tuple[Array, Array] | None:
        return None if self.discrete else (self._loc, self._scale)

    def moved(self, shift: Array) -> Law | None:
        loc = self._loc - shift
        if self.discrete or not np.isfinite(loc).all():
            return None
        corners = None if self.corners is None else self.corners - shift
        return ScipyLaw(self.frozen.dist(*self._shapes, loc=loc, scale=self._scale), self.name, corners=corners)


class ScipyVectorLaw(Law):
    """A frozen multivariate distribution of scipy.stats."""

    def __init__(self, frozen: Any, name: str) -> None:
        self.frozen, self.name = frozen, name
        refuse_singular(frozen)
        self.event_shape = tuple(np.shape(np.squeeze(frozen.rvs(random_state=np.random.default_rng(0)))))
        self.discrete = hasattr(frozen, "logpmf")

    def draw(self, n: int, source: Any) -> Array:
        return np.asarray(self.frozen.rvs(size=n, random_state=source), dtype=np.float64).reshape(n, *self.event_shape)

    def density(self, x: Array) -> Array:
        x = np.moveaxis(x, 0, -1) if type(self.frozen).__name__.startswith("dirichlet") else x
        with np.errstate(all="ignore"):
            return np.reshape((self.frozen.logpmf if self.discrete else self.frozen.logpdf)(x), (-1,))


class CategoricalLaw(Law):
    """One of K categories, 0 … K - 1."""

    discrete = True

    def __init__(self, log_weights: Array, name: str = "Categorical") -> None:
        top = np.max(log_weights, axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            total = top + np.log(np.sum(np.exp(log_weights - top), axis=-1, keepdims=True))
            self.logs, self.name = log_weights - total, name
        self.invalid = np.isnan(self.logs).any(-1)
        if self.invalid.any():
            self.flaw = f"{name} has weights that do not add up to a positive number"
            self.logs = np.where(self.invalid[..., None], -math.log(self.logs.shape[-1]), self.logs)
        self.batch_shape = self.logs.shape[:-1]
        self.low = np.zeros(self.batch_shape)
        self.high = np.full(self.batch_shape, self.logs.shape[-1] - 1.0)

    def draw(self, n: int, source: Any) -> Array:
        edges = np.cumsum(np.exp(self.logs), axis=-1)
        u = source.random((n, *self.batch_shape, 1)) * edges[..., -1:]
        return np.sum(u > edges, axis=-1).astype(float)

    def density(self, x: Array) -> Array:
        index = np.clip(np.nan_to_num(x), 0, self.logs.shape[-1] - 1).astype(int)
        logs = np.broadcast_to(self.logs, (*index.shape, self.logs.shape[-1]))
        return np.where(x == index, np.take_along_axis(logs, index[..., None], -1)[..., 0], -math.inf)


class KumaraswamyLaw(Law):
    """Distribution function 1 - (1 - x^a)^b on (0, 1). (PyTorch's own density is that of a base cut at float32's ε.)"""

    name = "Kumaraswamy"

    def __init__(self, a: Array, b: Array) -> None:
        self.a, self.b = a, b
        self.batch_shape = np.broadcast_shapes(a.shape, b.shape)
        self.low, self.high = np.zeros(self.batch_shape), np.ones(self.batch_shape)

    def draw(self, n: int, source: Any) -> Array:
        return self.quantile(source.random((n, *self.batch_shape)))

    def density(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            power = np.exp(self.a * np.log(x))
            return np.log(self.a * self.b) + (self.a - 1.0) * np.log(x) + (self.b - 1.0) * np.log1p(-power)

    def _at(self, u: Array) -> Array:
        u = np.asarray(u, float)
        return u.reshape(u.shape + (1,) * len(self.batch_shape)) if u.ndim == 1 else u

    def quantile(self, u: Array) -> Array:
        return (-np.expm1(np.log1p(-self._at(u)) / self.b)) ** (1.0 / self.a)

    def upper_quantile(self, u: Array) -> Array:
        return (-np.expm1(np.log(self._at(u)) / self.b)) ** (1.0 / self.a)

    def cdf(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return -np.expm1(self.b * np.log1p(-(np.clip(x, 0.0, 1.0) ** self.a)))


class NormalVectorLaw(Law):
    """Normal vectors, given by their mean and the lower triangular factor of their covariance."""

    name = "MultivariateNormal"

    def __init__(self, loc: Array, lower: Array) -> None:
        self.batch_shape = np.broadcast_shapes(loc.shape[:-1], lower.shape[:-2])
        self.event_shape = loc.shape[-1:]
        self.loc, self.lower = loc, lower
        diagonal = np.diagonal(lower, axis1=-2, axis2=-1)
        self.invalid = np.broadcast_to((diagonal == 0.0).any(-1), self.batch_shape)
        if self.invalid.any():
            self.flaw = f"{self.name} has a singular scale_tril, and so no density"
            self.lower = np.where(self.invalid[..., None, None], np.eye(self.event_shape[0]), lower)
            diagonal = np.diagonal(self.lower, axis1=-2, axis2=-1)
        self._log_det = np.log(np.abs(diagonal)).sum(-1)

    def draw(self, n: int, source: Any) -> Array:
        return self.from_normal(source.standard_normal((n, *self.batch_shape, *self.event_shape)))

    def from_normal(self, z: Array) -> Array:
        return self.loc + np.einsum("...ij,...j->...i", self.lower, z)

    def from_uniform(self, u: Array) -> Array:
        from scipy.special import ndtri

        return self.from_normal(ndtri(u))

    def density(self, x: Array) -> Array:
        delta = x - self.loc
        lower = np.broadcast_to(self.lower, (*np.broadcast_shapes(delta.shape[1:-1], self.lower.shape[:-2]), *self.lower.shape[-2:]))
        # All points of one batch element are solved for at once.
        z = np.linalg.solve(lower, np.moveaxis(np.broadcast_to(delta, (len(x), *lower.shape[:-1])), 0, -1))
        return np.moveaxis(-0.5 * (z * z).sum(-2), -1, 0) - self._log_det - 0.5 * x.shape[-1] * math.log(2.0 * math.pi)


def _takes_logs(dist: Any) -> bool:
    """SciPy has no log-density of its own for it, and the density is 0 by underflow alone."""
    from scipy.stats import rv_continuous, rv_discrete, rv_histogram

    if isinstance(dist, rv_discrete):
        return type(dist)._logpmf is rv_discrete._logpmf and type(dist)._pmf is not rv_discrete._pmf and not hasattr(dist, "xk")
    return isinstance(dist, rv_continuous) and not isinstance(dist, rv_histogram) and type(dist)._logpdf is rv_continuous._logpdf


def seen(q: Law, x: Array, log_p: Array, log_q: Array) -> Array:
    """Q's log-density, NaN where it underflows inside Q's support: how small it is is not known. Where P, too, is next to 0, as P's."""
    if not q.underflows:
        return log_q
    lost = np.isneginf(log_q) & (x > q.low) & (x <= q.high)
    return np.where(lost, np.where(log_p > _NEXT_TO_0, math.nan, log_p), log_q)


def mass_inside(p: Law, q: Law, shape: tuple[int, ...]) -> Array:
    """Q's mass on P's support: 1 where that covers Q's, else by Q's distribution function; NaN if that is unknown."""
    low, high, q_low, q_high = (np.broadcast_to(x, shape) for x in (p.low, p.high, q.low, q.high))
    whole = (low <= q_low) & (high >= q_high)
    inside = np.where(whole, 1.0, math.nan)
    if not whole.all():
        below, above = np.clip(low - 1.0 if q.discrete else low, q_low - 1.0 if q.discrete else q_low, q_high), np.clip(high, q_low, q_high)
        values = [q.cdf(x[None]) for x in (below, above)]
        if values[0] is not None and values[1] is not None:
            inside = np.where(whole, 1.0, np.broadcast_to(values[1] - values[0], (1, *shape))[0])
    return inside


def described(name: str, numbers: dict[str, Array], ndims: dict[str, int], invalid: Array) -> str:
    """The first element of the batch whose parameters make no distribution."""
    at = tuple(np.argwhere(invalid)[0])
    shown = []
    for parameter, x in numbers.items():
        ndim = ndims.get(parameter, 0)
        value = np.broadcast_to(x, (*invalid.shape, *x.shape[x.ndim - ndim :]))[at]
        shown.append(f"{parameter}={value:g}" if ndim == 0 else f"{parameter}={np.array2string(value, threshold=6, edgeitems=2)}")
    where = f" (batch element {', '.join(map(str, at))})" if at else ""
    return f"{name}({', '.join(shown)}){where} is not a distribution"


def with_valid(numbers: dict[str, Array], ndims: dict[str, int], invalid: Array) -> dict[str, Array]:
    """Parameters in which the first valid element of the batch stands in for the invalid ones, which are NaN in the end."""
    at = tuple(np.argwhere(~invalid)[0])
    made = {}
    for parameter, x in numbers.items():
        ndim = ndims.get(parameter, 0)
        whole = np.broadcast_to(x, (*invalid.shape, *x.shape[x.ndim - ndim :]))
        made[parameter] = np.where(invalid.reshape(*invalid.shape, *(1,) * ndim), whole[at], whole)
    return made


def host_numbers(x: Any) -> Array:
    """Parameters as float64 NumPy arrays."""
    ops = ops_of(x)
    if ops is not None and not ops.can_look(x):
        raise WrongType("it looks at parameters, so it cannot be traced or compiled; call it outside")
    return np.asarray(x if ops is None else ops.to_numpy(x), dtype=np.float64)


def law_of(d: Any, *, native: bool = False) -> Law:
    """The law of a distribution object: by its family where that is known, by its own functions elsewhere, or, if `native`, everywhere."""
    if isinstance(d, Law):
        return d
    if isinstance(d, Record):
        found = _of_record(d)
        if found is None:
            raise WrongType(f"kullback.distributions.{type(d).__name__} has no sampler and no density here: pass a library's object")
        return found
    if type(d).__module__.startswith("scipy.stats"):
        return _of_scipy(d)
    from .adapters import native_law

    found = None if native else _of_record_if_read(d)
    return native_law(d, native=native) if found is None else found


def _of_record_if_read(d: Any) -> Law | None:
    try:
        record = read(d)
    except TypeError:
        return None
    if isinstance(record, STRUCTURES):
        return None
    found = _of_record(record)
    if found is not None:
        found.name = name_of(d)
    return found


def _of_scipy(d: Any) -> Law:
    from ._records import as_law, scipy_tail

    if hasattr(d, "dist") and hasattr(d, "args"):
        found = _of_record_if_read(d) if d.dist.name in ("poisson", "nbinom", "geom") else None
        return ScipyLaw(d, d.dist.name, scipy_tail(d)) if found is None else found
    if hasattr(d, "rvs") and (hasattr(d, "logpdf") or hasattr(d, "logpmf")):
        return ScipyVectorLaw(d, type(d).__name__.removesuffix("_frozen"))
    raise WrongType(f"{as_law.__module__ and type(d).__name__} is not a frozen distribution of scipy.stats")


def _of_record(record: Record) -> Law | None:
    from ._records import as_law

    numbers = {name: host_numbers(x) for name, x in record.parameters().items()}
    ndims = record.parameter_ndims
    bad = []
    for name, x in numbers.items():
        with np.errstate(invalid="ignore"):
            good = ~np.isnan(x)
            good &= x > 0.0 if name in record.positive else x >= 0.0 if name in (*record.non_negative, *record.unit) else True
            good &= x <= 1.0 if name in record.unit else True
        bad.append(~good.all(axis=tuple(range(x.ndim - ndims.get(name, 0), x.ndim))))
    invalid = np.any(np.broadcast_arrays(*bad), axis=0)
    flaw = described(type(record).__name__, numbers, ndims, invalid) if invalid.any() else ""
    law = as_law(record, with_valid(numbers, ndims, invalid) if flaw and not invalid.all() else numbers)
    if law is not None and flaw:
        law.invalid, law.flaw = law.invalid | invalid, flaw
    return law

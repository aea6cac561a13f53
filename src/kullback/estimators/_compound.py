"""Laws made of laws: mixtures, several in a row, and batches taken as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._errors import WrongType
from ._law import Law, Mixture, Tail, described
from ._records import mixture_tail

Array = Any


class IndependentLaw(Law):
    """The last `count` batch axes of a law taken as part of one event."""

    def __init__(self, base: Law, count: int, name: str) -> None:
        self.base, self.count, self.name = base, count, name
        self.library, self.discrete = base.library, base.discrete
        cut = len(base.batch_shape) - count
        self.batch_shape = tuple(base.batch_shape[:cut])
        self.event_shape = (*base.batch_shape[cut:], *base.event_shape)
        self.invalid = np.broadcast_to(base.invalid, base.batch_shape).any(axis=tuple(range(cut, cut + count)))
        self.flaw = base.flaw
        if not self.event_shape:
            self.low, self.high, self.tail, self.corners = base.low, base.high, base.tail, base.corners
            self.mixture = base.mixture

    def source(self, rng: Any) -> Any:
        return self.base.source(rng)

    def draw(self, n: int, source: Any) -> Array:
        return self.base.draw(n, source)

    def own(self, x: Array) -> Array:
        return self.base.own(x)

    def numpy(self, x: Array) -> Array:
        return self.base.numpy(x)

    def log_prob(self, x: Array, like: Law | None = None) -> Array:
        value = self.base.log_prob(x, like)
        return value.sum(axis=tuple(range(value.ndim - self.count, value.ndim))) if self.count else value

    def from_uniform(self, u: Array) -> Array | None:
        return self.base.from_uniform(u)

    def magnitude(self, x: Array) -> Array:
        size = np.broadcast_to(self.base.magnitude(x), x.shape[: x.ndim - len(self.base.event_shape)])
        return size.sum(axis=tuple(range(size.ndim - self.count, size.ndim))) if self.count else size

    def quantile(self, u: Array) -> Array | None:
        return self.base.quantile(u)

    def upper_quantile(self, u: Array) -> Array | None:
        return self.base.upper_quantile(u)


class Row(Law):
    """Laws of one batch and event shape side by side, along a new last batch axis."""

    def __init__(self, laws: Sequence[Law]) -> None:
        self.laws = list(laws)
        shape = np.broadcast_shapes(*(law.batch_shape for law in laws))
        self.batch_shape = (*shape, len(self.laws))
        self.event_shape = self.laws[0].event_shape
        self.discrete = self.laws[0].discrete
        if any(law.discrete != self.discrete for law in laws):
            raise WrongType("a mixture of discrete and continuous components has neither a density nor a pmf")
        if not self.event_shape:
            self.low, self.high = (
                np.stack([np.broadcast_to(x, shape) for x in ends], -1) for ends in ([law.low for law in laws], [law.high for law in laws])
            )
        self.invalid = np.stack([np.broadcast_to(law.invalid, shape) for law in laws], -1)
        self.flaw = next((law.flaw for law in laws if law.flaw), "")
        tails = [law.tail for law in laws]
        if all(t is not None for t in tails):
            self.tail = mixture_tail([t for t in tails if t is not None])

    def draw(self, n: int, source: Any) -> Array:
        axis = len(self.batch_shape)
        shape = (n, *self.batch_shape[:-1], *self.event_shape)
        points = [law.numpy(law.draw(n, law.source(int(source.integers(1 << 31))))) for law in self.laws]
        return np.stack([np.broadcast_to(_padded(x, law, self), shape) for x, law in zip(points, self.laws)], axis)

    def log_prob(self, x: Array, like: Law | None = None) -> Array:
        x = x if like is None else like.numpy(x)
        axis = x.ndim - 1 - len(self.event_shape)
        x = np.broadcast_to(x, (*x.shape[:axis], len(self.laws), *x.shape[axis + 1 :]))
        return np.stack(np.broadcast_arrays(*(law.log_prob(np.take(x, i, axis)) for i, law in enumerate(self.laws))), -1)

    def magnitude(self, x: Array) -> Array:
        sizes = [law.magnitude(np.take(x, 0, x.ndim - 1 - len(self.event_shape))) for law in self.laws]
        return np.stack(np.broadcast_arrays(*sizes), -1)

    def quantile(self, u: Array) -> Array | None:
        return self._stacked([law.quantile(u) for law in self.laws])

    def upper_quantile(self, u: Array) -> Array | None:
        return self._stacked([law.upper_quantile(u) for law in self.laws])

    def cdf(self, x: Array) -> Array | None:
        x = np.broadcast_to(x, (*x.shape[:-1], len(self.laws)))
        return self._stacked([law.cdf(x[..., i]) for i, law in enumerate(self.laws)])

    def place(self) -> tuple[Array, Array] | None:
        places = [law.place() for law in self.laws]
        if any(x is None for x in places):
            return None
        return tuple(np.stack([np.broadcast_to(x, self.batch_shape[:-1]) for x in each], -1) for each in zip(*places))  # type: ignore

    def moved(self, shift: Array) -> Law | None:
        laws = [law.moved(shift[..., 0]) for law in self.laws]
        return None if any(law is None for law in laws) else Row([law for law in laws if law is not None])

    @staticmethod
    def _stacked(values: list[Any]) -> Array | None:
        return None if any(v is None for v in values) else np.stack(np.broadcast_arrays(*values), -1)


def _padded(x: Array, law: Law, row: Row) -> Array:
    """Points of a law with fewer batch axes than the row has."""
    missing = len(row.batch_shape) - 1 - len(law.batch_shape)
    return x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:])


class MixtureLaw(Law):
    """Σ weight · component; `parts` has the components along its last batch axis."""

    def __init__(self, log_weights: Array, parts: Law, name: str, objects: Any) -> None:
        self.name, self.discrete = name, parts.discrete
        top = np.max(log_weights, axis=-1, keepdims=True)
        logs = log_weights - (top + np.log(np.sum(np.exp(log_weights - top), axis=-1, keepdims=True)))
        self.batch_shape = np.broadcast_shapes(logs.shape, parts.batch_shape)[:-1]
        self.event_shape = parts.event_shape
        # A component of weight 0 may be anything.
        lost = np.isnan(logs).any(-1, keepdims=True)
        self.invalid = np.any((np.broadcast_to(parts.invalid, parts.batch_shape) & (logs > -np.inf)) | lost, -1)
        self.flaw = parts.flaw or (f"{name} has weights that do not add up to a positive number" if lost.any() else "")
        logs = np.where(lost, -np.log(logs.shape[-1]), logs)
        self.logs, self.parts = logs, parts
        self.mixture = Mixture(logs, parts, objects)
        if not self.event_shape:
            self.low, self.high = np.min(parts.low, -1), np.max(parts.high, -1)
        if parts.tail is not None:
            self.tail = _over_last(parts.tail)

    def draw(self, n: int, source: Any) -> Array:
        edges = np.cumsum(np.exp(self.logs), -1)
        u = source.random((n, *self.batch_shape, 1)) * edges[..., -1:]
        index = np.sum(u > edges, -1, keepdims=True)
        points = self.parts.draw(n, self.parts.source(int(source.integers(1 << 31))))
        points = self.parts.numpy(points)
        axis = 1 + len(self.batch_shape)
        points = np.broadcast_to(points, (n, *self.batch_shape, *points.shape[axis:]))
        index = index.reshape(*index.shape, *(1,) * len(self.event_shape))
        return np.squeeze(np.take_along_axis(points, index, axis), axis)

    def log_prob(self, x: Array, like: Law | None = None) -> Array:
        x = x if like is None else like.numpy(x)
        each = self.parts.log_prob(np.expand_dims(x, x.ndim - len(self.event_shape))) + self.logs
        each = np.where(self.logs == -np.inf, -np.inf, each)
        top = np.max(each, -1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            return np.squeeze(top, -1) + np.log(np.sum(np.exp(each - top), -1))

    def magnitude(self, x: Array) -> Array:
        size = np.asarray(self.parts.magnitude(np.expand_dims(x, x.ndim - len(self.event_shape))))
        return np.max(size, -1) if size.ndim else size

    def cdf(self, x: Array) -> Array | None:
        each = self.parts.cdf(np.expand_dims(x, -1))
        return None if each is None else np.sum(np.exp(self.logs) * each, -1)

    def place(self) -> tuple[Array, Array] | None:
        """Those of the component with the largest weight."""
        each, heaviest = self.parts.place(), np.argmax(self.logs, -1)[..., None]
        if each is None:
            return None
        loc, scale = (np.broadcast_to(x, (*self.batch_shape, self.logs.shape[-1])) for x in each)
        return np.take_along_axis(loc, heaviest, -1)[..., 0], np.take_along_axis(scale, heaviest, -1)[..., 0]

    def moved(self, shift: Array) -> Law | None:
        parts = self.parts.moved(shift[..., None])
        return None if parts is None or self.mixture is None else MixtureLaw(self.logs, parts, self.name, self.mixture.objects)


def _over_last(tail: Tail) -> Tail:
    def steep(k: float) -> tuple[Array, float]:
        a, b = tail.steep(k)
        return np.max(a, -1), b

    return Tail(lambda k: np.max(tail.ratio(k), -1), steep)


class ZeroInflatedLaw(Law):
    """0 with probability `gate`, else a draw of the base: beyond 0 its steps are the base's."""

    discrete = True

    def __init__(self, gate: Array, base: Law, name: str) -> None:
        bad = ~((gate >= 0.0) & (gate <= 1.0))
        self.gate, self.base, self.name = np.where(bad, 0.5, gate), base, name
        self.batch_shape = np.broadcast_shapes(gate.shape, base.batch_shape)
        self.invalid = np.broadcast_to(bad | base.invalid, self.batch_shape)
        self.flaw = base.flaw or (described(name, {"gate": gate}, {}, bad) if bad.any() else "")
        self.low, self.high = np.minimum(base.low, 0.0), np.maximum(base.high, 0.0)
        self.tail = base.tail

    def magnitude(self, x: Array) -> Array:
        return self.base.magnitude(x)

    def draw(self, n: int, source: Any) -> Array:
        points = self.base.numpy(self.base.draw(n, self.base.source(int(source.integers(1 << 31)))))
        return np.where(source.random((n, *self.batch_shape)) < self.gate, 0.0, points)

    def log_prob(self, x: Array, like: Law | None = None) -> Array:
        x = x if like is None else like.numpy(x)
        with np.errstate(divide="ignore"):
            inside = np.log1p(-self.gate) + self.base.log_prob(x)
            return np.where(x == 0.0, np.logaddexp(inside, np.log(self.gate)), inside)

"""What is kept of a stream of numbers: moments, percentiles, the worst rows. Merging two of a kind is as if one had seen both streams.

Memory is bounded: beyond `KEPT` values percentiles come from a sketch whose answers are within `ACCURACY` (relative) of the value at
that rank.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Numbers kept as they are, for exact percentiles: 2 MiB.
KEPT = 1 << 18
# Relative error of the sketch, after it.
ACCURACY = 1e-3
_LOG_GAMMA = math.log((1 + ACCURACY) / (1 - ACCURACY))


@dataclass
class Moments:
    """Count, mean and spread of finite numbers, and how many were infinite."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean
    infinite: int = 0

    def add(self, x: Floats) -> None:
        finite = x[np.isfinite(x)]
        other = Moments(len(finite), infinite=len(x) - len(finite))
        if len(finite):
            with np.errstate(over="ignore"):  # squares of logits beyond 1e150 are inf, and so is what is made of them
                other.mean = float(np.mean(finite))
                other.squares = float(np.sum((finite - other.mean) ** 2))
        self.merge(other)

    def merge(self, other: Moments) -> None:
        # Chan, Golub, LeVeque: the deviations, and that of the two means.
        total = self.count + other.count
        if other.count:
            step = other.mean - self.mean
            self.mean += step * other.count / total
            self.squares += other.squares + step * (step * (self.count * other.count / total))  # 0, not inf·0
        self.count, self.infinite = total, self.infinite + other.infinite

    @property
    def deviation(self) -> float:
        """Sample standard deviation; NaN for fewer than two numbers, or with an infinite one."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 and not self.infinite else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / math.sqrt(self.count) if self.count else math.nan

    @property
    def average(self) -> float:
        return math.inf if self.infinite else self.mean if self.count else math.nan

    @property
    def root_mean_square(self) -> float:
        return math.inf if self.infinite else math.sqrt(self.mean**2 + self.squares / self.count) if self.count else math.nan


@dataclass
class Spread:
    """Percentiles, and counts by size. Numbers of either sign, +inf included: kept as they are, and in buckets once they are too many."""

    count: int = 0
    low: float = math.inf
    high: float = -math.inf
    zero: int = 0
    infinite: int = 0
    buckets: dict[int, int] = field(default_factory=dict)  # of |x| in (γ^(i-1), γ^i]
    negative: dict[int, int] = field(default_factory=dict)
    kept: list[Floats] | None = field(default_factory=list)  # None: more than KEPT, and in the buckets

    def add(self, x: Floats) -> None:
        if not len(x):
            return
        self.count += len(x)
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        if self.kept is None:
            self._sort_in(x)
        else:
            self.kept.append(x.copy())
            if self.count > KEPT:
                self.forget()

    def _sort_in(self, x: Floats) -> None:
        self.zero += int(np.count_nonzero(x == 0.0))
        self.infinite += int(np.count_nonzero(x == np.inf))
        for side, sign in ((self.buckets, 1.0), (self.negative, -1.0)):
            size = sign * x[(sign * x > 0.0) & np.isfinite(x)]
            places, counts = np.unique(np.ceil(np.log(size) / _LOG_GAMMA).astype(np.int64), return_counts=True)
            for place, count in zip(places.tolist(), counts.tolist()):
                side[place] = side.get(place, 0) + count

    def forget(self) -> None:
        """From now on the buckets only."""
        if self.kept is not None:
            self._sort_in(np.concatenate([np.zeros(0), *self.kept]))
            self.kept = None

    def merge(self, other: Spread) -> None:
        self.count += other.count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        if self.kept is not None and other.kept is not None:
            self.kept = [*self.kept, *other.kept]
            if self.count > KEPT:
                self.forget()
            return
        self.forget()
        theirs = other._in_buckets()
        self.zero, self.infinite = self.zero + theirs.zero, self.infinite + theirs.infinite
        for mine, more in ((self.buckets, theirs.buckets), (self.negative, theirs.negative)):
            for place, count in more.items():
                mine[place] = mine.get(place, 0) + count

    def _in_buckets(self) -> Spread:
        """Itself, or what it would be without what is kept."""
        if self.kept is None:
            return self
        found = Spread(self.count, self.low, self.high, kept=list(self.kept))
        found.forget()
        return found

    @property
    def exact(self) -> bool:
        return self.kept is not None

    def steps(self) -> tuple[Floats, Floats]:
        """Values in ascending order, one a bucket, and how many numbers each stands for."""
        sorted_in = self._in_buckets()
        centre = 2.0 / (1.0 + math.exp(_LOG_GAMMA))
        below = [(-centre * math.exp(place * _LOG_GAMMA), n) for place, n in sorted(sorted_in.negative.items(), reverse=True)]
        above = [(centre * math.exp(place * _LOG_GAMMA), n) for place, n in sorted(sorted_in.buckets.items())]
        found = [*below, (0.0, sorted_in.zero), *above, (math.inf, sorted_in.infinite)]
        values, counts = zip(*((v, n) for v, n in found if n)) if self.count else ((), ())
        return np.clip(np.array(values), self.low, self.high), np.array(counts, dtype=np.float64)

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Of all numbers, linear between ranks where they were kept; else the number at that rank, to the sketch's accuracy."""
        if not self.count:
            return [math.nan for _ in shares]
        if self.kept is None:
            values, counts = self.steps()
            ranks = np.cumsum(counts)
            return [float(values[np.searchsorted(ranks, math.floor((self.count - 1) * share), side="right")]) for share in shares]
        ordered = np.sort(np.concatenate(self.kept))
        return [_between(ordered, (self.count - 1) * share) for share in shares]

    def to_dict(self) -> dict[str, Any]:
        return {
            "count": self.count, "low": self.low, "high": self.high, "zero": self.zero, "infinite": self.infinite,
            "buckets": sorted(self.buckets.items()), "negative": sorted(self.negative.items()),
            "kept": None if self.kept is None else _packed(np.concatenate([np.zeros(0), *self.kept])),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Spread:
        kept = saved["kept"]
        if kept is not None:
            return cls(saved["count"], saved["low"], saved["high"], kept=[_unpacked(kept)])
        places: dict[str, Any] = {side: {int(i): int(n) for i, n in saved[side]} for side in ("buckets", "negative")}
        numbers = {name: saved[name] for name in ("count", "low", "high", "zero", "infinite")}
        return cls(**numbers, **places, kept=None)


def _between(ordered: Floats, rank: float) -> float:
    low = math.floor(rank)
    here, share = float(ordered[low]), rank - low
    if share == 0.0 or here == (above := float(ordered[low + 1])):
        return here
    return here + share * (above - here)


def _packed(x: Floats) -> str:
    return base64.b64encode(x.astype("<f8").tobytes()).decode()


def _unpacked(text: str) -> Floats:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)


@dataclass
class Worst:
    """The `size` rows with the largest first column; of equals, those that come first."""

    size: int
    rows: list[tuple[float, ...]] = field(default_factory=list)  # (the figure, the row's number, ...)

    def add(self, *columns: Any) -> None:
        first = columns[0]
        if not len(first):
            return
        least = self.rows[-1][0] if len(self.rows) == self.size else -math.inf
        candidates = np.flatnonzero(first > least) if least > -math.inf else np.arange(len(first))
        if len(candidates) > self.size:
            least = np.partition(first[candidates], -self.size)[-self.size]  # so that few are left to be sorted
            candidates = candidates[first[candidates] >= least]
            candidates = candidates[np.argsort(-first[candidates], kind="stable")[: self.size]]
        self._take([tuple(column[i].item() for column in columns) for i in candidates])

    def merge(self, other: Worst) -> None:
        self._take(other.rows)

    def _take(self, more: Sequence[tuple[float, ...]]) -> None:
        self.rows = sorted([*self.rows, *map(tuple, more)], key=lambda row: (-row[0], row[1]))[: self.size]

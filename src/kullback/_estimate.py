"""The record every estimator answers with: a value and how wrong it may be. It computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Estimate:
    """A divergence that was estimated, and how far off it may be. Numbers for one pair, arrays for a batch.

    Parameters
    ----------
    value : float or array
    stderr : float or array, optional
        Standard error, where the estimate is random.
    n : int
        Samples drawn, terms added or nodes evaluated; 0 for a closed form.
    method : str
        How it was made, in a few words.
    bound : float or array, optional
        Where the estimate is not random: how far off it may be at most, as proven (sums) or as its nodes tell (quadrature, closed forms).
    interval : (low, high), optional
        Confidence interval, at `level`.
    level : float
    lower, upper : float or array, optional
        Bounds of the divergence itself that hold whatever the value is.

    Examples
    --------
    >>> found = Estimate(0.44312, 0.00119, 100000, "monte carlo k3")
    >>> found
    0.4431 ± 0.0012 (monte carlo k3, n=100000)
    >>> float(found), found.error
    (0.44312, 0.00119)
    """

    value: Any
    stderr: Any = None
    n: int = 0
    method: str = ""
    bound: Any = None
    interval: tuple[Any, Any] | None = None
    level: float = 0.95
    lower: Any = None
    upper: Any = None

    @property
    def error(self) -> Any:
        """The standard error where there is one, else the bound."""
        return self.bound if self.stderr is None else self.stderr

    def __float__(self) -> float:
        return float(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.value, dtype=dtype)

    def __repr__(self) -> str:
        parts = [self.method] if self.method else []
        parts += [f"n={self.n}"] if self.n else []
        if self.interval is not None:
            parts.append(f"{100 * self.level:g}% interval {_shown(self.interval[0])} to {_shown(self.interval[1])}")
        if self.lower is not None or self.upper is not None:
            low, high = ("?" if x is None else _shown(x) for x in (self.lower, self.upper))
            parts.append(f"bounds {low} to {high}")
        return _with_error(self.value, self.error) + (f" ({', '.join(parts)})" if parts else "")


def _shown(x: Any) -> str:
    x = _array(x)
    return f"{float(x):.4g}" if x.ndim == 0 else np.array2string(x, precision=4, threshold=6, edgeitems=2)


def _array(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x, dtype=np.float64)


def _with_error(value: Any, error: Any) -> str:
    """Two digits of the error, and as many of the value as it leaves."""
    value = _array(value)
    if error is None or value.ndim > 0:
        return _shown(value) + ("" if error is None else f" ± {_shown(error)}")
    number, wrong = float(value), float(_array(error))
    if not (np.isfinite(number) and 0.0 < wrong < np.inf):
        return f"{number:.6g} ± {wrong:.2g}"
    places = 1 - int(np.floor(np.log10(wrong)))
    if abs(number) < 1e-4 or abs(number) >= 1e9 or places > 12:
        digits = int(np.clip(np.floor(np.log10(abs(number) or wrong)) - np.floor(np.log10(wrong)) + 1, 3, 15))
        return f"{number:.{digits}g} ± {wrong:.1e}"
    return f"{number:.{max(places, 0)}f} ± {wrong:.{max(places, 0)}f}"

"""Bounds of KL(P‖Q) from a critic: a function trained on one half of the data and judged on the other. `training_*` train it."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._errors import InvalidOption, InvalidValue, one_of
from ..._ops import ops_of
from .._estimate import Estimate
from ._copies import find_copies
from ._inputs import Points, check_level, generator, read_points
from ._intervals import symmetric
from ._ratio import whiten

BOUNDS = ("donsker_varadhan", "nwj", "classifier")
FEWEST_ROWS = 20
RESAMPLES = 500


def variational(
    x: Any,
    y: Any,
    *,
    bound: str = "donsker_varadhan",
    critic: Callable[[Points], Any] | None = None,
    framework: str | None = None,
    hidden: tuple[int, ...] = (64, 64),
    steps: int = 1500,
    level: float = 0.95,
    rng: Any = None,
) -> Estimate:
    """KL(P‖Q) in nats from a sample of each, by a function f(x) that tells them apart.

    Parameters
    ----------
    x, y : array, points × coordinates (or one axis, for d = 1)
    bound : {"donsker_varadhan", "nwj", "classifier"}
        What is maximised, and then evaluated on rows that the training has not seen: E_P f − log E_Q e^f, E_P f − E_Q e^f + 1 (both are at
        most KL(P‖Q), for every f), or the mean logit of a classifier, E_P f, which is no bound.
    critic : callable, optional
        Your own f, of an array n × d, trained on other data. Without it a small network is trained on each half of the rows and judged
        on the other.
    framework : {"torch", "jax"}, optional
        What trains the network: by default the one that is imported already, or installed.
    hidden : tuple of int
        Widths of the layers.
    steps : int
        Most steps of Adam; it stops when the loss on rows set aside no longer falls.
    level : float
        Of the interval, a bootstrap of the held-out rows and the difference of the two critics: it covers the bound that such critics
        reach, which may lie well below KL.
    rng : int or numpy.random.Generator, optional

    Returns
    -------
    Estimate
        With `lower`, for the two bounds: KL is above that at `level`.

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.estimators import variational
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(0, 1, (5000, 2)), rng.normal([1, 0], 1, (5000, 2))
    >>> variational(x, y, critic=lambda z: 0.5 - z[:, 0])          # the true log p/q; exactly 0.5
    0.500 ± 0.024 (Donsker–Varadhan bound, held out, n=5000, 95% interval 0.4534 to 0.546, bounds 0.4609 to ?)
    """
    one_of("bound", bound, BOUNDS)
    level, rng = check_level(level), generator(rng)
    first, second, _ = read_points(x, y)
    copies = find_copies(first, second)
    first, second, note = copies.x, copies.y, copies.note
    n, m = len(first), len(second)
    if critic is not None:
        values = [(_evaluate(critic, first, "x"), _evaluate(critic, second, "y"))]
    else:
        if min(n, m) < FEWEST_ROWS:
            raise InvalidValue(
                f"x has {n} rows and y {m}: a critic needs {FEWEST_ROWS} of each to be trained on one half and judged on the other"
            )
        train = _trainer(framework)
        first, second = whiten(first, second)
        if first.shape[1] == 0:
            raise InvalidValue("every row of x and y is the same point, so there is nothing to train a critic on: call from_samples")
        parts_x, parts_y = np.array_split(rng.permutation(n), 2), np.array_split(rng.permutation(m), 2)
        if len(copies.in_x):
            # A row that both samples have is of the same half in both: a critic that has seen it does not judge it.
            half = np.isin(copies.in_x, parts_x[1])
            others = np.array_split(rng.permutation(np.setdiff1d(np.arange(m), copies.in_y)), 2)
            parts_y = [np.concatenate([copies.in_y[half == bool(i)], others[i]]) for i in (0, 1)]
        values = []
        for i in (0, 1):
            trained = train(
                first[parts_x[i]],
                second[parts_y[i]],
                objective=bound,
                hidden=tuple(hidden),
                steps=int(steps),
                seed=int(rng.integers(2**31)),
            )
            values.append((trained(first[parts_x[1 - i]]), trained(second[parts_y[1 - i]])))
    reached = [_bound(bound, f_x, f_y) for f_x, f_y in values]
    value = float(np.mean(reached))
    drawn = [
        np.mean([_bound(bound, rng.choice(f_x, len(f_x)), rng.choice(f_y, len(f_y))) for f_x, f_y in values]) for _ in range(RESAMPLES)
    ]
    # Half the difference of two critics is what training adds to the error of their mean.
    error = math.hypot(float(np.std(drawn)), 0.5 * (max(reached) - min(reached)))
    name = {"donsker_varadhan": "Donsker–Varadhan bound", "nwj": "NWJ bound", "classifier": "classifier ratio"}[bound]
    method = f"{name}, held out{note}"
    found = symmetric(value, error, n, method, level)
    if bound == "classifier":
        return found
    from scipy.special import ndtri

    return symmetric(value, error, n, method, level, lower=max(value - float(ndtri(level)) * error, 0.0))


def _bound(bound: str, f_x: Points, f_y: Points) -> float:
    if bound == "classifier":
        return float(f_x.mean())
    if bound == "nwj":
        with np.errstate(over="ignore"):
            return float(f_x.mean() - np.exp(f_y).mean() + 1.0)
    return float(f_x.mean() - (np.logaddexp.reduce(f_y) - math.log(len(f_y))))


def _evaluate(critic: Callable[[Points], Any], points: Points, name: str) -> Points:
    given = critic(points)
    ops = ops_of(given)
    values = np.asarray(given if ops is None else ops.to_numpy(given), dtype=np.float64)
    if values.size != len(points):
        raise InvalidValue(f"critic gives shape {values.shape} for the {len(points)} points of {name}: one number a point is needed")
    if np.isnan(values).any():
        raise InvalidValue(f"critic is NaN at row {int(np.flatnonzero(np.isnan(values.reshape(-1)))[0])} of {name}")
    return values.reshape(-1)


def _trainer(framework: str | None) -> Callable[..., Callable[[Points], Points]]:
    if framework is None:
        known = [name for name in ("torch", "jax") if name in sys.modules] or [
            name for name in ("torch", "jax") if importlib.util.find_spec(name)
        ]
        if not known:
            raise ImportError("training a critic needs PyTorch or JAX: pip install 'kullback[torch]', or pass critic=")
        framework = known[0]
    if framework == "torch":
        from .training_torch import train

        return train
    if framework == "jax":
        from .training_jax import train as train_jax

        return train_jax
    raise InvalidOption(f"framework is {framework!r}: it must be 'torch' or 'jax'")

"""A smooth model of log p/q from two samples: penalised logistic regression, each point judged by a fit that left it out.

The model is no assumption: `_neighbours` uses it only to say how the ratio varies within a small ball. It may be poor, it may not be
overfitted. Hence models, penalties and coordinates are chosen by the leave-one-out log loss, and no model at all is among the choices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ._inputs import Points

KNOTS = 12
PENALTIES = (1e-2, 1e-3, 1e-4)
# Fitting costs rows × features²: more rows than this no longer change the model visibly.
MOST_ROWS = 10_000
MOST_PRODUCTS = 400


class Ratio(NamedTuple):
    """Coordinates to search neighbours in (a bijection of the data), log p/q at each point up to a constant, and how well it predicts."""

    x: Points
    y: Points
    at_x: Points
    at_y: Points
    loss: float


def normal_scores(x: Points, y: Points) -> tuple[Points, Points]:
    """Each column through one increasing map, the normal quantile of its pooled rank: KL does not change, tails become light."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    both = rankdata(np.concatenate([x, y]), axis=0)
    scores = ndtri((both - 0.5) / len(both))
    return scores[: len(x)], scores[len(x) :]


def whiten(x: Points, y: Points) -> tuple[Points, Points]:
    """One affine map of both samples that gives the pooled sample unit covariance; directions in which nothing varies are dropped."""
    both = np.concatenate([x, y])
    # Columns may differ by more than squares can hold.
    both = both / np.maximum(np.abs(both).max(0), np.finfo(np.float64).tiny)
    both = both - both.mean(0)
    scale = both.std(0)
    both = both / np.where(scale > 0.0, scale, 1.0)
    values, vectors = np.linalg.eigh(both.T @ both / len(both))
    # Rounding leaves eigenvalues of this size in directions that are linear combinations of others.
    kept = values > values[-1] * len(values) * 1e-13
    both = both @ (vectors[:, kept] / np.sqrt(values[kept]))
    # Turned back, so that columns stay as near as can be to what they were: the model below is additive in them.
    both = both @ vectors.T if kept.all() else both
    return both[: len(x)], both[len(x) :]


def _features(z: Points, knots: Points | None, width: Points | None, pairs: tuple[Any, Any] | None) -> Points:
    columns = [np.ones((len(z), 1)), z]
    if knots is not None and width is not None:
        columns += [width * np.logaddexp(0.0, (z - knot) / width) for knot in knots]  # smooth hinges
    if pairs is not None:
        columns.append(z[:, pairs[0]] * z[:, pairs[1]])
    return np.concatenate(columns, 1)


class _Fit(NamedTuple):
    weights: Points
    logits: Points
    left_out: Points
    loss: float


def _logistic(features: Points, is_x: Points, mass: Points, penalty: Points, start: Points) -> _Fit:
    """Newton's method with halving; the leave-one-out logits by one more Newton step each (Rad & Maleki 2020), in closed form."""
    from scipy.special import expit

    def objective(weights: Points) -> tuple[float, Points]:
        u = features @ weights
        return float(mass @ (np.logaddexp(0.0, u) - is_x * u) + 0.5 * penalty @ weights**2), u

    weights = start
    value, u = objective(weights)
    for _ in range(30):
        p = expit(u)
        gradient = features.T @ (mass * (p - is_x)) + penalty * weights
        hessian = features.T @ (features * (mass * p * (1.0 - p))[:, None]) + np.diag(penalty)
        step = np.linalg.lstsq(hessian, gradient, rcond=None)[0] if np.any(penalty[1:] == 0.0) else np.linalg.solve(hessian, gradient)
        length = 1.0
        while True:
            lower, u_new = objective(weights - length * step)
            if lower <= value - 1e-4 * length * float(gradient @ step) or length < 1e-3:
                break
            length /= 2
        if lower >= value:
            break
        done = value - lower < 1e-7
        weights, value, u = weights - length * step, lower, u_new
        if done:
            break
    p = expit(u)
    curvature = mass * p * (1.0 - p)
    hessian = features.T @ (features * curvature[:, None]) + np.diag(penalty)
    reach = np.einsum("ij,ij->i", np.linalg.solve(hessian, features.T).T, features)
    left_out = u + reach * mass * (p - is_x) / np.maximum(1.0 - curvature * reach, 1e-2)
    return _Fit(weights, u, left_out, float(mass @ (np.logaddexp(0.0, left_out) - is_x * left_out)))


def _calibration(left_out: Points, is_x: Points, mass: Points) -> float:
    """What left-out logits must be multiplied by to predict best: below 1, as noise in a fit exaggerates. 0 where they mislead."""
    features = np.stack([np.ones(len(left_out)), left_out], 1)
    return max(float(_logistic(features, is_x, mass, np.full(2, 1e-12), np.array([0.0, 1.0])).weights[1]), 0.0)


def _fit_in(x: Points, y: Points, rng: np.random.Generator) -> Ratio:
    """The best model in these coordinates."""
    n, m, d = len(x), len(y), x.shape[1]
    rows_x = rng.permutation(n)[:MOST_ROWS]
    rows_y = rng.permutation(m)[:MOST_ROWS]
    z = np.concatenate([x[rows_x], y[rows_y]])
    is_x = np.concatenate([np.ones(len(rows_x)), np.zeros(len(rows_y))])
    mass = np.where(is_x > 0.0, 0.5 / len(rows_x), 0.5 / len(rows_y))
    knots = np.quantile(z, np.linspace(0.0, 1.0, KNOTS + 2)[1:-1], axis=0)
    width = (np.quantile(z, 0.9, axis=0) - np.quantile(z, 0.1, axis=0)) / KNOTS
    smooth = bool(np.all(width > 0.0))
    pairs = np.triu_indices(d) if d * (d + 1) // 2 <= MOST_PRODUCTS else (np.arange(d), np.arange(d))
    models: list[tuple[Any, Any, Any]] = [(None, None, None), (None, None, pairs)]
    models += [(knots, width, None), (knots, width, pairs)] if smooth else []
    best: tuple[Any, ...] | None = None
    loss = float(np.log(2.0))
    for model in models:
        features = _features(z, *model)
        if features.shape[1] > len(z) // 2:
            continue
        centre, scale = features.mean(0), features.std(0)
        centre[0], scale[0] = 0.0, 1.0
        scale[scale == 0.0] = 1.0
        features = (features - centre) / scale
        start = np.zeros(features.shape[1])
        for strength in PENALTIES if features.shape[1] > d + 1 else PENALTIES[-1:]:
            penalty = np.full(features.shape[1], strength)
            penalty[0], penalty[1 : d + 1] = 0.0, PENALTIES[-1]
            fit = _logistic(features, is_x, mass, penalty + 1e-12, start)
            start = fit.weights
            if fit.loss < loss:
                best, loss = (model, centre, scale, fit), fit.loss
    if best is None:
        return Ratio(x, y, np.zeros(n), np.zeros(m), loss)
    model, centre, scale, fit = best
    slope = _calibration(fit.left_out, is_x, mass)

    def everywhere(points: Points, rows: Any, left_out: Points) -> Points:
        out = np.empty(len(points))
        for start in range(0, len(points), 20_000):
            part = points[start : start + 20_000]
            out[start : start + 20_000] = ((_features(part, *model) - centre) / scale) @ fit.weights
        out[rows] = left_out
        return slope * out

    return Ratio(x, y, everywhere(x, rows_x, fit.left_out[: len(rows_x)]), everywhere(y, rows_y, fit.left_out[len(rows_x) :]), loss)


def fit_ratio(x: Points, y: Points, rng: np.random.Generator) -> Ratio:
    """In the coordinates given, or in normal scores of each column: whichever lets the model predict better."""
    plain = _fit_in(*whiten(x, y), rng)
    scored = _fit_in(*whiten(*normal_scores(x, y)), rng)
    return plain if plain.loss <= scored.loss else scored

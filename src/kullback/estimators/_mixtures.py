"""Bounds of KL between mixtures that hold whatever the estimate says.

Above: the variational bound of Hershey and Olsen (2007), from the divergences between components. Below: the divergence of probabilities of
intervals, which can only lose (data processing), on the line, or of normal vectors on a line they are projected on.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._distributions.adapters import read
from .._distributions.families import Independent, Record
from .._distributions.objects import object_kl
from .._errors import NoClosedForm
from ._compound import IndependentLaw
from ._law import Law, NormalVectorLaw, ScipyLaw, host_numbers
from ._quadrature import spread
from ._terms import terms

Array = Any
_ROUNDS = 200
# A bound that is computed is shaved by more than its rounding.
_SHAVE = 1e-12


def bounds(p: Law, q: Law, p_object: Any, q_object: Any, shape: tuple[int, ...]) -> tuple[Array | None, Array | None]:
    """Lower and upper bound, or None where none is known."""
    return lower_bound(p, q, shape), upper_bound(p, q, p_object, q_object, shape)


# --- above ------------------------------------------------------------------------------------------------------------------------------


def upper_bound(p: Law, q: Law, p_object: Any, q_object: Any, shape: tuple[int, ...]) -> Array | None:
    """Σ φ_ab [log(φ_ab/ψ_ab) + KL(f_a‖g_b)], for any φ that adds up to P's weights over b, and ψ to Q's over a; made small in turns."""
    between = _between(p, q, p_object, q_object)
    if between is None:
        return None
    first, second = (_weights(law) for law in (p, q))
    between = np.broadcast_to(between, (*shape, first.shape[-1], second.shape[-1]))
    pi, omega = first[..., :, None] + 0.0 * between, second[..., None, :] + 0.0 * between
    phi = pi * omega
    for _ in range(_ROUNDS):
        share = phi / np.maximum(phi.sum(-2, keepdims=True), np.finfo(float).tiny)
        psi = omega * share
        with np.errstate(divide="ignore"):
            logs = np.log(psi) - between
        top = logs.max(-1, keepdims=True)
        weight = np.exp(logs - np.where(np.isfinite(top), top, 0.0))
        phi = pi * weight / np.maximum(weight.sum(-1, keepdims=True), np.finfo(float).tiny)
    share = phi / np.maximum(phi.sum(-2, keepdims=True), np.finfo(float).tiny)
    psi = omega * share
    inside = phi > 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(inside, phi * (np.log(phi / psi) + between), 0.0)
    return np.maximum(each.sum((-2, -1)), 0.0) * (1.0 + _SHAVE)


def _weights(law: Law) -> Array:
    return np.ones((1,)) if law.mixture is None else np.exp(law.mixture.log_weights)


def _between(p: Law, q: Law, p_object: Any, q_object: Any) -> Array | None:
    """KL of every component of P from every one of Q, along two new last axes."""
    sides = [(law.mixture.objects if law.mixture is not None else x, law.mixture is not None) for law, x in ((p, p_object), (q, q_object))]
    try:
        if any(isinstance(x, list) for x, _ in sides):
            # Of different families: each for itself, if they are single objects.
            lists = [x if isinstance(x, list) else [x] for x, mixed in sides]
            if any(not isinstance(x, list) and mixed for x, mixed in sides):
                return None
            return np.stack([np.stack([host_numbers(object_kl(a, b)) for b in lists[1]], -1) for a in lists[0]], -2)
        records = [_with_axis(read(x), mixed, side) for side, (x, mixed) in enumerate(sides)]
        return host_numbers(object_kl(*records))
    except (NoClosedForm, TypeError, ValueError):
        return None


def _with_axis(record: Record, mixed: bool, side: int, inner: int = 0) -> Record:
    """P's components along the last batch axis but one, Q's along the last."""
    if isinstance(record, Independent):
        return Independent(_with_axis(record.base, mixed, side, inner + record.reinterpreted), record.reinterpreted)
    changed = {}
    for name, x in record.parameters().items():
        x = host_numbers(x)
        end = x.ndim - record.parameter_ndims.get(name, 0) - inner
        if x.ndim == 0 or end < 0:
            changed[name] = x
            continue
        x = x if mixed else np.expand_dims(x, end)  # a single law is a mixture of one
        end = end if mixed else end + 1
        changed[name] = np.expand_dims(x, end if side == 0 else max(end - 1, 0))
    return dataclasses.replace(record, **changed)


# --- below ------------------------------------------------------------------------------------------------------------------------------


def lower_bound(p: Law, q: Law, shape: tuple[int, ...]) -> Array | None:
    if p.is_scalar and q.is_scalar and not p.discrete:
        edges = np.sort(np.concatenate([spread(law, shape, 512) for law in (p, q)]), axis=0)
        edges = _refined(edges).reshape(-1, *shape)
        values = [law.cdf(edges) for law in (p, q)]
        if values[0] is None or values[1] is None:
            return None
        first, second = (np.broadcast_to(np.asarray(x), edges.shape) for x in values)
        return _of_intervals(first, second)
    vectors = [_normal_vectors(law) for law in (p, q)]
    if vectors[0] is None or vectors[1] is None:
        return None
    best = np.zeros(shape)
    for direction in _directions(vectors, shape):
        with np.errstate(all="ignore"):
            best = np.fmax(best, _projected(vectors, direction, shape))
    return best


def _refined(edges: Array) -> Array:
    """With seven points more between any two: more intervals lose less."""
    edges = np.where(np.isfinite(edges), edges, np.nan)
    low, high = edges[:-1], edges[1:]
    between = [low + (high - low) * (k / 8) for k in range(1, 8)]
    found = np.concatenate([edges, *between])
    middle = np.nanmedian(found, axis=0)
    return np.sort(np.where(np.isnan(found), middle, found), axis=0)


def _of_intervals(p: Array, q: Array) -> Array:
    """KL of the probabilities between consecutive values of two distribution functions."""
    ends = np.zeros((1, *p.shape[1:]))
    chances = [np.maximum(np.diff(np.concatenate([ends, x, ends + 1.0]), axis=0), 0.0) for x in (p, q)]
    # Differences of a distribution function below its rounding say nothing: such intervals join the last one.
    known = (chances[0] > 1e-13) & (chances[1] > 1e-13)
    rest = [np.where(known, 0.0, x).sum(0, keepdims=True) for x in chances]
    with np.errstate(divide="ignore"):
        first, second = (np.log(np.concatenate([np.where(known, x, 0.0), y])) for x, y in zip(chances, rest))
    found = terms(first, second).gap
    # The rest may be mass of P alone only because Q's is lost in rounding.
    found = np.where(np.isfinite(found), found, 0.0).sum(0)
    return np.maximum(found * (1.0 - 1e-9) - 1e-11, 0.0)


def _normal_vectors(law: Law) -> tuple[Array, Array, Array] | None:
    """Weights, means and triangular factors of a mixture of normal vectors, (..., K), (..., K, d), (..., K, d, d)."""
    parts = law if law.mixture is None else law.mixture.parts
    weights = _weights(law)
    if isinstance(parts, NormalVectorLaw):
        batch, size = parts.batch_shape, parts.event_shape[0]
        loc, lower = np.broadcast_to(parts.loc, (*batch, size)), np.broadcast_to(parts.lower, (*batch, size, size))
    elif isinstance(parts, IndependentLaw) and parts.count == 1 and isinstance(parts.base, ScipyLaw) and parts.base.name == "Normal":
        _, loc, scale = parts.base.frozen.dist._parse_args(*parts.base.frozen.args, **parts.base.frozen.kwds)
        loc, scale = (np.broadcast_to(x, parts.base.batch_shape) for x in (loc, scale))
        lower = scale[..., None] * np.eye(loc.shape[-1])
    else:
        return None
    if law.mixture is None:
        loc, lower = np.expand_dims(loc, -2), np.expand_dims(lower, -3)
    return weights, loc, lower


def _directions(vectors: list[Any], shape: tuple[int, ...]) -> list[Array]:
    means = [(w[..., None] * loc).sum(-2) for w, loc, _ in vectors]
    difference = np.broadcast_to(means[0] - means[1], (*shape, means[0].shape[-1]))
    covariance = sum((w[..., None, None] * (lower @ np.swapaxes(lower, -1, -2))).sum(-3) for w, _, lower in vectors)
    discriminant = np.linalg.solve(np.broadcast_to(covariance, (*shape, *covariance.shape[-2:])), difference[..., None])[..., 0]
    axes = np.eye(difference.shape[-1])[:16]
    return [discriminant, difference, *(np.broadcast_to(x, difference.shape) for x in axes)]


def _projected(vectors: list[Any], direction: Array, shape: tuple[int, ...]) -> Array:
    from scipy.special import ndtr

    lines = []
    for weights, loc, lower in vectors:
        centre = np.einsum("...kd,...d->...k", loc, direction)
        spread = np.sqrt(np.square(np.einsum("...kde,...d->...ke", lower, direction)).sum(-1))
        lines.append(tuple(np.broadcast_to(x, (*shape, x.shape[-1])) for x in (weights, centre, spread)))
    z = np.linspace(-7.0, 7.0, 57)
    edges = np.concatenate([(centre[..., None] + spread[..., None] * z).reshape(*shape, -1) for _, centre, spread in lines], -1)
    edges = np.sort(np.moveaxis(edges, -1, 0), axis=0)
    values = [(w * ndtr((edges[..., None] - centre) / spread)).sum(-1) for w, centre, spread in lines]
    return np.where(np.any(direction != 0.0, -1), _of_intervals(*values), 0.0)

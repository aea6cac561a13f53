"""KL of two laws on the real line, by adaptive Gauss-Kronrod quadrature, all elements of a batch side by side.

The line is cut where the mass of P and Q is (their quantiles, or those of samples), and at the ends of the support the variable becomes the
logarithm of the distance, so that singular ends, heavy tails and scales far apart cost no more than the rest. Two integrals are
taken at the same nodes, ∫ p log(p/q) and ∫ p log(p/q) - p + q (which does not cancel), and the one with the smaller error is the answer.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ._law import Law, mass_inside, seen
from ._terms import EPSILON, terms

Array = Any

# Gauss-Kronrod rule of 10 and 21 nodes (QUADPACK), on [-1, 1]: nodes ≥ 0, their weights, and those of every second node in the rule of 10.
_NODES = np.array([
    0.995657163025808080735527280689003, 0.973906528517171720077964012084452, 0.930157491355708226001207180059508,
    0.865063366688984510732096688423493, 0.780817726586416897063717578345042, 0.679409568299024406234327365114874,
    0.562757134668604683339000099272694, 0.433395394129247190799265943165784, 0.294392862701460198131126603103866,
    0.148874338981631210884826001129720, 0.0,
])  # fmt: skip
_KRONROD = np.array([
    0.011694638867371874278064396062192, 0.032558162307964727478818972459390, 0.054755896574351996031381300244580,
    0.075039674810919952767043140916190, 0.093125454583697605535065465083366, 0.109387158802297641899210590325805,
    0.123491976262065851077958109585166, 0.134709217311473325928054001771707, 0.142775938577060080797094273138717,
    0.147739104901338491374841515972068, 0.149445554002916905664936468389821,
])  # fmt: skip
_GAUSS = np.array([
    0.066671344308688137593568809893332, 0.149451349150580593145863396957658, 0.219086362515982043995534934228163,
    0.269266719309996355091226921569469, 0.295524224714752870173815619188769,
])  # fmt: skip
_X = np.concatenate([-_NODES, _NODES[-2::-1]])
_WK = np.concatenate([_KRONROD, _KRONROD[-2::-1]])
_WG = np.zeros(21)
_WG[1:10:2] = _GAUSS
_WG[11:21:2] = _GAUSS[::-1]

# Shares of mass at which the line is cut, from either end.
_SHARES = np.array([1e-60, 1e-25, 1e-14, 1e-8, 1e-4, 1e-2, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
# Cuts of the logarithmic variable at the ends; beyond 700 numbers over- or underflow.
_OUT = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 690.0])
_ROUNDS = 60


class Integral(NamedTuple):
    value: Array
    bound: Array
    nodes: int


class _Pieces(NamedTuple):
    """Intervals of t, flat: the batch element each belongs to; x = anchor + width · (t, e^t - 1 or e^-t, for kind 0, 1, 2)."""

    owner: Array
    kind: Array
    anchor: Array
    width: Array
    left: Array
    right: Array

    def take(self, chosen: Array) -> _Pieces:
        return _Pieces(*(x[chosen] for x in self))

    def halves(self) -> _Pieces:
        middle = 0.5 * (self.left + self.right)
        low, high = self._replace(right=middle), self._replace(left=middle)
        return _Pieces(*(np.concatenate(both) for both in zip(low, high)))

    def points(self) -> tuple[Array, Array]:
        """x at the nodes and dx/dt times the weight of the interval, (pieces, nodes)."""
        half = 0.5 * (self.right - self.left)[:, None]
        t = 0.5 * (self.right + self.left)[:, None] + half * _X
        kind, anchor, width = (x[:, None] for x in (self.kind, self.anchor, self.width))
        with np.errstate(over="ignore"):
            e = np.exp(np.where(kind == 0, 0.0, np.where(kind == 1, t, -t)))
            x = anchor + width * np.where(kind == 0, t, np.where(kind == 1, e - 1.0, e))
            weight = np.abs(width) * np.where(kind == 0, 1.0, e) * half
        # So near a finite end that it is the end, or beyond all numbers: out of reach, and seen by the mass that is then missing.
        lost = ~np.isfinite(x) | ~np.isfinite(weight) | ((kind == 2) & (x == anchor))
        return np.where(lost, anchor + np.where(kind == 0, 0.0, width), x), np.where(lost, 0.0, weight)


def can_integrate(p: Law, q: Law) -> bool:
    return p.is_scalar and q.is_scalar and not p.discrete and not q.discrete


def integrate_kl(p: Law, q: Law, shape: tuple[int, ...], tol: float, budget: int) -> Integral:
    size = max(1, math.prod(shape))
    low, high, q_low, q_high = (np.broadcast_to(x, shape).reshape(size) for x in (p.low, p.high, q.low, q.high))
    cuts, middle = _cuts(p, q, shape, low, high)
    infinite = _exceeds(p, q, shape, cuts, middle, low, high, q_low, q_high)
    pieces = _first_pieces(cuts, middle, low, high)
    inside = mass_inside(p, q, shape).reshape(size)
    integrals, errors = _evaluate(p, q, pieces, shape)
    nodes = 21 * len(pieces.owner)
    ends, ends_wrong = _beyond_reach(p, q, shape, cuts, low, high)
    for _ in range(_ROUNDS):
        # Channels: p, q, p log(p/q), the gap, and the rounding of the last two.
        totals, wrong = (np.stack([np.bincount(pieces.owner, x, size) for x in channel]) for channel in (integrals, errors))
        value, bound, channel = _choose(totals + ends, wrong + ends_wrong, inside)
        target = np.maximum(tol * np.abs(value), np.finfo(float).tiny)
        by_gap = channel[pieces.owner] == 3
        # The masses are part of the bound: they must be as good as the integral.
        weight = (1.0 + np.abs(np.where(np.isfinite(value), value, 0.0)))[pieces.owner]
        own = np.where(by_gap, errors[3] + errors[1], errors[2]) + errors[0] * weight
        # What rounding spoils is not mended by more nodes.
        floor = np.where(by_gap, integrals[5], integrals[4]) + 50.0 * EPSILON * np.abs(np.where(by_gap, integrals[3], integrals[2]))
        with np.errstate(over="ignore"):
            floor = np.maximum(floor, (50.0 * EPSILON * integrals[0] + integrals[4]) * weight)
        count = np.bincount(pieces.owner, minlength=size)
        quadrature = np.bincount(pieces.owner, own, size)
        open_ = (quadrature > 0.5 * target) & np.isfinite(value) & ~infinite
        narrow = (pieces.right - pieces.left) <= 1e-13 * np.maximum(1.0, np.abs(pieces.left))
        chosen = open_[pieces.owner] & (own > (0.25 * target / count)[pieces.owner]) & (own > floor) & ~narrow
        if not chosen.any() or nodes > budget:
            break
        new = pieces.take(chosen).halves()
        more, more_errors = _evaluate(p, q, new, shape)
        nodes += 21 * len(new.owner)
        kept = pieces.take(~chosen)
        pieces = _Pieces(*(np.concatenate(both) for both in zip(kept, new)))
        integrals = np.concatenate([integrals[:, ~chosen], more], 1)
        errors = np.concatenate([errors[:, ~chosen], more_errors], 1)
    value = np.where(infinite, math.inf, np.maximum(value, 0.0))
    # Twice what the nodes say, and the last digits of the sum.
    bound = np.where(infinite | np.isinf(value), 0.0, 2.0 * bound + 4.0 * EPSILON * np.abs(np.where(infinite, 0.0, value)))
    return Integral(value.reshape(shape), bound.reshape(shape), nodes)


def _choose(totals: Array, wrong: Array, inside: Array) -> tuple[Array, Array, Array]:
    """The better of the two integrals, how far off it may be, and its channel."""
    with np.errstate(invalid="ignore"):
        missing_p = np.abs(1.0 - totals[0])
        missing_p = np.where(missing_p < 16.0 * EPSILON + totals[4], 0.0, missing_p)
        plain_bound = wrong[2] + totals[4] + missing_p * (1.0 + np.abs(totals[2]))
        gap = totals[3] + (1.0 - inside)
        # Nodes that have not seen some of Q's mass have not seen what it adds; nor P's.
        missing_q = np.abs(inside - totals[1])
        gap_bound = (
            wrong[3] + totals[5] + np.where(missing_q < 16.0 * EPSILON + totals[4], 0.0, missing_q) + missing_p * (1.0 + np.abs(totals[2]))
        )
        better = np.isfinite(gap) & (gap_bound <= plain_bound)
        # Nodes that have not seen most of P say nothing.
        blind = ~(missing_p < 0.5)
    return np.where(blind, math.nan, np.where(better, gap, totals[2])), np.where(better, gap_bound, plain_bound), np.where(better, 3, 2)


def _evaluate(p: Law, q: Law, pieces: _Pieces, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Six integrals over each piece, and their errors."""
    size = max(1, math.prod(shape))
    if not len(pieces.owner):
        return np.zeros((6, 0)), np.zeros((6, 0))
    x, weight = pieces.points()
    # Laid out as (rows, batch): the libraries take a point for each element.
    order = np.argsort(pieces.owner, kind="stable")
    owner = pieces.owner[order]
    first = np.searchsorted(owner, np.arange(size))
    row = np.arange(len(owner)) - first[owner]
    rows = int(row.max()) + 1
    grid = np.zeros((rows, 21, size))
    grid[:] = x[order[np.minimum(first, len(order) - 1)], 10]
    grid[row, :, owner] = x[order]
    points = grid.reshape(rows * 21, *shape)
    log_p, log_q = (np.broadcast_to(law.log_prob(points), points.shape) for law in (p, q))
    log_p, log_q = (logs.reshape(rows, 21, size)[row, :, owner] for logs in (log_p, seen(q, points, log_p, log_q)))
    sizes = np.broadcast_to(p.magnitude(points) + q.magnitude(points), points.shape).reshape(rows, 21, size)[row, :, owner]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    found = terms(log_p[back], log_q[back], sizes[back])
    # Near a finite end x is rounded at a part of its distance to it that counts.
    with np.errstate(all="ignore"):
        jitter = np.where((pieces.kind == 2)[:, None], np.spacing(np.abs(pieces.anchor))[:, None] / np.abs(x - pieces.anchor[:, None]), 0.0)
        jitter = np.where(np.isfinite(jitter), jitter, 0.0)
        plain_rounding = found.plain_rounding + jitter * (np.abs(found.plain) + found.p)
        gap_rounding = found.gap_rounding + jitter * (found.gap + found.p + found.q)
    values = np.stack([found.p, found.q, found.plain, found.gap, plain_rounding, gap_rounding])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        f = np.where((weight == 0.0) | ~np.isfinite(weight), 0.0, values * weight)
        kronrod, gauss = f @ _WK, f @ _WG
        spread = np.abs(f - 0.5 * kronrod[..., None]) @ _WK
        error = np.abs(kronrod - gauss)
        # QUADPACK: the difference of the two rules is far too pessimistic for smooth integrands.
        error = np.where(spread > 0.0, spread * np.minimum(1.0, (200.0 * error / spread) ** 1.5), error)
        moved = _moved(x, values[:4], f[:4])
        kronrod[4] += moved[2] + moved[0]
        kronrod[5] += moved[3]
    return kronrod, np.where(np.isfinite(kronrod), error, 0.0)


def _moved(x: Array, values: Array, f: Array) -> Array:
    """How far integrals over pieces are off because each x, (pieces, nodes), is rounded: ∫ |f'| times half the distance of floats.

    Nodes coincide if floats are too far apart there. The density between them is then unknown, so the whole integral counts as error.
    """
    step, size = np.abs(np.diff(x)), np.abs(x)
    rounding = 0.5 * np.spacing(np.minimum(size[:, :-1], size[:, 1:]))
    change = np.abs(np.diff(values)) * rounding
    merged = np.maximum(np.abs(f[..., :-1]), np.abs(f[..., 1:])) * _WK.max()
    change = np.where(step > 8.0 * rounding, change, merged)
    return np.where(np.isfinite(change), change, 0.0).sum(-1)


def _cuts(p: Law, q: Law, shape: tuple[int, ...], low: Array, high: Array) -> tuple[Array, Array]:
    """Points, sorted, (m, batch), strictly inside P's support (repeated where there are fewer), and the middle of P."""
    found = [spread(law, shape, samples) for law, samples in ((p, 2048), (q, 512))]
    points = np.concatenate(found)
    size = points.shape[1]
    # Not so near to a finite end that the distance is all rounding: what lies there is extrapolated.
    margins = [np.where(np.isfinite(end), 200.0 * _least(end), 0.0) for end in (low, high)]
    inside = np.isfinite(points) & (points > low + margins[0]) & (points < high - margins[1])
    centre = np.where(inside[: len(found[0])], found[0], np.nan)
    none = np.isnan(centre).all(0)
    with np.errstate(all="ignore"):
        middle = np.where(none, 0.5 * (low + high), np.nanmedian(np.where(none, 0.0, centre), axis=0))
    middle = np.where(np.isfinite(middle), middle, np.where(np.isfinite(low), low + 1.0, np.where(np.isfinite(high), high - 1.0, 0.0)))
    return np.sort(np.where(inside, points, np.broadcast_to(middle, (len(points), size))), axis=0), middle


def spread(law: Law, shape: tuple[int, ...], samples: int) -> Array:
    """Where a law's mass is: quantiles, those of the components of a mixture, or of samples; and its corners."""
    size = max(1, math.prod(shape))
    points: list[Array] = []

    def add(x: Array, extra: int = 0) -> None:
        # (m, *batch, *extra axes) -> (m · extra, batch)
        x = np.asarray(x, float)
        if extra:
            x = np.moveaxis(x, -1, 1).reshape(-1, *x.shape[1:-1])
        missing = len(shape) - (x.ndim - 1)
        x = x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:])
        points.append(np.broadcast_to(x, (x.shape[0], *shape)).reshape(-1, size))

    parts = law.mixture.parts if law.mixture is not None else None
    for source, extra in ((law, 0), (parts, 1)):
        if source is None:
            continue
        below, above = source.quantile(_SHARES), source.upper_quantile(_SHARES[:-1])
        if below is not None:
            add(below, extra)
            add(source.quantile(1.0 - _SHARES[4:-1]) if above is None else above, extra)
        if source.corners is not None:
            add(source.corners, extra)
    if not points:
        drawn = np.sort(law.numpy(law.draw(samples, law.source(0))).reshape(samples, *law.batch_shape), axis=0)
        ranks = np.unique(np.round(np.concatenate([[0.0, 1 / samples, 3 / samples], np.linspace(0.005, 0.995, 41), [1.0]]) * (samples - 1)))
        add(drawn[ranks.astype(int)])
    for end in (law.low, law.high):
        add(np.broadcast_to(end, law.batch_shape)[None])
    return np.concatenate(points)


def _first_pieces(cuts: Array, middle: Array, low: Array, high: Array) -> _Pieces:
    rows, size = cuts.shape
    owners = np.arange(size)
    found: list[tuple[Array, ...]] = []
    for i in range(rows - 1):
        found.append((owners, *_between(cuts[i], cuts[i + 1], low, high, middle)))
    bulk = cuts[-1] - cuts[0]
    bulk = np.where(bulk > 0.0, bulk, np.maximum(np.abs(cuts[0]), 1.0))
    for end, cut, sign in ((low, cuts[0], -1.0), (high, cuts[-1], 1.0)):
        closed, reach = np.isfinite(end), _reach(end, cut)
        for a, b in pairwise(_OUT):
            # To a finite end by halving the distance, to infinity by doubling it.
            anchor = np.where(closed, end, cut)
            width = np.where(closed, cut - end, sign * bulk)
            left, right = (np.where(closed, np.minimum(x, reach), x) for x in (a, b))
            found.append((owners, np.where(closed, 2.0, 1.0), anchor, width, left, right))
    pieces = _Pieces(*(np.concatenate(x) for x in zip(*found)))
    return pieces.take((pieces.width != 0.0) & np.isfinite(pieces.width) & np.isfinite(pieces.anchor) & (pieces.right > pieces.left))


def _between(a: Array, b: Array, low: Array, high: Array, middle: Array) -> tuple[Array, ...]:
    """The piece from a to b: straight, unless it spans several times its distance to a finite end, or to the middle of P: then by the
    logarithm of that distance, or a tail that falls by many powers within it would not be seen."""
    kind, anchor, width, right = np.zeros(a.shape), a, b - a, np.ones(a.shape)
    for centre, near, far in ((low, a, b), (high, b, a), (middle, a, b), (middle, b, a)):
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = (far - centre) / (near - centre)
            chosen = (kind == 0.0) & np.isfinite(centre) & (ratio > 8.0) & np.isfinite(ratio)
            kind, anchor = np.where(chosen, 2.0, kind), np.where(chosen, centre, anchor)
            width, right = np.where(chosen, far - centre, width), np.where(chosen, np.log(np.where(chosen, ratio, 1.0)), right)
    return kind, anchor, width, np.zeros(a.shape), right


def _least(end: Array) -> Array:
    """The distance to a finite end below which rounding takes too much of it."""
    with np.errstate(invalid="ignore"):
        return np.where(end == 0.0, 1e-300, 2.0**20 * np.spacing(np.abs(np.where(np.isfinite(end), end, 1.0))))


def _reach(end: Array, cut: Array) -> Array:
    """How far the logarithmic variable goes towards a finite end before the distance to it is lost among the rounding of numbers."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isfinite(end), np.maximum(np.log(np.abs(cut - end) / _least(end)), 0.0), math.inf)


def _beyond_reach(p: Law, q: Law, shape: tuple[int, ...], cuts: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """What lies between the last nodes and finite ends, where densities are powers of the distance: six integrals, and their errors.

    With p = c e^(-αs) per unit of s = t - T, and log(p/q) = r + β s: ∫ p = c/α, ∫ p log(p/q) = c (r/α + β/α²). How constant the exponents
    are, between T - 2 and T, tells how right that is.
    """
    size = cuts.shape[1]
    totals, wrong = np.zeros((6, size)), np.zeros((6, size))
    for end, cut in ((low, cuts[0]), (high, cuts[-1])):
        reach = _reach(end, cut)
        there = np.isfinite(end) & (reach > 4.0) & (cut != end)
        if not there.any():
            continue
        with np.errstate(all="ignore"):
            logs = []
            for back in (0.0, 1.0, 2.0):
                distance = np.where(there, np.abs(cut - end) * np.exp(back - np.where(there, reach, 0.0)), 1.0)
                x = np.where(there, end + np.sign(cut - end) * distance, cut)[None]
                # Of the distance as it is between the two numbers, not as it was meant.
                distance = np.where(there, np.abs(x[0] - end), 1.0)
                logs.append([_log_p(law, x, shape)[0] + np.log(distance) for law in (p, q)] + [np.log(distance)])
            step = logs[1][2] - logs[0][2]
            slopes = [(logs[1][i] - logs[0][i]) / step for i in (0, 1)]
            earlier = [(logs[2][i] - logs[1][i]) / (logs[2][2] - logs[1][2]) for i in (0, 1)]
            masses, errors = [], []
            for i in (0, 1):
                masses.append(np.exp(logs[0][i]) / slopes[i])
                errors.append(np.abs(masses[i]) * np.minimum(1.0, 4.0 * np.abs(slopes[i] - earlier[i]) / np.abs(slopes[i]) + 1e-9))
            ratio, growth = logs[0][0] - logs[0][1], slopes[1] - slopes[0]
            # log(p/q) that bends, as where q falls by the square of the logarithm: one term more, and all of it an error.
            bend = growth - (earlier[1] - earlier[0])
            more = bend * (0.5 / slopes[0] + 1.0 / slopes[0] ** 2)
            plain = masses[0] * (ratio + growth / slopes[0] + more)
            plain_error = errors[0] * (1.0 + np.abs(ratio) + 2.0 * np.abs(growth / slopes[0])) + np.abs(masses[0] * more)
            good = there & np.isfinite(plain) & (slopes[0] > 0.0)
            both = good & np.isfinite(masses[1]) & (slopes[1] > 0.0)
            values = [masses[0], np.where(both, masses[1], 0.0), plain, np.where(both, plain - masses[0] + masses[1], 0.0)]
            off = [errors[0], np.where(both, errors[1], 0.0), plain_error, plain_error + errors[0] + np.where(both, errors[1], 0.0)]
        for i in range(4):
            totals[i] += np.where(good, values[i], 0.0)
            wrong[i] += np.where(good, off[i], 0.0)
    return totals, wrong


def _log_p(p: Law, x: Array, shape: tuple[int, ...]) -> Array:
    points = x.reshape(len(x), *shape)
    return np.broadcast_to(p.log_prob(points), points.shape).reshape(len(x), -1)


def _exceeds(
    p: Law, q: Law, shape: tuple[int, ...], cuts: Array, middle: Array, low: Array, high: Array, q_low: Array, q_high: Array
) -> Array:
    """Is KL infinite: has P mass where Q has none, or tails under which the integral diverges?"""
    bulk = np.maximum(cuts[-1] - cuts[0], np.finfo(float).tiny)
    infinite = np.zeros(cuts.shape[1], bool)
    # Logs of two distances from the middle of P, in its tails; not so far out that squares overflow, unless P itself is there.
    with np.errstate(divide="ignore"):
        inner = np.log(np.median(np.abs(cuts - middle), axis=0))
    far = np.minimum(np.log(bulk) + 80.0, np.maximum(322.0, inner + 100.0))
    for end, q_end, cut, sign in ((low, q_low, cuts[0], -1.0), (high, q_high, cuts[-1], 1.0)):
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            gap = (end - q_end) * sign > 0.0
            reach = np.where(np.isfinite(end), np.abs(end - q_end), bulk)
            steps = np.array([1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9])[:, None]
            x = np.where(gap, q_end + sign * steps * reach, cut)
            infinite |= gap & (np.isfinite(_log_p(p, x, shape)) & (x != q_end)).any(0)
            # Where log(p/q) grows like a power of the distance, p must fall faster: two points of the logarithmic variable tell. (Where it
            # grows like that variable itself, by 2 between the two, p need only have a finite mass, which it has.)
            closed = np.isfinite(end)
            near = np.where(closed & (end != 0.0), 10.0, 40.0)
            sizes, ratios = [], []
            for t, away in ((near, far - 40.0), (2.0 * near, far)):
                x = np.where(closed, end + (cut - end) * np.exp(-t), middle + sign * np.exp(away))[None]
                stretch = np.where(closed, np.log(np.abs(cut - end)) - t, away)
                log_p, log_q = _log_p(p, x, shape)[0], _log_p(q, x, shape)[0]
                ratios.append(np.log(np.abs(log_p - log_q)))
                size = log_p + ratios[-1] + stretch
                sizes.append(np.where(np.isfinite(log_p) & np.isfinite(log_q), size, -math.inf))
            slow = (sizes[1] > -math.inf) & (sizes[1] - sizes[0] > math.log(0.3)) & (ratios[1] - ratios[0] > 1.2)
            infinite |= slow & (cut != end)
    return infinite

"""Divergences of the rows of two logits arrays in as few passes over them as XLA for GPUs can be brought to.

bfloat16: one pass for both normalisers, one for the divergence and, where it needs no more than those, the gradient; else one more for the
gradient. Others, and temperatures: one more for the normalisers. Arithmetic is float32, in the cancellation-free form of `_calculus`;
nothing of the logits' size is written but gradients. Under jit, vmap, derivatives of any order and sharding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero


def _sum(x: Any) -> Any:
    return jnp.sum(x, -1, keepdims=True)


# XLA writes an exponential that several results share to memory, in float32, and reads it back for each. What it does not know to be shared
# it computes anew, in the same pass over the logits, which is cheaper by far.


@jax.custom_jvp  # type: ignore[untyped-decorator]
def _apart(rows: Any) -> Any:
    """The same numbers, which the compiler takes for others."""
    return jax.lax.optimization_barrier(rows)


@_apart.defjvp  # type: ignore[untyped-decorator]
def _apart_jvp(primals: Any, tangents: Any) -> Any:
    return _apart(*primals), tangents[0]


def _phi_over_square(v: Any) -> Any:
    # (eᵛ − 1 − v)/v² for |v| < 1/4, to 1.4e-6 of itself, as in `rows_triton`; XLA has no fused multiply-add, and counts every step.
    return 0.49999932 + v * (0.16666696 + v * (0.0417535 + v * 0.00833746))


def _near(v: Any) -> tuple[Any, Any]:
    near = jnp.abs(v) < 0.25
    return near, jnp.where(near, v, 0.0)


def _expm1(v: Any) -> Any:
    near, x = _near(v)
    return jnp.where(near, x + x * x * _phi_over_square(x), jnp.exp(jnp.where(near, 0.0, v)) - 1.0)


def _bregman(p: Any, q: Any, v: Any) -> Any:
    # p φ(v) for v = log(q/p): q − p − p v far from 0, where it does not cancel.
    near, x = _near(v)
    return jnp.where(near, p * (x * x * _phi_over_square(x)), (q - p) - p * v)


def _difference(p: Any, q: Any, v: Any) -> Any:
    # q − p
    near, x = _near(v)
    return jnp.where(near, p * (x + x * x * _phi_over_square(x)), q - p)


def _mixture(p: Any, q: Any, v: Any, w: float) -> tuple[Any, Any, Any]:
    # M = (1 − w) P + w Q: m, log(m/p), log(m/q). Beyond |v| = 80 nothing changes in float32.
    v = jnp.clip(v, -80.0, 80.0)
    less = v < 0.0
    log = jnp.log1p(jnp.where(less, w, 1.0 - w) * _expm1(-jnp.abs(v)))
    return (1.0 - w) * p + w * q, log + jnp.where(less, 0.0, v), log - jnp.where(less, v, 0.0)


def _two_diff(x: Any, y: Any) -> tuple[Any, Any]:
    d = x - y
    back = d - x
    return d, jnp.where(d == -jnp.inf, 0.0, (x - (d - back)) - (y + back))


class Masses(NamedTuple):
    """Of each row: pivots near the largest logits, sums of exponentials relative to those, and the logarithm of their ratio."""

    top_a: Any
    top_b: Any
    mass_a: Any
    mass_b: Any
    log_ratio: Any


class Row(NamedTuple):
    """What elements of a row are computed from, and nothing that would first have to be computed for each copy of it."""

    top_a: Any
    top_b: Any
    origins: Any
    inverse_a: Any
    inverse_b: Any
    log_ratio: Any


def _valid(top_a: Any, top_b: Any) -> tuple[Any, Any]:
    """NaN for both where either row is no distribution: it has no mass at all, or +inf."""
    good = (jnp.abs(top_a) < jnp.inf) & (jnp.abs(top_b) < jnp.inf)
    return jax.lax.stop_gradient(jnp.where(good, top_a, jnp.nan)), jax.lax.stop_gradient(jnp.where(good, top_b, jnp.nan))


def _or_zero(tops: tuple[Any, Any], lowest: float) -> tuple[Any, Any]:
    """Pivots for bfloat16: 0 on both sides where both lie between this bound and 40. Differences of logits near 0 are exact, but logits
    near 0 less another pivot round."""
    near = jnp.minimum(*tops) >= lowest
    near = near & (jnp.maximum(*tops) <= 40.0)
    return jnp.where(near, 0.0, tops[0]), jnp.where(near, 0.0, tops[1])


def _wide(x: Any, y: Any, keep: Any) -> tuple[Any, Any]:
    """In float32, and harmless numbers in rows that do not count. Here, not before: masked logits would be written down for `cond`."""
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return (x, y) if keep is None else (jnp.where(keep, x, 0.0), jnp.where(keep, y, 0.0))


# Normalisers for bfloat16: log(q/p) is off by δ, some ε, in all categories alike. Gradients are rounded to 8 bits, and KL is off by δ²/2,
# some 1e-14.


def _after_the_largest(x: Any, y: Any, keep: Any) -> Masses:
    """Two passes of little arithmetic."""
    a, b = _wide(x, y, keep)
    tops = _or_zero(_valid(jnp.max(a, -1, keepdims=True), jnp.max(b, -1, keepdims=True)), -1.0)
    mass_a, mass_b = _sum(jnp.exp(a - tops[0])), _sum(jnp.exp(b - tops[1]))
    return Masses(*tops, mass_a, mass_b, jnp.log(mass_b / mass_a))


def _from_the_first(x: Any, y: Any, keep: Any) -> Masses:
    """One pass of little arithmetic, relative to the first category, and where some row rises too far above that (or is no distribution),
    two more."""
    own_x, own_y = _apart((x, y))
    a, b = _wide(own_x, own_y, keep)
    first = tuple(jax.lax.stop_gradient(jnp.where(jnp.abs(z[..., :1]) < 1e30, z[..., :1], 0.0)) for z in (a, b))
    first = _or_zero(first, -8.0)
    mass_a, mass_b = _sum(jnp.exp(a - first[0])), _sum(jnp.exp(b - first[1]))
    good = jnp.all((mass_a < 1e30) & (mass_b < 1e30) & (mass_a > 1e-30) & (mass_b > 1e-30))
    found = Masses(first[0], first[1], mass_a, mass_b, jnp.log(mass_b / mass_a))
    return Masses(*jax.lax.cond(good, lambda *_: found, _after_the_largest, x, y, keep))


NORMALISERS = {"largest": _after_the_largest, "first": _from_the_first}
# By the bytes and instructions of the compiled programs; benchmarks/gpu_jax.py measures either.
FOR_BFLOAT16 = "first"


def _masses(a: Any, b: Any, scale: Any, *, exact: bool) -> Masses:
    """Two passes. The logarithm of the ratio comes from the difference of the masses: relative to themselves they round at ε, and log(q/p),
    which may be 1e-6, must not. The difference of two exponentials is e^a (e^d − 1)."""
    tops = _valid(jnp.max(a, -1, keepdims=True), jnp.max(b, -1, keepdims=True))
    first = _apart(tops)
    second = _apart(first)
    third, origins = _apart((second, _origins(tops)))
    mass_a, mass_b = _sum(jnp.exp((a - first[0]) * scale)), _sum(jnp.exp((b - second[1]) * scale))
    d = _log_ratio(a, b, third, origins, 0.0, scale, exact=exact)
    change = _sum(_difference(jnp.exp((a - third[0]) * scale), jnp.exp((b - third[1]) * scale), d))
    x = change / mass_a
    near = jnp.abs(x) < 0.5
    return Masses(*tops, mass_a, mass_b, jnp.where(near, jnp.log1p(jnp.where(near, x, 0.0)), jnp.log(mass_b / mass_a)))


def _origins(tops: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """The origins that are subtracted from both sides' half-precision logits before their difference is taken, and the distance that then
    remains between the largest logits. The origins are 0, and the difference is exact, unless a large finite number masks one whole row."""
    far = jnp.abs(tops[1] - tops[0]) > 512.0
    origin_a, origin_b = (jnp.where(far, top, 0.0) for top in tops)
    return origin_a, origin_b, jnp.where(far, 0.0, tops[1] - tops[0])


def _log_ratio(a: Any, b: Any, tops: Any, origins: Any, r: Any, scale: Any, *, exact: bool) -> Any:
    """log(q/p), from logits relative to their largest: a constant added to one side must cancel before it rounds anything. Differences of
    half-precision numbers are exact; those of float32 carry their rounding error."""
    top_a, top_b = tops
    if exact:
        origin_a, origin_b, between = origins
        v = _scaled(((b - origin_b) - (a - origin_a)) - between, a - top_a, scale) - r
    else:
        below_a, error_a = _two_diff(a, top_a)
        below_b, error_b = _two_diff(b, top_b)
        d, error = _two_diff(below_b, below_a)
        v = (_scaled(d, below_a, scale) - r) + (error + (error_b - error_a)) * scale
    # From 80 on, and where p is absent, p v is nothing beside q. Both absent would be NaN.
    return jnp.where(v < 80.0, v, 80.0)


def _scaled(d: Any, below_a: Any, scale: Any) -> Any:
    # The multiple of a difference of large finite numbers may overflow. Where p is 0 the difference itself does as well: p v is 0.
    return jnp.where(below_a * scale < -110.0, d, d * scale)


def _terms(a: Any, b: Any, scale: Any, exact: bool, row: Row) -> tuple[Any, Any, Any]:
    """p, q and log(q/p)."""
    p = jnp.exp((a - row.top_a) * scale) * row.inverse_a
    q = jnp.exp((b - row.top_b) * scale) * row.inverse_b
    return p, q, _log_ratio(a, b, (row.top_a, row.top_b), row.origins, row.log_ratio, scale, exact=exact)


class Result(NamedTuple):
    value: Any
    for_p: Any
    for_q: Any


def _result(kind: str, w: float, fresh: Callable[[], tuple[Any, Any, Any]], top: Any) -> Result:
    """The divergence of each row, and what its derivatives subtract. `fresh` gives p, q and log(q/p), each time apart."""
    if kind == "kl":
        value = _sum(_bregman(*fresh()))
        for_p = for_q = jnp.where(value < jnp.inf, value, jnp.nan)
    else:
        p, q, v = fresh()
        m, to_p, _ = _mixture(p, q, v, w)
        for_p = value = _sum(_bregman(p, m, to_p))
        p, q, v = fresh()
        m, to_p, to_q = _mixture(p, q, v, w)
        if kind == "js":
            for_q = _sum(_bregman(q, m, to_q))
            value = (1.0 - w) * value + w * for_q
        else:
            for_p = _sum(p * (-to_p - (1.0 - w) * _expm1(-to_p)))
            p, q, v = fresh()
            for_q = _sum(q * _expm1(-_mixture(p, q, v, w)[1]))
    return Result(jnp.where(jnp.isnan(top), jnp.nan, value), for_p, for_q)


def _slopes(kind: str, w: float, fresh: Callable[[], tuple[Any, Any, Any]], s: Result, needs: tuple[bool, ...]) -> tuple[Any, Any]:
    """d value / d (scale·a) and d (scale·b); None where not needed."""
    found: list[Any] = [None, None]
    for side in (0, 1):
        if not needs[side]:
            continue
        p, q, v = fresh()
        if kind == "kl":
            found[side] = _difference(p, q, v) if side else -jnp.where(p > 0.0, p * (v + s.for_p), 0.0)
            continue
        _, to_p, to_q = _mixture(p, q, v, w)
        if kind == "js":
            found[side] = -w * q * (to_q + s.for_q) if side else -(1.0 - w) * p * (to_p + s.for_p)
        else:
            excess = _expm1(-to_p)
            found[side] = -w * q * (excess - s.for_q) if side else p * (-to_p - (1.0 - w) * excess - s.for_p)
    return found[0], found[1]


class Call(NamedTuple):
    """What to compute; hashable. `half`: differences of logits are exact. `normalisers`: one of those for bfloat16, or none."""

    kind: str
    w: float
    half: bool
    normalisers: str


def _value_and_slopes(call: Call, x: Any, y: Any, scale: Any, keep: Any, needs: tuple[bool, ...]) -> tuple[Any, tuple[Any, Any]]:
    a, b = _wide(x, y, keep)
    masses = NORMALISERS[call.normalisers](x, y, keep) if call.normalisers else _masses(a, b, scale, exact=call.half)
    m, log_ratio = masses, masses.log_ratio
    origins = _origins((m.top_a, m.top_b))
    if call.normalisers:
        # A logarithm is off by ε of itself, which would be more than ε where the pivots are no good: a step of Newton's.
        origins = m.top_a, m.top_b, log_ratio
        rest = m.mass_b / m.mass_a * jnp.exp(-log_ratio) - 1.0
        log_ratio = jnp.where(jnp.abs(rest) < 1e-3, rest, 0.0)
    latest = Row(m.top_a, m.top_b, origins, 1.0 / m.mass_a, 1.0 / m.mass_b, log_ratio)

    def fresh() -> tuple[Any, Any, Any]:
        nonlocal latest
        latest = Row(*_apart(tuple(latest)))
        return _terms(a, b, scale, call.half, latest)

    found = _result(call.kind, call.w, fresh, masses.top_a)
    return found.value[..., 0], _slopes(call.kind, call.w, fresh, found, needs)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _values(call: Call, x: Any, y: Any, scale: Any, keep: Any) -> Any:
    return _value_and_slopes(call, x, y, scale, keep, (False, False))[0]


def _values_jvp(call: Call, primals: Any, tangents: Any) -> Any:
    x, y, scale, keep = primals
    needs = tuple(not isinstance(t, SymbolicZero) for t in tangents[:3])
    value, slopes = _value_and_slopes(call, x, y, scale, keep, (True, True) if needs[2] else needs[:2])
    change = jnp.zeros_like(value)
    for slope, tangent, need in zip(slopes, tangents, needs):
        if need:
            change = change + _sum(slope * scale * tangent.astype(jnp.float32))[..., 0]
    if needs[2]:
        # The gradient sums to 0, so logits may be taken relative to their largest.
        for slope, z in zip(slopes, _wide(x, y, keep)):
            below = jnp.where(z == -jnp.inf, 0.0, z - jnp.max(z, -1, keepdims=True))
            change = change + _sum(slope * below * tangents[2])[..., 0]
    return value, change


_values.defjvp(_values_jvp, symbolic_zeros=True)


def _declared_sharded(x: Any) -> bool:
    """Is it part of the array's type that categories lie on several devices (`AxisType.Explicit`)? Then JAX takes no single one out."""
    spec = getattr(getattr(jax.typeof(x), "sharding", None), "spec", None) if hasattr(jax, "typeof") else None
    return spec is not None and len(spec) == x.ndim and spec[-1] is not None


def values(x: Any, y: Any, kind: str, w: float, scale: Any, keep: Any = None) -> Any:
    """The divergence of each row of two arrays of one shape: KL(P‖Q) ("kl"), and with M = (1 − w)P + wQ (1 − w)KL(P‖M) + w KL(Q‖M) ("js")
    or KL(P‖M) ("skew"). `scale` multiplies the logits: [..., 1], or None. Rows that are not to be kept, [..., 1], may hold anything."""
    half = jnp.float32 not in (x.dtype, y.dtype)
    simple = x.dtype == y.dtype == jnp.bfloat16 and scale is None
    normalisers = "" if not simple else "largest" if _declared_sharded(x) or _declared_sharded(y) else FOR_BFLOAT16
    return _values(Call(kind, w, half, normalisers), x, y, jnp.float32(1.0) if scale is None else scale, keep)

"""kullback.jax under JAX's transforms, exported for any batch and platform, and its errors beside the originals'."""

from __future__ import annotations

import inspect
import math
import re

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import pytest

import kullback.jax as kj
from jax_pairs import ELEMENTWISE, EPS, EVERY, LOSSES, THEIRS, pair

INF = math.inf

# --- transforms ---------------------------------------------------------------------------------------------------------------------


def textbook(name, x, y):
    """The formula, to be differentiated by JAX in float64, at positive probabilities and away from p = q."""
    if name in ELEMENTWISE:
        value = x * (jnp.log(x) - jnp.log(y))
        return value - x + y if name == "kl_div" else value
    t = jnp.exp(y) if name == "kl_divergence_with_log_targets" else y
    value = t * (jnp.log(t) - x)
    return (value - t + jnp.exp(x) if name == "generalized_kl_divergence" else value).sum(-1)


def _scan(f):
    return lambda x, y: jax.lax.scan(lambda total, row: (total + f(*row).sum(), None), jnp.zeros((), x.dtype), (x, y))[0]


def _summed(f):
    return lambda x, y: f(x, y).sum()


# Each takes the function, and gives one of two arrays. jit inside and outside: the float64 of the sums must not show in either.
TRANSFORMS = {
    "grad": lambda f: jax.grad(_summed(f), (0, 1)),
    "jit(grad)": lambda f: jax.jit(jax.grad(_summed(f), (0, 1))),
    "grad(jit)": lambda f: jax.grad(jax.jit(_summed(f)), (0, 1)),
    "vmap": lambda f: jax.vmap(f),
    "vmap(jit)": lambda f: jax.vmap(jax.jit(f)),
    "vmap over columns": lambda f: jax.vmap(lambda x, y: f(x[None], y[None]), in_axes=1) if f.elementwise else jax.vmap(f, (0, None), 1),
    "vmap(grad(jit))": lambda f: jax.vmap(jax.grad(jax.jit(_summed(f)), (0, 1))),
    "jvp": lambda f: lambda x, y: jax.jvp(jax.jit(f), (x, y), (y, x)),
    "linearize": lambda f: lambda x, y: jax.linearize(jax.jit(f), x, y)[1](y, x),
    "vjp": lambda f: lambda x, y: jax.vjp(f, x, y)[1](jnp.ones_like(f(x, y))),
    "hessian": lambda f: jax.hessian(_summed(f), (0, 1)),
    "jit(hessian(jit))": lambda f: jax.jit(jax.hessian(jax.jit(_summed(f)), (0, 1))),
    "jacfwd(jit(grad))": lambda f: jax.jacfwd(jax.jit(jax.grad(_summed(f)))),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(_summed(f)), (0, 1)),
    "grad(scan)": lambda f: jax.grad(_scan(f), (0, 1)),
    "lax.map": lambda f: lambda x, y: jax.lax.map(lambda row: f(*row), (x, y)),
    "lax.cond": lambda f: jax.jit(lambda x, y: jax.lax.cond(x.sum() < INF, f, lambda x, y: 0.0 * f(x, y), x, y)),
    "disable_jit": lambda f: jax.disable_jit()(jax.grad(_summed(f), (0, 1))),
}


class Named:
    """A function that says whether it sums."""

    def __init__(self, function, elementwise):
        self.function, self.elementwise, self.__name__ = function, elementwise, "f"

    def __call__(self, *args):
        return self.function(*args)


# Every transform of a sum and of an elementwise function; of the others, which differ from these in their formula alone, those that need
# its derivatives.
COVERING = [(name, transform) for name in ("generalized_kl_divergence", "kl_div") for transform in TRANSFORMS]
COVERING += [(name, transform) for name in EVERY for transform in ("jit(grad)", "jit(hessian(jit))") if (name, transform) not in COVERING]


@pytest.mark.parametrize(("name", "transform"), COVERING)
def test_transforms_against_the_formula_in_float64(name, transform):
    x, y = pair(name, (3, 4))
    found = TRANSFORMS[transform](Named(getattr(kj, name), name in ELEMENTWISE))(jnp.asarray(x), jnp.asarray(y))
    with jax.enable_x64(True):
        truth = TRANSFORMS[transform](Named(lambda x, y: textbook(name, x, y), name in ELEMENTWISE))(
            jnp.asarray(x, jnp.float64), jnp.asarray(y, jnp.float64)
        )
        truth = jax.tree.map(np.asarray, truth)
    assert jax.tree.structure(found) == jax.tree.structure(truth)
    for f, t in zip(jax.tree.leaves(found), jax.tree.leaves(truth)):
        assert f.dtype == np.float32
        assert f.shape == t.shape
        # Derivatives are a quotient or a logarithm rounded in float32, and summed over at most three: some units of the largest.
        np.testing.assert_allclose(f, t, atol=8 * EPS[np.float32] * np.abs(t).max())


@pytest.mark.parametrize("name", EVERY)
def test_exported_for_any_batch_and_every_platform(name):
    x, y = pair(name, (5, 8))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 8"), jnp.float32)
    exported = jax.export.export(jax.jit(getattr(kj, name)), platforms=("cpu", "cuda", "tpu"))(shape, shape)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(x, y), getattr(kj, name)(x, y), rtol=2 * EPS[np.float32])


@pytest.mark.parametrize("name", LOSSES)
def test_float64_is_used_where_the_platform_has_it_and_stays_inside(name):
    x, t = pair(name)
    traced = jax.jit(getattr(kj, name)).trace(x, t)
    for platform, wide in (("cpu", True), ("cuda", True), ("rocm", True), ("tpu", False), ("METAL", False)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("f64" in text) == wide
        assert re.search(r"@main\(.*\{", text)
        assert "f64" not in re.search(r"@main\(.*\{", text).group()
    assert not jax.config.jax_enable_x64
    assert jnp.asarray(1.5).dtype == np.float32


# --- bad input ----------------------------------------------------------------------------------------------------------------------


def raises_as_theirs(name, message, *args, **kwargs):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        THEIRS[name](*args, **kwargs)
    with pytest.raises(type(theirs.value), match=message):
        getattr(kj, name)(*args, **kwargs)


@pytest.mark.parametrize("name", EVERY)
def test_bad_arrays_raise_what_theirs_raise(name):
    first, second = list(inspect.signature(THEIRS[name]).parameters)[:2]
    a = jnp.array([0.5, 0.5])
    raises_as_theirs(name, rf"^{name}: {first} must be an array or a number, not list: pass jnp\.asarray\({first}\)$", [0.5, 0.5], a)
    raises_as_theirs(name, f"^{name}: {second} must be an array or a number, not NoneType$", a, None)
    raises_as_theirs(name, f"{first} .* not dict", {}, a)
    raises_as_theirs(name, f"{first} has dtype object", np.array([0.5, "a"], object), a)
    raises_as_theirs(name, f"{first} has dtype key", jax.random.key(0), a)
    raises_as_theirs(name, rf"{first} has shape \(2,\) and {second} has shape \(3,\)", a, jnp.ones(3))
    raises_as_theirs(name, rf"{second}.* complex.*pass {second}\.real", a, a + 1j)
    with jax.numpy_rank_promotion("raise"):
        raises_as_theirs(name, r"rank_promotion", a, jnp.ones((3, 2)))
    with jax.numpy_dtype_promotion("strict"):
        raises_as_theirs(name, r"promotion", a, a.astype(jnp.bfloat16))


@pytest.mark.parametrize("name", LOSSES)
def test_bad_options_raise_what_theirs_raise(name):
    second = list(inspect.signature(THEIRS[name]).parameters)[1]
    x, t = pair(name, (2, 3))
    raises_as_theirs(name, rf"{second} has dtype int32, and must be floating-point: pass {second}\.astype", x, np.ones((2, 3), np.int32))
    raises_as_theirs(name, "axis 2 is out of range: the arrays have 2 axes", x, t, axis=2)
    raises_as_theirs(name, "axis -1 is out of range: the arrays have 0 axes", -0.5, 0.5)
    raises_as_theirs(name, "twice", x, t, axis=(0, -2))
    raises_as_theirs(name, "axis is 1.0", x, t, axis=1.0)
    raises_as_theirs(name, "where has dtype int32, and must be boolean: pass where != 0", x, t, where=jnp.array([1, 0, 1]))
    raises_as_theirs(name, r"where must be an array or a number, not list: pass jnp\.asarray", x, t, where=[True, False, True])
    raises_as_theirs(
        name, r"where has shape \(2,\), which does not broadcast with the arrays, \(2, 3\)", x, t, where=jnp.array([True, False])
    )
    # Theirs takes this, and sums over another axis than the last.
    more_axes = np.ones((5, 1, 1), bool)
    assert THEIRS[name](x, t, where=more_axes).shape == (5, 3)
    with pytest.raises(ValueError, match="where has 3 axes and the arrays 2"):
        getattr(kj, name)(x, t, where=more_axes)


def test_objects_that_are_arrays_to_jax():
    class Wrapped:
        def __jax_array__(self):
            return jnp.array([0.5, 0.5])

    np.testing.assert_array_equal(kj.rel_entr(Wrapped(), 0.25), special.rel_entr(Wrapped(), 0.25))
    assert kj.kl_divergence(jnp.log(jnp.array([0.25, 0.75])), Wrapped()).shape == ()

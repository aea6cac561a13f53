"""kullback.jax: drop-ins for jax.scipy.special and optax, under JAX's transforms, on arrays sharded over a mesh, and patching."""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys
import threading
import unittest
import warnings

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.special as special
import mpmath
import numpy as np
import optax
import pytest
from optax.losses import _classification_test as optax_tests

import kullback.jax as kj

THEIRS = {
    "rel_entr": special.rel_entr,
    "kl_div": special.kl_div,
    "kl_divergence": optax.losses.kl_divergence,
    "kl_divergence_with_log_targets": optax.losses.kl_divergence_with_log_targets,
    "generalized_kl_divergence": optax.losses.generalized_kl_divergence,
}
ELEMENTWISE = ["rel_entr", "kl_div"]
LOSSES = ["kl_divergence", "kl_divergence_with_log_targets", "generalized_kl_divergence"]
EVERY = ELEMENTWISE + LOSSES
EPS = {np.float32: 2.0**-24, np.float64: 2.0**-53}  # half a unit in the last place, relative


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "x64"])
def precision(request):
    with jax.enable_x64(request.param == np.float64):
        yield request.param


def pair(name, shape=(4, 6), dtype=np.float32, spread=1.0, seed=1):
    """Arguments of that function: distributions over the last axis whose logits differ by about `spread`, each in its form."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(shape)
    b = a + spread * rng.standard_normal(shape)
    log_p, log_q = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (a, b))
    forms = {"kl_divergence_with_log_targets": (log_q, log_p)}
    x, y = forms.get(name, (log_q, np.exp(log_p)) if name in LOSSES else (np.exp(log_p), np.exp(log_q)))
    return x.astype(dtype), y.astype(dtype)


def term(name, x, y):
    """One term in 50 digits, of the numbers as they are stored; positive probabilities, zeros of the target, and -inf logs."""
    x, y = float(x), float(y)
    p, log_q = {"rel_entr": (x, None), "kl_div": (x, None), "kl_divergence_with_log_targets": (mpmath.exp(y), x)}.get(name, (y, x))
    if name in ELEMENTWISE:
        q, log_q = mpmath.mpf(y), mpmath.log(y)
    else:
        q = mpmath.exp(log_q)
    log_p = mpmath.mpf(y) if name == "kl_divergence_with_log_targets" else mpmath.log(p) if p else 0
    value = mpmath.mpf(p) * (log_p - log_q) if p else mpmath.mpf(0)
    return value - p + q if name in ("kl_div", "generalized_kl_divergence") else value


def exact(name, x, y):
    """Rows for the losses, elements for the others."""
    x, y = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    with mpmath.workdps(50):
        terms = [term(name, a, b) for a, b in zip(x.ravel(), y.ravel())]
        if name in ELEMENTWISE:
            return terms
        width = x.shape[-1]
        return [mpmath.fsum(terms[i : i + width]) for i in range(0, len(terms), width)]


def relative_errors(found, truth):
    with mpmath.workdps(50):
        return np.array([float(abs(mpmath.mpf(float(f)) / t - 1)) for f, t in zip(np.ravel(found), truth)])


# --- as the originals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_signature(name):
    ours, theirs = (inspect.signature(f).parameters.values() for f in (getattr(kj, name), THEIRS[name]))
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


def test_public_names():
    assert set(kj.__all__) == {*EVERY, "patched", "install", "uninstall"}
    for name in kj.__all__:
        assert ">>>" in getattr(kj, name).__doc__


@pytest.mark.parametrize("case", ["KLDivergenceTest", "KLDivergenceWithLogTargetsTest", "GeneralizedKLDivergenceTest"])
def test_optax_passes_its_own_tests_on_ours(case):
    with kj.patched():
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(getattr(optax_tests, case)).run(result)
    assert result.testsRun >= 7
    assert not result.errors
    assert not result.failures


DTYPES = [jnp.bool_, jnp.int8, jnp.int32, jnp.uint64, jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64, jnp.float8_e5m2]


def _values():
    # JAX's arrays: between NumPy's and Python numbers some of optax's arithmetic is NumPy's, with another dtype.
    return [jnp.asarray(np.ones(2, dtype)) for dtype in DTYPES] + [
        np.ones(2),
        np.ones(2, np.int8),
        1,
        1.0,
        True,
        1j,
        np.float64(1),
        np.float32(1),
    ]


def _outcome(function, *args, **kwargs):
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return type(error)
    return result.shape, result.dtype


@pytest.mark.parametrize("name", EVERY)
def test_dtypes_in_and_out(name, precision):
    outcomes = set()
    for x in _values():
        for y in _values():
            expected = _outcome(THEIRS[name], x, y)
            assert _outcome(getattr(kj, name), x, y) == expected, (x, y)
            outcomes.add(str(expected))
    assert len(outcomes) > 5


SHAPES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (2, 3)), ((2, 1, 3), (4, 1)), ((1, 3), (2, 1)), ((0, 3), (3,)), ((2, 0), (2, 0)), ((), (3,))]


@pytest.mark.parametrize("name", EVERY)
def test_broadcasting(name):
    for shapes in SHAPES:
        x, y = (-np.random.default_rng(2).uniform(0.1, 1.0, shape).astype(np.float32) for shape in shapes)
        x, y = (x, y) if name == "kl_divergence_with_log_targets" else (x, -y) if name in LOSSES else (-x, -y)
        for wrap in (np.asarray, jnp.asarray):
            ours, theirs = getattr(kj, name)(wrap(x), wrap(y)), THEIRS[name](wrap(x), wrap(y))
            assert isinstance(ours, jax.Array)
            assert ours.shape == theirs.shape
            # Of theirs, a few roundings of terms below 3.
            np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_axis_and_where(name):
    ours, theirs = getattr(kj, name), THEIRS[name]
    x, t = pair(name, (2, 3, 4))
    masks = [None, True, False, np.arange(4) < 3, jnp.arange(3)[:, None] < 1, np.random.default_rng(3).random((2, 3, 4)) < 0.5]
    for axis in (-1, 0, 1, -3, (0, 2), (-1, 0), (), None, [1], np.int64(2)):
        for where in masks:
            expected = theirs(x, t, axis=axis, where=where)
            found = ours(x, t, axis=axis, where=where)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=2e-6)  # a few of their roundings, of terms below 3
    by_position = ours(x, t, 0, masks[-1])
    np.testing.assert_array_equal(
        by_position, ours(log_predictions=x, **{list(inspect.signature(ours).parameters)[1]: t}, where=masks[-1], axis=0)
    )
    # One row of log-predictions under a mask of two.
    np.testing.assert_allclose(ours(x[0, :1], t[0, :1], where=np.array([[True], [False]])), [theirs(x[0, 0], t[0, 0]), 0.0], atol=2e-6)
    assert ours(jnp.float32(-0.5), -0.5 if "log" in name[13:] else 0.5, axis=None).shape == ()


# --- exactness ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", LOSSES)
def test_sums_lose_no_digits_without_x64(name, compiled):
    """P within 1e-2 and 1e-3 of Q: terms of both signs, a hundred to a thousand times their sum."""
    ours, theirs = (jax.jit(f) if compiled else f for f in (getattr(kj, name), THEIRS[name]))
    assert not jax.config.jax_enable_x64
    for spread in (1e-2, 1e-3):
        x, t = pair(name, (8, 1000), spread=spread)
        truth = exact(name, x, t)
        errors = relative_errors(ours(x, t), truth)
        assert errors.max() <= EPS[np.float32] * 1.01  # rounded once; 1% for what float64 itself rounds
        assert relative_errors(theirs(x, t), truth).max() > 1e-6  # 20 times ours; for targets as probabilities 1e-4 and 1e-2


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_rounded_once(name):
    for dtype, half_unit in ((jnp.bfloat16, 2.0**-8), (jnp.float16, 2.0**-11)):
        x, t = pair(name, (8, 100), dtype=dtype)
        found = getattr(kj, name)(x, t)
        assert found.dtype == dtype
        assert relative_errors(found, exact(name, x, t)).max() <= half_unit * 1.01


@pytest.mark.parametrize("name", LOSSES)
def test_float64_rounds_as_float64_does(name):
    with jax.enable_x64(True):
        x, t = pair(name, (8, 1000), np.float64, spread=1e-3)
        found = getattr(kj, name)(x, t)
    assert found.dtype == np.float64
    truth = exact(name, x, t)
    # log t, near -7 to -11, is rounded: relative to a difference of 1e-3 from log q, and the sum of both signs is its square, halved.
    # Where no term is negative, the relative error is that of the difference itself, doubled by the square.
    lost = 2 * 11 * EPS[np.float64] / 1e-3
    assert relative_errors(found, truth).max() < (lost if name == "generalized_kl_divergence" else lost / 1e-3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_to_the_last_digits(name, spread, compiled, precision):
    x, y = pair(name, (5, 40), precision, spread=spread)
    function = jax.jit(getattr(kj, name)) if compiled else getattr(kj, name)
    # A logarithm, a series or a quotient, and a product: ten roundings at most, twice over in kl_div, which goes with the square.
    # In float64 XLA's log1p is off by 2.3e-14 near -0.41.
    bound = {np.float32: 20 * EPS[np.float32], np.float64: 1e-13}[precision]
    assert relative_errors(function(x, y), exact(name, x, y)).max() < bound
    assert (np.asarray(kj.kl_div(x, y)) >= 0).all()


# --- zeros, infinities, NaN ---------------------------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan


def test_edges_of_the_elementwise_ones(precision):
    p = jnp.array([0.0, 0.0, 0.5, -0.5, 0.5, NAN, 0.5, 0.0, INF, -0.0], precision)
    q = jnp.array([0.0, 0.5, 0.0, 0.5, -0.5, 0.5, NAN, NAN, 0.5, 0.25], precision)
    expected = [0, 0, INF, INF, INF, NAN, NAN, NAN, INF, 0]
    for wrap in (lambda f: f, jax.jit, jax.vmap):
        np.testing.assert_array_equal(wrap(kj.rel_entr)(p, q), expected)
        np.testing.assert_array_equal(wrap(kj.kl_div)(p, q), [0, 0.5, *expected[2:9], 0.25])
    # JAX agrees except on NaN, which it takes for invalid.
    np.testing.assert_array_equal(jnp.where(jnp.isnan(p + q), NAN, special.rel_entr(p, q)), expected)
    assert not np.isnan(special.rel_entr(p, q)).any()


def zeros_of_the_target(name, precision):
    """Log-predictions and targets, a target and its log-prediction absent, then a target alone; and where targets are absent."""
    x = jnp.array([[-1.0, -INF, -2.0, -1.5]], precision)
    t = jnp.array([[0.5, 0.0, 0.0, 0.5]], precision)
    return x, (jnp.log(t) if name == "kl_divergence_with_log_targets" else t), np.array([[False, True, True, False]])


@pytest.mark.parametrize("name", LOSSES)
def test_zeros_of_the_target(name, precision):
    ours = getattr(kj, name)
    x, t, absent = zeros_of_the_target(name, precision)
    truth = [float(v) for v in exact(name, np.where(x == -INF, -800.0, x), np.where(t == -INF, -800.0, t))]  # e^-800 is 0 to 300 digits
    for wrap in (lambda f: f, jax.jit, jax.vmap):
        np.testing.assert_allclose(wrap(ours)(x, t), truth, rtol=2 * EPS[precision])
    for wrap in (lambda f: f, jax.jit, lambda f: jax.vmap(f)):
        to_x, to_t = wrap(jax.grad(lambda x, t: ours(x, t).sum(), (0, 1)))(x, t)
        weight = np.array([[0.5, 0.0, 0.0, 0.5]])
        prediction = np.exp(np.asarray(x, np.float64))
        generalized = name == "generalized_kl_divergence"
        # The rounding of e^x, and of the difference from 0.5, of numbers below 1.
        np.testing.assert_allclose(to_x, (prediction - weight) if generalized else -weight, atol=2 * EPS[precision])
        slope = np.where(absent, 0.0, np.log(0.5) - np.where(absent, 0.0, x) + (0.0 if generalized else 1.0))
        slope = slope * weight if name == "kl_divergence_with_log_targets" else slope
        np.testing.assert_allclose(to_t, slope, atol=4 * EPS[precision])
        assert (np.asarray(to_t)[absent] == 0).all()
    hessians = jax.jit(jax.hessian(lambda x, t: ours(x, t).sum(), (0, 1)))(x, t)
    assert all(np.isfinite(h).all() for h in jax.tree.leaves(hessians))
    # optax: NaN in the value, and in the gradient even where the log-prediction is finite.
    assert np.isnan(THEIRS[name](x, t)).all()
    assert np.isnan(jax.grad(lambda t: THEIRS[name](x[:, 2:], t).sum())(t[:, 2:])).any()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_gradients_at_zero(name, precision):
    ours = getattr(kj, name)
    p, q = jnp.array([0.0, 0.5, 0.0], precision), jnp.array([0.5, 0.25, 0.0], precision)
    shift = 1.0 if name == "kl_div" else 0.0
    for wrap in (lambda f: f, jax.jit):
        to_p, to_q = wrap(jax.grad(lambda p, q: ours(p, q).sum(), (0, 1)))(p, q)
        np.testing.assert_allclose(to_p, [0.0, np.log(2.0) + 1.0 - shift, 0.0], rtol=4 * EPS[precision])
        np.testing.assert_allclose(to_q, [shift, shift - 2.0, shift], rtol=4 * EPS[precision])
    hessian = jax.jit(jax.hessian(lambda p, q: ours(p, q).sum(), (0, 1)))(p, q)
    np.testing.assert_allclose(hessian[0][0], np.diag([0.0, 2.0, 0.0]), rtol=4 * EPS[precision])
    np.testing.assert_allclose(hessian[0][1], np.diag([0.0, -4.0, 0.0]), rtol=4 * EPS[precision])
    np.testing.assert_allclose(hessian[1][1], np.diag([0.0, 8.0, 0.0]), rtol=4 * EPS[precision])


@pytest.mark.parametrize("name", LOSSES)
def test_nan_infinite_and_negative(name):
    ours = getattr(kj, name)
    log_target = name == "kl_divergence_with_log_targets"
    absent, half = (-INF, math.log(0.5)) if log_target else (0.0, 0.5)
    x = jnp.array([[NAN, -1.0], [-1.0, -1.0], [-INF, -1.0], [NAN, -1.0]])
    t = jnp.array([[half, half], [NAN, half], [half, half], [absent, half]])
    for wrap in (lambda f: f, jax.jit, jax.vmap):
        value = wrap(ours)(x, t)
        np.testing.assert_array_equal(np.isnan(value), [True, True, False, True])
        assert value[2] == INF
    if not log_target:
        assert np.isnan(ours(jnp.array([-1.0]), jnp.array([-0.5])))
        assert np.isnan(THEIRS[name](jnp.array([-1.0]), jnp.array([-0.5])))


@pytest.mark.parametrize("name", LOSSES)
def test_what_where_leaves_out_may_be_anything(name):
    ours = getattr(kj, name)
    x, t = pair(name, (1, 3))
    garbage = np.array([[NAN, INF, -INF, -1.0]], np.float32)
    x_all, t_all = (np.concatenate([z, garbage], 1) for z in (x, t))
    where = np.arange(7) < 3
    np.testing.assert_array_equal(ours(x_all, t_all, where=where), ours(x, t))
    gradients = jax.grad(lambda x, t: ours(x, t, where=where).sum(), (0, 1))
    for found, expected in zip(gradients(x_all, t_all), jax.grad(lambda x, t: ours(x, t).sum(), (0, 1))(x, t)):
        np.testing.assert_array_equal(found[:, :3], expected)
        np.testing.assert_array_equal(found[:, 3:], 0.0)
    hessians = jax.hessian(lambda x, t: ours(x, t, where=where).sum(), (0, 1))(x_all, t_all)
    assert all(np.isfinite(h).all() for h in jax.tree.leaves(hessians))
    theirs = jax.grad(lambda x, t: THEIRS[name](x, t, where=where).sum(), (0, 1))(x_all, t_all)
    assert any(np.isnan(g).any() for g in theirs)


@pytest.mark.parametrize("name", EVERY)
def test_debug_nans_finds_none(name):
    """It stops at every NaN, and would at one that a `where` drops."""
    x, t, _ = zeros_of_the_target(name, np.float32)
    x, t = (x, t) if name in LOSSES else (t, jnp.exp(x))
    function = getattr(kj, name)
    with jax.debug_nans(True):
        function(x, t)
        jax.grad(lambda x, t: function(x, t).sum(), (0, 1))(x, t)
        jax.hessian(lambda x, t: function(x, t).sum())(x, t)


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


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", EVERY)
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


# --- arrays on a mesh ---------------------------------------------------------------------------------------------------------------

ON_A_MESH = """
import contextlib, math, re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import kullback as kb
import kullback.jax as kj

assert jax.device_count() == 8
ROWS, CATEGORIES = 16, 4096
rng = np.random.default_rng(5)
a = rng.standard_normal((ROWS, CATEGORIES)).astype(np.float32)
b = (a + 0.1 * rng.standard_normal(a.shape)).astype(np.float32)
p, q = (np.array(jax.nn.softmax(z)) for z in (a, b))
log_p, log_q = (np.array(jax.nn.log_softmax(z)) for z in (a, b))
FUNCTIONS = {
    "kl of probs": (kb.kl, p, q),
    "kl of logits": (lambda a, b: kb.kl(a, b, form="logits"), a, b),
    "rel_entr": (kj.rel_entr, p, q),
    "kl_div": (kj.kl_div, p, q),
    "kl_divergence": (kj.kl_divergence, log_q, p),
    "kl_divergence where": (lambda x, t: kj.kl_divergence(x, t, where=t > 1e-5), log_q, p),
    "kl_divergence_with_log_targets": (kj.kl_divergence_with_log_targets, log_q, log_p),
    "generalized_kl_divergence": (kj.generalized_kl_divergence, log_q, p),
}
MESHES = {"8": ((8,), ("k",), P(None, "k")), "2x4": ((2, 4), ("n", "k"), P("n", "k"))}
COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-to-all|all-reduce|reduce-scatter|collective-permute|collective-broadcast)(?:-start)?\\(")


def collectives(compiled):
    '''(operation, numbers in its largest result) of each.'''
    for shapes, operation in COLLECTIVE.findall(compiled.as_text()):
        sizes = [math.prod(int(n) for n in dims.split(",") if n) for dims in re.findall(r"\\w+\\[([\\d,]*)\\]", shapes)]
        yield operation, max(sizes)


def measure(mesh_name, axis_type):
    shape, names, spec = MESHES[mesh_name]
    mesh = jax.make_mesh(shape, names, axis_types=(axis_type,) * len(names))
    with jax.set_mesh(mesh) if axis_type == AxisType.Explicit else contextlib.nullcontext():
        for name, (function, *arrays) in FUNCTIONS.items():
            gradient = jax.grad(lambda x, y: function(x, y).sum(), (0, 1))
            for what, f in (("value", function), ("gradient", gradient)):
                expected = jax.tree.leaves(plain[name, what])
                sharded = [jax.device_put(z, NamedSharding(mesh, spec)) for z in arrays]
                compiled = jax.jit(f).lower(*sharded).compile()
                found = jax.tree.leaves(compiled(*sharded))
                eager = [f(*sharded)] if what == "value" else []
                # To the largest of the array: a gradient has elements near 0. Per row for the values of one number a row.
                worst = max(
                    float((np.abs(np.asarray(x) - y) / (np.abs(y) if y.ndim == 1 else np.abs(y).max())).max())
                    for x, y in zip(found + eager, expected * 2)
                )
                assert len(found[0].sharding.device_set) == 8
                seen = list(collectives(compiled))
                print(name, what, mesh_name, axis_type.name, worst, ";".join(f"{op}:{size}" for op, size in seen), sep="|")


plain = {}
for name, (function, x, y) in FUNCTIONS.items():
    plain[name, "value"] = jax.tree.map(np.asarray, function(jnp.asarray(x), jnp.asarray(y)))
    plain[name, "gradient"] = jax.tree.map(np.asarray, jax.grad(lambda x, y: function(x, y).sum(), (0, 1))(jnp.asarray(x), jnp.asarray(y)))
measure("8", AxisType.Auto)
measure("2x4", AxisType.Auto)
measure("2x4", AxisType.Explicit)

# By hand: each device its own categories, and a psum.
mesh = jax.make_mesh((8,), ("k",), axis_types=(AxisType.Auto,))
by_hand = jax.shard_map(lambda x, t: jax.lax.psum(kj.kl_divergence(x, t), "k"), mesh=mesh, in_specs=P(None, "k"), out_specs=P())
worst = float(np.abs(np.asarray(jax.jit(by_hand)(log_q, p)) / plain["kl_divergence", "value"] - 1).max())
print("shard_map|value|8|Manual", worst, "", sep="|")

# What is looked for, so that it is known to be found.
gather = jax.jit(lambda x: x + 1.0, out_shardings=NamedSharding(mesh, P()))
seen = list(collectives(gather.lower(jax.device_put(p, NamedSharding(mesh, P(None, "k")))).compile()))
print("gather|value|8|Auto|0.0", ";".join(f"{op}:{size}" for op, size in seen), sep="|")
"""


@pytest.fixture(scope="module")
def on_a_mesh():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", ON_A_MESH], capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stderr
    rows = [line.split("|") for line in run.stdout.splitlines()]
    return [
        (name, what, mesh, kind, float(worst), [(op, int(size)) for op, size in (x.split(":") for x in seen.split(";") if x)])
        for name, what, mesh, kind, worst, seen in rows
    ]


SHARDED = ["kl of probs", "kl of logits", "kl_divergence where", *EVERY]


def test_a_mesh_changes_no_number(on_a_mesh):
    assert len(on_a_mesh) == len(SHARDED) * 2 * 3 + 2  # value and gradient, three meshes; shard_map, and the control
    for name, what, mesh, kind, worst, _ in on_a_mesh:
        assert worst < 1e-6, (name, what, mesh, kind)


@pytest.mark.parametrize("name", SHARDED)
def test_a_mesh_gathers_nothing(on_a_mesh, name):
    """One number a row travels, never an array, nor a shard of one (8192 numbers)."""
    rows = [row for row in on_a_mesh if row[0] == name]
    assert len(rows) == 6
    for _, what, mesh, kind, _, seen in rows:
        assert not [op for op, _ in seen if op != "all-reduce"], (what, mesh, kind, seen)
        assert all(size <= 16 for _, size in seen), (what, mesh, kind, seen)
        if what == "value" and name not in ELEMENTWISE:
            assert seen  # the sums do cross devices


def test_a_gather_would_be_seen(on_a_mesh):
    (seen,) = (row[-1] for row in on_a_mesh if row[0] == "gather")
    assert seen == [("all-gather", 16 * 4096)]


# --- patching -----------------------------------------------------------------------------------------------------------------------

REACHED = [
    (special, "rel_entr"),
    (special, "kl_div"),
    (optax, "kl_divergence"),
    (optax, "generalized_kl_divergence"),
    *((optax.losses, name) for name in LOSSES),
]


def _who():
    """Whose functions are in place: of every name the same, or this fails."""
    mine = {getattr(module, name) is getattr(kj, name) for module, name in REACHED}
    theirs = {getattr(module, name) is THEIRS[name] for module, name in REACHED}
    assert len(mine) == len(theirs) == 1
    assert mine != theirs
    return "ours" if mine == {True} else "theirs"


def _value_at_zero():
    return float(optax.kl_divergence(jnp.array([-INF, 0.0]), jnp.array([0.0, 1.0])))


def test_patched_restores_after_nesting_and_exceptions():
    assert _who() == "theirs"
    assert math.isnan(_value_at_zero())
    with kj.patched():
        assert _who() == "ours"
        assert _value_at_zero() == 0.0
        with kj.patched():
            assert _who() == "ours"
        assert _who() == "ours"
    assert _who() == "theirs"
    with pytest.raises(ZeroDivisionError), kj.patched():
        raise ZeroDivisionError
    assert _who() == "theirs"


def test_install_and_uninstall():
    try:
        kj.install()
        kj.install()
        with kj.patched():
            pass
        assert _who() == "ours"
        with kj.patched():
            kj.uninstall()
            assert _who() == "ours"
        assert _who() == "theirs"
    finally:
        kj.uninstall()
    kj.uninstall()
    assert _who() == "theirs"


def test_patched_on_overlapping_threads():
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]

    def block(i):
        with kj.patched():
            inside.wait(10)
            leave[i].wait(10)

    threads = [threading.Thread(target=block, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    leave[0].set()
    threads[0].join(10)
    assert _who() == "ours"  # the other is still inside
    leave[1].set()
    threads[1].join(10)
    assert _who() == "theirs"


def test_a_later_patch_by_someone_else_is_left_alone():
    def someone_elses():
        pass

    try:
        with kj.patched():
            optax.kl_divergence = someone_elses
        assert optax.kl_divergence is someone_elses
    finally:
        optax.kl_divergence = THEIRS["kl_divergence"]
    assert _who() == "theirs"


def test_patched_reaches_what_optax_calls_itself():
    x, t = jnp.array([-INF, 0.0]), jnp.array([0.0, 1.0])
    with kj.patched(), pytest.warns(DeprecationWarning, match="generalized_kl_divergence"):
        assert optax.convex_kl_divergence(x, t) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert math.isnan(optax.convex_kl_divergence(x, t))


by_name = optax.kl_divergence  # as `from optax import kl_divergence` does


def test_out_of_reach_imported_by_name():
    x, t = jnp.array([-INF, 0.0]), jnp.array([0.0, 1.0])
    with kj.patched():
        assert math.isnan(by_name(x, t))
    assert "imported by name" in kj.patched.__doc__


def test_out_of_reach_what_is_traced():
    x, t = jnp.array([-INF, 0.0]), jnp.array([0.0, 1.0])

    def make():
        return jax.jit(lambda x, t: optax.kl_divergence(x, t))

    before, inside, cleared = make(), make(), make()
    assert math.isnan(before(x, t))
    assert math.isnan(cleared(x, t))
    with kj.patched():
        assert math.isnan(before(x, t))  # traced before: theirs
        assert inside(x, t) == 0.0
        assert before(x[None], t[None]) == 0.0  # another shape is another trace
    assert inside(x, t) == 0.0  # traced inside: ours, after the block too
    with kj.patched():
        jax.clear_caches()
        assert cleared(x, t) == 0.0
    jax.clear_caches()
    for word in ("traced", "jax.clear_caches()"):
        assert word in kj.patched.__doc__


def _run(code):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_without_optax():
    code = """
import sys
sys.modules["optax"] = None  # as if not installed
import jax, jax.numpy as jnp, kullback.jax as kj
original = jax.scipy.special.rel_entr
with kj.patched():
    print(jax.scipy.special.rel_entr is kj.rel_entr)
print(jax.scipy.special.rel_entr is original)
print(float(kj.kl_divergence(jnp.array([-jnp.inf, 0.0]), jnp.array([0.0, 1.0]))))
"""
    assert _run(code) == ["True", "True", "0.0"]


def test_optax_is_imported_by_patching_and_not_before():
    code = """
import sys, kullback.jax as kj
print("optax" in sys.modules)
kj.install()
import optax
print(optax.losses.kl_divergence is kj.kl_divergence)
"""
    assert _run(code) == ["False", "True"]

"""kullback.jax: drop-ins for jax.scipy.special and optax, as the originals are called; exactness, zeros, infinities and NaN."""

from __future__ import annotations

import inspect
import math
import unittest

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import pytest
from optax.losses import _classification_test as optax_tests

import kullback as kb
import kullback.jax as kj
from jax_pairs import ELEMENTWISE, EPS, EVERY, LOSSES, THEIRS, exact, pair, relative_errors


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "x64"])
def precision(request):
    with jax.enable_x64(request.param == np.float64):
        yield request.param


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


def _same(x, y):
    return type(x) is type(y) and getattr(x, "dtype", None) == getattr(y, "dtype", None)


def _outcome(function, *args):
    try:
        result = function(*args)
    except Exception as error:
        if isinstance(error, kb.KullbackError):  # each class is also the built-in one that the originals raise
            return ValueError if isinstance(error, ValueError) else TypeError
        return type(error)
    return result.shape, result.dtype


def _abstract(function, x, y):
    """The same while tracing, where nothing is compiled."""
    return _outcome(lambda x, y: jax.eval_shape(lambda: function(x, y)), x, y)


@pytest.mark.parametrize("name", EVERY)
def test_dtypes_in_and_out(name, precision):
    """Each kind stands beside itself, and beside two of them on either side. One function has all beside all, without x64, since one
    place promotes for all.

    Ours runs with a float32 array as its first argument. Other pairs, and theirs, are traced only: each would be compiled anew.
    """
    outcomes = set()
    values, some = _values(), [jnp.ones(2, jnp.float32), 1.0]
    everything = precision == np.float32 and name == "kl_divergence"
    for x in values:
        for y in values:
            if not everything and not _same(x, y) and not any(_same(z, s) for z in (x, y) for s in some):
                continue
            expected = _abstract(THEIRS[name], x, y)
            found = (_outcome if _same(x, some[0]) else _abstract)(getattr(kj, name), x, y)
            assert found == expected, (x, y)
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

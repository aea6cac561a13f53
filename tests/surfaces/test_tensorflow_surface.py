"""kullback.tensorflow: two functions in the manner of tf.nn, eager, traced, and compiled by XLA."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import kullback.tensorflow as kt
from literal import by_hand, close_pair, draw, exact, exact_with_logits, softmax

MODES = {
    "eager": lambda function: function,
    "function": lambda function: tf.function(function, autograph=False),
    "autograph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True, autograph=False),
}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def gradients(mode, function, *arrays):
    def differentiate(*native):
        with tf.GradientTape() as tape:
            tape.watch(native)
            value = tf.reduce_sum(function(*native))
        return tape.gradient(value, native)

    return [g.numpy() for g in mode(differentiate)(*map(tf.constant, arrays))]


# --- values -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_values_by_hand(mode, dtype):
    # Well conditioned: a few units in the last place of the largest term.
    tolerance = 8 * np.finfo(dtype).eps
    for shape in ((5,), (4, 5), (2, 3, 5)):
        x, y = (a.astype(dtype) for a in draw(*shape))
        value = mode(kt.kl_divergence)(x, y)
        assert value.dtype == dtype
        np.testing.assert_allclose(value, by_hand(x, y), rtol=tolerance)
        z = np.random.default_rng(1).normal(size=shape).astype(dtype)
        value = mode(kt.kl_divergence_with_logits)(x, z)
        assert value.dtype == dtype
        total = x.astype(float).sum(-1)
        np.testing.assert_allclose(value, by_hand(x, softmax(z)) - total * np.log(total), rtol=tolerance)


def test_axis_broadcasting_and_casts():
    x, y = draw(2, 3, 5)
    for axis in (1, -2):
        np.testing.assert_allclose(kt.kl_divergence(x.swapaxes(1, 2), y.swapaxes(1, 2), axis=axis), by_hand(x, y), rtol=1e-14)
        z = np.log(y[..., 1:])
        p = x[..., 1:]
        value = kt.kl_divergence_with_logits(p.swapaxes(1, 2), z.swapaxes(1, 2), axis=axis)
        total = p.sum(-1)
        np.testing.assert_allclose(value, by_hand(p, softmax(z)) - total * np.log(total), rtol=1e-13)
    np.testing.assert_allclose(kt.kl_divergence(x[0, 0], y), by_hand(x[0, 0], y), rtol=1e-14)
    np.testing.assert_allclose(kt.kl_divergence(x, y[0]), by_hand(x, y[0]), rtol=1e-14)
    assert kt.kl_divergence_with_logits(x[0, 0], np.log(y + 1e-3)).shape == (2, 3)
    # Lists and integers join the predictions, and a list is not rounded to float32 on the way.
    y = tf.constant([[0.3, 0.7]], tf.float64)
    assert kt.kl_divergence([[0.1, 0.9]], y).numpy()[0] == pytest.approx(by_hand([0.1, 0.9], [0.3, 0.7]), rel=1e-14)
    assert kt.kl_divergence(np.array([[0, 1]]), y).numpy()[0] == pytest.approx(-math.log(0.7), rel=1e-14)
    assert kt.kl_divergence(tf.Variable([[0.0, 1.0]]), tf.Variable([[0.5, 0.5]])).numpy()[0] == pytest.approx(math.log(2), rel=1e-7)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype):
    x, y = draw(4, 50, zeros=False)
    y = tf.cast(tf.constant(y), dtype)
    value = kt.kl_divergence(x, y)
    assert value.dtype == dtype
    expected = tf.cast(tf.constant(by_hand(x.astype(np.float32), tf.cast(y, tf.float64))), dtype)
    np.testing.assert_array_equal(tf.cast(value, tf.float64), tf.cast(expected, tf.float64))
    value = kt.kl_divergence_with_logits(x, tf.math.log(y))
    assert value.dtype == dtype
    expected = tf.cast(tf.constant(by_hand(x, softmax(tf.cast(tf.math.log(y), tf.float64)))), dtype)
    np.testing.assert_array_equal(tf.cast(value, tf.float64), tf.cast(expected, tf.float64))


@pytest.mark.parametrize("step", [1.0, 1e-2, 1e-3, 1e-4])
def test_no_digits_are_lost_where_predictions_are_close(mode, step):
    x, y, z = close_pair(step, seed=2)
    for function, other, truth in (
        (kt.kl_divergence, y, exact(x, y)),
        (kt.kl_divergence_with_logits, z, exact_with_logits(x, z)),
    ):
        found = float(mode(function)(x, other))
        assert abs(found / truth - 1) < 5e-7  # a few roundings to float32
    plain = float(tf.reduce_sum(x * tf.math.log(x / y)))
    if step < 0.1:
        assert abs(plain / exact(x, y) - 1) > 1e-5


def test_zeros_infinities_and_what_is_no_probability(mode):
    nan, inf = math.nan, math.inf
    x = [[1.0, 0.0], [0.5, 0.5], [0.0, 0.0], [nan, 1.0], [0.0, 1.0], [-0.1, 1.1], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]
    y = [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0], [0.5, 0.5], [nan, 1.0], [0.5, 0.5], [-0.5, 1.5], [-1.0, 1.0], [inf, 1.0]]
    value = mode(kt.kl_divergence)(tf.constant(x), tf.constant(y)).numpy()
    np.testing.assert_allclose(value, [math.log(2), inf, 0, nan, nan, nan, nan, 0, 0], rtol=1e-7)
    x = [[1.0, 0.0], [0.5, 0.5], [0.0, 0.0], [nan, 1.0], [0.0, 1.0], [-0.1, 1.1], [1.0, 0.0], [2.0, 0.0]]
    z = [[0.0, -inf], [0.0, -inf], [7.0, 1.0], [0.0, 0.0], [nan, 1.0], [0.0, 0.0], [0.0, 5000.0], [1.0, 1.0]]
    value = mode(kt.kl_divergence_with_logits)(tf.constant(x), tf.constant(z)).numpy()
    np.testing.assert_allclose(value, [0, inf, 0, nan, nan, nan, 5000, 2 * math.log(2)], rtol=1e-7)


def test_empty():
    assert kt.kl_divergence(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)
    assert kt.kl_divergence(np.zeros((2, 0)), np.zeros((2, 0))).numpy().tolist() == [0, 0]
    assert kt.kl_divergence_with_logits(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)


# --- derivatives --------------------------------------------------------------------------------------------------------------------


def test_gradients_by_hand(mode):
    x, y = draw(4, 5)
    to_x, to_y = gradients(mode, kt.kl_divergence, x, y)
    there = x > 0
    safe_x, safe_y = np.where(there, x, 1), np.where(there, y, 1)
    np.testing.assert_allclose(to_x, np.where(there, np.log(safe_x / safe_y) + 1, 0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(to_y, np.where(there, -x / safe_y, 0), rtol=1e-12)
    z = np.random.default_rng(3).normal(size=x.shape)
    to_x, to_z = gradients(mode, kt.kl_divergence_with_logits, x, z)
    total = x.sum(-1, keepdims=True)
    np.testing.assert_allclose(to_z, total * softmax(z) - x, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(to_x, np.where(there, np.log(safe_x / total / softmax(z)), 0), rtol=1e-11, atol=1e-15)


def test_gradients_are_finite_wherever_the_input_is(mode):
    tiny, smaller = np.float32(1.2e-38), np.float32(1e-44)
    x = np.array([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.9, 0.1], [0.9, 0.1], [100.0, 1.0]], np.float32)
    y = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0], [tiny, 1.0], [smaller, 1.0], [tiny, 1.0]], np.float32)
    for found in gradients(mode, kt.kl_divergence, x, y):
        assert np.isfinite(found).all()
    # Labels of nothing, as padding has them.
    for found in gradients(mode, kt.kl_divergence_with_logits, np.zeros((1, 3)), np.array([[1.0, -2.0, 0.5]])):
        np.testing.assert_array_equal(found, 0)
    # Behind a softmax that has underflown: 0 for what is lost, as in Keras, and the rest as it should be.
    logits = np.array([[200.0, 0.0, 199.0]], np.float32)
    target = np.array([[0.25, 0.5, 0.25]], np.float32)
    (found,) = gradients(mode, lambda z: kt.kl_divergence(target, tf.nn.softmax(z)), logits)
    assert np.isfinite(found).all()
    (found,) = gradients(mode, lambda z: kt.kl_divergence_with_logits(target, z), logits)
    np.testing.assert_allclose(found, softmax(logits) - target, rtol=1e-6)


def test_second_derivatives():
    x, y = draw(5, zeros=False)
    native = tf.constant(y)
    with tf.GradientTape() as outer:
        outer.watch(native)
        with tf.GradientTape() as inner:
            inner.watch(native)
            value = kt.kl_divergence(x, native)
        first = inner.gradient(value, native)
    np.testing.assert_allclose(outer.jacobian(first, native), np.diag(x / y**2), rtol=1e-12)


# --- TensorFlow's ways --------------------------------------------------------------------------------------------------------------


def test_unknown_sizes():
    spec = tf.TensorSpec([None, None], tf.float32)
    function = tf.function(kt.kl_divergence, input_signature=[spec, spec])
    with_logits = tf.function(kt.kl_divergence_with_logits, input_signature=[spec, spec])
    for shape in ((2, 3), (4, 7)):
        x, y = (a.astype(np.float32) for a in draw(*shape, zeros=False))
        np.testing.assert_allclose(function(x, y), by_hand(x, y), rtol=1e-6)
        np.testing.assert_allclose(with_logits(x, np.log(y)), by_hand(x, y), rtol=1e-5, atol=1e-7)
    assert function.experimental_get_tracing_count() == 1
    unknown = tf.function(kt.kl_divergence, input_signature=[tf.TensorSpec(None, tf.float32)] * 2)
    with pytest.raises(ValueError, match=r"number of axes is unknown.*tf\.ensure_shape"):
        unknown(x, y)


def test_name_and_signature():
    parameters = inspect.signature(tf.nn.softmax_cross_entropy_with_logits).parameters
    assert [(n, p.default) for n, p in inspect.signature(kt.kl_divergence_with_logits).parameters.items()] == [
        (n, p.default) for n, p in parameters.items()
    ]
    graph = tf.function(lambda x: kt.kl_divergence(x, x, name="distance"), autograph=False)
    operations = graph.get_concrete_function(tf.TensorSpec([2, 3])).graph.get_operations()
    assert any(op.name.startswith("distance/") for op in operations)
    assert kt.__all__ == sorted(kt.__all__)


def test_cross_entropy_less_entropy():
    # tf.nn's own, where the difference is well conditioned.
    x, _ = draw(6, 5)
    x /= x.sum(-1, keepdims=True)
    z = np.random.default_rng(4).normal(size=x.shape)
    expected = tf.nn.softmax_cross_entropy_with_logits(x, z) + by_hand(x, 1.0)
    np.testing.assert_allclose(kt.kl_divergence_with_logits(x, z), expected, rtol=1e-12)
    _, ours = gradients(MODES["eager"], kt.kl_divergence_with_logits, x, z)
    _, theirs = gradients(MODES["eager"], tf.nn.softmax_cross_entropy_with_logits, x, z)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


def test_bad_input_raises_what_tensorflow_raises():
    x = np.full((3, 4), 0.25, np.float32)
    cases = [
        ({"labels": x, "logits": x[:, :3]}, r"labels has shape \(3, 4\) and logits \(3, 3\)"),
        ({"labels": x, "logits": x[:2]}, r"labels has shape \(3, 4\) and logits \(2, 4\)"),
        ({"labels": x, "logits": x.astype(np.complex64)}, "logits has dtype complex64"),
        ({"labels": x, "logits": x.astype(int)}, "logits has dtype int64: cast it"),
        ({"labels": x, "logits": x, "axis": 2}, "axis is 2, and the arrays have rank 2"),
        ({"labels": None, "logits": x}, "labels cannot be read"),
        ({"labels": x, "logits": None}, "logits cannot be read"),
    ]
    for arguments, message in cases:
        for traced in (False, True):
            call = (lambda f: tf.function(f, autograph=False)) if traced else (lambda f: f)
            with pytest.raises(Exception) as theirs:  # noqa: PT011
                call(lambda a=arguments: tf.nn.softmax_cross_entropy_with_logits(**a))()
            with pytest.raises(type(theirs.value), match=message):
                call(lambda a=arguments: kt.kl_divergence_with_logits(**a))()
            renamed = {"predictions" if name == "logits" else name: value for name, value in arguments.items()}
            with pytest.raises(type(theirs.value), match=message.replace("logits", "predictions")):
                call(lambda a=renamed: kt.kl_divergence(**a))()
    for function in (kt.kl_divergence_with_logits, kt.kl_divergence):  # regression: one probability was broadcast to four
        with pytest.raises(tf.errors.InvalidArgumentError, match="categories do not broadcast"):
            function(x[:, :1], x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="single numbers"):
        kt.kl_divergence(0.5, 0.5)


def test_keras_is_not_needed():
    code = (
        "import sys, tensorflow as tf; sys.modules['keras'] = None\n"
        "from kullback.tensorflow import kl_divergence\n"
        "print(float(kl_divergence([1.0, 0.0], [0.5, 0.5])))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
    assert float(out) == pytest.approx(math.log(2), rel=1e-6)

"""Checks of kullback.keras.kl_divergence: values, edges, gradients, errors, functional models."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import keras
import numpy as np

import kullback.keras as kk
from keras_support import BACKEND, ORIGINAL, ROUNDING, close, compiled, draw, gradients, kl_divergence, numpy, raises
from literal import by_hand, close_pair, exact, exact_with_logits, softmax


def check_values_by_hand():
    for shape in ((5,), (4, 5), (2, 3, 5)):
        x, y = draw(*shape)
        value = kl_divergence(x, y)
        assert tuple(value.shape) == shape[:-1]
        close(value, by_hand(x, y), ROUNDING)
    x, y = draw(2, 3, 5)
    for axis in (1, -2):
        close(kl_divergence(x.swapaxes(1, 2), y.swapaxes(1, 2), axis=axis), by_hand(x, y), ROUNDING)
    close(kl_divergence(x[0, 0], y), by_hand(x[0, 0], y), ROUNDING)
    close(kl_divergence(x, y[0]), by_hand(x, y[0]), ROUNDING)
    close(kk.kl_divergence([[0.5, 0.5]], [[0.25, 0.75]]), [by_hand([0.5, 0.5], [0.25, 0.75])], ROUNDING)
    close(kk.kl_divergence(np.array([[0, 1]]), np.array([[1, 1]])), [0.0], 0)
    assert kk.kl_divergence is kk.losses.kl_divergence is kk.metrics.kl_divergence


def check_agrees_with_keras_where_keras_does_not_clip():
    # Every shape in one dtype, every dtype in one shape: JAX compiles both sides for each.
    for shape, dtype in (
        ((5,), "float32"), ((2, 3, 5), "float32"), *(((4, 5), dtype) for dtype in ("float32", "float64", "float16", "bfloat16")),
    ):  # fmt: skip
        x, y = draw(*shape, zeros=False)
        prediction = keras.ops.convert_to_tensor(y, dtype=dtype)
        ours, theirs = kl_divergence(x, prediction), ORIGINAL(x, prediction)
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        # Theirs is added up in that dtype.
        rtol = {"float32": 1e-5, "float64": 1e-5 if BACKEND == "jax" else 1e-12, "float16": 2e-2, "bfloat16": 0.2}[dtype]
        close(ours, numpy(theirs), rtol, atol=rtol * 0.1)


def check_half_precision_is_rounded_once():
    x, y = draw(4, 50, zeros=False)
    for dtype in ("float16", "bfloat16"):
        prediction = keras.ops.convert_to_tensor(y, dtype=dtype)
        expected = keras.ops.convert_to_tensor(by_hand(x, numpy(prediction)), dtype=dtype)
        np.testing.assert_array_equal(numpy(kl_divergence(x, prediction)), numpy(expected))


def _array(rows):
    return np.array(rows, np.float32)


def check_zeros_infinities_and_what_is_no_probability():
    nan, inf = math.nan, math.inf
    x = [[1.0, 0.0], [0.5, 0.5], [0.0, 0.0], [nan, 1.0], [0.0, 1.0], [-0.1, 1.1], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]
    y = [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0], [0.5, 0.5], [nan, 1.0], [0.5, 0.5], [-0.5, 1.5], [-1.0, 1.0], [inf, 1.0]]
    close(kl_divergence(_array(x), _array(y)), [math.log(2), inf, 0, nan, nan, nan, nan, 0, 0], ROUNDING)
    # Nothing is clipped, below or above: Keras makes 1e-7 of 1e-30, and 1 of 3.
    close(kk.kl_divergence([[1.0]], [[1e-30]]), [30 * math.log(10)], ROUNDING)
    close(kk.kl_divergence([[3.0]], [[2.0]]), [3 * math.log(1.5)], ROUNDING)
    x = [[1.0, 0.0], [0.5, 0.5], [0.0, 0.0], [nan, 1.0], [0.0, 1.0], [-0.1, 1.1], [1.0, 0.0], [2.0, 0.0]]
    z = [[0.0, -inf], [0.0, -inf], [7.0, 1.0], [0.0, 0.0], [nan, 1.0], [0.0, 0.0], [0.0, 5000.0], [1.0, 1.0]]
    close(kl_divergence(_array(x), _array(z), from_logits=True), [0, inf, 0, nan, nan, nan, 5000, 2 * math.log(2)], ROUNDING)


def check_logits():
    x, _ = draw(2, 3, 5)
    z = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
    total = x.astype(float).sum(-1)
    expected = by_hand(x, softmax(z)) - total * np.log(total)
    close(kl_divergence(x, z, from_logits=True), expected, ROUNDING)
    close(kl_divergence(x.swapaxes(1, 2), z.swapaxes(1, 2), from_logits=True, axis=1), expected, ROUNDING)
    x /= x.sum(-1, keepdims=True)
    # For normalised labels it is the formula of the softmax.
    close(kl_divergence(x, z, from_logits=True), numpy(kl_divergence(x, softmax(z).astype(np.float32))), ROUNDING)
    theirs = numpy(keras.losses.categorical_crossentropy(x, z, from_logits=True)) + by_hand(x, 1.0)
    close(kl_divergence(x, z, from_logits=True), theirs, 1e-5)


def check_no_digits_are_lost_where_predictions_are_close():
    # JAX has no float64 to add up in, unless asked to: Σ (x - y) is then as good as its float32 sums.
    bound = 1e-5 if BACKEND == "jax" else 3e-7
    functions = (kk.kl_divergence, compiled(kk.kl_divergence))
    for step in (1.0, 1e-2, 1e-3, 1e-4):
        x, y, _ = close_pair(step, seed=2)
        truth = exact(x, y)
        x, y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
        for function in functions:
            error = abs(float(function(x, y)) / truth - 1)
            assert error < bound, f"step {step}: {float(error):.1e}"
        if step <= 1e-3:
            assert abs(float(ORIGINAL(x, y)) / truth - 1) > 1e-5
    x, _, z = close_pair(1e-3, seed=3)
    error = abs(float(kk.kl_divergence(x, z, from_logits=True)) / exact_with_logits(x, z) - 1)
    # The logarithm of the labels is rounded to float32 on JAX: 1e-7 of some -7, beneath differences of 1e-3.
    assert error < (1e-3 if BACKEND == "jax" else 3e-7), f"logits: {float(error):.1e}"


def check_gradients_by_hand():
    x, y = draw(4, 5)
    there = x > 0
    safe_x, safe_y = np.where(there, x, 1).astype(float), np.where(there, y, 1).astype(float)
    to_x, to_y = gradients(kk.kl_divergence, x, y)
    close(to_x, np.where(there, np.log(safe_x / safe_y) + 1, 0), ROUNDING, atol=ROUNDING)
    close(to_y, np.where(there, -safe_x / safe_y, 0), ROUNDING)
    z = np.random.default_rng(3).normal(size=x.shape).astype(np.float32)
    to_x, to_z = gradients(lambda x, z: kk.kl_divergence(x, z, from_logits=True), x, z)
    total = x.astype(float).sum(-1, keepdims=True)
    close(to_z, total * softmax(z) - x, 1e-5, atol=ROUNDING)
    close(to_x, np.where(there, np.log(safe_x / total / softmax(z)), 0), 1e-5, atol=ROUNDING)


def check_gradients_are_finite_wherever_the_input_is():
    tiny, smaller = np.float32(1.2e-38), np.float32(1e-44)
    x = np.array([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.9, 0.1], [0.9, 0.1], [100.0, 1.0]], np.float32)
    y = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0], [tiny, 1.0], [smaller, 1.0], [tiny, 1.0]], np.float32)
    for found in gradients(kk.kl_divergence, x, y):
        assert np.isfinite(found).all()
    # Labels of nothing, as padding has them.
    nothing, logits = np.zeros((1, 3), np.float32), np.array([[1.0, -2.0, 0.5]], np.float32)
    for found in gradients(lambda x, z: kk.kl_divergence(x, z, from_logits=True), nothing, logits):
        np.testing.assert_array_equal(found, 0)
    # Behind a softmax that has underflown, or nearly.
    target = np.array([[0.25, 0.5, 0.25]], np.float32)
    for gap in (80.0, 88.0, 95.0, 103.0, 200.0):
        logits = np.array([[gap, 0.0, gap - 1]], np.float32)
        (found,) = gradients(lambda z: kk.kl_divergence(target, keras.ops.softmax(z)), logits)
        assert np.isfinite(found).all(), gap
        (found,) = gradients(lambda z: kk.kl_divergence(target, z, from_logits=True), logits)
        close(found, softmax(logits) - target, ROUNDING)


def check_bad_input_raises_what_keras_raises():
    x = np.full((3, 4), 0.25, np.float32)
    cases = [
        ((x, x[:, :3]), "y_true has shape (3, 4) and y_pred (3, 3)"),
        ((x, x[:2]), "y_true has shape (3, 4) and y_pred (2, 4)"),
        ((x[0, :3], x), "y_true has shape (3,) and y_pred (3, 4)"),
        ((None, x), "y_true cannot be read"),
        ((x, None), "y_pred cannot be read"),
        (("a", x), "y_true cannot be read"),
        ((x, "a"), "y_pred"),
        (([[0.5, 0.5], [1.0]], x), "y_true cannot be read"),
        ((x, x.astype(np.complex64)), "y_pred has dtype complex64"),
    ]
    if BACKEND != "torch":
        cases.append(((0.5, 0.5), "single numbers"))
    for arguments, message in cases:
        try:
            ORIGINAL(*arguments)
        except Exception as error:
            kind = type(error)
        else:
            raise AssertionError(f"Keras has nothing against {message}")
        raises(kind, message, lambda a=arguments: kk.kl_divergence(*a))
        if message.endswith("4)") or message.endswith("3)"):
            raises(kind, message, lambda a=arguments: kk.losses.KLDivergence()(*a))
    if BACKEND == "torch":  # Keras sums the number over its last axis
        raises(ValueError, "single numbers", lambda: kk.kl_divergence(0.5, 0.5))
    for from_logits in (False, True):  # regression: probabilities of one category were broadcast to four
        raises(ValueError, "y_true has 1 categories and y_pred 4", lambda f=from_logits: kk.kl_divergence(x[:, :1], x, from_logits=f))
    raises(ValueError, "axis 2 is out of range", lambda: kk.kl_divergence(x, x, axis=2))
    raises(ValueError, "reduction", lambda: kk.losses.KLDivergence(reduction="average"))


def check_a_node_of_a_functional_model():
    inputs = [keras.Input((3, 4)), keras.Input((3, 4))]
    output = kk.kl_divergence(*inputs)
    assert output.shape == ORIGINAL(*inputs).shape == (None, 3)
    model = keras.Model(inputs, output)
    x, y = draw(2, 3, 4)
    close(model.predict([x, y], verbose=0), by_hand(x, y), ROUNDING)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        again = keras.saving.load_model(Path(folder) / "model.keras")
    close(again.predict([x, y], verbose=0), by_hand(x, y), ROUNDING)

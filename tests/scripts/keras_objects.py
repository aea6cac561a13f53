"""Checks of the Keras loss and metric as objects: signatures, reductions, weights, masks, dtypes, configurations, batches."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import os
import types
import unittest

import keras
import numpy as np

import kullback.keras as kk
from keras_support import BACKEND, ORIGINAL, ROUNDING, close, draw, numpy, raises
from literal import by_hand, softmax

REDUCTIONS = ("sum_over_batch_size", "mean", "sum", "mean_with_sample_weight", "none", None)


def check_signatures_begin_with_those_of_keras():
    for ours, theirs in (
        (kk.losses.kl_divergence, ORIGINAL),
        (kk.losses.KLDivergence.__init__, keras.losses.KLDivergence.__init__),
        (kk.metrics.KLDivergence.__init__, keras.metrics.KLDivergence.__init__),
    ):
        ours, theirs = (list(inspect.signature(f).parameters.values()) for f in (ours, theirs))
        assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
        assert [p.name for p in ours[len(theirs) :]] == ["from_logits", "axis"]
    assert issubclass(kk.losses.KLDivergence, keras.losses.KLDivergence)
    assert issubclass(kk.metrics.KLDivergence, keras.metrics.KLDivergence)
    assert kk.KLDivergence is kk.losses.KLDivergence
    assert sorted(kk.__all__) == kk.__all__


def check_weights_below_0_and_nan_are_refused():
    """Regression: they gave a plausible mean."""
    x, y = np.full((2, 3), 1 / 3, np.float32), np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], np.float32)
    for wrong in ([1.0, -1.0], np.array([np.nan, 1.0], np.float32)):
        raises(ValueError, "weights hold", lambda w=wrong: kk.losses.KLDivergence()(x, y, sample_weight=w))
        raises(ValueError, "weights hold", lambda w=wrong: kk.metrics.KLDivergence().update_state(x, y, sample_weight=w))


def check_reductions_and_weights_are_those_of_keras():
    x, y = draw(2, 3, 5, zeros=False)
    rng = np.random.default_rng(4)
    weights = [None, 2.0, 0, rng.random((2, 1)), rng.random((2, 3)), rng.random((2, 3, 1)), np.array([[1, 0, 1], [0, 0, 1]])]
    for reduction, weight in itertools.product(REDUCTIONS, weights):
        ours, theirs = (module.KLDivergence(reduction=reduction)(x, y, sample_weight=weight) for module in (kk.losses, keras.losses))
        assert ours.shape == theirs.shape
        close(ours, numpy(theirs), 1e-5, atol=1e-6)
    # By hand, for the usual ones.
    weight = weights[4]
    close(kk.losses.KLDivergence()(x, y, sample_weight=weight), (by_hand(x, y) * weight).mean(), ROUNDING)
    weighted = kk.losses.KLDivergence(reduction="mean_with_sample_weight")(x, y, weight)
    close(weighted, (by_hand(x, y) * weight).sum() / weight.sum(), ROUNDING)
    close(kk.losses.KLDivergence(axis=1)(x.swapaxes(1, 2), y.swapaxes(1, 2), weight), (by_hand(x, y) * weight).mean(), ROUNDING)
    # Two axes less, as a column beside a vector.
    x, y = draw(4, 5, zeros=False)
    weight = rng.random((4, 1))
    close(kk.losses.KLDivergence()(x, y, weight), (by_hand(x, y) * weight[:, 0]).mean(), ROUNDING)


def check_rows_without_weight_may_be_infinite():
    x = np.array([[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]], np.float32)
    y = np.array([[[1.0, 0.0], [0.25, 0.75]], [[0.5, 0.5], [0.0, 1.0]]], np.float32)
    kept = np.array([[0, 1], [1, 0]])
    expected = by_hand(x, y)[kept == 1]
    assert not np.isfinite(by_hand(x, y)[kept == 0]).any()
    loss = kk.losses.KLDivergence(reduction="sum")
    for weight in (kept, kept[..., None], kept.astype(bool)):
        close(loss(x, y, sample_weight=weight), expected.sum(), ROUNDING)
    metric = kk.metrics.KLDivergence()
    metric.update_state(x, y, sample_weight=kept)
    close(metric.result(), expected.mean(), ROUNDING)
    # A weight a sample: the metric averages over its distributions first.
    metric = kk.metrics.KLDivergence()
    metric.update_state(np.stack([x[0, :1], x[1, :1]]), np.stack([y[0, :1], y[1, :1]]), sample_weight=[0, 1])
    close(metric.result(), by_hand(x, y)[1, 0], ROUNDING)
    with_logits = kk.losses.KLDivergence(from_logits=True, reduction="sum")
    with np.errstate(divide="ignore"):
        close(with_logits(x, np.log(y), sample_weight=kept), expected.sum(), ROUNDING)
    # All weights zero, all infinite.
    close(loss(x[:1, :1], y[:1, :1], sample_weight=0), 0.0, 0)
    # In float64 a list of labels is not rounded on the way.
    if BACKEND != "jax":
        # ("sum", since Keras divides in float32 on torch.)
        double = kk.losses.KLDivergence("sum", dtype="float64")([[0.1, 0.9]], [[0.3, 0.7]], sample_weight=[1.0])
        close(double, by_hand([0.1, 0.9], [0.3, 0.7]), 1e-14)


def check_masks_of_layers():
    rng = np.random.default_rng(5)
    data = np.stack([np.ones((5, 3)), rng.normal(size=(5, 3))], -1).astype(np.float32)
    data[:, 2] = 0  # masked
    data[0, 1] = 0
    kept = (data != 0).any(-1)
    x, _ = draw(5, 3, 4, zeros=False)
    model = keras.Sequential([keras.Input((3, 2)), keras.layers.Masking(), keras.layers.Dense(4, activation="softmax")])
    slopes = rng.normal(size=4)
    for eager in (True, False):
        model.compile("sgd", loss=kk.losses.KLDivergence(), metrics=[kk.metrics.KLDivergence()], run_eagerly=eager)
        for gap in (0.0, 200.0):
            # The second time, what is masked is infinite: its softmax has underflown.
            model.set_weights([np.array([[0, 0, 0, gap], slopes]), np.array([0, 0, 0, -gap])])
            values = by_hand(x, numpy(model(data)))
            assert np.isinf(values[~kept]).all() == (gap > 0)
            # One batch: Keras averages a masked loss batch by batch.
            found = model.evaluate(data, x, batch_size=5, verbose=0, return_dict=True)
            np.testing.assert_allclose([found["loss"], found["kl_divergence"]], values[kept].mean(), rtol=ROUNDING)
            if not eager:
                model.fit(data, x, epochs=1, verbose=0)
                assert all(np.isfinite(w).all() for w in model.get_weights())


def check_dtypes_and_policies():
    x, y = draw(4, 5, zeros=False)
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        ours, theirs = kk.losses.KLDivergence(dtype=dtype)(x, y), keras.losses.KLDivergence(dtype=dtype)(x, y)
        assert ours.dtype == theirs.dtype
    policy = keras.DTypePolicy("mixed_float16")
    assert kk.losses.KLDivergence(dtype=policy).dtype == "float16"
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_float16")
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, activation="softmax")])
        model.compile("sgd", loss=kk.losses.KLDivergence(), metrics=[kk.metrics.KLDivergence()])
        data = np.random.default_rng(6).normal(size=(4, 3)).astype(np.float32)
        assert keras.backend.standardize_dtype(model(data).dtype) == "float16"
        found = model.evaluate(data, x, verbose=0, return_dict=True)
        expected = by_hand(x, numpy(model(data))).mean()
        # float16 outputs, everything after them in float32. (A compiled model may fuse the softmax in float32, hence its own precision.)
        assert math.isclose(found["loss"], expected, rel_tol=2e-3)
        assert math.isclose(found["kl_divergence"], found["loss"], rel_tol=ROUNDING)
        model.fit(data, x, epochs=2, verbose=0)
        assert all(np.isfinite(w).all() for w in model.get_weights())
    finally:
        keras.config.set_dtype_policy(before)


def check_config_round_trips():
    for arguments in ({}, {"from_logits": True, "axis": 1, "reduction": "sum", "name": "distance", "dtype": "float64"}):
        loss = kk.losses.KLDivergence(**arguments)
        again = kk.losses.KLDivergence.from_config(json.loads(json.dumps(loss.get_config())))
        assert again.get_config() == loss.get_config()
        assert arguments.items() <= again.get_config().items()
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        assert type(again) is kk.losses.KLDivergence
        assert again.get_config() == loss.get_config()
        arguments.pop("reduction", None)
        metric = kk.metrics.KLDivergence(**arguments)
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert type(again) is kk.metrics.KLDivergence
        assert again.get_config() == metric.get_config()
        assert arguments.items() <= again.get_config().items()
    assert keras.losses.deserialize(keras.losses.serialize(kk.kl_divergence)) is kk.kl_divergence


def check_the_tests_of_keras_itself():
    from keras.src.losses import losses_test
    from keras.src.metrics import probabilistic_metrics_test

    suite = unittest.TestSuite()
    for module, attribute, ours in ((losses_test, "losses", kk.losses), (probabilistic_metrics_test, "metrics", kk.metrics)):
        setattr(module, attribute, types.SimpleNamespace(KLDivergence=ours.KLDivergence))
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(module.KLDivergenceTest))
    result = unittest.TextTestRunner(stream=open(os.devnull, "w")).run(suite)  # noqa: SIM115
    assert result.testsRun > 8
    assert result.wasSuccessful(), result.errors + result.failures


def check_metric_over_batches():
    x, y = draw(10, 5)
    weight = np.array([1, 2, 0, 1, 0.5, 3, 1, 1, 0, 1], np.float32)
    plain, weighted, logits = kk.metrics.KLDivergence(), kk.metrics.KLDivergence(), kk.metrics.KLDivergence(from_logits=True)
    z = np.random.default_rng(9).normal(size=x.shape).astype(np.float32)
    normalised = x / x.sum(-1, keepdims=True)
    for rows in (slice(0, 1), slice(1, 10)):  # not of one size; the sizes of the next check, since JAX compiles for each
        plain.update_state(x[rows], y[rows])
        weighted.update_state(x[rows], y[rows], sample_weight=weight[rows])
        logits.update_state(normalised[rows], z[rows])
    close(plain.result(), by_hand(x, y).mean(), ROUNDING)
    close(weighted.result(), (by_hand(x, y) * weight).sum() / weight.sum(), ROUNDING)
    close(logits.result(), by_hand(normalised, softmax(z)).mean(), ROUNDING)
    plain.reset_state()
    close(plain.result(), 0.0, 0)
    plain.update_state(x[:1], y[:1])
    close(plain.result(), by_hand(x, y)[0], ROUNDING)
    # More than one axis of distributions, and weights of one.
    x, y = draw(4, 3, 5)
    metric = kk.metrics.KLDivergence()
    metric.update_state(x, y, sample_weight=weight[:4])
    close(metric.result(), (by_hand(x, y).mean(-1) * weight[:4]).sum() / weight[:4].sum(), ROUNDING)
    double = kk.metrics.KLDivergence(dtype="float64")
    double.update_state(x, y)
    close(double.result(), by_hand(x, y).mean(), ROUNDING)
    assert plain._direction == keras.metrics.KLDivergence()._direction == "down"


def check_metric_without_state():
    # As JAX trains: the totals travel outside.
    x, y = draw(10, 5)
    metric = kk.metrics.KLDivergence()
    state = metric.stateless_reset_state()
    for rows in (slice(0, 1), slice(1, 10)):
        state = metric.stateless_update_state(state, x[rows], y[rows])
    close(metric.stateless_result(state), by_hand(x, y).mean(), ROUNDING)
    close(metric.result(), 0.0, 0)


def check_tensorflow_1_graphs_are_refused():
    """Entropies and divergences were wrong at 0 there, because == compares tensors by identity."""
    import tensorflow as tf

    rows = np.array([[0.5, 0.5, 0.0]], np.float32)
    with tf.Graph().as_default():
        for call in (
            kk.kl_divergence,
            kk.losses.KLDivergence(),
            kk.losses.KLDivergence(from_logits=True),
            lambda x, y: kk.losses.KLDivergence()(x, y, sample_weight=tf.ones(1)),
            lambda x, y: kk.metrics.KLDivergence()(x, y),
        ):
            raises(NotImplementedError, "graphs of TensorFlow 1", lambda call=call: call(tf.constant(rows), tf.constant(rows)))


def check_tensorflow_unknown_numbers_of_axes_are_refused():
    import tensorflow as tf

    function = tf.function(kk.kl_divergence, input_signature=[tf.TensorSpec(None)] * 2, autograph=False)
    raises(ValueError, "the number of axes of y_true is unknown: state it with tf.ensure_shape", lambda: function([0.5, 0.5], [0.5, 0.5]))

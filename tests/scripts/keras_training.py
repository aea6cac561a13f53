"""Checks of kullback.keras in training: compile and fit, saved models, several replicas."""

from __future__ import annotations

import math
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest import mock

import keras
import numpy as np

import kullback.keras as kk
from keras_support import BACKEND, ROUNDING, close, make_model, numpy, problem
from literal import by_hand, softmax


def _without_inductor():
    """PyTorch traces the step as ever, but does not hand it to Inductor, which needs half a minute; it compiles ours in another check."""
    if BACKEND != "torch":
        return ExitStack()
    import torch

    return mock.patch.object(torch, "compile", partial(torch.compile, backend="aot_eager"))


def check_compile_and_fit():
    with _without_inductor():
        _compile_and_fit()


def _compile_and_fit():
    data, labels = problem()
    variants = [(False, {}), (True, {})]
    # Without being asked, JAX compiles, PyTorch does not, and TensorFlow traces.
    if BACKEND == "tensorflow":
        variants += [(True, {"run_eagerly": True}), (True, {"jit_compile": True}), (False, {"jit_compile": True})]
    elif BACKEND == "torch":
        variants += [(False, {"jit_compile": True})]
    for from_logits, options in variants:
        model = make_model(None if from_logits else "softmax")
        model.compile(
            keras.optimizers.Adam(0.05), loss=kk.losses.KLDivergence(from_logits=from_logits),
            metrics=[kk.metrics.KLDivergence(from_logits=from_logits)], **options,
        )  # fmt: skip
        history = model.fit(data, labels, epochs=3, batch_size=16, verbose=0).history
        assert history["loss"][-1] < history["loss"][0]
        np.testing.assert_allclose(history["kl_divergence"], history["loss"], rtol=ROUNDING)
        # Batches of two sizes, for each of which compilers start anew: those that are asked for get one.
        rows = 32 if options.get("jit_compile") else 24
        found = model.evaluate(data, labels, batch_size=rows, verbose=0, return_dict=True)
        outputs = numpy(model(data))
        expected = by_hand(labels, softmax(outputs) if from_logits else outputs).mean()
        np.testing.assert_allclose([found["loss"], found["kl_divergence"]], expected, rtol=1e-5)


def check_fit_with_weights_and_the_function():
    data, labels = problem()
    weight = np.random.default_rng(8).integers(0, 3, size=64).astype(np.float32)
    model = make_model("softmax")
    model.compile("sgd", loss=kk.kl_divergence, weighted_metrics=[kk.kl_divergence])
    found = model.evaluate(data, labels, sample_weight=weight, batch_size=64, verbose=0, return_dict=True)
    values = by_hand(labels, numpy(model(data)))
    assert math.isclose(found["loss"], (values * weight).mean(), rel_tol=1e-5)
    assert math.isclose(found["kl_divergence"], (values * weight).sum() / weight.sum(), rel_tol=1e-5)
    model.fit(data, labels, sample_weight=weight, epochs=1, verbose=0)


def check_training_survives_an_underflown_softmax():
    data, _ = problem()
    labels = np.full((64, 4), 0.25, np.float32)
    for from_logits in (False, True):
        model = make_model(None if from_logits else "softmax")
        model.compile("sgd", loss=kk.losses.KLDivergence(from_logits=from_logits))
        far = 200 * data
        outputs = numpy(model(far))
        if from_logits:
            assert np.isfinite(model.evaluate(far, labels, verbose=0))
        else:
            assert (outputs == 0).any()
            assert model.evaluate(far, labels, verbose=0) == math.inf
        model.fit(far, labels, epochs=2, verbose=0)
        assert all(np.isfinite(w).all() for w in model.get_weights())


def check_saved_and_loaded():
    data, labels = problem()
    with tempfile.TemporaryDirectory() as folder:
        for i, (loss, metric) in enumerate([
            (kk.losses.KLDivergence(from_logits=True, reduction="sum"), kk.metrics.KLDivergence(from_logits=True, name="distance")),
            (kk.kl_divergence, kk.kl_divergence),
        ]):  # fmt: skip
            model = make_model(None if i == 0 else "softmax")
            model.compile("sgd", loss=loss, metrics=[metric])
            model.fit(data, labels, epochs=1, verbose=0)
            before = model.evaluate(data, labels, verbose=0, return_dict=True)
            model.save(Path(folder) / f"{i}.keras")
            again = keras.saving.load_model(Path(folder) / f"{i}.keras")
            after = again.evaluate(data, labels, verbose=0, return_dict=True)
            assert after == before
            assert set(after) == {"loss", "distance" if i == 0 else "kl_divergence"}
            again.fit(data, labels, epochs=1, verbose=0)
            if i == 0:
                assert type(again.loss) is kk.losses.KLDivergence
                assert again.loss.get_config() == loss.get_config()


def check_tensorflow_distributed_over_two_replicas():
    import tensorflow as tf

    data, labels = problem()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        model = make_model("softmax")
        # A metric that only sums what each replica has is right for any split; 48 rows go 24 and 24, then 8 and 8.
        model.compile("sgd", loss=kk.losses.KLDivergence(), metrics=[kk.metrics.KLDivergence()])
    first = model.fit(data, labels, epochs=3, batch_size=48, verbose=0).history["loss"]
    assert first[-1] < first[0]
    found = model.evaluate(data, labels, batch_size=48, verbose=0, return_dict=True)
    expected = by_hand(labels, numpy(model(data))).mean()
    np.testing.assert_allclose([found["loss"], found["kl_divergence"]], expected, rtol=1e-5)
    # Replicas that see different amounts.
    with strategy.scope():
        metric = kk.metrics.KLDivergence()

    def update():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        rows = tf.cond(tf.equal(replica, 0), lambda: tf.constant(labels[:1]), lambda: tf.constant(labels[1:8]))
        metric.update_state(rows, tf.fill(tf.shape(rows), 0.25))

    strategy.run(tf.function(update))
    close(metric.result(), by_hand(labels[:8], 0.25).mean(), ROUNDING)

"""Checks of kullback.keras.patched: what it reaches, what it does not, and the promises of `patching`."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import keras
import numpy as np

import kullback.keras as kk
import patching
from keras_support import BACKEND, ORIGINAL, ROUNDING, make_model, numpy, problem
from literal import by_hand

ImportedByName = keras.losses.KLDivergence
HALVES, CERTAIN = [[0.5, 0.5]], [[1.0, 0.0]]  # inf by ours, 7.37 by Keras'


def _is_ours(function):
    return math.isinf(float(keras.ops.sum(function(HALVES, CERTAIN))))


def _measured(metric):
    metric.update_state(HALVES, CERTAIN)
    return metric.result()


def check_patched_reaches_what_it_says():
    existing, existing_metric, by_name = keras.losses.KLDivergence(), keras.metrics.KLDivergence(), ORIGINAL
    public = {
        "function": lambda: keras.losses.kl_divergence,
        "function of metrics": lambda: keras.metrics.kl_divergence,
        "loss": lambda: keras.losses.KLDivergence(),
        "loss imported by name": lambda: ImportedByName(),
        "metric": lambda: lambda x, y: _measured(keras.metrics.KLDivergence()),
        "string for the metric": lambda: lambda x, y: _measured(keras.metrics.get("kl_divergence")),
        "configuration": lambda: keras.losses.get({"class_name": "KLDivergence", "config": {"reduction": "sum"}}),
        "deserialized": lambda: keras.losses.deserialize("kl_divergence"),
        **{f"string {s}": lambda s=s: keras.losses.get(s) for s in ("kl_divergence", "kld", "KLD", "KLDivergence")},
    }
    if BACKEND == "tensorflow":
        import tensorflow as tf

        for name in ("KLD", "kld", "kullback_leibler_divergence"):
            public[f"tf.keras.losses.{name}"] = lambda name=name: getattr(tf.keras.losses, name)
            public[f"tf.keras.metrics.{name}"] = lambda name=name: getattr(tf.keras.metrics, name)
        public["tf.keras.losses.KLDivergence"] = lambda: tf.keras.losses.KLDivergence()
        public["tf.keras string"] = lambda: tf.keras.losses.get("kld")
    for what, get in public.items():
        assert not _is_ours(get()), f"{what} before"
    with kk.patched():
        for what, get in public.items():
            assert _is_ours(get()), what
        inside = keras.losses.KLDivergence()
        assert keras.metrics.KLDivergence()._direction == "down"
        # Out of reach, as documented.
        assert not _is_ours(existing)
        assert not _is_ours(lambda x, y: _measured(existing_metric))
        assert not _is_ours(by_name)
        saved = {"module": "builtins", "class_name": "function", "config": "kl_divergence", "registered_name": "function"}
        assert not _is_ours(keras.saving.deserialize_keras_object(saved))
    for what, get in public.items():
        assert not _is_ours(get()), f"{what} after"
    assert _is_ours(inside)
    assert keras.losses.kl_divergence is ORIGINAL


def check_patched_in_compile():
    data, labels = problem()
    for loss in ("kl_divergence", "kld", keras.losses.KLDivergence):
        model = make_model("softmax")
        with kk.patched():
            model.compile("sgd", loss=loss if isinstance(loss, str) else loss(), metrics=["kl_divergence"])
            found = model.evaluate(data, labels, verbose=0, return_dict=True)
        expected = by_hand(labels, numpy(model(data))).mean()
        # Keras counts each label of 0 as 1e-7.
        np.testing.assert_allclose([found["loss"], found["kl_divergence"]], expected, rtol=ROUNDING)


def check_patched_models_are_saved_as_keras_own():
    data, labels = problem()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model = make_model("softmax")
        with kk.patched():
            model.compile("sgd", loss=keras.losses.KLDivergence(), metrics=[keras.metrics.KLDivergence()])
            model.fit(data, labels, epochs=1, verbose=0)
            model.save(path)
            assert _is_ours(keras.saving.load_model(path).loss)
        assert _is_ours(model.loss)
        assert not _is_ours(keras.saving.load_model(path).loss)


def _who():
    if keras.losses.kl_divergence is kk.kl_divergence:
        return "ours"
    return "theirs" if keras.losses.kl_divergence is ORIGINAL else "nobody's"


def check_promises_of_patching():
    for check in patching.CHECKS:
        check(patching.Surface(kk, _who, (keras.losses, "kl_divergence")))

"""What the checks of kullback.keras share: the backend of this process, its arrays and derivatives, and small models."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np

import kullback.keras as kk
import literal
from literal import softmax

BACKEND = keras.backend.backend()
ORIGINAL = keras.losses.kl_divergence

if BACKEND == "tensorflow":
    import tensorflow as tf

    # Before anything runs: two devices to distribute over.
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
elif BACKEND == "jax":
    import jax
else:
    import torch

draw = partial(literal.draw, dtype=np.float32)


def numpy(x):
    # NumPy's bfloat16 is not everyone's.
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(x, "float32" if BACKEND == "jax" else "float64")), float)


def kl_divergence(x, y, **options):
    """Ours. On JAX as a whole: operation by operation, as the other checks have it, each new shape takes seconds."""
    call = partial(kk.kl_divergence, **options)
    return jax.jit(call)(x, y) if BACKEND == "jax" else call(x, y)


def gradients(function, *arrays):
    """Derivatives of the sum of function(*arrays), in the backend's own way."""
    if BACKEND == "tensorflow":
        native = [tf.constant(a) for a in arrays]
        with tf.GradientTape() as tape:
            tape.watch(native)
            value = tf.reduce_sum(function(*native))
        return [g.numpy() for g in tape.gradient(value, native)]
    if BACKEND == "jax":
        grad = jax.jit(jax.grad(lambda *xs: keras.ops.sum(function(*xs)), argnums=tuple(range(len(arrays)))))
        return [np.asarray(g) for g in grad(*map(jax.numpy.asarray, arrays))]
    native = [torch.tensor(a, requires_grad=True) for a in arrays]
    return [g.numpy() for g in torch.autograd.grad(function(*native).sum(), native)]


def compiled(function):
    if BACKEND == "tensorflow":
        return tf.function(function, jit_compile=True)
    return jax.jit(function) if BACKEND == "jax" else torch.compile(function, fullgraph=True)


def raises(kind, message, function):
    try:
        function()
    except kind as error:
        assert message in str(error), f"{message!r} is not in {str(error)!r}"  # noqa: PT017
        return
    raise AssertionError(f"no {kind.__name__}")


def close(found, expected, rtol, atol=0.0):
    np.testing.assert_allclose(numpy(found), expected, rtol=rtol, atol=atol)


# A few units in the last place of float32: where the sum is well conditioned.
ROUNDING = 1e-6


def problem():
    rng = np.random.default_rng(7)
    data = rng.normal(size=(64, 6)).astype(np.float32)
    labels = softmax(data @ rng.normal(size=(6, 4)) * 2)
    labels[labels < 0.02] = 0  # zeros in the labels, which have made NaN of many a model
    labels /= labels.sum(-1, keepdims=True)
    return data, labels.astype(np.float32)


def make_model(activation=None, outputs=4):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(outputs, activation=activation)])

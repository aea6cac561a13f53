"""TensorFlow: nested tapes against mpmath, tf.function with and without XLA, unknown sizes, and where the check steps aside."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import kullback as kb
from cases import CASE_FORMS, CASES, ONE_EACH, close, close_hessian, options, points, truth
from oracle import GRADIENT_BOUND, VALUE_BOUND

DIRECTION = np.array([0.7, -1.3, 0.4, 1.1, 0.2, -0.9])


def _derivatives(name, form):
    """Value of each row, its gradient, and its Hessian times DIRECTION, from nested tapes."""

    def differentiate(x, y):
        z = tf.concat([x, y], axis=-1)
        with tf.GradientTape() as outer:
            outer.watch(z)
            with tf.GradientTape() as inner:
                inner.watch(z)
                value = CASES[name].call(z[:, :3], z[:, 3:], **options(form))
                value = tf.reduce_sum(value, axis=-1) if form == "elementwise" else value
            first = inner.gradient(value, z)
            along = tf.reduce_sum(first * tf.constant(DIRECTION, z.dtype), axis=-1)
        return value, first, outer.gradient(along, z)

    return differentiate


def _check(name, form, x, y, values, firsts, seconds):
    for given, value, first, second in zip(zip(x, y), values, firsts, seconds):
        expected = truth(name, form, *given)
        close(value, expected.value, VALUE_BOUND[np.float64])
        close(first, expected.gradient, GRADIENT_BOUND[np.float64])
        close_hessian(name, form, second, given, DIRECTION)


@pytest.mark.parametrize(("name", "form"), CASE_FORMS)
def test_nested_tapes(name, form):
    xs, ys = points(form)
    _check(name, form, xs, ys, *_derivatives(name, form)(tf.constant(xs), tf.constant(ys)))


@pytest.mark.parametrize(
    ("form", "jit_compile", "names"),
    [("logits", False, ONE_EACH), ("probs", False, ["kl", "cross_entropy"]), ("logits", True, ["kl"]), ("probs", True, ["js"])],
)
def test_function_with_nested_tapes_and_unknown_batch(form, jit_compile, names):
    """One graph a form, traced for any number of rows. (XLA needs 10 s for each second derivative, so not all of them go through it.)"""
    spec = tf.TensorSpec([None, 3], tf.float64)

    @tf.function(input_signature=[spec, spec], jit_compile=jit_compile, autograph=False)
    def every(x, y):
        return [_derivatives(name, form)(x, y) for name in names]

    xs, ys = points(form)
    for rows in (slice(0, 3), slice(0, 1)):
        x, y = xs[rows], ys[rows]
        for name, found in zip(names, every(x, y)):
            _check(name, form, x, y, *found)
    assert every.experimental_get_tracing_count() == 1


def test_unknown_categories_and_reductions():
    """Not even the number of categories is known while the graph is traced. (Which dtype does not matter to that.)"""
    dtype = tf.float32
    spec = tf.TensorSpec([None, None], dtype)

    @tf.function(input_signature=[spec, spec, tf.TensorSpec([None], dtype)])
    def every(x, y, w):
        rows = [CASES[name].call(x, y, form="logits") for name in ONE_EACH]
        return rows, [kb.kl(x, y, form="logits", reduction=r) for r in ("sum", "mean", "batchmean")], kb.kl(
            x, y, form="logits", weights=w, temperature=w + 1.0, reduction="mean"
        )  # fmt: skip

    number = dtype.as_numpy_dtype
    xs, ys = points("logits", number)
    w = np.array([0.0, 1.0, 3.0], number)
    rows, reduced, weighted = every(xs, ys, w)
    for name, values in zip(ONE_EACH, rows):
        close(values, [truth(name, "logits", *row).value for row in zip(xs, ys)], VALUE_BOUND[number])
    each = [truth("kl", "logits", *row).value for row in zip(xs, ys)]
    close(reduced, [sum(each), sum(each) / 3, sum(each) / 3], VALUE_BOUND[number])
    hot = [truth("kl", "logits", xs[i], ys[i], temperature=1.0 + w[i]).value for i in range(3)]
    close(weighted, (hot[1] + 3 * hot[2]) / 4, VALUE_BOUND[number])
    # another number of categories, same graph
    wide = every(np.tile(xs, 2), np.tile(ys, 2), w)[0][0]
    close(wide, each, VALUE_BOUND[number])


@pytest.mark.parametrize("name", [n for n in ONE_EACH if n != "entropy"])
def test_variables_take_gradients(name):
    xs, ys = points("logits")
    x, y = tf.Variable(xs), tf.Variable(ys)
    with tf.GradientTape() as tape:
        total = CASES[name].call(x, y, form="logits", reduction="sum")
    found = np.concatenate(tape.gradient(total, [x, y]), axis=-1)
    for f, row in zip(found, zip(xs, ys)):
        close(f, truth(name, "logits", *row).gradient, GRADIENT_BOUND[np.float64])


def test_temperature_is_learnable():
    (a, b), t, h = points("logits"), tf.Variable(1.7, dtype=tf.float64), 1e-6
    with tf.GradientTape() as tape:
        value = kb.kl(tf.constant(a[0]), tf.constant(b[0]), form="logits", temperature=t)
    down, up = (truth("kl", "logits", a[0], b[0], 1.7 + step).value for step in (-h, h))
    close(tape.gradient(value, t), (up - down) / (2 * h), 1e-9)  # rounding of the differences: 1e-16 / h


@pytest.mark.parametrize("half", [tf.bfloat16, tf.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_half_precision_gradients_are_half_precision(name, half):
    a, b = (tf.cast(z[:1], half) for z in points("logits"))
    with tf.GradientTape() as tape:
        tape.watch(a)
        value = CASES[name].call(a, b, form="logits")
    assert value.dtype == tf.float32
    found = tape.gradient(value, a)
    assert found.dtype == half
    expected = truth(name, "logits", *(np.asarray(z[0], np.float64) for z in (a, b))).gradient[:3]
    # Rounded once, at the end: 8 or 11 bits.
    eps = 2.0 ** (-8 if half == tf.bfloat16 else -11)
    assert (np.abs(np.asarray(found[0], np.float64) - expected) <= np.abs(expected) * eps + 1e-7).all()


# --- where the value check steps aside -------------------------------------------------------------------------------------------

INVALID = tf.constant([[0.2, 0.3, 0.5], [0.1, -0.6, 0.3]])
OTHER = tf.constant([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])


def _every(p, q):
    return tf.stack([CASES[name].call(p, q) for name in ONE_EACH], axis=-1)


def _signature(*shape):
    return [tf.TensorSpec(shape), tf.TensorSpec(shape)]


GRAPHS = {
    "tf.function": lambda f: tf.function(f, autograph=False)(INVALID, OTHER),
    "tf.function with autograph": lambda f: tf.function(f)(INVALID, OTHER),
    "XLA": lambda f: tf.function(f, autograph=False, jit_compile=True)(INVALID, OTHER),
    "unknown batch": lambda f: tf.function(f, autograph=False, input_signature=_signature(None, 3))(INVALID, OTHER),
    "unknown sizes": lambda f: tf.function(f, autograph=False, input_signature=_signature(None, None))(INVALID, OTHER),
    "vectorized_map": lambda f: tf.vectorized_map(lambda row: f(*row), (INVALID, OTHER)),
    "check=False": lambda f: tf.stack([CASES[name].call(INVALID, OTHER, check=False) for name in ONE_EACH], axis=-1),
}


@pytest.mark.parametrize("context", GRAPHS)
def test_check_steps_aside(context):
    found = np.isnan(GRAPHS[context](_every))
    assert found.shape == (2, len(ONE_EACH))
    assert not found[0].any()
    assert found[1].all()


def test_check_true_looks_wherever_it_can_and_only_there():
    found = tf.function(lambda p, q: kb.kl(p, q, check=True), autograph=False)(INVALID, OTHER)
    assert np.isnan(found).tolist() == [False, True]
    with pytest.raises(ValueError, match="row 1"):
        kb.kl(INVALID, OTHER, check=True)


def _taped(f):
    with tf.GradientTape() as tape:
        tape.watch(INVALID)
        return f(INVALID, OTHER)


EAGER = {"plain": lambda f: f(INVALID, OTHER), "tape": _taped, "variable": lambda f: f(tf.Variable(INVALID), OTHER)}


@pytest.mark.parametrize("context", EAGER)
@pytest.mark.parametrize("name", ONE_EACH)
def test_eager_raises(context, name):
    with pytest.raises(ValueError, match=r"p row 1 holds -0\.6"):
        EAGER[context](CASES[name].call)

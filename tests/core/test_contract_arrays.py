"""The array contract on kinds of arrays: dtypes, half precision, lists and numbers beside tensors, no rows."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import kullback as kb
import oracle
from contract import (
    BY_NAME,
    close,
    double,
    on_eager,
    on_fast,
    run_half,
)
from frameworks import Lazy

array_api_strict = Lazy("array_api_strict")
jax = Lazy("jax")
jnp = Lazy("jax.numpy")
tf = Lazy("tensorflow")
tinygrad = Lazy("tinygrad")


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow", "tinygrad", "array-api-strict"])
def test_dtypes(name):
    framework = BY_NAME[name]
    halves = [] if name == "array-api-strict" else [np.float16, ml_dtypes.bfloat16]
    wide = np.float64 if framework.double else np.float32
    expected = dict.fromkeys([*halves, np.float32], np.float32) | dict.fromkeys([np.float64, np.int64, np.int32, np.uint8, np.bool_], wide)
    x, y = np.array([1, 0, 1]), np.array([1, 1, 1])
    for given, result in expected.items():
        found = run_half(framework, lambda x, y: kb.kl(x, y, form="counts"), x.astype(given), y.astype(given))
        assert found.dtype == result, given
        # 1/2 against 1/3
        close(found, math.log(1.5), result)
    found = framework.run(lambda x, y: kb.kl(x, y, form="counts"), x.astype(np.float32), y.astype(np.float64))
    assert found.dtype == wide
    found = framework.run(lambda x, y: kb.kl(x, y, form="counts"), x.astype(np.float64), y.astype(np.float32))
    assert found.dtype == wide
    for function in (lambda x, y: kb.entropy(x, form="counts"), lambda x, y: kb.js(x, y, form="counts"), kb.kl_div):
        assert framework.run(function, x.astype(np.float32), y.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow", "tinygrad"])
def test_every_integer_type_holds_counts(name):
    framework = BY_NAME[name]
    for given in (np.int8, np.int16, np.uint16, np.uint32, np.uint64):
        x, y = np.array([1, 0, 1]).astype(given), np.array([1, 1, 1]).astype(given)
        close(framework.run(lambda x, y: kb.kl(x, y, form="counts"), x, y), math.log(1.5), np.float32)


@on_fast
def test_the_result_is_of_the_same_kind(framework):
    p, q = np.array([[0.5, 0.5]], np.float32), np.array([[0.25, 0.75]], np.float32)
    with double(framework):
        given = framework.array(p)
        found = framework.transform(lambda p, q: kb.kl(p, q))(given, framework.array(q))
    assert type(found) is type(given)
    assert found.dtype == given.dtype
    assert getattr(found, "device", None) == getattr(given, "device", None)


NATIVE = {
    "numpy": lambda: (np.asarray, np.float32, (np.ndarray, np.float32)),
    "torch": lambda: (torch.tensor, torch.float32, torch.Tensor),
    "jax": lambda: (jnp.asarray, jnp.float32, jax.Array),
    "tensorflow": lambda: (tf.convert_to_tensor, tf.float32, tf.Tensor),
    "tinygrad": lambda: (tinygrad.Tensor, tinygrad.dtypes.float32, tinygrad.Tensor),
    "array-api-strict": lambda: (array_api_strict.asarray, array_api_strict.float32, type(array_api_strict.asarray(0.0))),
}


@pytest.mark.parametrize("name", NATIVE)
def test_lists_numpy_arrays_and_numbers_join_the_tensor(name):
    make, float32, kind = NATIVE[name]()
    tensor = make(np.array([[0.5, 0.5], [1.0, 0.0]], np.float32))
    truth = [math.log(4 / 3) / 2, math.log(4)]
    others = [[0.25, 0.75], (0.25, 0.75), np.array([0.25, 0.75], np.float32)]
    if name != "numpy":  # beside another framework NumPy's float64 has no say
        others.append(np.array([0.25, 0.75]))
    if name == "tinygrad":  # seconds a call
        others = others[-1:]
    for other in others:
        found = kb.kl(tensor, other)
        assert isinstance(found, kind)
        assert found.dtype == float32
        close(BY_NAME[name].numpy(found), truth, np.float32)
        reverse = kb.kl(other, tensor)
        assert isinstance(reverse, kind)
        assert reverse.dtype == float32
        assert BY_NAME[name].numpy(reverse)[1] == math.inf
    for weights in (np.array([2.0, 1.0]), [2, 1], [2.0, 1.0])[: 1 if name == "tinygrad" else 3]:
        found = kb.kl(tensor, others[0], weights=weights)
        assert isinstance(found, kind)
        assert found.dtype == float32
        close(BY_NAME[name].numpy(found), [2 * truth[0], truth[1]], np.float32)
    found = kb.kl([[0.0, 0.0]], [[0.0, 1.0]], form="logits", temperature=make(np.array([2.0], np.float32)))
    assert isinstance(found, kind)


def test_lists_alone_are_numpy_float64():
    found = kb.kl([[0.5, 0.5]], [[0.25, 0.75]])
    assert type(found) is np.ndarray
    assert found.dtype == np.float64
    assert isinstance(kb.kl([0.5, 0.5], (0.25, 0.75)), np.float64)
    assert isinstance(kb.kl(np.array([0.5, 0.5], np.float32), [0.25, 0.75]), np.float32), "a list takes the array's dtype"


@on_eager
def test_no_rows(framework):
    p = np.zeros((0, 3), np.float32)
    assert framework.run(kb.kl, p, p).shape == (0,)
    assert framework.run(lambda p, q: kb.kl(p, q, reduction="sum"), p, p) == 0


@on_eager
def test_options_may_be_numpy_numbers(framework):
    p, q = np.array([[1.0, 0.0]], np.float32), np.array([[0.5, 0.5]], np.float32)
    close(framework.run(lambda p, q: kb.kl(p, q, base=np.int64(2)), p, q), [1.0], np.float32)
    close(framework.run(lambda p, q: kb.renyi(p, q, order=np.float32(2), base=np.float32(2)), p, q), [1.0], np.float32)
    close(framework.run(lambda p, q: kb.js(p, q, mix=np.float32(0.5)), p, q), [oracle.js(p[0], q[0])], np.float32)
    close(
        framework.run(lambda p, q: kb.kl(p, q, prior=np.float32(0.5), form="counts"), p, q),
        [oracle.kl(p[0] + 0.5, q[0] + 0.5).value],
        np.float32,
    )

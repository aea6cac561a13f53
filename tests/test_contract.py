"""The rules of the array contract, one by one: forms, zeros, NaN, axes, broadcasting, reductions, weights, temperature, prior, dtypes.

Truth is mpmath, SciPy or a number worked out by hand. How exact results are is `test_exactness`'s business; bounds here come from there.
What a compiler may change runs on every framework, several results behind one compiled function; what is decided before an array
is touched runs on the eager ones.
"""

from __future__ import annotations

import contextlib
import math

import array_api_strict
import jax
import jax.numpy as jnp
import ml_dtypes
import mpmath as mp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import scipy.stats
import tensorflow as tf
import tinygrad
import torch

import kullback as kb
import oracle
from frameworks import ALL
from oracle import GRADIENT_BOUND, VALUE_BOUND

BY_NAME = {f.name: f for f in ALL}
# tinygrad compiles each new shape for seconds, so that it and the compilers run where they could make a difference.
EAGER = [f for f in ALL if not f.compiled and f.name != "tinygrad"]
SLOW = ("torch-compiled", "tinygrad", "tinygrad-jit")
on_fast = pytest.mark.parametrize("framework", [f for f in ALL if f.name not in SLOW], ids=repr)
on_eager = pytest.mark.parametrize("framework", EAGER, ids=repr)
on_eager_gradients = pytest.mark.parametrize("framework", [f for f in EAGER if f.differentiable], ids=repr)

ORDERS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, math.inf)
K = 4


def double(framework):
    """JAX's float64 is a switch, which must be on while arrays are made and while the function runs."""
    return jax.enable_x64(True) if framework.name == "jax-jit-x64" else contextlib.nullcontext()


def compute(framework, function, *arrays):
    """What a function that returns a list returns, in NumPy."""
    with double(framework):
        return [framework.numpy(x) for x in framework.transform(function)(*map(framework.array, arrays))]


def run_half(framework, function, *arrays):
    """tinygrad does not take NumPy's bfloat16: cast there."""
    if framework.name == "tinygrad" and arrays[0].dtype == ml_dtypes.bfloat16:
        return framework.run(lambda *xs: function(*(x.cast(tinygrad.dtypes.bfloat16) for x in xs)), *(a.astype(np.float32) for a in arrays))
    return framework.run(function, *arrays)


def widest(framework):
    return np.float64 if framework.double else np.float32


def close(found, truth, dtype, scale=1.0):
    """Within the bound of the contract for values; `scale` multiplies it where several such values are combined. Below 1e-40 the oracle
    itself, at 50 digits, rounds."""
    np.testing.assert_allclose(found, truth, rtol=scale * VALUE_BOUND[dtype], atol=1e-40)


def rows_of(function, *arrays):
    """A function of single rows over the broadcast batch."""
    arrays = np.broadcast_arrays(*arrays)
    return np.array([function(*(a[i] for a in arrays)) for i in np.ndindex(arrays[0].shape[:-1])]).reshape(arrays[0].shape[:-1])


def probabilities(rng, *shape):
    return rng.dirichlet(np.full(shape[-1], 1.5), shape[:-1])


# --- what each function is ---


def test_kl_of_the_textbook_example():
    # Wikipedia's: P = Binomial(2, 0.4), Q uniform.
    p, q = [9 / 25, 12 / 25, 4 / 25], [1 / 3] * 3
    assert kb.kl(p, q) == pytest.approx((32 * math.log(2) + 55 * math.log(3) - 50 * math.log(5)) / 25, rel=1e-12)
    assert kb.kl(q, p) == pytest.approx((-4 * math.log(2) - 6 * math.log(3) + 6 * math.log(5)) / 3, rel=1e-12)
    assert kb.kl(p, q) == pytest.approx(scipy.stats.entropy(p, q), rel=1e-12)
    assert kb.relative_entropy is kb.kl


@on_fast
def test_policy_and_reference(framework):
    """Published: pi = softmax(0, 1, 2), ref = softmax(1, 0, 0), values to ten digits and gradients to eight."""
    policy, reference = np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0])
    dtype = widest(framework)
    both = framework.run(
        lambda a, b: kb.kl(a, b, form="logits"), np.stack([policy, reference]).astype(dtype), np.stack([reference, policy]).astype(dtype)
    )
    # Half a unit in the tenth digit, and the rounding of float32.
    np.testing.assert_allclose(both, [0.6290185589, 0.7964534624], rtol=1e-10 + (dtype is np.float32) * VALUE_BOUND[np.float32])


@on_eager_gradients
def test_policy_gradients(framework):
    policy, reference = np.array([0.0, 1.0, 2.0], np.float32), np.array([1.0, 0.0, 0.0], np.float32)
    to_policy, _ = framework.gradients(lambda a, b: kb.kl(a, b, form="logits"), policy, reference)
    _, to_policy_reversed = framework.gradients(lambda a, b: kb.kl(a, b, form="logits"), reference, policy)
    # float32 on numbers of size 0.5, and half a unit in the eighth digit.
    np.testing.assert_allclose(to_policy, [-0.22374216, -0.11873731, 0.34247948], atol=2e-7)
    np.testing.assert_allclose(to_policy_reversed, [-0.48608631, 0.03278691, 0.45329940], atol=2e-7)


def test_every_function(framework, rng):
    p, q = probabilities(rng, 3, K), probabilities(rng, 3, K)
    p[1, 2] = 0  # P lacks a category
    p[1] /= p[1].sum()
    q[2] = p[2]  # equal
    p, q = p.astype(np.float32), q.astype(np.float32)

    def every(p, q):
        return [kb.kl(p, q), kb.cross_entropy(p, q), kb.entropy(p), kb.js(p, q, mix=0.3), kb.jeffreys(p, q), kb.renyi(p, q, order=2.0)]

    kl, cross_entropy, entropy, js, jeffreys, renyi = found = compute(framework, every, p, q)
    for x in found:
        assert x.dtype == np.float32
        assert x.shape == (3,)
    truth = rows_of(lambda x, y: oracle.kl(x, y).value, p[:2], q[:2])
    close(kl[:2], truth, np.float32)
    close(entropy, rows_of(oracle.entropy, p), np.float32)
    close(cross_entropy[:2], rows_of(oracle.entropy, p[:2]) + truth, np.float32)
    close(cross_entropy[2], entropy[2], np.float32)
    close(js[:2], rows_of(lambda x, y: oracle.js(x, y, mix=0.3), p[:2], q[:2]), np.float32)
    close(jeffreys, [oracle.jeffreys(p[0], q[0]), math.inf, 0], np.float32)
    close(renyi[:2], rows_of(lambda x, y: oracle.renyi(x, y, 2.0), p[:2], q[:2]), np.float32)
    for x in (kl, js, jeffreys, renyi):
        assert x[2] == 0, "equal inputs give exactly 0"


FORMS = {
    "probs": lambda p: p,
    "log_probs": np.log,
    "logits": lambda p: np.log(p) + 7.0,
    "counts": lambda p: p * 250.0,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "framework", [BY_NAME[n] for n in ("numpy", "array-api-strict", "torch", "jax-jit-x64", "tensorflow-xla")], ids=repr
)
def test_every_form_of_every_function(framework, form, rng):
    x, y = (FORMS[form](probabilities(rng, 2, K)) for _ in range(2))

    def every(x, y):
        return [
            kb.kl(x, y, form=form), kb.entropy(x, form=form), kb.cross_entropy(x, y, form=form), kb.js(x, y, form=form),
            kb.jeffreys(x, y, form=form), kb.renyi(x, y, order=0.5, form=form),
        ]  # fmt: skip

    truths = (
        lambda x, y: oracle.kl(x, y, form).value,
        lambda x, y: oracle.entropy(x, form),
        lambda x, y: oracle.kl(x, y, form).value + oracle.entropy(x, form),
        lambda x, y: oracle.js(x, y, form),
        lambda x, y: oracle.jeffreys(x, y, form),
        lambda x, y: oracle.renyi(x, y, 0.5, form),
    )
    for found, truth in zip(compute(framework, every, x, y), truths):
        close(found, rows_of(truth, x, y), np.float64)


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_every_pair_of_forms(first, second, rng):
    x, y = FORMS[first](probabilities(rng, K)), FORMS[second](probabilities(rng, K))
    close(kb.kl(x, y, form=(first, second)), oracle.kl(x, y, (first, second)).value, np.float64)
    close(kb.kl(x, y, form=[first, second]), oracle.kl(x, y, (first, second)).value, np.float64)


@on_eager
def test_js_is_the_square_of_scipys_distance(framework, rng):
    p, q = probabilities(rng, 5, K), probabilities(rng, 5, K)
    dtype = widest(framework)
    found = framework.run(lambda p, q: kb.js(p, q, base=2), p.astype(dtype), q.astype(dtype))
    np.testing.assert_allclose(np.sqrt(found), scipy.spatial.distance.jensenshannon(p, q, 2, axis=-1), rtol=2 * VALUE_BOUND[dtype])
    # Disjoint supports: one bit; and the entropy of (1 - mix, mix) in general.
    one, other = framework.array(np.array([1.0, 0.0], dtype)), framework.array(np.array([0.0, 1.0], dtype))
    close(framework.numpy(kb.js(one, other, base=2)), 1.0, dtype)
    close(framework.numpy(kb.js(one, other, mix=0.25)), oracle.entropy(np.array([0.75, 0.25])), dtype)
    # mix is the weight of Q.
    close(
        framework.numpy(kb.js(p[0].astype(dtype), framework.array(q[0].astype(dtype)), mix=0.1)),
        oracle.js(p[0].astype(dtype), q[0].astype(dtype), mix=0.1),
        dtype,
    )


def _renyi_rows(dtype):
    near = np.array([0.1, 0.2, 0.3, 0.4]) * (1 + 1e-3 * np.array([1.0, -1.0, 0.5, -0.2]))
    rows = [
        ([0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.2]),
        ([0.1, 0.2, 0.3, 0.4], near / near.sum()),
        ([0.0, 0.5, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]),
        ([0.25, 0.25, 0.25, 0.25], [0.0, 0.5, 0.25, 0.25]),
        ([0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]),
        ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]),
        ([0.97, 0.01, 0.01, 0.01], [1e-9, 1e-9, 0.5, 0.5 - 2e-9]),
    ]
    return tuple(np.array(side, dtype) for side in zip(*rows))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("framework", [f for f in ALL if f.name not in (*SLOW, "tensorflow-function", "jax")], ids=repr)
def test_renyi(framework, order):
    dtype = widest(framework)
    p, q = _renyi_rows(dtype)
    with np.errstate(divide="ignore"):
        a, b = np.log(p) + 3, np.log(q) - 2
    from_probs, from_logits = compute(
        framework, lambda p, q, a, b: [kb.renyi(p, q, order=order), kb.renyi(a, b, order=order, form="logits")], p, q, a, b
    )
    close(from_probs, rows_of(lambda x, y: oracle.renyi(x, y, order), p, q), dtype)
    truth = rows_of(lambda x, y: oracle.renyi(x, y, order, "logits"), a, b)
    close(from_logits, truth, dtype)


@pytest.mark.parametrize("order", [0.2])
@pytest.mark.parametrize("framework", [f for f in ALL if f.name in ("torch-compiled", "tinygrad")], ids=repr)
def test_renyi_where_compiling_is_slow(framework, order):
    p, q = _renyi_rows(np.float32)
    found = framework.run(lambda p, q: kb.renyi(p, q, order=order), p, q)
    close(found, rows_of(lambda x, y: oracle.renyi(x, y, order), p, q), np.float32)


@on_eager
@pytest.mark.parametrize("order", [2.0, 5.0, math.inf])
def test_renyi_sees_ratios_of_probabilities_too_small_for_the_dtype(framework, order):
    a, b = np.array([0.0, -200.0], np.float32), np.array([0.0, -400.0], np.float32)
    close(framework.run(lambda a, b: kb.renyi(a, b, order=order, form="logits"), a, b), oracle.renyi(a, b, order, "logits"), np.float32)


def test_renyi_of_order_one_is_kl_and_order_grows(rng):
    p, q = probabilities(rng, 20, K), probabilities(rng, 20, K)
    found = np.stack([kb.renyi(p, q, order=order) for order in ORDERS])
    assert (np.diff(found, axis=0) >= 0).all(), "Rényi divergence grows with its order"
    close(found[ORDERS.index(1.0)], rows_of(lambda x, y: oracle.kl(x, y).value, p, q), np.float64)


ELEMENTS = np.array([0.0, 1e-30, 0.1, 0.5, 1.0, 3.0, 1e3, -1.0, np.nan])


def test_elementwise_terms_are_scipys(framework):
    dtype = widest(framework)
    x, y = np.meshgrid(ELEMENTS.astype(dtype), ELEMENTS.astype(dtype))
    rel_entr, kl_div = compute(framework, lambda x, y: [kb.rel_entr(x, y), kb.kl_div(x, y)], x, y)
    assert rel_entr.dtype == kl_div.dtype == dtype
    close(rel_entr, scipy.special.rel_entr(x.astype(np.float64), y), dtype)
    # SciPy's kl_div on float64 is exact enough here: x and y are equal or far from each other.
    close(kl_div, scipy.special.kl_div(x.astype(np.float64), y), dtype)


@on_eager
def test_elementwise_terms_where_scipy_is_wrong(framework):
    dtype = widest(framework)
    x = np.array([1.0, 0.3, 0.3], dtype)
    # TensorFlow flushes subnormal numbers to zero, where the answer is inf indeed.
    tiny = 1e-37 if dtype is np.float32 else 1e-307 if framework.name == "tensorflow" else 1e-310
    y = np.array([tiny, 0.3 * (1 + 1e-6), 0.3 * (1 - 1e-6)], dtype)
    truth = [float(a * mp.log(a / b) - a + b) for a, b in zip(oracle.exact(x), oracle.exact(y))]
    if tiny == 1e-310:
        assert truth[0] == pytest.approx(712.8013788281542)
        assert scipy.special.kl_div(x, y)[0] == math.inf
    found = framework.run(kb.kl_div, x, y)
    close(found, truth, dtype)
    np.testing.assert_allclose(
        framework.run(kb.rel_entr, x, y),
        [float(a * mp.log(a / b)) for a, b in zip(oracle.exact(x), oracle.exact(y))],
        rtol=VALUE_BOUND[dtype],
    )


@on_eager
def test_elementwise_terms_broadcast_and_take_numbers(framework):
    x, y = np.array([[0.5], [0.25]], np.float32), np.array([0.5, 0.125, 1.0], np.float32)
    assert framework.run(kb.rel_entr, x, y).shape == (2, 3)
    close(framework.run(lambda y: kb.kl_div(0.5, y), y), scipy.special.kl_div(0.5, y.astype(np.float64)), np.float32)
    close(framework.run(lambda y: kb.rel_entr(y, [1, 2, 4]), y), scipy.special.rel_entr(y.astype(np.float64), [1, 2, 4]), np.float32)


# --- zeros and NaN ---


@pytest.mark.parametrize("framework", [f for f in ALL if f.name != "torch-compiled"], ids=repr)  # that one in test_errors
def test_zeros_and_nan_in_probabilities(framework):
    nan, inf, ln2 = math.nan, math.inf, math.log(2)
    rows = [
        ([0.0, 0.5, 0.5], [0.5, 0.25, 0.25], ln2),  # p = 0 adds nothing
        ([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], inf),  # q = 0 < p
        ([0.5, 0.5, 0.0], [0.25, 0.75, 0.0], math.log(4 / 3) / 2),  # both 0
        ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], inf),  # disjoint
        ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], 0.0),
        ([nan, 0.5, 0.5], [0.5, 0.25, 0.25], nan),
        ([0.5, 0.5, 0.0], [0.5, 0.5, nan], nan),  # at p = 0
        ([0.5, 0.5, 0.0], [0.0, nan, 0.5], nan),  # beside inf
        ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5], ln2 / 4),
    ]
    dtype = widest(framework)
    p, q = (np.array([row[i] for row in rows], dtype) for i in (0, 1))
    close(framework.run(kb.kl, p, q), [row[2] for row in rows], dtype)


def test_zeros_and_nan_in_logits(framework):
    nan, inf, ln2 = math.nan, math.inf, math.log(2)
    e = math.e
    rows = [
        ([-inf, 0.0, 0.0], [ln2, 0.0, 0.0], ln2),
        ([0.0, 0.0, -inf], [0.0, -inf, -inf], inf),
        ([0.0, 0.0, -inf], [0.0, math.log(3), -inf], math.log(4 / 3) / 2),
        ([0.0, -inf, -inf], [-inf, -inf, 0.0], inf),
        ([nan, 0.0, 0.0], [0.0, 0.0, 0.0], nan),
        ([0.0, 0.0, -inf], [0.0, 0.0, nan], nan),
        ([0.0, 0.0, -inf], [-inf, nan, 0.0], nan),
        ([0.0, 1.0, -1e9], [1.0, 0.0, -1e9], (e - 1) / (e + 1)),  # a mask that is not -inf: p = (1, e)/(1 + e), q the reverse
        ([0.0, 0.0, -1e9], [0.0, 0.0, 0.0], math.log(1.5)),
        ([0.0, 0.0, 0.0], [0.0, 0.0, -3e4], 1e4 - math.log(1.5)),  # far, but no inf
    ]
    dtype = widest(framework)
    a, b = (np.array([row[i] for row in rows], dtype) for i in (0, 1))
    close(framework.run(lambda a, b: kb.kl(a, b, form="logits"), a, b), [row[2] for row in rows], dtype)


@on_eager
@pytest.mark.parametrize("form", ["log_probs", "counts"])
def test_zeros_in_other_forms(framework, form):
    p, q = np.array([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0]]), np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        x, y = (np.log(z) if form == "log_probs" else 8 * z for z in (p, q))
    close(
        framework.run(lambda x, y: kb.kl(x, y, form=form), x.astype(np.float32), y.astype(np.float32)), [math.log(2), math.inf], np.float32
    )


@on_eager
@pytest.mark.parametrize("name", ["entropy", "cross_entropy", "js", "jeffreys", "renyi"])
def test_nan_stays_in_its_row(framework, name):
    options = {"order": 0.5} if name == "renyi" else {}
    function = getattr(kb, name)
    p = np.array([[0.5, 0.5], [math.nan, 0.5], [0.0, 1.0], [0.5, 0.5]], np.float32)
    q = np.array([[0.25, 0.75], [0.5, 0.5], [0.0, 1.0], [0.5, math.nan]], np.float32)
    arguments = (p,) if name == "entropy" else (p, q)
    found = framework.run(lambda *xs: function(*xs, **options), *arguments)
    np.testing.assert_array_equal(np.isnan(found), [False, True, False, name != "entropy"])


@on_eager
def test_entropy_and_cross_entropy_of_zeros(framework):
    p, q = np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), np.array([[0.5, 0.5], [1.0, 0.0]], np.float32)
    close(framework.run(lambda p: kb.entropy(p, base=2), p), [0, 1], np.float32)
    close(framework.run(lambda p, q: kb.cross_entropy(p, q, base=2), p, q), [1, math.inf], np.float32)


@on_eager
def test_entropy_near_certainty(framework):
    """-(1 - e) log(1 - e) - e log e, whose first term a naive 1 - e would lose."""
    dtype = widest(framework)
    p = np.array([[1.0, 1e-6], [1.0, 1e-10], [1.0, 1e-30]], dtype)
    close(framework.run(kb.entropy, p), rows_of(oracle.entropy, p), dtype)
    a = np.array([[0.0, -12.0], [0.0, -40.0], [50.0, -20.0]], dtype)
    close(framework.run(lambda a: kb.entropy(a, form="logits"), a), rows_of(lambda x: oracle.entropy(x, "logits"), a), dtype)


@on_eager
def test_never_negative(framework, rng):
    p = probabilities(rng, 3000, 7)
    step = 10.0 ** rng.uniform(-9, -2, (3000, 1))
    q = p * np.exp(step * rng.normal(size=p.shape))
    q /= q.sum(1, keepdims=True)
    p, q = p.astype(np.float32), q.astype(np.float32)
    a, b = np.log(p), np.log(q) + 30
    for name, options in (("kl", {}), ("js", {}), ("jeffreys", {}), ("renyi", {"order": 0.5}), ("renyi", {"order": 3.0})):
        function = getattr(kb, name)
        assert (framework.run(lambda x, y, f=function, o=options: f(x, y, **o), p, q) >= 0).all(), (name, "probs")
        assert (framework.run(lambda x, y, f=function, o=options: f(x, y, form="logits", **o), a, b) >= 0).all(), (name, "logits")
    assert (framework.run(kb.kl_div, p, q) >= 0).all()


@on_eager
def test_kl_is_cross_entropy_less_entropy(framework, rng):
    dtype = widest(framework)
    p, q = (probabilities(rng, 50, 7).astype(dtype) for _ in range(2))
    kl, cross, entropy = (framework.run(f, p, q) for f in (kb.kl, kb.cross_entropy, lambda p, q: kb.entropy(p)))
    # Rounding of the larger terms.
    np.testing.assert_allclose(cross - entropy, kl, atol=4 * np.finfo(dtype).eps * cross.max(), rtol=0)


@on_eager
@pytest.mark.parametrize("form", FORMS)
def test_equal_inputs_give_exactly_zero(framework, form, rng):
    x = FORMS[form](probabilities(rng, 40, 7)).astype(np.float32)
    for f in (kb.kl, kb.js, kb.jeffreys, *(lambda x, y, o=o, **kw: kb.renyi(x, y, order=o, **kw) for o in (0.2, 2.0))):
        assert not framework.run(lambda x, y, f=f: f(x, y, form=form), x, x).any()


def test_inputs_are_normalised(rng):
    """Sums off by less than 1e-3, and any sum for counts and logits: the divergence of the normalised pair."""
    p, q = probabilities(rng, K), probabilities(rng, K)
    truth = oracle.kl(p, q).value
    close(kb.kl(p * 1.0009, q * 0.9992), truth, np.float64)
    close(kb.kl(p * 1e6, q * 3, form="counts"), truth, np.float64)
    close(kb.kl(p * 1e6, q * 3, check=False), truth, np.float64)
    close(kb.kl(np.log(p) + 40, np.log(q) - 7, form="logits"), truth, np.float64)


# --- unit, axes, shapes ---


@on_eager
def test_base(framework):
    p, q = np.array([[1.0, 0.0]], np.float32), np.array([[0.5, 0.5]], np.float32)
    for base, one in ((2, 1.0), (None, math.log(2)), (10, math.log10(2)), (4.0, 0.5)):
        close(framework.run(lambda p, q, base=base: kb.kl(p, q, base=base), p, q), [one], np.float32)
        close(framework.run(lambda q, base=base: kb.entropy(q, base=base), q), [one], np.float32)
        close(framework.run(lambda p, q, base=base: kb.cross_entropy(p, q, base=base), p, q), [one], np.float32)
        close(framework.run(lambda p, q, base=base: kb.renyi(p, q, order=2.0, base=base), p, q), [one], np.float32)
    close(framework.run(lambda p, q: kb.kl(p, q, base=2, reduction="mean"), p, q), 1.0, np.float32)


@on_eager
@pytest.mark.parametrize(
    ("axis", "moved"),
    [
        (-1, (0, 1, 2)), (2, (0, 1, 2)), (0, (1, 2, 0)), (-2, (0, 2, 1)),
        ((0, 2), (1, 0, 2)), ((-1, 0), (1, 0, 2)), ([1, 2], (0, 1, 2)), ((0, 1, 2), (0, 1, 2)),
    ],
    ids=str,
)  # fmt: skip
def test_axis(framework, axis, moved, rng):
    x, y = rng.gamma(2.0, size=(2, 3, 4)).astype(np.float32), rng.gamma(2.0, size=(2, 3, 4)).astype(np.float32)
    if framework.name == "jax" and axis not in (0, (-1, 0)):
        pytest.skip("compiles every operation for every shape, seconds each; jax-jit covers it")
    count = len(axis) if not isinstance(axis, int) else 1
    flat = [z.transpose(moved).reshape(*(z.shape[i] for i in moved[: 3 - count]), -1) for z in (x, y)]
    kept = [1 if i in moved[3 - count :] else n for i, n in enumerate(x.shape)]
    pairs = (
        (kb.kl, lambda x, y: oracle.kl(x, y).value),
        (kb.js, oracle.js),
        (lambda x, y, **kw: kb.entropy(x, **kw), lambda x, y: oracle.entropy(x)),
        (kb.cross_entropy, lambda x, y: oracle.kl(x, y).value + oracle.entropy(x)),
    )
    for function, truth in pairs:
        expected = rows_of(truth, *flat)
        found = framework.run(lambda x, y, f=function: f(x, y, axis=axis, form="counts"), x, y)
        assert found.shape == expected.shape
        close(found, expected, np.float32)
        found = framework.run(lambda x, y, f=function: f(x, y, axis=axis, form="counts", keepdims=True), x, y)
        assert found.shape == tuple(kept)
        close(found.reshape(expected.shape), expected, np.float32)


def test_batch_broadcasting_weights_and_reductions(framework, rng):
    """(3, 1, K) against (4, K), weights over the last batch axis and over both; batchmean divides by 3, whatever the weights."""
    p, q = probabilities(rng, 3, 1, K).astype(np.float32), probabilities(rng, 4, K).astype(np.float32)
    truth = rows_of(lambda x, y: oracle.kl(x, y).value, p, q)
    p[1] = math.nan  # weight 0
    fractional = np.array([[0.5], [0.0], [2.0]], np.float32)
    last = np.array([1, 0, 1, 1])

    def every(p, q, w):
        return [kb.kl(p, q, weights=w), kb.kl(p, q, weights=w, reduction="batchmean")]

    none, batchmean = compute(framework, every, p, q, fractional)
    assert none.shape == (3, 4)
    assert none.dtype == batchmean.dtype == np.float32
    assert batchmean.shape == ()
    weighted = fractional * truth
    close(none, weighted, np.float32)
    close(batchmean, weighted.sum() / 3, np.float32, scale=2)
    if framework in EAGER:
        found = framework.run(lambda p, q, w: kb.kl(p, q, weights=w, reduction="mean"), p, q, fractional)
        close(found, weighted.sum() / (4 * fractional.sum()), np.float32, scale=2)
        p[1] = p[0]
        truth[1] = truth[0]
        plain = [framework.run(lambda p, q, r=r: kb.kl(p, q, reduction=r), p, q) for r in ("none", "sum", "mean", "batchmean")]
        for found, expected in zip(plain, (truth, truth.sum(), truth.mean(), truth.sum() / 3)):
            close(found, expected, np.float32, scale=2)
        found = framework.run(lambda p, q, w: kb.kl(p, q, weights=w, reduction="mean"), p, q, last)
        close(found, (truth * last).sum() / (3 * 3), np.float32, scale=2)


@on_eager
def test_reductions_of_one_distribution(framework, rng):
    p, q = probabilities(rng, K).astype(np.float32), probabilities(rng, K).astype(np.float32)
    truth = oracle.kl(p, q).value
    for reduction in ("none", "sum", "mean", "batchmean"):
        found = framework.run(lambda p, q, r=reduction: kb.kl(p, q, reduction=r), p, q)
        assert found.shape == ()
        close(found, truth, np.float32)
        # A single weight: the mean does not see it, the others multiply.
        found = framework.run(lambda p, q, r=reduction: kb.kl(p, q, reduction=r, weights=0.5), p, q)
        close(found, truth if reduction == "mean" else truth / 2, np.float32)
    assert framework.run(lambda p, q: kb.kl(p, q, keepdims=True), p, q).shape == (1,)


@on_eager
@pytest.mark.parametrize("name", ["kl", "entropy", "cross_entropy", "js", "jeffreys", "renyi"])
def test_reductions_and_weights_of_every_function(framework, name, rng):
    function = getattr(kb, name)
    options = {"order": 0.5} if name == "renyi" else {}
    p, q = probabilities(rng, 3, K).astype(np.float32), probabilities(rng, 3, K).astype(np.float32)
    arrays = (p,) if name == "entropy" else (p, q)
    rows = framework.run(lambda *xs: function(*xs, **options), *arrays).astype(np.float64)
    w = np.array([0.5, 0.0, 3.0])
    for array in arrays:
        array[1] = [math.nan, math.inf, -math.inf, -5]
    expected = {"none": w * rows, "sum": w @ rows, "mean": w @ rows / 3.5, "batchmean": w @ rows / 3}
    for reduction, truth in expected.items():
        found = framework.run(lambda *xs, r=reduction: function(*xs, weights=w.tolist(), reduction=r, **options), *arrays)
        close(found, truth, np.float32)
        zero = framework.run(lambda *xs, r=reduction: function(*xs, weights=[0, 0, 0], reduction=r, **options), *arrays)
        assert not zero.any(), "all weights zero: 0"
        assert zero.shape == found.shape


# --- weights and temperature, with gradients ---


def _kl_mpf(temperature, a, b):
    def logs(row):
        scaled = [mp.mpf(float(v)) / temperature for v in row]
        total = mp.log(mp.fsum(mp.exp(v) for v in scaled))
        return [v - total for v in scaled]

    return oracle.kl_mpf(logs(a), logs(b))


def test_gradients_under_weights_and_a_learnable_temperature(differentiable, rng):
    a, b = rng.normal(size=(4, K)).astype(np.float32), rng.normal(size=(4, K)).astype(np.float32)
    t, w = np.array([0.5, 1.0, 1.0, 3.0], np.float32), np.array([1.0, 0.0, 0.0, 0.5], np.float32)
    a[1], b[1] = math.nan, math.inf
    a[2], b[2] = -math.inf, [math.inf, -math.inf, math.nan, 0]
    used = [0, 3]
    share = w / w.sum()

    def loss(a, b, t):
        return kb.kl(a, b, form="logits", temperature=t, weights=w, reduction="mean")

    to_a, to_b, to_t = differentiable.gradients(loss, a, b, t)
    for row in (1, 2):
        assert not to_a[row].any()
        assert not to_b[row].any()
        assert to_t[row] == 0
    for row in used:
        truth = oracle.kl(a[row], b[row], "logits", temperature=float(t[row]))
        np.testing.assert_allclose(to_a[row], share[row] * truth.to_x, atol=GRADIENT_BOUND[np.float32] * np.abs(truth.to_x).max())
        np.testing.assert_allclose(to_b[row], share[row] * truth.to_y, atol=GRADIENT_BOUND[np.float32] * np.abs(truth.to_y).max())
        slope = oracle.central_difference(lambda v, row=row: _kl_mpf(v[0], a[row], b[row]), t[row : row + 1])[0]
        assert to_t[row] == pytest.approx(share[row] * slope, rel=GRADIENT_BOUND[np.float32])


@on_eager_gradients
@pytest.mark.parametrize("form", ["probs", "logits"])
@pytest.mark.parametrize("name", ["kl", "cross_entropy", "js", "jeffreys", "renyi"])
def test_gradients_are_zero_where_the_weight_is(framework, form, name, rng):
    options = {"order": 2.0} if name == "renyi" else {}
    function = getattr(kb, name)
    p, q = probabilities(rng, 3, K).astype(np.float32), probabilities(rng, 3, K).astype(np.float32)
    if form == "logits":
        p, q = np.log(p), np.log(q)
    clean = framework.gradients(lambda p, q: function(p, q, form=form, **options), p, q)
    p[1], q[1] = [math.nan, math.inf, -math.inf, -5], math.nan
    for w in ([2.0, 0.0, 1.0], [0.0, 0.0, 0.0]):
        for found, full in zip(framework.gradients(lambda p, q, w=w: function(p, q, form=form, weights=w, **options), p, q), clean):
            np.testing.assert_allclose(found, np.array(w)[:, None] * full, rtol=GRADIENT_BOUND[np.float32])
        assert np.isfinite(
            framework.gradients(lambda p, q, w=w: function(p, q, form=form, weights=w, reduction="mean", **options), p, q)
        ).all()


@on_eager_gradients
def test_gradient_to_weights_is_the_divergence(framework, rng):
    p, q = probabilities(rng, 3, K).astype(np.float32), probabilities(rng, 3, K).astype(np.float32)
    _, _, found = framework.gradients(lambda p, q, w: kb.kl(p, q, weights=w, reduction="sum"), p, q, np.array([1.0, 2.0, 0.5], np.float32))
    close(found, rows_of(lambda x, y: oracle.kl(x, y).value, p, q), np.float32)


@on_eager
@pytest.mark.parametrize("form", ["logits", "log_probs"])
def test_temperature(framework, form, rng):
    """Divides both sides; no T² factor. One number, or one a row; log-probabilities must sum to 1 before, not after."""
    dtype = widest(framework)
    a, b = (np.log(probabilities(rng, 3, K)).astype(dtype) for _ in range(2))
    t = np.array([0.25, 1.0, 4.0], dtype)
    for given, each in ((2.0, [2.0] * 3), (2, [2.0] * 3), (t, t), (t.tolist(), t), (np.float32(2), [2.0] * 3)):
        truth = [oracle.kl(x, y, form, temperature=float(s)).value for x, y, s in zip(a, b, each)]
        close(framework.run(lambda a, b, g=given: kb.kl(a, b, form=form, temperature=g), a, b), truth, dtype)
    assert not np.allclose(truth, 4 * np.array(truth))
    found = framework.run(lambda a, b, t: kb.kl(a, b, form=form, temperature=t), a, b, t)
    close(found, [oracle.kl(x, y, form, temperature=float(s)).value for x, y, s in zip(a, b, t)], dtype)
    scaled = (a / dtype(2), b / dtype(2))
    close(
        framework.run(lambda a: kb.entropy(a, form=form, temperature=2.0), a),
        rows_of(lambda x: oracle.entropy(x, "logits"), scaled[0]),
        dtype,
    )
    close(
        framework.run(lambda a, b: kb.js(a, b, form=form, temperature=2.0), a, b),
        rows_of(lambda x, y: oracle.js(x, y, "logits"), *scaled),
        dtype,
    )
    close(
        framework.run(lambda a, b: kb.cross_entropy(a, b, form=form, temperature=2.0), a, b),
        rows_of(lambda x, y: oracle.kl(x, y, "logits").value + oracle.entropy(x, "logits"), *scaled), dtype,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow", "tinygrad"])
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_temperature_and_weights_are_not_rounded_to_half_precision(name, half):
    framework = BY_NAME[name]
    a, b = np.array([[1.0, 2.0, 3.0]], half), np.array([[0.0, 2.0, 1.0]], half)
    truth = oracle.kl(a[0], b[0], "logits", temperature=0.7).value
    close(run_half(framework, lambda a, b: kb.kl(a, b, form="logits", temperature=0.7), a, b), [truth], np.float32)
    truth = oracle.kl(a[0], b[0], "logits").value
    close(run_half(framework, lambda a, b: kb.kl(a, b, form="logits", weights=[0.1]), a, b), [0.1 * truth], np.float32)


# --- prior ---


@on_eager
def test_prior(framework):
    x, y = np.array([[3.0, 1.0, 0.0]], np.float32), np.array([[0.0, 2.0, 2.0]], np.float32)
    # Counts: half a count each: (3.5, 1.5, 0.5)/5.5 against (0.5, 2.5, 2.5)/5.5.
    by_hand = (3.5 * math.log(7) + 1.5 * math.log(0.6) + 0.5 * math.log(0.2)) / 5.5
    close(framework.run(lambda x, y: kb.kl(x, y, form="counts", prior=0.5), x, y), [by_hand], np.float32)
    # Probabilities: a share of 0.3 of uniform: 0.7 (3/4, 1/4, 0) + 0.1 = (0.625, 0.275, 0.1) against (0.1, 0.45, 0.45).
    by_hand = 0.625 * math.log(6.25) + 0.275 * math.log(0.275 / 0.45) + 0.1 * math.log(0.1 / 0.45)
    close(framework.run(lambda x, y: kb.kl(x, y, prior=0.3), x / 4, y / 4), [by_hand], np.float32)
    mixed = framework.run(lambda x, y: kb.kl(x, y, form=("counts", "probs"), prior=0.5), x, y / 4)
    # (3.5, 1.5, 0.5)/5.5 against 0.5 (0, 1/2, 1/2) + 1/6
    by_hand = sum(p / 5.5 * math.log(p / 5.5 / q) for p, q in zip((3.5, 1.5, 0.5), (1 / 6, 5 / 12, 5 / 12)))
    close(mixed, [by_hand], np.float32)
    assert framework.run(lambda x, y: kb.kl(x, y, form="counts"), x, y)[0] == math.inf, "never by default"
    assert framework.run(lambda x, y: kb.kl(x, y, form="counts", prior=0), x, y)[0] == math.inf
    assert framework.run(lambda x, y: kb.kl(x, y, prior=1), x / 4, y / 4)[0] == 0, "nothing but uniform"
    close(framework.run(lambda x, y: kb.entropy(x, form="counts", prior=2), x, y), [oracle.entropy(x[0] + 2)], np.float32)


@on_eager
def test_prior_over_several_axes_and_empty_counts(framework):
    x = np.array([[[1.0, 0.0], [0.0, 1.0]]], np.float32)
    zero = np.zeros((1, 2, 2), np.float32)
    found = framework.run(lambda x, y: kb.kl(x, y, axis=(1, 2), form="counts", prior=1), x, zero)
    close(found, [oracle.kl(np.array([2.0, 1.0, 1.0, 2.0]), np.ones(4)).value], np.float32)
    found = framework.run(lambda x, y: kb.kl(x / 2, y, axis=(1, 2), prior=0.4), x, zero + np.float32(0.25))
    close(found, [oracle.kl(np.array([0.4, 0.1, 0.1, 0.4]), np.full(4, 0.25)).value], np.float32)


# --- dtypes and kinds of arrays ---


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
    "numpy": (np.asarray, np.float32, (np.ndarray, np.float32)),
    "torch": (torch.tensor, torch.float32, torch.Tensor),
    "jax": (jnp.asarray, jnp.float32, jax.Array),
    "tensorflow": (tf.convert_to_tensor, tf.float32, tf.Tensor),
    "tinygrad": (tinygrad.Tensor, tinygrad.dtypes.float32, tinygrad.Tensor),
    "array-api-strict": (array_api_strict.asarray, array_api_strict.float32, type(array_api_strict.asarray(0.0))),
}


@pytest.mark.parametrize("name", NATIVE)
def test_lists_numpy_arrays_and_numbers_join_the_tensor(name):
    make, float32, kind = NATIVE[name]
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

"""The array contract: what each public function is, in every form, by mpmath, SciPy or numbers worked out by hand."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import scipy.stats

import kullback as kb
import oracle
from contract import (
    BY_NAME,
    FORMS,
    K,
    close,
    compute,
    on_eager,
    on_eager_gradients,
    on_fast,
    probabilities,
    rows_of,
    widest,
    with_inductor,
)
from oracle import VALUE_BOUND

ORDERS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, math.inf)


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


@with_inductor
def test_every_function(framework, rng):
    p, q = probabilities(rng, 3, K), probabilities(rng, 3, K)
    p[1, 2] = 0  # P lacks a category
    p[1] /= p[1].sum()
    q[2] = p[2]  # equal
    p, q = p.astype(np.float32), q.astype(np.float32)

    # Of the Rényi divergence Inductor makes half a minute's code, of exponentials and logarithms that the others have too.
    with_renyi = framework.name != "torch-inductor"

    def every(p, q):
        found = [kb.kl(p, q), kb.cross_entropy(p, q), kb.entropy(p), kb.js(p, q, mix=0.3), kb.jeffreys(p, q)]
        found += [kb.renyi(p, q, order=2.0)] * with_renyi
        return [*found, *(kb.kl(p, q, weights=[0.5, 1.0, 0.0], reduction=how) for how in ("mean", "batchmean"))]

    *found, mean, batchmean = compute(framework, every, p, q)
    kl, cross_entropy, entropy, js, jeffreys, *renyi = found
    for x in found:
        assert x.dtype == np.float32
        assert x.shape == (3,)
    truth = rows_of(lambda x, y: oracle.kl(x, y).value, p[:2], q[:2])
    close(kl[:2], truth, np.float32)
    for value, divisor in ((mean, 1.5), (batchmean, 3.0)):
        close(value, (0.5 * truth[0] + truth[1]) / divisor, np.float32, scale=2)  # of a value, and of their sum
    close(entropy, rows_of(oracle.entropy, p), np.float32)
    close(cross_entropy[:2], rows_of(oracle.entropy, p[:2]) + truth, np.float32)
    close(cross_entropy[2], entropy[2], np.float32)
    close(js[:2], rows_of(lambda x, y: oracle.js(x, y, mix=0.3), p[:2], q[:2]), np.float32)
    close(jeffreys, [oracle.jeffreys(p[0], q[0]), math.inf, 0], np.float32)
    for values in renyi:
        close(values[:2], rows_of(lambda x, y: oracle.renyi(x, y, 2.0), p[:2], q[:2]), np.float32)
    assert len(renyi) == with_renyi
    for x in (kl, js, jeffreys, *renyi):
        assert x[2] == 0, "equal inputs give exactly 0"


# What a form becomes is decided once for all frameworks: the compilers have logits and probabilities elsewhere, and here one other each.
@pytest.mark.parametrize(
    ("framework", "form"),
    [
        *((BY_NAME[name], form) for name in ("numpy", "array-api-strict", "torch") for form in FORMS),
        (BY_NAME["jax-jit-x64"], "log_probs"),
        (BY_NAME["tensorflow-xla"], "counts"),
    ],
    ids=str,
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


@pytest.mark.parametrize(
    ("framework", "order"),
    [
        *((BY_NAME[name], order) for name in ("numpy", "array-api-strict", "torch", "tensorflow") for order in ORDERS),
        # One of each formula: below 1, above, and the limit. (0 and 1 are no formulas of their own but for a sum and KL.)
        *((BY_NAME[name], order) for name in ("jax-jit", "jax-jit-x64", "tensorflow-xla") for order in (0.2, 5.0, math.inf)),
    ],
    ids=str,
)
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


def test_renyi_in_tinygrad():
    """(torch.compile: test_every_function, of order 2, and the cold compilation in test_tracers_torch, below 1.)"""
    framework, order = BY_NAME["tinygrad"], 0.2
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

"""Numbers at the ends of what a dtype holds: masks of large finite logits, orders near 0 and 1, quotients and inverses that overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from mpmath import mp

import kullback as kb
import oracle
from contract import BY_NAME, EAGER, compute, on_eager, widest
from kullback import distributions
from kullback._kernels import comparison
from kullback._ops import torch as torch_ops
from kullback.losses import TopK, _rows, kl_loss, linear_kl, token_terms
from oracle import GRADIENT_BOUND, VALUE_BOUND

# mpmath must hold a mask of -1.8e308 and a logit beside it.
exactly = mp.workdps(350)
ORDERS = (0.3, 2, 10)


def _lowest(dtype):
    return float(np.finfo(dtype).min)


def _masked(dtype):
    """Pairs of rows, and a temperature for each: masks on both sides, on one, in different places, and everywhere."""
    rows = []
    p, q = [1.0, 2.0, 0.5, 0.0], [0.0, 1.0, 1.5, 0.7]
    for mask in (_lowest(dtype), -1e30, -1e9):
        masked_p, masked_q, everywhere = [*p[:3], mask], [*q[:3], mask], [mask] * 4
        pairs = (masked_p, masked_q), (masked_p, q), (p, masked_q), (masked_p, [*q[:2], mask, q[3]]), (everywhere, q), (p, everywhere)
        rows += [(a, b, t) for a, b in pairs for t in (1.0, 0.75, 0.5)]  # the lowest float, divided by less than 1, is none any more
    return tuple(np.array(column, dtype) for column in zip(*rows))


def _log_softmax(row, temperature):
    values = [mp.mpf(float(v)) / mp.mpf(float(temperature)) for v in row]
    total = mp.log(mp.fsum(mp.exp(v) for v in values))
    return [v - total for v in values]


def _mean(p, x):
    return mp.fsum(u * v for u, v in zip(p, x))


def _truths(a, b, temperature):
    """Of two rows of logits: KL, entropy, cross-entropy, JS, Jeffreys and Rényi, by their definitions."""
    a, b = _log_softmax(a, temperature), _log_softmax(b, temperature)
    p, q = ([mp.exp(v) for v in x] for x in (a, b))
    apart = [u - v for u, v in zip(a, b)]
    middle = [mp.log((u + v) / 2) for u, v in zip(p, q)]
    js = (_mean(p, [u - v for u, v in zip(a, middle)]) + _mean(q, [u - v for u, v in zip(b, middle)])) / 2
    renyi = [mp.log(mp.fsum(mp.exp(order * u + (1 - order) * v) for u, v in zip(a, b))) / (order - 1) for order in map(mp.mpf, ORDERS)]
    return [_mean(p, apart), -_mean(p, a), -_mean(p, b), js, _mean(p, apart) - _mean(q, apart), *renyi]


def _quantities(a, b, t):
    options = {"form": "logits", "temperature": t}
    of_both = [f(a, b, **options) for f in (kb.cross_entropy, kb.js, kb.jeffreys)]
    return [
        kb.kl(a, b, **options), kb.entropy(a, **options), *of_both, *(kb.renyi(a, b, order=order, **options) for order in ORDERS)
    ]  # fmt: skip


def _assert_close(found, truth, dtype, what, bound=None):
    largest = mp.mpf(float(np.finfo(dtype).max))
    if abs(truth) >= largest * (1 - mp.mpf("1e-6")):
        assert abs(found) >= 0.999 * float(largest), what
    else:
        assert abs(mp.mpf(float(found)) - truth) <= (bound or VALUE_BOUND[dtype]) * abs(truth), (what, float(found), mp.nstr(truth, 12))


@pytest.mark.parametrize("framework", [*EAGER, BY_NAME["jax-jit"]], ids=repr)
def test_masks_of_large_finite_logits(framework):
    """NaN for KL, entropies and losses; 0.00807 for a Rényi divergence of 1e30."""
    dtype = widest(framework)
    a, b, t = _masked(dtype)
    found = compute(framework, _quantities, a, b, t)
    with exactly:
        for i, row in enumerate(zip(a, b, t)):
            for name, values, truth in zip(("kl", "entropy", "cross_entropy", "js", "jeffreys", *ORDERS), found, _truths(*row)):
                _assert_close(values[i], truth, dtype, (name, *row))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_beside_masks_of_large_finite_logits(dtype):
    a, b, t = _masked(dtype)
    x, y = (torch.tensor(z, requires_grad=True) for z in (a, b))
    value = kb.kl(x, y, form="logits", temperature=torch.tensor(t))
    found = torch.autograd.grad(value.sum(), (x, y))
    with exactly:
        for i, row in enumerate(zip(a, b, t)):
            log_p, log_q = (_log_softmax(z, t[i]) for z in row[:2])
            p, q = ([mp.exp(v) for v in z] for z in (log_p, log_q))
            apart = [u - v for u, v in zip(log_p, log_q)]
            truths = [u * (v - _mean(p, apart)) / t[i] for u, v in zip(p, apart)], [(v - u) / t[i] for u, v in zip(p, q)]
            if max(abs(v) for v in truths[0]) > float(np.finfo(dtype).max):
                continue
            for side, truth in zip(found, truths):
                # Where KL is 1e9 and more, so is the rounding of log(q/p) that q - p is taken from: in units of the larger gradient.
                size = max(abs(v) for both in truths for v in both)
                for one, right in zip(side[i].tolist(), truth):
                    assert abs(mp.mpf(one) - right) <= GRADIENT_BOUND[dtype] * size, (row, side[i], [mp.nstr(v, 8) for v in truth])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_masks_in_many_rows_of_many_categories(dtype, rng):
    """The blocked kernels, whose lanes must leave to the general formula what overflows."""
    a = rng.normal(size=(20, 700)).astype(dtype)
    b = (a + 0.3 * rng.normal(size=a.shape)).astype(dtype)
    hidden = rng.random(a.shape) < 0.4
    hidden[:, 0] = False
    for mask in (_lowest(dtype), -1e30):
        low = dtype(mask)
        masked_a, masked_b = np.where(hidden, low, a), np.where(hidden, low, b)
        for x, y in ((masked_a, masked_b), (masked_a, b), (a, masked_b), (np.full_like(a, low), b), (a, np.full_like(a, low))):
            for temperature in (1.0, 0.75):
                # long double has the range, and digits enough for divergences of 0.01 and more
                p, q = (np.longdouble(z) / temperature for z in (x, y))
                p, q = (z - z.max(1, keepdims=True) for z in (p, q))
                p, q = (z - np.log(np.exp(z).sum(1, keepdims=True)) for z in (p, q))
                weight = np.exp(p)
                truth = np.where(weight == 0, 0, weight * (p - q)).sum(1)
                found = kb.kl(x, y, form="logits", temperature=temperature)
                finite = truth < 0.999 * np.finfo(dtype).max
                np.testing.assert_allclose(found[finite], truth[finite], rtol=VALUE_BOUND[dtype])
                assert (found[~finite] > 0.99 * np.finfo(dtype).max).all()


def test_masks_in_short_vectors():
    """A vector without a batch takes Python's floats, where the lowest one gave inf for 1.27."""
    p = np.full(3, _lowest(np.float64))
    q = np.array([1.0, 2.0, 0.5])
    with exactly:
        _assert_close(kb.kl(p, q, form="logits"), _truths(p, q, 1.0)[0], np.float64, "kl")


@pytest.mark.parametrize("kind", ["kl", "js"])
def test_masks_in_rows_over_several_devices(kind):
    a, b, t = _masked(np.float32)
    x, y, scale = torch.tensor(a), torch.tensor(b), torch.tensor(1 / t)[:, None]
    found = _rows.statistics(torch_ops, kind, 0.5, x, y, scale, (1,))
    slopes = _rows.slopes(torch_ops, kind, 0.5, x, y, scale, found, (True, True))
    with exactly:
        for i, row in enumerate(zip(a, b, t)):
            truth = _truths(*row)[0 if kind == "kl" else 3]
            _assert_close(found.value[i, 0], truth, np.float32, row)
            if truth < 1e37:
                assert all(torch.isfinite(slope[i]).all() for slope in slopes)


def test_masks_in_rows_that_are_compared(rng):
    """The sum of many masks as low as float64 goes was infinite, and so was KL, which is their mean."""
    p = rng.normal(size=(2, 60))
    q = np.where(np.arange(60) < 30, -np.finfo(np.float64).max, p)
    found = comparison.compare_rows(comparison.ready(p), comparison.ready(q), ("logits", "logits"), (1e-3, 1e-3))
    with exactly:
        for value, row in zip(found.kl_pq, zip(p, q, [1.0, 1.0])):
            _assert_close(value, _truths(*row)[0], np.float64, "kl", bound=2e-5)  # what a comparison promises


def test_losses_beside_masks():
    """`kl_loss` gave NaN; a mask that `logit_scale` made infinite was no longer capped."""
    lowest = _lowest(np.float32)
    student, teacher = (np.array([z], np.float32) for z in ([1.0, 2.0, lowest, 0.5], [2.0, 1.0, lowest, 0.0]))
    with exactly:
        truth = _truths(teacher[0], student[0], 0.75)[0]
        _assert_close(kl_loss(student=student, teacher=teacher, temperature=0.75), truth, np.float32, "kl_loss")
        every = np.eye(4, dtype=np.float32)
        value = linear_kl(hidden=student, weight=every, teacher_logits=teacher, temperature=0.75)
        _assert_close(value, truth, np.float32, "linear_kl")
        inside = np.array([[0, 1, 3]])
        logs = np.array([[float(v) for v in _log_softmax(teacher[0], 0.75)]])
        top = TopK(inside, np.take_along_axis(logs, inside, 1).astype(np.float32), "renormalize", 0.75)
        _assert_close(kl_loss(student=student, teacher=top, temperature=0.75), truth, np.float32, "TopK")

        capped = [[30 * mp.tanh(2 * mp.mpf(float(v)) / 30) for v in row] for row in (teacher[0], [1.0, 2.0, lowest, lowest])]
        beside = np.array([[1.0, 2.0, lowest, lowest]], np.float32)
        found = kl_loss(student=beside, teacher=teacher, softcap=30.0, logit_scale=2.0)
        weights = [[mp.exp(v) for v in row] for row in capped]
        p, q = ([v / mp.fsum(row) for v in row] for row in weights)
        _assert_close(found, mp.fsum(u * mp.log(u / v) for u, v in zip(p, q)), np.float32, "softcap")

        terms = token_terms(student, np.array([[2.0, 1.0, lowest, -1e9]], np.float32), np.array([3]))
        _assert_close(terms.k1[0], mp.mpf(float(terms.logp[0])) - mp.mpf(float(terms.logp_ref[0])), np.float32, "k1 of a masked token")


# --- orders of Rényi's divergence ---------------------------------------------------------------------------------------------------------

NEAR = [1e-15, 1e-9, 1e-7, 1e-4]
FAR_APART = [0.7, 0.2, 0.1], [0.1, 0.2, 0.7]


def _renyi_rows(dtype):
    close = np.array([0.1, 0.2, 0.3, 0.4]) * (1 + 1e-5 * np.array([1.0, -1.0, 0.5, -0.2]))
    rows = [(FAR_APART[0] + [0.0], FAR_APART[1] + [0.0]), ([0.1, 0.2, 0.3, 0.4], close), ([0.97, 0.01, 0.01, 0.01], [1e-9, 1e-9, 0.5, 0.5])]
    return tuple(np.array(side, dtype) for side in zip(*rows))


@pytest.mark.parametrize(
    ("framework", "orders"),
    [
        *((f, [*NEAR, *(1 - x for x in NEAR), *(1 + x for x in NEAR), 0.3, 1e4, 1e15]) for f in EAGER if not f.costly),
        # The formulas below and above order 1.
        *((BY_NAME[name], [1 - 1e-9, 1 + 1e-9]) for name in ("jax-jit", "tensorflow-xla", "tinygrad")),
    ],
    ids=lambda x: repr(x) if not isinstance(x, list) else "",
)
def test_orders_near_0_and_1(framework, orders):
    """In float32 order 1 + 1e-9 gave -6.28 for 1.16755; in float64 1 + 1e-15 gave 1.155."""
    dtypes = [np.float32, np.float64] if framework.double else [np.float32]
    for dtype in dtypes:
        p, q = _renyi_rows(dtype)
        found = compute(framework, lambda p, q: [kb.renyi(p, q, order=order, check=False) for order in orders], p, q)
        for order, values in zip(orders, found):
            for value, x, y in zip(values, p, q):
                # The oracle's logarithm of a sum near 1, divided by 1e-15, needs the digits.
                with mp.workdps(80):
                    _assert_close(value, mp.mpf(oracle.renyi(x, y, order)), dtype, (order, x, y))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_orders_near_0_and_1(dtype):
    p, q = (np.array(z, dtype) for z in FAR_APART)
    for order in (1e-15, 1e-9, 1 - 1e-9, 1 + 1e-15, 1 + 1e-9, 1.0001):
        x, y = (torch.tensor(z, requires_grad=True) for z in (p, q))
        found = torch.autograd.grad(kb.renyi(x, y, order=order), (x, y))
        with mp.workdps(80):
            a = mp.mpf(order)
            u, v = ([mp.mpf(float(w)) for w in z] for z in (p, q))
            total_u, total_v = mp.fsum(u), mp.fsum(v)
            u, v = [w / total_u for w in u], [w / total_v for w in v]
            t = [c**a * d ** (1 - a) for c, d in zip(u, v)]
            t = [w / mp.fsum(t) for w in t]
            truths = (
                [float(a / (a - 1) * (w / c - 1) / total_u) for w, c in zip(t, u)],
                [float((1 - w / d) / total_v) for w, d in zip(t, v)],
            )  # fmt: skip
        for one, truth in zip(found, truths):
            assert oracle.relative_error(one.numpy(), truth) <= GRADIENT_BOUND[dtype], (order, one, truth)


# --- elementwise terms, and temperatures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", [*EAGER, BY_NAME["tensorflow-xla"]], ids=repr)
def test_elementwise_terms_whose_quotient_overflows(framework):
    """kl_div(1e-9, 1e300) gave -inf for 1e300, rel_entr(1e-60, 1e300) -inf for -8.3e-58, and rel_entr(1e200, 1e-150) inf for 8.06e202."""
    dtype = widest(framework)
    numbers = (
        [1e-300, 1e-150, 1e-60, 1e-9, 0.3, 0.5, 1e150, 1e200, 1e300] if framework.double else [1e-37, 1e-20, 1e-9, 0.3, 0.5, 1e20, 1e37]
    )
    x, y = (z.ravel() for z in np.meshgrid(*[np.array(numbers, dtype)] * 2))
    found = compute(framework, lambda x, y: [kb.rel_entr(x, y), kb.kl_div(x, y)], x, y)
    for i, pair in enumerate(zip(x, y)):
        a, b = (mp.mpf(float(v)) for v in pair)
        for values, truth in zip(found, (a * mp.log(a / b), a * mp.log(a / b) - a + b)):
            _assert_close(values[i], truth, dtype, pair)
    finite = np.isfinite(scipy.special.kl_div(x.astype(np.float64), y)) & (abs(found[1]) < np.inf)
    assert finite.sum() > 0.8 * len(x)
    if framework.differentiable:
        slopes = framework.gradients(kb.rel_entr, x, y)
        for i, pair in enumerate(zip(x, y)):
            a, b = (mp.mpf(float(v)) for v in pair)
            for values, truth in zip(slopes, (mp.log(a / b) + 1, -a / b)):
                if abs(truth) > float(np.finfo(dtype).tiny):
                    _assert_close(values[i], truth, dtype, pair)


def test_exponential_laws_whose_quotient_overflows():
    """The logarithm of a quotient is that of the closed forms, too: 0.0 was left of 1e-150/1e200, and its logarithm infinite."""
    p, q = distributions.Exponential(1e200), distributions.Exponential(1e-150)
    assert float(kb.kl(p, q)) == pytest.approx(350 * math.log(10) - 1, rel=1e-12)


@on_eager
def test_temperatures_without_an_inverse(framework):
    """1/1e-310 is infinite: NaN came of it, without a word."""
    dtype, tiny = (np.float64, 1e-310) if framework.double else (np.float32, 1e-40)
    a, b = (framework.array(np.array([z], dtype)) for z in ([1.0, 2.0], [2.0, 1.0]))
    for function in (
        lambda: kb.kl(a, b, form="logits", temperature=tiny),
        lambda: kb.entropy(a, form="logits", temperature=tiny),
        lambda: kl_loss(student=a, teacher=b, temperature=tiny),
    ):
        with pytest.raises(ValueError, match=rf"^temperature is {tiny!r}, and {np.dtype(dtype).name} logits can only be divided"):
            function()
    if framework.name in ("numpy", "torch"):
        with pytest.raises(ValueError, match=r"^temperature is not positive and finite everywhere, or too small to divide by"):
            kb.kl(a, b, form="logits", temperature=framework.array(np.array([tiny], dtype)))


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_numbers_beside_float64_keep_their_digits(name):
    """Python's numbers were rounded to float32, the frameworks' default, before they became float64."""
    framework = BY_NAME[name]
    a, b, p = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 2.0]), [0.1, 0.2, 0.7]
    found = framework.run(lambda a, b: kb.kl(a, b, form="logits", temperature=0.9), a, b)
    assert float(found) == pytest.approx(oracle.kl(a / 0.9, b / 0.9, "logits").value, rel=VALUE_BOUND[np.float64])
    found = framework.run(lambda q: kb.kl(p, q), scipy.special.softmax(b))
    assert float(found) == pytest.approx(oracle.kl(np.array(p), scipy.special.softmax(b)).value, rel=VALUE_BOUND[np.float64])


# --- categories that are nearly equal -----------------------------------------------------------------------------------------------------


def _slopes_of_entropies(x, y, form, temperature):
    """Of -Σ p log p to x, and of -Σ p log q to x and to y, by definition."""
    (log_p, total_p), (log_q, total_q) = (oracle.log_normalised(z, form, temperature) for z in (x, y))
    p, q = oracle.probabilities(log_p), oracle.probabilities(log_q)
    found = [
        [(_mean(p, logs) - v) * (u / mp.mpf(temperature) if form == "logits" else 1 / total_p) for u, v in zip(p, logs)]
        for logs in (log_p, log_q)
    ]
    found.append([(v - u) / mp.mpf(temperature) if form == "logits" else (1 - u / v) / total_q for u, v in zip(p, q)])
    return [np.array([float(v) for v in slope]) for slope in found]


@pytest.mark.parametrize("framework", [f for f in [*EAGER, BY_NAME["jax-jit"]] if f.differentiable], ids=repr)
@pytest.mark.parametrize(("form", "temperature"), [("logits", 0.7), ("probs", 1.0)])
def test_gradients_of_entropies_between_nearly_equal_categories(framework, form, temperature):
    """-p (log p + H) cancels: logits of 1e-6 gave a gradient that was 16% off in float32. Of -p (log q + H(P, Q)), both parts cancelled."""
    dtype, nearly = widest(framework), 1e-6 if framework.double else 1e-4
    even, uneven = np.array([0.3, -0.2, 0.1, 0.5]), np.array([4.0, -1.0, 0.5, 2.0])
    x, y = np.array([even * nearly, uneven, even * nearly, uneven * 9]), np.array([uneven, even * nearly, -even * nearly, uneven[::-1]])
    if form == "probs":
        x, y = scipy.special.softmax(x, -1), scipy.special.softmax(y, -1)
    x, y = x.astype(dtype), y.astype(dtype)
    options = {"form": form} if form == "probs" else {"form": form, "temperature": temperature}
    found = [
        *framework.gradients(lambda x: kb.entropy(x, **options), x),
        *framework.gradients(lambda x, y: kb.cross_entropy(x, y, **options), x, y),
    ]
    for i, rows in enumerate(zip(x, y)):
        for what, slope, truth in zip(("H to P", "H(P, Q) to P", "H(P, Q) to Q"), found, _slopes_of_entropies(*rows, form, temperature)):
            assert oracle.relative_error(slope[i], truth) <= GRADIENT_BOUND[dtype], (what, rows, slope[i], truth)


# --- mixtures with nearly all of one side -------------------------------------------------------------------------------------------------


def _mixture_slopes(x, y, w, kind):
    """Of JS and of KL(P‖M), M = (1 - w)P + wQ: the value and its derivatives to the logits x and y, by definition."""
    p, q = (oracle.probabilities(oracle.log_normalised(z, "logits")[0]) for z in (x, y))
    m = [(1 - w) * u + w * v for u, v in zip(p, q)]
    of_p, of_q = ([mp.log(u / c) if u else mp.mpf(0) for u, c in zip(side, m)] for side in (p, q))
    excess = [u / c - 1 for u, c in zip(p, m)]
    if kind == "js":
        value, to_p, to_q = (1 - w) * _mean(p, of_p) + w * _mean(q, of_q), [(1 - w) * v for v in of_p], [w * v for v in of_q]
    else:
        value, to_p, to_q = _mean(p, of_p), [v - (1 - w) * e for v, e in zip(of_p, excess)], [-w * e for e in excess]
    return value, *(np.array([float(u * (v - _mean(side, to))) for u, v in zip(side, to)]) for side, to in ((p, to_p), (q, to_q)))


_EXTREME = (1e-15, 1e-6, 0.04, 0.06, 1 - 1e-6, 1 - 1e-15)


@pytest.mark.parametrize(
    ("framework", "mixes"),
    [(BY_NAME["torch"], _EXTREME), *((BY_NAME[name], (1e-6,)) for name in ("tensorflow", "jax-jit"))],
    ids=lambda x: repr(x) if not isinstance(x, tuple) else "",
)
def test_mixtures_with_nearly_all_of_one_side(framework, mixes):
    """1 - (1 - mix) is not mix, and log(m/p) of a small mix was a difference of large numbers: float32 gradients were 2.7% off at 1e-6."""
    dtype = widest(framework)
    x = np.array([[0.3, -1.2, 0.8, 2.0], [0.3, -1.2, 0.8, 2.0], [4.0, -12.0, 0.8, 2.0], [0.3, -np.inf, 0.8, 2.0]], dtype)
    y = np.array([[0.4, -1.3, 0.8, 1.9], [1.5, 0.2, -1.0, 0.3], [-9.0, 3.0, 0.5, 20.0], [1.5, 0.2, -np.inf, 0.3]], dtype)
    losses = {"js": lambda x, y, mix: kl_loss(teacher=y, student=x, direction="js", mix=mix, reduction="none")}
    # M has a share of the teacher, which the judge counts as that of the other side.
    losses["skew"] = lambda x, y, mix: kl_loss(teacher=x, student=y, direction="skew", mix=1 - mix, reduction="none")
    with mp.workdps(80):
        for mix in mixes:
            of_arrays = lambda x, y, mix=mix: kb.js(x, y, form="logits", mix=mix)  # noqa: E731
            for kind, function in (("js", of_arrays), *((k, lambda x, y, f=f, mix=mix: f(x, y, mix)) for k, f in losses.items())):
                if kind == "skew" and mix < 1e-10:
                    continue  # 1 - mix has rounded before anyone sees it
                value, slopes = framework.value_and_gradients(function, x, y)
                for i, row in enumerate(zip(x, y)):
                    share = 1 - mp.mpf(1 - mix) if kind == "skew" else mp.mpf(mix)
                    truth, *derivatives = _mixture_slopes(*row, share, kind)
                    _assert_close(value[i], truth, dtype, (kind, mix, row))
                    for slope, derivative in zip(slopes, derivatives):
                        assert oracle.relative_error(slope[i], derivative) <= GRADIENT_BOUND[dtype], (kind, mix, row, slope[i], derivative)


@pytest.mark.parametrize("framework", [BY_NAME["torch"]], ids=repr)
@pytest.mark.parametrize("mix", [1e-17, 1e-46])
def test_mixtures_whose_share_rounds_away(framework, mix, dtype):
    """1 - 1e-17 is 1, and 1e-46 is 0 in float32: a logarithm of 0 was an error, and gradients were NaN."""
    x, y = np.array([[0.3, -1.2, 0.8], [0.0, 1.0, -np.inf]], dtype), np.array([[1.5, 0.2, -1.0], [1.0, 0.0, 2.0]], dtype)
    with mp.workdps(120):
        for direction, kind in (("skew", "skew"), ("reverse_skew", "skew"), ("js", "js")):
            loss = lambda x, y, direction=direction: kl_loss(student=x, teacher=y, direction=direction, mix=mix, reduction="none")  # noqa: E731
            value, slopes = framework.value_and_gradients(loss, x, y)
            assert np.isfinite(value).all(), direction
            assert all(np.isfinite(slope).all() for slope in slopes), direction
            if direction == "reverse_skew":  # KL(student ‖ M), nearly KL(student ‖ teacher): its second row has finite support in both
                truth, to_x, to_y = _mixture_slopes(x[0], y[0], 1 - mp.mpf(mix), kind)
                _assert_close(value[0], truth, dtype, (direction, mix))
                for slope, derivative in zip(slopes, (to_x, to_y)):
                    assert oracle.relative_error(slope[0], derivative) <= GRADIENT_BOUND[dtype], (direction, slope[0], derivative)


@pytest.mark.needs("jax")
def test_formulas_for_accelerators_leave_mixtures_of_nearly_one_side(monkeypatch):
    """In float32, 1 - 0.999999 is 1.3% off 1e-6, and log(m/p) of a small mix has no digits."""
    from kullback._ops import jax as jax_ops

    x, y = np.array([[0.3, -1.2, 0.8, 2.0]], np.float32), np.array([[0.4, -1.3, 0.8, 1.9]], np.float32)
    monkeypatch.setattr(jax_ops, "on_accelerator", lambda x: True)
    loss = lambda x, y: kl_loss(teacher=x, student=y, direction="skew", mix=1 - 1e-6)  # noqa: E731
    value, slopes = BY_NAME["jax"].value_and_gradients(loss, x, y)
    with mp.workdps(60):
        truth, *derivatives = _mixture_slopes(x[0], y[0], 1 - mp.mpf(1 - 1e-6), "skew")
    _assert_close(value, truth, np.float32, "skew")
    for slope, derivative in zip(slopes, derivatives):
        assert oracle.relative_error(slope[0], derivative) <= GRADIENT_BOUND[np.float32]
    monkeypatch.setattr(torch_ops, "has_row_kernels", lambda *arrays: True)
    a, b, every = torch.tensor(x), torch.tensor(y), torch.eye(4)
    for direction, mix in (("js", 1 - 1e-6), ("skew", 1e-6)):
        options = {"direction": direction, "mix": mix, "impl": "triton"}
        for function in (
            lambda: kl_loss(student=b, teacher=a, **options),  # noqa: B023 (called here)
            lambda: kl_loss(student=b, teacher=TopK(torch.tensor([[0, 3]]), a.log_softmax(-1)[:, [0, 3]], "renormalize"), **options),  # noqa: B023
            lambda: linear_kl(hidden=b, weight=every, teacher_logits=a, **options),  # noqa: B023
        ):
            with pytest.raises(RuntimeError, match=r"^impl='triton' cannot run: mix lies within 0\.01 of 0 or 1"):
                function()


@pytest.mark.parametrize("mask", [-100.0, -1e4, -1e30])
def test_a_category_that_only_p_has_by_a_finite_mask_costs_no_digits(mask):
    """KL is infinite there. The other divergences lost the digits of categories that are nearly equal: up to 1e-3 in float32."""
    a = np.array([0.1, 0.2, 0.3, mask], np.float32)
    b = np.array([0.1, 0.2, 0.3, -np.inf], np.float32)
    b[:3] += np.array([3e-7, 1e-6, -6e-7], np.float32)
    with mp.workdps(40):
        p, q = ([mp.exp(mp.mpf(float(v))) for v in row] for row in (a, b))
        p, q = ([v / mp.fsum(side) for v in side] for side in (p, q))
        m = [(x + y) / 2 for x, y in zip(p, q)]
        truth = mp.fsum(x * mp.log(x / z) for side in (p, q) for x, z in zip(side, m) if x) / 2
        assert kb.kl(a, b, form="logits") == np.inf
        assert kb.js(a, b, form="logits") == pytest.approx(float(truth), rel=5e-6, abs=0)  # the contract, in float32


_HIDDEN = {
    # Rows in which a mask hides a category from P or Q, and the others are nearly equal, or equal beneath two masks.
    "hidden from P": ([-1.8e-3, -65504.0, -8.9e-4, 3.8e-6, 8.9e-4], [0.0] * 5),
    "hidden from Q": ([1.6764e-3, 7.0006e-3, 1.36839e-2, -3.43854e-2], [1.6765e-3, 7.0012e-3, -20.0, -3.43849e-2]),
    "little mass": ([-80.0, -1.10988e-3, -1.52579e-3], [-2.24149e-3, -1.10988e-3, -1.52579e-3]),
    "two from Q": ([-2.057, -2.098, -2.097, -2.092], [-1.39, -1.38, -1e9, -1e9]),
    "saturated": ([20.0, 0.0, 10.0, -5.0], [0.0, 20.0, -12.0, 9.0]),
}


def _tilted_slopes(x, y, order):
    """Of Rényi's divergence to the logits x and y, by definition: a/(a-1) (t - p) and q - t, t = p^a q^(1-a) / sum."""
    a = mp.mpf(order)
    log_p, log_q = (oracle.log_normalised(z, "logits")[0] for z in (x, y))
    p, q = (oracle.probabilities(z) for z in (log_p, log_q))
    powers = [a * u + (1 - a) * v for u, v in zip(log_p, log_q)]
    t = [mp.exp(v - max(powers)) for v in powers]
    total = mp.fsum(t)
    value = (max(powers) + mp.log(total)) / (a - 1)
    to_p, to_q = [a / (a - 1) * (w / total - u) for u, w in zip(p, t)], [v - w / total for v, w in zip(q, t)]
    return value, *(np.array([float(v) for v in to]) for to in (to_p, to_q))


@pytest.mark.parametrize("rows", _HIDDEN.values(), ids=_HIDDEN)
def test_gradients_beside_a_category_hidden_by_a_mask(rows):
    """Categories where log(q/p) is nearly the same have derivatives that are differences: up to all digits were lost in float32."""
    x, y = (np.array(row, np.float32) for row in rows)
    torch_frame = BY_NAME["torch"]
    functions = {
        "js": (lambda x, y: kb.js(x, y, form="logits"), lambda: _mixture_slopes(x, y, mp.mpf(0.5), "js")),
        "skew": (
            lambda x, y: kl_loss(teacher=x, student=y, direction="skew", mix=0.25, reduction="none"),
            lambda: _mixture_slopes(x, y, mp.mpf(0.75), "skew"),
        ),
    }
    for order in (0.3, 1.0001, 2.0):
        functions[f"renyi {order}"] = (
            lambda x, y, order=order: kb.renyi(x, y, form="logits", order=order),
            lambda order=order: _tilted_slopes(x, y, order),
        )
    with mp.workdps(120):
        for name, (function, truth) in functions.items():
            value, slopes = torch_frame.value_and_gradients(function, x, y)
            right, *derivatives = truth()
            _assert_close(value, right, np.float32, (name, rows))
            for slope, derivative in zip(slopes, derivatives):
                # The contract: norm-wise, and of the square root of the smallest KL it is made for.
                off = np.linalg.norm(slope - derivative)
                assert off <= GRADIENT_BOUND[np.float32] * max(np.linalg.norm(derivative), 1e-7), (name, rows, slope, derivative)


def test_a_logit_scale_leaves_the_lowest_float_finite():
    """Twice finfo.min was -inf: a row masked everywhere raised, and KL was infinite."""
    mask = np.float32(np.finfo(np.float32).min)
    uniform, masked, everywhere = np.zeros((1, 2), np.float32), np.array([[mask, 0]], np.float32), np.full((1, 2), mask)
    assert kl_loss(student=everywhere, teacher=masked * 0, logit_scale=2.0) == 0.0
    assert kl_loss(student=masked, teacher=uniform, logit_scale=1.5) == pytest.approx(0.75 * -float(mask), rel=1e-6)
    scaled, divided = ({name: x} for name, x in (("logit_scale", 2.0), ("temperature", 0.5)))
    x, y = np.array([[1.0, 2.0, 0.5]]), np.array([[0.3, -1.0, 0.2]])
    assert kl_loss(student=x, teacher=y, temperature=3.0, scale_t2=True, **scaled) == pytest.approx(
        9 * kl_loss(student=2 * x, teacher=2 * y, temperature=3.0), rel=1e-12
    )
    assert kl_loss(student=x, teacher=y, **scaled) == kl_loss(student=x, teacher=y, **divided)


def test_second_derivatives_to_a_temperature_that_learns():
    x = torch.tensor([[0.3, -1.2, 0.8, 2.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.4, -0.3, 0.1, 1.1]], dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    for function in (
        lambda x, y, t: kb.js(x, y, form="logits", temperature=t),
        lambda x, y, t: kb.jeffreys(x, y, form="logits", temperature=t),
        lambda x, y, t: kb.renyi(x, y, form="logits", order=2.0, temperature=t),
        lambda x, y, t: kl_loss(student=x, teacher=y, direction="skew", temperature=t),
    ):
        assert torch.autograd.gradgradcheck(function, (x, y, temperature))

"""Large batches on the CPU go block by block through NumPy, and must give what small ones do: every pair against the same truths."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import torch
import torch.distributions as td

import kullback as kb
from frameworks import Lazy
from kullback import distributions
from kullback._distributions import batches
from kullback._ops import log_gamma
from truth_rows import BOUND, PAIRS, columns, records, worst

jax = Lazy("jax")
jnp = Lazy("jax.numpy")
tf = Lazy("tensorflow")


@pytest.fixture
def blocks(monkeypatch):
    """Blocks so small that a few numbers fill several of them; says how often they were asked for."""
    seen = []
    monkeypatch.setattr(batches, "_FROM", 1)
    monkeypatch.setattr(batches, "_BLOCK", 3)
    monkeypatch.setattr(batches, "_FRAMEWORK_BLOCK", 48)
    for name in ("_in_numpy", "_in_framework"):
        function = getattr(batches, name)
        monkeypatch.setattr(batches, name, lambda *args, function=function, name=name: seen.append(name) or function(*args))
    return seen


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_every_pair(blocks, dtype):
    wrong = {}
    for pair in PAIRS:
        first, second, truth = columns(pair, dtype)
        found = kb.kl(*records(pair, first, second))
        assert found.dtype == dtype
        assert (found >= 0).all(), pair
        if worst(found, truth) > BOUND[dtype]:
            wrong[pair] = worst(found, truth)
    assert not wrong
    assert blocks == ["_in_numpy"] * len(PAIRS)


def _remainder(a, b):
    a, b = mp.mpf(float(a)), mp.mpf(float(b))
    return mp.loggamma(b) - mp.loggamma(a) - mp.digamma(a) * (b - a)


@pytest.mark.parametrize("name", ["of_floats", "of_blocks", "of_float32_blocks"])
def test_remainder_of_log_gamma_keeps_its_bound(name):
    rng = np.random.default_rng(0)
    a = (10 ** rng.uniform(-6, 8, 400)).astype(np.float32)
    b = (a * np.exp(rng.choice([-1, 1], 400) * 10 ** rng.uniform(-7, 1.3, 400))).astype(np.float32)
    # And around the zeros of log Γ and of ψ.
    a[:90] = np.repeat(np.float32([1.0, 2.0, 1.4616321]), 30) * (1 + 10 ** rng.uniform(-7, -0.5, 90)).astype(np.float32)
    b[:90] = a[:90] * (1 + 10 ** rng.uniform(-7, -0.5, 90)).astype(np.float32)
    function = getattr(log_gamma, name)
    with mp.workdps(50), np.errstate(all="ignore"):
        truth = np.array([float(_remainder(x, y)) for x, y in zip(a, b)])
        if name == "of_floats":
            value, size = np.array([function(float(x), float(y)) for x, y in zip(a, b)]).T
        else:
            value, size = function(a.astype(float), b.astype(float))
    approximate = 2e-8 if name == "of_float32_blocks" else 0.0
    assert (np.abs(value - truth) <= approximate * truth + 1e-15 * size).all()


def _dirichlet(alpha, beta):
    total = sum(_remainder(a, b) for a, b in zip(alpha, beta))
    return total - _remainder_of(sum(mp.mpf(float(a)) for a in alpha), sum(mp.mpf(float(b)) for b in beta))


def _remainder_of(a, b):
    return mp.loggamma(b) - mp.loggamma(a) - mp.digamma(a) * (b - a)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_dirichlet(blocks, dtype):
    """Also where all concentrations are changed by one factor and nothing but the small part of log Γ is left, or by a digit."""
    rng = np.random.default_rng(1)
    alpha = (10 ** rng.uniform(-2, 5, (40, 1)) * rng.uniform(0.5, 2, (40, 5))).astype(np.float32)
    change = 10 ** rng.uniform(-7, 0.5, (40, 1)) * np.where(np.arange(40)[:, None] % 2, 1.0, rng.normal(size=(40, 5)))
    beta = (alpha * np.exp(change)).astype(np.float32)
    with mp.workdps(50):
        truth = np.array([float(_dirichlet(a, b)) for a, b in zip(alpha, beta)])
    found = kb.kl(distributions.Dirichlet(alpha.astype(dtype)), distributions.Dirichlet(beta.astype(dtype)))
    assert blocks == ["_in_numpy"]
    used = truth > 0
    assert used.sum() > 35
    assert worst(found[used], truth[used]) <= BOUND[dtype]
    assert (found[~used] == 0).all()


SHAPES = [((7,), (7,)), ((7,), ()), ((), (7,)), ((2, 7), (7,)), ((7,), (2, 1)), ((2, 1, 3), (4, 1)), ((1,), (7,)), ((0,), ())]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_batches_broadcast(blocks, shapes):
    rng = np.random.default_rng(2)
    for family, count in ((distributions.Normal, 2), (distributions.Gamma, 2), (distributions.Beta, 2), (distributions.Pareto, 2)):
        # Each parameter has a shape of its own.
        given = [[rng.uniform(1, 3, shape).astype(np.float32) for shape in pair[:count]] for pair in (shapes, shapes[::-1])]
        found = kb.kl(family(*given[0]), family(*given[1]))
        everything = np.broadcast_arrays(*given[0], *given[1])
        one_by_one = [float(kb.kl(family(*x[:count]), family(*x[count:]))) for x in zip(*(x.ravel() for x in everything))]
        assert found.shape == everything[0].shape
        np.testing.assert_allclose(found.ravel(), one_by_one, rtol=1e-6)  # a digit of float32, and that of a float32 formula
    assert set(blocks) == (set() if shapes == ((0,), ()) else {"_in_numpy"})


def test_invalid_parameters_are_nan_where_they_are(blocks):
    rate = torch.tensor([1.0, -1.0, 2.0, float("nan"), 3.0, 0.0, 1.0])
    found = kb.kl(td.Gamma(torch.ones(7), rate, validate_args=False), td.Gamma(torch.full((7,), 2.0), torch.ones(7)))
    assert blocks == ["_in_numpy"]
    assert found.isnan().tolist() == [False, True, False, True, False, True, False]


def test_what_wants_a_derivative_has_one(blocks):
    scale = torch.rand(50).add(0.5).requires_grad_()
    value = kb.kl(td.Normal(torch.zeros(50), scale), td.Normal(0.0, 1.0))
    (slope,) = torch.autograd.grad(value.sum(), scale)
    assert blocks == ["_in_framework"]
    torch.testing.assert_close(slope, scale.detach() - 1 / scale.detach())
    with torch.no_grad():
        assert not kb.kl(td.Normal(torch.zeros(50), scale), td.Normal(0.0, 1.0)).requires_grad
    assert blocks == ["_in_framework", "_in_numpy"]


@pytest.mark.parametrize("wanted", [False, True], ids=["constant", "gradient"])
def test_matrices_go_through_the_framework(blocks, wanted):
    lower = torch.tril(torch.randn(20, 4, 4)) + 4 * torch.eye(4)
    lower.requires_grad_(wanted)
    p, q = (td.MultivariateNormal(torch.randn(20, 4), scale_tril=x) for x in (lower, torch.eye(4).expand(20, 4, 4)))
    found = kb.kl(p, q)
    assert blocks == ["_in_framework"]
    assert found.requires_grad is wanted
    covariance = lower.detach().double() @ lower.detach().double().mT
    squares = (p.loc - q.loc).double().square().sum(-1)
    truth = 0.5 * (covariance.diagonal(dim1=-2, dim2=-1).sum(-1) + squares - 4 - torch.logdet(covariance))
    torch.testing.assert_close(found.detach().double(), truth, rtol=1e-6, atol=0)  # float32


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_other_frameworks_share_their_memory(blocks, framework):
    rng = np.random.default_rng(4)
    given = [rng.uniform(1, 3, 30).astype(np.float32) for _ in range(4)]
    arrays = [(jnp.asarray if framework == "jax" else tf.constant)(x) for x in given]
    found = kb.kl(distributions.Gamma(*arrays[:2]), distributions.Gamma(*arrays[2:]))
    assert type(found) is type(arrays[0])
    assert blocks == ["_in_numpy"]
    np.testing.assert_array_equal(np.asarray(found), kb.kl(distributions.Gamma(*given[:2]), distributions.Gamma(*given[2:])))


def test_tracers_and_tapes_are_left_to_their_framework(blocks):
    x = np.linspace(1, 2, 30, dtype=np.float32)

    def value(rate):
        return kb.kl(distributions.Exponential(rate), distributions.Exponential(1.5))

    slope = -1.5 / x**2 + 1 / x  # of q/p - 1 - log(q/p)
    tight = {"rtol": 1e-5, "atol": 1e-6}  # float32, of a difference
    np.testing.assert_allclose(jax.grad(lambda r: value(r).sum())(jnp.asarray(x)), slope, **tight)
    watched = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        result = value(watched)
    np.testing.assert_allclose(tape.gradient(result, watched), slope, **tight)
    with tf.autodiff.ForwardAccumulator(watched, tf.ones_like(watched)) as forward:
        result = value(watched)
    np.testing.assert_allclose(forward.jvp(result), slope, **tight)
    assert blocks == []
    assert value(watched).shape == (30,)
    assert blocks == ["_in_numpy"]


def test_no_batch_beside_a_large_event(blocks):
    empty = td.MultivariateNormal(torch.zeros(0, 9), scale_tril=torch.eye(9), validate_args=False)
    assert kb.kl(empty, td.MultivariateNormal(torch.zeros(9), scale_tril=torch.eye(9))).shape == (0,)
    alpha = np.linspace(1, 2, 100)
    found = kb.kl(distributions.Dirichlet(alpha), distributions.Dirichlet(2 * alpha))
    with mp.workdps(40):
        assert float(found) == pytest.approx(float(_dirichlet(alpha, 2 * alpha)), rel=1e-12)
    assert blocks == ["_in_numpy"]


def test_a_million_on_threads():
    """As many as it takes for threads, and other lengths than a block's."""
    rng = np.random.default_rng(3)
    given = [(10 ** rng.uniform(-1, 2, 300_001)).astype(np.float32) for _ in range(4)]
    found = kb.kl(distributions.Gamma(*given[:2]), distributions.Gamma(*given[2:]))
    some = rng.integers(0, 300_001, 50)
    few = kb.kl(distributions.Gamma(*(x[some] for x in given[:2])), distributions.Gamma(*(x[some] for x in given[2:])))
    np.testing.assert_allclose(found[some], few, rtol=2e-7)  # the last digit

"""estimators.monte_carlo: values and error bars against exact answers, every library's random state, memory, stopping, the record."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td

import kullback as kb
from frameworks import Lazy
from kullback import distributions as own
from kullback.estimators import Estimate, monte_carlo
from kullback.estimators import _monte_carlo as sampling

distrax = Lazy("distrax")
jax = Lazy("jax")
numpyro = Lazy("numpyro.distributions")
tfp = Lazy("tensorflow_probability")
tinygrad = Lazy("tinygrad")
tfp_jax = Lazy("tensorflow_probability.substrates.jax")

P, Q = own.Normal(0.0, 1.0), own.Normal(1.0, 1.5)
EXACT = 0.3499095525526089  # log 1.5 + 2/4.5 - 1/2


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_published_table_of_bias_and_spread(kind, mu):
    """P = N(0, 1), Q = N(μ, 1), KL = μ²/2: mean and standard deviation of k1, k2, k3, as multiples of KL."""
    n = 200_000
    found = monte_carlo(P, own.Normal(mu, 1.0), n=n, rng=1, kind=kind, variates=None)
    exact = mu * mu / 2
    bias = {"k1": 0.0, "k2": mu * mu / 4, "k3": 0.0}[kind]
    spread = {"k1": 2 / mu, "k2": math.sqrt(2 + mu * mu), "k3": 2 * math.sqrt(math.expm1(mu * mu) - mu * mu) / mu**2}[kind]
    # Four standard errors of the mean. The spread of n samples is known to √(kurtosis/n): 2%, for k3 at μ = 1 hardly better than 15%.
    assert abs(found.value / exact - 1 - bias) <= 4 * spread / math.sqrt(n)
    assert found.stderr * math.sqrt(n) / exact == pytest.approx(spread, rel=0.15 if kind == "k3" and mu == 1.0 else 0.03)


@pytest.mark.parametrize("variates", [None, "control", "antithetic", "quasi"])
@pytest.mark.parametrize(
    ("p", "q"), [(P, Q), (P, own.Normal(0.2, 1.1)), (own.Gamma(2.0, 1.0), own.Gamma(3.0, 2.0)), (P, own.Laplace(0.0, 1.0))]
)
def test_error_bars_cover(p, q, variates):
    exact = float(kb.kl(p, q, method="auto"))
    scores = []
    for seed in range(60):
        found = monte_carlo(p, q, n=4096, rng=seed, variates=variates)
        scores.append((found.value - exact) / found.stderr)
    covered = np.mean(np.abs(scores) < 1.96)
    # 95% of 60, less three standard deviations of a binomial proportion (2.8% each); few replicates make quasi-random bars a bit short.
    assert covered >= (0.82 if variates == "quasi" else 0.86)
    assert abs(np.mean(scores)) <= 0.5


def test_variates_lower_the_variance():
    q = own.Normal(0.2, 1.05)
    errors = {v: monte_carlo(P, q, n=16384, rng=3, variates=v).stderr for v in (None, "control", "antithetic", "quasi")}
    assert errors["control"] <= 0.6 * errors[None]
    assert errors["antithetic"] <= 0.5 * errors[None]
    assert errors["quasi"] <= 0.2 * errors[None]
    # Where Q's tails are too heavy for its mean to be trusted, the control is left out instead of biasing the result.
    heavy, plain = (monte_carlo(P, own.Cauchy(0.0, 1.0), n=50_000, rng=3, variates=v) for v in ("control", None))
    assert heavy.value == plain.value
    vectors = own.MultivariateNormal(np.zeros(3), np.eye(3)), own.MultivariateNormal(np.ones(3), np.eye(3))
    found = monte_carlo(*vectors, n=8192, rng=0, variates="quasi")
    assert abs(found.value - 1.5) <= 4 * found.stderr <= 0.01


def _objects():
    return {
        "scipy": (scipy.stats.norm(0, 1), scipy.stats.norm(1, 1.5), lambda: np.random.default_rng(7)),
        "records": (P, Q, lambda: np.random.default_rng(7)),
        "tinygrad records": (
            own.Normal(tinygrad.Tensor([0.0]), tinygrad.Tensor([1.0])),
            own.Normal(tinygrad.Tensor([1.0]), tinygrad.Tensor([1.5])),
            lambda: 7,
        ),
        "torch": (td.Normal(0.0, 1.0), td.Normal(1.0, 1.5), lambda: torch.Generator().manual_seed(7)),
        "numpyro": (numpyro.Normal(0.0, 1.0), numpyro.Normal(1.0, 1.5), lambda: jax.random.PRNGKey(7)),
        "distrax": (distrax.Normal(0.0, 1.0), distrax.Normal(1.0, 1.5), lambda: jax.random.key(7)),
        "tfp": (tfp.distributions.Normal(0.0, 1.0), tfp.distributions.Normal(1.0, 1.5), lambda: (7, 8)),
        "tfp-jax": (tfp_jax.distributions.Normal(0.0, 1.0), tfp_jax.distributions.Normal(1.0, 1.5), lambda: jax.random.PRNGKey(7)),
    }  # fmt: skip


@pytest.mark.parametrize("library", list(_objects()))
def test_every_library_and_its_random_state(library):
    p, q, state = _objects()[library]
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again = (monte_carlo(p, q, n=20_000, rng=state()) for _ in range(2))
    seeded = [monte_carlo(p, q, n=20_000, rng=seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(first.value, again.value)
    np.testing.assert_array_equal(seeded[0].value, seeded[1].value)
    assert np.all(seeded[0].value != seeded[2].value)
    for found in (first, *seeded):
        assert np.all(np.abs(found.value - EXACT) <= 4 * found.stderr)
    # Nobody else's random numbers were touched.
    assert torch.equal(before[0], torch.random.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    with pytest.raises(TypeError, match="rng is a str"):
        monte_carlo(p, q, rng="seed")


def test_a_generator_moves_on():
    for state in (np.random.default_rng(0), torch.Generator().manual_seed(0)):
        p, q = (td.Normal(0.0, 1.0), td.Normal(1.0, 1.5)) if isinstance(state, torch.Generator) else (P, Q)
        first, second = (monte_carlo(p, q, n=1000, rng=state).value for _ in range(2))
        assert first != second


def test_float32_objects_are_exact_inside():
    """KL 5e-9: float32 log-probabilities would drown it in their rounding."""
    p, q = td.Normal(torch.tensor(0.0), torch.tensor(1.0)), td.Normal(torch.tensor(1e-4), torch.tensor(1.0))
    found = monte_carlo(p, q, n=50_000, rng=0, kind="k3", variates=None)
    assert abs(found.value - 5e-9) <= 4 * found.stderr <= 4e-10


@pytest.mark.parametrize("variates", ["control", "quasi"])
def test_memory_does_not_grow(variates, monkeypatch):
    """benchmarks/monte_carlo.py goes on to n = 1e9."""
    monkeypatch.setattr(sampling, "_BLOCK", 1 << 14)  # many blocks even of the smaller n
    peaks = []
    monte_carlo(P, Q, n=10**5, rng=0, variates=variates)  # imports
    for n in (10**6, 4 * 10**6) if variates == "quasi" else (10**5, 10**7):  # quasi-random blocks have their size from 5e5 on
        tracemalloc.start()
        found = monte_carlo(P, Q, n=n, rng=0, variates=variates)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert abs(found.value - EXACT) <= 5 * found.stderr
    # A block of 2¹⁴ points has some fifteen arrays of its size at once: 2 MB. Which of them are freed first may differ by one.
    array = 8 * (1 << 14)
    assert abs(peaks[1] - peaks[0]) <= array
    assert peaks[1] <= 20 * array


def test_the_method_says_what_was_done():
    k1, k3 = (monte_carlo(P, own.Normal(0.2, 1.05), n=20_000, rng=0, kind=kind) for kind in ("k1", "k3"))
    # k3 = k1 + (r − 1), and the best multiple of r − 1 is taken off either: one estimator, up to the rounding of its sums.
    assert k3.value == pytest.approx(k1.value, rel=1e-10)
    assert k3.stderr == pytest.approx(k1.stderr, rel=1e-6)
    assert (k1.method, k3.method) == ("monte carlo k1, control variate", "monte carlo k3, control variate")
    named = {
        "monte carlo k3": {"kind": "k3", "variates": None},
        "monte carlo k2": {"kind": "k2"},  # has no control
        "monte carlo k3, antithetic": {"kind": "k3", "variates": "antithetic"},
        "monte carlo k1, quasi-random": {"variates": "quasi"},
    }
    for method, options in named.items():
        assert monte_carlo(P, Q, n=2000, rng=0, **options).method == method
    assert monte_carlo(P, P, n=1000, rng=0).method == "monte carlo k1, control variate"
    heavy = monte_carlo(P, own.Cauchy(0.0, 1.0), n=50_000, rng=3)
    assert heavy.method == "monte carlo k1, control variate left out: heavy tail"
    some = monte_carlo(own.Normal(0.0, 1.0), own.Normal([0.5, 0.0], [1.0, 1000.0]), n=50_000, rng=3)
    assert some.method == "monte carlo k1, control variate in 1 of 2"


def test_blocks_merge_to_the_moments_of_all():
    from kullback.estimators._monte_carlo import _Moments

    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 1000, 3)) + 1e4
    whole, parts = _Moments((3,)), _Moments((3,))
    whole.add(x)
    for block in np.array_split(x, 7, axis=1):
        parts.add(block)
    for moments in (whole, parts):
        np.testing.assert_allclose(moments.result(None)[0], x[0].mean(0), rtol=1e-14)
        np.testing.assert_allclose(moments.result(None)[1], x[0].std(0, ddof=1) / math.sqrt(1000), rtol=1e-9)


def test_stops_at_the_error_asked_for():
    found = monte_carlo(P, Q, n=10**8, rng=0, tol=2e-3)
    assert found.stderr <= 2e-3
    assert found.n < 10**6
    batch = monte_carlo(P, own.Normal([0.5, 2.0], 1.0), n=10**8, rng=0, tol=5e-3)
    assert np.all(batch.stderr <= 5e-3)


def test_batches_and_infinities():
    found = monte_carlo(own.Normal(np.zeros((2, 1)), 1.0), own.Normal([1.0, 2.0, 3.0], 1.0), n=20_000, rng=0)
    assert found.value.shape == found.stderr.shape == (2, 3)
    assert np.all(np.abs(found.value - [0.5, 2.0, 4.5]) <= 4 * found.stderr)
    found = monte_carlo(own.Uniform(0.0, [1.0, 3.0]), own.Uniform(0.0, 2.0), n=1000, rng=0)
    assert found.value[0] == pytest.approx(math.log(2), rel=1e-12)
    assert found.value[1] == math.inf
    with pytest.raises(ValueError, match="k3 is biased here: Q has mass outside the support of P"):
        monte_carlo(td.Uniform(0.0, 1.0), td.Uniform(0.0, 2.0), kind="k3", rng=0)


def test_vectors_and_counts():
    p = td.MultivariateNormal(torch.zeros(3), torch.eye(3))
    found = monte_carlo(p, td.MultivariateNormal(torch.ones(3), torch.eye(3)), n=50_000, rng=0)
    assert abs(found.value - 1.5) <= 4 * found.stderr
    found = monte_carlo(scipy.stats.multivariate_normal([0, 0]), scipy.stats.multivariate_normal([1, 0]), n=50_000, rng=0)
    assert abs(found.value - 0.5) <= 4 * found.stderr
    found = monte_carlo(td.Poisson(3.0), td.Poisson(4.0), n=50_000, rng=0)
    assert abs(found.value - (3 * math.log(0.75) + 1)) <= 4 * found.stderr
    # Over two categories r - 1 explains everything: exact.
    found = monte_carlo(own.Categorical([0.2, 0.8]), own.Categorical([0.5, 0.5]), n=1000, rng=0)
    assert found.value == pytest.approx(0.2 * math.log(0.4) + 0.8 * math.log(1.6), rel=1e-12)


def test_progress(capsys):
    seen = []
    monte_carlo(P, Q, n=300_000, rng=0, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (300_000, 300_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    monte_carlo(P, Q, n=1000, rng=0, progress=True)
    assert "100%" in capsys.readouterr().out


def test_powers_of_ten_are_whole_numbers():
    assert monte_carlo(P, Q, n=1e4, rng=0).n == 10_000


def test_bad_arguments():
    for options, message in (
        ({"kind": "k4"}, "kind is 'k4'"), ({"variates": "magic"}, "variates is 'magic'"), ({"n": 1}, "n is 1"), ({"n": 2.5}, "n is 2.5"),
        ({"tol": 0.0}, "tol is 0.0"), ({"tol": "1%"}, "tol is '1%'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            monte_carlo(P, Q, **options)
    with pytest.raises(ValueError, match="events have different shapes"):
        monte_carlo(td.Dirichlet(torch.ones(3)), td.Dirichlet(torch.ones(2)))
    with pytest.raises(ValueError, match="batches do not broadcast"):
        monte_carlo(own.Normal([0.0, 1.0], 1.0), own.Normal([0.0, 1.0, 2.0], 1.0))
    with pytest.raises(ValueError, match="needs quantiles"):
        monte_carlo(td.Dirichlet(torch.ones(3)), td.Dirichlet(torch.ones(3)), variates="quasi")


def test_the_record():
    found = Estimate(0.44312, 0.00119, 100000, "monte carlo k3")
    assert repr(found) == "0.4431 ± 0.0012 (monte carlo k3, n=100000)"
    assert float(found) == 0.44312
    assert np.asarray(found) == 0.44312
    assert (found.error, found.stderr, found.bound) == (0.00119, 0.00119, None)
    assert "bounds 0.1 to 0.3" in repr(Estimate(0.2, None, 10, "sum", bound=1e-9, lower=0.1, upper=0.3))
    assert "95% interval 0.1 to 0.3" in repr(Estimate(0.2, 0.05, 10, "x", interval=(0.1, 0.3)))
    assert repr(Estimate(math.inf, 0.0, 1, "quadrature")) == "inf ± 0 (quadrature, n=1)"
    assert repr(Estimate(np.array([1.0, 2.0]), np.array([0.1, 0.2]), 5, "x")) == "[1. 2.] ± [0.1 0.2] (x, n=5)"


def test_an_invalid_q_is_not_infinitely_far():
    with np.errstate(all="ignore"):
        assert math.isnan(monte_carlo(P, own.Normal(1.0, 0.0), n=100, rng=0).value)

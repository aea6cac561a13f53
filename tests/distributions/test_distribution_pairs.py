"""Closed forms of distributions against the published formulas in 60 digits, and those against the definition."""

from __future__ import annotations

import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
import torch

import densities
import kullback as kb
from densities import BASE
from kullback import distributions

# Promised: relative error of values.
BOUND = {np.float32: 2e-5, np.float64: 1e-11}


def _record(name, parameters, dtype):
    return getattr(distributions, name)(*(np.asarray(x, dtype) for x in parameters))


def _relative(found, truth):
    return abs(float((mp.mpf(float(found)) - truth) / truth))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", BASE)
def test_one_family(name, dtype):
    p = tuple(dtype(x) for x in BASE[name])
    for step in (0.4, 1e-1, 1e-3, 1e-5, 1e-7):
        # Every parameter moves by its own amount; Pareto's Q must start below P.
        q = tuple(dtype(x * (1 + step * s)) for x, s in zip(p, (1.0, -0.7, 0.4)))
        if q == p:
            continue
        truth = densities.textbook(name, p, q)
        found = kb.kl(_record(name, p, dtype), _record(name, q, dtype))
        assert found.dtype == dtype
        assert found >= 0
        assert _relative(found, truth) <= BOUND[dtype], (step, float(truth))


@pytest.mark.parametrize("name", BASE)
def test_the_oracle_is_the_definition(name):
    p = BASE[name]
    q = [x * s for x, s in zip(p, (1.4, 0.7))]
    assert _relative(densities.textbook(name, p, q), densities.kl(name, p, name, q)) <= 1e-10


def test_equal_parameters_give_zero():
    for name, p in BASE.items():
        assert kb.kl(_record(name, p, np.float64), _record(name, p, np.float64)) == 0, name


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (("Exponential", (1.3,)), ("Gamma", (2.5, 0.7))),
        (("Gamma", (2.5, 0.7)), ("Exponential", (1.3,))),
        (("Chi2", (3.0,)), ("Gamma", (2.5, 0.7))),
        (("Gamma", (2.5, 0.7)), ("Chi2", (3.0,))),
        (("Chi2", (3.0,)), ("Exponential", (1.3,))),
    ],
    ids=lambda x: x[0],
)
def test_the_same_law_in_another_family(p, q):
    truth = densities.kl(*p, *q)
    assert _relative(kb.kl(_record(*p, np.float64), _record(*q, np.float64)), truth) <= 1e-11


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in BASE if "Bernoulli" not in name and name != "Geometric"])
def test_extreme_parameters(name, dtype):
    """Concentrations 1e-3 to 1e6, scales 1e-6 to 1e6, nearly equal and not."""
    rng = np.random.default_rng(len(name))
    fields = [f.name for f in dataclasses.fields(getattr(distributions, name))]
    seen = 0
    for i in range(60):
        p = [_extreme(field, name, rng) for field in fields]
        if fields[0] == "loc" and name != "InverseGaussian":
            p[0] *= p[1]
        step = 10.0 ** -(i % 8)
        q = [x * (1 + step * rng.uniform(-0.9, 0.9)) for x in p]
        if name == "Pareto":
            p[1], q[1] = max(p[1], q[1]), min(p[1], q[1])
        p, q = ([dtype(x) for x in side] for side in (p, q))
        truth = densities.textbook(name, p, q)
        if not np.finfo(dtype).tiny < truth < np.finfo(dtype).max:
            continue
        seen += 1
        found = kb.kl(_record(name, p, dtype), _record(name, q, dtype))
        assert _relative(found, truth) <= BOUND[dtype], (p, q, float(truth))
    assert seen > 40


def _extreme(field, name, rng):
    if field == "loc" and name != "InverseGaussian":
        return rng.normal() * 10 ** rng.uniform(-2, 1)
    if name == "Weibull" and field == "concentration":
        return 10 ** rng.uniform(-1, 1.5)  # beyond, the textbook's Γ(k_q/k_p + 1) leaves mpmath's range
    return 10 ** (rng.uniform(-3, 6) if field.startswith("concentration") or field == "df" else rng.uniform(-6, 6))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_dirichlet(dtype):
    def formula(alpha, beta):
        total = mp.fsum(alpha)
        mean = mp.fsum((a - b) * (mp.digamma(a) - mp.digamma(total)) for a, b in zip(alpha, beta))
        return (
            mean + mp.loggamma(total) - mp.loggamma(mp.fsum(beta)) - mp.fsum(mp.loggamma(a) - mp.loggamma(b) for a, b in zip(alpha, beta))
        )

    rng = np.random.default_rng(8)
    for _ in range(40):
        p = (10 ** rng.uniform(-3, 5, 10)).astype(dtype)
        q = (p * (1 + 10.0 ** -rng.integers(0, 8) * rng.uniform(-0.9, 0.9, 10))).astype(dtype)
        with mp.workdps(60):
            truth = formula(densities.exact(p), densities.exact(q))
            found = kb.kl(distributions.Dirichlet(p), distributions.Dirichlet(q))
            assert _relative(found, truth) <= BOUND[dtype]


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_multivariate_normal(dtype):
    rng = np.random.default_rng(9)
    for step in (1.0, 1e-2, 1e-4, 1e-6):
        lower = np.tril(rng.normal(size=(4, 4)) * 0.3) + np.diag(rng.uniform(0.5, 2, 4))
        change = np.tril(rng.normal(size=(4, 4)) * 0.3 * step)
        p, q = lower.astype(dtype), (lower + change).astype(dtype)
        loc_p = rng.normal(size=4).astype(dtype)
        loc_q = (loc_p + step * rng.normal(size=4)).astype(dtype)
        with mp.workdps(50):
            a, b = (mp.matrix(x.astype(float).tolist()) for x in (p, q))
            delta = mp.matrix([mp.mpf(float(x)) - mp.mpf(float(y)) for x, y in zip(loc_p, loc_q)])
            cov_p, precision = a * a.T, (b * b.T) ** -1
            trace = mp.fsum((precision * cov_p)[i, i] for i in range(4))
            truth = (trace - 4 + (delta.T * precision * delta)[0] + mp.log(mp.det(b * b.T) / mp.det(cov_p))) / 2
            condition = np.linalg.cond(lower @ lower.T)
            found = kb.kl(distributions.MultivariateNormal(loc_p, p), distributions.MultivariateNormal(loc_q, q))
            assert found >= 0
            assert _relative(found, truth) <= BOUND[dtype] * condition


def test_counts_at_the_edges():
    make = lambda name, *p: getattr(distributions, name)(*map(float, p))  # noqa: E731
    assert kb.kl(make("Poisson", 0), make("Poisson", 1)) == 1
    assert kb.kl(make("Poisson", 1), make("Poisson", 0)) == math.inf
    assert kb.kl(make("Poisson", 0), make("Poisson", 0)) == 0
    assert kb.kl(make("Bernoulli", 1), make("Bernoulli", 1)) == 0
    assert kb.kl(make("Bernoulli", 0.5), make("Bernoulli", 0)) == math.inf
    assert kb.kl(make("Geometric", 1), make("Geometric", 1)) == 0
    assert kb.kl(make("Binomial", 3, 1), make("Binomial", 3, 1)) == 0
    assert kb.kl(make("Binomial", 3, 0.5), make("Binomial", 3, 0)) == math.inf
    assert kb.kl(make("Binomial", 4, 0.5), make("Binomial", 3, 0.5)) == math.inf
    assert kb.kl(make("Uniform", 0, 1), make("Uniform", 0.2, 2)) == math.inf
    assert kb.kl(make("Uniform", 0, 1), make("Uniform", 0, 2)) == pytest.approx(math.log(2), rel=1e-15)
    assert kb.kl(make("Pareto", 2, 1), make("Pareto", 2, 1.5)) == math.inf
    both = kb.kl(distributions.Uniform(0.0, 1.0), distributions.Uniform([-1.0, 0.5], 1.0))
    assert both[1] == math.inf
    assert both[0] == pytest.approx(math.log(2), rel=1e-15)
    for n, p, q in ((5, 0.3, 0.6), (1, 0.2, 0.9)):
        truth = densities.kl("Binomial", (n, p), "Binomial", (n, q))
        assert _relative(kb.kl(make("Binomial", n, p), make("Binomial", n, q)), truth) <= 1e-14
    truth = densities.kl("NegativeBinomial", (2.5, 0.3), "NegativeBinomial", (2.5, 0.4))
    assert _relative(kb.kl(make("NegativeBinomial", 2.5, 0.3), make("NegativeBinomial", 2.5, 0.4)), truth) <= 1e-10  # where the sum is cut


def test_batches_broadcast():
    value = kb.kl(distributions.Normal(np.zeros((3, 1)), 1.0), distributions.Normal(0.0, np.array([1.0, 2.0])))
    assert value.shape == (3, 2)
    inner = distributions.Independent(distributions.Normal(np.zeros((3, 2)), 1.0), 1)
    outer = distributions.Independent(distributions.Normal(np.ones((3, 2)), 1.0), 1)
    np.testing.assert_array_equal(kb.kl(inner, outer), [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"events have different shapes: of p = Independent\(Normal\) 1 axes belong"):
        kb.kl(inner, distributions.Normal(np.ones((3, 2)), 1.0))


def test_invalid_parameters_give_nan():
    assert np.isnan(kb.kl(distributions.Normal(0.0, np.array([1.0, -1.0])), distributions.Normal(0.0, 1.0))).tolist() == [False, True]


def test_what_is_no_parameter_gives_nan():
    make = lambda name, *p: getattr(distributions, name)(*map(np.float64, p))  # noqa: E731
    for good, bad in (
        (("Bernoulli", 0.5), ("Bernoulli", 1.5)), (("Geometric", 0.5), ("Geometric", -0.1)), (("Poisson", 1), ("Poisson", -1)),
        (("Uniform", 0, 1), ("Uniform", 1, 0)), (("Binomial", 3, 0.5), ("Binomial", 3, 1.2)), (("Gamma", 1, 1), ("Gamma", -1, 1)),
    ):  # fmt: skip
        assert np.isnan(kb.kl(make(*good), make(*bad))), bad
        assert np.isnan(kb.kl(make(*bad), make(*good))), bad
    assert np.isnan(kb.kl(distributions.Dirichlet([1.0, -1.0]), distributions.Dirichlet([1.0, 1.0])))


def test_events_do_not_broadcast():
    with pytest.raises(ValueError, match=r"p has concentration \(1,\), and q concentration \(3,\)"):
        kb.kl(distributions.Dirichlet([1.0]), distributions.Dirichlet([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="events have different shapes"):
        kb.kl(distributions.MultivariateNormal([0.0], [[1.0]]), distributions.MultivariateNormal([0.0, 0.0], np.eye(2)))


def test_lists_and_mixed_bernoullis():
    assert kb.kl(distributions.Chi2([2.0, 3.0]), distributions.Gamma([1.0, 1.5], 0.5)).tolist() == [0.0, 0.0]
    p, a = 0.3, 0.4
    truth = densities.textbook("Bernoulli", [p], [1 / (1 + math.exp(-a))])
    assert _relative(kb.kl(distributions.Bernoulli(p), distributions.BernoulliLogits(a)), truth) <= 1e-14
    truth = densities.textbook("Bernoulli", [1 / (1 + math.exp(-a))], [p])
    assert _relative(kb.kl(distributions.BernoulliLogits(a), distributions.Bernoulli(p)), truth) <= 1e-14


def test_gradients_reach_every_parameter():
    for name, p in BASE.items():
        family = getattr(distributions, name)
        # Pareto's Q must start below P.
        q = [x * s for x, s in zip(p, (1.1, 0.9))]
        inputs = tuple(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (*p, *q))
        n = len(p)
        assert torch.autograd.gradcheck(lambda *x, family=family, n=n: kb.kl(family(*x[:n]), family(*x[n:])), inputs), name
        equal = tuple(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (*p, *p))
        found = torch.autograd.grad(kb.kl(family(*equal[:n]), family(*equal[n:])), equal)
        # At the minimum: all 0 (Pareto's support has a corner there).
        assert all(g.isfinite() for g in found), name
        if name != "Pareto":
            assert max(abs(g.item()) for g in found) <= 1e-15, name


def test_no_closed_form():
    with pytest.raises(kb.NoClosedForm, match=r"KL\(Normal‖Cauchy\).*from Normal there is one to .*Laplace.*to Cauchy from .*Cauchy"):
        kb.kl(distributions.Normal(0.0, 1.0), distributions.Cauchy(0.0, 1.0))
    with pytest.raises(TypeError, match="q is a list and p a distribution object"):
        kb.kl(distributions.Normal(0.0, 1.0), [0.5, 0.5])
    with pytest.raises(ValueError, match="axis is for arrays"):
        kb.kl(distributions.Normal(0.0, 1.0), distributions.Normal(0.0, 1.0), axis=0)


def test_reductions_and_base():
    p, q = distributions.Normal(np.zeros((2, 3)), 1.0), distributions.Normal(np.ones((2, 3)), 1.0)
    assert kb.kl(p, q, reduction="sum") == 3.0
    assert kb.kl(p, q, reduction="mean") == 0.5
    assert kb.kl(p, q, reduction="batchmean") == 1.5
    assert kb.kl(p, q, base=2, reduction="mean") == pytest.approx(0.5 / math.log(2), rel=1e-15)

"""The families of `kullback.distributions` as laws: densities against mpmath, samplers against those, and pairs without a closed form."""

from __future__ import annotations

import math
import zlib

import mpmath as mp
import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td

import densities
import kullback as kb
import truths
from kullback import distributions as own
from kullback.estimators._law import law_of
from kullback.estimators._records import numeric_families


def _parameters(name):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    made = [truths._one(kind, rng, False, 1.0) for kind in truths.PARAMETERS[name].split()]
    if name in ("Uniform", "TruncatedNormal"):
        made[-2:] = [-0.5, 1.5]
    return made


@pytest.mark.parametrize("name", sorted(numeric_families()))
def test_laws(name):
    given = _parameters(name)
    law = law_of(getattr(own, name)(*given))
    x = law.draw(4000, law.source(1))
    assert x.shape == (4000,)
    assert ((x >= law.low) & (x <= law.high)).all()
    with mp.workdps(40):
        truth = [float(densities.DENSITIES[name].log(mp.mpf(float(y)), *densities.exact(given))) for y in x[:40]]
    np.testing.assert_allclose(law.log_prob(x)[:40], truth, rtol=1e-12, atol=1e-12)  # sums of a few terms of size 1 to 100
    if law.discrete:
        values, counts = np.unique(x, return_counts=True)
        share = np.exp(law.log_prob(values))
        # Normal to good approximation where ten are expected; 5 standard errors, of some ten numbers: once in 100,000 seeds.
        many = share * len(x) > 10
        assert (np.abs(counts - share * len(x))[many] < 5 * np.sqrt(share * len(x))[many]).all()
        return
    if law.cdf(x) is None:
        edges = np.linspace(law.low, law.high, 20001)
        mass = np.concatenate([[0.0], np.cumsum(np.exp(law.log_prob(0.5 * (edges[1:] + edges[:-1]))) * np.diff(edges))])
        assert mass[-1] == pytest.approx(1.0, abs=1e-6)  # the middle of 20,000 intervals
        assert scipy.stats.kstest(x, lambda y: np.interp(y, edges, mass)).pvalue > 1e-4
        return
    assert scipy.stats.kstest(x, lambda y: law.cdf(y)).pvalue > 1e-4
    u = np.array([1e-6, 0.1, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(law.cdf(law.quantile(u)), u, rtol=1e-6)
    np.testing.assert_allclose(1.0 - law.cdf(law.upper_quantile(u)), u, rtol=1e-6, atol=1e-9)  # of 1 less what is nearly 1


def _mass(name, k, given):
    return mp.exp(densities.DENSITIES[name].log(mp.mpf(k), *densities.exact(given)))


def _total(p, a, q, b, last):
    """The definition, to 40 digits, over the first numbers; the rest is below 1e-30."""
    with mp.workdps(40):
        terms = [(_mass(p, k, a), _mass(q, k, b)) for k in range(last + 1)]
        return float(mp.fsum(x * mp.log(x / y) for x, y in terms if x > 0))


@pytest.mark.parametrize(
    ("p", "a", "q", "b", "last"),
    [
        ("BinomialLogits", (3.0, 0.4), "BinomialLogits", (5.0, -0.3), 3),
        ("BinomialLogits", (3.0, 40.0), "BinomialLogits", (5.0, 50.0), 3),  # probabilities of 1, as floats
        ("Binomial", (3.0, 0.25), "BinomialLogits", (5.0, 2.0), 3),
        ("NegativeBinomialLogits", (3.0, -0.4), "NegativeBinomialLogits", (4.5, -1.0), 400),
        ("NegativeBinomialLogits", (2.0, -3.0), "Poisson", (1.5,), 100),
        ("GeometricLogits", (0.5,), "Poisson", (1.5,), 300),
        ("Poisson", (2.5,), "GeometricLogits", (-0.5,), 100),
        ("BinomialLogits", (7.0, 0.5), "Poisson", (3.0,), 7),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_counts_of_logits(p, a, q, b, last):
    found = kb.kl(getattr(own, p)(*a), getattr(own, q)(*b), method="auto")
    truth = _total(p, a, q, b, last)
    assert found.method == "sum"
    assert abs(found.value - truth) <= found.error <= 1e-8 * truth


def test_objects_of_libraries_take_them_too():
    p, q = td.Binomial(3, logits=torch.tensor(0.4)), td.Binomial(5, logits=torch.tensor(-0.3))
    found = kb.kl(p, q, method="auto")
    given = (3.0, float(torch.tensor(0.4))), (5.0, float(torch.tensor(-0.3)))
    assert found.method == "sum"
    assert abs(found.value - _total("BinomialLogits", given[0], "BinomialLogits", given[1], 3)) <= found.error


@pytest.mark.parametrize(
    ("p", "a", "q", "b"),
    [
        ("LogitNormal", (0.3, 0.8), "Beta", (2.0, 1.5)),
        ("ContinuousBernoulli", (0.3,), "LogitNormal", (0.0, 1.5)),
        ("ExpInverseGamma", (2.0, 1.5), "Logistic", (0.0, 1.0)),
        ("Rayleigh", (1.5,), "InverseGamma", (2.0, 1.0)),
        ("Moyal", (0.0, 1.0), "Cauchy", (0.0, 2.0)),
        ("TruncatedNormal", (0.0, 1.0, -0.5, 1.5), "Logistic", (0.0, 1.0)),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_the_line(p, a, q, b):
    found = kb.kl(getattr(own, p)(*a), getattr(own, q)(*b), method="auto")
    with mp.workdps(25):
        truth = float(densities.definition(p, a, q, b, 20))
    assert found.method == "quadrature"
    assert abs(found.value - truth) <= found.error <= 1e-8 * truth


def test_ordered_categories():
    cut, loc = np.array([-1.0, 0.5, 2.0]), 0.3
    edges = [0.0, *(1 / (1 + math.exp(-(c - loc))) for c in cut), 1.0]
    law = law_of(own.OrderedLogistic(cut, loc))
    np.testing.assert_allclose(np.exp(law.log_prob(np.arange(4.0))), np.diff(edges), rtol=1e-14)

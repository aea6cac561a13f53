"""kb.kl(P, Q, method="auto"): values against mpmath, error bars that hold, bounds of mixtures, infinities, every library."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td

import densities
import kullback as kb
from frameworks import Lazy
from kullback import distributions as own
from kullback.estimators import Estimate

distrax = Lazy("distrax")
jnp = Lazy("jax.numpy")
numpyro = Lazy("numpyro.distributions")
tfp = Lazy("tensorflow_probability")
tfp_jax = Lazy("tensorflow_probability.substrates.jax")


def auto(p, q, **options):
    found = kb.kl(p, q, method="auto", rng=0, **options)
    assert isinstance(found, Estimate)
    return found


def integral(log_p, log_q, points):
    """∫ p (log p - log q) to 20 digits: the definition."""
    with mp.workdps(25):

        def term(x):
            a = log_p(x)
            return mp.exp(a) * (a - log_q(x)) if a > -10_000 else mp.mpf(0)

        return mp.quad(term, points)


def holds(found, truth, method, relative=1e-9):
    """The error bar covers the error, is not idle talk, and the method is the one expected."""
    assert abs(mp.mpf(float(found.value)) - truth) <= found.error
    if found.method == "closed form":  # there is one, for objects of this library; its bar is the promise of the dtype
        assert found.error <= 2.1e-5 * abs(float(truth))
        return
    assert method in found.method
    assert found.error <= relative * max(abs(float(truth)), 1e-300)


# --- log-densities, as published -----------------------------------------------------------------------------------------------------


def normal(m, s):
    return lambda x: -(((x - m) / s) ** 2) / 2 - mp.log(s) - mp.log(2 * mp.pi) / 2


def student(v):
    return lambda x: (
        mp.loggamma((v + 1) / mp.mpf(2)) - mp.loggamma(v / mp.mpf(2)) - mp.log(v * mp.pi) / 2 - (v + 1) / mp.mpf(2) * mp.log1p(x * x / v)
    )


def kumaraswamy(a, b):
    return lambda x: mp.log(a * b) + (a - 1) * mp.log(x) + (b - 1) * mp.log1p(-(x**a))


def beta(a, b):
    return lambda x: densities.DENSITIES["Beta"].log(x, mp.mpf(a), mp.mpf(b))


def mixture(weights, means, scales):
    parts = [normal(mp.mpf(m), mp.mpf(s)) for m, s in zip(means, scales)]
    return lambda x: mp.log(mp.fsum(w * mp.exp(part(x)) for w, part in zip(weights, parts)))


LINE = [-mp.inf, -100, -20, -8, -4, -2, 0, 2, 4, 8, 20, 100, mp.inf]
UNIT = [0, mp.mpf("1e-6"), 0.01, 0.25, 0.5, 0.75, 0.99, 1 - mp.mpf("1e-6"), 1]


# --- one dimension ---------------------------------------------------------------------------------------------------------------------


def test_student_t():
    truth = integral(normal(0, 1), student(3), LINE)
    for p, q in (
        (own.Normal(0.0, 1.0), scipy.stats.t(3)),
        (td.Normal(0.0, 1.0), td.StudentT(3.0)),
        (numpyro.Normal(0.0, 1.0), numpyro.StudentT(3.0)),
        (tfp.distributions.Normal(0.0, 1.0), tfp.distributions.StudentT(3.0, 0.0, 1.0)),
        (tfp_jax.distributions.Normal(0.0, 1.0), tfp_jax.distributions.StudentT(3.0, 0.0, 1.0)),
    ):
        holds(auto(p, q), truth, "quadrature")
    # A finite variance: finite, with a slow tail. None: infinite, as the integral says and no sample ever shows.
    # By hand: the entropy of t, and E x² = 3.
    entropy = 2 * (mp.digamma(2) - mp.digamma(mp.mpf(3) / 2)) + mp.log(mp.sqrt(3) * mp.beta(mp.mpf(3) / 2, mp.mpf(1) / 2))
    holds(auto(scipy.stats.t(3), scipy.stats.norm()), -entropy + mp.log(2 * mp.pi) / 2 + mp.mpf(3) / 2, "quadrature")
    for df in (1.0, 2.0):
        assert auto(scipy.stats.t(df), scipy.stats.norm()).value == math.inf
        assert auto(td.StudentT(df), td.Normal(0.0, 1.0)).value == math.inf


def test_kumaraswamy():
    truth = integral(kumaraswamy(mp.mpf(2), mp.mpf(3)), beta(2, 2), UNIT)
    for p, q in (
        (td.Kumaraswamy(torch.tensor(2.0), torch.tensor(3.0)), td.Beta(2.0, 2.0)),
        (numpyro.Kumaraswamy(2.0, 3.0), numpyro.Beta(2.0, 2.0)),
        (tfp.distributions.Kumaraswamy(2.0, 3.0), tfp.distributions.Beta(2.0, 2.0)),
    ):
        holds(auto(p, q), truth, "quadrature")
    # Singular at both ends: (a - 1) E log x + (b - 1) E log(1 - x^a) + log(ab), by the means of its order statistics.
    a, b = mp.mpf("0.5"), mp.mpf("0.25")
    mean_log_x = -(mp.digamma(b + 1) + mp.euler) / a
    truth = mp.log(a * b) + (a - 1) * mean_log_x + (b - 1) * (-1 / b)
    found = auto(td.Kumaraswamy(torch.tensor(0.5), torch.tensor(0.25)), td.Uniform(0.0, 1.0))
    holds(found, truth, "quadrature", 1e-5)  # next to 1 numbers are 1e-16 apart, and the density is (1 - x)^-0.75


def test_truncated():
    p = integral(lambda x: normal(0, 1)(x) - mp.log(mp.ncdf(2) - mp.ncdf(-1)), normal(0, 1), [-1, 0, 2])
    holds(auto(scipy.stats.truncnorm(-1, 2), scipy.stats.norm()), p, "quadrature")
    holds(auto(numpyro.TruncatedNormal(0.0, 1.0, low=-1.0, high=2.0), numpyro.Normal(0.0, 1.0)), p, "quadrature")
    holds(auto(tfp.distributions.TruncatedNormal(0.0, 1.0, -1.0, 2.0), tfp.distributions.Normal(0.0, 1.0)), p, "quadrature")
    for whole, part in (
        (scipy.stats.norm(), scipy.stats.truncnorm(-1, 2)),
        (numpyro.Normal(0.0, 1.0), numpyro.TruncatedNormal(0.0, 1.0, low=-1.0, high=2.0)),
        # So little of P is outside that no sample, and no float64, sees it: infinite all the same.
        (own.Normal(5.0, 0.1), own.HalfNormal(1.0)),
        (td.Normal(0.0, 1.0), td.Uniform(-1.0, 1.0)),
    ):
        found = auto(whole, part)
        assert (found.value, found.error) == (math.inf, 0.0)


def test_transformed_by_different_bijectors():
    def log_exp(x):
        return normal(0, 1)(mp.log(x)) - mp.log(x)

    def log_softplus(x):  # x = log(1 + e^y)
        return normal(0, 1)(mp.log(mp.expm1(x))) - mp.log(-mp.expm1(-x))

    truth = integral(log_softplus, log_exp, [0, mp.mpf("1e-4"), 0.1, 0.5, 1, 2, 5, 10, 40])
    p = td.TransformedDistribution(td.Normal(0.0, 1.0), [td.SoftplusTransform()])
    q = td.TransformedDistribution(td.Normal(0.0, 1.0), [td.ExpTransform()])
    holds(auto(p, q), truth, "quadrature")
    p = tfp.distributions.TransformedDistribution(tfp.distributions.Normal(0.0, 1.0), tfp.bijectors.Softplus())
    holds(auto(p, tfp.distributions.LogNormal(0.0, 1.0)), truth, "quadrature")
    softplus = distrax.Lambda(
        lambda x: jnp.logaddexp(x, 0.0), lambda y: jnp.log(jnp.expm1(y)),
        lambda x: -jnp.logaddexp(-x, 0.0), lambda y: -jnp.log(-jnp.expm1(-y)),
        event_ndims_in=0, is_constant_jacobian=False,
    )  # fmt: skip
    p = distrax.Transformed(distrax.Normal(0.0, 1.0), softplus)
    q = distrax.Transformed(distrax.Normal(0.0, 1.0), distrax.Lambda(jnp.exp))
    holds(auto(p, q), truth, "quadrature")


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_scales_far_apart(scale):
    """Pairs with closed forms, integrated: the library itself is the pair of laws, the textbook the truth."""
    from kullback.estimators._law import law_of
    from kullback.estimators._quadrature import integrate_kl

    for name, p, q in (("Normal", (0.0, 1.0), (0.3, scale)), ("Cauchy", (0.0, 1.0), (0.0, scale)), ("Laplace", (1.0, scale), (0.0, 1.0)),
                       ("Gamma", (0.02, 1.0), (1.5, scale)), ("LogNormal", (0.0, 0.1), (3.0, 2.0)), ("Beta", (0.1, 0.3), (2.0, 3.0)),
                       ("Weibull", (0.5, scale), (0.7, 1.0)), ("Pareto", (2.0, 1.0 + scale), (0.1, 1.0))):  # fmt: skip
        truth = densities.textbook(name, p, q)
        first, second = (law_of(getattr(own, name)(*x)) for x in (p, q))
        found = integrate_kl(first, second, (), 1e-10, 10**6)
        assert abs(mp.mpf(float(found.value)) - truth) <= found.bound, name
        assert found.bound <= 1e-7 * truth, name


def test_nearly_equal_keeps_its_digits():
    """Another law than the closed form's, so close that ∫ p log(p/q) is all cancellation."""
    with mp.workdps(30):
        shift = mp.mpf(1e-5)
        truth = integral(student(5), lambda x: student(5)(x - shift), LINE)
    holds(auto(scipy.stats.t(5), scipy.stats.t(5, loc=1e-5)), truth, "quadrature", 1e-8)


# --- mixtures --------------------------------------------------------------------------------------------------------------------------

WEIGHTS, MEANS, SCALES = ((0.25, 0.75), (0.5, 0.5)), ((-2.0, 2.0), (-2.0, 3.0)), ((1.0, 1.0), (0.5, 2.0))


def _mixtures():
    for w, m, s in zip(WEIGHTS, MEANS, SCALES):
        yield {
            "torch": td.MixtureSameFamily(td.Categorical(torch.tensor(w)), td.Normal(torch.tensor(m), torch.tensor(s))),
            "numpyro": numpyro.MixtureSameFamily(numpyro.Categorical(jnp.array(w)), numpyro.Normal(jnp.array(m), jnp.array(s))),
            "numpyro-general": numpyro.MixtureGeneral(
                numpyro.Categorical(jnp.array(w)), [numpyro.Normal(a, b) for a, b in zip(m, s)]
            ),
            "tfp": tfp.distributions.MixtureSameFamily(tfp.distributions.Categorical(probs=w), tfp.distributions.Normal(m, s)),
            "tfp-general": tfp.distributions.Mixture(
                tfp.distributions.Categorical(probs=w), [tfp.distributions.Normal(a, b) for a, b in zip(m, s)]
            ),
            "tfp-jax": tfp_jax.distributions.MixtureSameFamily(
                tfp_jax.distributions.Categorical(probs=jnp.array(w)), tfp_jax.distributions.Normal(jnp.array(m), jnp.array(s))
            ),
            "distrax": distrax.MixtureSameFamily(distrax.Categorical(probs=jnp.array(w)), distrax.Normal(jnp.array(m), jnp.array(s))),
        }  # fmt: skip


def test_mixtures_and_their_bounds():
    truth = integral(*(mixture(*x) for x in zip(WEIGHTS, MEANS, SCALES)), LINE)
    ps, qs = _mixtures()
    for library in ps:
        found = auto(ps[library], qs[library])
        # Weights of float32 logits are a few 1e-8 off 1/4.
        assert float(found) == pytest.approx(float(truth), rel=1e-6), library
        assert found.error <= 1e-10
        assert found.lower <= float(truth) <= found.upper
        # Intervals lose little; the bound from above is known to be loose.
        assert found.lower >= 0.99 * float(truth)
        assert found.upper <= 2 * float(truth)


def test_mixture_of_far_apart_components():
    """A component that holds a millionth of the mass, a million scales away."""
    p = td.MixtureSameFamily(td.Categorical(torch.tensor([1 - 1e-6, 1e-6]).double()), td.Normal(torch.tensor([0.0, 1e6]).double(), 1.0))
    q = td.Normal(torch.tensor(0.0).double(), 1.0)
    # Of the far component alone: w (log w + ½ (10¹²)); of the near one: (1 - w) log(1 - w).
    w = mp.mpf(float(torch.tensor(1e-6).double() / torch.tensor([1 - 1e-6, 1e-6]).double().sum()))
    truth = w * (mp.log(w) + mp.mpf(10) ** 12 / 2) + (1 - w) * mp.log1p(-w)
    assert float(auto(p, q)) == pytest.approx(float(truth), rel=1e-9)


def test_mixtures_of_vectors():
    w = torch.tensor([0.25, 0.75], dtype=torch.float64)
    m = torch.tensor([[-2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    p = td.MixtureSameFamily(td.Categorical(w), td.Independent(td.Normal(m, one), 1))
    q = td.MixtureSameFamily(td.Categorical(w), td.Independent(td.Normal(0.5 * m, one), 1))
    # The second coordinate is the same in both: KL of the first.
    truth = float(integral(mixture((0.25, 0.75), (-2, 2), (1, 1)), mixture((0.25, 0.75), (-1, 1), (1, 1)), LINE))
    found = auto(p, q, budget=200_000)
    assert "monte carlo" in found.method
    assert abs(found.value - truth) <= 4 * found.stderr
    assert found.lower <= truth <= found.upper
    assert found.lower >= 0.9 * truth
    normals = [td.MultivariateNormal(x, torch.eye(2, dtype=torch.float64)) for x in (m, 0.5 * m)]
    found = auto(*(td.MixtureSameFamily(td.Categorical(w), x) for x in normals), budget=50_000)
    assert found.lower <= truth <= found.upper


# --- counts ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "a", "q", "b"),
    [
        ("Binomial", (5.0, 0.3), "Poisson", (2.0,)), ("Binomial", (5.0, 0.3), "Binomial", (9.0, 0.4)),
        ("Poisson", (2.0,), "Geometric", (0.2,)),
        ("Geometric", (0.01,), "Poisson", (30.0,)), ("NegativeBinomial", (2.5, 0.3), "NegativeBinomial", (4.0, 0.4)),
        ("NegativeBinomial", (0.5, 0.9), "Geometric", (0.1,)), ("Geometric", (0.3,), "NegativeBinomial", (0.2, 0.6)),
        ("Poisson", (300.0,), "NegativeBinomial", (7.0, 0.9)), ("Bernoulli", (0.3,), "Poisson", (0.5,)),
    ],
)  # fmt: skip
def test_sums(p, a, q, b):
    with mp.workdps(30):
        first, second = densities.DENSITIES[p], densities.DENSITIES[q]
        x, y = densities.exact(a), densities.exact(b)
        truth = mp.mpf(0)
        for k in range(6 if p == "Binomial" else 2 if p == "Bernoulli" else 4000):
            log_f = first.log(k, *x)
            truth += mp.exp(log_f) * (log_f - second.log(k, *y))
    holds(auto(getattr(own, p)(*a), getattr(own, q)(*b)), truth, "sum", 1e-8)


def test_the_bound_of_a_cut_sum_is_a_bound():
    """Cut early, by a loose tolerance: what is missing is within the bound, and the bound is of its size."""
    from kullback.estimators._law import law_of
    from kullback.estimators._summation import sum_kl

    p, q = law_of(own.Geometric(0.001)), law_of(own.Poisson(20.0))
    exact = sum_kl(p, q, (), 1e-13, 10**7)
    for tol in (0.5, 1e-2, 1e-4):
        found = sum_kl(p, q, (), tol, 10**7)
        missing = exact.value - found.value
        assert 0 <= missing <= found.bound <= tol * found.value * 1.001
        assert found.terms < exact.terms


def test_counts_infinite_and_too_many():
    assert auto(own.Poisson(2.0), own.Binomial(5.0, 0.3)).value == math.inf
    assert auto(own.Poisson(1e-3), own.Binomial(1000.0, 0.3)).value == math.inf  # the mass beyond 1000 is 1e-5571
    assert np.isfinite(auto(own.Poisson(0.0), own.Binomial(10.0, 0.3)).value)
    assert auto(td.Poisson(2.0), td.Binomial(5, torch.tensor(0.3))).value == math.inf
    found = auto(own.Poisson(1e9), own.NegativeBinomial(10.0, 0.5), budget=20_000)
    assert "monte carlo" in found.method
    assert found.stderr > 0


def test_zero_inflated_and_mixed_counts():
    p, q = numpyro.ZeroInflatedPoisson(0.25, 2.0), numpyro.Poisson(1.5)

    def log_p(k):
        inside = mp.mpf(3) / 4 * mp.exp(densities.DENSITIES["Poisson"].log(k, mp.mpf(2)))
        return mp.log(inside + (mp.mpf(1) / 4 if k == 0 else 0))

    truth = mp.fsum(mp.exp(log_p(k)) * (log_p(k) - densities.DENSITIES["Poisson"].log(k, mp.mpf(1.5))) for k in range(80))
    holds(auto(p, q), truth, "sum")
    mixed = td.MixtureSameFamily(td.Categorical(torch.tensor([0.5, 0.5])), td.Poisson(torch.tensor([1.0, 4.0])))

    def log_q(k):
        return mp.log(mp.fsum(mp.exp(densities.DENSITIES["Poisson"].log(k, mp.mpf(m))) / 2 for m in (1, 4)))

    log_f = [densities.DENSITIES["Poisson"].log(k, mp.mpf(2)) for k in range(80)]
    truth = mp.fsum(mp.exp(x) * (x - log_q(k)) for k, x in enumerate(log_f))
    holds(auto(td.Poisson(2.0), mixed), truth, "sum")


# --- the whole -------------------------------------------------------------------------------------------------------------------------


def test_closed_forms_first():
    found = auto(own.Normal(0.0, 1.0), own.Normal(1.0, 1.5))
    assert (found.method, found.n, found.stderr) == ("closed form", 0, None)
    assert found.value == kb.kl(own.Normal(0.0, 1.0), own.Normal(1.0, 1.5))
    assert found.error <= 1e-11
    assert auto(td.Normal(0.0, 1.0), td.Normal(1.0, 1.5)).error <= 2e-5
    # The closed form holds for equal counts only: each element by what it has.
    found = auto(own.Binomial([5.0, 5.0], 0.3), own.Binomial([5.0, 9.0], 0.4))
    assert found.method in ("closed form, or sum", "sum")
    assert found.value[0] == pytest.approx(float(kb.kl(own.Binomial(5.0, 0.3), own.Binomial(5.0, 0.4))), rel=1e-14)
    assert float(found.value[1]) == float(auto(own.Binomial(5.0, 0.3), own.Binomial(9.0, 0.4)))


def test_batches_element_by_element():
    df, loc = torch.tensor([[3.0], [5.0], [30.0]]), torch.tensor([0.0, 0.5])
    found = auto(td.Normal(loc, 1.0), td.StudentT(df))
    assert found.value.shape == found.error.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            truth = integral(normal(mp.mpf(float(loc[j])), 1), student(mp.mpf(float(df[i]))), LINE)
            assert abs(float(truth) - found.value[i, j]) <= found.error[i, j] <= 1e-9
    # One infinite element does not spoil the others.
    mixed = auto(own.Uniform(0.0, [1.0, 2.0]), own.Beta(2.0, 2.0))
    assert np.isfinite(mixed.value[0])
    assert mixed.value[1] == math.inf


def test_independent_numbers_add_up():
    p = td.Independent(td.Normal(torch.zeros(2, 3), 1.0), 1)
    found = auto(p, td.Independent(td.Laplace(torch.zeros(3), 1.0), 1))
    one = auto(td.Normal(0.0, 1.0), td.Laplace(0.0, 1.0))
    assert found.value.shape == (2,)
    np.testing.assert_allclose(found.value, 3 * one.value, rtol=1e-6)  # closed forms of float32 objects, rounded before and after


def test_what_cannot_be_integrated_is_sampled():
    p = td.Dirichlet(torch.tensor([1.0, 2.0, 3.0]))
    q = td.TransformedDistribution(td.Normal(torch.zeros(2), torch.ones(2)), td.StickBreakingTransform())
    found = auto(p, q, budget=30_000)
    assert "monte carlo" in found.method
    assert found.n == 30_000
    assert 0.5 < found.value < 2.5
    coarse = auto(p, q, budget=10**6, tol=0.05)
    assert coarse.n < 10**5
    assert coarse.stderr <= 0.05 * coarse.value


def test_base_and_options():
    nats, bits = (auto(own.Normal(0.0, 1.0), own.Cauchy(0.0, 1.0), base=b) for b in (None, 2))
    assert bits.value == pytest.approx(nats.value / math.log(2), rel=1e-15)
    assert bits.error == pytest.approx(nats.error / math.log(2), rel=1e-15)
    loose, tight = (auto(scipy.stats.t(3), scipy.stats.norm(), tol=tol) for tol in (1e-3, 1e-12))
    assert loose.n < tight.n
    p, q = own.Normal(0.0, 1.0), own.Cauchy(0.0, 1.0)
    for options, message in (
        ({"method": "magic"}, "method is 'magic'"), ({"method": "auto", "tol": 2.0}, "tol is 2.0"),
        ({"method": "auto", "budget": 3}, "budget is 3"),
        ({"tol": 0.1}, "go with method='auto'"), ({"method": "auto", "reduction": "sum"}, "reduction is for values"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            kb.kl(p, q, **options)
    with pytest.raises(ValueError, match="method is for distribution objects"):
        kb.kl([0.5, 0.5], [0.5, 0.5], method="auto")
    with pytest.raises(ValueError, match="events have different shapes"):
        auto(td.Dirichlet(torch.ones(3)), td.Dirichlet(torch.ones(4)))
    assert auto(own.Normal(0.0, 1.0), own.Poisson(1.0)).value == math.inf


def test_no_closed_form_says_what_to_do():
    with pytest.raises(kb.NoClosedForm, match=r"KL\(Normal‖Cauchy\).*from Normal there is one to .*method='auto'.*register_kl"):
        kb.kl(own.Normal(0.0, 1.0), own.Cauchy(0.0, 1.0))
    with pytest.raises(kb.NoClosedForm, match=r"KL\(StudentT‖Normal\).*method='auto'"):
        kb.kl(td.StudentT(3.0), td.Normal(0.0, 1.0))


# --- parameters that make no distribution, and places where floats are too far apart ----------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (scipy.stats.norm(NAN, 1.0), "loc=nan"), (scipy.stats.norm(INF, 1.0), "loc=inf"), (scipy.stats.norm(0.0, 0.0), "scale=0"),
        (scipy.stats.uniform(0.0, 0.0), "scale=0"), (scipy.stats.t(NAN), "df=nan"), (scipy.stats.gamma(-1.0), "a=-1"),
        (own.Cauchy(NAN, 1.0), "loc=nan"), (own.Kumaraswamy(NAN, 1.0), "concentration1=nan"),
        (own.Cauchy([NAN, 0.0], [1.0, 0.0]), "loc=nan"),
    ],
)  # fmt: skip
def test_parameters_that_make_no_distribution_give_nan_and_are_named(bad, named):
    """A regression: P's mass was not seen, and the answer was 0 ± 2."""
    for p, q, side in ((bad, scipy.stats.t(3), "p: "), (scipy.stats.t(3), bad, "q: ")):
        for found in (auto(p, q), kb.estimators.monte_carlo(p, q, rng=0, n=200)):
            assert np.isnan(found.value).all()
            assert np.isnan(found.error).all()
            assert side in found.method
            assert named in found.method


def test_counts_and_weights_that_make_no_distribution_give_nan():
    """A regression: SciPy's sentence about a `scale` that no count has, or Monte Carlo of NaN."""
    for bad, named in ((scipy.stats.poisson(NAN), "rate=nan"), (own.Poisson(-1.0), "rate=-1"), (scipy.stats.randint(3, 3), "high=3"),
                       (scipy.stats.poisson(INF), "mu=inf"), (own.Categorical([0.0, 0.0]), "weights"),
                       (numpyro.ZeroInflatedPoisson(NAN, 2.0, validate_args=False), "gate=nan")):  # fmt: skip
        for p, q in ((bad, scipy.stats.nbinom(3, 0.4)), (scipy.stats.nbinom(3, 0.4), bad)):
            found = auto(p, q)
            assert np.isnan(found.value)
            assert named in found.method


def test_objects_with_nan_of_every_library_and_mixtures_of_them():
    nan = torch.tensor(NAN)
    weights, parts = torch.tensor([0.5, 0.5]), td.Normal(torch.tensor([0.0, NAN]), 1.0, validate_args=False)
    unknown = td.Categorical(torch.tensor([0.5, NAN]), validate_args=False)
    for p, q in (
        (td.Normal(nan, 1.0, validate_args=False), td.StudentT(3.0)),
        (td.MixtureSameFamily(td.Categorical(weights), parts, validate_args=False), td.Normal(0.0, 1.0)),
        # Regression: weights of NaN counted as equal weights.
        (td.MixtureSameFamily(unknown, td.Normal(torch.tensor([0.0, 1.0]), 1.0), validate_args=False), td.Normal(0.0, 1.0)),
        (td.TransformedDistribution(td.StudentT(3.0), [td.AffineTransform(nan, 1.0)]), td.Normal(0.0, 1.0)),
        (td.Independent(td.Normal(torch.tensor([0.0, NAN]), 1.0, validate_args=False), 1), td.Independent(td.StudentT(torch.ones(2)), 1)),
        (numpyro.Normal(NAN, 1.0, validate_args=False), numpyro.StudentT(3.0)),
        (tfp.distributions.Normal(NAN, 1.0), tfp.distributions.StudentT(3.0, 0.0, 1.0)),
        (tfp_jax.distributions.Normal(NAN, 1.0), tfp_jax.distributions.StudentT(3.0, 0.0, 1.0)),
        (distrax.Normal(NAN, 1.0), scipy.stats.t(3)),
    ):
        found = auto(p, q, budget=1000)
        assert np.isnan(found.value), p
        assert np.isnan(found.error), p
    # A component without weight may be anything.
    none = td.MixtureSameFamily(td.Categorical(torch.tensor([1.0, 0.0])), parts, validate_args=False)
    assert auto(none, td.Normal(0.0, 1.0)).value == pytest.approx(0.0, abs=1e-15)


def test_an_invalid_element_does_not_spoil_its_batch():
    """A regression: 0 ± 2 for the element, or SciPy's refusal of the whole batch."""
    found = auto(scipy.stats.norm([0.0, NAN, 1.0], 1.0), scipy.stats.t(3))
    alone = [auto(scipy.stats.norm(m, 1.0), scipy.stats.t(3)).value for m in (0.0, 1.0)]
    np.testing.assert_array_equal(found.value, [alone[0], NAN, alone[1]])
    assert "loc=nan, scale=1) (batch element 1)" in found.method
    found = auto(own.Poisson([2.0, NAN]), own.Geometric(0.2))
    assert found.value[0] == auto(own.Poisson(2.0), own.Geometric(0.2)).value
    assert np.isnan(found.value[1])
    found = auto(td.Normal(torch.tensor([NAN, 0.0]), 1.0, validate_args=False), td.Normal(0.0, 2.0))
    assert np.isnan(found.value[0])
    assert found.value[1] == float(td.kl_divergence(td.Normal(0.0, 1.0), td.Normal(0.0, 2.0)))


def test_infinite_parameters_that_are_limits():
    """A regression: an error bar of NaN for t with df = inf, which is the normal distribution."""
    holds(auto(scipy.stats.t(INF), scipy.stats.t(3)), integral(normal(0, 1), student(3), LINE), "quadrature")


@pytest.mark.parametrize(("place", "scale"), [(1e20, 1.0), (1e17, 1.0), (-1e10, 1.0), (1.0, 1e-20), (1e300, 1e290), (1e6, 1e-12)])
def test_places_that_floats_do_not_resolve(place, scale):
    """A regression: at 1e20 all points of P were one float, and the answer 0.08195 ± 7e-17."""
    holds(auto(scipy.stats.norm(place, scale), scipy.stats.t(3, place, scale)), integral(normal(0, 1), student(3), LINE), "quadrature")
    truth = integral(normal(0, 1), student(1), LINE)
    found = auto(own.Normal([place, 0.0], [scale, 1.0]), own.Cauchy([place, 0.0], [scale, 1.0]))
    assert np.all(np.abs(found.value - float(truth)) <= found.error)
    assert np.all(found.error <= 1e-10)
    parts = [td.Normal(torch.tensor([a, a], dtype=torch.float64), torch.tensor([b, b], dtype=torch.float64))
             for a, b in ((place, scale), (place, 2.0 * scale))]  # fmt: skip
    mixed = [td.MixtureSameFamily(td.Categorical(torch.tensor([0.25, 0.75])), part) for part in parts]
    holds(auto(*mixed), mp.log(2) + mp.mpf(1) / 8 - mp.mpf(1) / 2, "quadrature")


def test_scales_of_one_law_beside_the_place_of_another():
    """A regression: 78.51 ± 7e-14. KL = ∫ p log p + log π + E log(1 + x²), and x is 1e17 to 17 digits."""
    truth = -mp.log(2 * mp.pi * mp.e) / 2 + mp.log(mp.pi) + 2 * mp.log(mp.mpf(10) ** 17)
    holds(auto(scipy.stats.norm(1e17, 1.0), scipy.stats.t(1)), truth, "quadrature")
    # Uniform on 64 numbers beyond 1e17: a crash of NumPy's, where no node was left.
    truth = integral(lambda x: mp.mpf(0), student(3), [0, 0.25, 0.5, 1])
    holds(auto(scipy.stats.uniform(1e17, 64.0), scipy.stats.t(3, 1e17, 64.0)), truth, "quadrature")


def test_what_cannot_be_shifted_has_a_wide_error_or_none():
    """Regressions: error bars of 1e-11 and less around wrong numbers, from points that floats had merged."""
    places, scales = torch.tensor([0.0, 1e20]).double(), (torch.tensor([1.0, s]).double() for s in (2.0, 3.0))
    mixed = [td.MixtureSameFamily(td.Categorical(torch.tensor([0.25, 0.75]).double()), td.Normal(places, s)) for s in scales]
    found, truth = auto(*mixed, budget=2000), 0.75 * (math.log(1.5) + (4 / 9 - 1) / 2)
    assert abs(found.value - truth) <= found.error
    shifted = [td.TransformedDistribution(td.StudentT(torch.tensor(3.0).double()), [td.AffineTransform(torch.tensor(loc).double(), 1.0)])
               for loc in (1e20, 1e10)]  # fmt: skip
    for p, loc in zip(shifted, (1e20, 1e10)):
        found = auto(p, td.Normal(torch.tensor(loc).double(), 1.0), budget=2000)
        assert not abs(found.value - 0.6454609613413) > 4.0 * found.error  # four standard errors, or a bound
    assert np.isnan(auto(shifted[0], td.Normal(torch.tensor(1e20).double(), 1.0), budget=2000).value)
    found = auto(scipy.stats.randint(10**17, 10**17 + 10), scipy.stats.binom(20, 0.5, 10**17), budget=1000)
    assert np.isnan(found.value)
    assert "too far apart" in found.method


@pytest.mark.parametrize("mean", [1e12, 1e18])
def test_counts_of_large_means_admit_the_rounding_of_their_terms(mean):
    """A regression: -517 ± 64, where log Γ of 1e18 is rounded at 4096. Both laws have mean n; by normal limits KL is ½ (log 2 - ½)."""
    for estimate in (auto, lambda p, q, budget: kb.estimators.monte_carlo(p, q, n=budget, rng=0)):
        found = estimate(own.Poisson(mean), own.NegativeBinomial(mean, 0.5), budget=100_000)
        assert abs(found.value - 0.5 * (math.log(2) - 0.5)) <= 4.0 * found.error


def test_samples_at_the_end_of_the_support_are_not_proof_of_infinity():
    """A regression: samples of Gamma(1e-3) underflow to 0, where its density is infinite, and KL was said to be inf."""
    found = kb.estimators.monte_carlo(scipy.stats.gamma(1e-3), scipy.stats.expon(), n=1000, rng=0)
    assert np.isnan(found.value)


def test_empty_batches():
    """A regression: NumPy's "cannot reshape array of size 0"."""
    none = torch.zeros(0)
    for p, q in ((td.Normal(none, 1.0), td.StudentT(3.0)), (own.Poisson(np.zeros(0)), own.Geometric(0.5)),
                 (td.MixtureSameFamily(td.Categorical(torch.ones(0, 2)), td.Normal(torch.zeros(0, 2), 1.0)), td.Normal(0.0, 1.0)),
                 (scipy.stats.norm(np.zeros((2, 0))), scipy.stats.t(3))):  # fmt: skip
        for found in (auto(p, q), kb.estimators.monte_carlo(p, q)):
            assert np.shape(found.value) in ((0,), (2, 0))
            assert np.shape(found.error) == np.shape(found.value)


def test_singular_matrices_are_refused():
    """A regression: LinAlgError, or a density in a subspace taken for one of the whole space (-0.157 for a KL of inf)."""
    ones = [[1.0, 1.0], [1.0, 1.0]]
    plain, flat = scipy.stats.multivariate_normal([0, 0]), scipy.stats.multivariate_normal([0, 0], ones, allow_singular=True)
    flat_t = scipy.stats.multivariate_t([0, 0], ones, allow_singular=True)
    for p, q in ((flat, plain), (plain, flat), (plain, flat_t), (flat_t, plain), (flat, scipy.stats.multivariate_t([0, 0]))):
        with pytest.raises(ValueError, match=r"singular matrix \(rank 1 of 2\): it has no density; drop the coordinates"):
            auto(p, q)
    for p in (flat, own.MultivariateNormalCovariance([0.0, 0.0], ones)):
        with pytest.raises(ValueError, match=r"singular .*no density"):
            kb.kl(p, plain)
    found = auto(own.MultivariateNormal([0.0, 0.0], [[1.0, 0.0], [1.0, 0.0]]), scipy.stats.multivariate_t([0, 0]))
    assert np.isnan(found.value)
    assert "singular" in found.method


def test_tails_beyond_the_squares_that_floats_hold():
    """Regressions: 1.7e288 ± 4.8e288 for an infinite KL, and inf for a finite one, where SciPy's own squares overflow."""
    for p, q in ((scipy.stats.t(0.0721), scipy.stats.norm()), (scipy.stats.t(0.357), scipy.stats.logistic())):
        assert auto(p, q, budget=20_000).value == INF
    p, q = scipy.stats.cauchy(), scipy.stats.t(0.0625, 1.5, 0.125)
    log = student(mp.mpf(1) / 16)

    def term(u):
        x = 1.5 + mp.sinh(u) / 64
        a = -mp.log(mp.pi) - mp.log1p(x * x)
        return mp.exp(a) * (a - log((x - 1.5) * 8) - mp.log(8)) * mp.cosh(u) / 64

    with mp.workdps(25):
        truth = mp.quad(term, [-160, -80, *range(-40, 41, 4), 80, 160])
    holds(auto(p, q), truth, "quadrature", 1e-7)


def test_shifted_laws_and_laws_of_the_whole_line():
    """A regression, also without method="auto": inf, as if the normal distribution started at 0."""
    for p, truth in ((scipy.stats.halfnorm(-3.0), mp.log(2)), (scipy.stats.expon(-3.0), mp.log(2 * mp.pi) / 2)):
        found = auto(p, scipy.stats.norm(-3.0))  # the half-normal: log 2; the exponential: -1 + ½ log 2π + ½ E z², E z² = 2
        holds(found, truth, "quadrature")
        with pytest.raises(kb.NoClosedForm):
            kb.kl(p, scipy.stats.norm(-3.0))
    holds(auto(scipy.stats.uniform(5.0, 1.0), scipy.stats.expon(1.0)), mp.mpf("4.5"), "quadrature")
    assert kb.kl(scipy.stats.gamma(2.0, -1.0), scipy.stats.expon(-0.5)) == INF
    # Ends that round to others: 4e-8 off in the closed form.
    p, q = scipy.stats.uniform(-3.0, 1e-10), scipy.stats.gumbel_r(-3.0, 1e-11)
    ratio = mp.mpf(1e-10) / mp.mpf(1e-11)
    truth = integral(lambda x: mp.mpf(0), lambda x: -ratio * x - mp.exp(-ratio * x) + mp.log(ratio), [0, 0.1, 0.5, 1])
    holds(auto(p, q), truth, "quadrature")


def test_samples_that_miss_mass_of_q_are_no_control():
    """A regression: 0.46653164829288 ± 1.5e-14 for 0.4706, where no sample came from 2 and beyond, and Q has 0.14 there."""
    p, q, ratio = scipy.stats.planck(6.770434442790068), scipy.stats.geom(0.6197606497277055, -1), mp.exp(mp.mpf(-6.770434442790068))
    mean = ratio / (1 - ratio)
    truth = mp.log(1 - ratio) + mean * mp.log(ratio) - mp.log(mp.mpf(0.6197606497277055)) - mean * mp.log1p(-mp.mpf(0.6197606497277055))
    for found in (auto(p, q, budget=200_000), kb.estimators.monte_carlo(p, q, n=200_000, rng=0)):
        assert abs(found.value - truth) <= 4.0 * found.error
    # With counts of 0 and 1 alone the control explains everything: 0.001801099658 ± 4e-12, and 2 and beyond are missing.
    p, rate, q = own.Poisson(1.0 / 1024.0), mp.mpf(1) / 1024, scipy.stats.planck(8.5)
    truth = mp.fsum(
        mp.exp(a) * (a - mp.log(-mp.expm1(-8.5)) + mp.mpf("8.5") * k)
        for k in range(12)
        for a in [densities.DENSITIES["Poisson"].log(k, rate)]
    )
    found = auto(p, q, budget=200_000)
    assert abs(found.value - truth) <= 4.0 * found.error


def test_masses_that_underflow_are_no_zeros():
    """A regression: inf, where SciPy's mass of Q is 0 at 800 by underflow; and a number, where Q ends and samples of P never get there."""
    assert np.isnan(auto(scipy.stats.geom(0.01, -1), scipy.stats.planck(3.0), budget=20_000).value)
    assert auto(scipy.stats.planck(4.7), scipy.stats.randint(0, 3), budget=1000).value == INF


def test_bounds_of_sums_admit_the_rounding_of_the_weights():
    """A regression: 2e-12 off with ± 8.3e-13. An error in log p counts as often as log(p/q) is large."""
    n, p, g = 58, 0.6137785589494178, 0.9586427498014036
    a, b = densities.DENSITIES["Binomial"], densities.DENSITIES["Geometric"]
    logs = [(a.log(k, mp.mpf(n), mp.mpf(p)), b.log(k, mp.mpf(g))) for k in range(n + 1)]
    holds(auto(own.Binomial(float(n), p), own.Geometric(g)), mp.fsum(mp.exp(x) * (x - y) for x, y in logs), "sum")

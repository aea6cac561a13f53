"""Distributions made of others, vectors, matrices, spheres and points: against definitions, by hand, by mpmath or by integration."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats as ss
import torch
import torch.distributions as td

import kullback as kb
from frameworks import Lazy
from kullback import distributions as D

distrax = Lazy("distrax")
jax = Lazy("jax")
jnp = Lazy("jax.numpy")
nd = Lazy("numpyro.distributions")
tf = Lazy("tensorflow")
tfp = Lazy("tensorflow_probability")

tfd = Lazy("tensorflow_probability", "distributions")
tfb = Lazy("tensorflow_probability", "bijectors")
# Of float32 results of numbers of the order of 1.
FLOAT32 = 2e-5


def _normal_truth(loc_p, cov_p, loc_q, cov_q):
    with mp.workdps(40):
        p, q = (mp.matrix(np.asarray(x, float).tolist()) for x in (cov_p, cov_q))
        delta = mp.matrix([mp.mpf(float(a)) - mp.mpf(float(b)) for a, b in zip(loc_p, loc_q)])
        inverse = q**-1
        n = len(delta)
        trace = mp.fsum((inverse * p)[i, i] for i in range(n))
        return float((trace - n + (delta.T * inverse * delta)[0] + mp.log(mp.det(q) / mp.det(p))) / 2)


RNG = np.random.default_rng(3)
LOC_P, LOC_Q = (RNG.normal(size=3).astype(np.float32) for _ in range(2))
TRIL_P, TRIL_Q = ((np.tril(RNG.normal(size=(3, 3))) * 0.4 + np.diag(RNG.uniform(0.7, 1.5, 3))).astype(np.float32) for _ in range(2))
DIAG = np.array([0.7, 1.3, 0.4], np.float32)
FACTOR = RNG.normal(size=(3, 2)).astype(np.float32)
COV_Q = (TRIL_Q.astype(float) @ TRIL_Q.T.astype(float)).astype(np.float32)
LOW_RANK = FACTOR.astype(float) @ FACTOR.T.astype(float) + np.diag(DIAG.astype(float))


def _vectors(library):
    """Each parameterisation of the same Q or another, beside one P; (object, its covariance)."""
    t = torch.tensor
    tril_q = TRIL_Q.astype(float) @ TRIL_Q.T.astype(float)
    squares = np.diag(DIAG.astype(float) ** 2)
    full = (FACTOR @ FACTOR.T + np.diag(DIAG)).astype(float)
    made = {
        "torch": lambda: (
            td.MultivariateNormal(t(LOC_P), scale_tril=t(TRIL_P)),
            [
                (td.MultivariateNormal(t(LOC_Q), scale_tril=t(TRIL_Q)), tril_q),
                (td.MultivariateNormal(t(LOC_Q), t(COV_Q)), tril_q),
                (td.MultivariateNormal(t(LOC_Q), precision_matrix=t(COV_Q)), np.linalg.inv(COV_Q.astype(float))),
                (td.LowRankMultivariateNormal(t(LOC_Q), t(FACTOR), t(DIAG)), LOW_RANK),
                (td.Independent(td.Normal(t(LOC_Q), t(DIAG)), 1), squares),
            ],
        ),
        "numpyro": lambda: (
            nd.MultivariateNormal(jnp.asarray(LOC_P), scale_tril=jnp.asarray(TRIL_P)),
            [
                (nd.MultivariateNormal(jnp.asarray(LOC_Q), scale_tril=jnp.asarray(TRIL_Q)), tril_q),
                (nd.LowRankMultivariateNormal(jnp.asarray(LOC_Q), jnp.asarray(FACTOR), jnp.asarray(DIAG)), LOW_RANK),
                (nd.Normal(jnp.asarray(LOC_Q), jnp.asarray(DIAG)).to_event(1), squares),
                (
                    nd.CirculantNormal(jnp.asarray(LOC_Q), covariance_row=jnp.asarray([2.0, 0.5, 0.5])),
                    np.full((3, 3), 0.5) + 1.5 * np.eye(3),
                ),
            ],
        ),
        "tfp": lambda: (
            tfd.MultivariateNormalTriL(LOC_P, TRIL_P),
            [
                (tfd.MultivariateNormalTriL(LOC_Q, TRIL_Q), tril_q),
                (tfd.MultivariateNormalDiag(LOC_Q, DIAG), squares),
                (tfd.MultivariateNormalFullCovariance(LOC_Q, COV_Q), tril_q),
                (
                    tfd.MultivariateNormalLinearOperator(LOC_Q, tf.linalg.LinearOperatorFullMatrix(FACTOR @ FACTOR.T + np.diag(DIAG))),
                    full @ full.T,
                ),
                (tfd.MultivariateNormalDiagPlusLowRankCovariance(LOC_Q, DIAG, FACTOR), LOW_RANK),
            ],
        ),
        "distrax": lambda: (
            distrax.MultivariateNormalTri(jnp.asarray(LOC_P), jnp.asarray(TRIL_P)),
            [
                (distrax.MultivariateNormalTri(jnp.asarray(LOC_Q), jnp.asarray(TRIL_Q)), tril_q),
                (distrax.MultivariateNormalDiag(jnp.asarray(LOC_Q), jnp.asarray(DIAG)), squares),
                (distrax.MultivariateNormalFullCovariance(jnp.asarray(LOC_Q), jnp.asarray(COV_Q)), tril_q),
            ],
        ),
        "records": lambda: (
            D.MultivariateNormal(LOC_P.astype(float), TRIL_P.astype(float)),
            [
                (D.MultivariateNormalPrecision(LOC_Q, COV_Q), np.linalg.inv(COV_Q.astype(float))),
                (D.MultivariateNormalCovariance(LOC_Q, COV_Q), tril_q),
                (D.MultivariateNormalScale(LOC_Q, FACTOR @ FACTOR.T + np.diag(DIAG)), full @ full.T),
            ],
        ),
    }
    return made[library]()


@pytest.mark.parametrize("library", ["torch", "numpyro", "tfp", "distrax", "records"])
def test_normal_vectors_in_every_parameterisation(library):
    p, others = _vectors(library)
    cov_p = TRIL_P.astype(float) @ TRIL_P.T.astype(float)
    for q, cov_q in others:
        condition = np.linalg.cond(cov_q)
        found = float(kb.kl(p, q))
        # Some keep a factor that they made in float32 of what they were given.
        assert found == pytest.approx(_normal_truth(LOC_P, cov_p, LOC_Q, cov_q), rel=1e-6 * condition), type(q)
        back = float(kb.kl(q, p))
        assert back == pytest.approx(_normal_truth(LOC_Q, cov_q, LOC_P, cov_p), rel=1e-6 * condition * np.linalg.cond(cov_p)), type(q)


def test_gaussian_processes_on_shared_points():
    points = np.linspace(0, 1, 4, dtype=np.float32)[:, None]
    kernels = [tfp.math.psd_kernels.ExponentiatedQuadratic(np.float32(a), np.float32(0.3)) for a in (1.0, 1.5)]
    p, q = (tfd.GaussianProcess(k, points, observation_noise_variance=0.5) for k in kernels)
    covariances = [np.asarray(x.covariance(), float) for x in (p, q)]
    truth = _normal_truth(np.zeros(4), covariances[0], np.zeros(4), covariances[1])
    assert float(kb.kl(p, q)) == pytest.approx(truth, rel=FLOAT32)
    vector = tfd.MultivariateNormalTriL(np.zeros(4, np.float32), np.linalg.cholesky(covariances[1]).astype(np.float32))
    assert float(kb.kl(p, vector)) == pytest.approx(truth, rel=FLOAT32)
    assert float(kb.kl(vector, q)) == pytest.approx(0.0, abs=1e-6)


def test_matrix_normal_is_a_vector():
    rows, columns = (
        (np.tril(RNG.normal(size=(n, n))) * 0.3 + np.eye(n) for n in (2, 3)),
        (np.tril(RNG.normal(size=(n, n))) * 0.3 + np.eye(n) for n in (2, 3)),
    )
    (a, b), (c, d) = rows, columns
    x, y = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    p, q = D.MatrixNormal(x, a, b), D.MatrixNormal(y, c, d)
    truth = _normal_truth(x.ravel(), np.kron(a @ a.T, b @ b.T), y.ravel(), np.kron(c @ c.T, d @ d.T))
    assert kb.kl(p, q) == pytest.approx(truth, rel=1e-12)
    frozen = kb.kl(ss.matrix_normal(x, a @ a.T, b @ b.T), ss.matrix_normal(y, c @ c.T, d @ d.T))
    assert frozen == pytest.approx(truth, rel=1e-12)
    t = [torch.tensor(v, requires_grad=True) for v in (x, a, b, y, c, d)]
    gradients = torch.autograd.grad(kb.kl(D.MatrixNormal(*t[:3]), D.MatrixNormal(*t[3:])), t)
    assert all(g.isfinite().all() for g in gradients)


def _log_wishart_constant(n, v):
    """log of the normaliser of Wishart(n, V)."""
    d = v.rows
    gammas = mp.fsum(mp.loggamma((n - i) / 2) for i in range(d)) + d * (d - 1) * mp.log(mp.pi) / 4
    return n * d * mp.log(2) / 2 + n * mp.log(mp.det(v)) / 2 + gammas


def _wishart_truth(n, v, m, w):
    """From E[log det X] and E[X] = n V; Bishop, Pattern Recognition and Machine Learning, appendix B."""
    with mp.workdps(50):
        return _wishart_exact(float(n), mp.matrix(np.asarray(v, float).tolist()), float(m), mp.matrix(np.asarray(w, float).tolist()))


@pytest.mark.parametrize("step", [1.0, 1e-2, 1e-5])
def test_wishart(step):
    a = np.tril(RNG.normal(size=(3, 3))) * 0.3 + np.eye(3)
    b = a + step * np.tril(RNG.normal(size=(3, 3))) * 0.2
    n, m = 5.5, 5.5 + 2.0 * step
    truth = float(_wishart_truth(n, a, m, b))
    assert kb.kl(D.Wishart(n, a), D.Wishart(m, b)) == pytest.approx(truth, rel=1e-11 * np.linalg.cond(a @ a.T))
    # The inverse of one with scale Ψ is a Wishart variable with scale Ψ⁻¹.
    with mp.workdps(50):
        factors = [
            np.asarray((mp.cholesky((mp.matrix(x.tolist()) * mp.matrix(x.tolist()).T) ** -1)).tolist(), dtype=object) for x in (a, b)
        ]
        exact = [mp.matrix(x.tolist()) for x in factors]
        truth = _wishart_exact(n, exact[0], m, exact[1])
    assert kb.kl(D.InverseWishart(n, a), D.InverseWishart(m, b)) == pytest.approx(float(truth), rel=1e-11 * np.linalg.cond(a @ a.T))


def _wishart_exact(n, v, m, w):
    n, m = mp.mpf(n), mp.mpf(m)
    v, w = v * v.T, w * w.T
    d = v.rows
    log_det = mp.fsum(mp.digamma((n - i) / 2) for i in range(d)) + d * mp.log(2) + mp.log(mp.det(v))
    trace = mp.fsum((w**-1 * v)[i, i] for i in range(d)) * n
    return (n - m) / 2 * log_det - n * d / 2 + trace / 2 - _log_wishart_constant(n, v) + _log_wishart_constant(m, w)


def test_wishart_objects_and_gradients():
    a, b = TRIL_P, TRIL_Q
    truth = float(_wishart_truth(5.5, a, 4.0, b))
    p, q = td.Wishart(torch.tensor(5.5), scale_tril=torch.tensor(a)), td.Wishart(torch.tensor(4.0), scale_tril=torch.tensor(b))
    assert kb.kl(p, q).item() == pytest.approx(truth, rel=1e-6)
    assert float(kb.kl(tfd.WishartTriL(5.5, a), tfd.WishartTriL(4.0, b))) == pytest.approx(truth, rel=1e-6)
    assert float(kb.kl(nd.Wishart(5.5, scale_tril=jnp.asarray(a)), nd.Wishart(4.0, scale_tril=jnp.asarray(b)))) == pytest.approx(
        truth, rel=1e-6
    )
    inputs = tuple(torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (5.5, np.tril(a), 4.0, np.tril(b)))
    mask = torch.tensor(np.tril(np.ones((3, 3))))
    # PyTorch's own has none to P.
    assert torch.autograd.gradcheck(lambda n, v, m, w: kb.kl(D.Wishart(n, v * mask), D.Wishart(m, w * mask)), inputs)
    assert math.isnan(kb.kl(D.Wishart(1.5, np.eye(3)), D.Wishart(4.0, np.eye(3))))


def test_mean_and_variance_together():
    """KL of the joint law = that of the variance + the mean of that given it; the outer mean by integration."""
    p, q = (0.3, 2.0, 3.0, 1.5), (0.7, 1.2, 2.2, 1.1)

    def given(v):
        s, t = math.sqrt(v / p[1]), math.sqrt(v / q[1])
        return math.log(t / s) + (s * s + (p[0] - q[0]) ** 2) / (2 * t * t) - 0.5

    f, g = ss.invgamma(p[2], scale=p[3]), ss.invgamma(q[2], scale=q[3])
    truth = scipy.integrate.quad(lambda v: f.pdf(v) * (f.logpdf(v) - g.logpdf(v) + given(v)), 0, np.inf, epsabs=1e-12)[0]
    assert kb.kl(D.NormalInverseGamma(*p), D.NormalInverseGamma(*q)) == pytest.approx(truth, rel=1e-9)
    # In one dimension the Wishart version is the same: Wishart(n, 1/ψ) = Gamma(n/2, ψ/2).
    wide = [D.NormalInverseWishart([m], w, 2 * a, [[math.sqrt(2 * b)]]) for m, w, a, b in (p, q)]
    assert kb.kl(*wide) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_spheres(size):
    """By integration over the angle to P's direction; Q's differs by a known angle only where the mean is enough."""
    kappa, other = 3.0, 1.4

    def log_constant(log_weight):
        area = 2 * math.pi ** ((size - 1) / 2) / math.gamma((size - 1) / 2)
        return math.log(
            area
            * scipy.integrate.quad(lambda t: math.exp(log_weight(math.cos(t))) * math.sin(t) ** (size - 2), 0, math.pi, epsabs=1e-13)[0]
        )

    laws = {"VonMisesFisher": lambda k: lambda c: k * c, "PowerSpherical": lambda k: lambda c: k * math.log1p(c) if c > -1 else -math.inf}

    def truth(first, k, second, m, cosine):
        f, g = laws[first](k), laws[second](m)
        c_f, c_g = log_constant(f), log_constant(g)
        area = math.exp(log_constant(lambda c: 0.0))
        ring = area / scipy.integrate.quad(lambda t: math.sin(t) ** (size - 2), 0, math.pi)[0]
        mean = lambda h: scipy.integrate.quad(  # noqa: E731
            lambda t: ring * math.exp(f(math.cos(t)) - c_f) * h(math.cos(t)) * math.sin(t) ** (size - 2), 0, math.pi, epsabs=1e-13
        )[0]
        # E[g] is linear in the mean of x for Q = von Mises-Fisher, whatever its direction.
        cross = mean(lambda c: g(c * cosine)) if second == "VonMisesFisher" else mean(g)
        return mean(lambda c: f(c) if f(c) > -1e300 else 0.0) - c_f - cross + c_g

    up = np.eye(size)[0]
    aside = np.zeros(size)
    aside[:2] = 0.6, 0.8
    p = D.VonMisesFisher(up, kappa)
    assert kb.kl(p, D.VonMisesFisher(aside, other)) == pytest.approx(truth("VonMisesFisher", kappa, "VonMisesFisher", other, 0.6), rel=1e-8)
    assert kb.kl(p, D.SphericalUniform(size)) == pytest.approx(truth("VonMisesFisher", kappa, "VonMisesFisher", 0.0, 1.0), rel=1e-8)
    power = D.PowerSpherical(up, kappa)
    assert kb.kl(power, D.SphericalUniform(size)) == pytest.approx(truth("PowerSpherical", kappa, "VonMisesFisher", 0.0, 1.0), rel=1e-8)
    assert kb.kl(power, D.VonMisesFisher(aside, other)) == pytest.approx(
        truth("PowerSpherical", kappa, "VonMisesFisher", other, 0.6), rel=1e-8
    )
    assert kb.kl(power, D.PowerSpherical(up, other)) == pytest.approx(
        truth("PowerSpherical", kappa, "PowerSpherical", other, 1.0), rel=1e-8
    )
    with pytest.raises(kb.NoClosedForm, match="equal mean_direction only"):
        kb.kl(power, D.PowerSpherical(aside, other))


def test_ordered_categories():
    cut, more = np.array([-1.0, 0.5, 2.0], np.float32), np.array([-0.5, 0.7, 1.5], np.float32)
    for kind in (tfd.OrderedLogistic, tfd.StoppingRatioLogistic):
        p, q = kind(cut, 0.3), kind(more, -0.2)
        a, b = (np.exp([float(x.log_prob(k)) for k in range(4)]) for x in (p, q))
        assert float(kb.kl(p, q)) == pytest.approx(float((a * np.log(a / b)).sum()), rel=1e-4)
    assert kb.kl(D.OrderedLogistic(cut, 0.3), D.OrderedLogistic(cut, 0.3)) == 0


def test_multinomial():
    p, q = [0.2, 0.3, 0.5], [0.1, 0.6, 0.3]
    single = sum(a * math.log(a / b) for a, b in zip(p, q))
    t = torch.tensor
    for made in (
        kb.kl(td.Multinomial(5, t(p)), td.Multinomial(5, t(q))),
        kb.kl(nd.Multinomial(5, jnp.array(p)), nd.Multinomial(5, logits=jnp.log(jnp.array(q)))),
        kb.kl(tfd.Multinomial(5.0, probs=p), tfd.Multinomial(5.0, probs=q)),
        kb.kl(ss.multinomial(5, p), ss.multinomial(5, q)),
        kb.kl(distrax.Multinomial(5, probs=jnp.array(p)), distrax.Multinomial(5, probs=jnp.array(q))),
    ):
        assert float(made) == pytest.approx(5 * single, rel=5e-6)
    assert kb.kl(D.Multinomial(5.0, p), D.Multinomial(4.0, q)) == math.inf


def test_points():
    """Of a discrete Q the probability counts; of a continuous one no point has any."""
    assert float(kb.kl(tfd.Deterministic(2.0), tfd.Poisson(1.5))) == pytest.approx(-float(tfd.Poisson(1.5).log_prob(2.0)), rel=1e-5)
    assert float(kb.kl(nd.Delta(3.0), nd.Binomial(7, 0.3))) == pytest.approx(-ss.binom(7, 0.3).logpmf(3), rel=1e-5)
    assert float(kb.kl(nd.Delta(2.5), nd.Binomial(7, 0.3))) == math.inf
    assert float(kb.kl(nd.Delta(0.0), nd.Normal(0.0, 1.0))) == math.inf
    assert float(kb.kl(nd.Normal(0.0, 1.0), nd.Delta(0.0))) == math.inf
    assert float(kb.kl(distrax.Deterministic(1.0), distrax.Deterministic(1.0))) == 0
    assert float(kb.kl(distrax.Deterministic(1.0), distrax.Deterministic(2.0))) == math.inf
    assert kb.kl(D.Delta([1.0, 1.0]), D.Delta([1.0, 2.0])).tolist() == [0.0, math.inf]
    vector = tfd.VectorDeterministic([1.0, 2.0])
    assert float(kb.kl(vector, vector)) == 0
    for k, mass in ((0.0, 0.7), (1.0, 0.3)):
        assert kb.kl(D.Delta(k), D.Bernoulli(0.3)) == pytest.approx(-math.log(mass), rel=1e-12)
    assert kb.kl(D.Bernoulli(1.0), D.Delta(1.0)) == 0
    # Categories are numbered from 0.
    found = kb.kl(D.Delta([0.0, 1.0, 3.0, 4.0, 1.5, -1.0, math.inf, math.nan]), D.Categorical([[0.5, 0.25, 0.25, 0.0]]))
    np.testing.assert_allclose(found, [math.log(2), math.log(4), *[math.inf] * 5, math.nan], rtol=1e-12)
    assert kb.kl(D.Delta(2.0), D.Categorical([0.0, 1e-3, 50.0], "logits")) == pytest.approx(math.exp(-50) * (1 + math.exp(1e-3)), rel=1e-12)
    assert kb.kl(D.Categorical([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]), D.Delta(1.0)).tolist() == [0.0, math.inf]
    assert kb.kl(D.Delta(4.0), D.Geometric(0.3)) == pytest.approx(-ss.geom(0.3).logpmf(5), rel=1e-12)
    assert kb.kl(D.Delta(4.0), D.NegativeBinomial(2.5, 0.3)) == pytest.approx(-ss.nbinom(2.5, 0.7).logpmf(4), rel=1e-12)
    with pytest.raises(ValueError, match="log_density"):
        kb.kl(nd.Delta(0.0, log_density=1.0), nd.Poisson(1.0))


def test_the_same_bijector():
    truth = (math.log(1.5) + (1 + 1) / (2 * 1.5**2)) - 0.5
    t = torch.tensor
    affine = lambda: td.AffineTransform(t(1.0), t(2.0))  # noqa: E731
    torch_pair = [td.TransformedDistribution(td.Normal(t(m), t(s)), [affine(), td.ExpTransform()]) for m, s in ((0.0, 1.0), (1.0, 1.5))]
    numpyro_pair = [
        nd.TransformedDistribution(nd.Normal(m, s), nd.transforms.AffineTransform(1.0, 2.0)) for m, s in ((0.0, 1.0), (1.0, 1.5))
    ]
    tfp_pair = [tfd.TransformedDistribution(tfd.Normal(m, s), tfb.Chain([tfb.Exp(), tfb.Shift(1.0)])) for m, s in ((0.0, 1.0), (1.0, 1.5))]
    distrax_pair = [distrax.Transformed(distrax.Normal(m, s), distrax.ScalarAffine(1.0, 2.0)) for m, s in ((0.0, 1.0), (1.0, 1.5))]
    for pair in (torch_pair, numpyro_pair, tfp_pair, distrax_pair):
        assert float(kb.kl(*pair)) == pytest.approx(truth, rel=1e-6), pair
    with pytest.raises(kb.NoClosedForm):
        kb.kl(torch_pair[0], td.TransformedDistribution(td.Normal(t(0.0), t(1.0)), [td.AffineTransform(t(1.0), t(3.0)), td.ExpTransform()]))
    with pytest.raises(kb.NoClosedForm):
        kb.kl(tfp_pair[0], tfd.TransformedDistribution(tfd.Normal(0.0, 1.0), tfb.Chain([tfb.Exp(), tfb.Shift(2.0)])))
    with pytest.raises(kb.NoClosedForm):
        kb.kl(distrax_pair[0], distrax.Transformed(distrax.Normal(0.0, 1.0), distrax.ScalarAffine(1.0, 3.0)))
    # A bijector that makes one event of several variables.
    simplex = [td.LogisticNormal(t([0.0, 0.0]) + m, t([1.0, 1.0]) * s) for m, s in ((0.0, 1.0), (1.0, 1.5))]
    assert kb.kl(*simplex).item() == pytest.approx(2 * truth, rel=1e-6)


def test_made_of_others():
    truth = 0.5
    t = torch.tensor
    rank = (
        td.Independent(td.Independent(td.Normal(torch.zeros(4, 3, 2), 1.0), 1), 1),
        td.Independent(td.Normal(torch.ones(4, 3, 2), 1.0), 2),
    )
    assert kb.kl(*rank).tolist() == [6 * truth] * 4
    with pytest.raises(ValueError, match="events have different shapes"):
        kb.kl(rank[0], td.Independent(td.Normal(t([0.0]), t([1.0])), 1))
    expanded = nd.Normal(0.0, 1.0).expand([2, 3]), nd.Normal(jnp.ones(3), 1.0)
    assert kb.kl(*expanded).shape == (2, 3)
    assert kb.kl(*expanded[::-1]).shape == (2, 3)
    mask = jnp.array([True, False])
    masked = [nd.Normal(jnp.array([m, m]), 1.0).mask(mask) for m in (0.0, 1.0)]
    assert kb.kl(*masked).tolist() == [truth, 0.0]
    masked = [tfd.Masked(tfd.Normal([m, m, m], 1.0), v) for m, v in ((0.0, [True, False, True]), (1.0, [True, False, False]))]
    np.testing.assert_array_equal(kb.kl(*masked), [truth, 0.0, np.nan])
    sampled = [tfd.Sample(tfd.Normal([m, m], 1.0), [3, 2]) for m in (0.0, 1.0)]
    assert kb.kl(*sampled).numpy().tolist() == [6 * truth] * 2
    joint = [tfd.JointDistributionSequential([tfd.Normal(m, 1.0), tfd.Independent(tfd.Normal([m, m], 1.0), 1)]) for m in (0.0, 1.0)]
    assert float(kb.kl(*joint)) == 3 * truth
    named = [tfd.JointDistributionNamed({"a": tfd.Normal(m, 1.0), "b": tfd.Bernoulli(probs=0.5)}) for m in (0.0, 1.0)]
    assert float(kb.kl(*named)) == truth
    with pytest.raises((TypeError, kb.NoClosedForm), match="depends on others"):
        kb.kl(tfd.JointDistributionSequential([tfd.Normal(0.0, 1.0), lambda x: tfd.Normal(x, 1.0)]), joint[0])
    blocks = [tfd.Blockwise([tfd.Normal(m, 1.0), tfd.Independent(tfd.Normal([m, m], 1.0), 1)]) for m in (0.0, 1.0)]
    assert float(kb.kl(*blocks)) == 3 * truth
    joint = [distrax.Joint({"a": distrax.Normal(m, 1.0), "b": [distrax.Normal(m, 1.0)]}) for m in (0.0, 1.0)]
    assert float(kb.kl(*joint)) == 2 * truth


def test_of_two_libraries():
    p = td.Normal(torch.tensor(0.0), torch.tensor(1.0))
    assert kb.kl(p, D.Normal(1.0, 1.5)).item() == pytest.approx(0.349909552, rel=1e-7)
    assert kb.kl(D.Normal(1.0, 1.5), p).dtype == torch.float32
    assert float(kb.kl(distrax.Normal(0.0, 1.0), nd.Normal(1.0, 1.5))) == pytest.approx(0.349909552, rel=1e-6)
    assert float(kb.kl(ss.norm(0, 1), D.Laplace(0.0, 1.0))) == pytest.approx(
        -0.5 * math.log(2 * math.pi * math.e) + math.log(2) + math.sqrt(2 / math.pi), rel=1e-12
    )
    with pytest.raises(TypeError, match="one call, one framework"):
        kb.kl(p, nd.Normal(jnp.asarray(0.0), jnp.asarray(1.0)))
    beta, pair = td.Beta(torch.tensor(2.0), torch.tensor(3.0)), td.Dirichlet(torch.tensor([1.0, 4.0]))
    direct = kb.kl(beta, td.Beta(torch.tensor(1.0), torch.tensor(4.0)))
    assert kb.kl(beta, pair) == direct
    assert kb.kl(pair, beta).item() == pytest.approx(kb.kl(td.Beta(torch.tensor(1.0), torch.tensor(4.0)), beta).item(), rel=1e-7)
    with pytest.raises(ValueError, match="2 categories, and the other has 3"):
        kb.kl(beta, td.Dirichlet(torch.ones(3)))


def test_shifted_by_scipy():
    p, q = ss.gamma(2.0, scale=1.5), ss.gamma(2.5, scale=1.2)
    moved = ss.gamma(2.0, loc=1.0, scale=1.5), ss.gamma(2.5, loc=1.0, scale=1.2)
    assert kb.kl(*moved) == kb.kl(p, q)
    assert kb.kl(p, moved[1]) == math.inf
    batch = kb.kl(ss.gamma(2.0, loc=[0.0, 1.0], scale=1.5), ss.gamma(2.5, loc=1.0, scale=1.2))
    assert batch.tolist() == [math.inf, kb.kl(p, q)]
    assert kb.kl(ss.geom(0.3), ss.geom(0.4)) == kb.kl(D.Geometric(0.3), D.Geometric(0.4))
    with pytest.raises(kb.NoClosedForm):
        kb.kl(moved[0], q)


def test_infinite_where_the_supports_say_so():
    make = {
        "real": D.Normal(0.0, 1.0),
        "positive": D.Gamma(1.0, 2.0),
        "unit": D.Beta(1.0, 2.0),
        "above": D.Pareto(3.0, 0.5),
        "interval": D.Uniform(0.2, 0.8),
        "counts": D.Poisson(2.0),
        "trials": D.Binomial(3.0, 0.5),
        "binary": D.Bernoulli(0.5),
    }
    finite = {
        ("positive", "real"),
        ("unit", "real"),
        ("above", "real"),
        ("interval", "real"),
        ("unit", "positive"),
        ("above", "positive"),
        ("interval", "positive"),
        ("interval", "unit"),
        ("binary", "trials"),
        ("binary", "counts"),
    }
    for p, first in make.items():
        for q, second in make.items():
            if p == q or (p, q) == ("trials", "counts"):
                continue
            assert math.isfinite(kb.kl(first, second)) == ((p, q) in finite), (p, q)
    assert kb.kl(D.Uniform([0.0, -0.1, 0.5], [1.0, 1.0, 1.1]), D.Beta(2.0, 2.0)).tolist()[1:] == [math.inf, math.inf]
    assert kb.kl(D.TruncatedNormal(0.0, 1.0, [-1.0, -2.0], 1.0), D.TruncatedNormal(0.0, 1.0, -1.5, 1.5)).tolist()[1] == math.inf
    assert kb.kl(D.Normal(0.0, 1.0), D.TruncatedNormal(0.0, 1.0, -1e3, 1e3)) == math.inf
    assert kb.kl(D.TruncatedNormal(0.0, 1.0, -math.inf, math.inf), D.Normal(0.0, 2.0)) == pytest.approx(math.log(2) - 3 / 8, rel=1e-11)
    assert np.isnan(kb.kl(D.Normal(0.0, -1.0), D.Gamma(1.0, 1.0)))
    assert kb.kl(D.Normal(np.zeros((3, 1)), 1.0), D.Uniform(0.0, np.ones(2))).shape == (3, 2)
    for q in (D.Bernoulli(0.3), D.BernoulliLogits(math.log(3 / 7)), D.Binomial(1.0, 0.3)):
        assert kb.kl(D.Poisson([0.0, 1.0]), q).tolist() == [pytest.approx(-math.log(0.7), rel=1e-12), math.inf]
        assert kb.kl(D.Geometric([1.0, 0.5]), q).tolist()[1] == math.inf
    # Without a mean or a variance.
    assert kb.kl(D.Pareto([0.9, 1.5], 1.0), D.Exponential(1.0)).tolist()[0] == math.inf
    assert kb.kl(D.Pareto([1.9, 2.5], 1.0), D.Normal(0.0, 1.0)).tolist()[0] == math.inf


def test_no_closed_form_for_these_parameters():
    with pytest.raises(kb.NoClosedForm, match="equal scales only"):
        kb.kl(D.Logistic(0.0, 1.0), D.Logistic(0.0, 2.0))
    with pytest.raises(kb.NoClosedForm, match="total_count of Q that is not greater"):
        kb.kl(td.Binomial(3, torch.tensor(0.5)), td.Binomial(4, torch.tensor(0.5)))
    with pytest.raises(kb.NoClosedForm, match="equal total_count"):
        kb.kl(D.NegativeBinomial(2.0, 0.5), D.NegativeBinomial(3.0, 0.5))
    # A parameter that is none is NaN, not an error; nor is a NaN.
    assert np.isnan(kb.kl(D.Logistic(0.0, -1.0), D.Logistic(0.0, 2.0)))
    assert np.isnan(kb.kl(D.Logistic(math.nan, 1.0), D.Logistic(0.0, 1.0)))
    # Under a tracer nothing is looked at.
    assert jnp.isnan(jax.jit(lambda s: kb.kl(D.Logistic(0.0, 1.0), D.Logistic(0.0, s)))(jnp.array(2.0)))


TRACED = {
    "Gamma-Weibull": lambda x: (D.Gamma(1.0 + x, 2.0), D.Weibull(1.5, x + 0.5)),
    "Beta-Normal": lambda x: (D.Beta(1.0 + x, 2.0), D.Normal(0.3, x + 0.5)),
    "VonMises": lambda x: (D.VonMises(x, 2.0 + x), D.VonMises(0.1, 1.0)),
    "Uniform-Beta": lambda x: (D.Uniform(x * 0.1, 0.9 + x * 0.01), D.Beta(1.0 + x, 2.0)),
    "TruncatedNormal": lambda x: (D.TruncatedNormal(x, 1.0, -1.0, 2.0), D.TruncatedNormal(0.0, 1.0 + x, -1.5, 2.0)),
    "Laplace-Normal": lambda x: (D.Laplace(x, 1.0 + x), D.Normal(0.1, x)),
    "Normal-Uniform": lambda x: (D.Normal(x, 1.0), D.Uniform(0.0, 1.0)),
}


@pytest.mark.parametrize("name", TRACED)
def test_transforms(name):
    value = lambda x: kb.kl(*TRACED[name](x))  # noqa: E731
    x = np.array([0.3, 0.7, 1.1], np.float32)
    expected = np.asarray(value(x.astype(float)), np.float32)
    for found in (jax.jit(value)(jnp.asarray(x)), jax.vmap(value)(jnp.asarray(x)), torch.func.vmap(value)(torch.tensor(x))):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)
    if name in ("Laplace-Normal", "Normal-Uniform"):  # of the others Inductor makes code for minutes
        np.testing.assert_allclose(torch.compile(value, fullgraph=True)(torch.tensor(x)), expected, rtol=1e-6)
        np.testing.assert_allclose(tf.function(value, jit_compile=True)(tf.constant(x)), expected, rtol=1e-6)
    if np.isfinite(expected).all():
        slopes = jax.jit(jax.vmap(jax.grad(value)))(jnp.asarray(x))
        inputs = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        (other,) = torch.autograd.grad(value(inputs).sum(), inputs)
        np.testing.assert_allclose(slopes, other, rtol=1e-4)

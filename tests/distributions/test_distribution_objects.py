"""kb.kl of other libraries' distribution objects, and of records in every framework, eager and compiled."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td

import densities
import kullback as kb
from densities import BASE
from frameworks import Lazy
from kullback import distributions

distrax = Lazy("distrax")
jax = Lazy("jax")
jnp = Lazy("jax.numpy")
numpyro = Lazy("numpyro.distributions")
tf = Lazy("tensorflow")
tfp = Lazy("tensorflow_probability")
tfp_jax = Lazy("tensorflow_probability.substrates.jax")

# A unit in the last place of float32, several times: the parameters are read as they are stored.
FLOAT32 = 1e-6


def _moved(p):
    return tuple(x * s for x, s in zip(p, (1.2, 0.9)))


def _stored(*parameters):
    return [float(np.float32(x)) for x in parameters]


# --- in every framework -------------------------------------------------------------------------------------------------------------


def test_records_in_every_framework(framework):
    # Compilers take a minute for all of them at once: some have one of each formula, the slowest the three that need no gamma function.
    slow = framework.name in ("torch-compiled", "tinygrad", "tinygrad-jit")
    each = ["Normal", "Laplace", "Poisson", "Cauchy", "Gamma", "Beta", "Weibull", "BernoulliLogits"]
    names = each[:3] if slow else each if framework.costly else list(BASE)
    flat = [np.asarray([x], np.float32) for name in names for x in (*BASE[name], *_moved(BASE[name]))]

    def all_of_them(*arrays):
        total, start = [], 0
        for name in names:
            n, family = len(BASE[name]), getattr(distributions, name)
            total.append(kb.kl(family(*arrays[start : start + n]), family(*arrays[start + n : start + 2 * n])))
            start += 2 * n
        value = total[0]
        for x, scale in zip(total[1:], range(2, 99)):
            value = value + scale * x
        return value

    expected = sum(
        float(densities.textbook(name, _stored(*BASE[name]), _stored(*_moved(BASE[name])))) * scale
        for name, scale in zip(names, range(1, 99))
    )
    np.testing.assert_allclose(framework.run(all_of_them, *flat)[0], expected, rtol=FLOAT32)
    if framework.differentiable and not framework.compiled:
        found = framework.gradients(all_of_them, *flat)
        assert all(np.isfinite(g).all() and g.any() for g in found)


# --- objects ------------------------------------------------------------------------------------------------------------------------

# family -> library's class, and how its arguments follow from ours
SAME = {
    "Normal": "Normal", "Laplace": "Laplace", "Cauchy": "Cauchy", "Gumbel": "Gumbel", "LogNormal": "LogNormal", "HalfNormal": "HalfNormal",
    "HalfCauchy": "HalfCauchy", "Gamma": "Gamma", "InverseGamma": "InverseGamma", "Exponential": "Exponential", "Chi2": "Chi2",
    "Beta": "Beta", "Poisson": "Poisson",
}  # fmt: skip


def _torch(name, p):
    p = [torch.tensor(x) for x in p]
    if name == "Weibull":
        return td.Weibull(p[1], p[0])
    if name == "Pareto":
        return td.Pareto(p[1], p[0])
    if name == "BernoulliLogits":
        return td.Bernoulli(logits=p[0])
    return getattr(td, SAME.get(name, name))(*p)


def _numpyro(name, p):
    p = [jnp.asarray(x) for x in p]
    if name in ("Weibull", "Pareto"):
        return getattr(numpyro, name)(p[1], p[0])
    if name == "BernoulliLogits":
        return numpyro.Bernoulli(logits=p[0])
    return getattr(numpyro, SAME.get(name, name))(*p)


def _tfp(module, as_array, name, p):
    p = [as_array(np.float32(x)) for x in p]
    if name == "BernoulliLogits":
        return module.Bernoulli(logits=p[0])
    if name == "Bernoulli":
        return module.Bernoulli(probs=p[0])
    return getattr(module, SAME.get(name, name))(*p)


def _distrax(name, p):
    p = [jnp.asarray(x) for x in p]
    if name == "BernoulliLogits":
        return distrax.Bernoulli(logits=p[0])
    if name == "Bernoulli":
        return distrax.Bernoulli(probs=p[0])
    return getattr(distrax, name)(*p)


def _scipy(name, p):
    make = {
        "Normal": lambda m, s: scipy.stats.norm(m, s), "Laplace": lambda m, s: scipy.stats.laplace(m, s),
        "Cauchy": lambda m, s: scipy.stats.cauchy(m, s), "Gumbel": lambda m, s: scipy.stats.gumbel_r(m, s),
        "HalfNormal": lambda s: scipy.stats.halfnorm(scale=s), "HalfCauchy": lambda s: scipy.stats.halfcauchy(scale=s),
        "GammaScale": lambda a, s: scipy.stats.gamma(a, scale=s), "InverseGamma": lambda a, s: scipy.stats.invgamma(a, scale=s),
        "Weibull": lambda k, s: scipy.stats.weibull_min(k, scale=s), "Pareto": lambda a, m: scipy.stats.pareto(a, scale=m),
        "Beta": scipy.stats.beta, "Bernoulli": scipy.stats.bernoulli, "Poisson": scipy.stats.poisson,
    }  # fmt: skip
    return make[name](*p)


COMMON = ("Normal", "Laplace", "Cauchy", "Gumbel", "LogNormal", "HalfNormal", "Gamma", "InverseGamma", "Exponential", "Chi2", "Weibull",
          "Pareto", "Beta", "Bernoulli", "BernoulliLogits", "Poisson")  # fmt: skip
LIBRARIES = {
    "torch": (_torch, (*COMMON, "HalfCauchy", "Geometric")),
    "numpyro": (_numpyro, (*COMMON, "HalfCauchy", "Geometric")),
    "tfp": (lambda name, p: _tfp(tfp.distributions, tf.constant, name, p), (*COMMON, "InverseGaussian")),
    "tfp-jax": (lambda name, p: _tfp(tfp_jax.distributions, jnp.asarray, name, p), (*COMMON, "InverseGaussian")),
    "distrax": (_distrax, ("Normal", "Laplace", "Gumbel", "Gamma", "Beta", "Bernoulli", "BernoulliLogits")),
    "scipy": (
        _scipy,
        ("Normal", "Laplace", "Cauchy", "Gumbel", "HalfNormal", "HalfCauchy", "GammaScale", "InverseGamma", "Weibull", "Pareto", "Beta",
         "Bernoulli", "Poisson"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
def test_objects(library):
    make, families = LIBRARIES[library]
    for name in families:
        p, q = BASE[name], _moved(BASE[name])
        exactly = library == "scipy"
        truth = float(densities.textbook(name, *((p, q) if exactly else (_stored(*p), _stored(*q)))))
        found = kb.kl(make(name, p), make(name, q))
        assert float(found) == pytest.approx(truth, rel=1e-13 if exactly else FLOAT32), name


def test_categories_and_vectors():
    p, q = np.array([0.2, 0.3, 0.5], np.float32), np.array([0.1, 0.6, 0.3], np.float32)
    truth = float((p.astype(float) * np.log(p.astype(float) / q)).sum())
    logits = np.log(q)
    made = [
        kb.kl(td.Categorical(torch.tensor(p)), td.Categorical(torch.tensor(q))),
        kb.kl(td.OneHotCategorical(torch.tensor(p)), td.Categorical(logits=torch.tensor(logits))),
        kb.kl(numpyro.Categorical(jnp.asarray(p)), numpyro.Categorical(logits=jnp.asarray(logits))),
        kb.kl(tfp.distributions.Categorical(probs=p), tfp.distributions.OneHotCategorical(logits=logits)),
        kb.kl(distrax.Categorical(probs=jnp.asarray(p)), distrax.Categorical(logits=jnp.asarray(logits))),
    ]
    np.testing.assert_allclose([float(x) for x in made], truth, rtol=5e-6)
    a, b = np.array([1.0, 2.0, 3.0], np.float32), np.array([2.0, 2.5, 1.0], np.float32)
    made = [
        kb.kl(td.Dirichlet(torch.tensor(a)), td.Dirichlet(torch.tensor(b))),
        kb.kl(numpyro.Dirichlet(jnp.asarray(a)), numpyro.Dirichlet(jnp.asarray(b))),
        kb.kl(tfp.distributions.Dirichlet(a), tfp.distributions.Dirichlet(b)),
        kb.kl(distrax.Dirichlet(jnp.asarray(a)), distrax.Dirichlet(jnp.asarray(b))),
    ]
    np.testing.assert_allclose([float(x) for x in made], float(made[0]), rtol=FLOAT32)
    lower = np.array([[1.0, 0.0], [0.5, 2.0]], np.float32)
    vectors = [
        kb.kl(td.MultivariateNormal(torch.zeros(2), scale_tril=torch.tensor(lower)), td.MultivariateNormal(torch.ones(2), torch.eye(2))),
        kb.kl(numpyro.MultivariateNormal(jnp.zeros(2), scale_tril=lower), numpyro.MultivariateNormal(jnp.ones(2), jnp.eye(2))),
    ]
    # ½ (trace + |Δ|² - 2 - log det)
    truth = 0.5 * ((lower**2).sum() + 2 - 2 - 2 * np.log(2.0))
    np.testing.assert_allclose([float(x) for x in vectors], truth, rtol=FLOAT32)
    both = kb.kl(td.Independent(td.Normal(torch.zeros(3, 2), 1.0), 1), td.Independent(td.Normal(torch.ones(3, 2), 1.0), 1))
    assert both.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.compiler
def test_compiled_with_objects():
    def torch_loss(loc, scale):
        return kb.kl(td.Normal(loc, scale, validate_args=False), td.Normal(torch.zeros(3), torch.ones(3), validate_args=False)).sum()

    loc, scale = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 0.5])
    expected = td.kl_divergence(td.Normal(loc, scale), td.Normal(0.0, 1.0)).sum()
    torch.testing.assert_close(torch.compile(torch_loss, fullgraph=True)(loc, scale), expected)

    def jax_loss(a, b):
        return kb.kl(numpyro.Gamma(a, b), numpyro.Gamma(2.0, 1.0))

    a, b = jnp.array([1.0, 2.0]), jnp.array([1.5, 0.5])
    eager = jax_loss(a, b)
    np.testing.assert_allclose(jax.jit(jax_loss)(a, b), eager, rtol=FLOAT32)
    np.testing.assert_allclose(jax.vmap(jax_loss)(a, b), eager, rtol=FLOAT32)


def test_batch_shapes_that_torch_gets_wrong():
    p, q = td.Normal(torch.zeros(3), 1.0), td.Normal(torch.ones(2, 1), 1.0)
    assert kb.kl(p, q).shape == (2, 3)
    p, q = td.Uniform(torch.zeros(3), torch.ones(3)), td.Uniform(torch.zeros(2, 1), torch.full((2, 1), 2.0))
    assert kb.kl(p, q).shape == (2, 3)
    assert kb.kl(td.Poisson(torch.tensor(0.0)), td.Poisson(torch.tensor(1.0))).item() == 1.0


def test_the_example_of_the_readme():
    p, q = td.Gamma(torch.tensor(1e4), torch.tensor(1.0)), td.Gamma(torch.tensor(1.001e4), torch.tensor(1.001))
    parameters = [[d.concentration.item(), d.rate.item()] for d in (p, q)]
    truth = float(densities.textbook("Gamma", *parameters))
    assert kb.kl(p, q).item() == pytest.approx(truth, rel=1e-6)
    assert td.kl_divergence(p, q).item() > 1000 * truth


def test_unknown_objects():
    with pytest.raises(kb.NoClosedForm, match="StudentT is not a family kullback knows"):
        kb.kl(td.StudentT(3.0), td.StudentT(4.0))
    with pytest.raises(kb.NoClosedForm, match="norminvgauss"):
        kb.kl(scipy.stats.norminvgauss(2, 1), scipy.stats.norm())

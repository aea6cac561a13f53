"""Light records of distributions for `kullback.kl`. Their parameters may be numbers, lists or arrays.

>>> import kullback as kb
>>> from kullback.distributions import Gamma, Normal
>>> round(float(kb.kl(Normal(0.0, 1.0), Normal(1.0, 1.5))), 4)
0.3499
>>> [f"{x:.6g}" for x in kb.kl(Gamma([1.0, 1e4], 1.0), Gamma([1.0, 1e4 + 1e-3], 1.0))]
['0', '5.00025e-11']
"""

# ruff: noqa: F403, F405  the names are those of `__all__`

from ._distributions.families.base import Record
from ._distributions.families.counts import *
from ._distributions.families.interval import *
from ._distributions.families.line import *
from ._distributions.families.matrices import *
from ._distributions.families.positive import *
from ._distributions.families.structure import *
from ._distributions.families.vectors import *

__all__ = [
    "Bernoulli", "BernoulliLogits", "Beta", "Binomial", "BinomialLogits", "Categorical", "Cauchy", "Chi",
    "Chi2", "ContinuousBernoulli", "ContinuousBernoulliLogits", "Delta", "Dirichlet", "ExpGamma",
    "ExpGammaLog", "ExpInverseGamma", "ExpInverseGammaLog", "Expanded", "Exponential", "Gamma", "GammaLog",
    "GammaScale", "GeneralizedGamma", "GeneralizedNormal", "Geometric", "GeometricLogits", "Gumbel",
    "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "InverseGaussian", "InverseWeibull",
    "InverseWishart", "Kumaraswamy", "Laplace", "Levy", "LogNormal", "Logistic", "LogitNormal", "Masked",
    "MatrixNormal", "Maxwell", "Moyal", "Multinomial", "MultivariateNormal", "MultivariateNormalCovariance",
    "MultivariateNormalDiag", "MultivariateNormalLowRank", "MultivariateNormalPrecision",
    "MultivariateNormalScale", "Nakagami", "NegativeBinomial", "NegativeBinomialLogits", "Normal",
    "NormalInverseGamma", "NormalInverseWishart", "NormalLogScale", "OrderedLogistic", "Pareto", "Poisson",
    "PoissonLog", "PowerSpherical", "ProbitBernoulli", "Product", "Rayleigh", "Record", "Repeated",
    "Shifted", "SphericalUniform", "StoppingRatioLogistic", "Transformed", "TruncatedNormal", "Uniform",
    "VonMises", "VonMisesFisher", "Weibull", "Wishart",
]  # fmt: skip

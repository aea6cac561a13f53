"""TensorFlow Probability, on TensorFlow and on JAX."""

from __future__ import annotations

from typing import Any

from .. import families as f
from ..families import Record
from . import Read, Reader, reads_into
from .shared import categories, draws, either, fields, independents, points, positive_diagonal, transformed

# The attributes of an object are tensors, or None. Its `parameters` are the arguments as the caller passed them, lists included.


def _given(d: Any) -> tuple[Any, str]:
    return (d.probs, "probs") if d.logits is None else (d.logits, "logits")


def _is(operator: Any, *names: str) -> bool:
    return type(operator).__name__ in names


def _loc(d: Any, row: Any) -> Any:
    """The mean of every coordinate. TFP's mean may be None, which stands for 0, or one number for all coordinates."""
    if d.loc is None:
        return row * 0.0
    known = getattr(d.loc.shape, "rank", 0) is not None
    return d.loc if known and len(d.loc.shape) > 0 and d.loc.shape[-1] != 1 else d.loc + row * 0.0


@reads_into(f.MultivariateNormal, f.MultivariateNormalDiag, f.MultivariateNormalScale)
def _normal_vector(d: Any, read: Read) -> Record:
    if _is(d.scale, "LinearOperatorDiag"):
        diagonal = d.scale.diag_part()
        return f.MultivariateNormalDiag(_loc(d, diagonal), abs(diagonal))
    scale = d.scale.to_dense()
    if _is(d.scale, "LinearOperatorLowerTriangular"):
        return f.MultivariateNormal(_loc(d, scale[..., 0]), positive_diagonal(scale))
    return f.MultivariateNormalScale(_loc(d, scale[..., 0]), scale)


@reads_into(f.MultivariateNormalCovariance)
def _covariance_vector(d: Any, read: Read) -> Record:
    return f.MultivariateNormalCovariance(d.mean(), d.covariance())


_TRIANGULAR = ("LinearOperatorLowerTriangular", "LinearOperatorDiag", "LinearOperatorIdentity", "LinearOperatorScaledIdentity")


def _lower(operator: Any, what: str) -> Any:
    if not _is(operator, *_TRIANGULAR):
        raise TypeError(f"{what} whose scale is a {type(operator).__name__}: use LinearOperatorLowerTriangular")
    return positive_diagonal(operator.to_dense())


@reads_into(f.MatrixNormal)
def _matrix_normal(d: Any, read: Read) -> Record:
    return f.MatrixNormal(d.loc, *(_lower(x, "a matrix normal distribution") for x in (d.scale_row, d.scale_column)))


@reads_into(f.Wishart)
def _wishart(d: Any, read: Read) -> Record:
    if d.input_output_cholesky:
        raise TypeError(
            "a Wishart distribution with input_output_cholesky=True is a law of Cholesky factors, and not a family kullback knows"
        )
    return f.Wishart(d.df, _lower(d.scale, "a Wishart distribution"))


def _logged(plain: Any, logged: Any, name: str, *before: str) -> Reader:
    """A class given by the parameter `name` or by its logarithm, after the parameters `before`."""

    def make(d: Any, read: Read) -> Record:
        given = getattr(d, name)
        family, last = (logged, getattr(d, f"log_{name}")) if given is None else (plain, given)
        record: Record = family(*(getattr(d, x) for x in before), last)
        return record

    return Reader((plain, logged), make)


@reads_into(f.SphericalUniform, f.Expanded)
def _spherical_uniform(d: Any, read: Read) -> Record:
    # No parameter has the batch's shape.
    one = f.SphericalUniform(int(d.dimension))
    return f.Expanded(one, tuple(d.batch_shape)) if len(d.batch_shape) else one


def _axes(d: Any) -> int:
    # The attribute without the underscore is a tensor, and its value is unknown while a tf.function is traced.
    axes = d._static_reinterpreted_batch_ndims
    if axes is None:
        raise TypeError("an Independent distribution whose reinterpreted_batch_ndims is known only when the code runs")
    return int(axes)


def _sizes(d: Any) -> tuple[int, ...]:
    """The sample shape, which may be given as one number, and as a tensor whose value only TFP knows while a tf.function is traced."""
    whole, part = d.event_shape, d.distribution.event_shape
    sizes = None if any(getattr(shape, "rank", 0) is None for shape in (whole, part)) else tuple(whole)[: len(whole) - len(part)]
    if sizes is None or None in sizes:
        raise TypeError("a Sample distribution whose sample_shape is known only when the code runs")
    return tuple(int(n) for n in sizes)


@reads_into(f.Product)
def _joint(d: Any, read: Read) -> Record:
    parts = d.parameters.get("distributions")
    parts = d.parameters["model"] if parts is None else parts
    named = parts if isinstance(parts, dict) else dict(enumerate(parts))
    for name, part in named.items():
        if not hasattr(part, "log_prob"):
            raise TypeError(f"part {name!r} of a {type(d).__name__} depends on others: only independent parts have a closed form")
    return f.Product({name: read(part) for name, part in named.items()})


@reads_into(f.Bernoulli, f.ProbitBernoulli)
def _probit(d: Any, read: Read) -> Record:
    return f.Bernoulli(d.probs) if d.probits is None else f.ProbitBernoulli(d.probits)


TABLE: dict[str, Reader] = {
    "Normal": fields(f.Normal, "loc", "scale"),
    "Laplace": fields(f.Laplace, "loc", "scale"),
    "Cauchy": fields(f.Cauchy, "loc", "scale"),
    "Gumbel": fields(f.Gumbel, "loc", "scale"),
    "Logistic": fields(f.Logistic, "loc", "scale"),
    "Moyal": fields(f.Moyal, "loc", "scale"),
    "GeneralizedNormal": fields(f.GeneralizedNormal, "loc", "scale", "power"),
    "ExpGamma": _logged(f.ExpGamma, f.ExpGammaLog, "rate", "concentration"),
    "ExpInverseGamma": _logged(f.ExpInverseGamma, f.ExpInverseGammaLog, "scale", "concentration"),
    "VonMises": fields(f.VonMises, "loc", "concentration"),
    "LogNormal": fields(f.LogNormal, "loc", "scale"),
    "HalfNormal": fields(f.HalfNormal, "scale"),
    "HalfCauchy": Reader((f.Shifted, f.HalfCauchy), lambda d, read: f.Shifted(f.HalfCauchy(d.scale), d.loc)),
    "Gamma": _logged(f.Gamma, f.GammaLog, "rate", "concentration"),
    "Chi": fields(f.Chi, "df"),
    "Chi2": fields(f.Chi2, "df"),
    "InverseGamma": fields(f.InverseGamma, "concentration", "scale"),
    "InverseGaussian": fields(f.InverseGaussian, "loc", "concentration"),
    "Exponential": fields(f.Exponential, "rate"),
    "Weibull": fields(f.Weibull, "concentration", "scale"),
    "Pareto": fields(f.Pareto, "concentration", "scale"),
    "Uniform": fields(f.Uniform, "low", "high"),
    "Beta": fields(f.Beta, "concentration1", "concentration0"),
    "Kumaraswamy": fields(f.Kumaraswamy, "concentration1", "concentration0"),
    "LogitNormal": fields(f.LogitNormal, "loc", "scale"),
    "TruncatedNormal": fields(f.TruncatedNormal, "loc", "scale", "low", "high"),
    "ContinuousBernoulli": either(_given, f.ContinuousBernoulli, f.ContinuousBernoulliLogits),
    "Dirichlet": fields(f.Dirichlet, "concentration"),
    "Bernoulli": either(_given, f.Bernoulli, f.BernoulliLogits),
    "ProbitBernoulli": _probit,
    "Binomial": either(_given, f.Binomial, f.BinomialLogits, "total_count"),
    "Geometric": either(_given, f.Geometric, f.GeometricLogits),
    "NegativeBinomial": either(_given, f.NegativeBinomial, f.NegativeBinomialLogits, "total_count"),
    "Poisson": _logged(f.Poisson, f.PoissonLog, "rate"),
    "Categorical": categories(_given),
    "OneHotCategorical": categories(_given),
    "OrderedLogistic": fields(f.OrderedLogistic, "cutpoints", "loc"),
    "StoppingRatioLogistic": fields(f.StoppingRatioLogistic, "cutpoints", "loc"),
    "Multinomial": draws(_given),
    "MultivariateNormalLinearOperator": _normal_vector,
    "MultivariateNormalLowRankUpdateLinearOperatorCovariance": _covariance_vector,
    "GaussianProcess": _covariance_vector,
    "MatrixNormalLinearOperator": _matrix_normal,
    "WishartLinearOperator": _wishart,
    "VonMisesFisher": fields(f.VonMisesFisher, "mean_direction", "concentration"),
    "PowerSpherical": fields(f.PowerSpherical, "mean_direction", "concentration"),
    "SphericalUniform": _spherical_uniform,
    "Deterministic": points("loc", 0),
    "VectorDeterministic": points("loc", 1),
    "Independent": independents("distribution", _axes),
    "Masked": Reader((f.Masked,), lambda d, read: f.Masked(read(d.distribution), d.validity_mask)),
    "Sample": Reader((f.Repeated,), lambda d, read: f.Repeated(read(d.distribution), _sizes(d))),
    "Blockwise": _joint,
    "_JointDistributionSequential": _joint,
    "TransformedDistribution": transformed("distribution", lambda d: (d.bijector,)),
}

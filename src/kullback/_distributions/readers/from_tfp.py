"""TensorFlow Probability, on TensorFlow and on JAX."""

from __future__ import annotations

from typing import Any

from ..families import (
    Bernoulli,
    BernoulliLogits,
    Beta,
    Binomial,
    BinomialLogits,
    Categorical,
    Cauchy,
    Chi,
    Chi2,
    ContinuousBernoulli,
    ContinuousBernoulliLogits,
    Dirichlet,
    Expanded,
    ExpGamma,
    ExpGammaLog,
    ExpInverseGamma,
    ExpInverseGammaLog,
    Exponential,
    Gamma,
    GammaLog,
    GeneralizedNormal,
    Geometric,
    GeometricLogits,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    InverseGaussian,
    Kumaraswamy,
    Laplace,
    Logistic,
    LogitNormal,
    LogNormal,
    Masked,
    MatrixNormal,
    Moyal,
    Multinomial,
    MultivariateNormal,
    MultivariateNormalCovariance,
    MultivariateNormalDiag,
    MultivariateNormalScale,
    NegativeBinomial,
    NegativeBinomialLogits,
    Normal,
    OrderedLogistic,
    Pareto,
    Poisson,
    PoissonLog,
    PowerSpherical,
    ProbitBernoulli,
    Product,
    Record,
    Repeated,
    Shifted,
    SphericalUniform,
    StoppingRatioLogistic,
    Transformed,
    TruncatedNormal,
    Uniform,
    VonMises,
    VonMisesFisher,
    Weibull,
    Wishart,
)
from .shared import Read, Reader, Same, fields, independent, point, positive_diagonal

# The attributes of an object are tensors, or None. Its `parameters` are the arguments as the caller passed them, lists included.


def _either(probs: Any, logits: Any, *before: str) -> Reader:
    def read(d: Any) -> Record:
        values, form = _form(d)
        record: Record = (probs if form == "probs" else logits)(*(getattr(d, name) for name in before), values)
        return record

    return read


def _form(d: Any) -> tuple[Any, str]:
    return (d.probs, "probs") if d.logits is None else (d.logits, "logits")


def _dense(operator: Any) -> Any:
    return operator.to_dense()


def _is(operator: Any, *names: str) -> bool:
    return type(operator).__name__ in names


def _loc(d: Any, row: Any) -> Any:
    """The mean of every coordinate. TFP's mean may be None, which stands for 0, or one number for all coordinates."""
    if d.loc is None:
        return row * 0.0
    known = getattr(d.loc.shape, "rank", 0) is not None
    return d.loc if known and len(d.loc.shape) > 0 and d.loc.shape[-1] != 1 else d.loc + row * 0.0


def _normal_vector(d: Any) -> Record:
    if _is(d.scale, "LinearOperatorDiag"):
        diagonal = d.scale.diag_part()
        return MultivariateNormalDiag(_loc(d, diagonal), abs(diagonal))
    scale = _dense(d.scale)
    if _is(d.scale, "LinearOperatorLowerTriangular"):
        return MultivariateNormal(_loc(d, scale[..., 0]), positive_diagonal(scale))
    return MultivariateNormalScale(_loc(d, scale[..., 0]), scale)


def _covariance_vector(d: Any) -> Record:
    return MultivariateNormalCovariance(d.mean(), d.covariance())


_TRIANGULAR = ("LinearOperatorLowerTriangular", "LinearOperatorDiag", "LinearOperatorIdentity", "LinearOperatorScaledIdentity")


def _lower(operator: Any, what: str) -> Any:
    if not _is(operator, *_TRIANGULAR):
        raise TypeError(f"{what} whose scale is a {type(operator).__name__}: use LinearOperatorLowerTriangular")
    return positive_diagonal(_dense(operator))


def _matrix_normal(d: Any) -> Record:
    return MatrixNormal(d.loc, *(_lower(x, "a matrix normal distribution") for x in (d.scale_row, d.scale_column)))


def _wishart(d: Any) -> Record:
    if d.input_output_cholesky:
        raise TypeError(
            "a Wishart distribution with input_output_cholesky=True is a law of Cholesky factors, and not a family kullback knows"
        )
    return Wishart(d.df, _lower(d.scale, "a Wishart distribution"))


def _logged(plain: Any, logged: Any, name: str, *before: str) -> Reader:
    def read(d: Any) -> Record:
        given = getattr(d, name)
        family, last = (logged, getattr(d, f"log_{name}")) if given is None else (plain, given)
        record: Record = family(*(getattr(d, x) for x in before), last)
        return record

    return read


def _spherical_uniform(d: Any) -> Record:
    # No parameter has the batch's shape.
    return Expanded(SphericalUniform(int(d.dimension)), tuple(d.batch_shape)) if len(d.batch_shape) else SphericalUniform(int(d.dimension))


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


def _joint(d: Any, read: Read) -> Record:
    parts = d.parameters.get("distributions")
    parts = d.parameters["model"] if parts is None else parts
    named = parts if isinstance(parts, dict) else dict(enumerate(parts))
    for name, part in named.items():
        if not hasattr(part, "log_prob"):
            raise TypeError(f"part {name!r} of a {type(d).__name__} depends on others: only independent parts have a closed form")
    return Product({name: read(part) for name, part in named.items()})


def _transformed(d: Any, read: Read) -> Record:
    more = len(d.event_shape) - len(d.distribution.event_shape)
    return Transformed(read(d.distribution), Same(d.bijector), more)


def _probit(d: Any) -> Record:
    return Bernoulli(d.probs) if d.probits is None else ProbitBernoulli(d.probits)


def table(read: Read) -> dict[str, Reader]:
    return {
        "Normal": fields(Normal, "loc", "scale"),
        "Laplace": fields(Laplace, "loc", "scale"),
        "Cauchy": fields(Cauchy, "loc", "scale"),
        "Gumbel": fields(Gumbel, "loc", "scale"),
        "Logistic": fields(Logistic, "loc", "scale"),
        "Moyal": fields(Moyal, "loc", "scale"),
        "GeneralizedNormal": fields(GeneralizedNormal, "loc", "scale", "power"),
        "ExpGamma": _logged(ExpGamma, ExpGammaLog, "rate", "concentration"),
        "ExpInverseGamma": _logged(ExpInverseGamma, ExpInverseGammaLog, "scale", "concentration"),
        "VonMises": fields(VonMises, "loc", "concentration"),
        "LogNormal": fields(LogNormal, "loc", "scale"),
        "HalfNormal": fields(HalfNormal, "scale"),
        "HalfCauchy": lambda d: Shifted(HalfCauchy(d.scale), d.loc),
        "Gamma": _logged(Gamma, GammaLog, "rate", "concentration"),
        "Chi": fields(Chi, "df"),
        "Chi2": fields(Chi2, "df"),
        "InverseGamma": fields(InverseGamma, "concentration", "scale"),
        "InverseGaussian": fields(InverseGaussian, "loc", "concentration"),
        "Exponential": fields(Exponential, "rate"),
        "Weibull": fields(Weibull, "concentration", "scale"),
        "Pareto": fields(Pareto, "concentration", "scale"),
        "Uniform": fields(Uniform, "low", "high"),
        "Beta": fields(Beta, "concentration1", "concentration0"),
        "Kumaraswamy": fields(Kumaraswamy, "concentration1", "concentration0"),
        "LogitNormal": fields(LogitNormal, "loc", "scale"),
        "TruncatedNormal": fields(TruncatedNormal, "loc", "scale", "low", "high"),
        "ContinuousBernoulli": _either(ContinuousBernoulli, ContinuousBernoulliLogits),
        "Dirichlet": fields(Dirichlet, "concentration"),
        "Bernoulli": _either(Bernoulli, BernoulliLogits),
        "ProbitBernoulli": _probit,
        "Binomial": _either(Binomial, BinomialLogits, "total_count"),
        "Geometric": _either(Geometric, GeometricLogits),
        "NegativeBinomial": _either(NegativeBinomial, NegativeBinomialLogits, "total_count"),
        "Poisson": _logged(Poisson, PoissonLog, "rate"),
        "Categorical": lambda d: Categorical(*_form(d)),
        "OneHotCategorical": lambda d: Categorical(*_form(d)),
        "OrderedLogistic": fields(OrderedLogistic, "cutpoints", "loc"),
        "StoppingRatioLogistic": fields(StoppingRatioLogistic, "cutpoints", "loc"),
        "Multinomial": lambda d: Multinomial(d.total_count, *_form(d)),
        "MultivariateNormalLinearOperator": _normal_vector,
        "MultivariateNormalLowRankUpdateLinearOperatorCovariance": _covariance_vector,
        "GaussianProcess": _covariance_vector,
        "MatrixNormalLinearOperator": _matrix_normal,
        "WishartLinearOperator": _wishart,
        "VonMisesFisher": fields(VonMisesFisher, "mean_direction", "concentration"),
        "PowerSpherical": fields(PowerSpherical, "mean_direction", "concentration"),
        "SphericalUniform": _spherical_uniform,
        "Deterministic": lambda d: point(d.loc, 0),
        "VectorDeterministic": lambda d: point(d.loc, 1),
        "Independent": lambda d: independent(read(d.distribution), _axes(d)),
        "Masked": lambda d: Masked(read(d.distribution), d.validity_mask),
        "Sample": lambda d: Repeated(read(d.distribution), _sizes(d)),
        "Blockwise": lambda d: _joint(d, read),
        "_JointDistributionSequential": lambda d: _joint(d, read),
        "TransformedDistribution": lambda d: _transformed(d, read),
    }

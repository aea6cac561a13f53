"""Other libraries' objects as laws, through their own functions: log_prob, sample, support, quantiles, in float64 and in place.

For families without a record. Each library is one class with the same methods; its objects are copied to float64 first.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from typing import Any

import numpy as np

from .._distributions.adapters import name_of
from .._errors import WrongType
from ._compound import IndependentLaw, MixtureLaw, Row, ZeroInflatedLaw
from ._law import KumaraswamyLaw, Law, ScipyLaw, host_numbers, law_of

Array = Any
_lock = threading.Lock()


def native_law(d: Any, *, native: bool = False) -> Law:
    """The law of an object whose family has no record, or is made of other objects; by its own functions alone if `native`."""
    name = name_of(d)
    kinds = {cls.__name__ for cls in type(d).__mro__}
    if "Independent" in kinds:
        base = d.base_dist if hasattr(d, "base_dist") else d.distribution
        return IndependentLaw(law_of(base), int(d.reinterpreted_batch_ndims), name)
    if kinds & {"MixtureSameFamily", "Mixture", "MixtureGeneral"}:
        return _mixture(d, name)
    if "StudentT" in kinds and not native:  # whose quantiles take JAX a minute to compile
        import scipy.stats

        return ScipyLaw(scipy.stats.t(*(host_numbers(getattr(d, x)) for x in ("df", "loc", "scale"))), name)
    if "Kumaraswamy" in kinds:
        return KumaraswamyLaw(host_numbers(d.concentration1), host_numbers(d.concentration0))
    if "ZeroInflatedDistribution" in kinds or "ZeroInflatedPoisson" in kinds:
        return ZeroInflatedLaw(host_numbers(d.gate), law_of(d.base_dist), name)
    module = " ".join(cls.__module__ for cls in type(d).__mro__)
    for mark, library in (("torch.distributions", _TorchLaw), ("numpyro", _NumpyroLaw), ("distrax", _DistraxLaw),
                          ("tensorflow_probability.substrates.jax", _TfpJaxLaw), ("tensorflow_probability", _TfpLaw)):  # fmt: skip
        if mark in module:
            return library(d, name)
    raise WrongType(f"{type(d).__module__}.{type(d).__name__} is not a distribution kullback can evaluate or draw from")


def _mixture(d: Any, name: str) -> Law:
    cat = next(getattr(d, x) for x in ("mixture_distribution", "mixing_distribution", "cat") if hasattr(d, x))
    law = law_of(cat)
    if not hasattr(law, "logs"):
        raise WrongType(f"{name}: its weights are a {type(cat).__name__}, not a Categorical")
    log_weights = np.where(law.invalid[..., None], np.nan, law.logs)  # a law puts valid numbers in the place of invalid ones
    for field in ("component_distribution", "components_distribution"):
        parts = getattr(d, field, None)
        if parts is not None and not isinstance(parts, (list, tuple)):
            return MixtureLaw(log_weights, law_of(parts), name, parts)
    parts = getattr(d, "components", None) or d.component_distributions
    return MixtureLaw(log_weights, Row([law_of(part) for part in parts]), name, list(parts))


class _NativeLaw(Law):
    """What the libraries share: an object in float64, and its own log_prob."""

    def __init__(self, d: Any, name: str) -> None:
        self.name = name
        self.d = self.widened(d)
        self.batch_shape, self.event_shape = tuple(d.batch_shape), tuple(d.event_shape)
        self.read_support(d)
        if self.is_scalar:
            self.low, self.high = (np.broadcast_to(np.asarray(x, float), self.batch_shape) for x in (self.low, self.high))

    def widened(self, d: Any) -> Any:
        return d

    def read_support(self, d: Any) -> None:
        if "VonMises" in self.name:
            self.low, self.high = -math.pi, math.pi
            return
        support = d.support
        while hasattr(support, "base_constraint"):
            support = support.base_constraint
        self.discrete = bool(support.is_discrete)
        if type(support).__name__ == "_Boolean":
            self.low, self.high = 0.0, 1.0
        elif not self.event_shape:
            ends = [getattr(support, f"{side}_bound", None) for side in ("lower", "upper")]
            self.low, self.high = (x if end is None else host_numbers(end) for end, x in zip(ends, (-math.inf, math.inf)))

    def density(self, x: Array) -> Array:
        return self.d.log_prob(x)

    def _quantile(self, u: Array) -> Any:
        raise NotImplementedError

    def quantile(self, u: Array) -> Array | None:
        if self.event_shape or self.discrete:
            return None
        u = np.asarray(u, float)
        try:
            u = u.reshape(u.shape + (1,) * len(self.batch_shape)) if u.ndim == 1 else u
            found = self.numpy(self._quantile(self.own(u + np.zeros(self.batch_shape))))
        except Exception:  # a library says in many ways that it has none
            return None
        return None if np.isnan(found).all() else found


class _TorchLaw(_NativeLaw):
    library = "torch"

    def widened(self, d: Any) -> Any:
        return _double(d)

    def __init__(self, d: Any, name: str) -> None:
        self.device = _device(d)
        super().__init__(d, name)

    def source(self, rng: Any) -> Any:
        import torch

        if isinstance(rng, torch.Generator):
            if rng.device.type != self.device.type:
                raise WrongType(f"rng is a generator on {rng.device} and {self.name} is on {self.device}: make it there")
            return rng
        if rng is not None and (isinstance(rng, bool) or not isinstance(rng, (int, np.integer))):
            raise WrongType(f"rng is a {type(rng).__name__}: {self.name} is PyTorch's; pass a torch.Generator or an int")
        made = torch.Generator(device=self.device)
        if rng is None:
            made.seed()
        else:
            made.manual_seed(int(rng))
        return made

    def draw(self, n: int, source: Any) -> Array:
        # torch.distributions take no generator: the global one stands in for it, and is put back.
        import torch

        place = torch.random if self.device.type == "cpu" else getattr(torch, self.device.type)
        here = () if self.device.type == "cpu" else (self.device,)
        with _lock, torch.no_grad():
            before = place.get_rng_state(*here)
            try:
                place.set_rng_state(source.get_state(), *here)
                x = self.d.sample((n,))
                source.set_state(place.get_rng_state(*here))
            finally:
                place.set_rng_state(before, *here)
        return x

    def own(self, x: Array) -> Array:
        import torch

        return torch.as_tensor(np.ascontiguousarray(x), dtype=torch.float64, device=self.device)

    def numpy(self, x: Array) -> Array:
        return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x, dtype=np.float64)

    def density(self, x: Array) -> Array:
        import torch

        with torch.no_grad():
            return self.d.log_prob(x)

    def _quantile(self, u: Array) -> Any:
        return self.d.icdf(u)


def _device(x: Any) -> Any:
    import torch

    values = list(vars(x).values())
    for v in values:
        if isinstance(v, torch.Tensor):
            return v.device
    for v in values:
        if isinstance(v, torch.distributions.Distribution):
            return _device(v)
    return torch.device("cpu")


def _double(x: Any) -> Any:
    """A copy of a PyTorch distribution, or anything it is made of, in float64, which does not validate."""
    import torch

    if isinstance(x, torch.Tensor):
        return x.detach().double() if x.is_floating_point() else x.detach()
    if isinstance(x, torch.nn.Module):
        return copy.deepcopy(x).double()
    if isinstance(x, (list, tuple)):
        return type(x)([_double(y) for y in x]) if type(x) in (list, tuple) else x
    if not isinstance(x, (torch.distributions.Distribution, torch.distributions.Transform)):
        return x
    made = copy.copy(x)
    for name, value in vars(x).items():
        made.__dict__[name] = _double(value)
    if isinstance(x, torch.distributions.Transform):
        if type(x).__name__ != "_InverseTransform":
            made.__dict__["_inv"] = None
        if "_cached_x_y" in made.__dict__:
            made.__dict__["_cached_x_y"] = (None, None)
    else:
        made.__dict__["_validate_args"] = False
    return made


class _JaxLaw(_NativeLaw):
    library = "jax"

    @staticmethod
    def wide() -> Any:
        import jax

        if hasattr(jax, "enable_x64"):
            return jax.enable_x64(True)
        from jax.experimental import enable_x64  # before 0.8

        return enable_x64()

    def widened(self, d: Any) -> Any:
        import jax

        def double(x: Any) -> Any:
            is_float = getattr(x, "dtype", None) is not None and np.issubdtype(x.dtype, np.floating)
            return np.asarray(x, np.float64) if is_float and not isinstance(x, jax.core.Tracer) else x

        try:
            with self.wide():
                return jax.tree_util.tree_map(lambda x: jax.numpy.asarray(double(x)) if hasattr(x, "dtype") else x, d)
        except Exception:  # not every object of these libraries is a pytree
            return d

    def source(self, rng: Any) -> Any:
        import jax

        if rng is None:
            rng = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        if isinstance(rng, (int, np.integer)) and not isinstance(rng, bool):
            return [jax.random.PRNGKey(int(rng))]
        if isinstance(rng, jax.Array) and (rng.dtype == np.uint32 or jax.dtypes.issubdtype(rng.dtype, jax.dtypes.prng_key)):
            return [rng]
        raise WrongType(f"rng is a {type(rng).__name__}: {self.name} is drawn with JAX; pass a jax.random key or an int")

    def draw(self, n: int, source: Any) -> Array:
        import jax

        source[0], key = jax.random.split(source[0])
        with self.wide():
            return self._sample(n, key)

    def _sample(self, n: int, key: Any) -> Array:
        raise NotImplementedError

    def own(self, x: Array) -> Array:
        return np.asarray(x, np.float64)

    def density(self, x: Array) -> Array:
        import jax

        # Every new shape is compiled anew: as few of them as can be.
        rows = 1 << max(len(x) - 1, 63).bit_length()
        padded = np.concatenate([x, np.broadcast_to(x[:1], (rows - len(x), *x.shape[1:]))])
        with self.wide():
            return np.asarray(self.d.log_prob(jax.numpy.asarray(padded)))[: len(x)]

    def quantile(self, u: Array) -> Array | None:
        with self.wide():
            return super().quantile(u)


class _NumpyroLaw(_JaxLaw):
    def widened(self, d: Any) -> Any:
        made = super().widened(d)
        with contextlib.suppress(AttributeError):
            made._validate_args = False
        return made

    def _sample(self, n: int, key: Any) -> Array:
        return np.asarray(self.d.sample(key, (n,)))

    def _quantile(self, u: Array) -> Any:
        return self.d.icdf(u)


class _DistraxLaw(_JaxLaw):
    def read_support(self, d: Any) -> None:
        self.discrete = np.issubdtype(np.dtype(d.dtype), np.integer)
        if hasattr(d, "bijector") and not d.event_shape:
            # It does not say, but a bijector of numbers is monotone: what it makes of the ends of the base are the ends.
            base = law_of(d.distribution)
            with self.wide(), contextlib.suppress(Exception):
                ends = [np.asarray(d.bijector.forward(np.asarray(x, np.float64)), np.float64) for x in (base.low, base.high)]
                if not np.isnan(ends).any():
                    self.low, self.high = np.minimum(*ends), np.maximum(*ends)

    def _sample(self, n: int, key: Any) -> Array:
        return np.asarray(self.d.sample(seed=key, sample_shape=(n,)))


# Classes of TFP whose values are whole numbers, whatever their dtype.
_TFP_COUNTS = {"BetaBinomial", "Binomial", "Geometric", "Multinomial", "NegativeBinomial", "Poisson", "Skellam", "Zipf",
               "DirichletMultinomial", "QuantizedDistribution", "FiniteDiscrete", "BetaQuotientCounts"}  # fmt: skip


def _tfp_support(law: _NativeLaw, d: Any, infinity: Any) -> None:
    law.discrete = bool({cls.__name__ for cls in type(d).__mro__} & _TFP_COUNTS) or np.issubdtype(d.dtype.as_numpy_dtype if hasattr(
        d.dtype, "as_numpy_dtype") else np.dtype(d.dtype), np.integer)  # fmt: skip
    if law.discrete:
        law.low = 0.0
        return
    if law.event_shape:
        return
    if "VonMises" in law.name:
        law.low, law.high = -math.pi, math.pi
        return
    try:
        bijector = d.experimental_default_event_space_bijector()
        ends = [np.asarray(bijector.forward(infinity(sign))) for sign in (-1.0, 1.0)]
    except (NotImplementedError, AttributeError, ValueError):
        return
    ends = [np.where(np.isnan(x), sign * math.inf, x) for x, sign in zip(ends, (-1.0, 1.0))]
    law.low, law.high = np.minimum(*ends), np.maximum(*ends)


class _TfpJaxLaw(_JaxLaw):
    def read_support(self, d: Any) -> None:
        import jax

        _tfp_support(self, d, lambda sign: jax.numpy.asarray(sign * math.inf, d.dtype))

    def _sample(self, n: int, key: Any) -> Array:
        return np.asarray(self.d.sample(n, seed=key))

    def _quantile(self, u: Array) -> Any:
        return self.d.quantile(u)


class _TfpLaw(_NativeLaw):
    library = "tensorflow"

    def read_support(self, d: Any) -> None:
        import tensorflow as tf

        _tfp_support(self, d, lambda sign: tf.constant(sign * math.inf, d.dtype))

    def widened(self, d: Any) -> Any:
        try:
            return _tfp_double(d)
        except Exception:  # a class whose parameters do not make it again
            return d

    def source(self, rng: Any) -> Any:
        import tensorflow as tf

        if rng is None:
            rng = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        if isinstance(rng, (int, np.integer)) and not isinstance(rng, bool):
            return [tf.constant([0, int(rng)], tf.int32), 0]
        if tf.is_tensor(rng) or isinstance(rng, (list, tuple, np.ndarray)):
            pair = tf.cast(tf.convert_to_tensor(rng), tf.int32)
            if tuple(pair.shape) == (2,):
                return [pair, 0]
        raise WrongType(
            f"rng is a {type(rng).__name__}: {self.name} is TensorFlow's; pass an int or a pair of them, as stateless seeds are"
        )

    def draw(self, n: int, source: Any) -> Array:
        import tensorflow as tf

        source[1] += 1
        return self.d.sample(n, seed=tf.random.experimental.stateless_fold_in(source[0], source[1]))

    def own(self, x: Array) -> Array:
        import tensorflow as tf

        return tf.convert_to_tensor(np.asarray(x), self.d.dtype)

    def _quantile(self, u: Array) -> Any:
        return self.d.quantile(u)


def _tfp_double(x: Any, single: bool = True) -> Any:
    """A copy in float64. Plain numbers are as the object stores them: `single` says that that is float32."""
    import tensorflow as tf

    if isinstance(x, (tf.Tensor, tf.Variable)):
        return tf.cast(x, tf.float64) if x.dtype.is_floating else tf.convert_to_tensor(x)
    if isinstance(x, (float, np.floating)) or (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
        return tf.constant(np.asarray(x, np.float32 if single else np.float64), tf.float64)
    if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
        return type(x)([_tfp_double(y, single) for y in x])
    if hasattr(x, "parameters") and type(x).__module__.startswith("tensorflow_probability"):
        given = {k: v for k, v in x.parameters.items() if v is not None and k not in ("name", "validate_args", "allow_nan_stats")}
        single = getattr(x, "dtype", None) != tf.float64
        return type(x)(**{k: v if k == "dtype" else _tfp_double(v, single) for k, v in given.items()})
    return x


def numpy_source_from(rng: Any) -> np.random.Generator:
    """NumPy's generator, seeded by another library's random state: for laws that NumPy draws, of whichever library they are."""
    kind = type(rng)
    if kind.__module__.startswith("torch") and hasattr(rng, "initial_seed"):
        import torch  # the generator is moved on by one number

        return np.random.default_rng(int(torch.randint(1 << 62, (), generator=rng, device=rng.device)))
    if "jax" in kind.__module__:
        import jax

        data = jax.random.key_data(rng) if jax.dtypes.issubdtype(rng.dtype, jax.dtypes.prng_key) else rng
        return np.random.default_rng([int(x) for x in np.ravel(np.asarray(data))])
    if "tensorflow" in kind.__module__ or isinstance(rng, (list, tuple)):
        return np.random.default_rng([int(x) & 0xFFFFFFFF for x in np.ravel(np.asarray(rng))])
    raise WrongType(f"rng is a {kind.__name__}: pass an int, a numpy.random.Generator, a torch.Generator, a JAX key or a pair of ints")

"""What other libraries' names mean: which operation a dotted name is, and how each KL function reads its arguments.

Data only. An operation is spelled once here (`softmax`, `log`, `sum`, ...), whatever library it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

# Names that every notebook uses and snippets forget to import. Only where the file binds the name nowhere.
CONVENTIONS = {
    "torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "np": "numpy", "numpy": "numpy", "jax": "jax", "jnp": "jax.numpy",
    "tf": "tensorflow", "keras": "keras", "scipy": "scipy", "stats": "scipy.stats", "optax": "optax", "tfp": "tensorflow_probability",
    "tfd": "tensorflow_probability.distributions", "paddle": "paddle", "math": "math", "functools": "functools", "plt": "matplotlib.pyplot",
    "pd": "pandas",
}  # fmt: skip

# Longest first. The right side is the library's family; what follows the prefix is the function's own name.
_PREFIXES = (
    ("torch.nn.functional.", "torch"), ("torch.special.", "torch"), ("torch.linalg.", "torch.linalg"), ("torch.nn.", "torch.nn"),
    ("torch.distributions.", "torch.distributions"), ("torch.", "torch"),
    ("paddle.nn.functional.", "paddle"), ("paddle.nn.", "paddle.nn"), ("paddle.tensor.", "paddle"), ("paddle.", "paddle"),
    ("jax.numpy.", "jax"), ("jax.nn.", "jax"), ("jax.scipy.special.", "scipy.special"), ("jax.scipy.stats.", "scipy.stats"),
    ("jax.lax.", "jax"), ("jax.random.", "jax.random"), ("jax.", "jax"), ("flax.linen.", "jax"),
    ("flax.nnx.", "jax"),
    ("tensorflow.keras.backend.", "tensorflow"), ("tensorflow.keras.activations.", "tensorflow"), ("tensorflow.keras.ops.", "tensorflow"),
    ("keras.backend.", "tensorflow"), ("keras.ops.", "tensorflow"), ("keras.activations.", "tensorflow"),
    ("tensorflow.compat.v1.nn.", "tensorflow"), ("tensorflow.compat.v1.math.", "tensorflow"), ("tensorflow.compat.v1.", "tensorflow"),
    ("tensorflow.math.", "tensorflow"), ("tensorflow.nn.", "tensorflow"), ("tensorflow.random.", "tensorflow.random"),
    ("tensorflow.", "tensorflow"),
    ("numpy.random.", "numpy.random"), ("numpy.", "numpy"), ("cupy.", "numpy"), ("autograd.numpy.", "numpy"),
    ("scipy.special.", "scipy.special"), ("scipy.stats.", "scipy.stats"), ("math.", "math"),
)  # fmt: skip

_SAME = {
    "log": "log", "log2": "log", "log10": "log", "exp": "exp", "expm1": "expm1", "softmax": "softmax", "log_softmax": "log_softmax",
    "sum": "sum", "reduce_sum": "sum", "mean": "mean", "reduce_mean": "mean", "average": "mean", "nansum": "nansum", "nanmean": "nanmean",
    "where": "where", "abs": "abs", "absolute": "abs", "fabs": "abs", "relu": "relu", "relu_": "relu", "relu6": "relu", "clamp": "clip",
    "clip": "clip",
    "clamp_": "clip", "clamp_min": "clip", "clamp_min_": "clip", "clip_by_value": "clip", "maximum": "maximum", "sigmoid": "sigmoid",
    "expit": "sigmoid", "one_hot": "one_hot", "to_categorical": "one_hot", "bincount": "bincount", "histogram": "histogram",
    "histc": "histogram",
    "unique": "unique", "argmax": "argmax", "argmin": "argmax", "isfinite": "isfinite", "isinf": "isfinite", "isnan": "isnan",
    "nan_to_num": "nan_to_num", "xlogy": "xlogy", "stop_gradient": "detach", "logsumexp": "logsumexp", "reduce_logsumexp": "logsumexp",
    "log_sigmoid": "other", "logsigmoid": "other", "square": "square", "pow": "pow", "power": "pow", "sqrt": "sqrt",
    "randn": "randn", "rand": "rand", "randint": "labels", "randn_like": "randn", "rand_like": "rand", "multinomial": "labels",
    "standard_normal": "randn", "linspace": "other", "diff": "other", "trapz": "integral", "trapezoid": "integral",
    "divide": "divide", "div": "divide", "multiply": "multiply", "mul": "multiply", "subtract": "subtract", "sub": "subtract", "add": "add",
    "true_divide": "divide", "cross_entropy": "hard", "nll_loss": "hard", "sparse_softmax_cross_entropy_with_logits": "hard",
    "softmax_cross_entropy_with_logits": "hard", "binary_cross_entropy": "hard", "binary_cross_entropy_with_logits": "hard",
    "kl_div": "kl_div", "tensor": "tensor", "array": "tensor", "asarray": "tensor", "as_tensor": "tensor", "constant": "tensor",
    "from_numpy": "keep", "convert_to_tensor": "tensor", "to_tensor": "tensor", "cast": "keep", "squeeze": "keep", "expand_dims": "keep",
    "unsqueeze": "keep",
    "reshape": "reshape", "ravel": "keep", "flatten": "keep", "transpose": "keep", "permute": "keep", "identity": "keep",
    "stack": "stack", "cat": "concat", "concat": "concat", "concatenate": "concat", "cumsum": "other", "float32": "keep", "float64": "keep",
    "gather": "select", "take_along_axis": "select", "normalize": "normalize", "zeros": "zeros", "zeros_like": "zeros",
    "gumbel_softmax": "gumbel_softmax",
    "numel": "numel", "size": "numel", "topk": "topk", "sort": "topk", "no_grad": "no_grad", "inference_mode": "no_grad", "full": "full",
    "full_like": "full", "eye": "other", "logical_and": "logical_and",
}  # fmt: skip
_FAMILY_ONLY = {
    "numpy.random": {"normal": "samples", "randn": "samples", "rand": "samples", "uniform": "samples", "exponential": "samples",
                     "poisson": "samples", "beta": "samples", "gamma": "samples", "lognormal": "samples", "laplace": "samples",
                     "choice": "samples",
                     "standard_normal": "samples", "random": "samples", "random_sample": "samples", "randint": "samples",
                     "binomial": "samples",
                     "dirichlet": "dirichlet", "multivariate_normal": "samples"},
    "jax.random": {"normal": "randn", "uniform": "rand", "randint": "labels", "categorical": "labels", "dirichlet": "dirichlet"},
    "tensorflow.random": {"normal": "randn", "uniform": "rand"},
    "scipy.special": {"softmax": "softmax", "log_softmax": "log_softmax", "rel_entr": "rel_entr", "kl_div": "sp_kl_div", "entr": "other",
                      "xlogy": "xlogy", "logsumexp": "logsumexp", "expit": "sigmoid"},
    "scipy.stats": {"entropy": "entropy", "gaussian_kde": "kde", "wasserstein_distance": "other"},
    "math": {"log": "log", "log2": "log", "log10": "log", "exp": "exp", "expm1": "expm1", "sqrt": "sqrt", "fabs": "abs"},
}  # fmt: skip
_EXACT = {
    "abs": "abs", "sum": "sum", "max": "max", "float": "keep", "list": "keep", "functools.partial": "partial",
    "jax.tree_util.Partial": "partial",
    "scipy.spatial.distance.jensenshannon": "jensenshannon", "scipy.integrate.trapezoid": "integral", "scipy.integrate.simpson": "integral",
    "matplotlib.pyplot.hist": "histogram", "numpy.ma.masked_invalid": "masked_invalid", "collections.Counter": "counter",
    "keras.utils.to_categorical": "one_hot", "tensorflow.keras.utils.to_categorical": "one_hot",
    "sklearn.preprocessing.label_binarize": "one_hot",
    "optax.softmax_cross_entropy": "hard", "optax.softmax_cross_entropy_with_integer_labels": "hard",
    "optax.losses.softmax_cross_entropy": "hard", "optax.losses.softmax_cross_entropy_with_integer_labels": "hard",
    "keras.losses.categorical_crossentropy": "hard", "keras.losses.sparse_categorical_crossentropy": "hard",
    "tensorflow.keras.losses.categorical_crossentropy": "hard", "tensorflow.keras.losses.sparse_categorical_crossentropy": "hard",
    "tensorflow.keras.activations.softmax": "softmax",
}  # fmt: skip


@lru_cache(maxsize=4096)
def library_and_operation(name: str) -> tuple[str, str]:
    """("torch", "softmax") for "torch.nn.functional.softmax"; ("", "") where the name is not known here."""
    if name in _EXACT:
        return name.split(".")[0], _EXACT[name]
    for prefix, family in _PREFIXES:
        if name.startswith(prefix):
            own = name[len(prefix) :]
            only = _FAMILY_ONLY.get(family)
            return family, (only or _SAME).get(own, "") if family in ("torch", "paddle", "jax", "tensorflow", "numpy") or only else ""
    return "", ""


@dataclass(frozen=True)
class Api:
    """How a function or class that computes a KL reads its arguments. `p` and `q` are parameter names."""

    name: str
    parameters: tuple[str, ...]
    p: str
    q: str
    q_is_log: bool = False  # the second distribution is wanted as log-probabilities
    p_is_log: bool = False  # so is the first, always
    summed: str = "rows"
    normalises: bool = False
    torch_like: bool = False  # has reduction and log_target
    reduction: str = "mean"  # where none is written
    distributions: bool = False  # takes distribution objects
    is_class: bool = False  # parameters above are those of the call on the object; `made_with` those of its creation
    made_with: tuple[str, ...] = ()
    keras: bool = False
    distance: bool = False


def _apis() -> dict[str, Api]:
    found: dict[str, Api] = {}
    torch = ("input", "target", "size_average", "reduce", "reduction", "log_target")
    for prefix in ("torch.nn.functional", "kullback.torch"):
        found[f"{prefix}.kl_div"] = Api("F.kl_div", torch, "target", "input", q_is_log=True, summed="terms", torch_like=True)
    # The function beneath it: numbers for the reductions, and none of them unless asked for.
    native = ("input", "target", "reduction")
    found["torch.kl_div"] = Api("torch.kl_div", native, "target", "input", True, summed="terms", torch_like=True, reduction="none")
    for prefix in ("torch.nn", "torch.nn.modules", "torch.nn.modules.loss", "kullback.torch"):
        found[f"{prefix}.KLDivLoss"] = Api(
            "nn.KLDivLoss",
            ("input", "target"),
            "target",
            "input",
            True,
            summed="terms",
            torch_like=True,
            is_class=True,
            made_with=torch[2:],
        )
    paddle = ("input", "label", "reduction", "log_target")
    found["paddle.nn.functional.kl_div"] = Api("paddle F.kl_div", paddle, "label", "input", True, summed="terms", torch_like=True)
    for prefix in ("paddle.nn", "paddle.nn.layer", "paddle.nn.layer.loss"):
        found[f"{prefix}.KLDivLoss"] = Api(
            "paddle.nn.KLDivLoss",
            ("input", "label"),
            "label",
            "input",
            True,
            summed="terms",
            torch_like=True,
            is_class=True,
            made_with=paddle[2:],
        )
    for prefix in ("optax", "optax.losses", "kullback.jax"):
        two = ("log_predictions", "targets", "axis", "where")
        found[f"{prefix}.kl_divergence"] = Api("optax.kl_divergence", two, "targets", "log_predictions", q_is_log=True)
        found[f"{prefix}.kl_divergence_with_log_targets"] = Api(
            "optax.kl_divergence_with_log_targets",
            ("log_predictions", "log_targets", "axis", "where"),
            "log_targets",
            "log_predictions",
            True,
            True,
        )
        found[f"{prefix}.convex_kl_divergence"] = found[f"{prefix}.generalized_kl_divergence"] = Api(
            "optax.generalized_kl_divergence", two, "targets", "log_predictions", q_is_log=True
        )
    for root in (
        "keras",
        "tensorflow.keras",
        "tf_keras",
        "tensorflow.python.keras",
        "tensorflow.compat.v1.keras",
        "tensorflow.compat.v2.keras",
    ):
        for name in ("kl_divergence", "kullback_leibler_divergence", "KLD", "kld"):
            for module in ("losses", "metrics", "objectives"):
                found[f"{root}.{module}.{name}"] = Api(f"keras.losses.{name}", ("y_true", "y_pred"), "y_true", "y_pred", keras=True)
        for name in ("KLDivergence", "KLD"):
            for module in ("losses", "metrics"):
                found.setdefault(f"{root}.{module}.{name}", Api("keras.losses.KLDivergence", ("y_true", "y_pred"), "y_true", "y_pred"))
        for module in ("losses", "metrics"):
            found[f"{root}.{module}.KLDivergence"] = Api(
                f"keras.{module}.KLDivergence",
                ("y_true", "y_pred", "sample_weight"),
                "y_true",
                "y_pred",
                keras=True,
                is_class=True,
                summed="scalar",
            )
    for prefix in ("scipy.special", "jax.scipy.special", "kullback.jax"):
        found[f"{prefix}.rel_entr"] = Api("rel_entr", ("x", "y"), "x", "y", summed="terms")
        found[f"{prefix}.kl_div"] = Api("scipy.special.kl_div", ("x", "y"), "x", "y", summed="terms")
    found["scipy.stats.entropy"] = Api("scipy.stats.entropy", ("pk", "qk", "base", "axis"), "pk", "qk", normalises=True)
    found["scipy.spatial.distance.jensenshannon"] = Api("jensenshannon", ("p", "q", "base"), "p", "q", normalises=True, distance=True)
    objects = [
        "torch.distributions",
        "torch.distributions.kl",
        "pyro.distributions",
        "paddle.distribution",
        "numpyro.distributions",
        "numpyro.distributions.kl",
    ]
    for root in ("tensorflow_probability", "tensorflow_probability.substrates.jax", "tensorflow_probability.python"):
        objects += [f"{root}.distributions", f"{root}.distributions.kullback_leibler"]
    for prefix in objects:
        found[f"{prefix}.kl_divergence"] = Api("kl_divergence", ("p", "q"), "p", "q", distributions=True)
    return found


APIS = _apis()

# Losses against labels, by class: their instances give a hard loss when called.
HARD_CLASSES = ("CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss", "CategoricalCrossentropy", "SparseCategoricalCrossentropy")
# Layers whose output is any real number.
LINEAR = ("Linear", "Conv1d", "Conv2d", "Conv3d", "LazyLinear", "Bilinear", "Conv1D", "Conv2D", "Conv3D", "ConvTranspose2d")
DISTRIBUTION_MODULES = (
    "torch.distributions.", "pyro.distributions.", "tensorflow_probability.distributions.",
    "tensorflow_probability.substrates.jax.distributions.",
    "numpyro.distributions.", "distrax.", "paddle.distribution.",
)  # fmt: skip
# Distributions over a vector: their KL is one number, already summed.
JOINT = ("Independent", "MultivariateNormal", "MultivariateNormalDiag", "MultivariateNormalTriL", "MultivariateNormalFullCovariance",
         "LowRankMultivariateNormal", "Dirichlet", "Categorical", "OneHotCategorical", "Multinomial", "Wishart")  # fmt: skip

# Methods of arrays that say what the functions of the same name say.
METHODS = {
    name: _SAME[name]
    for name in ("log", "log2", "log10", "exp", "expm1", "softmax", "log_softmax", "sum", "mean", "nansum", "abs", "relu", "clamp",
    "clip", "clamp_",
                 "clamp_min", "clamp_min_", "sigmoid", "argmax", "nan_to_num", "logsumexp", "square", "pow", "sqrt", "div", "mul", "sub",
                 "add",
                 "gather", "reshape", "topk", "nanmean", "relu_")
} | {
    "view": "reshape", "contiguous": "keep", "detach": "detach", "clone": "keep", "to": "keep", "float": "keep", "half": "keep",
    "double": "keep",
    "bfloat16": "keep", "cpu": "keep", "cuda": "keep", "numpy": "keep", "type": "keep", "type_as": "keep", "astype": "keep",
    "expand": "keep",
    "expand_as": "keep", "repeat": "keep", "flatten": "keep", "ravel": "keep", "squeeze": "keep", "unsqueeze": "keep", "transpose": "keep",
    "permute": "keep", "swapaxes": "keep", "requires_grad_": "keep", "copy": "keep", "tolist": "keep", "item": "keep", "view_as": "keep",
    "reshape_as": "keep", "masked_select": "keep", "value_counts": "value_counts", "pow_": "pow", "div_": "divide",
    "masked_fill": "masked_fill",
    "masked_fill_": "masked_fill", "index_select": "keep", "chunk": "chunk", "split": "chunk", "size": "size", "numel": "numel",
    "nelement": "numel", "absolute": "abs",
    "scatter_": "scatter", "scatter": "scatter", "sort": "topk", "values": "keep", "sort_index": "keep", "reindex": "keep",
    "to_numpy": "keep", "T": "keep", "logsigmoid": "other",
}  # fmt: skip

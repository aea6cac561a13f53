"""Which tests of which libraries are run, and which of their functions ours replace. Suites that share imports share a process, a `Run`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

Count = Callable[[Any], Any]
Replacements = list[tuple[Any, str, Any]]
HERE = Path(__file__).parent


def is_selected(framework: str) -> bool:
    """Reads the variable as tests/helpers/frameworks.py does. That module is not on the path of the process that runs these tests."""
    names = os.environ.get("KULLBACK_TEST_FRAMEWORKS", "").replace(" ", "")
    return not names or framework in names.split(",")


class Suite(NamedTuple):
    """Tests of an installed package, in `files`. The pattern `tests` selects names (`Class::test`). Each test gets fresh `replacements`.

    `needs` names frameworks as tests/helpers/frameworks.py does. The suite runs if all of them are selected.
    """

    package: str
    files: tuple[str, ...]
    tests: str
    replacements: Callable[[Count], Replacements]
    needs: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return HERE if self.package == "torch" else Path(find_spec(self.package).origin).parent

    @property
    def paths(self) -> list[Path]:
        return [self.folder / file for file in self.files]

    def name_of(self, item: Any) -> str | None:
        """`package/file::Class::test`, or None for a test that is not selected."""
        test = item.nodeid.partition("::")[2]
        if item.path not in self.paths or not re.search(self.tests, test):
            return None
        return f"{self.package}/{item.path.relative_to(self.folder).as_posix()}::{test}"


class Run(NamedTuple):
    """Suites in one process."""

    environment: dict[str, str]
    suites: tuple[Suite, ...]


def _scipy(count: Count) -> Replacements:
    import scipy.spatial.distance
    import scipy.special
    import scipy.stats

    import kullback as kb

    def entropy(pk: Any, qk: Any = None, base: Any = None, axis: Any = 0) -> Any:
        """SciPy normalises whatever it is given, as we do counts."""
        options = {"form": "counts", "base": base, "axis": axis}
        return kb.entropy(pk, **options) if qk is None else kb.kl(pk, qk, **options)

    def jensenshannon(p: Any, q: Any, base: Any = None, *, axis: Any = 0, keepdims: bool = False) -> Any:
        return kb.js(p, q, form="counts", base=base, axis=axis, keepdims=keepdims) ** 0.5

    return [
        (scipy.special, "rel_entr", count(kb.rel_entr)),
        (scipy.special, "kl_div", count(kb.kl_div)),
        (scipy.stats, "entropy", count(entropy)),
        (scipy.spatial.distance, "jensenshannon", count(jensenshannon)),
    ]


def _torch(count: Count) -> Replacements:
    import kullback.torch

    ours = kullback.torch._patch._replacements
    # The last is where our KLDivLoss looks the function up.
    return [*((module, name, count(function)) for module, name, function in ours), (kullback.torch, "kl_div", count(kullback.torch.kl_div))]


def _optax(count: Count) -> Replacements:
    import kullback.jax

    return [(module, name, count(function)) for module, name, function in kullback.jax._replacements()]


def _keras(count: Count) -> Replacements:
    import kullback.keras

    original = kullback.keras.kl_divergence
    kullback.keras.kl_divergence = counting = count(original)
    try:
        return [*kullback.keras._replacements(), (kullback.keras, "kl_divergence", counting)]
    finally:
        kullback.keras.kl_divergence = original


def _distrax(count: Count) -> Replacements:
    import distrax
    from tensorflow_probability.substrates.jax import distributions as tfd

    import kullback as kb

    theirs, ours = tfd.kl_divergence, count(kb.kl)

    def kl_divergence(p: Any, q: Any, allow_nan_stats: bool = True, name: str | None = None) -> Any:
        """Two objects of TFP are what distrax' tests compare with: TFP's own function stays in charge of them."""
        if isinstance(p, distrax.Distribution) or isinstance(q, distrax.Distribution):
            return ours(p, q)
        return theirs(p, q, allow_nan_stats, name)

    return [(tfd.kullback_leibler, "kl_divergence", kl_divergence), (tfd, "kl_divergence", kl_divergence)]


# test_config looks at the configuration of a loss and computes nothing.
KERAS = Suite(
    "keras",
    ("src/losses/losses_test.py", "src/metrics/probabilistic_metrics_test.py"),
    "^KLDivergenceTest::test_(?!config)",
    _keras,
    ("tensorflow",),
)
# XLA takes seconds to compile the functions of a distribution. The suite therefore leaves out variants with jax.jit, which our other tests
# cover. It leaves out cross-entropies, which are the KL plus distrax' entropy, and some pairs whose families occur in other pairs.
# test_custom_kl looks into TFP's registry and calls no KL.
_LEFT_OUT = (
    "cross", "with_jit", "with_device", "without_device", "with_pmap", "custom_kl", "Diag vs DiagPlusLowRank", "LowRank vs FullCovariance",
    "kl_divergence_diag", "dirichlet_beta",
)  # fmt: skip
_KL = "two_distributions", "with_categorical_and_one_hot", "kl_", "incompatible_distributions_kl"
DISTRAX = Suite(
    "distrax",
    tuple(
        f"_src/distributions/{name}_test.py"
        for name in (
            "bernoulli", "beta", "categorical", "deterministic", "dirichlet", "gamma", "gumbel", "independent", "joint", "laplace",
            "log_stddev_normal", "mvn_from_bijector", "mvn_kl", "mvn_tri", "normal", "one_hot_categorical", "transformed", "uniform",
            "von_mises",
        )
    ),
    f"^(?!.*({'|'.join(_LEFT_OUT)})).*({'|'.join(_KL)})",
    _distrax,
    ("jax", "tensorflow"),
)  # fmt: skip
ARRAYS = ["numpy", *(name.replace("-", "_") for name in ("torch", "array-api-strict") if is_selected(name))]
RUNS = {
    "torch": Run(
        {"KERAS_BACKEND": "torch", "SCIPY_ARRAY_API": json.dumps(ARRAYS)},
        (
            Suite("scipy.special", ("tests/test_basic.py",), "^test_(kl_div|rel_entr)", _scipy, ("numpy",)),
            # SciPy expects its own rel_entr to fail for unlike dtypes of PyTorch, and calls nothing.
            Suite(
                "scipy.special",
                ("tests/test_support_alternative_backends.py",),
                r"^test_support_alternative_backends(?!_hypothesis|_mismatched_dtypes\[torch-rel_entr).*-(kl_div|rel_entr)\b",
                _scipy,
                ("numpy",),
            ),
            Suite("scipy.stats", ("tests/test_entropy.py",), "^TestEntropy::", _scipy, ("numpy",)),
            Suite("scipy.spatial", ("tests/test_distance.py",), "^test_jensenshannon$", _scipy, ("numpy",)),
            Suite("torch", ("torch_samples.py",), "^test_", _torch, ("torch",)),
            KERAS._replace(needs=("torch", "tensorflow")),
        ),
    ),
    "jax": Run(
        {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        (
            KERAS._replace(needs=("jax", "tensorflow")),
            Suite("optax", ("losses/_classification_test.py",), "^(Generalized)?KL", _optax, ("jax",)),
            DISTRAX,
        ),
    ),
    "tensorflow": Run({"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}, (KERAS,)),
}

"""The layers, the light import, the public names, and the examples in docstrings (test_docs_examples.py has those of README and docs)."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest

import kullback
from frameworks import needed_by
from layers import LAYERS, PACKAGE, PACKAGES, PATHS, SURFACES, imported_layers, imports, layer_of

FRAMEWORKS = {
    "torch",
    "torchmetrics",
    "jax",
    "jaxlib",
    "optax",
    "tensorflow",
    "tinygrad",
    "keras",
    "cupy",
    "array_api_strict",
    "pandas",
    "triton",
}
MODULES = [
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages([str(package)], f"{package.name}.")
    if not module.name.endswith("__main__")
]


def _id(path: Path) -> str:
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent))


@pytest.mark.parametrize("path", PATHS, ids=_id)
def test_a_layer_imports_only_from_those_above(path):
    own = layer_of(path)
    others = imported_layers(path)
    assert not others or own != "kullback_lint", f"the linter imports {others}"
    for other in others:
        if own == "__init__":
            assert other not in ("kullback_lint", "kullback_command"), f"import kullback imports {other}"
            continue
        assert LAYERS.index(other) < LAYERS.index(own), f"{own} imports {other}, which stands below it"
        assert other not in SURFACES, f"{own} imports {other}: the core needs no surface"
    for name in imports(path):
        parts = name.split(".")
        # The adapters may ask whether an object is PyTorch's; that is how torch.compile can follow them.
        # A critic is trained in a framework, by a module named after it that is imported when one is asked for.
        if path.stem == f"training_{parts[0]}" and own == "estimators":
            continue
        # Kernels for one framework's arrays import it; they are imported when such arrays arrive.
        if parts[0] in FRAMEWORKS and parts[0] not in SURFACES.get(own, ()) and path.stem != "adapters" and own != "_kernels":
            assert own == "_ops", f"{path.name} imports {parts[0]}"
            # The dispatch names every framework, once it is loaded; test_import_loads_numpy_and_scipy_only sees that it loads none.
            assert path.stem in ("__init__", {"jaxlib": "jax"}.get(parts[0], parts[0]))


def test_every_module_has_its_place():
    assert set(map(layer_of, PATHS)) - {"__init__"} == set(LAYERS)


def test_public_names():
    assert kullback.__all__ == sorted(kullback.__all__)
    for name in kullback.__all__:
        assert getattr(kullback, name).__doc__
    modules = {m.name for m in pkgutil.iter_modules([str(PACKAGE)])}
    assert not modules & set(kullback.__all__)
    # In a process of its own: importing kullback.torch adds that name.
    code = "import kullback; print(*(n for n in vars(kullback) if not n.startswith('_')))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(seen) == set(kullback.__all__)


def _loaded(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_loads_numpy_and_scipy_only():
    extra = _loaded("import kullback; kullback.kl([.5, .5], [.25, .75])") - _loaded("import scipy.special") - {"kullback"}
    third_party = {name for name in extra if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert third_party == set()


def test_import_costs_at_most_half_again_scipy_special():
    def seconds(statement):
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    # Interleaved, and the smallest of several: this may run beside other load.
    pairs = [(seconds("import kullback"), seconds("import scipy.special")) for _ in range(7)]
    assert min(ours for ours, _ in pairs) <= 1.5 * min(theirs for _, theirs in pairs)


def test_hard_dependencies_are_numpy_and_scipy():
    hard = [r for r in requires("kullback") if "extra ==" not in r]
    assert sorted(r.split(">")[0] for r in hard) == ["numpy", "scipy"]
    assert set(metadata("kullback").get_all("Provides-Extra")) == {"cli", "torch", "jax", "tensorflow", "tinygrad", "spark", "all"}
    assert metadata("kullback")["License-Expression"] == "BSD-3-Clause"
    assert (PACKAGE / "py.typed").exists()


def _source(name: str) -> str:
    path = PACKAGE.parent.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text() if path.exists() else ""  # the kernel in C


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.needs(*needed_by(_source(name))))
    for name in MODULES if "._ops." not in name and not name.endswith("_triton")
])  # fmt: skip
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert result.failed == 0


def test_public_functions_have_examples():
    for name in kullback.__all__:
        if not isinstance(getattr(kullback, name), type):
            assert ">>>" in getattr(kullback, name).__doc__, name


def test_formulas_are_free_of_data_dependent_python():
    """`.item()`, boolean indexing and in-place writes would break tracers."""
    for name in ("_pairs", "_calculus"):
        source = (PACKAGE / f"{name}.py").read_text()
        for node in ast.walk(ast.parse(source)):
            assert not (isinstance(node, ast.Attribute) and node.attr in ("item", "tolist", "any", "all"))
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                assert not any(isinstance(t, ast.Subscript) for t in targets)

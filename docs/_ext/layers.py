"""The layers, and which layers a file imports. The tests hold the code to them, and import_graph.py draws them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import kullback

PACKAGE = Path(kullback.__file__).parent
# Beside the library: the writing of files and the linter, which import nothing of it, and the command, which may import all.
PACKAGES = [PACKAGE, *(PACKAGE.with_name(f"kullback_{name}") for name in ("files", "lint", "command"))]
PATHS = sorted(path for package in PACKAGES for path in package.rglob("*.py"))

# From the top down: a module may import from those above it, and from its own package.
LAYERS = [
    "kullback_files", "_version", "_errors", "_ops", "_kernels",
    "_pairs", "_calculus", "_forms", "_checks", "_reduce", "_divergences", "_entropies", "_literal", "_patching",
    "_distributions", "_estimate", "estimators", "_dispatch", "distributions", "losses",
    "torch", "jax", "tensorflow", "keras", "tinygrad", "_read", "_report", "_explain", "_compare",
    "kullback_lint", "kullback_command", "__main__",
]  # fmt: skip
# The modules with other libraries' names: each may import what it is named after, and none may import another.
SURFACES = {
    "torch": {"torch", "torchmetrics"}, "jax": {"jax", "optax"}, "tensorflow": {"tensorflow"}, "keras": {"keras"}, "tinygrad": {"tinygrad"},
}  # fmt: skip


def _layer(parts: Sequence[str]) -> str:
    """The layer of a module, by the parts of its name; "" for a module that is not ours."""
    if parts[-1] == "__main__":
        return "__main__"
    if parts[0] == "kullback":
        return parts[1] if len(parts) > 1 else ""
    return parts[0] if parts[0].startswith("kullback_") else ""


def layer_of(path: Path) -> str:
    return _layer(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def imported_layers(path: Path) -> set[str]:
    """The layers that a file imports, without its own."""
    return {_layer(name.split(".")) for name in imports(path)} & set(LAYERS) - {layer_of(path)}


def imports(path: Path) -> Iterator[str]:
    """Absolute module names imported anywhere in a file, except under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    package = path.relative_to(PACKAGE.parent).parts[:-1]
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)

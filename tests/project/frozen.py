"""Lists what users rely on: public names with their parameters, the paths in pickles, schemas and rules.

    python tests/project/frozen.py

The script rewrites tests/project/frozen_names.txt from the installed package, and adds to tests/project/frozen_pickles.txt.
It never removes a path from the latter, because files that users have saved contain it. It leaves annotations
out, because types may become more exact, and mypy checks them.
"""

from __future__ import annotations

import importlib
import inspect
import json
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
NAMES, PICKLES = HERE / "frozen_names.txt", HERE / "frozen_pickles.txt"
SURFACES = ("torch", "jax", "keras", "tensorflow", "tinygrad")
MODULES = ("kullback", *(f"kullback.{name}" for name in ("distributions", "estimators", "losses", *SURFACES)))
# Records that functions return: where they are now. Files that users have saved contain these paths.
RETURNED = {
    "what compare returns for models": "kullback._compare.record.ModelComparison",
    "what compare returns for tables": "kullback._compare.tables.record.TableComparison",
    "what profile returns": "kullback._compare.tables.profile.Profile",
    "what registered_pairs returns": "kullback._distributions.table.RegisteredPair",
}
SCHEMAS = (("kullback._compare", "models.schema.json"), ("kullback._compare", "tables.schema.json"))


def found(path: str) -> Any:
    """The object at a dotted path, or what a key of RETURNED stands for."""
    module, _, name = RETURNED.get(path, path).rpartition(".")
    return getattr(importlib.import_module(module), name)


def _parameters(function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except ValueError:  # an exception without a constructor of its own
        return "(...)"
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _members(cls: type) -> dict[str, Any]:
    """Public methods and attributes that kullback defines."""
    ours = [base for base in reversed(cls.__mro__) if base.__module__.partition(".")[0] == "kullback"]
    return {name: value for base in ours for name, value in vars(base).items() if not name.startswith("_")}


def _described(path: str, value: Any) -> list[str]:
    if isinstance(value, ModuleType):
        return [path]
    lines = [path + _parameters(value)]
    for name, member in sorted(_members(value).items() if isinstance(value, type) else ()):
        function = getattr(member, "__func__", member)
        lines.append(f"{path}.{name}{_parameters(function) if inspect.isfunction(function) else ''}")
    return lines


def names(module: str) -> list[str]:
    """A line for each public name of a module, and for each public method.

    Methods of distributions are left out, because only the registry calls them."""
    public = importlib.import_module(module)
    lines = [_described(f"{module}.{name}", getattr(public, name)) for name in public.__all__]
    return [line for group in lines for line in (group[:1] if module == "kullback.distributions" else group)]


def others() -> list[str]:
    """A line for each record that functions return, for its methods, for each schema and for each rule."""
    from kullback_lint import RULES

    lines = [line for name in RETURNED for line in _described(name, found(name))]
    texts = [files(package).joinpath(name).read_text() for package, name in SCHEMAS]
    lines += [f"schema {json.loads(text)['$id']}" for text in texts]
    return lines + [f"rule {rule.code} {rule.name}" for rule in RULES]


def pickled() -> list[str]:
    """`public path = path in a pickle` for each class."""
    public = [f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__]
    classes = [(path, value) for path in (*public, *RETURNED) if isinstance(value := found(path), type)]
    return [f"{path} = {value.__module__}.{value.__qualname__}" for path, value in classes]


def main() -> None:
    NAMES.write_text("\n".join([*(line for module in MODULES for line in names(module)), *others(), ""]))
    before = PICKLES.read_text().splitlines() if PICKLES.exists() else []
    PICKLES.write_text("\n".join([*dict.fromkeys([*before, *pickled()]), ""]))


if __name__ == "__main__":
    main()

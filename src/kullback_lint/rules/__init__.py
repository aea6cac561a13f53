"""The rules, one class a file, and their registry. A rule's file is named after what it finds; its number never changes."""

from __future__ import annotations

import importlib
import pkgutil

from .base import Rule


def _collect() -> tuple[Rule, ...]:
    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "base":
            continue
        for name, thing in vars(importlib.import_module(f"{__name__}.{module.name}")).items():
            if isinstance(thing, type) and issubclass(thing, Rule) and thing is not Rule and not name.startswith("_"):
                if thing.code in found:
                    raise ValueError(f"{thing.__name__} and {type(found[thing.code]).__name__} are both {thing.code}")
                found[thing.code] = thing()
    return tuple(found[code] for code in sorted(found))


RULES = _collect()
BY_CODE = {rule.code: rule for rule in RULES}

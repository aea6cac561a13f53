"""KL009: softmax without dim."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..events import Created, Operation
from .base import Module, Report, Rule

_LAYERS = ("torch.nn.Softmax", "torch.nn.LogSoftmax")


class MissingDim(Rule):
    code = "KL009"
    name = "missing-dim"
    summary = "softmax without dim: PyTorch picks axis 0 for vectors and for 3-D tensors, axis 1 otherwise"

    def check(self, module: Module) -> Iterator[Report]:
        for event in module.of(Operation):
            if event.name in ("softmax", "log_softmax") and event.library == "torch" and not event.method and not event.open:
                given = next(
                    (event.keywords[k] for k in ("dim", "axis") if k in event.keywords), event.nodes[1] if len(event.nodes) > 1 else None
                )
                function = isinstance(event.node.func, (ast.Attribute, ast.Name)) and not _is_layer(event)
                if given is None and function:
                    yield Report(event.node, f"{event.name} without dim: axis 0 for 1-D and 3-D tensors, axis 1 otherwise; pass dim=-1")
        for event in module.of(Created):
            if event.name in _LAYERS and not event.node.args and not event.node.keywords:
                yield Report(
                    event.node,
                    f"{event.name.rsplit('.', 1)[-1]} without dim: axis 0 for 1-D and 3-D tensors, axis 1 otherwise; pass dim=-1",
                )


def _is_layer(event: Operation) -> bool:
    """A layer's call, whose dim was settled where it was made."""
    return "dim" in event.keywords

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
    events = (Operation, Created)

    def look(self, event: Operation | Created, module: Module) -> Iterator[Report]:
        if isinstance(event, Operation):
            function = isinstance(event.node.func, (ast.Attribute, ast.Name)) and not event.method
            without = function and not event.open and event.axis is None
            if without and event.name in ("softmax", "log_softmax") and event.library == "torch":
                yield Report(event.node, f"{event.name} without dim: axis 0 for 1-D and 3-D tensors, axis 1 otherwise; pass dim=-1")
        else:
            if event.name in _LAYERS and not event.node.args and not event.node.keywords:
                yield Report(
                    event.node,
                    f"{event.name.rsplit('.', 1)[-1]} without dim: axis 0 for 1-D and 3-D tensors, axis 1 otherwise; pass dim=-1",
                )

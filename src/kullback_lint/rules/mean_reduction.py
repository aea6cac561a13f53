"""KL006: a KL averaged over the categories."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..call import reduction_of
from ..edits import add_keyword
from ..events import KlCall, Made, Operation, Quotient
from ..values import KL, SCALAR, TERMS, Divergence
from .base import Module, Report, Rule

# Multiplied by the number of categories afterwards, the mean is a sum again.
_CLASSES = re.compile(r"size\(\s*-?1\s*\)|shape\[-?1\]|class|vocab|n_cat|num_cat|\bdim\b|\bK\b|\bV\b|\bC\b", re.IGNORECASE)


class MeanReduction(Rule):
    code = "KL006"
    name = "mean-reduction"
    summary = "the mean is taken over the categories too, so the KL is divided by their number"
    fixable = True
    events = (Made, KlCall, Operation, Quotient)

    def look(self, event: Made | KlCall | Operation | Quotient, module: Module) -> Iterator[Report]:
        if isinstance(event, Made):
            if event.api.torch_like:
                yield from self._reduction(module, event, event.node)
        elif isinstance(event, KlCall):
            if event.api.torch_like and not event.api.is_class and not _compensated(module, event.node):
                yield from self._reduction(module, event, event.node)
        elif isinstance(event, Operation):
            if event.name in ("mean", "nanmean") and event.values[0].kind == KL:
                made = event.values[0].data
                if (
                    made.family == "categorical"
                    and made.summed == TERMS
                    and _over_classes(event, made)
                    and not _compensated(module, made.node)
                ):
                    yield Report(event.node, "this mean is over the categories too: sum over them first, then average over the rows")
        else:
            made = event.value.data
            if made.family == "categorical" and made.summed == SCALAR and not made.averaged and _elements(event, made):
                yield Report(event.node, "divided by the number of categories too: divide by the number of rows only")

    def _reduction(self, module: Module, event: KlCall | Made, node: ast.Call) -> Iterator[Report]:
        if reduction_of(event.options, event.api.reduction) != "mean":
            return
        if "reduction" in event.options.nodes:
            yield Report(node, f'reduction="mean" of {event.api.name} divides by rows times categories: use "batchmean"')
        elif {"size_average", "reduce"} & set(event.options.nodes):
            yield Report(node, f'these arguments make {event.api.name} divide by rows times categories: pass reduction="batchmean"')
        else:
            # Of [rows, categories] only is batchmean the mean over rows.
            ranks = {value.rank for use in module.uses(node) for value in (use.divergence.p, use.divergence.q)}
            edits = add_keyword(module.source, node, 'reduction="batchmean"') if ranks <= {None, 2} else ()
            yield Report(
                node, f'{event.api.name} divides by rows times categories unless told otherwise: pass reduction="batchmean"', edits
            )


def _compensated(module: Module, node: ast.AST) -> bool:
    return any(scale.startswith("*") and _CLASSES.search(scale) for scale in module.scalings.get(id(node), ()))


def _over_classes(event: Operation, made: Divergence) -> bool:
    axis = event.axis
    if axis is None:
        return True
    try:
        number = ast.literal_eval(axis)
    except ValueError:
        return False
    if number == -1 or (isinstance(number, tuple) and -1 in number):
        return True
    known = {made.p.axis, made.q.axis} - {None}
    return number in known


def _elements(event: Quotient, made: Divergence) -> bool:
    """Whether the divisor counts the elements of p, of q, or of the scores of either."""
    counted = set()
    for key in (made.p_key, made.q_key):
        for what in ("numel", "classes"):
            counted |= {f"{what}({key})", key.replace("softmax(", f"{what}(", 1)}
    return event.divisor_value.of in counted or _numel_of(event.divisor) in (made.p_key, made.q_key)


def _numel_of(divisor: ast.expr) -> str:
    """x in x.numel(), x.nelement(), torch.numel(x), np.size(x), x.size; "" otherwise."""
    if isinstance(divisor, ast.Call):
        name = divisor.func.attr if isinstance(divisor.func, ast.Attribute) else ""
        if name in ("numel", "nelement") and isinstance(divisor.func, ast.Attribute) and not divisor.args:
            return ast.unparse(divisor.func.value)
        if name in ("numel", "size") and len(divisor.args) == 1 and not isinstance(divisor.args[0], ast.Constant):
            return ast.unparse(divisor.args[0])
    if isinstance(divisor, ast.Attribute) and divisor.attr == "size":
        return ast.unparse(divisor.value)
    return ""

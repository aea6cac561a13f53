"""KL003: a target of log-probabilities without log_target=True."""

from __future__ import annotations

from collections.abc import Iterator

from ..call import log_target_of
from ..edits import add_keyword
from ..events import KlCall
from ..model import ERROR
from ..values import LOG_PROBS
from .base import Module, Report, Rule


class LogTargetMissing(Rule):
    code = "KL003"
    name = "log-target-without-flag"
    summary = "the target is log-probabilities, and nothing says so"
    severity = ERROR
    fixable = True
    events = (KlCall,)

    def look(self, event: KlCall, module: Module) -> Iterator[Report]:
        if not event.api.q_is_log or event.api.p_is_log or event.divergence.p.kind != LOG_PROBS:
            return
        node = event.arguments.nodes[event.api.p]
        if not event.api.torch_like:
            yield Report(
                node,
                f"the targets of {event.api.name} are probabilities; these are log-probabilities: use kl_divergence_with_log_targets",
            )
        elif log_target_of(event.options) is False:
            # A loss object used elsewhere with another target, or one that is not known, must stay as it is.
            agreed = all(use.divergence.p.kind == LOG_PROBS for use in module.uses(event.created))
            edits = (
                add_keyword(module.source, event.created, "log_target=True") if agreed and "log_target" not in event.options.nodes else ()
            )
            yield Report(
                node,
                f"the target of {event.api.name} is log-probabilities, which it reads as probabilities: pass log_target=True",
                edits,
            )

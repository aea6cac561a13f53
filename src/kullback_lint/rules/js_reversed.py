"""KL018: a Jensen-Shannon divergence built from KL(m‖p)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..events import KlCall, KlFormula, Local
from ..model import ERROR
from ..values import KL
from .base import Module, Report, Rule


class JsReversed(Rule):
    code = "KL018"
    name = "js-from-kl-of-the-mixture"
    summary = "KL(m‖p) where the Jensen-Shannon divergence has KL(p‖m)"
    severity = ERROR
    events = (KlCall, KlFormula, Local)

    def look(self, event: KlCall | KlFormula | Local, module: Module) -> Iterator[Report]:
        if not isinstance(event, Local):
            made = event.divergence
            # A part that was softmaxed once more is still that part.
            parts = {*made.p.mixture, *(f"softmax({part})" for part in made.p.mixture)}
            if made.q_key and made.q_key in parts and not getattr(getattr(event, "api", None), "distance", False):
                yield Report(event.node, "KL(m‖p) of the mixture m: the Jensen-Shannon divergence is the mean of KL(p‖m) and KL(q‖m)")
        else:
            if len(event.nodes) < 2 or not re.match(
                r"_?(kl|kld|kl_?div\w*|kullback\w*|relative_entropy)$", getattr(event.function.node, "name", ""), re.IGNORECASE
            ):
                return
            returned = event.function.returns
            if returned is None or returned.kind != KL:
                return
            if [returned.data.p_key, returned.data.q_key] != event.function.positional[:2]:
                return
            second_key = event.values[1].of or module.source.segment(event.nodes[1])
            if second_key in event.values[0].mixture:
                yield Report(event.node, "KL(m‖p) of the mixture m: the Jensen-Shannon divergence is the mean of KL(p‖m) and KL(q‖m)")

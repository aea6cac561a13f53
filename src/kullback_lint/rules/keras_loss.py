"""KL012: Keras' KL loss given something else than probabilities."""

from __future__ import annotations

from collections.abc import Iterator

from ..catalog import APIS
from ..events import Compiled, KlCall
from ..model import ERROR
from ..values import CONSTANT, COUNTS, LABELS, LOG_PROBS, LOGITS, MODULE, OBJECT, SAMPLES, SIGMOID
from .base import Module, Report, Rule

_NAMES = {"kl_divergence", "kullback_leibler_divergence", "kld", "KLD", "KLDivergence", "kldivergence"}
_WRONG = {
    LOGITS: "raw scores (logits)",
    LOG_PROBS: "log-probabilities",
    LABELS: "class indices",
    COUNTS: "counts",
    SAMPLES: "random numbers",
}


class KerasLoss(Rule):
    code = "KL012"
    name = "keras-loss-of-non-probabilities"
    summary = "Keras' KL loss clips what it gets to [1e-7, 1]: scores and logs become nonsense without an error"
    severity = ERROR
    events = (KlCall, Compiled)

    def look(self, event: KlCall | Compiled, module: Module) -> Iterator[Report]:
        if isinstance(event, KlCall):
            if not event.api.keras:
                return
            for side, value in ((event.api.p, event.divergence.p), (event.api.q, event.divergence.q)):
                if value.kind in _WRONG:
                    yield Report(
                        event.arguments.nodes[side],
                        f"Keras' KL takes probabilities and clips them to [1e-7, 1]; this is {_WRONG[value.kind]}: softmax it",
                    )
        else:
            loss = event.loss_value
            named = loss.kind == CONSTANT and loss.data in _NAMES
            known = APIS.get(loss.data.name if loss.kind == OBJECT else loss.data) if loss.kind in (OBJECT, MODULE) else None
            if (named or (known is not None and known.keras)) and event.output.kind in (*_WRONG, SIGMOID):
                what = _WRONG.get(event.output.kind, "sigmoids, which do not sum to 1")
                yield Report(event.loss, f"Keras' KL takes probabilities; the model's last layer gives {what}: end it in softmax")

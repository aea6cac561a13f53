"""Pairs of families with a closed form for some of their parameters only; for the others it is NaN, or an error where one may look."""

from __future__ import annotations

from .families import Record

_CONDITIONS = {
    ("Logistic", "Logistic"): "equal scales",
    ("GeneralizedNormal", "GeneralizedNormal"): "equal locations, or power 2 of Q",
    ("Normal", "GeneralizedNormal"): "equal locations, or power 2 of Q",
    ("Laplace", "GeneralizedNormal"): "equal locations, or power 2 of Q",
    ("GeneralizedNormal", "Laplace"): "equal locations",
    ("HalfCauchy", "Cauchy"): "a location of 0",
    ("Kumaraswamy", "Kumaraswamy"): "equal concentration1",
    ("Binomial", "Binomial"): "a total_count of Q that is not greater",
    ("NegativeBinomial", "NegativeBinomial"): "equal total_count",
    ("Geometric", "NegativeBinomial"): "a total_count of 1",
    ("NegativeBinomial", "Geometric"): "a total_count of 1",
    ("PowerSpherical", "PowerSpherical"): "equal mean_direction",
}


def condition(p: type[Record], q: type[Record]) -> str | None:
    """What the closed form asks of the parameters, in words. The same of `probs` and of `logits`."""
    return _CONDITIONS.get((p.__name__.removesuffix("Logits"), q.__name__.removesuffix("Logits")))

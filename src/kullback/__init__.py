"""Relative entropy (KL divergence), exact, in the array framework you already use."""

from ._divergences import jeffreys, js, kl, kl_div, rel_entr, relative_entropy, renyi
from ._entropies import cross_entropy, entropy
from ._explain import Explanation, explain

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "cross_entropy",
    "entropy",
    "explain",
    "jeffreys",
    "js",
    "kl",
    "kl_div",
    "rel_entr",
    "relative_entropy",
    "renyi",
]

"""Relative entropy (KL divergence), exact, in the array framework you already use."""

from ._divergences import jeffreys, js, kl, kl_div, rel_entr, relative_entropy, renyi
from ._entropies import cross_entropy, entropy

__version__ = "0.1.0"

__all__ = [
    "cross_entropy",
    "entropy",
    "jeffreys",
    "js",
    "kl",
    "kl_div",
    "rel_entr",
    "relative_entropy",
    "renyi",
]

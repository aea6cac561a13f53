"""Relative entropy (KL divergence), exact, in the array framework you already use."""

from ._compare import compare
from ._compare.comparison import Comparison
from ._dispatch import kl, registered_pairs, relative_entropy
from ._distributions.users import register_kl
from ._divergences import jeffreys, js, kl_div, rel_entr, renyi
from ._entropies import cross_entropy, entropy
from ._errors import (
    CannotRun,
    Complaint,
    InvalidOption,
    InvalidValue,
    KullbackError,
    NoClosedForm,
    NotComparable,
    Unreadable,
    Unwritable,
    WrongType,
)  # fmt: skip
from ._explain import Explanation, explain

__version__ = "0.1.0"

__all__ = [
    "CannotRun", "Comparison", "Complaint", "Explanation", "InvalidOption", "InvalidValue", "KullbackError",
    "NoClosedForm", "NotComparable", "Unreadable", "Unwritable", "WrongType", "compare", "cross_entropy", "entropy",
    "explain", "jeffreys", "js", "kl", "kl_div", "register_kl", "registered_pairs", "rel_entr",
    "relative_entropy", "renyi",
]  # fmt: skip

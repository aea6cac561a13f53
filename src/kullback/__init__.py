"""Relative entropy (KL divergence), exact, in the array framework you already use."""

from ._compare import compare
from ._compare.comparison import Comparison
from ._compare.record import ModelComparison
from ._compare.tables.profile import Profile
from ._compare.tables.record import TableComparison
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
from ._estimate import Estimate
from ._explain import Explanation, explain
from ._version import __version__ as __version__

__all__ = [
    "CannotRun", "Comparison", "Complaint", "Estimate", "Explanation", "InvalidOption", "InvalidValue",
    "KullbackError", "ModelComparison", "NoClosedForm", "NotComparable", "Profile", "TableComparison",
    "Unreadable", "Unwritable", "WrongType", "compare", "cross_entropy", "entropy", "explain", "jeffreys",
    "js", "kl", "kl_div", "register_kl", "registered_pairs", "rel_entr", "relative_entropy", "renyi",
]  # fmt: skip

"""The record of a calculation by hand. It computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._report.json import plain
from .._report.reported import Reported, ReportModule

Floats = npt.NDArray[np.float64]

SCHEMA = "kullback.explain/1"
TOTALS = ("kl_pq", "kl_qp", "js", "entropy_p", "entropy_q", "cross_entropy_pq", "cross_entropy_qp")


class Given(NamedTuple):
    """The form of one side, the sum it was divided by, and a sentence on both. For logs, it is the sum of the
    exponentials."""

    form: str
    total: float
    note: str


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Reported):
    """What `explain` returns. `str()` is a table in plain text, notebooks show it as HTML, `to_dict()` is ready for JSON.

    `log_ratio` is log(p/q): inf where q = 0 < p, -inf where p = 0 < q, NaN where both are 0 (such a category adds nothing).
    `terms_pq` are p·log(p/q), whose sum is `kl_pq`; `terms_qp` are q·log(q/p), whose sum is `kl_qp`. Everything is in `unit`.
    """

    labels: tuple[str, ...]
    labelled: bool
    p: Floats
    q: Floats
    log_ratio: Floats
    terms_pq: Floats
    terms_qp: Floats
    kl_pq: float
    kl_qp: float
    entropy_p: float
    entropy_q: float
    cross_entropy_pq: float
    cross_entropy_qp: float
    js: float
    base: float
    unit: str
    given_p: Given
    given_q: Given

    @property
    def summary(self) -> str:
        """The categories that dominate KL(P‖Q), in a sentence or two."""
        from .sentences import summary  # which imports this module

        return summary(self)

    def to_dict(self) -> dict[str, Any]:
        """The record for JSON. Numbers that are not finite are "inf", "-inf" and "nan", which `float` reads."""
        given = ("p", self.given_p), ("q", self.given_q)
        keys = ("label", "p", "q", "log_ratio", "term_pq", "term_qp")
        columns = zip(self.labels, self.p, self.q, self.log_ratio, self.terms_pq, self.terms_qp)
        return {
            "schema": SCHEMA,
            "unit": self.unit,
            "base": self.base,
            **{name: plain(getattr(self, name)) for name in TOTALS},
            "given": {name: {"form": x.form, "sum": plain(x.total), "note": x.note} for name, x in given},
            "summary": self.summary,
            "categories": [plain(dict(zip(keys, category))) for category in columns],
        }

    def _report(self) -> ReportModule:
        from . import report

        return report

    def __repr__(self) -> str:
        return f"<Explanation of {len(self.p)} categories: KL(P‖Q) = {self.kl_pq:.6g}, KL(Q‖P) = {self.kl_qp:.6g} {self.unit}>"

"""The record of a comparison of two models' outputs. It computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._report.json import plain
from .._report.reported import ComparisonReportModule, ReportedComparison
from .._version import __version__

SCHEMA = "kullback.compare.models/1"
# As llama.cpp lists them, from the top down.
PERCENTILES = ("99.9", "99", "95", "90", "75", "50", "25", "10", "5", "1", "0.1")


class Statistic(NamedTuple):
    """Over rows. `standard_error` is that of the mean, as if rows were independent."""

    mean: float
    standard_error: float
    deviation: float
    minimum: float
    maximum: float
    percentiles: Mapping[str, float]

    @property
    def median(self) -> float:
        return self.percentiles["50"]


class Share(NamedTuple):
    value: float
    standard_error: float


class Perplexity(NamedTuple):
    """exp of the mean of −log p(token). The ratio, Q's to P's, and its error are of the differences row by row."""

    p: float
    p_error: float
    q: float
    q_error: float
    ratio: float
    ratio_error: float
    log_ratio: float
    log_ratio_error: float
    correlation: float


class Calibration(NamedTuple):
    """Rows in which P gives the token a probability from `low` to `high`: their number, the means of p and q, and the RMS of q − p."""

    low: float
    high: float
    rows: int
    p: float
    q: float
    rms_delta: float


class WorstRow(NamedTuple):
    """`token` is the category p and q are of; `top_p`, `top_q` the likeliest ones."""

    row: int
    kl_pq: float
    kl_qp: float
    js: float
    token: int
    p: float
    q: float
    top_p: int
    top_q: int


class Side(NamedTuple):
    name: str
    kind: str
    form: str
    files: int


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ModelComparison(ReportedComparison):
    """What `compare` returns for two models' outputs. `str()` is the table of the command, notebooks show it as HTML.

    Divergences are in `unit`, one a row; `kl_pq.mean` is the figure people quote. `sizes` are values of KL(P‖Q) and how many rows they
    stand for, in ascending order, each within 0.1 % of those rows'. `llama_cpp` is the mean, with its error, of the figure llama.cpp
    itself prints.
    """

    rows: int
    categories: int
    kl_pq: Statistic
    kl_qp: Statistic
    js: Statistic
    delta_p: Statistic
    rms_delta_p: float
    same_top: Share
    tokens_known: bool
    perplexity: Perplexity | None
    llama_cpp: tuple[float, float] | None
    bucket: tuple[float, float] | None
    exact_percentiles: bool
    sizes: tuple[tuple[float, int], ...]
    calibration: tuple[Calibration, ...]
    worst: tuple[WorstRow, ...]
    base: float
    nan_rows: int = 0
    masked_rows: int = 0
    missing_rows: int = 0
    p: Side = field(default=Side("P", "batches", "", 0))
    q: Side = field(default=Side("Q", "batches", "", 0))
    notes: tuple[str, ...] = ()

    def over(self, limit: float) -> str | None:
        """A sentence if the mean of KL(P‖Q) is above the limit (or is no number), else None."""
        if self.kl_pq.mean <= limit:
            return None
        return f"the mean of KL(P‖Q), {self.kl_pq.mean:.6g} {self.unit}, is over {limit:g}"

    def to_dict(self) -> dict[str, Any]:
        """The record for JSON, by models.schema.json. Numbers that are not finite are "inf", "-inf" and "nan"."""
        figures = {name: plain(getattr(self, name)) for name in ("kl_pq", "kl_qp", "js", "delta_p")}
        figures["delta_p"]["root_mean_square"] = plain(self.rms_delta_p)
        theirs = None if self.llama_cpp is None else dict(zip(("kl_pq_mean", "standard_error"), map(plain, self.llama_cpp)))
        return {
            "schema": SCHEMA, "version": __version__, "unit": self.unit, "base": self.base,
            "p": self.p._asdict(), "q": self.q._asdict(), "categories": self.categories,
            "rows": self.rows, "left_out": {"nan": self.nan_rows, "masked": self.masked_rows, "missing": self.missing_rows},
            "token": "given" if self.tokens_known else "likeliest of P", **figures,
            "percentiles": "exact" if self.exact_percentiles else "within 0.1%",
            "same_top": plain(self.same_top), "perplexity": plain(self.perplexity), "llama_cpp": theirs,
            "bucket": None if self.bucket is None else dict(zip("pq", map(plain, self.bucket))),
            "sizes": plain(self.sizes), "calibration": plain(self.calibration), "worst": plain(self.worst),
            "notes": list(self.notes),
        }  # fmt: skip

    def to_text(self, *, top: int = 5) -> str:
        """As the command prints it, with the `top` worst rows."""
        return self._report().to_text(self, top=top)

    def to_markdown(self, *, top: int = 20) -> str:
        """For a pull request."""
        return self._report().to_markdown(self, top=top)

    def _report(self) -> ComparisonReportModule:
        from . import report

        return report

    def __repr__(self) -> str:
        return (
            f"<ModelComparison of {self.rows:,} rows: mean KL(P‖Q) = {self.kl_pq.mean:.6g} ± {self.kl_pq.standard_error:.2g} {self.unit}>"
        )

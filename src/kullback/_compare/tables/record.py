"""The record of a comparison of two tables. It computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..._report.json import plain
from ..._report.reported import ComparisonReportModule, ReportedComparison
from ..._version import __version__
from .statistics import DRAWING, Divergences, Terms, Test

SCHEMA = "kullback.compare.tables/1"


class Side(NamedTuple):
    name: str
    rows: int


class Column(NamedTuple):
    """One column, or a pair of them (`kind` "pair"). Bins that are empty on both sides are not in it.

    `figures` and `test.floor` have the same four names; `p_value` is that of no drift at all, `p_adjusted` for the number of columns.
    """

    name: str
    kind: str
    type_p: str
    type_q: str
    labels: tuple[str, ...]
    p: tuple[int, ...]
    q: tuple[int, ...]
    terms: Terms
    figures: Divergences
    test: Test
    p_adjusted: float
    pooled: int

    @property
    def p_value(self) -> float:
        return self.test.p_value


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TableComparison(ReportedComparison):
    """What `compare` returns for two tables. `str()` is the table of the command, notebooks show it as HTML.

    `columns` and `pairs` come the most different first, by KL(P‖Q). Figures are in `unit`, PSI always in nats.
    """

    p: Side
    q: Side
    columns: tuple[Column, ...]
    pairs: tuple[Column, ...]
    left_out: tuple[tuple[str, str], ...]
    bins: int
    levels: int
    prior: float
    base: float
    engine: str

    @property
    def drawing(self) -> str:
        """How tables are drawn where a p-value needs it: how many, by which generator, from which seed."""
        return DRAWING

    @property
    def changed(self) -> tuple[Column, ...]:
        """Columns and pairs whose difference is beyond chance: adjusted p-value under 0.01."""
        return tuple(column for column in (*self.columns, *self.pairs) if column.p_adjusted < 0.01)

    def __getitem__(self, name: str) -> Column:
        for column in (*self.columns, *self.pairs):
            if column.name == name:
                return column
        raise KeyError(name)

    def over(self, limit: float) -> str | None:
        """A sentence if the KL(P‖Q) of a column (or pair) is above the limit, else None."""
        found = [column for column in (*self.columns, *self.pairs) if not column.figures.kl_pq <= limit]
        if not found:
            return None
        first = max(found, key=lambda column: column.figures.kl_pq)
        return (
            f"KL(P‖Q) is over {limit:g} {self.unit} in {len(found)} of {len(self.columns) + len(self.pairs)} columns; "
            f"the largest, {first.figures.kl_pq:.6g}, is that of {first.name!r}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The record for JSON, by tables.schema.json. Numbers that are not finite are "inf" and "nan"."""
        from .report import conventions  # which imports this module

        return {
            "schema": SCHEMA, "version": __version__, "unit": self.unit, "base": self.base,
            "p": self.p._asdict(), "q": self.q._asdict(),
            "settings": {"bins": self.bins, "levels": self.levels, "prior": self.prior, "engine": self.engine},
            "columns": [_to_dict(column) for column in self.columns],
            "pairs": [_to_dict(column) for column in self.pairs],
            "left_out": [{"name": name, "reason": reason} for name, reason in self.left_out],
            "conventions": conventions(self),
        }  # fmt: skip

    def to_text(self, *, top: int = 20) -> str:
        """As the command prints it: the `top` most different columns."""
        return self._report().to_text(self, top=top)

    def to_markdown(self, *, top: int = 30) -> str:
        """For a pull request: the `top` most different columns, and pairs."""
        return self._report().to_markdown(self, top=top)

    def _report(self) -> ComparisonReportModule:
        from . import report

        return report

    def __repr__(self) -> str:
        first = f": most in {self.columns[0].name!r}, KL(P‖Q) = {self.columns[0].figures.kl_pq:.6g} {self.unit}" if self.columns else ""
        return f"<TableComparison of {len(self.columns)} columns{first}>"


def _to_dict(column: Column) -> dict[str, Any]:
    t, test = column.terms, column.test
    return {
        "name": column.name, "kind": column.kind, "type": {"p": column.type_p, "q": column.type_q},
        **plain(column.figures), "noise_floor": plain(test.floor),
        "test": {
            "g": test.g, "degrees_of_freedom": test.degrees, "p_value": test.p_value, "p_adjusted": column.p_adjusted,
            "tables_drawn": test.drawn,
        },
        "pooled_levels": column.pooled,
        "bins": [
            {"label": label, "p_count": a, "q_count": b, "p": float(x), "q": float(y), "kl_pq_nats": plain(k), "psi": plain(s)}
            for label, a, b, x, y, k, s in zip(column.labels, column.p, column.q, t.p, t.q, t.kl, t.psi)
        ],
    }  # fmt: skip

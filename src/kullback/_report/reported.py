"""The bases of the records that `explain` and `compare` return."""

from __future__ import annotations

from typing import Any, Protocol

from .cells import unit
from .json import dumps


class ReportModule(Protocol):
    """A module `report.py`, which says what the outputs of one record show."""

    def to_text(self, record: Any, /, *, top: int = ...) -> str: ...
    def to_fragment(self, record: Any, /) -> str: ...


class ComparisonReportModule(ReportModule, Protocol):
    """The report of a comparison has further outputs."""

    def to_markdown(self, record: Any, /, *, top: int = ...) -> str: ...
    def to_html(self, record: Any, /) -> str: ...
    def plot(self, record: Any, /) -> Any: ...


class Reported:
    """It prints as a table and shows itself in notebooks.

    A subclass imports its report in `_report`, so that `import kullback` loads no report."""

    def _report(self) -> ReportModule:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._report().to_text(self)

    def _repr_html_(self) -> str:
        return self._report().to_fragment(self)


class ReportedComparison(Reported):
    """The outputs of comparisons, of models and of tables."""

    base: float

    def _report(self) -> ComparisonReportModule:
        raise NotImplementedError

    @property
    def unit(self) -> str:
        return unit(self.base)

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def to_json(self) -> str:
        return dumps(self.to_dict())

    def to_html(self) -> str:
        """One page that needs nothing else. Needs Jinja (`kullback[cli]`)."""
        return self._report().to_html(self)

    def plot(self) -> Any:
        """The report's pictures as a Matplotlib figure."""
        return self._report().plot(self)

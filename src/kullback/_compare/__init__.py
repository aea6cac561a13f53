"""Files, tables and logits dumps → a record of how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

from .record import ModelComparison
from .signatures import FileName, ModelOptions, ModelOutput, TableLike, TableOptions
from .tables.record import TableComparison

if TYPE_CHECKING:
    from typing_extensions import Unpack

from .._errors import WrongType


@overload
def compare(a: TableLike, b: TableLike | FileName, **options: Unpack[TableOptions]) -> TableComparison: ...
@overload
def compare(a: FileName, b: TableLike, **options: Unpack[TableOptions]) -> TableComparison: ...
@overload  # the files decide, unless an option below does, for which mypy has no words
def compare(  # type: ignore[overload-overlap]
    a: FileName, b: FileName, *, base: float | None = None
) -> ModelComparison | TableComparison: ...
@overload
def compare(a: ModelOutput, b: ModelOutput, **options: Unpack[ModelOptions]) -> ModelComparison: ...
@overload
def compare(a: FileName, b: FileName, **options: Unpack[TableOptions]) -> TableComparison: ...
def compare(a: Any, b: Any, **options: Any) -> ModelComparison | TableComparison:
    """How far apart two models' outputs, or two tables, are: a record with every figure, `a` being the reference, P.

    Parameters
    ----------
    a, b : path, array or table
        Model outputs: arrays of any framework of shape [rows, categories], `.npy`, `.npz`, `.safetensors`, `.pt` files, directories or
        patterns of these, llama.cpp logits files, each against each. Tables: pandas, polars or Arrow objects, `.csv`, `.parquet`,
        `.jsonl` files, profiles.
    **options
        For model outputs: `form` ("probs", "log_probs", "logits", "counts" or a pair; by default what a file says, else "probs"), `tokens`
        (a whole number a row, or a file of them), `base` (2 for bits), `top` (worst rows to keep), `allow_partial`, `progress`.
        For tables see `docs/compare.md`.

    Returns
    -------
    ModelComparison or TableComparison
        With `to_dict()`, `to_json()`, `to_html()`, `to_markdown()`, `plot()` and a view in notebooks.

    Examples
    --------
    >>> import kullback as kb
    >>> found = kb.compare([[2.0, 1.0, 0.0], [0.0, 0.0, 5.0]], [[1.5, 1.0, 0.5], [0.0, 1.0, 4.0]], form="logits")
    >>> found
    <ModelComparison of 2 rows: mean KL(P‖Q) = 0.0464109 ± 0.014 nats>
    >>> found.same_top.value, found.worst[0].row
    (1.0, 0)
    """
    from .._reduce import check_base
    from .kinds import kind_of

    check_base(options.get("base"))  # before the work, not after it
    compared: Callable[..., ModelComparison | TableComparison]
    if (kind := kind_of(a, b)) == "tables":
        from .tables import compare_tables as compared
    else:
        from .models import compare_models as compared
    _must_know(options, kind)
    return compared(a, b, **options)


def _must_know(options: Mapping[str, Any], kind: str) -> None:
    """Python's own sentence would name a function that nobody has called."""
    import difflib

    known = list((TableOptions if kind == "tables" else ModelOptions).__annotations__)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known)
            raise WrongType(
                f"kullback.compare has no option {name!r} for {'tables' if kind == 'tables' else 'model outputs'}: "
                + (f"is it {' or '.join(near)}?" if near else f"there are {', '.join(known)}")
            )

"""Files, tables and logits dumps → a record of how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._errors import WrongType


def compare(a: Any, b: Any, **options: Any) -> Any:
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
    record
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

    check_base(options.get("base"))  # before the work, not after it
    compared: Callable[..., Any]
    if (kind := kind_of(a, b)) == "tables":
        from .tables import compare_tables as compared
    else:
        from .models import compare_models as compared
    _must_know(options, compared, kind)
    return compared(a, b, **options)


def _must_know(options: Mapping[str, Any], compared: Callable[..., Any], kind: str) -> None:
    """Python's own sentence would name a function that nobody has called."""
    import difflib
    import inspect

    known = [name for name, of in inspect.signature(compared).parameters.items() if of.kind is of.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known)
            raise WrongType(
                f"kullback.compare has no option {name!r} for {'tables' if kind == 'tables' else 'model outputs'}: "
                + (f"is it {' or '.join(near)}?" if near else f"there are {', '.join(known)}")
            )


def kind_of(a: Any, b: Any) -> str:
    """ "tables" or "models": what both are. Raises if they are not of a kind, or of none."""
    import os

    from .._read import ReadError
    from .shards import listed
    from .sources import is_model_output, unknown
    from .tables import is_table

    for side in (a, b):
        if isinstance(side, (str, os.PathLike)):
            _check(os.fspath(side))
    kinds = []
    for side in (a, b):
        if isinstance(side, (str, os.PathLike)) and os.path.isdir(side) and _holds_models(os.fspath(side)):
            kinds.append("models")  # tables below it are hidden, or it would be of two kinds
        elif is_table(side):
            kinds.append("tables")
        elif is_model_output(side):
            kinds.append("models")
        elif isinstance(side, (str, os.PathLike)):
            raise unknown(listed(side))
        else:
            raise ReadError(f"a {type(side).__name__} cannot be compared: pass an array, a table, or the name of a file")
    if kinds[0] != kinds[1]:
        table = a if kinds[0] == "tables" else b
        what = os.fspath(table) if isinstance(table, (str, os.PathLike)) else f"the {type(table).__name__}"
        raise ReadError(f"{what} is a table and the other side a model's output: compare two of a kind")
    return kinds[0]


def _holds_models(folder: str) -> bool:
    """Outputs of models, in itself: what lies below is not read."""
    import os
    from pathlib import Path

    from .llama import is_llama
    from .shards import SUFFIXES
    from .tables.sources import format_of

    files = [Path(entry) for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith(".")]
    return any(path.suffix.lower() in SUFFIXES for path in files) or any(is_llama(path) for path in files if not format_of(path.name))


# What lies beside the weights of a model, and what the folder then is.
_BESIDE = {
    "adapter_config.json": "an adapter of a model",
    "model_index.json": "a diffusion model",
    "config.json": "a model",
    "model.safetensors.index.json": "a model",
    "pytorch_model.bin.index.json": "a model",
}


def _refuse_weights(name: str, files: Sequence[str]) -> None:
    """Rows of a model's weights would pass for distributions. `files` are those that a file, a folder or a pattern stands for."""
    import os
    import re

    from .._read import ReadError
    from .shards import TAKES_OUTPUTS
    from .sources import NAMED_WEIGHTS, WEIGHTS

    is_folder = os.path.isdir(name)
    for file in sorted(files):
        folder, own = os.path.split(file)
        weights = re.search(rf"{WEIGHTS}$", own) if is_folder else re.fullmatch(NAMED_WEIGHTS, own)
        beside = next((each for each in _BESIDE if os.path.isfile(os.path.join(folder, each))), None)
        if beside and (weights or (is_folder and own == "model_index.json")):
            kind = _BESIDE[beside]
            what = f"{name} is {kind}" if is_folder else f"{file} is part of {kind}"
            outputs = ""
            if is_folder and weights:
                pattern = os.path.join(name, "*" + weights[0][weights[0].rindex(".") :])
                outputs = f"; if the folder holds outputs, name them by a pattern, such as '{pattern}'"
            article = "an" if beside[0] == "a" else "a"
            raise ReadError(f"{what} (weights, with {article} {beside}), {TAKES_OUTPUTS}{outputs}")


def _check(name: str) -> None:
    """Is there something of this name, and of one kind?"""
    import glob
    import os
    from pathlib import Path

    from .._read import ReadError, check_name, shown
    from .llama import is_llama
    from .shards import SUFFIXES
    from .tables.sources import format_of

    if "://" in name:  # not ours to look at
        return
    check_name(name, below=False)
    if os.path.isfile(name):
        _refuse_weights(name, [name])
        return
    if os.path.isdir(name):
        found = [entry.path for entry in os.scandir(name) if entry.is_file() and not entry.name.startswith(".")]
        _refuse_weights(name, found)
        if _holds_models(name):  # beside them tables below, which are looked for there too
            for folder, below, files in os.walk(name):
                below[:] = shown(below)
                found += [os.path.join(folder, file) for file in files if format_of(file)]
        else:
            check_name(name)
    elif glob.has_magic(name):
        found = [file for file in glob.glob(name, recursive=True) if os.path.isfile(file)]
        _refuse_weights(name, found)
    else:
        raise ReadError(f"there is no file {name}")
    tables = {f".{format_of(file)}" for file in found if format_of(file) and shown([os.path.basename(file)])}
    models = {path.suffix.lower() for path in map(Path, found) if path.suffix.lower() in SUFFIXES}
    if tables and any(is_llama(Path(file)) for file in found if not format_of(file)):
        models.add("llama.cpp logits")
    if len(models) + min(1, len(tables)) > 1 and models != {".pt", ".pth"}:
        kinds = [*sorted(models), *sorted(tables)]
        folder = name if os.path.isdir(name) else os.path.dirname(name)
        raise ReadError(
            f"{name} stands for {', '.join(kinds[:-1])} and {kinds[-1]} files: name those of one kind, by a pattern such as "
            f"'{os.path.join(folder, '*.npy' if '.npy' in models else '*' + kinds[-1])}'"
        )

"""Are the two sides of a comparison models or tables? The file system says, or their types."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._read import ReadError, check_name, shown
from .llama import is_llama
from .shards import SUFFIXES, TAKES_OUTPUTS, listed
from .sources import NAMED_WEIGHTS, WEIGHTS, is_model_output, unknown
from .tables import is_table
from .tables.sources import format_of


def kind_of(a: Any, b: Any) -> str:
    """ "tables" or "models": what both are. Raises if they are not of a kind, or of none."""
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
    files = [Path(entry) for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith(".")]
    return any(path.suffix.lower() in SUFFIXES for path in files) or any(is_llama(path) for path in files if not format_of(path.name))


# Files that lie beside weights, and the contents of such a folder.
_BESIDE = {
    "adapter_config.json": "an adapter of a model",
    "model_index.json": "a diffusion model",
    "config.json": "a model",
    "model.safetensors.index.json": "a model",
    "pytorch_model.bin.index.json": "a model",
}


def _refuse_weights(name: str, files: Sequence[str]) -> None:
    """Rows of a model's weights would pass for distributions. `files` are all files behind the name."""
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

"""What the caller names as P or Q (files, directories, patterns, arrays in memory) → a `Source`, read a block of rows at a time."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import WrongType
from .._forms import DTYPES
from .._ops import ops_of
from .._read import ReadError
from .llama import begins_with, is_llama, open_llama
from .shards import SUFFIXES, TAKES_OUTPUTS, Piece, listed, open_array

Array = Any

# Endings of files that hold the weights of a model, the names that Hugging Face's libraries give them, and endings of nothing but models.
WEIGHTS = r"\.(safetensors|bin|pt|pth|h5|msgpack|gguf)"
NAMED_WEIGHTS = rf"((.+[_.-])?model|consolidated)([.-][\w.-]+)?{WEIGHTS}"
PROGRAMS = r"\.(gguf|onnx|keras|tflite|pb|ckpt)$"


class Source:
    """Pieces one after another, seen as one. `kind` is "array" or "llama.cpp"; `form` what the files say, or None."""

    def __init__(self, name: str, kind: str, pieces: Sequence[Piece]) -> None:
        self.name, self.kind, self.pieces = name, kind, list(pieces)
        first = self.pieces[0]
        for piece in self.pieces:
            if piece.categories != first.categories:
                raise ReadError(
                    f"{piece.path} has {piece.categories:,} categories and {first.path} has {first.categories:,}: shards must agree"
                )
            if piece.form != first.form:
                raise ReadError(
                    f"{piece.path} holds {piece.form or 'an array without a form'} and {first.path} {first.form or 'one without'}"
                )
            if piece.context != first.context:
                raise ReadError(
                    f"{piece.path} has chunks of {piece.context:,} tokens and {first.path} of {first.context:,}: shards must agree"
                )
            if (piece.tokens is None) != (first.tokens is None):  # those of the others would be passed over
                without, with_ = (piece, first) if piece.tokens is None else (first, piece)
                raise ReadError(f"{without.path} has no tokens and {with_.path} has some: shards must agree")
        self.categories, self.form, self.context = first.categories, first.form, first.context
        self.starts = np.concatenate([[0], np.cumsum([piece.rows for piece in self.pieces])])
        self.rows = int(self.starts[-1])
        self.has_tokens = first.tokens is not None

    @property
    def incomplete(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.whole < piece.rows]

    def _find(self, start: int) -> tuple[Piece, int]:
        i = int(np.searchsorted(self.starts, start, side="right")) - 1
        return self.pieces[i], int(self.starts[i])

    def whole(self, start: int, stop: int) -> int:
        """How many of these rows, which lie in one piece, are there."""
        piece, base = self._find(start)
        return max(0, min(stop - base, piece.whole) - (start - base))

    def read(self, start: int, stop: int) -> Any:
        piece, base = self._find(start)
        return piece.read(start - base, stop - base)

    def tokens(self, start: int, stop: int) -> Array:
        piece, base = self._find(start)
        assert piece.tokens is not None
        return piece.tokens(start - base, stop - base)

    def texts(self, start: int, stop: int) -> tuple[Array, int]:
        """Chunks of tokens, and at which row of the first these rows begin."""
        piece, base = self._find(start)
        assert piece.texts is not None
        return piece.texts(start - base, stop - base), (start - base) % (self.context - 1 - self.context // 2)

    def where(self, row: int) -> str:
        """The row's place, as a person would look for it."""
        piece, base = self._find(row)
        return f"row {row:,}" if len(self.pieces) == 1 else f"row {row:,} ({piece.path}, row {row - base:,})"


def is_model_output(source: Any) -> bool:
    """An array of any framework or a list, or files of arrays or of llama.cpp?"""
    if isinstance(source, (str, os.PathLike)):
        files = listed(source)
        return any(path.suffix.lower() in SUFFIXES or is_llama(path) for path in files)
    return isinstance(source, (list, tuple)) or (ops_of(source) is not None and hasattr(type(source), "shape"))


def open_source(source: Any, name: str, form: str | None = None) -> Source:
    """`name` is what to call an array in memory, `form` that of the array to take, where a file has several."""
    if isinstance(source, (str, os.PathLike)):
        files = listed(source)
        llama = [path for path in files if is_llama(path)]
        if llama:
            if len(llama) < len(files):
                other = next(path for path in files if path not in llama)
                raise ReadError(f"{source} holds llama.cpp logits files, and {other}, which is none")
            return Source(os.fspath(source), "llama.cpp", [open_llama(path) for path in files])
        arrays = [path for path in files if path.suffix.lower() in SUFFIXES]
        if len(files) == 1 and not arrays:
            raise unknown(files)
        return Source(os.fspath(source), "array", [open_array(path, form) for path in arrays])
    return Source(name, "array", [_in_memory(source, name)])


def unknown(files: Sequence[Path]) -> ReadError:
    for path in files:
        if begins_with(path, b"GGUF") or re.search(PROGRAMS, path.name, re.IGNORECASE) or re.fullmatch(NAMED_WEIGHTS, path.name):
            return ReadError(f"{path} is a model, {TAKES_OUTPUTS}")
    path = files[0]
    if path.stat().st_size == 0:
        return ReadError(f"{path} is empty")
    return ReadError(
        f"{path}: cannot tell what it is from its name; model outputs are {', '.join(SUFFIXES)} or llama.cpp logits files, "
        "tables .csv, .parquet or .jsonl, profiles .json"
    )


def _in_memory(x: Any, name: str) -> Piece:
    ops = ops_of(x)
    if ops is None:
        try:
            x = np.asarray(x)
        except ValueError:
            raise ReadError(f"{name} holds rows of different lengths: compare takes [rows, categories]") from None
        ops = ops_of(x)
    elif getattr(x, "is_nested", False) or str(getattr(x, "layout", "torch.strided")) != "torch.strided":
        raise ReadError(f"{name} is a sparse or nested tensor: compare takes [rows, categories], all of them there")
    shape = tuple(map(int, x.shape))
    if len(shape) < 2:
        raise ReadError(f"{name} has shape {shape}: compare takes [rows, categories]; for one distribution, use kullback.explain")
    if 0 in shape:
        raise ReadError(f"{name} has shape {shape}: no rows or no categories in it")
    if not (ops.is_float(x) or ops.is_integer(x)):
        raise ReadError(f"{name} has dtype {x.dtype}: use float16, bfloat16, float32, float64 or an integer type")
    rows, columns = math.prod(shape[:-1]), shape[-1]

    half = host(x[:1], name)[1]

    def read(start: int, stop: int) -> Array:
        return (x if len(shape) == 2 else x.reshape(rows, columns))[start:stop]

    here = isinstance(x, np.ndarray)
    width = x.dtype.itemsize if here and x.dtype in (np.float16, np.float32, np.float64) else 16
    return Piece(name, None, rows, columns, rows, read, None, half, here, width)


def host(x: Any, name: str = "it") -> tuple[Array, bool]:
    """A NumPy array of what any framework holds, of float32, float64 or whole numbers; and whether it was of half precision."""
    ops = ops_of(x)
    if ops is None:
        x = np.asarray(x)
        ops = ops_of(x)
    half = ops.is_float(x) and ops.is_half(x)
    try:
        return np.asarray(ops.to_numpy(ops.astype(x, ops.float32) if half else x)), half
    except (TypeError, NotImplementedError, RuntimeError):  # in a framework's own words
        what = f"{name} ({type(x).__name__}, {x.dtype}) cannot be read as numbers"
        raise WrongType(f"{what}: pass a dense array with dtype {DTYPES}, outside of compiled functions") from None

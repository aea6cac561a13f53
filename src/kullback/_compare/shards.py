"""Files of arrays, [rows, categories] each, as one long array that is read a block of rows at a time.

.npy, .npz and .safetensors are mapped, not loaded: memory does not grow with them. Nothing is ever unpickled: .npy without pickles only,
.pt by PyTorch's reader of weights. What is wrong with a file is said in one sentence (`ReadError`).
"""

from __future__ import annotations

import glob
import json
import math
import mmap
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._errors import Option, saying
from .._forms import FORMS
from .._kernels.compiled import BFLOAT16
from .._read import ReadError, check_name, first_line, npy_header

Array = Any

SUFFIXES = (".npy", ".npz", ".safetensors", ".pt", ".pth")
_SAFETENSORS = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
}  # fmt: skip
TAKES_OUTPUTS = "and compare takes what models give: save the logits of each"
# Names of parameters, such as lm_head.weight: rows of embeddings would pass for rows of logits.
_PARAMETER = re.compile(r"(.*[./])?(weight|bias|kernel|embedding)")
# Maps begin and end at multiples of this: where the file's pages are as large, those at both ends of a block then come whole too.
_LARGE_PAGE = 1 << 21
# Bytes of rows that are read together from a file in Fortran order.
_COLUMN_BYTES = 1 << 25
# Bytes of a .pt that may be mapped at a time: PyTorch maps all of it, so it is opened anew.
_PT_BYTES = 1 << 28


class Stored(NamedTuple):
    """An array in a file: its shape there, how many of its rows are whole, and `read(start, stop)` of rows, flattened to two axes.

    `mapped`: are these pages of the file, in the machine's own numbers?"""

    shape: tuple[int, ...]
    dtype: str
    whole: int
    read: Callable[[int, int], Array]
    mapped: bool = False


class Piece(NamedTuple):
    """One file: rows × categories, of which the first `whole` rows are there. `anywhere`: may any thread read it, one at a time? `width`:
    bytes that an element takes when read, with what it is converted to. `texts`, of llama.cpp's files: the chunks of `context` tokens each
    that rows are of, each row of the tokens before its own."""

    path: str
    form: str | None
    rows: int
    categories: int
    whole: int
    read: Callable[[int, int], Any]
    tokens: Callable[[int, int], Array] | None
    half: bool = False
    anywhere: bool = True
    width: int = 16
    context: int = 0
    texts: Callable[[int, int], Array] | None = None


def listed(source: str | os.PathLike[str]) -> list[Path]:
    """The files a name stands for: itself, those in a directory, those a pattern matches; numbers in names in their order."""
    text = os.fspath(source)
    check_name(text, below=False)
    path = Path(text)
    if path.is_dir():
        found = [entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
        if not found:
            below = next((entry for entry in sorted(path.rglob("*")) if entry.suffix.lower() in SUFFIXES), None)
            advice = "" if below is None else f", but below it: name those by a pattern, such as '{path}/**/*{below.suffix}'"
            raise ReadError(f"{path} is a directory with no files in it{advice}")
    elif path.exists():
        found = [path]
    elif glob.has_magic(text):
        found = [Path(name) for name in glob.glob(text, recursive=True) if os.path.isfile(name)]
        if not found:
            raise ReadError(f"no file matches {text}")
    else:
        raise ReadError(f"there is no file {text}")
    return sorted(found, key=lambda each: natural(str(each)))


def natural(name: str) -> list[str | int]:
    """To sort by: numbers as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def arrays_in(path: Path) -> dict[str, Stored]:
    """All arrays of a file of one of SUFFIXES, by name ("" where it has none)."""
    reader = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".pt": _pt, ".pth": _pt}[path.suffix.lower()]
    try:
        if path.stat().st_size == 0:
            raise ReadError(f"{path} is empty")
        return reader(path)
    except (ReadError, MemoryError):
        raise
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # zipfile, zlib and JSON's parser raise what they like when bytes are wrong
        raise ReadError(f"{path} is damaged: {first_line(error)}") from None


def open_array(path: Path, wanted: str | None = None) -> Piece:
    """The array of distributions in a file of one of SUFFIXES, with its tokens if it has some; of several forms, the one `wanted`."""
    arrays = arrays_in(path)
    form, chosen = _choose(path, arrays, wanted)
    stored = arrays[chosen]
    if not re.fullmatch(r"bool|bfloat16|float(16|32|64)|u?int\d+", stored.dtype):
        what = f", array {chosen!r}," if chosen else ""
        raise ReadError(f"{path}{what} has dtype {stored.dtype}: use float16, bfloat16, float32, float64 or an integer type")
    if len(stored.shape) < 2:
        raise ReadError(f"{path} has shape {stored.shape}: compare takes [rows, categories]; for one distribution, use kullback explain")
    categories = stored.shape[-1]
    rows = math.prod(stored.shape[:-1])
    if rows == 0 or categories == 0:
        raise ReadError(f"{path} has shape {stored.shape}: {'no rows' if rows == 0 else 'no categories'} in it")
    half = stored.dtype in ("float16", "bfloat16")
    width = {"float16": 2, "bfloat16": 4, "float32": 4, "float64": 8}.get(stored.dtype, 16) if stored.mapped else 16
    tokens = arrays.get("tokens") if len(arrays) > 1 else None
    if tokens is not None and chosen != "tokens":
        if math.prod(tokens.shape) != rows or "int" not in tokens.dtype:
            raise ReadError(
                f"{path}: 'tokens' is {tokens.dtype} of shape {tokens.shape}, for {rows:,} rows: it must hold a whole number a row"
            )
        whole = min(stored.whole, tokens.whole * _entries(tokens.shape)[1])
        return Piece(str(path), form, rows, categories, whole, stored.read, flat(tokens), half, width=width)
    return Piece(str(path), form, rows, categories, stored.whole, stored.read, None, half, width=width)


def _choose(path: Path, arrays: Mapping[str, Stored], wanted: str | None) -> tuple[str | None, str]:
    """Which array holds the distributions, and its form if its name says so."""
    named = [name for name in arrays if name in FORMS]
    if len(named) > 1:
        if wanted in named:
            return wanted, wanted
        held = f"{path} holds {', '.join(named[:-1])} and {named[-1]}"
        raise saying(ReadError, f"{held}: say which to compare, e.g. ", Option("form", named[0]))
    parameter = next(filter(_PARAMETER.fullmatch, arrays), None)
    if parameter is not None and not named:
        raise ReadError(
            f"{path} holds {parameter!r}, a parameter of a model, {TAKES_OUTPUTS}; an array of outputs is called {', '.join(FORMS[:-1])} "
            f"or {FORMS[-1]}"
        )
    others = [name for name in arrays if name != "tokens"] or list(arrays)
    if len(named) == 1 or len(others) == 1:
        name = named[0] if len(named) == 1 else others[0]
        return (name if name in FORMS else None), name
    if not arrays:
        raise ReadError(f"{path} holds no arrays")
    shown = ", ".join(repr(name) for name in list(arrays)[:8]) + (", ..." if len(arrays) > 8 else "")
    raise ReadError(
        f"{path} holds several arrays ({shown}): name the one to compare {', '.join(FORMS[:-1])} or {FORMS[-1]}, after what it holds"
    )


def flat(stored: Stored) -> Callable[[int, int], Array]:
    """Its entries from one to another, counted through."""
    width = _entries(stored.shape)[1]

    def read(start: int, stop: int) -> Array:
        first = start // width
        return stored.read(first, -(-stop // width)).reshape(-1)[start - first * width : stop - first * width]

    return read


def _entries(shape: tuple[int, ...]) -> tuple[int, int]:
    """An array as rows and columns: the last axis is a row's, unless there is only one (tokens)."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (math.prod(shape), 1)


def map_block(path: Path, dtype: Any, offset: int, shape: tuple[int, ...]) -> Array:
    """Part of a file. Each block is mapped for itself, and let go after it: pages read do not pile up.

    As np.memmap does it with mode "c", but in less time. That mode, though nothing is written: NumPy's argmax copies what may not be
    written to."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size == 0:
        return np.empty(shape, dtype)
    shift = offset % _LARGE_PAGE
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        room = min(os.fstat(file).st_size - (offset - shift), -(-(shift + size) // _LARGE_PAGE) * _LARGE_PAGE)
        if room < shift + size:
            raise ReadError(f"{path} has become shorter since it was opened")
        mapped = mmap.mmap(file, room, access=mmap.ACCESS_COPY, offset=offset - shift)
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror or error}") from None
    finally:
        os.close(file)
    return np.ndarray(shape, dtype, mapped, shift)


def _mapped(path: Path, offset: int, size: int, shape: tuple[int, ...], dtype: Any, *, bfloat16: bool = False) -> Stored:
    """`size` bytes are there, of which the array's may be cut short."""
    rows, columns = _entries(shape)
    width = columns * np.dtype(dtype).itemsize

    def read(start: int, stop: int) -> Array:
        block = map_block(path, dtype, offset + start * width, (stop - start, columns))
        return block.view(BFLOAT16) if bfloat16 else block

    whole = max(0, min(rows, (size - offset) // width)) if width else 0
    return Stored(shape, "bfloat16" if bfloat16 else np.dtype(dtype).name, whole, read, np.dtype(dtype).isnative)


def _npy(path: Path) -> dict[str, Stored]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        shape, fortran, dtype = npy_header(file, path)
        offset = file.tell()
    if not fortran or len(shape) < 2:
        return {"": _mapped(path, offset, size, shape, dtype)}
    if len(shape) != 2 or size - offset < math.prod(shape) * dtype.itemsize:
        raise ReadError(
            f"{path} is in Fortran order and {'cut short' if len(shape) == 2 else 'has 3 axes or more'}: save it with np.ascontiguousarray"
        )

    return {"": Stored(shape, dtype.name, shape[0], _by_columns(path, offset, shape, dtype))}


def _by_columns(path: Path, offset: int, shape: tuple[int, ...], dtype: Any) -> Callable[[int, int], Array]:
    """Of Fortran order. Not mapped: a few rows have numbers on every page of the file, and all of it would be in memory. More rows than are
    asked for at a time, since there is a call of the system for each column of them."""
    rows, columns = shape
    state: dict[str, Any] = {"begin": 0, "block": np.empty((columns, 0), dtype)}

    def read(start: int, stop: int) -> Array:
        if not state["begin"] <= start <= stop <= state["begin"] + state["block"].shape[1]:
            end = min(rows, start + max(stop - start, _COLUMN_BYTES // (columns * dtype.itemsize)))
            # Columns a power of two apart would share few lines of the cache when rows are taken out: several times slower.
            block = np.empty((columns, end - start + 64 // dtype.itemsize), dtype)[:, : end - start]
            with open(path, "rb", buffering=0) as file:
                for column, into in enumerate(block.view(np.uint8)):
                    file.seek(offset + (column * rows + start) * dtype.itemsize)
                    if file.readinto(into) < into.size:
                        raise ReadError(f"{path} has become shorter since it was opened")
            state["begin"], state["block"] = start, block
        return state["block"].T[start - state["begin"] : stop - state["begin"]]

    return read


def _npz(path: Path) -> dict[str, Stored]:
    size, found = path.stat().st_size, {}
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise ReadError(f"{path} is no .npz archive, or is cut short: its table of contents, at the end, is missing") from None
    with archive, open(path, "rb") as file:
        for entry in archive.infolist():
            if not entry.filename.endswith(".npy"):
                continue
            name = entry.filename.removesuffix(".npy")
            what = f", array {name!r},"
            with archive.open(entry) as member:
                shape, fortran, dtype = npy_header(member, path, what)
                header = member.tell()
            if fortran and len(shape) > 1:
                raise ReadError(f"{path}{what} is in Fortran order: save it with np.ascontiguousarray")
            if entry.compress_type != zipfile.ZIP_STORED:
                found[name] = _unzipped(path, entry.filename, header, shape, dtype)
                continue
            file.seek(entry.header_offset)
            local = file.read(30)
            begin = entry.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))
            found[name] = _mapped(path, begin + header, min(size, begin + entry.file_size), shape, dtype)
    return found


def _unzipped(path: Path, member: str, header: int, shape: tuple[int, ...], dtype: Any) -> Stored:
    """Compressed: read from front to back, as blocks are asked for."""
    rows, columns = _entries(shape)
    width = columns * dtype.itemsize
    state: dict[str, Any] = {"file": None, "at": 0}

    def read(start: int, stop: int) -> Array:
        try:
            if state["file"] is None or state["at"] != start:
                state["file"] = zipfile.ZipFile(path).open(member)  # noqa: SIM115 (open from one block to the next)
                state["file"].seek(header + start * width)
            data = state["file"].read((stop - start) * width)
        except MemoryError:
            raise
        except Exception as error:  # whatever the decompressor raises
            raise ReadError(f"{path} is damaged: {first_line(error)}") from None
        if len(data) < (stop - start) * width:
            raise ReadError(f"{path} is cut short within {member}")
        state["at"] = stop
        return np.frombuffer(data, dtype).reshape(stop - start, columns)

    return Stored(shape, dtype.name, rows, read)


def _safetensors(path: Path) -> dict[str, Stored]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or length > min(size - 8, 100_000_000):
            raise ReadError(f"{path} is no .safetensors file, or is cut short within its header")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise ReadError(f"{path} is no .safetensors file: its header is not JSON") from None
    found = {}
    for name, entry in header.items() if isinstance(header, dict) else ():
        if name == "__metadata__":
            continue
        try:
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if type(kind) is not str or not all(type(n) is int for n in (*shape, begin, end)):
                raise TypeError
        except (TypeError, KeyError, ValueError):
            raise ReadError(f"{path}: the entry of {name!r} in its header is not as .safetensors has it") from None
        if kind not in _SAFETENSORS:
            raise ReadError(f"{path}, array {name!r}, has dtype {kind}: use float16, bfloat16, float32, float64 or an integer type")
        dtype = np.dtype(_SAFETENSORS[kind])
        if begin < 0 or min(shape, default=1) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
            raise ReadError(f"{path}: the header gives {name!r} {end - begin:,} bytes, which is not what its shape {shape} takes")
        found[name] = _mapped(path, 8 + length + begin, size, shape, dtype, bfloat16=kind == "BF16")
    return found


def _pt(path: Path) -> dict[str, Stored]:
    try:
        from .._ops import torch as torch_ops
    except ImportError:
        raise ReadError(f"{path}: reading .pt needs PyTorch (pip install torch); or save the array as .npy or .safetensors") from None

    def load() -> dict[str, tuple[Array, bool]]:
        try:
            return torch_ops.load_weights(os.fspath(path))
        except torch_ops.NotWeights as error:
            raise ReadError(f"{path} {error}") from None

    def stored(name: str, x: Array, bfloat16: bool) -> Stored:
        rows, columns = _entries(x.shape)
        state = {"array": x, "bytes": 0}

        def read(start: int, stop: int) -> Array:
            if state["bytes"] > _PT_BYTES:
                state["array"], state["bytes"] = load()[name][0], 0
            block = state["array"].reshape(rows, columns)[start:stop]
            state["bytes"] += block.nbytes
            return block.view(BFLOAT16) if bfloat16 else block

        return Stored(x.shape, "bfloat16" if bfloat16 else x.dtype.name, rows, read)

    return {name: stored(name, *found) for name, found in load().items()}


def natural_blocks(edges: set[int], total: int, height: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Blocks of at most height(rows left) rows that cross no edge."""
    stops = sorted({edge for edge in edges if 0 < edge < total} | {total})
    start = 0
    for stop in stops:
        while start < stop:
            end = min(stop, start + height(total - start))
            yield start, end
            start = end

"""Reading one distribution, or labels, as a person types them: inline, or from a .csv, .json or .npy file.

Says in one sentence what is wrong and where (`ReadError`). Never unpickles. Knows nothing of divergences.
"""

from __future__ import annotations

import csv
import glob
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ._errors import Unreadable

SUFFIXES = (".csv", ".json", ".npy")
_MISSING = {"na", "n/a", "nan", "null", "none", "missing"}
_NOT_FINITE = {"inf", "-inf", "nan", "Infinity", "-Infinity", "NaN"}


ReadError = Unreadable


def check_name(text: str, *, below: bool = True) -> None:
    """Refuses what would pass for a file: the empty name, which is the current directory's too, and what cannot be read twice; and folders
    that may not be looked into, whose files would be left out without a word. `below`: are files looked for below a folder, too?"""
    if not text:
        raise ReadError("the name of a file is empty")
    if os.path.exists(text) and not os.path.isfile(text) and not os.path.isdir(text):
        raise ReadError(f"{text} is a pipe or a device, and is read more than once: save what comes out of it as a file")
    for folder in _looked_into(text) if below or not os.path.isdir(text) else [text]:
        if not os.access(folder, os.R_OK | os.X_OK):
            raise ReadError(f"{folder} may not be looked into (no permission): what is in it would be left out")


def _looked_into(text: str) -> Iterator[str]:
    """The folders in which files are looked for; those that are hidden are passed over."""
    if os.path.isdir(text):
        yield text
        for folder, below, _ in os.walk(text):
            below[:] = shown(below)
            yield from (os.path.join(folder, name) for name in below)
    elif not os.path.exists(text):
        path = Path(text)
        for part in (path, *path.parents):
            if glob.has_magic(str(part)):
                found = glob.glob(str(part if part.name == "**" else part.parent), recursive=True)
                yield from (os.path.normpath(x) for x in found if os.path.isdir(x) and not os.path.basename(x).startswith("_"))


def stamp(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The identity, size and time of a file, which differ after a change; () if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def shown(names: Iterable[str]) -> list[str]:
    """Those of files and folders that are neither hidden nor what jobs leave beside their parts."""
    return [name for name in names if not name.startswith((".", "_"))]


def read_distribution(text: str, *, name: str) -> Any:
    """A NumPy array, or a dict from label to number where the file has labels."""
    text = text.strip()
    path = Path(text)
    if path.suffix.lower() in SUFFIXES:
        _must_be_file(path)
        reader = {".csv": _from_csv, ".json": _from_json, ".npy": _from_npy}[path.suffix.lower()]
        try:
            return reader(path)
        except OSError as error:
            raise ReadError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ReadError(f"{path} is not UTF-8 text") from None
    if re.search(r"\d|inf|nan", text, re.IGNORECASE) and not re.search(r"[^\d\s.,eE+\-\[\]()infaINFA]", text):
        return _inline(text, name)
    if os.path.exists(path):  # unlike Path.exists, False for what cannot be a name at all
        _must_be_file(path)
        raise ReadError(f"{path}: cannot tell its format from its name; use {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    raise ReadError(f"{name} is {text!r}: neither numbers separated by commas, such as 0.5,0.3,0.2, nor the name of a file there is")


def read_labels(text: str) -> list[str]:
    """Labels separated by commas (quotes protect a comma), or a text file with one a line."""
    path = Path(text)
    if os.path.isdir(path):
        raise ReadError(f"labels: {path} is a directory, not a file")
    if os.path.isfile(path):
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except OSError as error:
            raise ReadError(f"labels: {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ReadError(f"labels: {path} is not UTF-8 text") from None
        if lines[-1] == "":
            lines.pop()
        if not lines:
            raise ReadError(f"labels: {path} is empty")
        return lines
    if "," not in text and re.search(r"[./\\]", text):
        raise ReadError(f"labels: there is no file {text}")
    return next(csv.reader([text], skipinitialspace=True))


def _must_be_file(path: Path) -> None:
    if os.path.isdir(path):
        raise ReadError(f"{path} is a directory, not a file")
    if not os.path.exists(path):
        raise ReadError(f"there is no file {path}")
    if not os.path.isfile(path):
        raise ReadError(f"{path} is a pipe or a device: save its contents as a file")


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _inline(text: str, name: str) -> Any:
    inner = text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text
    cells = re.split(r"\s*,\s*|\s+", inner.strip())
    values = []
    for position, cell in enumerate(cells, 1):
        value = _number(cell)
        if value is None:
            what = "is empty" if cell == "" else f"is {cell!r}, which is not a number"
            raise ReadError(f"{name} is {text!r}: its entry {position} {what}")
        values.append(value)
    return np.array(values)


def _is_header(cell: str) -> bool:
    """A word, and not one that stands for a missing number: a mistyped value must not pass for a header."""
    return bool(re.match(r"[^\W\d]", cell)) and "." not in cell and cell.lower() not in _MISSING


def _from_csv(path: Path) -> Any:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True)
        try:
            lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cell.strip() for cell in cells)]
        except csv.Error as error:
            raise ReadError(f"{path}, line {reader.line_num}: {error}") from None
    if not lines:
        raise ReadError(f"{path} is empty")
    columns = len(lines[0][1])
    one_row = len(lines) == 1 and (columns > 2 or all(_number(cell) is not None for cell in lines[0][1]))
    if columns > 2 and not one_row:
        raise ReadError(
            f"{path} has {len(lines)} lines of {columns} columns: a distribution is one row, one column, or two columns label,value; "
            "keep one"
        )
    for line, cells in lines:
        if len(cells) != columns:
            raise ReadError(f"{path}, line {line}: {len(cells)} cells where line {lines[0][0]} has {columns}")
    if one_row:
        return np.array([_csv_number(path, lines[0][0], cell) for cell in lines[0][1]])
    if len(lines) > 1 and _is_header(lines[0][1][-1]):
        lines = lines[1:]
    values = [_csv_number(path, line, cells[-1]) for line, cells in lines]
    if columns == 1:
        return np.array(values)
    table: dict[str, float] = {}
    for (line, (label, _)), value in zip(lines, values):
        if label == "":
            raise ReadError(f"{path}, line {line}: the label is empty")
        if label in table:
            raise ReadError(f"{path}, line {line}: the label {label!r} is there twice")
        table[label] = value
    return table


def _csv_number(path: Path, line: int, cell: str) -> float:
    value = _number(cell)
    if value is None:
        raise ReadError(f"{path}, line {line}: {'an empty cell' if cell == '' else repr(cell)} is not a number")
    return value


def _from_json(path: Path) -> Any:
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        raise ReadError(f"{path} is empty")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            labels = [label for label, _ in pairs]
            twice = next(label for label in labels if labels.count(label) > 1)
            raise ReadError(f"{path}: the label {twice!r} is there twice")
        return table

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ReadError(f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except ReadError:
        raise
    except ValueError as error:  # a whole number of more digits than Python reads
        raise ReadError(f"{path}: {first_line(error)}") from None
    except RecursionError:
        data = [[]]
    found: Any
    if isinstance(data, list):
        found = np.array([_json_number(path, f"entry {i}", x) for i, x in enumerate(data, 1)])
    elif isinstance(data, dict):
        found = {label: _json_number(path, repr(label), x) for label, x in data.items()}
    else:
        raise ReadError(f"{path} holds {data!r}: it must be a list of numbers or an object from label to number")
    if len(found) == 0:
        raise ReadError(f"{path} holds no values")
    return found


def _json_number(path: Path, where: str, x: Any) -> float:
    if isinstance(x, (list, dict)):
        raise ReadError(f"{path}: {where} is nested; one distribution is a list of numbers or an object from label to number, so pick one")
    if x in _NOT_FINITE if isinstance(x, str) else isinstance(x, (int, float)) and not isinstance(x, bool):
        try:
            return float(x)
        except OverflowError:
            pass
    raise ReadError(f"{path}: {where} is {json.dumps(x)}, which is not a number")


def _from_npy(path: Path) -> Any:
    with path.open("rb") as file:
        start = file.read(2)
        if not start:
            raise ReadError(f"{path} is empty")
        if start == b"PK":
            raise ReadError(f"{path} is an archive of several arrays: save one of them with numpy.save")
        file.seek(0)
        shape, fortran, dtype = npy_header(file, path)
        if 0 in shape:
            raise ReadError(f"{path} holds no values")
        if os.fstat(file.fileno()).st_size - file.tell() < math.prod(shape) * dtype.itemsize:
            raise ReadError(f"{path} is cut short: its header says shape {shape}, and fewer numbers follow")
        return np.fromfile(file, dtype, math.prod(shape)).reshape(shape, order="F" if fortran else "C")


def npy_header(file: IO[bytes], path: Path, what: str = "") -> tuple[tuple[int, ...], bool, Any]:
    """Shape, Fortran order and type of a .npy file, which is then at its first number. `what` names an array within an archive."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"there is no version {version[0]}.{version[1]}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # NumPy parses the header as Python, and passes on whatever the parser raises
        raise ReadError(f"{path}{what} is no .npy array, or its header is cut short or damaged ({first_line(error)})") from None
    if dtype.hasobject:
        raise ReadError(f"{path}{what} holds pickled objects, which are never unpickled: save plain numbers")
    if any(isinstance(n, bool) or n < 0 for n in shape) or math.prod(shape) * dtype.itemsize >= 2**63:
        raise ReadError(f"{path}{what} has a damaged header: no array has the shape {shape}")
    return shape, fortran, dtype


def first_line(error: Exception) -> str:
    """What an error says, in one line; its name if it says nothing."""
    from tokenize import TokenError

    text = str(error.args[0] if isinstance(error, TokenError) else error)  # the former prints as a tuple, with a position
    return (text.strip() or type(error).__name__).splitlines()[0]

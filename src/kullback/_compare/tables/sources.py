"""What a caller names as a table: files by path, folder or pattern, or an object that holds one. Reads nothing but a CSV's first line."""

from __future__ import annotations

import csv
import glob
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ..._errors import WrongType
from ..._read import ReadError, check_name
from .text_files import SPACED, open_text, spaced

FORMATS = {"csv": "csv", "tsv": "csv", "parquet": "parquet", "pq": "parquet", "jsonl": "jsonl", "ndjson": "jsonl"}
_PACKED = (".gz", ".zst")
_DELIMITERS = ",;\t|"
_TAKEN = ".csv, .tsv, .parquet or .jsonl (text also as .gz), a folder of these, a pattern such as 'day-*.parquet', or a profile (.json)"


class Source(NamedTuple):
    """Either `files` of one `format`, or an `object`; `name` is how to speak of it."""

    name: str
    format: str
    files: tuple[str, ...] = ()
    object: Any = None


def is_path(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike))


def is_profile(source: Any) -> bool:
    return is_path(source) and os.fspath(source).lower().endswith(".json")


def holds_table(source: Any) -> bool:
    """An object with rows and columns: pandas, polars, Arrow, a Spark DataFrame."""
    own = type(source).__module__.partition(".")[0]
    if own in ("pandas", "polars"):
        return type(source).__name__ in ("DataFrame", "LazyFrame")
    return own == "pyspark" or hasattr(source, "__arrow_c_stream__")


def is_table_path(text: str) -> bool:
    if format_of(text) or is_profile(text):
        return True
    return os.path.isdir(text) and any(format_of(name) for _, _, names in os.walk(text) for name in names)


def format_of(name: str) -> str:
    """By its name; "" if that says nothing."""
    name = name.lower().rstrip("*")
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return FORMATS.get(name.rpartition(".")[2], "") if "." in name else ""


def find(source: Any, side: str) -> Source:
    """`side` ("P", "Q") is for the sentence that says what is wrong."""
    if not is_path(source):
        if holds_table(source):
            return Source(f"{type(source).__module__.partition('.')[0]} {type(source).__name__}", "object", object=source)
        raise WrongType(f"{side} is a {type(source).__name__}: a table is a path, or an object of pandas, polars, Arrow or Spark")
    text = os.fspath(source)
    if "://" in text:  # not ours to look at: the engine has the file systems
        if not format_of(text.rstrip("/*")):
            raise ReadError(f"{side}: cannot tell the format of {text} from its name; use {_TAKEN}")
        return Source(text, format_of(text.rstrip("/*")), (text,))
    files = _files(text, side)
    formats = {format_of(file) for file in files}
    if len(formats) > 1:
        found = " and ".join(sorted(formats))
        raise ReadError(f"{side}: {text} holds files of different formats ({found}): name them by a pattern such as '{text}/*.parquet'")
    (form,) = formats
    if not form:
        raise ReadError(f"{side}: cannot tell the format of {files[0]} from its name; use {_TAKEN}")
    empty = next((file for file in files if os.path.getsize(file) == 0), None)
    if empty:
        raise ReadError(f"{side}: {empty} is empty")
    return Source(text, form, tuple(files))


def _files(text: str, side: str) -> list[str]:
    check_name(text)
    if os.path.isdir(text):
        found = [
            str(path)
            for path in Path(text).rglob("*")
            if path.is_file() and not _hidden(path.relative_to(text).parts) and format_of(path.name)
        ]
        if not found:
            raise ReadError(f"{side}: the folder {text} holds no table; looked for {_TAKEN}")
        return sorted(found)
    if os.path.exists(text):
        return [text]
    if glob.has_magic(text):
        named = set(Path(text).parts)
        found = sorted(
            file for file in glob.glob(text, recursive=True) if os.path.isfile(file) and not _hidden(set(Path(file).parts) - named)
        )
        if not found:
            raise ReadError(f"{side}: no file matches {text}")
        return found
    raise ReadError(f"{side}: there is no file {text}")


def _hidden(parts: Iterable[str]) -> bool:
    """What jobs leave beside their parts: _SUCCESS, .part-0.crc, _temporary/."""
    return any(part.startswith(("_", ".")) for part in parts)


def csv_header(file: str, side: str, delimiter: str | None) -> tuple[str, list[str]]:
    """The delimiter (the most frequent of , ; tab | in the first line, unless it is given) and the names in that line."""
    if file.lower().endswith(".zst"):
        raise ReadError(f"{side}: {file}: unpack it first, or pack it as .gz; Parquet is smaller still")
    with open_text(file, side) as text:
        start = text.read(1 << 20)
    if "\0" in start:
        raise ReadError(f"{side}: {file} is not text: it holds NUL characters")
    first = start.split("\n", 1)[0]
    if delimiter is None:
        delimiter = "\t" if ".tsv" in file.lower() else max(_DELIMITERS, key=re.sub(r'"(?:[^"]|"")*"', "", first).count)
    try:
        names = next(csv.reader(io.StringIO(start, newline=""), delimiter=delimiter), [])
    except csv.Error:
        raise ReadError(f"{side}: {file}: a quote is opened in its first line and not closed") from None
    if not names and start.strip():
        raise ReadError(f"{side}: {file} has no header line: its first line is blank")
    if not any(names):
        raise ReadError(f"{side}: {file} has no header line")
    if spaced(names):
        raise ReadError(f"{side}: {file}: line 1 {SPACED}")
    return delimiter, named(names, f"{side}: {file}")


def must_have(file: str, found: Sequence[str], first: str, names: Sequence[str], side: str) -> None:
    """The parts of a table have the same columns."""
    if found != names:
        raise ReadError(f"{side}: {file} has the columns {', '.join(found)}, and {first} {', '.join(names)}: they must be the same")


def named(names: Sequence[str], where: str) -> list[str]:
    """Every column under a name of its own. One without a name, such as the index in a file of pandas', is called as pandas calls it."""
    doubled = next((name for name, n in Counter(names).items() if name and n > 1), None)
    if doubled is not None:
        raise ReadError(f"{where} has two columns named {doubled!r}: rename one")
    found = list(names)
    for i, name in enumerate(names):
        if not name:
            tried = (f"Unnamed: {i}" + (f".{k}" if k else "") for k in count())
            found[i] = next(each for each in tried if each not in found)
    return found

"""What is wrong with a CSV or JSON lines file, in one sentence with its line: engines say it each in its own way, or let it pass."""

from __future__ import annotations

import csv
import gzip
import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from ..._read import ReadError

SPACED = "has a space between a delimiter and a quote: take it out"
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def open_text(file: str, side: str, encoding: str = "utf-8-sig") -> Iterator[TextIO]:
    """A text file, packed or not, open; or the sentence that says why not."""
    try:
        with (
            gzip.open(file, "rt", encoding=encoding, newline="")
            if file.lower().endswith(".gz")
            else open(file, encoding=encoding, newline="") as text
        ):
            yield cast(TextIO, text)
    except UnicodeDecodeError:
        raise ReadError(f"{side}: {file} is not UTF-8 text: convert it first, e.g. iconv -f latin1 -t utf-8") from None
    except (EOFError, zlib.error):
        raise ReadError(f"{side}: {file} is cut short or damaged: copy it again") from None
    except OSError as error:
        raise ReadError(f"{side}: {file}: {getattr(error, 'strerror', None) or error}") from None


def spaced(row: Sequence[str]) -> bool:
    return any(field.startswith(" ") and field.lstrip(" ").startswith('"') for field in row)


@contextmanager
def _long_fields() -> Iterator[None]:
    """Fields of any length. The limit is Python's, for all threads, and is left as it was."""
    with _ONE_AT_A_TIME:
        before = csv.field_size_limit(1 << 30)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def check_csv(file: str, side: str, delimiter: str, names: Sequence[str]) -> None:
    """The first line that is no row. Spark lets pass: an open quote, a space before one, bytes that are no UTF-8, mixed line ends;
    DuckDB: empty fields too many, a space after a closing quote."""
    last = ""

    def lines(text: TextIO) -> Iterator[str]:
        nonlocal last
        for line in text:
            last = line
            yield line

    with _long_fields(), open_text(file, side) as text:
        reader = csv.reader(lines(text), delimiter=delimiter, strict=True)
        end, here = "", 1
        where = f"{side}: {file}: line"
        try:
            for row in reader:
                if ' "' in last and spaced(row):
                    raise ReadError(f"{where} {here} {SPACED}")
                if row and len(row) != len(names):
                    s = "s" * (len(row) != 1)
                    raise ReadError(f"{where} {here} has {len(row)} field{s}, and the header {len(names)}")
                ends = last[len(last.rstrip("\r\n")) :][-2:]
                if ends and end and ends != end:
                    raise ReadError(f"{where} {here} ends in {ends!r}, and those before in {end!r}: write all alike")
                end, here = end or ends, reader.line_num + 1
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise ReadError(f"{where} {here} opens a quote that is never closed") from None
            raise ReadError(f'{where} {here} goes on after a closing quote: a quote inside quotes is doubled, ""') from None


class _JsonObject(dict[str, Any]):
    """An object of JSON, and which name it has twice."""

    twice: str | None = None

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            names = [name for name, _ in pairs]
            self.twice = next(name for name in names if names.count(name) > 1)


_decoded = json.JSONDecoder(object_pairs_hook=_JsonObject).decode
_KINDS = {bool: "true or false", int: "numbers", float: "numbers", str: "texts", list: "lists", _JsonObject: "objects"}


def check_json_lines(files: Sequence[str], side: str, name: str) -> None:
    """The first line that is no object, the first name that is there twice, and the first that holds values of several types: DuckDB
    would take them as JSON and Spark as text."""
    kinds: dict[str, str] = {}
    by_letters: dict[str, str] = {}
    for file in files:
        with open_text(file, side, "utf-8") as text:
            for number, line in enumerate(text, 1):
                if line.startswith("\ufeff"):
                    raise ReadError(f"{side}: {file} begins with a byte order mark, which JSON has not: write it as UTF-8 without one")
                if line.strip():
                    where = f"{side}: {file}: line {number}"
                    row = _json_row(line, where)
                    for key, value in row.items():
                        twin = by_letters.setdefault(key.lower(), key)
                        if twin != key:
                            raise ReadError(
                                f"{side}: {name} has columns {twin!r} and {key!r}, "
                                "which differ in case only and cannot be told apart in JSON lines: rename one"
                            )
                        kind = _KINDS.get(type(value))
                        if kind and kinds.setdefault(key, kind) != kind:
                            raise ReadError(f"{where}: column {key!r} holds {kind} here and {kinds[key]} before: make them one type")


def _json_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = _decoded(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ReadError(f"{where} holds text that is not Unicode (half a surrogate pair)") from None
    except (ValueError, RecursionError):
        raise ReadError(f'{where} is not JSON; each line is an object, such as {{"x": 1.5}}') from None
    if not isinstance(row, _JsonObject):
        raise ReadError(f'{where} is no object: give each row as one, such as {{"x": 1.5}}')
    if row.twice is not None:
        raise ReadError(f"{where} has the name {row.twice!r} twice")
    if "" in row:
        raise ReadError(f"{where} has a name that is empty")
    return row

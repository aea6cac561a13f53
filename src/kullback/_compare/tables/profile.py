"""A table kept as bins and counts: enough to compare others with it, and nothing of its rows. JSON, with a version and a checksum.

Profiles over the same bins add up. Reading one trusts nothing: every bin and count is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..._errors import Option, saying
from ..._read import ReadError
from ..._version import __version__
from .columns import KINDS, Bins, Cut
from .engines import Pair

FORMAT, VERSION = "kullback.profile", 1


class Profile(NamedTuple):
    """`types` are what the columns were called where they were read; `bins`, `counts` and `pairs` as engines count them.

    `settings` are the numbers of bins and levels that were asked for.
    """

    name: str
    rows: int
    settings: Mapping[str, int]
    types: Mapping[str, str]
    bins: Mapping[str, Bins]
    counts: Mapping[str, Sequence[int]]
    pairs: Mapping[Pair, Mapping[tuple[int, int], int]]

    def to_json(self) -> str:
        """See docs/compare-tables.md for the format."""
        content = {
            "format": FORMAT, "version": VERSION, "made_by": f"kullback {__version__}",
            "name": self.name, "rows": self.rows, "settings": dict(self.settings),
            "columns": [_column(name, self.types[name], self.bins[name], self.counts[name]) for name in self.bins],
            "pairs": [
                {"columns": list(pair), "cells": sorted([i, j, n] for (i, j), n in cells.items())} for pair, cells in self.pairs.items()
            ],
        }  # fmt: skip
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1, ensure_ascii=False, allow_nan=False)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the profile. A file is written whole or not at all."""
        from ..._report.files import write_whole  # here, because `import kullback` loads this module

        write_whole(path, self.to_json() + "\n")

    def __repr__(self) -> str:
        return f"<Profile of {self.name}: {self.rows:,} rows, {len(self.bins):,} columns>"


def _column(name: str, type_name: str, bins: Bins, counts: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "kind": bins.kind, "type": type_name}
    if bins.kind in ("number", "time"):
        found["cuts"] = [[_to_json(cut.value), "below" if cut.below else "above"] for cut in bins.cuts]
    elif bins.kind == "text":
        found |= {"levels": list(bins.levels), "least": bins.least, "pooled": bins.pooled}
    return {**found, "counts": list(counts)}


def _to_json(value: Any) -> Any:
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def read_profile(path: str | os.PathLike[str], side: str) -> Profile:
    """`side` ("P", "Q") is for the sentence that says what is wrong."""
    name = os.fspath(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReadError(f"{side}: there is no file {name}") from None
    except OSError as error:
        raise ReadError(f"{side}: {name}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ReadError(f"{side}: {name} is not JSON, or cut off; a profile is made by kullback profile") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ReadError(f"{side}: {name} is JSON, but no profile; make one by kullback profile, and give rows of data as .jsonl")
    if content.get("version") != VERSION:
        raise ReadError(
            f"{side}: {name} is a profile of version {content.get('version')!r}, and this is kullback for version {VERSION}: make it again"
        )
    checksum = content.pop("checksum", None)
    try:
        if checksum != _checksum(content):
            raise ReadError(f"{side}: {name} was changed after it was made (its checksum does not fit): make it again")
        return _from_json(content)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, InvalidOperation) as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"{side}: {name} is no valid profile: {error}") from None


def _from_json(content: Mapping[str, Any]) -> Profile:
    rows = content["rows"]
    types: dict[str, str] = {}
    bins: dict[str, Bins] = {}
    counts: dict[str, list[int]] = {}
    for column in content["columns"]:
        name = column["name"]
        if not isinstance(name, str) or name in bins or column["kind"] not in KINDS:
            raise ValueError(f"column {name!r} is not a column, or there twice")
        cuts = tuple(Cut(_number(value), {"above": False, "below": True}[where]) for value, where in column.get("cuts", ()))
        if any(a.value > b.value or (a.value == b.value and a.below <= b.below) for a, b in pairwise(cuts)):
            raise ValueError(f"the cuts of {name!r} do not ascend")
        levels = tuple(column.get("levels", ()))
        if not all(isinstance(level, str) for level in levels) or len(set(levels)) != len(levels):
            raise ValueError(f"the levels of {name!r} are not texts, or not distinct")
        least, pooled = column.get("least", 0), column.get("pooled", 0)
        if not _whole(least) or not _whole(pooled):
            raise ValueError(f"least and pooled of {name!r} are not whole numbers")
        types[name], bins[name] = str(column["type"]), Bins(column["kind"], cuts, levels, least, pooled)
        counts[name] = column["counts"]
        if len(counts[name]) != len(bins[name]) or not all(_whole(n) for n in counts[name]) or sum(counts[name]) != rows:
            raise ValueError(f"the counts of {name!r} do not fit its bins and {rows} rows")
    pairs: dict[Pair, dict[tuple[int, int], int]] = {}
    for pair in content["pairs"]:
        a, b = pair["columns"]
        if a == b or (a, b) in pairs:
            raise ValueError(f"the pair {a}:{b} is there twice, or of one column")
        cells = {(i, j): n for i, j, n in pair["cells"]}
        sums = [0] * len(bins[a]), [0] * len(bins[b])
        for cell, n in cells.items():
            for i, side in zip(cell, sums):
                if not _whole(i) or i >= len(side) or not _whole(n):
                    raise ValueError(f"the cells of {a}:{b} do not fit")
                side[i] += n
        if (counts[a], counts[b]) != sums:
            raise ValueError(f"the cells of {a}:{b} do not fit the counts of the two columns")
        pairs[a, b] = cells
    if not _whole(rows) or not 0 < rows < 2**63:
        raise ValueError("its rows are no number from 1 to 2**63 - 1")
    settings = {name: content["settings"][name] for name in ("bins", "levels")}
    if not all(_whole(n) and n > 0 for n in settings.values()):
        raise ValueError("its settings, bins and levels, are not whole numbers from 1")
    return Profile(str(content["name"]), rows, settings, types, bins, counts, pairs)


def _whole(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _number(value: Any) -> Any:
    if isinstance(value, dict):
        value = Decimal(value["decimal"])
        finite = value.is_finite()
    else:
        finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not finite:
        raise ValueError(f"{value!r} is no cut")
    return value


def merge(profiles: Sequence[Profile]) -> Profile:
    """One profile of all their rows. Their bins must be the same: profile the others like the first."""
    first, *others = profiles
    for i, other in enumerate(others, 2):
        alone = min(first.bins.keys() ^ other.bins.keys(), default=None)
        if alone is not None:
            having = 1 if alone in first.bins else i
            raise ReadError(
                f"{first.name} and {other.name} do not merge: only profile {having} of {len(profiles)} has column {alone!r}; "
                "profile both with the same columns"
            )
        differs = same_bins(first.bins, other.bins) or ("its pairs" if set(first.pairs) != set(other.pairs) else "")
        if differs:
            how = f"{differs} differ{'s' if differs.startswith('column') else ''}; profile both over the bins of one, with "
            raise saying(ReadError, f"{first.name} and {other.name} do not merge: {how}", Option("like"))
    counts = {name: [sum(column) for column in zip(*(x.counts[name] for x in profiles))] for name in first.bins}
    pairs = {}
    for pair in first.pairs:
        cells: dict[tuple[int, int], int] = {}
        for each in profiles:
            for cell, n in each.pairs[pair].items():
                cells[cell] = cells.get(cell, 0) + n
        pairs[pair] = cells
    return Profile(
        " + ".join(x.name for x in profiles), sum(x.rows for x in profiles), first.settings, first.types, first.bins, counts, pairs
    )


def same_bins(a: Mapping[str, Bins], b: Mapping[str, Bins], names: Sequence[str] | None = None) -> str:
    """What differs, in words; "" if nothing."""
    names = list(a) if names is None else names
    missing = next((name for name in [*names, *b] if name not in a or name not in b), None) if names == list(a) else None
    if missing is not None:
        return f"column {missing!r}"
    return next((f"column {name!r}" for name in names if a[name] != b[name]), "")

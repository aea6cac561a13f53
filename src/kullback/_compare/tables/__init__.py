"""Two tables, column by column: bins from the reference, exact counts of both, and what the counts say.

Engines read and count (`engines`), `statistics` judges, `record` keeps. Here they are put together.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..._errors import InvalidOption, InvalidValue, Option, saying
from ..._read import ReadError, stamp
from ..._reduce import check_base
from .columns import NOT_COMPARABLE, UNBINNED, Bins, labels
from .engines import BinCounts, Pair, Table
from .profile import Profile, merge, read_profile, same_bins
from .progress import steps
from .record import Column, Side, TableComparison
from .sources import find, holds_table, is_path, is_profile, is_table_path
from .statistics import Choice, Test, divergences, holm, in_base, no_drift, no_joint_drift, terms

__all__ = ["Profile", "TableComparison", "compare_tables", "is_table", "profile"]

BINS, LEVELS, PRIOR, MEMORY = 10, 50, 0.5, "2GB"
MOST_PRIOR = 1e9  # beside much more, counts would drown in rounding


def is_table(source: Any) -> bool:
    """A path, pattern or folder of .csv, .parquet or .jsonl files, a profile, or an object of pandas, polars, Arrow or Spark."""
    if is_path(source):
        return is_table_path(os.fspath(source))
    return isinstance(source, Profile) or holds_table(source)


def compare_tables(
    p: Any,
    q: Any,
    *,
    columns: Sequence[str] | None = None,
    pairs: Sequence[Any] | None = None,
    bins: int | None = None,
    levels: int | None = None,
    prior: float = PRIOR,
    base: float | None = None,
    common: bool = False,
    delimiter: str | None = None,
    engine: str = "duckdb",
    master: str | None = None,
    memory: str = MEMORY,
    progress: bool = False,
) -> TableComparison:
    """How far table `q` has drifted from the reference `p`: KL in both directions, JS and PSI of each column, and what of it is chance.

    Parameters
    ----------
    p, q : path, profile, or table
        Files (.csv, .parquet, .jsonl; a folder or a pattern of these), a profile (.json), or an object of pandas, polars, Arrow or Spark.
    columns : sequence of str, optional
        Those to compare; all by default.
    pairs : sequence of "a:b" or (a, b)
        Columns whose joint distribution is compared too; by default those that a profile has, if one is given.
    bins : int
        Quantile bins of a number or time column (10). They are the reference's; a profile has its own.
    levels : int
        How many levels of a text column have a bin of their own (50); rarer ones are pooled.
    prior : float
        Added to the count of each bin on both sides (0.5, Jeffreys' prior; 1e9 at most); 0 gives inf where a bin is empty on one side only.
    base : float, optional
        Of the logarithm: e by default, 2 for bits. PSI is always in nats.
    common : bool
        Compare the columns that both sides have in a like type, and list the others, instead of refusing.
    delimiter : str, optional
        Of CSV files; by default the most frequent of , ; tab | in the first line.
    engine : {"duckdb", "spark"}
        Who reads and counts. Both give the same counts.
    master : str, optional
        Spark's master, e.g. "spark://host:7077"; this machine by default.
    memory : str
        What DuckDB may use before it spills to disk.
    progress : bool
        Show the column being counted, on standard error.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kullback._compare.tables import compare_tables
    >>> p = pa.table({"animal": ["cat"] * 60 + ["dog"] * 40})
    >>> found = compare_tables(p, pa.table({"animal": ["cat"] * 40 + ["dog"] * 60}))
    >>> column = found["animal"]
    >>> print(f"{column.figures.kl_pq:.6f} {column.test.floor.kl_pq:.6f} {column.p_value:.6f}")
    0.079474 0.010000 0.004540
    """
    options = _Options(bins, levels, delimiter, engine, master, memory)
    if not (isinstance(prior, (int, float)) and 0 <= prior <= MOST_PRIOR):
        raise InvalidOption(f"prior={prior!r}: it is a number from 0 to {MOST_PRIOR:g}, added to the count of each bin")
    check_base(base)
    wanted_pairs = _pairs(pairs or ())
    with _side(p, "P", options) as reference, _side(q, "Q", options) as other:
        wanted_pairs = _turned(wanted_pairs, reference, other)
        names, left_out = _names(reference, other, columns, wanted_pairs, common)
        if pairs is None:
            wanted_pairs, without = _kept_pairs(reference, other, names)
            left_out += without
        with steps(3 * (len(names) + len(wanted_pairs)), progress) as step:
            before = _counted(reference, names, wanted_pairs, None, options, step)
            after = _counted(other, names, wanted_pairs, before, options, step)
    names, wanted_pairs = _comparable(before, names, wanted_pairs, left_out)
    singles = [_column(name, before, after, prior) for name in names]
    tests = {column.name: test for column, test in singles}
    joint = [_pair(pair, before, after, prior, (tests[pair[0]], tests[pair[1]])) for pair in wanted_pairs]
    adjusted = iter(holm([test.p_value for *_, test in (*singles, *joint)]))
    found = [_in_unit(column, test, next(adjusted), base) for column, test in (*singles, *joint)]
    return TableComparison(
        p=Side(_called(p, before.name), before.rows),
        q=Side(_called(q, after.name), after.rows),
        columns=_ranked(found[: len(singles)]),
        pairs=_ranked(found[len(singles) :]),
        left_out=tuple(left_out),
        bins=before.settings["bins"],
        levels=before.settings["levels"],
        prior=float(prior),
        base=math.e if base is None else float(base),
        engine=engine,
    )


def profile(
    source: Any,
    *,
    like: Any = None,
    columns: Sequence[str] | None = None,
    pairs: Sequence[Any] | None = None,
    bins: int | None = None,
    levels: int | None = None,
    delimiter: str | None = None,
    engine: str = "duckdb",
    master: str | None = None,
    memory: str = MEMORY,
    progress: bool = False,
) -> Profile:
    """A table as bins and counts, to compare others with later; `like` takes the bins of another profile, so that the two merge.

    Several profiles (a list of paths or of `Profile`) are merged into one. The other options are those of `compare`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kullback._compare.tables import profile
    >>> profile(pa.table({"animal": ["cat", "dog", "cat", "dog"]}))
    <Profile of pyarrow Table: 4 rows, 1 columns>
    """
    options = _Options(bins, levels, delimiter, engine, master, memory)
    if isinstance(source, (list, tuple)):
        if not source:
            raise InvalidValue("there are no profiles to merge: the list is empty")
        return merge([each if isinstance(each, Profile) else read_profile(each, "profile") for each in source])
    wanted_pairs = _pairs(pairs or ())
    over = like if like is None or isinstance(like, Profile) else read_profile(like, "like")
    if over is not None and options.given:
        raise InvalidOption("bins and levels are those of the profile: leave them out")
    if over is not None and pairs is not None and set(_turned(wanted_pairs, over)) != set(over.pairs):
        raise InvalidOption("pairs are those of the profile: leave them out")
    with _side(source, "table", options) as side:
        if isinstance(side, Profile):
            raise ReadError("this is a profile already")
        if over is not None:
            wanted_pairs = (
                list(over.pairs) if columns is None else [pair for pair in over.pairs if set(pair) <= set(_listed_names(columns))]
            )
            names, _ = _names(over, side, columns, wanted_pairs, None)
        else:
            names, _ = _names(side, side, columns, wanted_pairs, None)
        with steps(2 * (len(names) + len(wanted_pairs)), progress) as step:
            return _counted(side, names, wanted_pairs, over, options, step)


class _Options:
    """What it takes to read and bin a table."""

    def __init__(self, bins: int | None, levels: int | None, delimiter: str | None, engine: str, master: str | None, memory: str) -> None:
        for name, value, least in (("bins", bins, 2), ("levels", levels, 1)):
            if value is not None and not (isinstance(value, int) and least <= value <= 1000):
                raise InvalidOption(f"{name}={value!r}: it is a whole number from {least} to 1000")
        if engine not in ("duckdb", "spark"):
            raise InvalidOption(f"engine={engine!r}: it is 'duckdb' or 'spark'")
        if master is not None and engine != "spark":
            raise saying(InvalidOption, "master is Spark's: pass ", Option("engine", "spark"), " too")
        if not re.fullmatch(r"\d+(\.\d+)?\s*[KMGT]i?B", memory, re.IGNORECASE):
            raise InvalidOption(f"memory={memory!r}: it is a size such as 2GB")
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise InvalidOption(f"the delimiter {delimiter!r} is not one character, such as ; or a tab, that is no quote or line end")
        self.bins, self.levels = bins or BINS, levels or LEVELS
        self.given = bins is not None or levels is not None
        self.delimiter, self.engine, self.master, self.memory = delimiter, engine, master, memory


class _Opened:
    """A table and its name."""

    def __init__(self, name: str, table: Table) -> None:
        self.name, self.table, self.types = name, table, table.types


@contextmanager
def _side(source: Any, side: str, options: _Options) -> Iterator[Profile | _Opened]:
    if isinstance(source, Profile) or is_profile(source):
        if options.given and side == "P":
            raise InvalidOption("bins and levels are those of the profile: leave them out")
        yield source if isinstance(source, Profile) else read_profile(source, side)
        return
    found = find(source, side)
    stamps = {file: stamp(file) for file in found.files}
    table: Table
    if options.engine == "spark" or hasattr(found.object, "sparkSession"):
        from .engines import spark

        table = spark.open_table(found, side, master=options.master, delimiter=options.delimiter)
    else:
        from .engines import duckdb

        table = duckdb.open_table(found, side, memory=options.memory, delimiter=options.delimiter)
    try:
        yield _Opened(found.name, table)
        # Parquet is read once for each question; of a file that was written again, counts may be of the old one and of the new.
        changed = next((file for file, before in stamps.items() if stamp(file) != before), None)
        if changed is not None:
            raise ReadError(f"{side}: {changed} was changed while it was read: try again when it is as it is to be")
    finally:
        table.close()


def _called(source: Any, name: str) -> str:
    """A profile is known by its file too: what it was made of may be gone, or have changed."""
    if is_profile(source):
        return f"profile {os.fspath(source)} (of {name})"
    return f"profile of {name}" if isinstance(source, Profile) else name


def _pairs(pairs: Sequence[Any]) -> list[Pair]:
    found: list[Pair] = []
    for pair in pairs:
        parts = tuple(pair.split(":")) if isinstance(pair, str) else tuple(pair)
        if len(parts) != 2 or not all(isinstance(part, str) and part for part in parts) or parts[0] == parts[1]:
            raise InvalidOption(f"pairs: {pair!r} is not two columns, such as a:b (in Python also ('a', 'b'))")
        found.append((parts[0], parts[1]))
    if len(set(found)) != len(found):
        raise InvalidOption("pairs: one is there twice")
    return found


def _turned(pairs: Sequence[Pair], *sides: Profile | _Opened) -> list[Pair]:
    """As profiles have them: b:a says what a:b says."""
    kept = {pair for side in sides if isinstance(side, Profile) for pair in side.pairs}
    return list(dict.fromkeys((b, a) if (b, a) in kept and (a, b) not in kept else (a, b) for a, b in pairs))


def _kinds(side: Profile | _Opened) -> dict[str, str]:
    if isinstance(side, Profile):
        return {name: bins.kind for name, bins in side.bins.items()}
    return {name: of.kind for name, of in side.types.items()}


def _type_names(side: Profile | _Opened) -> Mapping[str, str]:
    return side.types if isinstance(side, Profile) else {name: of.name for name, of in side.types.items()}


def _listed_names(columns: Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))


def _chosen(kinds: Mapping[str, str], columns: Sequence[str] | None, pairs: Sequence[Pair]) -> list[str]:
    wanted = list(kinds) if columns is None else _listed_names(columns)
    return wanted + [name for name in dict.fromkeys(name for pair in pairs for name in pair) if name not in wanted]


def _names(
    p: Profile | _Opened, q: Profile | _Opened, columns: Sequence[str] | None, pairs: Sequence[Pair], common: bool | None
) -> tuple[list[str], list[tuple[str, str]]]:
    """The columns to compare, and those left out with the reason; or the sentence that says why they cannot be compared.

    `common` is None where a profile is made: of `q`, over the bins of `p`, or of its own.
    """
    first, second = ("P", "Q") if common is not None else ("the profile", "the table")
    kinds, others = _kinds(p), _kinds(q)
    types, other_types = _type_names(p), _type_names(q)
    wanted = _chosen({**kinds, **others}, columns, pairs)
    found, left_out = [], []
    needed = {name for pair in pairs for name in pair} | set(_listed_names(columns or ()))
    for name in wanted:
        here, there = kinds.get(name), others.get(name)
        if here is None and there is None:
            where = "in the table, which" if p is q else f"on either side; {first}"
            raise ReadError(f"there is no column {name!r} {where} has {_listed(kinds)}")
        if "" in (here, there):  # also if only one side has it: a profile keeps none of these
            left_out.append((name, f"{types[name] if here == '' else other_types[name]} cannot be compared"))
            if name in needed:
                raise ReadError(f"column {name!r}: {left_out[-1][1]}")
            continue
        if here is None or there is None:
            reason = f"only {first if there is None else second} has it"
        elif here != there and here not in UNBINNED and there not in UNBINNED:
            reason = f"it is {types[name]} ({here}) in {first} and {other_types[name]} ({there}) in {second}"
        else:
            found.append(name)
            continue
        if not common or name in needed:
            more = () if common is None else (", or pass ", Option("common", True), " for those that both have alike")
            do = f"column {name!r}: {reason}; name the columns to {'take' if common is None else 'compare'} with "
            raise saying(ReadError, do, Option("columns"), *more)
        left_out.append((name, reason))
    if not found:
        raise ReadError("the table has no column that can be compared" if p is q else "the two sides have no column that can be compared")
    return found, left_out


def _kept_pairs(p: Profile | _Opened, q: Profile | _Opened, names: Sequence[str]) -> tuple[list[Pair], list[tuple[str, str]]]:
    """The pairs of a profile, or of both; and those that cannot be compared with the reason."""
    kept = [(side, set(each.pairs)) for side, each in (("P", p), ("Q", q)) if isinstance(each, Profile)]
    found, left_out = [], []
    for pair in dict.fromkeys(pair for each in (p, q) if isinstance(each, Profile) for pair in each.pairs):
        having = [side for side, pairs in kept if pair in pairs]
        if not set(pair) <= set(names):
            left_out.append((":".join(pair), "a column of the pair is left out"))
        elif len(having) < len(kept):
            left_out.append((":".join(pair), f"only the profile {having[0]} has the pair"))
        else:
            found.append(pair)
    return found, left_out


def _comparable(p: Profile, names: Sequence[str], pairs: Sequence[Pair], left_out: list[tuple[str, str]]) -> tuple[list[str], list[Pair]]:
    """The columns and pairs whose values say something about their distribution; the others are added to `left_out`."""
    apart = {name for name in names if p.bins[name].kind == "identifier"}
    left_out += [(name, NOT_COMPARABLE) for name in names if name in apart]
    left_out += [(":".join(pair), "a column of the pair is not comparable") for pair in pairs if apart & set(pair)]
    if apart.issuperset(names):
        raise ReadError(f"the two sides have no column that can be compared; column {names[0]!r} is {NOT_COMPARABLE}")
    return [name for name in names if name not in apart], [pair for pair in pairs if not apart & set(pair)]


def _listed(names: Mapping[str, Any]) -> str:
    some = list(names)[:8]
    return ", ".join(map(repr, some)) + (f" and {len(names) - len(some)} more" if len(names) > len(some) else "")


def _counted(
    side: Profile | _Opened,
    names: Sequence[str],
    pairs: Sequence[Pair],
    over: Profile | None,
    options: _Options,
    step: Callable[[str], None],
) -> Profile:
    """Counts of a side over the bins of `over`, or over its own."""
    if isinstance(side, Profile):
        if over is not None and (differs := same_bins(over.bins, side.bins, names)):
            raise ReadError(f"the profiles have different bins for {differs}: make the second like the first, by kullback profile --like")
        missing = next((pair for pair in pairs if pair not in side.pairs), None)
        if missing:
            raise ReadError(f"the profile {side.name} does not have the pair {':'.join(missing)}: make it with that pair")
        return side
    bins = (
        {name: over.bins[name] for name in names} if over else side.table.edges(names, bins=options.bins, levels=options.levels, step=step)
    )
    counts: BinCounts = side.table.counts(bins, pairs, step=step)
    settings = over.settings if over else {"bins": options.bins, "levels": options.levels}
    return Profile(side.name, counts.rows, settings, {name: side.types[name].name for name in names}, bins, counts.columns, counts.pairs)


_Found = tuple[Column, Test]


def _column(name: str, p: Profile, q: Profile, prior: float) -> _Found:
    bins: Bins = p.bins[name]
    choice = Choice()
    if bins.kind in ("number", "time"):
        choice = Choice(intervals=len(bins.cuts) + 1)
    elif bins.kind == "text":
        choice = Choice(kept=len(bins.levels), least=bins.least, most=p.settings["levels"], pooled=bins.pooled)
    a, b = (np.asarray(side.counts[name], np.int64) for side in (p, q))
    about = (name, bins.kind, p.types[name], q.types[name], labels(bins))
    return _compared(*about, a, b, prior, no_drift(a, b, prior, choice), bins.pooled)


def _pair(pair: Pair, p: Profile, q: Profile, prior: float, tests: tuple[Test, Test]) -> _Found:
    a, b = pair
    first, second = labels(p.bins[a]), labels(p.bins[b])
    cells = sorted(set(p.pairs[pair]) | set(q.pairs[pair]))
    names = [f"{first[i]} · {second[j]}" for i, j in cells]
    x, y = (np.array([side.pairs[pair].get(cell, 0) for cell in cells], np.int64) for side in (p, q))
    rows, columns = (np.array(place) for place in zip(*cells))
    return _compared(f"{a}:{b}", "pair", "", "", names, x, y, prior, no_joint_drift(x, y, prior, (rows, columns), tests), 0)


def _compared(
    name: str, kind: str, type_p: str, type_q: str, names: Sequence[str], a: Any, b: Any, prior: float, test: Test, pooled: int
) -> _Found:
    used = (a + b) > 0
    shown = tuple(label for label, yes in zip(names, used) if yes)
    a, b = a[used], b[used]
    counts = tuple(map(int, a)), tuple(map(int, b))
    return Column(name, kind, type_p, type_q, shown, *counts, terms(a, b, prior), divergences(a, b, prior), test, 1.0, pooled), test


def _in_unit(column: Column, test: Test, adjusted: float, base: float | None) -> Column:
    return column._replace(figures=in_base(column.figures, base), test=test._replace(floor=in_base(test.floor, base)), p_adjusted=adjusted)


def _ranked(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(sorted(columns, key=lambda column: (-column.figures.kl_pq, column.name)))

"""Two models' outputs, from files or memory, through a `Comparison`: a block of rows of both at a time, refused where they do not match."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._errors import Complaint, NotComparable, WrongType, saying, what_is_wrong
from .._forms import parse_form
from .._kernels.comparison import LOG_FORMS, Rows, block_rows, stream_rows, widened
from .._kernels.compiled import BFLOAT16
from .._kernels.stream import in_order
from .._read import ReadError, stamp
from .clipped import Plain, compare_clipped
from .comparison import Buckets, Comparison, compare_batch, holding_nan, not_comparable
from .llama import Clipped
from .pairing import PARTIAL, aligned
from .record import ModelComparison, Side
from .shards import SUFFIXES, arrays_in, flat, listed, natural_blocks
from .sources import Source, host, open_source

Array = Any


def compare_models(
    p: Any,
    q: Any,
    *,
    form: Any = None,
    tokens: Any = None,
    base: float | None = None,
    top: int = 20,
    allow_partial: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ModelComparison:
    """`progress(done, rows)` is called after each block. `form` None: what the files say, else "probs"."""
    if progress is not None and not callable(progress):
        raise WrongType(f"progress is {progress!r}: for model outputs it is a function that is told how many rows are done, of how many")
    asked = (None, None) if form is None else parse_form(form, 2, ("P", "Q"))
    listed_files = _stamps([*_paths(p), *_paths(q)])
    opened = open_source(p, "P", asked[0]), open_source(q, "Q", asked[1])
    read = {piece.path for side in opened for piece in side.pieces}
    files = {path: before for path, before in listed_files.items() if str(path) in read} | _stamps(_paths(tokens)[:1])
    forms = _forms(opened, asked, isinstance(form, str))
    _check(*opened, allow_partial)
    sides, unpaired = aligned(opened, allow_partial)
    rows = _match(*sides, allow_partial)
    # A framework's arrays are for the thread they came in; the kernel shares out what that reads.
    anywhere = all(piece.anywhere for side in sides for piece in side.pieces)
    given = None if tokens is None else _given_tokens(tokens, rows, max(side.rows for side in sides) if allow_partial else rows)
    blocks = _Blocks(sides, forms, _token_reader(sides, given, allow_partial), allow_partial)
    seen = Comparison(top=top)
    missing = other_text = 0

    def take(block: _Compared) -> None:
        nonlocal missing, other_text
        missing, other_text = missing + block.missing, other_text + block.other_text
        if block.found is not None:
            seen._take(block.found, block.rows, block.chosen, sides[0].categories, allow_partial, block.buckets)
        if progress is not None:
            progress(block.stop, rows)

    edges = {int(edge) for side in sides for edge in side.starts}
    categories = sides[0].categories
    # Beside a llama.cpp file probabilities are taken as logarithms in float64.
    mixed = sides[0].kind != sides[1].kind and not all(form in LOG_FORMS for form in forms)
    width = 16 if mixed else max(piece.width for side in sides for piece in side.pieces)
    own = partial(stream_rows, categories, width)
    spans = list(natural_blocks(edges, rows, own if anywhere else partial(block_rows, categories)))
    in_order(spans, blocks.read, blocks.compare, take, size=rows * categories if anywhere else 0)
    # Each block is looked up anew: of a file that was written again or replaced, rows may be of the old one and of the new.
    changed = [path for path, before in files.items() if stamp(path) != before]
    if changed and not allow_partial:
        raise ReadError(f"{changed[0]} was changed while it was read: compare again when it is as it is to be")
    notes = (*unpaired, *_notes(opened, None if unpaired else rows, other_text, blocks.read_tokens is not None))
    if given is not None and given.number > rows:
        notes = (*notes, f"{given.name} holds {given.number:,} numbers: the first {rows:,} were used.")
    notes = (*notes, *(f"{path} was changed while it was read." for path in changed))
    about = [Side(side.name, side.kind, f, len(side.pieces)) for side, f in zip(opened, forms)]
    missing += max(side.rows for side in sides) - rows + other_text
    try:
        return seen.result(base=base, p=about[0], q=about[1], missing_rows=missing, notes=notes)
    except ValueError as error:  # of no rows: they are missing on either side, or hold NaN
        raise ReadError(f"{opened[0].name} and {opened[1].name}: {error}") from None


def _paths(source: Any) -> list[Path]:
    return listed(source) if isinstance(source, (str, os.PathLike)) else []


def _stamps(files: Sequence[Path]) -> dict[Path, tuple[int, ...]]:
    """What changes with them."""
    return {path: stamp(path) for path in files}


def _forms(sides: tuple[Source, Source], asked: Sequence[str | None], one_for_both: bool) -> tuple[str, str]:
    found = []
    for side, wanted in zip(sides, asked):
        if side.form is not None and wanted not in (None, side.form):
            if side.kind == "llama.cpp" and one_for_both:
                found.append(side.form)  # one form for both: it is the other side's
                continue
            raise ReadError(f"{side.name} holds {side.form}, and the form given is {wanted}")
        found.append(side.form or wanted or "probs")
    return found[0], found[1]


def _check(p: Source, q: Source, allow_partial: bool) -> None:
    """What is not over the same categories, or not whole, is refused."""
    if p.categories != q.categories:
        raise ReadError(
            f"{p.name} has {p.categories:,} categories and {q.name} {q.categories:,}: these are not outputs over the same vocabulary"
        )
    if p.context and q.context and p.context != q.context:
        raise ReadError(
            f"{p.name} has chunks of {p.context:,} tokens and {q.name} of {q.context:,} (llama.cpp's --ctx-size): their rows come after "
            "different text"
        )
    for side in (p, q) if not allow_partial else ():
        for piece in side.incomplete:
            cut = f"{piece.path} is cut short: {piece.whole:,} of its {piece.rows:,} rows are there; "
            raise saying(ReadError, cut, PARTIAL, " compares those")


def _match(p: Source, q: Source, allow_partial: bool) -> int:
    """How many rows to go through; unequal numbers are refused."""
    fewer = min(p.rows, q.rows)
    if p.rows != q.rows and not allow_partial:
        unequal = f"{p.name} has {p.rows:,} rows and {q.name} {q.rows:,}: "
        raise saying(ReadError, unequal, PARTIAL, f" compares the first {fewer:,}")
    return fewer


def _token_reader(sides: tuple[Source, Source], given: _Tokens | None, allow_partial: bool) -> Any:
    """A function that reads the tokens of rows and says which rows both sides agree on; None if there are none."""
    readers: list[tuple[str, Callable[[int, int], Array]]] = [] if given is None else [(given.name, given.read)]
    readers += [(side.name, side.tokens) for side in sides if side.has_tokens]
    if not readers:
        return None
    categories = sides[0].categories
    chunked = all(side.context for side in sides)

    def read(start: int, stop: int) -> tuple[Array, Array | None]:
        (name, found), *others = [(name, np.asarray(tokens(start, stop)).astype(np.int64)) for name, tokens in readers]
        for whose, those in ((name, found), *others):
            wrong = np.flatnonzero((those < 0) | (those >= categories))
            if len(wrong):
                raise ReadError(
                    f"{whose}: token {those[wrong[0]]} of row {start + wrong[0]:,} is no category; there are {categories:,}, counted from 0"
                )
        same = None
        for other_name, other in others:
            agree = found == other
            if not agree.all():
                row = int(np.argmin(agree))
                if not allow_partial:
                    where = f"in row {start + row:,} the token is {found[row]} and {other[row]}; "
                    differ = f"{name} and {other_name} are not about the same text: {where}"
                    raise saying(ReadError, differ, PARTIAL, " compares the rows whose tokens agree")
                same = agree if same is None else same & agree
        if chunked and not (agree := _same_text(sides, start, stop)).all():
            if not allow_partial:
                where = f"row {start + int(np.argmin(agree)):,} comes after other tokens; "
                differ = f"{sides[0].name} and {sides[1].name} are not about the same text: {where}"
                agreeing = " compares the rows whose tokens agree, with all before them in their chunk"
                raise saying(ReadError, differ, PARTIAL, agreeing)
            same = agree if same is None else same & agree
        return found, same

    return read


def _same_text(sides: tuple[Source, Source], start: int, stop: int) -> Array:
    """Which of these rows of llama.cpp's files are of the same tokens: their own, and those before it in its chunk."""
    (p, begin), (q, _) = (side.texts(start, stop) for side in sides)
    same = np.logical_and.accumulate(p == q, axis=1)
    return same[:, p.shape[1] // 2 + 1 :].reshape(-1)[begin : begin + stop - start]


def _given_tokens(tokens: Any, rows: int, most: int) -> _Tokens:
    """Of `rows` rows, and of no more than `most`: those of the longer side, of which the first are compared."""
    if isinstance(tokens, (str, os.PathLike)):
        path = listed(tokens)[0]
        if path.suffix.lower() not in SUFFIXES:
            raise ReadError(f"{path}: tokens are read from {', '.join(SUFFIXES)}")
        arrays = arrays_in(path)
        stored = arrays.get("tokens") or (next(iter(arrays.values())) if len(arrays) == 1 else None)
        if stored is None:
            raise ReadError(f"{path} holds several arrays, and none called 'tokens'")
        count, kind, name, read = int(np.prod(stored.shape)), stored.dtype, str(path), flat(stored)
        if stored.whole < (stored.shape[0] if len(stored.shape) < 2 else int(np.prod(stored.shape[:-1]))):
            raise ReadError(f"{path} is cut short")
    else:
        array = host(tokens, "tokens")[0].reshape(-1)
        count, kind, name = len(array), array.dtype.name, "tokens"

        def read(start: int, stop: int) -> Array:
            return array[start:stop]

    if "int" not in kind or not rows <= count <= most:
        wanted = most if count > most else rows
        raise ReadError(f"{name}: {count:,} numbers of type {kind}, for {wanted:,} rows; it must hold a whole number a row")
    return _Tokens(name, count, read)


class _Tokens(NamedTuple):
    """Those that are given beside both sides."""

    name: str
    number: int
    read: Callable[[int, int], Array]


class _Block(NamedTuple):
    """Rows of both sides up to `stop`, less those that are `missing` or differ in their token."""

    stop: int
    missing: int
    other_text: int
    rows: Array
    chosen: Array | None
    sides: list[Any]
    halves: list[bool]


class _Compared(NamedTuple):
    """What is left of a block. `found` None: it had no rows."""

    stop: int
    missing: int
    other_text: int
    rows: Array
    chosen: Array | None
    found: Rows | None = None
    buckets: Buckets | None = None


class _Blocks(NamedTuple):
    """Blocks of rows, from the files to their figures."""

    sides: tuple[Source, Source]
    forms: tuple[str, str]
    read_tokens: Callable[[int, int], tuple[Array, Array | None]] | None
    allow_partial: bool

    def read(self, span: tuple[int, int]) -> _Block:
        start, stop = span
        whole = min(side.whole(start, stop) for side in self.sides)
        missing, other_text, rows, chosen = stop - start - whole, 0, np.arange(start, start + whole), None
        if not whole:
            return _Block(stop, missing, 0, rows, None, [], [])
        same = None
        if self.read_tokens is not None:
            chosen, same = self.read_tokens(start, start + whole)
        blocks = [side.read(start, start + whole) for side in self.sides]
        if same is not None:
            other_text = whole - int(same.sum())
            blocks = [Clipped(*(part[same] for part in b)) if isinstance(b, Clipped) else b[same] for b in blocks]
            rows, chosen = rows[same], None if chosen is None else chosen[same]
        return _Block(stop, missing, other_text, rows, chosen, blocks, [side._find(start)[0].half for side in self.sides])

    def compare(self, block: _Block) -> _Compared:
        compared = _Compared(*block[:5])
        if not len(block.rows):
            return compared
        buckets, chosen = None, block.chosen
        try:
            if any(isinstance(b, Clipped) for b in block.sides):
                p, q = (
                    b if isinstance(b, Clipped) else Plain(_floats(b), form, half)
                    for b, form, half in zip(block.sides, self.forms, block.halves)
                )
                found, buckets = compare_clipped(p, q, chosen)
            else:
                p, q = (_floats(b) for b in block.sides)
                found = compare_batch(p, q, self.forms, (block.halves[0], block.halves[1]), chosen)
            holding_nan(found, self.allow_partial)
        except NotComparable as error:
            raise _in_files(error.complaint, self.sides, self.forms, block.rows, block.sides) from None
        return compared._replace(found=found, buckets=buckets)


def _in_files(found: Complaint, sides: tuple[Source, Source], forms: tuple[str, str], rows: Array, blocks: list[Any]) -> NotComparable:
    """The error about a row of a block, with the row's place in the files."""
    row = int(rows[found.row[0]])
    if found.problem == "nan":
        held = [side for side, b in zip(sides, blocks) if _has_nan(b, found.row[0])] or list(sides)
        names = " and ".join(dict.fromkeys(side.name for side in held))
        what = "is damaged: it holds no distribution" if held[0].kind == "llama.cpp" else "holds NaN"
        parts = f"{names}: {held[0].where(row)} {what}; ", PARTIAL, " leaves such rows out"
        which = "".join(name for name, side in zip("pq", sides) if side in held) if len(held) == 1 else ""
        form = forms["pq".index(which)] if which else ""
        return saying(NotComparable, *parts, complaint=found._replace(side=which, row=(row,), form=form, forms=forms))
    found = found._replace(row=(row,), forms=forms)
    side = sides["pq".index(found.side)]
    place = f"{side.name}: {side.where(row)}"
    if side.kind == "llama.cpp":  # the file has one form, so advice about it would be wrong
        return saying(NotComparable, f"{place} is damaged: it {what_is_wrong(found)}", complaint=found)
    return not_comparable(found, place)


def _has_nan(block: Any, row: int) -> bool:
    if isinstance(block, Clipped):
        with np.errstate(all="ignore"):
            return not np.isfinite(np.exp(Clipped(*(part[row : row + 1] for part in block)).log_probs).sum())
    return bool(np.isnan(widened(_floats(block[row : row + 1]))).any())


def _floats(block: Any) -> Array:
    wanted = np.float16, np.float32, np.float64, BFLOAT16
    x = block if type(block) is np.ndarray and block.dtype in wanted else host(block)[0]
    return x if x.dtype in wanted else x.astype(np.float64)


def _notes(sides: tuple[Source, Source], rows: int | None, other_text: int, tokens: bool) -> tuple[str, ...]:
    """`rows`: the first so many were gone through; None: shards were matched."""
    notes = []
    if rows is not None and sides[0].rows != sides[1].rows:
        notes.append(f"P has {sides[0].rows:,} rows and Q {sides[1].rows:,}: the first {rows:,} were compared.")
    for side in sides:
        notes += [f"{piece.path} is cut short: {piece.whole:,} of its {piece.rows:,} rows are there." for piece in side.incomplete]
    if other_text:
        notes.append(f"{other_text:,} rows whose tokens, or those before them, differ were left out.")
    if any(side.kind == "llama.cpp" for side in sides):
        notes.append(
            "llama.cpp's files clip small probabilities and store logarithms in 16 bits. What is clipped on either side is one bucket "
            "here, so each divergence is a lower bound, but for the rounding of the codes, which alone makes a KL of about 1e-8."
        )
    if (sides[0].kind, sides[1].kind) == ("array", "llama.cpp"):
        notes.append("llama.cpp's own KLD is not given: that program computes it where P is such a file, and here only Q is.")
    if tokens and sides[0].kind != sides[1].kind:
        llama, exact = ("P", "Q") if sides[0].kind == "llama.cpp" else ("Q", "P")
        notes.append(
            f"Perplexities: a token that {llama}'s file has clipped counts there with the value it was clipped to, and in {exact} with its "
            f"own, so that {llama} looks better by those tokens, and the ratio mixes the two."
        )
    return tuple(notes)

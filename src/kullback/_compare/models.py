"""Two models' outputs, from files or memory, through a `Comparison`: a block of rows of both at a time, refused where they do not match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .._forms import parse_form
from .._kernels.comparison import block_rows
from .._read import ReadError
from .comparison import Comparison, NotComparable, compare_batch
from .llama import Clipped, pool
from .record import ModelComparison, Side
from .shards import SUFFIXES, arrays_in, flat, listed, natural_blocks
from .sources import Source, host, open_source

Array = Any

_LOG_FORMS = ("logits", "log_probs")


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
    sides = open_source(p, "P"), open_source(q, "Q")
    forms = _forms(sides, form)
    rows = _match(*sides, allow_partial)
    read_tokens, token_edges = _token_reader(sides, tokens, rows, allow_partial)
    seen = Comparison(top=top)
    missing = other_text = done = 0
    edges = {int(edge) for side in sides for edge in side.starts} | token_edges
    height = block_rows(sides[0].categories)
    for start, stop in natural_blocks(edges, rows, height):
        whole = min(side.whole(start, stop) for side in sides)
        missing += stop - start - whole
        if whole:
            chosen, same = read_tokens(start, start + whole) if read_tokens else (None, None)
            if same is not None:
                other_text += whole - int(same.sum())
            _block(seen, sides, forms, start, start + whole, chosen, same, allow_partial)
        done = stop
        if progress is not None:
            progress(done, rows)
    notes = _notes(sides, rows, missing, other_text)
    about = [Side(side.name, side.kind, f, len(side.pieces)) for side, f in zip(sides, forms)]
    missing += max(side.rows for side in sides) - rows + other_text
    try:
        return seen.result(base=base, p=about[0], q=about[1], missing_rows=missing, notes=notes)
    except ValueError as error:
        raise ReadError(str(error)) from None


def _forms(sides: tuple[Source, Source], form: Any) -> tuple[str, str]:
    asked = (None, None) if form is None else parse_form(form, 2)
    found = []
    for side, wanted in zip(sides, asked):
        if side.form is not None and wanted not in (None, side.form):
            if side.kind == "llama.cpp" and isinstance(form, str):
                found.append(side.form)  # one form for both: it is the other side's
                continue
            raise ReadError(f"{side.name} holds {side.form}, and the form given is {wanted}")
        found.append(side.form or wanted or "probs")
    return found[0], found[1]


def _match(p: Source, q: Source, allow_partial: bool) -> int:
    """How many rows to compare; what does not match is refused."""
    if p.categories != q.categories:
        raise ReadError(
            f"{p.name} has {p.categories:,} categories and {q.name} {q.categories:,}: these are not outputs over the same vocabulary"
        )
    if allow_partial:
        return min(p.rows, q.rows)
    for side in (p, q):
        for piece in side.incomplete:
            raise ReadError(
                f"{piece.path} is cut short: {piece.whole:,} of its {piece.rows:,} rows are there; allow_partial=True compares those"
            )
    if p.rows != q.rows:
        fewer = min(p.rows, q.rows)
        raise ReadError(f"{p.name} has {p.rows:,} rows and {q.name} {q.rows:,}: allow_partial=True compares the first {fewer:,}")
    return p.rows


def _token_reader(sides: tuple[Source, Source], tokens: Any, rows: int, allow_partial: bool) -> tuple[Any, set[int]]:
    """A function that reads the tokens of rows and says which rows both sides agree on; and where its blocks must end."""
    readers: list[tuple[str, Callable[[int, int], Array]]] = []
    if tokens is not None:
        readers.append(_given_tokens(tokens, rows))
    readers += [(side.name, side.tokens) for side in sides if side.has_tokens]
    if not readers:
        return None, set()
    categories = sides[0].categories

    def read(start: int, stop: int) -> tuple[Array, Array | None]:
        (name, first), *others = readers
        found = np.asarray(first(start, stop)).astype(np.int64)
        wrong = np.flatnonzero((found < 0) | (found >= categories))
        if len(wrong):
            raise ReadError(
                f"{name}: token {found[wrong[0]]} of row {start + wrong[0]:,} is no category; there are {categories:,}, counted from 0"
            )
        same = None
        for other_name, other in others:
            agree = found == np.asarray(other(start, stop))
            if not agree.all():
                row = int(np.argmin(agree))
                if not allow_partial:
                    raise ReadError(
                        f"{name} and {other_name} are not about the same text: in row {start + row:,} the token is {found[row]} and "
                        f"{other(start + row, start + row + 1)[0]}; allow_partial=True compares the rows whose tokens agree"
                    )
                same = agree if same is None else same & agree
        return found, same

    return read, set()


def _given_tokens(tokens: Any, rows: int) -> tuple[str, Callable[[int, int], Array]]:
    if isinstance(tokens, (str, Path)):
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
        array = host(tokens)[0].reshape(-1)
        count, kind, name = len(array), array.dtype.name, "tokens"

        def read(start: int, stop: int) -> Array:
            return array[start:stop]

    if "int" not in kind or count < rows:
        raise ReadError(f"{name}: {count:,} numbers of type {kind}, for {rows:,} rows; it must hold a whole number a row")
    return name, read


def _block(
    seen: Comparison, sides: tuple[Source, Source], forms: tuple[str, str], start: int, stop: int, chosen: Array | None, same: Array | None,
    allow_partial: bool,
) -> None:  # fmt: skip
    blocks = [side.read(start, stop) for side in sides]
    rows = np.arange(start, stop)
    if same is not None:
        blocks = [Clipped(*(part[same] for part in b)) if isinstance(b, Clipped) else b[same] for b in blocks]
        rows, chosen = rows[same], None if chosen is None else chosen[same]
    if not len(rows):
        return
    halves = tuple(side._find(start)[0].half for side in sides)
    pooled = None
    try:
        if any(isinstance(b, Clipped) for b in blocks):
            plain = [b if isinstance(b, Clipped) else log_probs(_floats(b), form, half) for b, form, half in zip(blocks, forms, halves)]
            pooled = pool(plain[0], plain[1], chosen)
            found = compare_batch(pooled.p, pooled.q, ("log_probs", "log_probs"), (False, False), None)
            found = found._replace(top_p=pooled.top_p, top_q=pooled.top_q, log_p=pooled.log_p, log_q=pooled.log_q)
        else:
            found = compare_batch(_floats(blocks[0]), _floats(blocks[1]), forms, (halves[0], halves[1]), chosen)
        seen._agree(sides[0].categories, chosen is not None)
        seen._take(found, rows, chosen, allow_partial, pooled)
    except NotComparable as error:
        raise ReadError(_place(error, sides, rows, blocks)) from None


def _place(error: NotComparable, sides: tuple[Source, Source], rows: Array, blocks: list[Any]) -> str:
    """The library speaks of p, q and rows of a batch; the reader has files."""
    row = int(rows[error.row])
    text = str(error)
    if "holds NaN" in text:
        held = [side for side, b in zip(sides, blocks) if _has_nan(b, error.row)]
        names = " and ".join(side.name for side in held)
        return f"{names}: {(held or sides)[0].where(row)} holds NaN; allow_partial=True leaves such rows out"
    side = sides[1] if text.startswith("q ") else sides[0]
    return f"{side.name}: {side.where(row)}{text[text.find('row') :].partition(' ')[2].lstrip('0123456789')}"


def _has_nan(block: Any, row: int) -> bool:
    parts = (block.scale[row], block.low[row]) if isinstance(block, Clipped) else (np.asarray(host(block)[0][row], dtype=np.float64),)
    return any(bool(np.isnan(part).any()) for part in parts)


def _floats(block: Any) -> Array:
    x = host(block)[0]
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)


def log_probs(x: Array, form: str, half: bool) -> Array:
    """Normalised, in float64. A row that is no distribution raises."""
    with np.errstate(all="ignore"):
        log = x.astype(np.float64) if form in _LOG_FORMS else np.log(x, dtype=np.float64)
        top = log.max(1, keepdims=True)
        total = np.log(np.sum(np.exp(log - top), 1, keepdims=True)) + top
    tolerance = 5e-2 if half else 1e-3
    wrong = ~np.isfinite(total[:, 0]) & ~np.isnan(x).any(1)
    if form in ("probs", "log_probs"):
        wrong |= np.abs(np.expm1(total[:, 0])) > tolerance
    if form not in _LOG_FORMS:
        wrong |= (x < 0).any(1)
    if wrong.any():
        from .._divergences import kl

        row = int(np.argmax(wrong))
        try:
            kl(x[row], x[row], form=form)
        except ValueError as error:
            raise NotComparable(str(error).replace("p ", f"p row {row} ", 1), row) from None
    return log - total


def _notes(sides: tuple[Source, Source], rows: int, missing: int, other_text: int) -> tuple[str, ...]:
    notes = []
    if sides[0].rows != sides[1].rows:
        notes.append(f"P has {sides[0].rows:,} rows and Q {sides[1].rows:,}: the first {rows:,} were compared.")
    for side in sides:
        notes += [f"{piece.path} is cut short: {piece.whole:,} of its {piece.rows:,} rows are there." for piece in side.incomplete]
    if other_text:
        notes.append(f"{other_text:,} rows whose tokens differ were left out.")
    if any(side.kind == "llama.cpp" for side in sides):
        notes.append(
            "llama.cpp's files clip small probabilities and store logarithms in 16 bits. What is clipped on either side is one bucket "
            "here, so each divergence is a lower bound; the rounding alone makes a KL of about 1e-8."
        )
    return tuple(notes)

"""llama.cpp's logits files (`llama-perplexity --kl-divergence-base`), and pairs of rows in which some categories are hidden.

A row stores log-probabilities in 16 bits, down to some 16 nats below the largest; what lies lower is clipped, and only its number is known.
Here the clipped categories are one bucket: the KL is that of the coarser pair, a true KL, and never more than that of the full one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._read import ReadError
from .shards import Piece, map_block

Array = Any

MAGIC = b"_logits_"
# The least window, in nats, at which a writer clips. A row that spans less has lost nothing.
_WINDOW = 15.9
# llama.cpp leaves terms below this out of its sum.
_DROPPED = -16.0


class Clipped(NamedTuple):
    """Rows as stored: log p = scale·code + low, where code 0 means hidden if the row was clipped."""

    codes: Array
    scale: Array
    low: Array

    @property
    def log_probs(self) -> Array:
        return self.scale[:, None].astype(np.float64) * self.codes + self.low[:, None]

    @property
    def hidden(self) -> Array:
        return (self.codes == 0) & (self.scale * 65535.0 >= _WINDOW)[:, None]


def is_llama(path: Path) -> bool:
    return begins_with(path, MAGIC)


def begins_with(path: Path, magic: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def open_llama(path: Path) -> Piece:
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = file.read(20)[8:]
    if len(header) < 12:
        raise ReadError(f"{path} is a llama.cpp logits file cut short within its header")
    context, vocabulary, chunks = np.frombuffer(header, "<i4").tolist()
    if context < 2 or vocabulary < 1 or chunks < 1:
        raise ReadError(
            f"{path} is a llama.cpp logits file with {context} tokens a chunk, {vocabulary} categories and {chunks} chunks: no rows in it"
        )
    first = context // 2
    rows_a_chunk = context - 1 - first
    words = 2 * ((vocabulary + 1) // 2) + 4
    begin = 20 + 4 * chunks * context
    rows = chunks * rows_a_chunk
    if rows == 0:
        raise ReadError(f"{path} is a llama.cpp logits file with {context} tokens a chunk: no rows in it")

    def read(start: int, stop: int) -> Clipped:
        block = map_block(path, "<u2", begin + 2 * words * start, (stop - start, words))
        ends = np.ascontiguousarray(block[:, :4]).view("<f4")
        return Clipped(block[:, 4 : 4 + vocabulary], ends[:, 0].astype(np.float32), ends[:, 1].astype(np.float32))

    def tokens(start: int, stop: int) -> Array:
        row = np.arange(start, stop)
        place = row // rows_a_chunk * context + first + row % rows_a_chunk + 1
        low, high = (int(place[0]), int(place[-1]) + 1) if len(place) else (0, 0)
        return map_block(path, "<i4", 20 + 4 * low, (high - low,))[place - low].astype(np.int64)

    def texts(start: int, stop: int) -> Array:
        low, high = start // rows_a_chunk, -(-stop // rows_a_chunk)
        return map_block(path, "<i4", 20 + 4 * context * low, (high - low, context))

    if size < begin:
        raise ReadError(f"{path} is a llama.cpp logits file cut short within its tokens")
    text = map_block(path, "<i4", 20, (chunks * context,))
    wrong = np.flatnonzero((text < 0) | (text >= vocabulary))
    if len(wrong):
        chunk, place = divmod(int(wrong[0]), context)
        raise ReadError(
            f"{path} is a damaged llama.cpp logits file: token {text[wrong[0]]} at place {place:,} of chunk {chunk:,} is no category; "
            f"there are {vocabulary:,}, counted from 0"
        )
    whole = min(rows, (size - begin) // (2 * words))
    return Piece(str(path), "log_probs", rows, vocabulary, whole, read, tokens, width=2, context=context, texts=texts)


class Pooled(NamedTuple):
    """A pair of blocks over the categories neither hides and one bucket, as log-probabilities; and what the bucket would blur."""

    p: Array
    q: Array
    top_p: Array
    top_q: Array
    log_p: Array
    log_q: Array
    bucket_p: Array
    bucket_q: Array
    theirs: Array  # llama.cpp's own figure, if P is such a file


@np.errstate(all="ignore")  # of a damaged file; what comes of it is refused by whoever compares
def pool(p: Any, q: Any, chosen: Array | None, tops: tuple[Array, Array] | None = None) -> Pooled:
    """`p`, `q`: `Clipped` rows, or float64 arrays of log-probabilities. What `_kernels/clipped.h` does, in float64. `tops`: the likeliest
    categories, where they are known better than from log-probabilities, which rounding may have made equal."""
    hidden = [side.hidden if isinstance(side, Clipped) else np.zeros(side.shape, bool) for side in (p, q)]
    logs = [side.log_probs if isinstance(side, Clipped) else side for side in (p, q)]
    tops = tops or tuple((side.codes if isinstance(side, Clipped) else side).argmax(1) for side in (p, q))
    token = tops[0] if chosen is None else chosen
    at = [log[np.arange(len(log)), token] for log in logs]
    # sum p (log p - log q) over log p > -16, unnormalised, as llama.cpp has it.
    theirs = np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), 1, where=logs[0] > _DROPPED)
    pooled = hidden[0] | hidden[1]
    bounds = [_bucket(side, log, own, pooled) for side, log, own in zip((p, q), logs, hidden)]
    # Of the masses that each may have, the one nearest to the other's.
    middle = 0.5 * (np.maximum(bounds[0][0], bounds[1][0]) + np.minimum(bounds[0][1], bounds[1][1]))
    bucket_p, bucket_q = (np.clip(middle, least, most) for least, most in bounds)
    out = [np.concatenate([np.where(pooled, -np.inf, log), np.log(mass)[:, None]], 1) for log, mass in zip(logs, (bucket_p, bucket_q))]
    return Pooled(out[0], out[1], tops[0], tops[1], at[0], at[1], bucket_p, bucket_q, theirs)


def _bucket(side: Any, log: Array, hidden: Array, pooled: Array) -> tuple[Array, Array]:
    """The least and the most that the pooled categories may have. Of those that this side shows, it is known. Of those that it hides, 1
    less the rest leaves it open by the rounding of the codes, half a step of `scale` at most; and each has at most e^low."""
    shown = np.sum(np.exp(log), 1, where=pooled & ~hidden)
    if not isinstance(side, Clipped):
        return shown, shown
    rest = 1.0 - np.sum(np.exp(log), 1, where=~hidden)
    limit = np.count_nonzero(hidden, 1) * np.exp(side.low, dtype=np.float64)
    slack = 0.5 * side.scale.astype(np.float64)
    least, most = (np.minimum(np.maximum(mass, 0.0), limit) for mass in (rest - slack, rest + slack))
    return shown + least, shown + most

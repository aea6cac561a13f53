"""`Comparison`: two models' distributions, batch by batch, into figures that merge across workers and take no more room as rows come.

Computes nothing itself: rows come from the blocked kernel, or, where that leaves one undecided, from the library's own `kl` and `js`.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np

from .._checks import complaint
from .._divergences import js, kl
from .._errors import Complaint, InvalidOption, InvalidValue, NotComparable, WrongType, saying, sentence
from .._forms import DTYPES, must_be_mask, parse_form
from .._kernels.comparison import Rows, compare_rows, ready, widened
from .._reduce import check_base
from .._report.json import plain
from .record import PERCENTILES, Calibration, ModelComparison, Perplexity, Share, Statistic, WorstRow
from .sources import host
from .summary import Moments, Spread, Worst

Array = Any

SCHEMA = "kullback.comparison/1"
SPREADS = ("kl_pq", "kl_qp", "js", "delta_p")
MOMENTS = (*SPREADS, "nll_p", "nll_q", "nll_change", "same_top", "bucket_p", "bucket_q", "llama_cpp")
BINS = 10
# Rows that are added at a time: moments, percentiles and the rest take as long for one.
TOGETHER = 8192


class Buckets(NamedTuple):
    """Of llama.cpp's rows, what is hidden: its mass, and llama.cpp's own figure, None if P is no such file."""

    p: Array
    q: Array
    theirs: Array | None


def not_comparable(found: Complaint, place: str | None = None) -> NotComparable:
    """The error about a row. Comparisons have neither weights nor a prior. `place` says where a row of a file is."""
    leave_out = "take the row out of both sides"
    place = f"{found.side} row {found.row[0]}".lstrip() if place is None else place
    return saying(NotComparable, *sentence(found, place, leave_out, leave_out), complaint=found)


def compare_batch(p: Array, q: Array, forms: tuple[str, str], halves: tuple[bool, bool], chosen: Array | None) -> Rows:
    """The figures of each row, which are NaN if it holds NaN. A row that is no distribution raises NotComparable."""
    tolerances = tuple(5e-2 if half else 1e-3 for half in halves)
    p, q = ready(p), ready(q)
    found = compare_rows(p, q, forms, (tolerances[0], tolerances[1]), chosen)
    left = np.flatnonzero(~found.decided)
    # A few at a time: the general formula's arrays are many.
    step = max(1, (1 << 20) // p.shape[1])
    for low in range(0, len(left), step):
        rows = left[low : low + step]
        x, y = (widened(side[rows]).astype(np.float64) for side in (p, q))  # in float32 JS of close rows would lose digits
        excused = [_excused(side, form, half) for side, form, half in zip((x, y), forms, halves)]
        form = excused[0][0], excused[1][0]
        wrong = min(((row, side) for side, (_, row) in enumerate(excused) if row is not None), default=None)
        if wrong is None:
            try:
                found.kl_pq[rows] = kl(x, y, form=form)
                found.kl_qp[rows] = kl(y, x, form=form[::-1])
                found.js[rows] = js(x, y, form=form)
                continue
            except InvalidValue as error:
                if error.complaint is None:
                    raise
                wrong = error.complaint.row[0], "pq".index(error.complaint.side)
        row, side = wrong
        raise first_wrong((x, y)[side][row], int(rows[row]), side, forms)
    return found


def first_wrong(numbers: Array, row: int, side: int, forms: tuple[str, str]) -> NotComparable:
    """The error about a row of a batch, in the form that its side was given in."""
    found = complaint(numbers, forms[side])
    assert found is not None
    return not_comparable(found._replace(side="pq"[side], row=(row,), forms=forms))


def holding_nan(found: Rows, skip_nan: bool) -> Array:
    """Which rows hold NaN. Raises if there are some, unless they are to be skipped."""
    bad = np.isnan(found.kl_pq) | np.isnan(found.kl_qp) | np.isnan(found.js)
    if not skip_nan and bad.any():
        raise not_comparable(Complaint("", (int(np.argmax(bad)),), "nan", math.nan, None, "", None, ()))
    return bad


def _excused(x: Array, form: str, half: bool) -> tuple[str, int | None]:
    """A form that takes any sum, and the first row whose sum is off by more than half precision explains.

    Sums of half-precision numbers may be off by 5e-2. `kl` gets wider numbers and would refuse them."""
    if not half or form not in ("probs", "log_probs"):
        return form, None
    total = np.sum(np.exp(x, dtype=np.float64) if form == "log_probs" else x, 1, dtype=np.float64)
    off = np.abs(total - 1.0) > 5e-2
    return {"probs": "counts", "log_probs": "logits"}[form], int(np.argmax(off)) if off.any() else None


class Comparison:
    """Compare two models batch by batch, in an evaluation loop, with no files between.

    Parameters
    ----------
    start : int
        The number of the first row. Workers that take turns on one data set give theirs, and worst rows keep their numbers through `merge`.
    top : int
        How many of the worst rows to keep.

    Notes
    -----
    Memory is bounded. Means, standard errors, extremes and counts are of all rows; percentiles are exact up to 262,144 rows, and within
    0.1 % of the value at that rank beyond. Rows are those of the arrays with all axes but the last flattened.

    Examples
    --------
    >>> import kullback as kb
    >>> seen = kb.Comparison()
    >>> seen.update([[0.5, 0.3, 0.2]], [[0.4, 0.4, 0.2]])
    >>> other = kb.Comparison(start=1)
    >>> other.update([[1.0, 1.0, 0.0]], [[0.0, 1.0, 1.0]], form="logits")
    >>> seen.merge(other)
    >>> result = seen.result()
    >>> result.rows, [row.row for row in result.worst], f"{result.kl_pq.mean:.6f}"
    (2, [1, 0], '0.146112')
    """

    def __init__(self, *, start: int = 0, top: int = 20) -> None:
        if not _is_whole(top) or top < 1:
            raise InvalidOption(f"top is {top!r}: it must be a whole number of at least 1")
        if not _is_whole(start):
            raise InvalidOption(f"start is {start!r}: it must be a whole number, the first row's")
        self._next = int(start)
        self._categories: int | None = None
        self._tokens: bool | None = None
        self._nan = self._masked = 0
        self._waiting: list[tuple[Rows, Array, Array | None]] = []
        self._moments = {name: Moments() for name in MOMENTS}
        self._spreads = {name: Spread() for name in SPREADS}
        self._worst = Worst(int(top))
        self._bins = np.zeros((BINS, 4))  # rows, sum of p, sum of q, sum of (q - p)^2, by p

    def update(self, p: Any, q: Any, *, form: Any = "probs", tokens: Any = None, mask: Any = None, skip_nan: bool = False) -> None:
        """Add a batch; one that raises an error leaves nothing behind, and counts no rows.

        Parameters
        ----------
        p, q : array_like, [..., categories]
            Of any framework, of one shape. P is the reference.
        form : {"probs", "log_probs", "logits", "counts"} or a pair of these
            What the numbers are, as in `kl`.
        tokens : array_like of int, optional
            The category that came true in each row (the next token): perplexities, and Δp of this category. Without them Δp is that of
            P's likeliest.
        mask : array_like, optional
            0 or False for rows to leave out, such as padding; they may hold anything.
        skip_nan : bool
            Leave out rows that hold NaN, and count them. By default they raise a ValueError.
        """
        forms = parse_form(form, 2)
        (x, half_p), (y, half_q) = host(p, "p"), host(q, "q")
        for name, side in (("p", x), ("q", y)):
            if side.dtype.kind not in "biuf" or side.dtype.itemsize > 8:  # as `kl` has it; what is converted here would lose a part
                real = "is complex: probabilities are real numbers" if side.dtype.kind == "c" else f"has dtype {side.dtype}: use {DTYPES}"
                raise WrongType(f"{name} {real}")
        if x.shape != y.shape:
            raise InvalidValue(f"p has shape {x.shape} and q {y.shape}: they must be the same")
        if x.ndim == 0 or x.shape[-1] == 0:
            raise InvalidValue(f"p has shape {x.shape}: it must be [..., categories]")
        batch = x.shape[:-1]
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        chosen = None if tokens is None else _whole_numbers(host(tokens, "tokens")[0], len(x))
        rows = np.arange(self._next, self._next + len(x))
        count = len(x)
        if mask is not None:
            given = host(mask, "mask")[0]
            must_be_mask(given)
            try:
                kept = np.broadcast_to(given, batch).reshape(-1) != 0
            except ValueError:
                raise InvalidValue(f"mask has shape {given.shape}, for rows of shape {batch}: it must be one number a row") from None
            x, y, rows, chosen = x[kept], y[kept], rows[kept], None if chosen is None else chosen[kept]
        if chosen is not None:
            _are_categories(chosen, x.shape[1], rows - self._next)
        if len(x):
            try:
                found = compare_batch(x, y, (forms[0], forms[1]), (half_p, half_q), chosen)
                self._take(found, rows, chosen, x.shape[1], skip_nan)
            except NotComparable as error:  # of the rows that are left; the caller has the batch
                place = (int(rows[error.complaint.row[0]]) - self._next,)
                raise not_comparable(error.complaint._replace(row=place)) from None
        self._next, self._masked = self._next + count, self._masked + count - len(x)

    def _agree(self, categories: int, tokens: bool) -> None:
        if self._categories not in (None, categories):
            raise InvalidValue(f"this batch has {categories:,} categories and those before it {self._categories:,}")
        if self._tokens not in (None, tokens):
            raise InvalidValue(
                f"this batch comes {'with' if tokens else 'without'} tokens and those before it {'without' if tokens else 'with'}"
            )
        self._categories, self._tokens = categories, tokens

    def _take(
        self, found: Rows, rows: Array, chosen: Array | None, categories: int, skip_nan: bool, buckets: Buckets | None = None
    ) -> None:
        bad = holding_nan(found, skip_nan)
        self._agree(categories, chosen is not None)
        if bad.any():
            self._nan += int(bad.sum())
            found, rows = Rows(*(column[~bad] for column in found)), rows[~bad]
            chosen = None if chosen is None else chosen[~bad]
            buckets = None if buckets is None else Buckets(*(None if column is None else column[~bad] for column in buckets))
        if buckets is not None:
            self._add(found, rows, chosen, buckets)
            return
        self._waiting.append((found, rows, chosen))
        if sum(len(each[1]) for each in self._waiting) >= TOGETHER:
            self._settle()

    def _settle(self) -> None:
        """Add the rows that wait."""
        if self._waiting:
            batches, rows, chosen = zip(*self._waiting)
            self._waiting = []
            found = Rows(*(np.concatenate(column) for column in zip(*batches)))
            self._add(found, np.concatenate(rows), None if chosen[0] is None else np.concatenate(chosen), None)

    def _add(self, found: Rows, rows: Array, chosen: Array | None, buckets: Buckets | None) -> None:
        with np.errstate(all="ignore"):
            p, q = np.exp(found.log_p), np.exp(found.log_q)
            # q - p = p (e^l - 1): without the cancellation where the two are close. Where p is 0, q is what there is.
            change = np.where(p > 0.0, p * np.expm1(found.log_q - found.log_p), q)
        same = found.top_p == found.top_q
        columns = {"kl_pq": found.kl_pq, "kl_qp": found.kl_qp, "js": found.js, "delta_p": change, "same_top": same.astype(np.float64)}
        if chosen is not None:
            with np.errstate(invalid="ignore"):
                columns |= {"nll_p": -found.log_p, "nll_q": -found.log_q, "nll_change": found.log_p - found.log_q}
        if buckets is not None:
            columns |= {"bucket_p": buckets.p, "bucket_q": buckets.q}
            if buckets.theirs is not None:
                columns["llama_cpp"] = buckets.theirs
        for name, values in columns.items():
            self._moments[name].add(values)
            if name in self._spreads:
                self._spreads[name].add(values)
        token = found.top_p if chosen is None else chosen
        self._worst.add(found.kl_pq, rows, found.kl_qp, found.js, token, p, q, found.top_p, found.top_q)
        place = np.minimum((p * BINS).astype(np.intp), BINS - 1)
        for i, values in enumerate((np.ones(len(p)), p, q, change**2)):
            self._bins[:, i] += np.bincount(place, values, BINS)

    def merge(self, other: Comparison) -> None:
        """Add what another one has seen, as if it had been seen here. Percentiles, counts and worst rows do not depend on the order."""
        if not isinstance(other, Comparison):
            raise WrongType(f"merge takes a Comparison, not a {type(other).__name__}: for a saved one, Comparison.from_dict")
        if other._categories is not None and other._tokens is not None:
            self._agree(other._categories, other._tokens)
        self._settle()
        other._settle()
        for name in MOMENTS:
            self._moments[name].merge(other._moments[name])
        for name in SPREADS:
            self._spreads[name].merge(other._spreads[name])
        self._worst.merge(other._worst)
        self._bins += other._bins
        self._nan, self._masked = self._nan + other._nan, self._masked + other._masked

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it, for `from_dict` elsewhere."""
        self._settle()
        saved = {
            "schema": SCHEMA, "next": self._next, "categories": self._categories, "tokens": self._tokens,
            "nan": self._nan, "masked": self._masked,
            "moments": {name: vars(moments) for name, moments in self._moments.items()},
            "spreads": {name: spread.to_dict() for name, spread in self._spreads.items()},
            "top": self._worst.size, "worst": self._worst.rows, "bins": self._bins.tolist(),
        }  # fmt: skip
        return json.loads(json.dumps(plain(saved), allow_nan=False))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Comparison:
        """What `to_dict` has saved."""
        if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
            raise InvalidValue(f"this is no saved Comparison of this version: its schema is not {SCHEMA!r}")
        saved = _numbers(saved)
        try:
            _must_be_counts(saved)
            made = cls(start=saved["next"], top=saved["top"])
            made._categories, made._tokens, made._nan, made._masked = (saved[name] for name in ("categories", "tokens", "nan", "masked"))
            made._moments = {name: Moments(**saved["moments"][name]) for name in MOMENTS}
            made._spreads = {name: Spread.from_dict(saved["spreads"][name]) for name in SPREADS}
            made._worst.rows = [tuple(row) for row in saved["worst"]]
            made._bins = np.array(saved["bins"], dtype=np.float64).reshape(BINS, 4)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidValue(f"this saved Comparison is not as to_dict() made it ({type(error).__name__}: {error})") from None
        return made

    def result(self, *, base: float | None = None, **about: Any) -> ModelComparison:
        """The figures so far, in nats or to the base given. Raises if there are no rows."""
        check_base(base)
        self._settle()
        rows = self._moments["kl_pq"].count + self._moments["kl_pq"].infinite
        if not rows:
            raise InvalidValue("no rows were compared" + (f": all {self._nan:,} hold NaN" if self._nan else ""))
        unit = 1.0 if base is None else 1.0 / math.log(base)
        figures: dict[str, Any] = {name: self._statistic(name, 1.0 if name == "delta_p" else unit) for name in SPREADS}
        same = self._moments["same_top"]
        nll = self._moments["nll_p"]
        theirs = self._moments["llama_cpp"]
        values, counts = self._spreads["kl_pq"].steps()
        return ModelComparison(
            **figures,
            rows=rows,
            categories=self._categories or 0,
            nan_rows=self._nan,
            masked_rows=self._masked,
            exact_percentiles=self._spreads["kl_pq"].exact,
            rms_delta_p=self._moments["delta_p"].root_mean_square,
            same_top=Share(same.mean, math.sqrt(same.mean * (1.0 - same.mean) / rows)),
            tokens_known=bool(self._tokens),
            perplexity=self._perplexity() if nll.count + nll.infinite else None,
            llama_cpp=(theirs.average * unit, theirs.error * unit) if theirs.count + theirs.infinite else None,
            bucket=(self._moments["bucket_p"].average, self._moments["bucket_q"].average) if self._moments["bucket_p"].count else None,
            sizes=tuple((float(v) * unit, int(n)) for v, n in zip(values, counts)),
            calibration=tuple(
                Calibration(i / BINS, (i + 1) / BINS, int(n), p / n, q / n, math.sqrt(squares / n))
                for i, (n, p, q, squares) in enumerate(self._bins.tolist()) if n
            ),
            worst=tuple(
                WorstRow(int(row), kl_pq * unit, kl_qp * unit, js * unit, int(token), p, q, int(top_p), int(top_q))
                for kl_pq, row, kl_qp, js, token, p, q, top_p, top_q in self._worst.rows
            ),
            base=math.e if base is None else float(base),
            **about,
        )  # fmt: skip

    def _statistic(self, name: str, unit: float) -> Statistic:
        moments, spread = self._moments[name], self._spreads[name]
        values = spread.quantiles([float(p) / 100.0 for p in PERCENTILES])
        return Statistic(
            moments.average * unit, moments.error * unit, moments.deviation * unit, spread.low * unit, spread.high * unit,
            dict(zip(PERCENTILES, (value * unit for value in values))),
        )  # fmt: skip

    def _perplexity(self) -> Perplexity:
        p, q, change = (self._moments[name] for name in ("nll_p", "nll_q", "nll_change"))
        with np.errstate(over="ignore"):
            value_p, value_q, ratio = (float(np.exp(x.average)) for x in (p, q, change))
        # var(q - p) = var p + var q - 2 cov
        spread = math.sqrt(p.squares * q.squares) if not (p.infinite or q.infinite) else math.nan
        correlation = (p.squares + q.squares - change.squares) / (2.0 * spread) if spread else math.nan
        return Perplexity(
            value_p, value_p * p.error, value_q, value_q * q.error, ratio, ratio * change.error, change.average, change.error, correlation
        )


def _is_whole(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _must_be_counts(saved: dict[str, Any]) -> None:
    """What nothing looks at before the figures are asked for, when it is too late to say where it came from."""
    wrong = [name for name in ("nan", "masked") if not _is_whole(saved[name])]
    wrong += ["categories"] if saved["categories"] is not None and not _is_whole(saved["categories"]) else []
    wrong += ["tokens"] if saved["tokens"] not in (None, False, True) else []
    wrong += ["worst"] if any(len(row) != len(WorstRow._fields) for row in saved["worst"]) else []
    numbers = [*saved["worst"], *(moments.values() for moments in saved["moments"].values())]
    if wrong or not all(isinstance(x, (int, float)) for each in numbers for x in each):
        raise WrongType(f"{(wrong or ['worst or moments'])[0]} holds what is no number, or too few")


def _whole_numbers(tokens: Array, count: int) -> Array:
    flat = tokens.reshape(-1)
    if flat.dtype.kind not in "iu" or len(flat) != count:
        raise InvalidValue(f"tokens is {tokens.dtype} of shape {tokens.shape}, for {count:,} rows: it must hold a whole number a row")
    return flat.astype(np.intp)


def _are_categories(tokens: Array, categories: int, rows: Array) -> None:
    wrong = (tokens < 0) | (tokens >= categories)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise InvalidValue(f"token {tokens[place]} of row {rows[place]} is no category: there are {categories:,}, counted from 0")


def _numbers(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _numbers(value) for name, value in x.items()}
    if isinstance(x, list):
        return [_numbers(value) for value in x]
    return float(x) if x in ("inf", "-inf", "nan") else x

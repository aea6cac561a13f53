"""The calculation by hand: every term of KL(P‖Q), the totals beside it, and a sentence on what dominates.

`record` holds the results, `report` and `sentences` say what is shown of them, and `_report` lays it out. Totals come from
the library's own functions, and not from adding up terms. Nothing is imported but NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._divergences import divergence, js, kl
from .._entropies import cross_entropy, entropy
from .._errors import PLURAL, InvalidOption, InvalidValue, Option, WrongType, saying
from .._forms import align, has_labels, parse_form, prepare
from .._ops import ops_of
from .._pairs import LOG_FORMS, pair
from .._reduce import check_options
from .._report.cells import unit
from .record import SCHEMA, Explanation, Floats, Given

__all__ = ["SCHEMA", "Explanation", "explain"]


def explain(
    p: Any,
    q: Any,
    *,
    form: Any = "probs",
    base: float | None = None,
    labels: Sequence[Any] | None = None,
    prior: float | None = None,
    temperature: float | None = None,
) -> Explanation:
    """Every term of KL(P‖Q) and KL(Q‖P) for one pair of distributions, with the totals and what dominates them.

    Print it for a table; in a notebook it shows itself. The command `kullback explain P Q` does the same.

    Parameters
    ----------
    p, q : array_like, or mappings or pandas Series
        One distribution each, in any framework `kl` takes. Mappings and Series are aligned by label.
    form, base, prior, temperature
        As in `kl`.
    labels : sequence, optional
        A name for each category of arrays; their positions by default.

    Returns
    -------
    Explanation
        Computed in float64, from the values as given. Not differentiable: for that, call `kl`.

    Notes
    -----
    A term p·log(p/q) is negative where p < q; the sum never is. p = 0 adds nothing; q = 0 < p makes the sum infinite, and the
    summary says which category did it.

    Examples
    --------
    >>> import kullback as kb
    >>> e = kb.explain({"cat": 5, "dog": 3, "owl": 2}, {"cat": 1, "dog": 4, "owl": 1}, form="counts", base=2)
    >>> print(e.summary)
    'cat', which P gives 0.5 and Q 0.167, adds 0.792 bits, more than all of KL(P‖Q): negative terms take 0.346 back.
    >>> round(e.kl_pq, 6), e.unit, e.labels
    (0.499487, 'bits', ('cat', 'dog', 'owl'))
    """
    return explained((("p", p), ("q", q)), form=form, base=base, labels=labels, prior=prior, temperature=temperature)


def explained(named: Sequence[tuple[str, Any]], *, form: Any, base: Any, labels: Any, prior: Any, temperature: Any) -> Explanation:
    """`explain`, with what its caller calls the two sides in errors."""
    check_options("none", False, base)
    names = named[0][0], named[1][0]
    forms = parse_form(form, 2, names)
    own_labels: list[Any] | None = None
    if any(has_labels(x) for _, x in named):
        if labels is not None:
            both = f", but {names[0]} and {names[1]} carry labels of their own: leave it out"
            raise saying(InvalidOption, Option("labels"), f" was passed{both}")
        arrays, own_labels = align(named, forms)
        named = list(zip(names, arrays))
    rows = [_one_row(name, x) for name, x in named]
    # Judged in the dtype it came in (half precision may sum to 1 ± 0.05), then computed in float64, which holds all of them exactly.
    divergence(
        "kl", 0.0, *rows, form=forms, axis=-1, keepdims=False, weights=None, reduction="none", base=None,
        temperature=temperature, prior=prior, check=True, names=names,
    )  # fmt: skip
    x, y = map(_to_float64, rows)
    if isinstance(labels, str):
        raise WrongType(f"labels is the string {labels!r}: pass a list of names, e.g. ['cat', 'dog']")
    shown = tuple(map(str, own_labels if own_labels is not None else labels if labels is not None else range(len(x))))
    if len(shown) != len(x):
        entries = f"{len(shown)} entr{'y' if len(shown) == 1 else 'ies'}"
        raise InvalidOption(f"labels has {entries} for {len(x)} categories: it needs one for each")

    options: dict[str, Any] = {"base": base, "prior": prior, "temperature": temperature, "check": False}
    back = forms[::-1]
    unit_base = math.e if base is None else float(base)
    return Explanation(
        labels=shown,
        labelled=own_labels is not None or labels is not None,
        **_terms(x, y, forms, base, prior, temperature),
        kl_pq=float(kl(x, y, form=forms, **options)),
        kl_qp=float(kl(y, x, form=back, **options)),
        entropy_p=float(entropy(x, form=forms[0], **options)),
        entropy_q=float(entropy(y, form=forms[1], **options)),
        cross_entropy_pq=float(cross_entropy(x, y, form=forms, **options)),
        cross_entropy_qp=float(cross_entropy(y, x, form=back, **options)),
        js=float(js(x, y, form=forms, **options)),
        base=unit_base,
        unit=unit(unit_base, "base-{:g} units"),
        given_p=_given("P", x, forms[0], prior, temperature),
        given_q=_given("Q", y, forms[1], prior, temperature),
    )


def _one_row(name: str, x: Any) -> Any:
    """x as an array with one axis; (1, K) is one row too."""
    if isinstance(x, (list, tuple)):
        try:
            x = np.asarray(x)
        except ValueError:  # ragged, or a list of something else: `kl` says what is wrong
            return x
    shape = tuple(getattr(x, "shape", ()))
    if len(shape) > 1:
        if math.prod(shape[:-1]) != 1:
            raise InvalidValue(f"{name} has shape {shape}, several distributions: explain takes one, so pick a row, e.g. {name}[0]")
        x = x[(0,) * (len(shape) - 1) + (...,)]
    return x


def _to_float64(x: Any) -> Floats:
    ops = ops_of(x)
    return np.asarray(x if ops is None else ops.to_numpy(x)).astype(np.float64)


def _terms(x: Floats, y: Floats, forms: Any, base: Any, prior: Any, temperature: Any) -> dict[str, Any]:
    """Normalised p and q, log(p/q), p·log(p/q) and q·log(q/p)."""
    inputs = prepare((("p", x), ("q", y)), form=forms, axis=-1, weights=None, temperature=temperature, prior=prior, check=False)
    scale = 1.0 if base is None else math.log(base)
    with np.errstate(all="ignore"):
        pr = pair(inputs.ops, inputs.spec("kl"), inputs.arrays[0], inputs.arrays[1], inputs.scale)
        # Where logits are near the largest float, log(p/q) may overflow, but its products with p and q do not.
        ratio = np.where(pr.log_ratio == 0.0, 0.0, -pr.ratio) / scale
        log_ratio = np.where(pr.only_p, np.inf, np.where(pr.only_q, -np.inf, ratio * pr.unit))
        terms_pq = np.where(pr.only_p, np.inf, np.where(pr.only_q, 0.0, pr.p * pr.unit * ratio))
        terms_qp = np.where(pr.only_q, np.inf, np.where(pr.only_p, 0.0, -pr.q * pr.unit * ratio))
    neither = (pr.p == 0.0) & (pr.q == 0.0) & (log_ratio == 0.0)
    found = [pr.p, pr.q, np.where(neither, np.nan, log_ratio), terms_pq, terms_qp]
    found = [np.asarray(array) + 0.0 for array in found]  # a copy, without negative zeros
    for array in found:
        array.flags.writeable = False
    return dict(zip(("p", "q", "log_ratio", "terms_pq", "terms_qp"), found))


def _given(side: str, x: Floats, form: str, prior: float | None, temperature: float | None) -> Given:
    start = f"{side} was given as {PLURAL[form]}"
    if form in LOG_FORMS:
        with np.errstate(over="ignore"):
            total = float(np.exp(x / (temperature or 1.0)).sum())
        warm = f" divided by the temperature {temperature:g}" if temperature not in (None, 1) else ""
        if form == "logits" or warm:
            return Given(form, total, f"{start},{warm}{' and' if warm else ''} turned into probabilities by softmax.")
        return Given(form, total, f"{start}, whose exponentials {_sums_to(total)}.")
    total = float(x.sum())
    if form == "counts" and prior is None:
        return Given(form, total, f"{start}, which sum to {_short(total)}; divided by that.")
    if form == "counts":
        grown = total + float(prior or 0) * len(x)
        added = f"the prior {prior:g} was added to each of the {len(x):,}, and all divided by {_short(grown)}"
        return Given(form, grown, f"{start}, which sum to {_short(total)}; {added}.")
    mixed = "" if prior is None else f"; then mixed with a share of {prior:g} of the uniform distribution"
    return Given(form, total, f"{start}, which {_sums_to(total)}{mixed}.")


def _short(x: float) -> str:
    return f"{x:,.0f}" if x.is_integer() and abs(x) < 1e15 else f"{x:.10g}"


def _sums_to(total: float) -> str:
    off = total - 1.0
    if math.isnan(total):
        return "hold NaN"
    if abs(off) <= 1e-12:
        return "sum to 1"
    shown = f"{total:.7g}" if abs(off) >= 1e-5 else f"1 {'+' if off > 0 else '-'} {abs(off):.1g}"
    return f"sum to {shown}; divided by that"

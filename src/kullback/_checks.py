"""What is wrong with invalid input, in one sentence. Runs only when a result has come out NaN, so it may take its time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._forms import Inputs
from ._pairs import LOG_FORMS


def raise_if_invalid(inputs: Inputs, values: Any) -> None:
    """Raise a ValueError that names the first bad row, if the values may be looked at and a row is NaN for no NaN of its own."""
    ops, check = inputs.ops, inputs.check
    if check is False or not (ops.can_look(values) if check else ops.may_look(values)):
        return
    result = ops.to_numpy(values)
    suspicious = np.isnan(result)
    if not suspicious.any():
        return
    if inputs.weights is not None:
        suspicious &= ops.to_numpy(inputs.weights) != 0
    if inputs.scale is not None and np.isnan(ops.to_numpy(inputs.scale)[suspicious]).any():
        raise ValueError("temperature is not positive and finite everywhere, or too small to divide by: it divides the logits of a row")
    for i, array in enumerate(inputs.arrays):
        if ops.can_look(array):
            _examine(inputs, i, ops.to_numpy(array), suspicious)


def _examine(inputs: Inputs, which: int, array: Any, suspicious: Any) -> None:
    axes, form = inputs.axes, inputs.forms[which]
    batch = [i for i in range(array.ndim) if i not in axes]
    rows = np.moveaxis(array, batch, range(len(batch))).reshape(*(array.shape[i] for i in batch), -1)
    shape = rows.shape[:-1]
    for index in map(tuple, np.argwhere(suspicious.reshape(shape))):
        row = np.asarray(rows[index], dtype=np.float64)
        if np.isnan(row).any():
            continue
        complaint = _complaint(row, form, inputs.tolerances[which])
        if complaint:
            where = f" row {index[0] if len(index) == 1 else tuple(int(i) for i in index)}" if index else ""
            what, hint = complaint
            if hint in ("probs", "log_probs", "logits", "counts"):
                hint = f"{_PLURAL[hint]}? pass form={_suggested(inputs, which, hint)}"
            raise ValueError(f"{inputs.names[which]}{where} {what}: {hint}")


_PLURAL = {"probs": "probabilities", "log_probs": "log-probabilities", "logits": "logits", "counts": "counts"}


def _suggested(inputs: Inputs, which: int, form: str) -> str:
    # A caller who named one form for both most likely has two of the other.
    if len(set(inputs.forms)) == 1:
        return repr(form)
    if inputs.names != ("p", "q"):  # whose pairs of forms may be in another order
        return f"{form!r} for {inputs.names[which]}"
    return repr(tuple(form if i == which else f for i, f in enumerate(inputs.forms)))


def _complaint(row: Any, form: str, tolerance: float) -> tuple[str, str] | None:
    """What is wrong with a row, and the form it looks like (or another hint); None if nothing is."""
    with np.errstate(all="ignore"):
        total, exponentials = float(row.sum()), float(np.exp(row).sum())
    looks_log = abs(exponentials - 1) <= max(tolerance, 1e-3) and row.max() <= 0
    looks_prob = row.min() >= 0 and abs(total - 1) <= max(tolerance, 1e-3)
    if form in LOG_FORMS:
        if row.max() == np.inf:
            return f"holds +inf at category {int(row.argmax())}", "a logit may be -inf (probability 0) but not +inf"
        if row.max() == -np.inf:
            return "is -inf everywhere", "no category has any probability; give the row weight 0 to leave it out"
        if form == "log_probs" and not abs(exponentials - 1) <= tolerance:
            return f"has exponentials that sum to {exponentials:.6g}, not 1", "probs" if looks_prob else "logits"
        return None
    if row.min() < 0:
        what = f"holds {row.min():.6g} at category {int(row.argmin())}"
        return (what, "counts are not negative") if form == "counts" else (what, "log_probs" if looks_log else "logits")
    if row.max() == np.inf:
        return "holds inf", f"{_PLURAL[form]} are finite"
    if form == "counts":
        return ("has no counts at all", "pass prior= to add pseudo-counts, or give the row weight 0") if total == 0 else None
    if not abs(total - 1) <= tolerance:
        whole = bool((row == np.floor(row)).all()) and total > 1
        if total == 0:
            return "sums to 0, not 1", "no category has any probability; give the row weight 0 to leave it out"
        if total > 1 and not whole:
            return f"sums to {total:.6g}, not 1", "logits"
        return f"sums to {total:.6g}, not 1", "counts"
    return None

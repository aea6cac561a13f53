"""Finds the first invalid row of the input, as a record. Runs only if a result is NaN, so it may take its time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._errors import Complaint, InvalidValue, invalid_row
from ._forms import Inputs
from ._pairs import LOG_FORMS

# Also when a loss has its own arithmetic.
TEMPERATURE = "temperature is not positive and finite everywhere, or too small to divide by: it divides the logits of a row"


def raise_if_invalid(inputs: Inputs, values: Any) -> None:
    """Raise an InvalidValue if a row is NaN without NaN in its input, and if the values may be looked at."""
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
        raise InvalidValue(TEMPERATURE)
    for i, array in enumerate(inputs.arrays):
        if ops.can_look(array):
            _examine(inputs, i, ops.to_numpy(array), suspicious)


def _examine(inputs: Inputs, which: int, array: Any, suspicious: Any) -> None:
    axes = inputs.axes
    batch = [i for i in range(array.ndim) if i not in axes]
    rows = np.moveaxis(array, batch, range(len(batch))).reshape(*(array.shape[i] for i in batch), -1)
    shape = rows.shape[:-1]
    for index in map(tuple, np.argwhere(suspicious.reshape(shape))):
        found = complaint(rows[index], inputs.forms[which], inputs.tolerances[which])
        if found is not None:
            place = tuple(int(i) for i in index)
            raise invalid_row(found._replace(side=inputs.names[which], row=place, forms=inputs.forms))


def complaint(numbers: Any, form: str, tolerance: float = 1e-3) -> Complaint | None:
    """The problem of a row. None if the row is valid or contains NaN."""
    row = np.asarray(numbers, dtype=np.float64)
    if np.isnan(row).any():
        return None
    with np.errstate(all="ignore"):
        total, exponentials = float(row.sum()), float(np.exp(row).sum())
    least, most = float(row.min()), float(row.max())
    looks_log = abs(exponentials - 1) <= max(tolerance, 1e-3) and most <= 0
    looks_prob = least >= 0 and abs(total - 1) <= max(tolerance, 1e-3)
    lowest, highest = int(row.argmin()), int(row.argmax())

    def of(problem: str, value: float, category: int | None = None, likely: str | None = None) -> Complaint:
        return Complaint("", (), problem, value, category, form, likely, (form,))

    if form in LOG_FORMS:
        if most == np.inf:
            return of("plus_inf", most, highest)
        if most == -np.inf:
            return of("no_mass", 0.0)
        if form == "log_probs" and not abs(exponentials - 1) <= tolerance:
            return of("sum", exponentials, likely="probs" if looks_prob else "logits")
        return None
    if least < 0:
        return of("negative", least, lowest, None if form == "counts" else "log_probs" if looks_log else "logits")
    if most == np.inf:
        return of("not_finite", most, highest)
    if total == 0:
        return of("no_mass", total)
    if form == "probs" and not abs(total - 1) <= tolerance:
        fractions = bool((row != np.floor(row)).any())
        return of("sum", total, likely="logits" if total > 1 and fractions else "counts")
    return None

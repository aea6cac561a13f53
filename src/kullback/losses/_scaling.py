"""What is done to logits before they are compared: a temperature, a softcap, a scale. Checked, and done, here for every loss.

A number is checked at once. Of an array, the shape is; its values are looked at only where they are at hand for free.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._checks import TEMPERATURE
from .._errors import InvalidOption, InvalidValue
from .._forms import check_temperature, inverse_temperature, is_number, shown
from .._ops import Array
from .._pairs import expm1, result_dtype


def check_scaling(temperature: Any, *, scale_t2: bool = False, softcap: Any = None, logit_scale: Any = 1.0) -> None:
    check_temperature(temperature)
    for name, x in (("softcap", 1.0 if softcap is None else softcap), ("logit_scale", logit_scale)):
        if not (is_number(x) and 0 < x < math.inf):
            raise InvalidOption(f"{name} is {shown(x)}: it must be a number above 0")
    if scale_t2 and temperature is None:
        raise InvalidOption("scale_t2 multiplies by temperature squared, and temperature is None: pass a number")
    if scale_t2 and has_axes(temperature):
        raise InvalidOption("scale_t2 needs one temperature: multiply reduction='none' by your temperatures squared")


def has_axes(temperature: Any) -> bool:
    return isinstance(temperature, (list, tuple)) or len(getattr(temperature, "shape", ())) > 0


def learns(temperature: Any) -> bool:
    """Does PyTorch want a derivative to it?"""
    return getattr(temperature, "requires_grad", False) is True


def look_at_temperatures(ops: Any, temperature: Array, weights: Array | None) -> None:
    """Raise if a row that counts has none (`row_temperature` has made it NaN)."""
    if ops.may_look(temperature):
        wrong = np.isnan(ops.to_numpy(temperature))
        if weights is not None:
            wrong = wrong & (np.asarray(ops.to_numpy(weights)) != 0)
        if wrong.any():
            raise InvalidValue(TEMPERATURE)


def inverse(ops: Any, temperature: Any, x: Array) -> Any:
    """As kernels take it: a number, or one a row of x."""
    if is_number(temperature):
        check_temperature(temperature, "float32")
        return 1.0 / float(temperature)
    last = (len(x.shape) - 1,)
    return ops.squeeze(inverse_temperature(ops, temperature, x, last), last)


def divided_by(temperature: Any, logit_scale: float, softcap: float | None) -> tuple[Any, float]:
    """The temperature that does the work of both, and the scale that is left. A mask near the lowest float, times a scale, is -inf."""
    if softcap is None and is_number(temperature) and 1e-30 < temperature / logit_scale < 1e30:
        return temperature / logit_scale, 1.0
    return temperature, logit_scale


def capped(ops: Any, x: Array, logit_scale: float, softcap: float | None, beside: Array) -> Array:
    """x after scale and softcap, in the dtype of what is computed of x and another array `beside` it."""
    if softcap is None and logit_scale == 1.0:
        return x
    x = ops.astype(x, result_dtype(ops, (x, beside)))
    if softcap is None:
        return x * float(logit_scale)
    # tanh|u| = −expm1(−2|u|) / (1 + e^−2|u|): nothing overflows, and small u keeps its digits. −inf stays absent; NaN and inf are kept out
    # of the derivative, for rows of weight 0 may hold them. Beyond 40 it is 1.
    absent, unknown = x == -math.inf, ops.isnan(x)
    # Both factors at once: of a mask as low as floats go, a multiple would be absent, and no longer capped.
    u = ops.where(absent | unknown, 0.0, x / (float(softcap) / float(logit_scale)))
    u = ops.where(u > 40.0, 40.0, ops.where(u < -40.0, -40.0, u))
    negative = u < 0.0
    twice = -2.0 * ops.where(negative, -u, u)
    tanh = -expm1(ops, twice) / (1.0 + ops.exp(twice))
    found = float(softcap) * ops.where(negative, -tanh, tanh)
    return ops.where(absent, -math.inf, ops.where(unknown, math.nan, found))


def check_valid(valid: Any, *arrays: Array, least: int = 1) -> None:
    most = max(x.shape[-1] for x in arrays)
    if not (isinstance(valid, int) and not isinstance(valid, bool) and least <= valid <= most):
        raise InvalidOption(f"valid is {valid!r}: it must be a number of categories, from {least} to the {most} there are")

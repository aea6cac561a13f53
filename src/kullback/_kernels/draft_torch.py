"""KL of the rows of two float32 tensors in operations that Inductor makes one loop of: half the time of the usual form compiled.

The sums are those of the first lanes of `cpu_tiles`, whose bounds decide where their rounding errors will do; other rows are NaN, for the
blocked kernel to complete. No checks beyond that: what is out of the ordinary is NaN too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .cpu_tiles import LOG_LANES, PROB_LANES

_SINGLE = np.dtype(np.float32)
_TINY = float(np.finfo(_SINGLE).tiny)
_PROBS, _LOGS = PROB_LANES[_SINGLE][0], LOG_LANES[_SINGLE][0]
# Terms added in float32, these sums then in float64: as exact as a float64 sum of all, and less work.
PIECE = 128


def kl(spec: Any, x: Any, y: Any) -> Any:
    """One value a row, of like forms, the last axis a multiple of PIECE, which is kept with size 1; NaN: undecided."""
    return (_of_probs if spec.forms[0] == "probs" else _of_logs)(spec, *(z.unflatten(-1, (-1, PIECE)) for z in (x, y)))


def _sum(x: Any) -> Any:
    return x.sum(-1).sum(-1, keepdim=True, dtype=torch.float64)


def _least(x: Any) -> Any:
    return x.amin(-1).amin(-1, keepdim=True)


def _of_probs(spec: Any, p: Any, q: Any) -> Any:
    ratio = q / p
    total_p, total_q = _sum(p), _sum(q)
    s = (total_q - total_p - _sum(p * torch.log(ratio))) / total_p
    m = (total_q - total_p) / total_p
    value = s + (torch.log1p(m) - m)
    fine = (s >= _PROBS.least) & (m * m <= s) & (m.abs() <= 0.25) & (value < math.inf)
    fine &= (_least(p) >= 0.0) & (_least(ratio) >= _TINY)
    for total, tolerance in zip((total_p, total_q), spec.tolerances):
        fine &= (total - 1.0).abs() <= tolerance
    return torch.where(fine, value, math.nan).float()


def _of_logs(spec: Any, a: Any, b: Any) -> Any:
    # Inductor stores an exponential that two sums use. Of a and of its copy there are two, until its C++ is written.
    twin = torch.exp(a.clone())
    total_a, total_b = _sum(torch.exp(a)), _sum(torch.exp(b))
    mean = _sum(twin * (b - a)) / total_a
    value = torch.log(total_b / total_a) - mean
    fine = (value >= _LOGS.least * (1.0 + mean.abs() * (4.0 / _LOGS.error))) & (value < math.inf)
    # What underflows (1e-38) must not count.
    fine &= (total_a > 1e-20) & (total_b > 1e-20)
    if spec.forms[0] == "log_probs":
        for total, tolerance in zip((total_a, total_b), spec.tolerances):
            fine &= (total - 1.0).abs() <= tolerance
    return torch.where(fine, value, math.nan).float()

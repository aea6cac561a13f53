"""The rows of truths.csv by pair of families, and how far a result is from them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

import truths
from kullback import distributions

# Promised: relative error of values.
BOUND = {np.float32: 2e-5, np.float64: 1e-11}

ROWS = defaultdict(list)
for _p, _a, _q, _b, _kind, _truth in truths.read():
    ROWS[_p, _q].append((_a, _b, _kind, _truth))
PAIRS = sorted(ROWS)
# Of one length, since some frameworks compile for each: short ones repeat their first row.
for _rows in ROWS.values():
    _rows += _rows[:1] * (len(truths.ROUNDS) - len(_rows))


def columns(pair, dtype):
    """Parameters of P and of Q, a column each, and the truths."""
    first, second = (np.array([row[i] for row in ROWS[pair]], dtype).T for i in (0, 1))
    return list(first), list(second), np.array([row[3] for row in ROWS[pair]])


def records(pair, first, second):
    return getattr(distributions, pair[0])(*first), getattr(distributions, pair[1])(*second)


def worst(found, truth):
    """Relative, and where float32 itself ends (denormal numbers) absolute."""
    return np.max(np.abs(np.asarray(found, float) - truth) / truth)

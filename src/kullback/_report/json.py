"""Records as JSON. JSON lacks infinities and NaN, so they become the words "inf", "-inf" and "nan"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def plain(x: Any) -> Any:
    """Records, mappings and sequences of numbers as JSON can hold them."""
    if isinstance(x, float):
        return float(x) if math.isfinite(x) else str(float(x))
    if hasattr(x, "_asdict"):
        x = x._asdict()
    if isinstance(x, Mapping):
        return {name: plain(value) for name, value in x.items()}
    return [plain(value) for value in x] if isinstance(x, (tuple, list)) else x


def dumps(x: Any) -> str:
    return json.dumps(x, indent=2, ensure_ascii=False, allow_nan=False)

"""Pictures in Matplotlib."""

from __future__ import annotations

from typing import Any


def pyplot() -> Any:
    """Matplotlib's interface, which is imported when a picture is asked for."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plot() needs Matplotlib: pip install matplotlib") from None
    return plt


def literal(text: str) -> str:
    """Text as it is. In Matplotlib a dollar sign begins mathematics."""
    return text.replace("$", r"\$")

"""Matplotlib figures as SVG in the colours of the page.

A figure is drawn with the stand-in colours below, which become CSS variables: one drawing then serves the light theme and the dark one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import wraps

import matplotlib
from matplotlib.figure import Figure

INK, FAINT, P, Q, OTHER = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
_COLOURS = {
    INK: "currentColor",
    FAINT: "var(--kl-grid)",
    P: "var(--kl-p)",
    Q: "var(--kl-q)",
    OTHER: "var(--kl-good)",
}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's font
    "font.size": 11, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none", "figure.facecolor": "none",
    "grid.color": FAINT, "legend.frameon": False, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.unicode_minus": True,
}  # fmt: skip


def themed(width: float, height: float) -> Callable[[Callable[[Figure], None]], Callable[[], str]]:
    """Of a function that draws on an empty figure of this size, in inches, one that returns it as SVG."""

    def decorate(draw: Callable[[Figure], None]) -> Callable[[], str]:
        @wraps(draw)
        def as_svg() -> str:
            # The salt keeps ids of two drawings on one page apart, and builds reproducible.
            with matplotlib.rc_context({**_STYLE, "svg.hashsalt": draw.__name__}):
                figure = Figure(figsize=(width, height), layout="constrained")
                draw(figure)
                file = io.StringIO()
                figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
            svg = file.getvalue()
            svg = svg[svg.index("<svg") :]
            for stand_in, colour in _COLOURS.items():
                svg = svg.replace(stand_in, colour)
            svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)  # its style would be the whole page's
            svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # figure_1 in every one
            svg = re.sub(r'font-family: [^;"]*', "font-family: inherit", svg)
            return re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg).replace(' width="', ' data-width="', 1)

        return as_svg

    return decorate

"""The pictures of "Start here"."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

import kullback as kb
from themed import FAINT, INK, OTHER, P, Q, themed

X = np.linspace(-8, 8, 401)


def normal(mean: float, sd: float) -> np.ndarray:
    return np.exp(-(((X - mean) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))


def on_the_grid(density: np.ndarray) -> np.ndarray:
    return density / density.sum()


@themed(5.4, 3.4)
def terms(figure: Figure) -> None:
    """Two densities, and under them the integrand of KL(P‖Q), whose area is the divergence."""
    p, q = normal(-0.8, 1.0), normal(0.9, 1.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.plot(X, p, color=P)
    above.plot(X, q, color=Q, linestyle="--")
    above.text(-2.4, 0.33, "p", color=P, fontsize=14)
    above.text(2.6, 0.21, "q", color=Q, fontsize=14)
    above.set(yticks=[], xlim=(-5.5, 6.5), ylim=(0, None))
    term = p * np.log(p / q)
    below.plot(X, term, color=INK, linewidth=1)
    below.fill_between(X, term, 0, where=term > 0, color=OTHER, alpha=0.45, linewidth=0)
    below.fill_between(X, term, 0, where=term < 0, color=Q, alpha=0.35, linewidth=0)
    below.axhline(0, color=INK, linewidth=0.8)
    below.text(-5.3, 0.22, "p · log(p/q)", fontsize=11)
    below.set(yticks=[0], xticks=[])


MODES, SHARES, SD = (-2.0, 2.0), (0.35, 0.65), 0.7


@themed(5.4, 4.2)
def two_modes(figure: Figure) -> None:
    """A target with two modes, and the normal distribution nearest to it in either direction."""
    p = sum(share * normal(mode, SD) for share, mode in zip(SHARES, MODES))

    def nearest(reverse: bool, start: tuple[float, float]) -> np.ndarray:
        def distance(at: np.ndarray) -> float:
            pair = on_the_grid(p), on_the_grid(normal(at[0], np.exp(at[1])))
            return float(kb.kl(*(pair[::-1] if reverse else pair)))

        found = minimize(distance, start, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8}).x
        return normal(found[0], np.exp(found[1]))

    titles = ("KL(P‖Q) is least: Q covers P's mass, and the gap", "KL(Q‖P) is least: Q seeks one mode")
    for axis, title, reverse in zip(figure.subplots(2, 1, sharex=True, sharey=True), titles, (False, True)):
        axis.fill_between(X, p, color=P, alpha=0.25, linewidth=0)
        axis.plot(X, p, color=P)
        axis.plot(X, nearest(reverse, (1.0, 0.0)), color=Q, linestyle="--", linewidth=2)
        axis.set(yticks=[], xticks=[], xlim=(-6.5, 6.5), ylim=(0, 0.65), title=title)
        axis.text(-3.4, 0.26, "P", color=P, fontsize=14)
        axis.text(*((-0.2, 0.21) if not reverse else (3.0, 0.5)), "Q", color=Q, fontsize=14)


# Also in the examples of the page.
WEATHER, FORECAST = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])


@themed(5.4, 1.7)
def entropies(figure: Figure) -> None:
    """H(P) and KL(P‖Q) end to end make H(P, Q), in bits."""
    h, kl = float(kb.entropy(WEATHER, base=2)), float(kb.kl(WEATHER, FORECAST, base=2))
    both = float(kb.cross_entropy(WEATHER, FORECAST, base=2))
    axis = figure.subplots()
    axis.barh(1, h, color=P, alpha=0.45)
    axis.barh(1, kl, left=h, color=Q, alpha=0.45, hatch="//", edgecolor=Q)
    axis.barh(0, both, color=FAINT, edgecolor=INK, linewidth=0.8)
    axis.text(h / 2, 1, f"H(P) = {h:g} bits", ha="center", va="center")
    axis.text(h + kl + 0.03, 1, f"KL(P‖Q) = {kl:g}", ha="left", va="center")
    axis.text(both / 2, 0, f"H(P, Q) = {both:g} bits", ha="center", va="center")
    axis.set(yticks=[], xlim=(0, 2.4), xlabel="bits a message", xticks=[0, 0.5, 1, 1.5, 2])
    axis.spines["left"].set_visible(False)

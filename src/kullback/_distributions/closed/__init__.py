"""The closed forms. Importing this registers them all."""

from . import categories, counts, gammas, interval, line, points, positive, spheres, truncated, vectors

__all__ = ["categories", "counts", "gammas", "interval", "line", "points", "positive", "spheres", "truncated", "vectors"]

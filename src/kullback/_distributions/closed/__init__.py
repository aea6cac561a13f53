"""The closed forms. Importing this registers them all; `supports`, last, fills in what is infinite whatever the parameters."""

from . import categories, counts, gammas, interval, line, points, positive, spheres, truncated, vectors  # isort: skip
from . import supports  # isort: skip

__all__ = ["categories", "counts", "gammas", "interval", "line", "points", "positive", "spheres", "supports", "truncated", "vectors"]

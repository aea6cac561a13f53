"""The closed forms. Importing this registers them all."""

# ruff: noqa: F401

from . import categories, counts, gammas, interval, line, points, positive, spheres, truncated, vectors

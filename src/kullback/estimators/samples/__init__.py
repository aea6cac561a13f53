"""KL from samples alone: nearest neighbours, categories, trained critics, and a choice between them."""

from ._auto import from_samples
from ._discrete import plug_in
from ._neighbours import nearest_neighbours, one_sample
from ._variational import variational

__all__ = ["from_samples", "nearest_neighbours", "one_sample", "plug_in", "variational"]

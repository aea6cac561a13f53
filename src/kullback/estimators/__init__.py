"""KL where there is no formula: Monte Carlo, policies, samples. Each answer says how wrong it may be."""

from ._estimate import Estimate
from .samples import from_samples, nearest_neighbours, one_sample, plug_in, variational

__all__ = ["Estimate", "from_samples", "nearest_neighbours", "one_sample", "plug_in", "variational"]

"""KL where there is no formula: Monte Carlo, policies, samples. Each answer says how wrong it may be."""

from ._estimate import Estimate
from ._monte_carlo import monte_carlo
from .policy import from_policy, per_token
from .samples import from_samples, nearest_neighbours, one_sample, plug_in, variational

__all__ = [
    "Estimate",
    "from_policy",
    "from_samples",
    "monte_carlo",
    "nearest_neighbours",
    "one_sample",
    "per_token",
    "plug_in",
    "variational",
]

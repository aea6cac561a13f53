"""KL where there is no formula: Monte Carlo, policies, samples. Each answer says how wrong it may be."""

from ._estimate import Estimate
from ._monte_carlo import monte_carlo

__all__ = ["Estimate", "monte_carlo"]

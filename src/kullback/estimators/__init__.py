"""KL where there is no formula: Monte Carlo, policies, samples. Each answer says how wrong it may be."""

from ._estimate import Estimate
from ._monte_carlo import monte_carlo
from .policy import from_policy, per_token

__all__ = ["Estimate", "from_policy", "monte_carlo", "per_token"]

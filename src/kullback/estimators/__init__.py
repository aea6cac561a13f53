"""KL where there is no formula: Monte Carlo, policies, samples. Each answer says how wrong it may be."""

from ._estimate import Estimate

__all__ = ["Estimate"]

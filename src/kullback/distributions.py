"""Light records of distributions, for `kullback.kl` and without a framework of their own: parameters may be numbers, lists or arrays.

>>> import kullback as kb
>>> from kullback.distributions import Gamma, Normal
>>> round(float(kb.kl(Normal(0.0, 1.0), Normal(1.0, 1.5))), 4)
0.3499
>>> [f"{x:.6g}" for x in kb.kl(Gamma([1.0, 1e4], 1.0), Gamma([1.0, 1e4 + 1e-3], 1.0))]
['0', '5.00025e-11']
"""

from ._distributions import families
from ._distributions.families import Record

__all__ = sorted(name for name, value in vars(families).items() if isinstance(value, type) and issubclass(value, Record))

globals().update({name: getattr(families, name) for name in __all__})

"""The public `kl`: arrays go to the array formulas, distribution objects to their closed forms or, where asked, to an estimate."""

from __future__ import annotations

import math
from typing import Any

from . import _divergences
from ._distributions.adapters import OWN, families_by_ecosystem, is_distribution
from ._distributions.objects import object_kl
from ._distributions.table import RegisteredPair, closed_forms
from ._distributions.users import is_registered
from ._errors import InvalidOption, WrongType
from ._ops import Array, ops_of
from ._reduce import check_options

# Pairs of types known to be distribution objects.
_known: set[tuple[type, type]] = set()


def kl(
    p: Any,
    q: Any,
    *,
    form: Any = "probs",
    axis: Any = -1,
    keepdims: bool = False,
    weights: Any = None,
    reduction: str = "none",
    base: float | None = None,
    temperature: Any = None,
    prior: float | None = None,
    check: bool | None = None,
    method: str | None = None,
    tol: float | None = None,
    budget: int | None = None,
    rng: Any = None,
) -> Array:
    if (type(p), type(q)) not in _known:
        if not (_is_object(p) or _is_object(q)):
            for name, x in (("method", method), ("tol", tol), ("budget", budget), ("rng", rng)):
                if x is not None:
                    raise InvalidOption(f"{name} is for distribution objects: KL of arrays is exact")
            return _divergences.kl(
                p, q, form=form, axis=axis, keepdims=keepdims, weights=weights, reduction=reduction, base=base, temperature=temperature,
                prior=prior, check=check,
            )  # fmt: skip
        for x, name, other in ((p, "p", "q"), (q, "q", "p")):
            if not _is_object(x):
                raise WrongType(f"{name} is a {type(x).__name__} and {other} a distribution object: both must be one or the other")
        _known.add((type(p), type(q)))
    if form != "probs" or axis != -1 or keepdims or weights is not None or temperature is not None or prior is not None:
        given = {"form": form != "probs", "axis": axis != -1, "keepdims": keepdims, "weights": weights is not None,
                 "temperature": temperature is not None}  # fmt: skip
        name = next((name for name, is_given in given.items() if is_given), "prior")
        raise InvalidOption(f"{name} is for arrays: distribution objects say themselves what their numbers are")
    if method is not None:
        return _estimate(p, q, method, reduction, base, tol, budget, rng)
    if tol is not None or budget is not None or rng is not None:
        raise InvalidOption("tol, budget and rng go with method='auto'")
    value = object_kl(p, q)
    return value if reduction == "none" and base is None else _reduced(value, reduction, base)


def _is_object(x: Any) -> bool:
    return is_distribution(x) or is_registered(type(x))


def _reduced(value: Array, reduction: str, base: float | None) -> Array:
    check_options(reduction, False, base)
    if base is not None:
        value = value / math.log(base)
    if reduction == "none":
        return value
    ops = ops_of(value)
    if reduction == "mean":
        return ops.mean(value)
    total = ops.total(value)
    return total / ops.length(value) if reduction == "batchmean" and len(value.shape) > 0 else total


def _estimate(p: Any, q: Any, method: str, reduction: str, base: float | None, tol: Any, budget: Any, rng: Any) -> Any:
    from .estimators._auto import auto_kl, scaled

    check_options(reduction, False, base)
    if method != "auto":
        raise InvalidOption(f"method is {method!r}: it must be 'auto', or None for closed forms only")
    if reduction != "none":
        raise InvalidOption("reduction is for values: method='auto' gives an Estimate for each element of the batch")
    found = auto_kl(p, q, tol=tol, budget=budget, rng=rng)
    return found if base is None else scaled(found, 1.0 / math.log(base))


kl.__doc__ = _divergences.kl.__doc__
relative_entropy = kl


def registered_pairs() -> list[RegisteredPair]:
    """The pairs `kullback.kl` knows by family, and what they are computed by.

    Each is a record (p, q, ecosystems, kind): the names of the families, the libraries that have both, and
    how the pair is computed. The kind is one of these:

    * "closed form": a formula.
    * "infinite": infinite whatever the parameters, because P puts mass outside the support of Q.
    * "yours": a function that was registered with `register_kl`.
    * "sum" or "quadrature": what `method="auto"` does.

    With `method="auto"`, library objects of any other family on the line are integrated too.
    All others are sampled. `kullback pairs` prints this list.

    Examples
    --------
    >>> import kullback as kb
    >>> next(pair for pair in kb.registered_pairs() if pair.p == "Exponential" and pair.q == "Gamma")
    RegisteredPair(p='Exponential', q='Gamma', ecosystems=('kullback', 'torch', 'numpyro', 'tfp'), kind='closed form')
    """
    from .estimators._records import numeric_families

    closed = closed_forms()
    known = {(pair.p, pair.q) for pair in closed}
    everywhere = {name: {family.__name__ for family in found} for name, found in families_by_ecosystem().items()}
    kinds = {name: kind for name, kind in numeric_families().items() if name in everywhere[OWN]}
    numeric = [
        RegisteredPair(p, q, tuple(name for name, found in everywhere.items() if p in found and q in found), kind)
        for p, kind in sorted(kinds.items())
        for q, other in sorted(kinds.items())
        if kind == other and (p, q) not in known
    ]
    return closed + sorted(numeric, key=lambda pair: pair.kind == "quadrature")

"""KL(π‖ref) of a policy, from the log-probs of the tokens it drew: one term a token, with masks and importance ratios.

The terms are arrays of the caller's framework, differentiable and compilable there. Which gradient they carry is asked for here and
explained in `losses.policy_kl`; nothing is reduced.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._divergences import kl
from .._errors import InvalidOption, InvalidValue, WrongType, one_of
from .._forms import float_arrays, is_number, left_pad, must_be_mask, shown
from .._ops import Array, common_ops
from .._pairs import attach, expm1, phi
from ._estimate import Estimate

KINDS = ("k1", "k2", "k3", "abs", "full")
LEVELS = ("token", "sequence")
GRADIENTS = ("exact", "as_written")

# Stands for the log-prob of a token that the policy cannot draw and another has drawn: its ratio is 0, and sums stay finite.
_NEVER = -1000.0


# The largest exponent that counts in a loss. Trainers clip log-ratios there (verl, NeMo RL): beyond it a loss in float32 becomes inf when
# it is added up over tokens, and one token's gradient outweighs all others by many orders of magnitude.
LARGEST_EXPONENT = 20.0


class Spec(NamedTuple):
    """What to compute, hashable. `clip` bounds the logarithm of the ratio; `most` is the largest number whose exponential is finite; and
    `bound` is the largest exponent that counts."""

    kind: str
    exact: bool
    clip: tuple[float, float] | None
    most: float
    bound: float
    axes: tuple[int, ...] = ()


class Terms(NamedTuple):
    """One value a token (0 where masked), and the mask as numbers 0 and 1, of the same shape."""

    ops: Any
    values: Array
    kept: Array | None


# With l = log(ref/π) of the token drawn and w = e^z the importance ratio, a term is w·k(l):
#   k1 = −l,  k2 = l²/2,  k3 = φ(l) = eˡ − 1 − l,  abs = |l|.


def _at_most(ops: Any, x: Array, most: float) -> Array:
    return ops.where(x > most, most, x)


def _most(ops: Any, dtype: Any) -> float:
    return 88.0 if dtype == ops.float32 else 709.0


def _ratio(ops: Any, spec: Spec, l: Array, z: Array | None) -> tuple[Array, Array]:
    """log w, clipped, and w."""
    if z is None:
        z = ops.where(l == l, 0.0, l)
    if spec.clip is not None:
        low, high = spec.clip
        z = ops.where(z < low, low, ops.where(z > high, high, z))
    return z, ops.exp(_at_most(ops, z, spec.bound))


def _times(ops: Any, w: Array, k: Array, l: Array) -> Array:
    """w·k, and 0 where a token that the policy cannot draw is impossible under the reference too."""
    return ops.where((w == 0.0) & (l == -math.inf), 0.0, w * k)


def _k3(ops: Any, spec: Spec, l: Array, z: Array, w: Array) -> Array:
    """w·φ(l). Where eˡ may be large, as e^(l+z)·(1 − (1 + l)e⁻ˡ): the product fits where eˡ alone does not, and is never negative."""
    near = l <= 1.0
    far = ops.where(near, 1.0, l)
    within = _at_most(ops, far, spec.most)
    product = ops.exp(_at_most(ops, far + z, spec.bound)) * (1.0 - (1.0 + within) * ops.exp(-within))
    return ops.where(near, _times(ops, w, phi(ops, ops.where(near, l, 0.0)), l), product)


def _k3_slope(ops: Any, spec: Spec, l: Array, z: Array, w: Array) -> Array:
    """w·(eˡ − 1), likewise."""
    below = l <= 0.0
    above = ops.where(below, 0.0, l)
    product = -ops.exp(_at_most(ops, above + z, spec.bound)) * expm1(ops, -_at_most(ops, above, spec.most))
    return ops.where(below, w * expm1(ops, ops.where(below, l, 0.0)), product)


def _value(ops: Any, spec: Spec, kind: str, l: Array, z: Array, w: Array) -> Array:
    if kind == "k3":
        return _k3(ops, spec, l, z, w)
    k = 0.0 - l if kind == "k1" else 0.5 * l * l if kind == "k2" else ops.where(l < 0.0, -l, l)
    return _times(ops, w, k, l)


def _evaluate(ops: Any, spec: Spec, logp: Array, logp_ref: Array, log_w: Array | None = None) -> Array:
    l = logp_ref - logp
    return _value(ops, spec, spec.kind, l, *_ratio(ops, spec, l, log_w))


def _gradients(ops: Any, spec: Spec, logp: Array, logp_ref: Array, log_w: Array | None = None, *, needs: Any = None) -> tuple[Array, ...]:
    l = logp_ref - logp
    z, w = _ratio(ops, spec, l, log_w)
    if spec.exact:
        # E[w k1 ∇log π] = ∇KL(π‖ref) to the policy of this token, whichever kind the value is; it is also what w·k3, differentiated with w,
        # comes to: w(φ(l) − (eˡ − 1)) = −w·l. To the reference, E[w(eˡ − 1)∇log ref], which is 0 where both agree. To the ratio of
        # the tokens before, any unbiased value: k3 where it is asked for, else k1.
        return (
            -_times(ops, w, l, l),
            _k3_slope(ops, spec, l, z, w),
            _value(ops, spec, "k3" if spec.kind == "k3" else "k1", l, z, w),
        )
    if spec.kind == "k3":
        slope = _k3_slope(ops, spec, l, z, w)
    elif spec.kind == "k2":
        slope = _times(ops, w, l, l)
    else:
        slope = -w if spec.kind == "k1" else ops.where(l > 0.0, w, ops.where(l < 0.0, -w, w * l))
    to_w = _value(ops, spec, spec.kind, l, z, w)
    if spec.clip is not None and log_w is not None:
        to_w = ops.where((log_w < spec.clip[0]) | (log_w > spec.clip[1]), 0.0, to_w)
    return -slope, slope, to_w


def _log_bounds(clip: Any, logp_old: Any) -> tuple[float, float] | None:
    if clip is None:
        return None
    low, high = clip if isinstance(clip, (tuple, list)) and len(clip) == 2 else (0.0, clip)
    if not (is_number(low) and is_number(high) and 0 <= low <= high and high > 0):
        raise InvalidOption(
            f"clip is {shown(clip)}: it must be the largest importance ratio to count with, or a pair of the smallest and the largest"
        )
    if logp_old is None:
        raise InvalidOption("clip bounds the importance ratios π/π_old: it needs logp_old, the log-probs at the time the tokens were drawn")
    return -math.inf if low == 0 else math.log(low), math.log(high)


def _same_shape(name: str, shape: Any, other: str, expected: Any) -> None:
    known = len(shape) == len(expected) and all(n == m for n, m in zip(shape, expected) if isinstance(n, int) and isinstance(m, int))
    if not known:
        raise InvalidValue(f"{name} has shape {tuple(shape)} and {other} {tuple(expected)}: one log-prob for each token, in both")


def _sums_before(ops: Any, x: Array) -> Array:
    """In float64, where there is one: they may run over thousands of tokens."""
    return ops.astype(ops.sums_before(ops.astype(x, ops.widest(x))), x.dtype)


def policy_terms(
    logp: Any, logp_ref: Any, *, logp_old: Any, kind: str, level: str, gradient: str, mask: Any, clip: Any, logp_taken: Any,
    bound: float = LARGEST_EXPONENT,
) -> Terms:  # fmt: skip
    """The terms that estimators and losses share; the arguments are those of `losses.policy_kl`. Larger exponents than `bound` count as
    that one."""
    one_of("kind", kind, KINDS)
    one_of("level", level, LEVELS)
    one_of("gradient", gradient, GRADIENTS)
    bounds = _log_bounds(clip, logp_old)
    if kind == "full":
        if level == "sequence" and logp_taken is None:
            raise InvalidOption(
                "kind='full' at level='sequence' needs logp_taken, π's log-probs of the tokens drawn: later tokens depend on them"
            )
    elif logp_taken is not None:
        raise InvalidOption("logp_taken goes with kind='full'; elsewhere logp itself holds the log-probs of the tokens drawn")
    named = [("logp", logp), ("logp_ref", logp_ref), ("logp_old", logp_old), ("mask", mask), ("logp_taken", logp_taken)]
    named = [(name, x) for name, x in named if x is not None or name in ("logp", "logp_ref")]
    ops = common_ops(named)
    arrays = dict(zip((name for name, _ in named), float_arrays(ops, named)))
    floats = [x for name, x in arrays.items() if name != "mask"]
    out = ops.float64 if any(x.dtype == ops.float64 for x in floats) else ops.float32
    if kind != "full":
        arrays = {name: x if name == "mask" else ops.astype(x, out if ops.exact_float32 else ops.widest(x)) for name, x in arrays.items()}
    logp, logp_ref = arrays["logp"], arrays["logp_ref"]
    _same_shape("logp_ref", logp_ref.shape, "logp", logp.shape)
    shape = logp.shape[:-1] if kind == "full" else logp.shape
    for name in ("logp_old", "logp_taken"):
        if name in arrays:
            _same_shape(name, arrays[name].shape, "logp without its last axis" if kind == "full" else "logp", shape)
    if len(shape) == 0 and level == "sequence":
        raise InvalidOption("level='sequence' needs an axis of tokens, the last of logp" + (" but one" if kind == "full" else ""))
    if kind == "full":
        return _full(ops, arrays, level, gradient, bounds, out, bound)
    return _sampled(ops, arrays, kind, level, gradient, bounds, out, bound)


def token_mask(ops: Any, mask: Any, like: Array) -> Array | None:
    """Where the mask is not 0, in the shape of `like`."""
    if mask is None:
        return None
    _, mask = float_arrays(ops, (("tokens", like), ("mask", mask)))
    missing = len(like.shape) - len(mask.shape)
    sizes = zip(mask.shape, like.shape[max(missing, 0) :])
    if missing < 0 or any(isinstance(n, int) and isinstance(m, int) and n not in (1, m) for n, m in sizes):
        raise InvalidValue(f"mask has shape {tuple(mask.shape)}: it must broadcast to {tuple(like.shape)}, one entry a token")
    if ops.may_look(mask):
        must_be_mask(np.asarray(ops.to_numpy(mask)))
    return ops.rows_like(left_pad(ops, mask, len(like.shape)), like, ()) != 0.0


def _sampled(ops: Any, arrays: Any, kind: str, level: str, gradient: str, bounds: Any, out: Any, bound: float) -> Terms:
    logp, logp_ref, logp_old = arrays["logp"], arrays["logp_ref"], arrays.get("logp_old")
    keep = token_mask(ops, arrays.get("mask"), logp)
    if keep is not None:
        # Here and not behind: what is masked then has a derivative of 0, whatever it holds.
        logp, logp_ref = ops.where(keep, logp, 0.0), ops.where(keep, logp_ref, 0.0)
        logp_old = None if logp_old is None else ops.where(keep, logp_old, 0.0)
    exact, log_w = gradient == "exact", None
    if logp_old is not None:
        logp = ops.where(logp == -math.inf, _NEVER, logp)
        log_w = logp - ops.stop_gradient(logp_old)
    if level == "sequence" and (exact or log_w is not None):
        if not exact:
            log_w = _sums_before(ops, log_w) + log_w
        elif log_w is None:
            log_w = attach(ops, logp * 0.0, _sums_before(ops, logp))
        else:
            log_w = _sums_before(ops, log_w) + ops.stop_gradient(log_w)
    elif exact and log_w is not None:
        log_w = ops.stop_gradient(log_w)
    spec = Spec(kind, exact, bounds, _most(ops, out), min(bound, _most(ops, out)))
    inputs = (logp, logp_ref) if log_w is None else (logp, logp_ref, log_w)
    values = ops.astype(ops.apply(_evaluate, _gradients, spec, *inputs), out)
    return _masked(ops, values, keep)


def _full(ops: Any, arrays: Any, level: str, gradient: str, bounds: Any, out: Any, bound: float) -> Terms:
    # The exact KL at each prefix that was visited. Over sequences, times the ratio of that prefix, w: averaged over prefixes this is the
    # KL of the sequences, with the choice of each last token averaged out (Rao-Blackwell). Its derivative is w ∇KL + KL ∇w.
    keep = token_mask(ops, arrays.get("mask"), arrays["logp"][..., 0])
    weights = None if keep is None else ops.astype(keep, out)
    values = ops.astype(kl(arrays["logp"], arrays["logp_ref"], form="logits", weights=weights), out)
    taken, old = arrays.get("logp_taken"), arrays.get("logp_old")
    if level == "sequence" and (old is not None or gradient == "exact"):
        taken, old = (None if x is None else ops.astype(x if keep is None else ops.where(keep, x, 0.0), out) for x in (taken, old))
        taken = ops.where(taken == -math.inf, _NEVER, taken)
        log_w = _sums_before(ops, taken if old is None else taken - ops.stop_gradient(old))
        if old is None:
            log_w = attach(ops, log_w * 0.0, log_w)
        elif bounds is not None:
            clipped = ops.where(log_w < bounds[0], bounds[0], ops.where(log_w > bounds[1], bounds[1], log_w))
            log_w = attach(ops, clipped, log_w) if gradient == "exact" else clipped
        values = ops.exp(_at_most(ops, log_w, min(bound, _most(ops, out)))) * values
    return _masked(ops, values, keep)


def _masked(ops: Any, values: Array, keep: Array | None) -> Terms:
    if keep is None:
        return Terms(ops, values, None)
    return Terms(ops, ops.where(keep, values, 0.0), ops.astype(keep, values.dtype))


def per_token(
    logp: Any,
    logp_ref: Any,
    *,
    logp_old: Any = None,
    kind: str = "k3",
    level: str = "token",
    mask: Any = None,
    clip: Any = None,
    logp_taken: Any = None,
) -> Array:
    """Estimates of KL(π‖ref), one a token, from the log-probs of the tokens that were drawn.

    With r = ref/π of a token: k1 = −log r, k2 = ½ log² r, k3 = r − 1 − log r (as φ(log r): exact for r close to 1), abs = |log r|, and
    full, the KL of the two next-token distributions itself. Their means are KL(π‖ref) for k1, k3 and full; k2 and abs are biased.

    Parameters
    ----------
    logp, logp_ref : array_like
        Log-probs of the tokens drawn, under the policy and the reference, the tokens of a sequence along the last axis. Half precision is
        computed in float32. For kind "full": logits or log-probs over the vocabulary, which is then the last axis.
    logp_old : array_like, optional
        Log-probs under the policy that drew the tokens, where that is another one. Each term is then multiplied by an importance ratio:
        that of its token (level "token"), or of its sequence up to and with it (level "sequence").
    kind : {"k1", "k2", "k3", "abs", "full"}
    level : {"token", "sequence"}
        Sums over the tokens of a sequence have as mean the KLs at the prefixes visited, or the KL of the sequences. Without `logp_old`,
        and of one token, both are the same.
    mask : array_like, optional
        0 or False: not a token of the policy (padding, prompts, tool output). It may hold anything, NaN included; its term is 0.
    clip : float or (float, float), optional
        The largest ratio to count with, or the smallest and the largest. Less variance, and a bias.
    logp_taken : array_like, optional
        For kind "full" at level "sequence": the policy's log-probs of the tokens drawn.

    Returns
    -------
    array
        Its derivatives are those of the formula as it is written; for a loss use `losses.policy_kl`. k3 saturates at e^88 (float32; e^709
        in float64), where others overflow or cut its derivative. A loss counts exponents up to 20 only.

    Examples
    --------
    >>> from kullback.estimators import per_token
    >>> logp, logp_ref = [-1.0, -2.0, float("nan")], [-1.5, -1.9, 0.0]
    >>> per_token(logp, logp_ref, kind="k1", mask=[1, 1, 0]).round(4)
    array([ 0.5, -0.1,  0. ])
    >>> per_token(logp, logp_ref, mask=[1, 1, 0]).round(4)
    array([0.1065, 0.0052, 0.    ])
    """
    return policy_terms(
        logp, logp_ref, logp_old=logp_old, kind=kind, level=level, gradient="as_written", mask=mask, clip=clip, logp_taken=logp_taken,
        bound=math.inf,
    ).values  # fmt: skip


def from_policy(
    logp: Any,
    logp_ref: Any,
    *,
    logp_old: Any = None,
    kind: str = "k3",
    level: str = "sequence",
    mask: Any = None,
    clip: Any = None,
    logp_taken: Any = None,
) -> Estimate:
    """KL(π‖ref) of a policy from sequences that were drawn, with its standard error.

    At level "sequence" the KL of whole sequences; at level "token" the mean over visited prefixes of the KL of the next token. Sequences
    (all axes but the last) are independent, tokens of one sequence are not, and the error takes that into account. With kind "full" this is
    the Rao-Blackwellised estimator, whose variance is never larger than that of k1. Parameters as in `per_token`.

    Returns
    -------
    Estimate
        The standard error does not contain the bias of the kinds "k2" and "abs" and of `clip`. NaN from a single sequence.

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.estimators import from_policy
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(10000, 4))                                    # four tokens a sequence, N(0, 1) against N(0.1, 1): KL 0.02
    >>> from_policy(-x**2 / 2, -(x - 0.1)**2 / 2)
    0.02007 ± 0.00014 (policy k3, sequence level, n=10000)
    """
    terms = policy_terms(
        logp, logp_ref, logp_old=logp_old, kind=kind, level=level, gradient="as_written", mask=mask, clip=clip, logp_taken=logp_taken,
        bound=math.inf,
    )  # fmt: skip
    ops = terms.ops
    if not ops.can_look(terms.values):
        raise WrongType("from_policy makes numbers, and there are none yet inside jit, compile or vmap: use per_token there")
    values = np.asarray(ops.to_numpy(terms.values), np.float64)
    counts = np.ones_like(values) if terms.kept is None else np.asarray(ops.to_numpy(terms.kept), np.float64)
    if values.ndim > 1 or level == "sequence":
        values, counts = values.sum(-1), counts.sum(-1)
    values, counts = np.atleast_1d(values).ravel()[counts.ravel() > 0], counts.ravel()[counts.ravel() > 0]
    n = len(values)
    if n == 0:
        raise InvalidValue("nothing to estimate from: there are no tokens, or the mask leaves none")
    if level == "sequence":
        counts = np.ones_like(counts)
    # The mean is a quotient of two sums over sequences; its error is that of values − mean · counts.
    mean = values.sum() / counts.sum()
    with np.errstate(invalid="ignore"):
        rest = values - mean * counts
        stderr = math.sqrt((rest * rest).sum() * n / (n - 1)) / counts.sum() if n > 1 else math.nan
    return Estimate(float(mean), float(stderr), n, f"policy {kind}, {level} level")

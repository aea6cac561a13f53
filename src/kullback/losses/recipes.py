"""KL terms as they were published, by name, without their coefficient, and the controllers that choose it.

Each is a call of `policy_kl`, so that what a recipe does differently can be read off its arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .._errors import InvalidOption, InvalidValue, WrongType
from .._forms import float_arrays, is_number, shown
from .._ops import Array, common_ops
from ..estimators.policy import policy_terms
from .policy import over_tokens, policy_kl


def grpo(logp: Any, logp_ref: Any, *, mask: Any = None, reduction: str = "sequence_mean") -> Array:
    """The KL term of GRPO (DeepSeekMath, DeepSeek-R1): k3 as written, averaged over the tokens of a response, then over responses.

    Its expected gradient is that of KL(ref‖π), not of KL(π‖ref), and has no ratio for tokens drawn by an older policy. A log-ratio
    log ref/π above 20 counts as 20, in the value and in the derivative, which the papers' formula would let grow to inf (see `policy_kl`).

    Examples
    --------
    >>> from kullback.losses import grpo
    >>> float(grpo([[-1.0, -2.0], [-0.5, -3.0]], [[-1.5, -1.9], [-0.6, 0.0]], mask=[[1, 1], [1, 0]]).round(6))
    0.030344
    """
    return policy_kl(logp, logp_ref, gradient="as_written", mask=mask, reduction=reduction)


def deepseek_v32(logp: Any, logp_ref: Any, logp_old: Any, *, mask: Any = None, reduction: str = "sequence_mean") -> Array:
    """The KL term of DeepSeek-V3.2: (π/π_old)·k3, the ratio differentiated too. Its expected gradient is that of the token-level KL(π‖ref).

    On the first step over a batch π_old is π: pass ``logp_old=logp``, which is taken as a constant.

    Examples
    --------
    >>> from kullback.losses import deepseek_v32
    >>> float(deepseek_v32([[-1.0, -2.0]], [[-1.5, -1.9]], [[-1.1, -2.0]]).round(6))
    0.061453
    """
    if logp_old is None:
        raise WrongType("logp_old is None: it must be an array of numbers; on the first step over a batch pass logp_old=logp")
    return policy_kl(logp, logp_ref, logp_old=logp_old, gradient="as_written", mask=mask, reduction=reduction)


def kimi_k15(logp: Any, logp_ref: Any, *, mask: Any = None, reduction: str = "mean") -> Array:
    """The regulariser of Kimi k1.5: ½ log²(π/π_i) of whole responses, π_i the policy at the start of the iteration, which drew them.

    Its published gradient is −(τ/2)·∇ log²(π/π_i) of an objective to maximise; this is the loss, to be multiplied by τ.

    Examples
    --------
    >>> from kullback.losses import kimi_k15
    >>> float(kimi_k15([[-1.0, -2.0], [-0.5, -3.0]], [[-1.5, -1.9], [-0.6, 0.0]], mask=[[1, 1], [1, 0]]).round(6))
    0.0425
    """
    ratio = policy_terms(
        logp, logp_ref, logp_old=None, kind="k1", level="token", gradient="as_written", mask=mask, clip=None, logp_taken=None
    )
    # A response is one token here, whose log-probs are the sums; the sum of differences keeps the digits that the difference of sums loses.
    ops = ratio.ops
    sums = over_tokens(ops, ratio.values)
    last = (len(sums.shape),)
    any_token = None if ratio.kept is None else ops.expand(over_tokens(ops, ratio.kept), last)
    sums = ops.expand(sums, last)
    value = policy_kl(sums, sums * 0.0, kind="k2", gradient="as_written", mask=any_token, reduction=reduction)
    return ops.squeeze(value, last) if reduction == "none" else value


def ppo_rewards(score: Any, logp: Any, logp_ref: Any, *, coefficient: Any, mask: Any = None, kind: str = "k1") -> Array:
    """Rewards for PPO with a KL penalty (Ziegler et al., 2019): −coefficient·k of each token, and a response's score at its last token.

    A constant: rewards have no gradient. Through the policy gradient k1 follows the KL(π‖ref) of sequences; other kinds follow something
    else (see docs/estimators.md).

    Parameters
    ----------
    score : array_like
        One number a response, or one a token (the shape of `logp`).
    logp, logp_ref, mask
        As in `policy_kl`.
    coefficient : float
        For instance the `value` of an `AdaptiveKLController`.
    kind : {"k1", "k2", "k3", "abs"}

    Examples
    --------
    >>> from kullback.losses import ppo_rewards
    >>> ppo_rewards([1.0, 2.0], [[-1.0, -2.0], [-0.5, -3.0]], [[-1.5, -1.9], [-0.6, 0.0]], coefficient=0.1, mask=[[1, 1], [1, 0]]).round(3)
    array([[-0.05,  1.01],
           [ 1.99,  0.  ]])
    """
    if not (is_number(coefficient) or hasattr(coefficient, "dtype")):
        raise WrongType(f"coefficient is {shown(coefficient)}: it must be a number")
    if kind == "full":
        raise InvalidOption("kind='full' is no property of the token drawn: a reward needs 'k1' (or 'k2', 'k3', 'abs')")
    terms = policy_terms(
        logp, logp_ref, logp_old=None, kind=kind, level="token", gradient="as_written", mask=mask, clip=None, logp_taken=None
    )
    ops, penalty, kept = terms
    ndim = len(penalty.shape)
    if ndim == 0:
        raise InvalidValue("logp is a single number: rewards need an axis of tokens")
    common_ops([("score", score), ("logp", penalty)])
    score = ops.astype(float_arrays(ops, (("score", score), ("logp", penalty)))[0], penalty.dtype)
    missing = [m for m, n in zip(score.shape, penalty.shape) if isinstance(m, int) and isinstance(n, int) and m != n]
    if len(score.shape) not in (ndim - 1, ndim) or missing:
        shape = tuple(penalty.shape)
        raise InvalidValue(f"score has shape {tuple(score.shape)}: it must be {shape[:-1]}, one number a response, or {shape}, one a token")
    if len(score.shape) < ndim:
        # The last token is the one up to which there are as many as there are in all.
        kept = kept if kept is not None else ops.where(penalty == penalty, penalty * 0.0, 0.0) + 1.0
        last = (ops.sums_before(kept) + kept == ops.sum(kept, (ndim - 1,))) & (kept > 0.0)
        score = ops.where(last, ops.rows_like(ops.expand(score, (ndim - 1,)), last, ()), 0.0)
    elif kept is not None:
        score = ops.where(kept > 0.0, score, 0.0)
    return ops.stop_gradient(score - coefficient * penalty)


def _positive(name: str, x: Any) -> None:
    if not (is_number(x) and 0 < x < math.inf):
        raise InvalidOption(f"{name} is {shown(x)}: it must be a positive number")


@dataclass
class AdaptiveKLController:
    """A coefficient that steers the KL to a target: the proportional controller of Ziegler et al., 2019.

    Each update multiplies it by 1 + e·n_steps/horizon, with e = KL/target − 1, at most 0.2 either way.

    Examples
    --------
    >>> from kullback.losses import AdaptiveKLController
    >>> controller = AdaptiveKLController(0.1, target=6.0, horizon=10000)
    >>> round(controller.update(12.0, n_steps=256), 6)       # too far away: the coefficient rises, by 0.2·256/10000
    0.100512
    """

    value: float
    target: float
    horizon: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("value", "target", "horizon"):
            _positive(name, getattr(self, name))

    def update(self, kl: Any, n_steps: float = 1) -> float:
        """The next coefficient, from the KL just seen and the number of responses (or steps) since the last update."""
        kl = float(kl)
        if math.isnan(kl):
            raise InvalidValue("kl is NaN: the coefficient stays as it is; look for NaN in the log-probs")
        self.value *= 1.0 + min(max(kl / self.target - 1.0, -0.2), 0.2) * n_steps / self.horizon
        return self.value


@dataclass
class FixedKLController:
    """A coefficient that stays, with the interface of `AdaptiveKLController`.

    Examples
    --------
    >>> from kullback.losses import FixedKLController
    >>> FixedKLController(0.1).update(12.0)
    0.1
    """

    value: float

    def __post_init__(self) -> None:
        if not (is_number(self.value) and 0 <= self.value < math.inf):
            raise InvalidValue(f"value is {shown(self.value)}: it must be a number of at least 0")

    def update(self, kl: Any, n_steps: float = 1) -> float:
        return self.value

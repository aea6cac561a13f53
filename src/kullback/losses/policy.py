"""The KL penalty of a policy as a loss whose gradient is the gradient of the KL. The terms themselves are in `estimators.policy`."""

from __future__ import annotations

from typing import Any

from .._errors import InvalidOption, one_of
from .._ops import Array
from ..estimators.policy import Terms, policy_terms

REDUCTIONS = ("none", "sum", "mean", "batchmean", "sequence_mean")


def policy_kl(
    logp: Any,
    logp_ref: Any,
    *,
    logp_old: Any = None,
    kind: str = "k3",
    level: str = "token",
    gradient: str = "exact",
    mask: Any = None,
    clip: Any = None,
    reduction: str = "mean",
    logp_taken: Any = None,
) -> Array:
    """KL(π‖ref) of a policy, estimated from tokens that were drawn, as a loss to minimise.

    The usual estimators are right as values and wrong as losses: drawn from π itself, k1 as it is written has an expected gradient of 0,
    and k3 that of KL(ref‖π), the other direction. Here the expected gradient is that of KL(π‖ref), whichever kind the value is.

    Parameters
    ----------
    logp : array_like
        The policy's log-probs of the tokens drawn, the tokens of a sequence along the last axis. Half precision is computed in float32.
        For kind "full": its logits or log-probs over the vocabulary, which is then the last axis.
    logp_ref : array_like
        The same, under the reference.
    logp_old : array_like, optional
        Log-probs under the policy that drew the tokens, a constant, where that is not the present one (stale samples, the second step on
        a batch). Terms are then multiplied by importance ratios π/π_old.
    kind : {"k1", "k2", "k3", "abs", "full"}
        Of the value: with r = ref/π, k1 = −log r, k2 = ½ log² r, k3 = r − 1 − log r, abs = |log r|, or the exact KL at each prefix. k2 and
        abs are biased as values. "full" has the least variance, in value and gradient.
    level : {"token", "sequence"}
        Which KL. "token": the sum over the prefixes visited of the KL of the next token; where the policy goes is not differentiated.
        "sequence": the KL of the distributions of whole sequences; its gradient also says that an early token leads to a later KL.
    gradient : {"exact", "as_written"}
        "exact": the expected gradient is that of the KL(π‖ref) of this level, also to `logp_ref`, should that be learned.
        "as_written": that of the formula, term by term, ratio included, as most training code has it. The value is the same.
    mask : array_like, optional
        0 or False: not a token of the policy (padding, prompts, tool output). It may hold anything, NaN included, without touching value or
        gradient.
    clip : float or (float, float), optional
        The largest importance ratio to count with, or the smallest and the largest. It bounds the variance and makes value and gradient
        biased. With "exact" the gradient is weighted by the clipped ratio; "as_written" cuts the gradient of a ratio outside, as PPO does.
    reduction : {"mean", "sum", "batchmean", "sequence_mean", "none"}
        At level "token": "mean" over all tokens; "batchmean", the sum over tokens, averaged over sequences; "sequence_mean", the mean over
        the tokens of each sequence, averaged over sequences. At level "sequence" terms are summed over tokens first: "mean" over the
        sequences that have any token, "batchmean" over all. "none": one value a token or a sequence.
    logp_taken : array_like, optional
        For kind "full" at level "sequence": the policy's log-probs of the tokens drawn.

    Notes
    -----
    With the ratio w and k1 = log(π/ref) of each token, the exact gradient of a token's term is w·k1·∇log π: what w·k3 gives when w is
    differentiated with it. Over sequences w is the product of the ratios up to the token, and the terms of later tokens count for
    earlier ones. It is one of first order: for curvature, see `fisher_vector_product`.

    Exponents count up to 20: a ratio ref/π or π/π_old, or the product of both, that is larger than e^20 = 4.9e8 counts as e^20. The
    derivative of k3 as written is then that at the bound, -e^20 at most, so it still pulls the policy back. With `logp_old` it does not:
    the derivatives of the term and of the ratio cancel there, and no pull is left. The exact gradient has no ratio ref/π and needs no
    bound. Beyond the bound a sum over tokens would become inf in float32, and one token would outweigh all others; trainers clip the
    log-ratio at the same number (verl, NeMo RL). `estimators.per_token` has no such bound, since it would bias an estimate. Look at
    `(logp_ref - logp).max()` if the loss approaches 4.9e8: samples are stale, or the two log-probs disagree.

    A token that the reference cannot produce makes the KL infinite, and the value says so.

    Examples
    --------
    >>> import torch
    >>> from kullback.losses import policy_kl
    >>> logits, ref = torch.tensor([0.0, 1.0, 2.0], requires_grad=True), torch.tensor([1.0, 0.0, 0.0]).log_softmax(-1)
    >>> tokens = torch.multinomial(logits.softmax(-1), 100000, replacement=True, generator=torch.Generator().manual_seed(0))
    >>> for way in ("exact", "as_written"):
    ...     loss = policy_kl(logits.log_softmax(-1)[tokens], ref[tokens], gradient=way)
    ...     print(torch.autograd.grad(loss, logits)[0].numpy().round(2))   # ∇KL(π‖ref) = (−.224, −.119, .342)
    [-0.22 -0.12  0.34]
    [-0.48  0.03  0.45]
    """
    one_of("reduction", reduction, REDUCTIONS)
    if level == "sequence" and reduction == "sequence_mean":
        raise InvalidOption("reduction='sequence_mean' averages the tokens of each sequence: it needs level='token'")
    terms = policy_terms(
        logp, logp_ref, logp_old=logp_old, kind=kind, level=level, gradient=gradient, mask=mask, clip=clip, logp_taken=logp_taken
    )
    return reduced(terms, level, reduction)


def reduced(terms: Terms, level: str, reduction: str) -> Array:
    ops, values, kept = terms
    if reduction == "none" and level == "token":
        return values
    if reduction == "sum":
        return ops.total(values)
    if level == "token" and reduction != "batchmean" and kept is None:
        return ops.mean(values)
    if level == "token" and reduction == "mean":
        return ops.total(values) / _not_zero(ops, ops.total(kept))
    values = over_tokens(ops, values)
    if reduction == "none":
        return values
    if reduction == "batchmean" or kept is None:
        return ops.mean(values)
    lengths = over_tokens(ops, kept)
    if reduction == "sequence_mean":
        values = values / _not_zero(ops, lengths)
    return ops.total(values) / _not_zero(ops, ops.total(ops.astype(lengths > 0.0, values.dtype)))


def over_tokens(ops: Any, x: Array) -> Array:
    last = (len(x.shape) - 1,)
    return ops.squeeze(ops.sum(x, last), last) if len(x.shape) > 0 else x


def _not_zero(ops: Any, count: Array) -> Array:
    """Where nothing is left, 0/1, not 0/0."""
    return ops.where(count == 0.0, 1.0, count)

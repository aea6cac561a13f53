"""The KL terms of drawn tokens from the logits of a policy and its reference, without log-probs of the whole vocabulary."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._divergences import divergence
from .._errors import CannotRun, InvalidValue, one_of
from .._forms import float_arrays, inverse_temperature, is_number, places
from .._ops import Array, common_ops
from .._pairs import Spec, attach, pair, textbook
from ..estimators.policy import per_token, token_mask
from ._dense import matched, same_categories, why_not_fused
from ._scaling import check_scaling, inverse


class TokenTerms(NamedTuple):
    """One value a token of each: log-probs of the token under policy and reference; the exact KL of the two next-token distributions; and
    the estimates of it from the token alone, as in `estimators.per_token`. All 0 where masked."""

    logp: Array
    logp_ref: Array
    kl: Array
    k1: Array
    k2: Array
    k3: Array


def token_terms(logits: Any, logits_ref: Any, tokens: Any, *, temperature: Any = 1.0, mask: Any = None, impl: str = "auto") -> TokenTerms:
    """Log-probs, exact KL(π‖ref), and its estimates k1, k2, k3, of drawn tokens, directly from two logits arrays.

    Parameters
    ----------
    logits : array [..., categories]
        The policy's.
    logits_ref : array [..., categories]
        The reference's, a constant. The side that has more categories must have logits of -inf in the rest.
    tokens : integer array [...]
        The tokens that were drawn.
    temperature : float or array that broadcasts to the shape of `tokens`
        Divides the logits of both. A constant.
    mask : array_like, optional
        0 or False: not a token of the policy (padding, prompts, tool output). Logits and tokens there may be anything, NaN and -100
        included, without touching values or gradients.
    impl : {"auto", "array", "triton"}
        "auto" runs PyTorch's CUDA tensors of 16 or 32 bits through Triton kernels, which keep seven numbers a row and write nothing of
        the logits' size but their gradient; everything else through array operations. "triton" raises where the kernels cannot run.

    Returns
    -------
    TokenTerms
        `logp`, `logp_ref`, `kl`, `k1`, `k2`, `k3`: arrays in the shape of `tokens`, differentiable with respect to `logits`. With
        r = ref/π of the token, k1 = −log r, k2 = ½ log² r, k3 = r − 1 − log r, from a log r that keeps its digits where π and ref are close
        (the difference of `logp_ref` and `logp` does not).

    Notes
    -----
    The gradient of `kl` is that of the KL at each prefix, without sampling noise. Those of k1, k2 and k3 are of the formulas as they are
    written; as losses they follow other things (see `policy_kl`, which takes `logp` and `logp_ref`).

    On accelerators a token out of range makes its values NaN; elsewhere it is an error.

    Examples
    --------
    >>> import numpy as np
    >>> from kullback.losses import token_terms
    >>> terms = token_terms(np.array([[0.0, 1.0, 2.0]]), np.array([[1.0, 0.0, 0.0]]), np.array([2]))
    >>> for name, value in terms._asdict().items():
    ...     print(f"{name:<9}{value[0]:.6f}")
    logp     -0.407606
    logp_ref -1.551445
    kl       0.629019
    k1       1.143839
    k2       0.654184
    k3       0.462432
    """
    one_of("impl", impl, ("auto", "array", "triton"))
    check_scaling(temperature)
    named = [("logits", logits), ("logits_ref", logits_ref)]
    ops = common_ops([*named, ("tokens", tokens), ("mask", mask), ("temperature", temperature)])
    x, y = float_arrays(ops, named)
    y = ops.stop_gradient(y)
    if len(x.shape) == 0 or not _match(x.shape[:-1], y.shape[:-1]):
        raise InvalidValue(f"logits have shape {tuple(x.shape)} and logits_ref {tuple(y.shape)}: one row for each token, in both")
    x, y = matched(ops, {"logits": x, "logits_ref": y}, mask, None, "pass the first {} of each")
    at, keep, valid = _tokens(ops, tokens, mask, x)
    reason = "impl='array' asks for array operations" if impl == "array" else why_not_fused(ops, x, y, temperature)
    if reason is not None and impl == "triton":
        raise CannotRun(f"impl='triton' cannot run: {reason}; impl='auto' falls back")

    def formula(x: Array, y: Array) -> tuple[Array, ...]:
        return _formula(ops, x, y, at, temperature, keep)

    if reason is None:
        from .._kernels import tokens_triton

        kl, logp, ratio, logp_ref = tokens_triton.TokenTerms.apply(x, y, at, inverse(ops, temperature, x), formula)
    else:
        kl, logp, ratio, logp_ref = formula(x, y)

    def shown(value: Array) -> Array:
        value = ops.where(valid, value, math.nan)
        return value if keep is None else ops.where(keep, value, 0.0)

    logp, logp_ref, kl, ratio = shown(logp), shown(logp_ref), shown(kl), shown(ratio)
    # k1 and k2 as they stand, and as `estimators.per_token` has them, without a dozen operations each; all are 0 where the ratio is.
    nothing = ops.where(ratio == ratio, 0.0, ratio)
    return TokenTerms(logp, logp_ref, kl, 0.0 - ratio, 0.5 * ratio * ratio, per_token(nothing, ratio, kind="k3"))


def _match(shape: Any, other: Any) -> bool:
    return len(shape) == len(other) and all(n == m for n, m in zip(shape, other) if isinstance(n, int) and isinstance(m, int))


def _tokens(ops: Any, tokens: Any, mask: Any, logits: Array) -> tuple[Array, Array | None, Array]:
    """The tokens, those that do not count or do not exist replaced by the first; which count; and which exist, or do not count."""
    at = places(ops, "tokens", tokens, logits)
    if not _match(at.shape, logits.shape[:-1]):
        raise InvalidValue(f"tokens have shape {tuple(at.shape)} beside logits of shape {tuple(logits.shape)}: one token a row")
    keep = None if mask is None else token_mask(ops, mask, logits[..., 0])
    if keep is not None:
        at = ops.where(keep, at, at * 0)
    size = logits.shape[-1]
    if size is None:
        raise InvalidValue("the number of categories of logits is unknown: state it with tf.ensure_shape")
    valid = (at >= 0) & (at < size)
    if ops.may_look(at):
        found = np.asarray(ops.to_numpy(valid))
        if not found.all():
            bad = tuple(int(i) for i in np.argwhere(~found)[0])
            where = f" at {bad[0] if len(bad) == 1 else bad}" if bad else ""
            raise InvalidValue(
                f"tokens hold {np.asarray(ops.to_numpy(at))[bad]}{where}: categories are 0 to {size - 1}; mask what is padding"
            )
    return ops.where(valid, at, at * 0), keep, valid


def _formula(ops: Any, x: Array, y: Array, at: Array, temperature: Any, keep: Array | None) -> tuple[Array, ...]:
    """KL(x‖y), the token's log p, its log q/p, exact where both are close, and log q."""
    dtype = ops.float64 if ops.float64 in (x.dtype, y.dtype) else ops.float32
    x, y = same_categories(ops, *(ops.astype(z, dtype) for z in (x, y)))
    last = (len(x.shape) - 1,)
    if keep is not None:
        x, y = (ops.where(ops.expand(keep, last), z, 0.0) for z in (x, y))
    kl = divergence(
        "kl", 0.0, x, y, form="logits", axis=-1, keepdims=False, weights=None, reduction="none", base=None, temperature=temperature,
        prior=None, check=None, names=("logits", "logits_ref"),
    )  # fmt: skip
    wide = dtype if ops.exact_float32 else ops.widest(x)
    x, y = ops.astype(x, wide), ops.astype(y, wide)
    scale = None if is_number(temperature) and temperature == 1 else ops.astype(inverse_temperature(ops, temperature, x, last), wide)
    spec = Spec("kl", 0.0, ("logits", "logits"), last, (math.inf, math.inf), False)
    exact = pair(ops, spec, ops.stop_gradient(x), y, scale)
    _, _, log_p, log_q, log_ratio = textbook(ops, spec, x, y, scale)
    place = ops.expand(at, last)

    def of_token(z: Array) -> Array:
        return ops.squeeze(ops.take_last(z, place), last)

    absent, absent_ref = (of_token(z) == -math.inf for z in (x, y))
    ratio = attach(ops, of_token(ops.where(exact.log_ratio == 0.0, 0.0, exact.ratio * exact.unit)), of_token(log_ratio))
    ratio = ops.where(absent_ref & ~absent, -math.inf, ops.where(absent & ~absent_ref, math.inf, ratio))
    return (kl, *(ops.astype(z, dtype) for z in (of_token(log_p), ratio, of_token(log_q))))

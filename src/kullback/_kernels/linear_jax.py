"""A final projection and a loss of its logits in JAX, by chunks of tokens: at most one chunk of logits at a time, forward and backward.

Backward makes the logits of each chunk anew (a fourth matmul) and adds the gradients of the weight up in float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


def _wide(x: Any) -> Any:
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def project(hidden: Any, weight: Any, bias: Any) -> Any:
    logits = jnp.matmul(hidden, weight.T, preferred_element_type=_wide(hidden))
    return logits if bias is None else logits + bias


def _chunks(function: Any, size: int, carry: Any, trees: Any) -> tuple[Any, Any]:
    """function(carry, part of the trees) over parts of `size` tokens and a shorter last one; what it gives for each token, joined."""
    tokens = jax.tree.leaves(trees)[0].shape[0]
    whole = tokens // size * size
    found = []
    if whole:
        parts = jax.tree.map(lambda x: x[:whole].reshape(tokens // size, size, *x.shape[1:]), trees)
        carry, of_parts = jax.lax.scan(function, carry, parts)
        found.append(jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), of_parts))
    if whole < tokens or not whole:
        carry, of_rest = function(carry, jax.tree.map(lambda x: x[whole:], trees))
        found.append(of_rest)
    return carry, jax.tree.map(lambda *xs: jnp.concatenate(xs), *found) if len(found) > 1 else found[0]


@partial(jax.jit, static_argnums=(0, 1))
def losses(formula: Any, size: int, hidden: Any, weight: Any, bias: Any, rows: Any, shared: Any) -> Any:
    """formula(logits, rows, shared), one loss a token, for hidden [tokens, width]; `rows` has an entry a token, `shared` none. Only hidden,
    weight and bias have derivatives. Compiled once for each formula, also outside jit."""
    return _losses(formula, size, hidden, weight, bias, rows, shared)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _losses(formula: Any, size: int, hidden: Any, weight: Any, bias: Any, rows: Any, shared: Any) -> Any:
    def one(_: Any, chunk: Any) -> Any:
        h, r = chunk
        return None, formula(project(h, weight, bias), r, shared)

    return _chunks(one, size, None, (hidden, rows))[1]


def _forward(formula: Any, size: int, hidden: Any, weight: Any, bias: Any, rows: Any, shared: Any) -> Any:
    return _losses(formula, size, hidden, weight, bias, rows, shared), (hidden, weight, bias, rows, shared)


def _backward(formula: Any, size: int, saved: Any, upstream: Any) -> Any:
    hidden, weight, bias, rows, shared = saved
    wide = _wide(hidden)

    def one(sums: Any, chunk: Any) -> Any:
        h, r, u = chunk
        _, pull = jax.vjp(lambda logits: formula(logits, r, shared), project(h, weight, bias))
        (slopes,) = pull(u)
        narrow = slopes.astype(weight.dtype)
        to_weight = sums[0] + jnp.matmul(narrow.T, h, preferred_element_type=wide)
        return (to_weight, sums[1] + slopes.sum(0)), jnp.matmul(narrow, weight, preferred_element_type=wide).astype(h.dtype)

    start = jnp.zeros(weight.shape, wide), jnp.zeros(weight.shape[0], wide)
    (to_weight, to_bias), to_hidden = _chunks(one, size, start, (hidden, rows, upstream))
    return to_hidden, to_weight.astype(weight.dtype), None if bias is None else to_bias.astype(bias.dtype), None, None


_losses.defvjp(_forward, _backward)

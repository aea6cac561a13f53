"""The published KL terms, written out again here as their papers have them; controllers by hand; Fisher products against the matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from frameworks import ALL, Lazy
from kullback.losses import (
    AdaptiveKLController,
    FixedKLController,
    deepseek_v32,
    fisher_vector_product,
    grpo,
    kimi_k15,
    policy_kl,
    ppo_rewards,
)

jax = Lazy("jax")
jnp = Lazy("jax.numpy")
tf = Lazy("tensorflow")
tinygrad = Lazy("tinygrad")

rng = np.random.default_rng(1)
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
LOGP, REF, OLD = (-2 * rng.random((3, 4)) for _ in range(3))
for array in (LOGP, REF, OLD):
    array[MASK == 0] = np.nan


def written_out(term):
    """Value, and gradient to logp, of a formula of PyTorch tensors over the tokens of each response."""
    logp = torch.tensor(LOGP, requires_grad=True)
    total = 0.0
    for i in range(3):
        n = int(MASK[i].sum())
        total = total + term(logp[i, :n], torch.tensor(REF[i, :n]), torch.tensor(OLD[i, :n])) / 3
    return total.item(), torch.autograd.grad(total, logp)[0].numpy()


def ours(loss):
    logp = torch.tensor(LOGP, requires_grad=True)
    value = loss(logp, torch.tensor(REF), torch.tensor(OLD))
    return value.item(), torch.autograd.grad(value, logp)[0].numpy()


def k3(logp, ref):
    return torch.exp(ref - logp) - (ref - logp) - 1


RECIPES = {
    # DeepSeekMath, eq. 4, in the sum of eq. 3
    "grpo": (lambda p, r, o: k3(p, r).mean(), lambda p, r, o: grpo(p, r, mask=MASK)),
    # DeepSeek-V3.2, eq. 7
    "v3.2": (lambda p, r, o: (torch.exp(p - o) * k3(p, r)).mean(), lambda p, r, o: deepseek_v32(p, r, o, mask=MASK)),
    # Kimi k1.5: half the square of log π/π_i of a response
    "kimi": (lambda p, r, o: (p.sum() - r.sum()) ** 2 / 2, lambda p, r, o: kimi_k15(p, r, mask=MASK)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_published_terms(name):
    theirs, own = RECIPES[name]
    (value, gradient), (wanted, wanted_gradient) = ours(own), written_out(theirs)
    assert value == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose(gradient, wanted_gradient, atol=1e-14)


def test_the_term_of_v32_has_the_exact_gradient_sample_by_sample():
    written, exact = (
        ours(lambda p, r, o: policy_kl(p, r, logp_old=o, mask=MASK, gradient=way, reduction="sequence_mean"))  # noqa: B023
        for way in ("as_written", "exact")
    )
    assert written[0] == exact[0]
    np.testing.assert_allclose(written[1], exact[1], atol=1e-15)


def test_v32_on_the_first_step():
    logp = torch.tensor(LOGP, requires_grad=True)
    first = torch.autograd.grad(deepseek_v32(logp, REF, logp, mask=MASK), logp)[0]
    again = torch.autograd.grad(deepseek_v32(logp, REF, LOGP, mask=MASK), logp)[0]
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("framework", [f for f in ALL if not f.compiled or f.name in ("jax-jit", "tensorflow-function")], ids=repr)
def test_rewards(framework):
    wanted = np.where(MASK, -0.1 * (LOGP - REF), 0)
    wanted[[0, 1, 2], [2, 1, 3]] += [1.0, 2.0, 3.0]
    found = framework.run(
        lambda score, logp, ref: ppo_rewards(score, logp, ref, coefficient=0.1, mask=MASK),
        np.array([1.0, 2.0, 3.0], np.float32), LOGP.astype(np.float32), REF.astype(np.float32),
    )  # fmt: skip
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_rewards_of_tokens_without_mask_or_gradient():
    score = np.arange(6.0).reshape(2, 3)
    logp = torch.full((2, 3), -1.0, requires_grad=True)
    found = ppo_rewards(score, logp, torch.full((2, 3), -1.5), coefficient=2.0)
    assert not found.requires_grad
    np.testing.assert_allclose(found, score - 1.0)
    np.testing.assert_allclose(ppo_rewards([7.0, 8.0], logp, logp, coefficient=2.0), [[0, 0, 7], [0, 0, 8]])
    with pytest.raises(ValueError, match=r"score has shape \(3,\): it must be \(2,\), one number a response, or \(2, 3\), one a token"):
        ppo_rewards([1.0, 2.0, 3.0], logp, logp, coefficient=1.0)
    with pytest.raises(ValueError, match="no property of the token drawn"):
        ppo_rewards([1.0, 2.0], logp, logp, coefficient=1.0, kind="full")


def test_controllers():
    controller = AdaptiveKLController(0.2, target=6.0, horizon=1000)
    # e = 6.6/6 − 1 = 0.1; then 30/6 − 1 = 4, held at 0.2; then −1, held at −0.2
    assert controller.update(6.6, n_steps=50) == pytest.approx(0.2 * 1.005)
    assert controller.update(30.0, n_steps=50) == pytest.approx(0.2 * 1.005 * 1.01)
    assert controller.update(torch.tensor(0.0), n_steps=50) == pytest.approx(0.2 * 1.005 * 1.01 * 0.99)
    assert controller.value == controller.update(6.0, n_steps=50)
    assert AdaptiveKLController(0.2, target=6.0).horizon == 10000
    with pytest.raises(ValueError, match="kl is NaN"):
        controller.update(math.nan)
    for bad in ({"value": 0.0, "target": 1.0}, {"value": 1.0, "target": -1.0}, {"value": 1.0, "target": 1.0, "horizon": 0}):
        with pytest.raises(ValueError, match="must be a positive number"):
            AdaptiveKLController(**bad)
    assert FixedKLController(0.3).update(100.0, n_steps=5) == 0.3


def test_an_adaptive_coefficient_settles_at_its_target():
    """A policy whose KL answers the coefficient as 1/β does: the KL comes to the target."""
    controller = AdaptiveKLController(1.0, target=0.25, horizon=100)
    for _ in range(500):
        controller.update(1 / controller.value, n_steps=10)
    assert 1 / controller.value == pytest.approx(0.25, rel=1e-3)


# A network of one hidden layer, in each framework; its Jacobian by complex steps, in NumPy.

X = rng.normal(size=(5, 3))
THETA = {"w": rng.normal(size=(3, 4)), "v": rng.normal(size=(4, 3))}
VECTOR = {"w": rng.normal(size=(3, 4)), "v": rng.normal(size=(4, 3))}
KEEP = np.array([1, 1, 0, 1, 1])


def by_matrix(theta, vector, damping, keep):
    flat = np.concatenate([theta["w"].ravel(), theta["v"].ravel()])
    network = lambda x: np.tanh(X @ x[:12].reshape(3, 4)) @ x[12:].reshape(4, 3)  # noqa: E731
    jacobian = np.stack([network(flat + 1e-30j * e).imag / 1e-30 for e in np.eye(24)], -1)
    p = np.exp(network(flat))
    p /= p.sum(-1, keepdims=True)
    fisher = sum(j.T @ (np.diag(q) - np.outer(q, q)) @ j for j, q, k in zip(jacobian, p, keep) if k) / sum(keep)
    product = (fisher + damping * np.eye(24)) @ np.concatenate([vector["w"].ravel(), vector["v"].ravel()])
    return {"w": product[:12].reshape(3, 4), "v": product[12:].reshape(4, 3)}


MAKERS = {
    "torch": (lambda x: torch.tensor(x), lambda x, t: torch.tanh(x @ t["w"]) @ t["v"], lambda f: f),
    "torch-compiled": (
        lambda x: torch.tensor(x),
        lambda x, t: torch.tanh(x @ t["w"]) @ t["v"],
        lambda f: torch.compile(f, backend="eager"),
    ),
    "jax": (lambda x: jnp.asarray(x, jnp.float32), lambda x, t: jnp.tanh(x @ t["w"]) @ t["v"], lambda f: f),
    "jax-jit": (lambda x: jnp.asarray(x, jnp.float32), lambda x, t: jnp.tanh(x @ t["w"]) @ t["v"], lambda f: jax.jit(f)),
    "tensorflow": (lambda x: tf.constant(x), lambda x, t: tf.tanh(x @ t["w"]) @ t["v"], lambda f: f),
    "tensorflow-function": (lambda x: tf.constant(x), lambda x, t: tf.tanh(x @ t["w"]) @ t["v"], lambda f: tf.function(f)),
    "tinygrad": (lambda x: tinygrad.Tensor(x), lambda x, t: (x @ t["w"]).tanh() @ t["v"], lambda f: f),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("damping", "keep"), [(0.0, None), (0.1, KEEP)])
def test_fisher_vector_product(name, damping, keep):
    if name in ("torch-compiled", "tensorflow-function") and keep is None:
        pytest.skip("traced once, with the mask")
    make, network, transform = MAKERS[name]
    x, theta, vector = make(X), *({key: make(a) for key, a in tree.items()} for tree in (THETA, VECTOR))
    product = transform(lambda theta, vector: fisher_vector_product(lambda t: network(x, t), theta, vector, damping=damping, mask=keep))
    found, wanted = product(theta, vector), by_matrix(THETA, VECTOR, damping, KEEP if keep is not None else np.ones(5))
    assert set(found) == {"w", "v"}
    for key in found:
        value = found[key].numpy() if name == "tinygrad" else np.asarray(found[key])
        # float32 in JAX; tinygrad's float64 tanh is an exp of float64.
        np.testing.assert_allclose(value, wanted[key], atol=1e-6 if "jax" in name else 1e-12)


def test_fisher_is_the_hessian_of_kl():
    import kullback as kb

    theta, v = torch.tensor(X[0]), torch.tensor(X[1])
    hessian = torch.func.hessian(lambda other: kb.kl(theta, other, form="logits"))(theta)
    np.testing.assert_allclose(fisher_vector_product(lambda t: t, theta, v), hessian @ v, atol=1e-14)


def test_fisher_of_actions_ruled_out_and_of_lists():
    """A logit of −inf is an action that cannot be taken; parameters may be a list."""
    theta, v = [torch.tensor([0.0, 1.0]), torch.tensor([0.5])], [torch.tensor([1.0, 0.0]), torch.tensor([2.0])]
    none = torch.full((1,), -math.inf)
    found = fisher_vector_product(lambda t: torch.cat([none, t[0] * t[1]]), theta, v)
    p = 1 / (1 + math.exp(-0.5))
    change = p * (1 - p) * (0.5 * 1.0 - 2.0)  # J v = (0.5, 2)
    np.testing.assert_allclose(found[0], [0.5 * change, -0.5 * change], atol=1e-6)
    np.testing.assert_allclose(found[1], [-change], atol=1e-6)


def test_fisher_errors():
    with pytest.raises(TypeError, match="derivatives need PyTorch, JAX, TensorFlow or tinygrad"):
        fisher_vector_product(lambda t: t, np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="vector and parameters differ"):
        fisher_vector_product(lambda t: t, torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="damping is -1"):
        fisher_vector_product(lambda t: t, torch.ones(3), torch.ones(3), damping=-1)

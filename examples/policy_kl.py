"""A policy that is to earn rewards and stay close to a reference: three KL penalties, of which one leads to the optimum.

    python examples/policy_kl.py                        # PyTorch and JAX
    python examples/policy_kl.py --frameworks JAX       # the one you have
    python examples/policy_kl.py --plot policy.png      # with the picture

The policy writes words of two letters out of four. What maximises reward − β·KL(π‖ref) is known: π* ∝ ref·exp(reward/β). Each step draws
words, and descends the policy gradient of their rewards plus β times `policy_kl`; only the options of `policy_kl` differ.
"""

import argparse

import numpy as np

import kullback as kb
from kullback.losses import policy_kl

LETTERS, BETA, WORDS, STEPS = 4, 0.5, 1000, 300
WAYS = {
    "exact, level='sequence'": {"level": "sequence"},
    "exact, level='token'": {"level": "token", "reduction": "batchmean"},
    "k3 as written": {"gradient": "as_written", "reduction": "batchmean"},
}

# Logits of the first letter, and of the second after each first: five rows. The second letter is rewarded, and some first letters make the
# reference hard to follow.
REFERENCE = np.random.default_rng(5).normal(size=(1 + LETTERS, LETTERS)) * np.array([[0.5], [2], [2], [0.2], [0.2]])
REWARD = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0], [0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]])


def word_probs(table):
    """Of all 16 words."""
    e = np.exp(table - table.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return (p[0][:, None] * p[1:]).ravel()


OPTIMUM = word_probs(REFERENCE) * np.exp(REWARD.ravel() / BETA)
OPTIMUM /= OPTIMUM.sum()


def rate(step):
    return 3.0 / (1 + step / 50)


def draw(table, rng):
    """Words, and their rewards less the mean."""
    drawn = rng.choice(LETTERS**2, WORDS, p=word_probs(np.asarray(table, np.float64)))
    reward = REWARD.ravel()[drawn]
    return drawn // LETTERS, drawn % LETTERS, (reward - reward.mean()).astype(np.float32)


# Both take one step at a time and yield the table of logits.


def with_pytorch(options, rng):
    import torch

    table = torch.zeros(1 + LETTERS, LETTERS, requires_grad=True)
    log_ref = torch.tensor(REFERENCE, dtype=torch.float32).log_softmax(-1)
    while True:
        first, second, reward = map(torch.as_tensor, draw(table.detach(), rng))

        def logp(log_probs, first=first, second=second):
            return torch.stack([log_probs[0, first], log_probs[1 + first, second]], -1)

        ours = logp(table.log_softmax(-1))
        loss = -(reward * ours.sum(-1)).mean() + BETA * policy_kl(ours, logp(log_ref), **options)
        (slope,) = torch.autograd.grad(loss, table)
        with torch.no_grad():
            table -= (yield table.detach().numpy()) * slope


def with_jax(options, rng):
    import jax
    import jax.numpy as jnp

    log_ref = jax.nn.log_softmax(jnp.array(REFERENCE, jnp.float32))

    @jax.jit
    @jax.grad
    def slope(table, first, second, reward):
        def logp(log_probs):
            return jnp.stack([log_probs[0, first], log_probs[1 + first, second]], -1)

        ours = logp(jax.nn.log_softmax(table))
        return -(reward * ours.sum(-1)).mean() + BETA * policy_kl(ours, logp(log_ref), **options)

    table = jnp.zeros((1 + LETTERS, LETTERS))
    while True:
        table -= (yield np.asarray(table)) * slope(table, *draw(table, rng))


FRAMEWORKS = {"PyTorch": with_pytorch, "JAX": with_jax}


def train(framework, options):
    """Distances KL(π‖π*) before every step and at the end, and the policy."""
    learner = FRAMEWORKS[framework](options, np.random.default_rng(0))
    table = next(learner)
    distances = [float(kb.kl(word_probs(np.asarray(table, np.float64)), OPTIMUM))]
    for step in range(STEPS):
        table = learner.send(rate(step))
        distances.append(float(kb.kl(word_probs(np.asarray(table, np.float64)), OPTIMUM)))
    return distances, word_probs(np.asarray(table, np.float64))


def main(frameworks=tuple(FRAMEWORKS), plot=None):
    shown = (0, 100, 200, STEPS)
    print(f"{'KL(π‖π*) after ... steps':32}", *(f"{s:7}" for s in shown), "  reward − β·KL(π‖ref)")
    results = {}
    for way, options in WAYS.items():
        for framework in frameworks:
            distances, probs = results[way, framework] = train(framework, options)
            objective = probs @ REWARD.ravel() - BETA * float(kb.kl(probs, word_probs(REFERENCE)))
            print(f"{way:24} {framework:7}", *(f"{distances[s]:7.3f}" for s in shown), f"{objective:12.3f}")
    best = BETA * np.log(word_probs(REFERENCE) @ np.exp(REWARD.ravel() / BETA))
    print(f"{'π*':32}", *(f"{'0':>7}" for s in shown), f"{best:12.3f}")
    if plot:
        draw_picture(results, frameworks[0], plot)
    return results


def draw_picture(results, framework, file):
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
    words = [a + b for a in "abcd" for b in "abcd"]
    right.bar(range(len(words)), OPTIMUM, color="lightgray", label="π*")
    for (way, marker), colour in zip(zip(WAYS, "os^"), ("tab:blue", "tab:orange", "tab:red")):
        distances, probs = results[way, framework]
        left.semilogy(distances, color=colour, label=way)
        right.plot(probs, marker, color=colour, markersize=4, label=way)
    left.set(xlabel="step", ylabel="KL(π‖π*)", title="distance to the optimum")
    left.legend(frameon=False, loc=(0.45, 0.55))
    right.set(title="probability of each word at the end")
    right.set_xticks(range(len(words)), words)
    right.legend(frameon=False)
    figure.savefig(file, dpi=90, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=tuple(FRAMEWORKS), help="those to use")
    parser.add_argument("--plot", metavar="FILE", help="write the picture there")
    results = main(**vars(parser.parse_args()))

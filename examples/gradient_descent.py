"""Gradient descent on KL(P‖Q), in PyTorch, JAX, TensorFlow and tinygrad: four ways to write it, the same numbers.

    python examples/gradient_descent.py                        # all four
    python examples/gradient_descent.py --frameworks JAX       # those you have
    python examples/gradient_descent.py --plot descent.png     # with the picture

P is a hump over five categories. Q is the softmax of five logits that start at 0, so it starts uniform, and KL(P‖Q) at 0.22997.
"""

import argparse
import os

import numpy as np

import kullback as kb

P = np.array([0.05, 0.21, 0.41, 0.26, 0.07], dtype=np.float32)
RATE = 0.5

# Each of these takes one step at a time, and yields the loss before the step and the logits after it.


def with_pytorch():
    import torch

    p, logits = torch.tensor(P), torch.zeros(len(P), requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=RATE)
    while True:
        optimizer.zero_grad()
        loss = kb.kl(p, logits, form=("probs", "logits"))
        loss.backward()
        optimizer.step()
        yield loss.item(), logits.detach().numpy()


def with_jax():
    import jax
    import jax.numpy as jnp

    p, logits = jnp.array(P), jnp.zeros(len(P))
    loss_and_slope = jax.jit(jax.value_and_grad(lambda logits: kb.kl(p, logits, form=("probs", "logits"))))
    while True:
        loss, slope = loss_and_slope(logits)
        logits -= RATE * slope
        yield loss.item(), np.asarray(logits)


def with_tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before the import: no talk about the hardware
    import tensorflow as tf

    p, logits = tf.constant(P), tf.Variable(tf.zeros(len(P)))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = kb.kl(p, logits, form=("probs", "logits"))
        logits.assign_sub(RATE * tape.gradient(loss, logits))
        return loss

    while True:
        yield step().numpy().item(), logits.numpy()


def with_tinygrad():
    from tinygrad import Context, Tensor, TinyJit
    from tinygrad.nn.optim import SGD

    from kullback.tinygrad import kl_divergence

    p, logits = Tensor(P).realize(), Tensor.zeros(len(P)).contiguous().realize()
    optimizer = SGD([logits], lr=RATE)

    @TinyJit
    @Context(TRAINING=1)  # or the optimiser will not step
    def step():
        optimizer.zero_grad()
        loss = kl_divergence(p, logits, form=("probs", "logits")).backward()
        return loss.realize(*optimizer.schedule_step())

    while True:
        yield step().item(), logits.numpy()


FRAMEWORKS = {"PyTorch": with_pytorch, "JAX": with_jax, "TensorFlow": with_tensorflow, "tinygrad": with_tinygrad}


def main(frameworks=tuple(FRAMEWORKS), plot=None, steps=50):
    """The losses of each framework, and the Q it ends with."""
    losses, found = {}, {}
    print("KL(P‖Q) after ... steps")
    print(f"{'':10}", *(f"{n:7}" for n in range(0, steps + 1, 10)))
    for name in frameworks:
        print(f"{name:10}", end="")
        losses[name] = []
        for n, (loss, logits) in zip(range(steps + 1), FRAMEWORKS[name]()):
            losses[name].append(loss)
            found[name] = np.exp(logits) / np.exp(logits).sum()
            if n % 10 == 0:
                print(f" {loss:.5f}", end="", flush=True)
        print()
    print()
    print("P", *(f"{x:.3f}" for x in P))
    print("Q", *(f"{x:.3f}" for x in found[name]))
    if plot:
        draw(losses, found, plot)
    return losses, found


def draw(losses, found, file):
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for i, (name, values) in enumerate(losses.items()):
        # They lie on top of each other: a marker every few steps, each framework's at its own.
        left.semilogy(values, "os^D"[i], linestyle="-", linewidth=1, markersize=5, markevery=(i * 2, 8), label=name)
    left.axhline(0.005, color="grey", linestyle=":", linewidth=1)
    left.text(0, 0.0052, "0.005", color="grey", fontsize="small", verticalalignment="bottom")
    left.set(xlabel="step", ylabel="KL(P‖Q) in nats", title="The loss, as it falls")
    left.legend(frameon=False)
    category = np.arange(len(P))
    right.bar(category, P, 0.7, color="lightgrey", label="P")
    right.plot(category, np.full(len(P), 1 / len(P)), "--", color="tab:blue", label="Q at first")
    right.plot(category, next(iter(found.values())), "o-", color="tab:blue", label="Q at last")
    right.set(xlabel="category", ylabel="probability", title="P and Q")
    right.legend(frameon=False)
    figure.savefig(file, dpi=100, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=tuple(FRAMEWORKS))
    parser.add_argument("--plot", metavar="FILE", help="write the picture there")
    results = main(**vars(parser.parse_args()))

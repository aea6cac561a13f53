"""Mean-field variational inference on a target with two modes: what each direction of the KL does to it.

    python examples/two_modes.py
    python examples/two_modes.py --plot two_modes.png

P is a mixture of two normal distributions in the plane, 70% and 30%, each with correlated coordinates. Q may only be a product of two
normals, one a coordinate (that is "mean-field"). Minimising KL(P‖Q) makes Q cover both modes; minimising KL(Q‖P) makes it sit on one.
"""

import argparse

import jax
import jax.numpy as jnp

import kullback as kb

# The plane, as a grid: P and Q are distributions over its 101 × 101 points, given by their log-densities up to a constant.
AXIS = jnp.linspace(-10.0, 10.0, 101)
X, Y = jnp.meshgrid(AXIS, AXIS, indexing="ij")

SHARES, MODES, SD, CORRELATION = (0.7, 0.3), (+2.0, -2.0), 0.8, 0.6


def log_target():
    def log_normal(mode):
        x, y = (X - mode) / SD, (Y - mode) / SD
        return -(x**2 - 2 * CORRELATION * x * y + y**2) / (2 * (1 - CORRELATION**2))

    return jnp.logaddexp(*(jnp.log(share) + log_normal(mode) for share, mode in zip(SHARES, MODES)))


def log_mean_field(means, log_sds):
    x, y = ((z - m) / jnp.exp(s) for z, m, s in zip((X, Y), means, log_sds))
    return -(x**2 + y**2) / 2


def kl(a, b):
    return kb.kl(a, b, form="logits", axis=(0, 1))


def fit(divergence, start, steps=200, rate=0.3):
    """Means and standard deviations of the Q at the bottom of `divergence`, downhill from a unit normal at `start`."""
    slope = jax.jit(jax.grad(lambda parameters: divergence(log_mean_field(*parameters))))
    parameters = jnp.array([start, (0.0, 0.0)])
    for _ in range(steps):
        parameters -= rate * slope(parameters)
    means, log_sds = parameters
    return means, jnp.exp(log_sds)


def main(plot=None):
    """For each fit: the means and standard deviations of Q, KL(P‖Q) and KL(Q‖P)."""
    p = log_target()
    fits = {
        "KL(P‖Q)": fit(lambda q: kl(p, q), start=(1.0, 0.0)),
        "KL(Q‖P), from the right": fit(lambda q: kl(q, p), start=(1.0, 0.0)),
        "KL(Q‖P), from the left": fit(lambda q: kl(q, p), start=(-1.0, 0.0)),
    }
    results = {}
    print(f"{'Minimised':24}  {'means of Q':>14}  {'sds of Q':>11}  KL(P‖Q)  KL(Q‖P)")
    for name, (means, sds) in fits.items():
        q = log_mean_field(means, jnp.log(sds))
        results[name] = [x.tolist() for x in (means, sds, kl(p, q), kl(q, p))]
        both, spread = (", ".join(f"{x:{sign}.2f}" for x in pair) for pair, sign in ((means, "+"), (sds, "")))
        print(f"{name:24}  {both:>14}  {spread:>11}  {kl(p, q):7.2f}  {kl(q, p):7.2f}")
    if plot:
        draw(p, fits, plot)
    return results


def draw(p, fits, file):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 4.6), sharey=True, layout="constrained")
    covering, *seeking = fits.items()
    for axis, title, shown in zip(axes, ("Mass-covering: KL(P‖Q) minimised", "Mode-seeking: KL(Q‖P) minimised"), ([covering], seeking)):
        axis.contourf(X, Y, jnp.exp(p - p.max()), levels=[0.02, 0.1, 0.25, 0.5, 0.75, 1.0], cmap="Greys", alpha=0.7)
        for (name, (means, sds)), colour in zip(shown, ("tab:red", "tab:blue")):
            q = jnp.exp(log_mean_field(means, jnp.log(sds)))
            axis.contour(X, Y, q, levels=[0.135, 0.607], colors=colour)  # one and two standard deviations
            axis.plot([], [], color=colour, label="Q" + name.partition(",")[2])
        axis.fill([], [], color="darkgrey", label="P")
        axis.set(xlabel="x", title=title, aspect="equal", xlim=(-5.5, 5.5), ylim=(-5.5, 5.5))
        axis.legend(frameon=False, loc="upper left")
    axes[0].set_ylabel("y")
    figure.savefig(file, dpi=100, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="write the picture there")
    results = main(**vars(parser.parse_args()))

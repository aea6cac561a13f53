"""A variational autoencoder on small pictures of a disc, with the KL of normal distributions as the second half of its loss.

    python examples/vae.py
    python examples/vae.py --plot vae.png

An encoder turns a picture x into a normal distribution q(z|x) over two latent numbers z, a decoder turns z into a probability for each
pixel. Training raises the evidence lower bound, a bound on log p(x):

    ELBO = E[log p(x|z)] − KL(q(z|x) ‖ N(0, 1)),    z from q(z|x).
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import kullback as kb

SIDE, LATENT = 8, 2


def discs(count, generator):
    """Pictures of SIDE x SIDE pixels, 1 inside a disc that lies anywhere and 0 outside."""
    centre = 0.5 + (SIDE - 2) * torch.rand(count, 2, 1, generator=generator, dtype=torch.float64)
    distance = torch.arange(SIDE) - centre
    return (distance[:, 0, :, None] ** 2 + distance[:, 1, None, :] ** 2 < 2.0**2).double().flatten(1)


def gaussian_kl(mean, log_var):
    """KL(N(mean, var) ‖ N(0, 1)), summed over the last axis: ½ Σ (mean² + var − 1 − log var).

    Written out by hand: kullback's `kl` takes arrays of probabilities today, and distribution objects later.
    """
    return 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(-1)


def kl_on_a_grid(mean, log_var):
    """The same from kullback: both densities, at 4001 points on a line, are two distributions over 4001 categories."""
    z = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    log_q = -((z - mean[..., None]) ** 2) / (2 * log_var.exp()[..., None])
    return kb.kl(log_q, -(z**2) / 2, form="logits").sum(-1)


class VAE(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIDE**2, hidden), nn.Tanh(), nn.Linear(hidden, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, hidden), nn.Tanh(), nn.Linear(hidden, SIDE**2))

    def forward(self, x, noise):
        mean, log_var = self.encoder(x).chunk(2, dim=-1)
        z = mean + (log_var / 2).exp() * noise
        log_likelihood = -binary_cross_entropy_with_logits(self.decoder(z), x, reduction="none").sum(-1)
        return log_likelihood, mean, log_var


def main(plot=None, steps=300):
    """The ELBO, its two halves, at every step; and the Gaussian KL of one picture, by formula and on a grid."""
    generator = torch.Generator().manual_seed(0)
    x = discs(200, generator)
    with torch.random.fork_rng(devices=[]):  # nn.Linear draws from the global generator
        torch.manual_seed(0)
        model = VAE().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    history = []
    print("step    ELBO = log-likelihood −  KL      (nats a picture)")
    for step in range(steps + 1):
        noise = torch.randn(len(x), LATENT, generator=generator, dtype=torch.float64)
        log_likelihood, mean, log_var = model(x, noise)
        log_likelihood, divergence = log_likelihood.mean(), gaussian_kl(mean, log_var).mean()
        elbo = log_likelihood - divergence
        optimizer.zero_grad()
        (-elbo).backward()
        optimizer.step()
        history.append((elbo.item(), log_likelihood.item(), divergence.item()))
        if step % 50 == 0:
            print(f"{step:4}  {elbo:6.1f}         {log_likelihood:6.1f}     {divergence:4.1f}")
    with torch.no_grad():
        by_formula, by_grid = (f(mean[0], log_var[0]).item() for f in (gaussian_kl, kl_on_a_grid))
        print(f"\nThe KL of one picture: {by_formula:.4f} by the formula, {by_grid:.4f} by kullback on a grid")
        if plot:
            draw(history, model, plot)
    return history, (by_formula, by_grid)


def draw(history, model, file):
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for values, name in zip(zip(*history), ("ELBO", "log-likelihood", "KL")):
        left.plot(values, label=name)
    left.set(xlabel="step", ylabel="nats a picture", title="The bound, as it rises")
    left.legend(frameon=False)
    across = torch.linspace(-2, 2, 7, dtype=torch.float64)
    z = torch.cartesian_prod(-across, across)
    pictures = model.decoder(z).sigmoid().reshape(7, 7, SIDE, SIDE)
    pictures = nn.functional.pad(pictures, (0, 1, 0, 1), value=0.3)  # a line between them
    right.imshow(pictures.transpose(1, 2).reshape(7 * (SIDE + 1), -1).numpy(), cmap="Greys", extent=(-2.3, 2.3, -2.3, 2.3))
    right.set(xlabel="$z_2$", ylabel="$z_1$", title="What the decoder draws at z")
    figure.savefig(file, dpi=100, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="write the picture there")
    torch.set_num_threads(1)  # a network this small is slower on more
    results = main(**vars(parser.parse_args()))

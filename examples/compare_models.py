"""A model and its 4-bit copy, compared while they run, and once more from files.

A small PyTorch network predicts each character of a text from the four before it. Its weights are rounded to 4 bits a number, and both
models read on. `kullback.Comparison` takes their logits batch by batch; no dump is needed. `--write FOLDER` writes the same logits as
shards, which `kullback compare FOLDER/reference FOLDER/quantised` reads.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import kullback as kb

TEXT = " ".join((Path(__file__).resolve().parents[1] / "LICENSE").read_text().lower().split())
WINDOW, TRAINED_ON, SHARD = 4, 1000, 160


def windows(text):
    """The four characters before each, and that character, as numbers."""
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(c) for c in text])
    return codes.unfold(0, WINDOW, 1)[:-1], codes[WINDOW:], len(alphabet)


def train(before, after, categories, steps=30):
    torch.manual_seed(0)
    layers = nn.Embedding(categories, 12), nn.Flatten(), nn.Linear(12 * WINDOW, 48), nn.Tanh(), nn.Linear(48, categories)
    model = nn.Sequential(*layers).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(before), after).backward()
        optimiser.step()
    return model


def rounded(model, categories, bits=4):
    """A copy whose weights take 2^bits values a row."""
    copy = train(torch.zeros(1, WINDOW, dtype=torch.long), torch.zeros(1, dtype=torch.long), categories, steps=0)
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in copy.parameters():
            if weight.ndim == 2:
                step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
                weight.copy_((weight / step).round() * step)
    return copy


def main(plot=None, write=None):
    before, after, categories = windows(TEXT)
    model = train(before[:TRAINED_ON], after[:TRAINED_ON], categories)
    small = rounded(model, categories)
    before, after = before[TRAINED_ON:], after[TRAINED_ON:]

    seen = kb.Comparison()
    shards = []
    with torch.no_grad():
        for context, token in zip(before.split(SHARD), after.split(SHARD)):
            p, q = model(context), small(context)
            seen.update(p, q, form="logits", tokens=token)
            shards.append((p, q, token))
    result = seen.result()

    print(f"{result.rows} characters of {result.categories} kinds")
    print(f"KL(model‖4 bits)   {result.kl_pq.mean:.4f} nats a character, median {result.kl_pq.median:.4f}")
    print(f"same guess         {result.same_top.value:.1%}")
    print(f"perplexity         {result.perplexity.p:.2f} and {result.perplexity.q:.2f}")
    print("worst              ", end="")
    print(*(f"'{TEXT[TRAINED_ON + w.row : TRAINED_ON + w.row + WINDOW]}' → {w.kl_pq:.2f}" for w in result.worst[:3]), sep=", ")
    if write:
        for i, (p, q, token) in enumerate(shards):
            for name, logits in (("reference", p), ("quantised", q)):
                folder = Path(write) / name
                folder.mkdir(parents=True, exist_ok=True)
                np.savez(folder / f"{i}.npz", logits=logits.float().numpy(), tokens=token.numpy().astype(np.int32))
    if plot:
        result.plot().savefig(plot, dpi=90, facecolor="white")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="write the pictures there")
    parser.add_argument("--write", metavar="FOLDER", help="write both models' logits there, as shards")
    torch.set_num_threads(1)  # a network this small is slower on more
    result = main(**vars(parser.parse_args()))

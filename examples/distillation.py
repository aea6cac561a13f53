"""Distillation with temperature: a student learns a class of which it has never seen an example.

    python examples/distillation.py
    python examples/distillation.py --plot distillation.png

Six classes lie in a ring. The teacher has seen them all; the student's examples hold none of class 0 (the omitted digit of Hinton, Vinyals
and Dean, "Distilling the Knowledge in a Neural Network", 2015). From labels it cannot know that there is a class 0. From the teacher's
probabilities it can, but those are all but 0 and 1; a temperature above 1 brings out what the teacher knows about the other classes.
"""

import argparse

import torch
from torch import nn

from kullback.torch import KLLoss

CLASSES, MISSING = 6, 0


def ring(count, generator):
    """Points in the plane around CLASSES corners of a ring, and which corner each belongs to."""
    label = torch.randint(CLASSES, (count,), generator=generator)
    angle = 2 * torch.pi * label.double() / CLASSES
    corner = torch.stack([angle.cos(), angle.sin()], dim=-1)
    return corner + 0.15 * torch.randn(count, 2, generator=generator, dtype=torch.float64), label


def network(hidden, seed):
    with torch.random.fork_rng(devices=[]):  # nn.Linear draws from the global generator
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES)).double()


def train(model, loss, steps=200):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    return model


def distilled(x, teacher_logits, temperature):
    # The gradient falls with T². scale_t2 multiplies by T²: the learning rate, and the share of another loss, may stay as they are.
    loss = KLLoss(temperature=temperature, scale_t2=True)
    return lambda model: loss(student=model(x), teacher=teacher_logits)


def gradient_sizes(student_logits, teacher_logits, temperature):
    """Size of the gradient at the student's logits, without and with T²."""
    found = []
    for scale_t2 in (False, True):
        logits = student_logits.detach().requires_grad_()
        KLLoss(temperature=temperature, scale_t2=scale_t2, reduction="sum")(student=logits, teacher=teacher_logits).backward()
        found.append(logits.grad.norm(dim=-1).mean().item())
    return found


def main(plot=None, temperatures=(1.0, 2.0, 4.0, 8.0), students=2, seed=0):
    """For each way to learn: accuracy, that on the missing class, KL(teacher‖student). And sizes of the gradient at some temperatures."""
    generator = torch.Generator().manual_seed(seed)
    (x, label), (test_x, test_label) = ring(500, generator), ring(500, generator)
    teacher = train(network(32, seed=0), lambda model: nn.functional.cross_entropy(model(x), label))
    x, label = x[label != MISSING], label[label != MISSING]
    with torch.no_grad():
        teacher_logits, test_logits = teacher(x), teacher(test_x)

    def judge(*models):
        with torch.no_grad():
            outputs = torch.stack([model(test_x) for model in models])
            right = (outputs.argmax(-1) == test_label).double()
            # Both as they are, at temperature 1, whatever the student was trained at.
            divergence = KLLoss()(student=outputs, teacher=test_logits)
        return right.mean().item(), right[:, test_label == MISSING].mean().item(), divergence.item()

    ways = {"labels": lambda model: nn.functional.cross_entropy(model(x), label)}
    ways |= {f"teacher, T = {t:g}": distilled(x, teacher_logits, t) for t in temperatures}
    results, shown = {"the teacher": judge(teacher)}, {"the teacher": teacher}
    print("Learned from       accuracy   on class 0   KL(teacher‖student)")
    for name, loss in ways.items():
        models = [train(network(8, seed=1 + i), loss) for i in range(students)]
        results[name], shown[name] = judge(*models), models[0]
        accuracy, missing, divergence = results[name]
        print(f"{name:17} {accuracy:9.0%} {missing:12.0%} {divergence:21.2f}")
    accuracy, missing, _ = results["the teacher"]
    print(f"{'(the teacher)':17} {accuracy:9.0%} {missing:12.0%}")

    untrained = network(8, seed=1)(x)
    sizes = {t: gradient_sizes(untrained, teacher_logits, t) for t in (1.0, 4.0, 16.0, 64.0)}
    print("\nSize of the gradient at the student's logits, before training")
    print("temperature", *(f"{t:8g}" for t in sizes))
    for i, name in enumerate(("without T²", "with T²")):
        print(f"{name:11}", *(f"{size[i]:8.4f}" for size in sizes.values()))
    if plot:
        draw(shown, x, label, plot)
    return results, sizes


def draw(models, x, label, file):
    import matplotlib.pyplot as plt

    names = ["the teacher", "labels", "teacher, T = 1", "teacher, T = 8"]
    figure, axes = plt.subplots(1, len(names), figsize=(11, 3.2), sharey=True, layout="constrained")
    line = torch.linspace(-1.8, 1.8, 150, dtype=torch.float64)
    plane = torch.cartesian_prod(line, line)
    colours = plt.get_cmap("Set2", 8)
    for axis, name in zip(axes, names):
        with torch.no_grad():
            region = models[name](plane).argmax(-1).reshape(150, 150).T.numpy()
        axis.imshow(region, origin="lower", extent=(-1.8, 1.8, -1.8, 1.8), cmap=colours, vmin=0, vmax=7, interpolation="nearest")
        if name != "the teacher":
            axis.plot(*x[::4].T.numpy(), ".", color="black", markersize=1.5)
        axis.set(xlabel="x", title=name if name == "the teacher" else f"from {name}")
        axis.text(1.15, 0, "0", fontsize="large", fontweight="bold", horizontalalignment="center", verticalalignment="center")
    axes[0].set_ylabel("y")
    figure.savefig(file, dpi=90, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="write the picture there")
    torch.set_num_threads(1)  # a network this small is slower on more
    results = main(**vars(parser.parse_args()))

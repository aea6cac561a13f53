"""`kl_loss` on ranks that hold slices of the vocabulary, one line a measurement: run by test_parallel.py, in processes of their own.

    python parallel_script.py WORLD [IMPL [DEVICE]]

Truth is the definition in float64 on whole rows: KL 1e-8 leaves 8 of its 16 digits.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from kullback.losses import kl_loss, linear, linear_kl

MIX = 0.3
DIRECTIONS = ("forward", "reverse", "js", "skew", "reverse_skew")
CUTS = {2: (0, 120, 300), 4: (0, 7, 200, 200, 300)}  # unequal, and one rank of four has nothing
WEIGHTS = torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 0.5]])
TEMPERATURES = torch.tensor([[1.0, 2.0, 0.5], [1.0, 3.0, 1.5]])


def truth(student, teacher, direction, temperature=1.0):
    log_s, log_t = (torch.log_softmax(x.double() / temperature, -1) for x in (student, teacher))

    def kl(log_p, log_q):
        there = log_p > -math.inf
        return torch.where(there, log_p.exp() * (torch.where(there, log_p, 0.0) - torch.where(there, log_q, 0.0)), 0.0).sum(-1)

    def mixed(log_p, log_q):
        return torch.logaddexp(log_p + math.log(MIX), log_q + math.log1p(-MIX))

    return {
        "forward": lambda: kl(log_t, log_s),
        "reverse": lambda: kl(log_s, log_t),
        "js": lambda: MIX * kl(log_t, mixed(log_t, log_s)) + (1 - MIX) * kl(log_s, mixed(log_t, log_s)),
        "skew": lambda: kl(log_t, mixed(log_t, log_s)),
        "reverse_skew": lambda: kl(log_s, mixed(log_s, log_t)),
    }[direction]()


def logits(distance, dtype, shape=(2, 3, 300)):
    generator = torch.Generator().manual_seed(3)
    teacher = (2 * torch.randn(shape, generator=generator)).to(dtype)
    student = (teacher.double() + distance * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
    return student, teacher


def options(direction):
    return {"direction": direction} | ({} if direction in ("forward", "reverse") else {"mix": MIX})


def norms(found, expected):
    """The worst row's relative error, by norm."""
    expected = expected.double()
    return float(((found.double().cpu() - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


class Rank:
    def __init__(self, rank, world, impl, device):
        self.rank, self.world, self.impl, self.device = rank, world, impl, device
        self.columns = slice(CUTS[world][rank], CUTS[world][rank + 1])

    def own(self, x):
        return x[..., self.columns].clone().to(self.device)

    def say(self, case, *numbers):
        # One write, so that lines of several ranks do not mix.
        os.write(1, ("|".join([case, str(self.world), str(self.rank), *map(str, numbers)]) + "\n").encode())

    def loss(self, student, teacher, **given):
        return kl_loss(student=student, teacher=teacher, group=dist.group.WORLD, impl=self.impl, **given)

    def against_truth(self, case, student, teacher, direction, temperature=1.0, weights=None, reduction="none", edit=None):
        """Value and gradients to both, against float64 on whole rows, and against the same call on one device."""
        whole = [x.double().clone().requires_grad_() for x in (student, teacher)]
        expected = truth(*whole, direction, torch.as_tensor(temperature).double()[..., None])
        upstream = torch.linspace(-1.0, 2.0, expected.numel()).reshape(expected.shape)
        if reduction != "none":
            w = torch.ones_like(expected) if weights is None else weights.double()
            total = (expected * w).sum()
            expected = {"mean": total / w.sum(), "sum": total, "batchmean": total / expected.shape[0]}[reduction]
            upstream = torch.tensor(3.0)
        expected.backward(upstream.double())
        if edit is not None:  # what has weight 0 may hold anything
            student = edit(student)
        alone = [x.clone().requires_grad_() for x in (student, teacher)]
        given = {"temperature": temperature, "weights": weights, "reduction": reduction, **options(direction)}
        single = kl_loss(student=alone[0], teacher=alone[1], impl="array", **given)
        single.backward(upstream)
        own = [self.own(x).requires_grad_() for x in (student, teacher)]
        found = self.loss(*own, **{k: x.to(self.device) if torch.is_tensor(x) else x for k, x in given.items()})
        found.backward(upstream.to(found.device))
        value = float(((found.detach().double().cpu() - expected.detach()).abs() / expected.detach()).max())
        beside = float(((found.detach().cpu() - single.detach()).abs() / single.detach()).max())
        counted = slice(None) if weights is None else weights != 0
        slopes = []
        for x, e, s in zip(own, whole, alone):
            grad = torch.zeros(x.shape[:-1] + (300,), dtype=torch.float64)
            # Other columns exact, so that the norm is that of a row.
            grad.copy_(e.grad)
            grad[..., self.columns] = x.grad.double().cpu()
            beside_row = s.grad.double().clone()
            beside_row[..., self.columns] = x.grad.double().cpu()
            slopes += [norms(grad[counted], e.grad[counted]), norms(beside_row[counted], s.grad[counted])]
            if weights is not None:
                assert (x.grad[(weights == 0).to(x.device)] == 0).all()
        self.say(case, value, beside, max(slopes[0::2]), max(slopes[1::2]), float(expected.detach().max()))


def run(rank, world, impl, device, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"file://{file}")
    try:
        measure(Rank(rank, world, impl, device))
    finally:
        dist.destroy_process_group()


def measure(r):
    if r.impl == "triton":
        measure_kernels(r)
        return
    for direction in DIRECTIONS:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            r.against_truth(f"{direction} {dtype} apart", *logits(0.5, dtype), direction, temperature=2.0)
        r.against_truth(f"{direction} torch.float32 close", *logits(1e-4, torch.float32), direction)
        student, teacher = logits(0.01, torch.float32)
        r.against_truth(f"{direction} torch.float32 shifted", student + 50, teacher, direction)
    for reduction in ("mean", "sum", "batchmean"):
        weighted(r, reduction)
        r.against_truth(f"{reduction} torch.float32 plain", *logits(0.1, torch.float32), "js", reduction=reduction)
    edges(r, DIRECTIONS)
    collectives(r)
    linears(r, DIRECTIONS)
    mistakes(r)
    dtensors(r)


def measure_kernels(r):
    """Less of the same: kernels differ in the arithmetic of one rank, and without a GPU are interpreted. Reverse is forward the other way
    round for them."""
    for direction in ("forward", "js", "skew"):
        r.against_truth(f"{direction} torch.bfloat16 apart", *logits(0.5, torch.bfloat16), direction, temperature=2.0)
        r.against_truth(f"{direction} torch.float32 close", *logits(1e-4, torch.float32), direction)
    weighted(r, "mean")
    edges(r, ("forward",))
    linears(r, ("js",))


def weighted(r, reduction):
    r.against_truth(
        f"{reduction} torch.float32 weights", *logits(0.1, torch.float32), "forward", temperature=TEMPERATURES, weights=WEIGHTS,
        reduction=reduction, edit=lambda x: torch.where((WEIGHTS == 0)[..., None], math.nan, x),
    )  # fmt: skip


def edges(r, directions):
    """Absent categories, rows that are no distributions, and `valid`."""
    student, teacher = logits(0.5, torch.float32)
    student[..., 250:], teacher[..., 250:] = -math.inf, -math.inf
    teacher[0, 0, 3] = -math.inf
    for direction in directions:
        own = [r.own(x).requires_grad_() for x in (student, teacher)]
        found = r.loss(*own, reduction="none", **options(direction))
        expected = truth(student, teacher, direction)
        if direction == "reverse":  # the teacher lacks what the student has
            assert math.isinf(found[0, 0])
            assert math.isinf(expected[0, 0])
        else:
            found.sum().backward()
            assert all(torch.isfinite(x.grad).all() for x in own), direction
        r.say(f"absent {direction}", float(((found.detach().cpu().double() - expected) / expected).abs().nan_to_num(0.0).max()))
    padded = r.loss(*(torch.where(torch.isinf(r.own(x)), 7.0, r.own(x)) for x in logits(0.5, torch.float32)), reduction="none")
    whole = slice(0, 300)
    plain = logits(0.5, torch.float32)
    junk = [torch.cat([r.own(x), torch.full((2, 3, 5), 9.0, device=r.device)], -1) for x in plain]  # five of padding on each rank
    valid = r.loss(*junk, reduction="none", valid=r.columns.stop - r.columns.start)
    r.say(
        "valid",
        float((valid / padded - 1).abs().max()),
        float((padded.cpu() / truth(*(x[..., whole] for x in plain), "forward") - 1).abs().max()),
    )
    student, teacher = logits(0.5, torch.float32)
    student[0, 0, 5], student[0, 1], teacher[1, 0, 290] = math.nan, -math.inf, math.inf
    found = r.loss(r.own(student), r.own(teacher), reduction="none").cpu()
    r.say(
        "invalid",
        " ".join(str(bool(x)) for x in torch.isnan(found).flatten()),
        float(abs(found[1, 2] / truth(student, teacher, "forward")[1, 2] - 1)),
    )


def linears(r, directions):
    """`linear_kl`, in chunks of 2 tokens: rows of the weights on each rank, all hidden states on all."""
    generator = torch.Generator().manual_seed(4)
    hidden, teacher_hidden = (torch.randn(2, 3, 8, generator=generator) for _ in range(2))
    weight, teacher_weight = (torch.randn(300, 8, generator=generator) for _ in range(2))
    bias = torch.randn(300, generator=generator)
    # No rank without any category, as in CUTS: that raises.
    cuts = {2: CUTS[2], 4: (0, 7, 190, 200, 300)}[r.world]
    columns = slice(cuts[r.rank], cuts[r.rank + 1])
    room, linear.BUDGET = linear.BUDGET, 2 * 190 * 4 * 16 if r.impl == "array" else 2 * 180 * 4 * 4
    try:
        for direction in directions:
            exact = [x.double().requires_grad_() for x in (hidden, weight, bias)]
            given_teacher = teacher_hidden @ teacher_weight.T
            logits = 5 * torch.tanh((exact[0] @ exact[1].T + exact[2]) / 5)
            each = truth(logits, 5 * torch.tanh(given_teacher.double() / 5), direction, 2.0)
            ((each * WEIGHTS).sum() / WEIGHTS.sum()).mul(3.0).backward()
            for name in ("logits", "hidden"):
                own = [x.clone().to(r.device).requires_grad_() for x in (hidden, weight[columns], bias[columns])]
                if name == "logits":
                    teacher = {"teacher_logits": given_teacher[..., columns].to(r.device)}
                else:
                    teacher = {"teacher_hidden": teacher_hidden.to(r.device), "teacher_weight": teacher_weight[columns].to(r.device)}
                found = linear_kl(
                    hidden=own[0], weight=own[1], bias=own[2], weights=WEIGHTS.to(r.device), temperature=2.0, softcap=5.0,
                    group=dist.group.WORLD, impl=r.impl, **teacher, **options(direction),
                )  # fmt: skip
                (3 * found).backward()
                errors = [float(abs(found.detach().double().cpu() * WEIGHTS.sum() / (each * WEIGHTS).sum().detach() - 1))]
                for x, e in zip(own, (exact[0].grad, exact[1].grad[columns], exact[2].grad[columns])):
                    errors.append(float((x.grad.double().cpu() - e).norm() / e.norm()))
                r.say(f"linear {name} {direction}", *errors)
    finally:
        linear.BUDGET = room


def collectives(r):
    """What travels, and when: numbers in each all-reduce of forward and of backward, and every collective PyTorch saw."""
    original = dist.all_reduce
    for direction in ("forward", "js", "skew"):
        sizes = []

        def counted(x, *rest, _sizes=sizes, **given):
            _sizes.append(x.numel())
            return original(x, *rest, **given)

        dist.all_reduce = counted
        try:
            own = [r.own(x).requires_grad_() for x in logits(0.5, torch.float32)]
            with CommDebugMode() as seen:
                value = r.loss(*own, **options(direction))
                forward = len(sizes)
                value.backward()
        finally:
            dist.all_reduce = original
        r.say(f"collectives {direction}", " ".join(map(str, sizes)), len(sizes) - forward, seen.get_total_counts())


def raises(error, words, function):
    try:
        function()
    except error as found:
        if words in str(found):
            return
        raise
    raise AssertionError(f"nothing raised: {words}")


def mistakes(r):
    student, teacher = (r.own(x) for x in logits(0.5, torch.float32))
    raises(
        ValueError,
        "called differently; this one with logits of batch shape",
        lambda: r.loss(student[:, : 1 + r.rank], teacher[:, : 1 + r.rank]),
    )
    raises(ValueError, "called differently", lambda: r.loss(student, teacher, direction=DIRECTIONS[min(r.rank, 1)]))
    raises(ValueError, "batches have different shapes", lambda: r.loss(student, teacher[:1]))
    raises(TypeError, "group is 3", lambda: kl_loss(student=student, teacher=teacher, group=3))
    raises(ValueError, "the temperature learns", lambda: r.loss(student, teacher, temperature=torch.ones((), requires_grad=True)))
    student.requires_grad_()
    raises(RuntimeError, "no second derivatives", lambda: torch.autograd.grad(r.loss(student, teacher), student, create_graph=True))
    r.say("mistakes", "all raised")


def dtensors(r):
    mesh = init_device_mesh("cpu", (r.world,))
    layouts = {"categories": (mesh, [Shard(-1)]), "batch": (mesh, [Shard(0)]), "replicated": (mesh, [Replicate()])}
    if r.world == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        layouts |= {"both": (square, [Shard(0), Shard(-1)]), "categories twice": (square, [Shard(2), Shard(2)])}
    student, teacher = logits(0.1, torch.float32, (3, 2, 301))  # divisible by nothing
    weights = torch.tensor([[1.0, 2.0], [0.0, 1.0], [1.0, 0.5]])
    for name, (where, placements) in layouts.items():
        for direction, reduction in (("forward", "mean"), ("js", "sum"), ("reverse", "none")):
            whole = student.double().requires_grad_()
            each = truth(whole[..., :299], teacher[..., :299], direction) * weights
            expected = {"mean": each.sum() / weights.sum(), "sum": each.sum(), "none": each}[reduction]
            expected.sum().backward()
            x, y = (distribute_tensor(z, where, placements) for z in (student, teacher))
            x.requires_grad_()
            found = kl_loss(student=x, teacher=y, weights=weights, reduction=reduction, valid=299, **options(direction))
            found.sum().backward()
            assert isinstance(found, DTensor)
            assert x.grad.placements == x.placements
            if reduction != "none":
                assert all(p.is_replicate() for p in found.placements)
            value = (found.detach().full_tensor().double() - expected.detach()).abs()
            there = expected.detach() != 0
            counted = weights != 0
            r.say(
                f"DTensor {name} {direction}", float((value[there] / expected.detach()[there]).max()),
                norms(x.grad.full_tensor()[counted], whole.grad[counted]),
            )  # fmt: skip
    plain = kl_loss(
        student=distribute_tensor(student, mesh, [Shard(-1)]), teacher=distribute_tensor(teacher, mesh, [Shard(-1)]), reduction="mean"
    )
    assert abs(float(plain.full_tensor()) / float(truth(student, teacher, "forward").mean()) - 1) < 1e-6
    x = distribute_tensor(student, mesh, [Shard(-1)])
    raises(ValueError, "redistribute one of them", lambda: kl_loss(student=x, teacher=distribute_tensor(teacher, mesh, [Replicate()])))
    raises(TypeError, "teacher is a Tensor and the other a DTensor", lambda: kl_loss(student=x, teacher=teacher))
    partial = DTensor.from_local(student, mesh, [Partial()], run_check=False)
    raises(ValueError, "sums not yet taken", lambda: kl_loss(student=partial, teacher=partial))
    short = distribute_tensor(teacher[..., :300].contiguous(), mesh, [Shard(-1)])
    raises(ValueError, "pad the shorter one", lambda: kl_loss(student=x, teacher=short))
    raises(ValueError, "DTensors know theirs", lambda: kl_loss(student=x, teacher=x, group=dist.group.WORLD))
    raises(ValueError, "one number beside DTensors", lambda: kl_loss(student=x, teacher=x, temperature=torch.ones(3, 2)))
    r.say("DTensor mistakes", "all raised")


if __name__ == "__main__":
    world, impl, device = int(sys.argv[1]), (sys.argv[2:] or ["array"])[0], (sys.argv[3:] or ["cpu"])[0]
    with tempfile.TemporaryDirectory() as folder:
        # Forked where possible: PyTorch is imported once.
        mp.start_processes(
            run, (world, impl, device, os.path.join(folder, "store")), world, start_method="fork" if device == "cpu" else "spawn"
        )

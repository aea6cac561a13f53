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

from kullback.losses import TopK, kl_loss, linear, linear_kl

MIX = 0.3
DIRECTIONS = ("forward", "reverse", "js", "skew", "reverse_skew")
CUTS = {2: (0, 120, 300), 4: (0, 7, 200, 200, 300)}  # unequal, and one rank of four has nothing
WEIGHTS = torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 0.5]])
SPARSE = [
    *(("bucket", direction) for direction in DIRECTIONS),
    ("renormalize", "reverse"), ("renormalize_teacher", "skew"), ("uniform", "forward"), ("uniform", "reverse"), ("ignore", "forward"),
]  # fmt: skip
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
    sparse(r, SPARSE)
    temperatures_that_learn(r)
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
    sparse(r, [("bucket", "forward"), ("bucket", "js"), ("renormalize", "reverse"), ("ignore", "forward")])


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
    student[1, 1, 7], teacher[1, 1, 7] = -math.inf, -300.0
    found = r.loss(r.own(student), r.own(teacher), reduction="none").cpu()
    assert found[1, 1] == math.inf  # what only Q lacks, however small p is
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


def sparse_truth(student, at, logs, tail, direction):
    """By definition, in float64, on whole rows."""
    q, p = student.double().softmax(-1), logs.double().exp()
    chosen, mass = q.gather(-1, at), p.sum(-1, keepdim=True)
    if tail == "ignore":
        return (p * (p / chosen).log()).sum(-1)
    if tail == "uniform":
        t, s = ((1 - mass) / (q.shape[-1] - at.shape[-1])).expand(q.shape).scatter(-1, at, p), q
    elif tail == "renormalize":
        t, s = p / mass, chosen / chosen.sum(-1, keepdim=True)
    else:
        rest = q.scatter(-1, at, 0.0).sum(-1, keepdim=True)
        t, s = torch.cat([p, 1 - mass] if tail == "bucket" else [p / mass, 0 * mass], -1), torch.cat([chosen, rest], -1)

    def kl(a, b):
        return torch.where(a > 0, a * (torch.where(a > 0, a, 1.0) / b).log(), 0.0).sum(-1)

    if direction == "js":
        m = MIX * t + (1 - MIX) * s
        return MIX * kl(t, m) + (1 - MIX) * kl(s, m)
    first, second = (t, s) if direction in ("forward", "skew") else (s, t)
    return kl(first, MIX * first + (1 - MIX) * second if "skew" in direction else second)


def sparse(r, cases):
    """A teacher of whom the likeliest 5 of 300 are known, in `kl_loss` and `linear_kl`. One row has weight 0 and holds anything."""
    student, teacher = logits(1.0, torch.float32)
    logs, at = (teacher.double() / 2).log_softmax(-1).topk(5)
    junk = torch.where((WEIGHTS == 0)[..., None], math.nan, student)
    at_junk = torch.where((WEIGHTS == 0)[..., None], -100, at)
    for tail, direction in cases:
        whole = student.double().requires_grad_()
        each = sparse_truth(whole / 2, at, logs, tail, direction)
        (5 * (each * WEIGHTS).sum() / WEIGHTS.sum()).backward()
        own = r.own(junk).requires_grad_()
        top = TopK(at_junk.to(r.device), logs.to(r.device), tail, temperature=2.0)
        found = r.loss(own, top, temperature=2.0, weights=WEIGHTS.to(r.device), **options(direction))
        (5 * found).backward()
        expected = ((each * WEIGHTS).sum() / WEIGHTS.sum()).detach()
        # Other columns exact, so that the norm is that of all.
        grad = whole.grad.clone()
        grad[..., r.columns] = own.grad.double().cpu()
        r.say(f"sparse {tail} {direction}", float(abs(found.detach().cpu() / expected - 1)), norms(grad.flatten(), whole.grad.flatten()))

    generator = torch.Generator().manual_seed(4)
    dtype = torch.float64 if r.impl == "array" else torch.float32
    hidden, weight = (torch.randn(n, 8, generator=generator, dtype=torch.float64).to(dtype) for n in (6, 300))
    cuts = {2: CUTS[2], 4: (0, 7, 190, 200, 300)}[r.world]
    columns = slice(cuts[r.rank], cuts[r.rank + 1])
    logs, at = torch.randn(6, 300, generator=generator, dtype=torch.float64).log_softmax(-1).topk(5)
    room, linear.BUDGET = linear.BUDGET, 2 * 190 * 8 * 16
    try:
        for tail, direction in (("bucket", "forward"), ("uniform", "js"))[: 2 if r.impl == "array" else 1]:
            exact = [x.double().clone().requires_grad_() for x in (hidden, weight)]
            expected = sparse_truth(exact[0] @ exact[1].T, at, logs, tail, direction).mean()
            expected.backward()
            own = [x.clone().to(r.device).requires_grad_() for x in (hidden, weight[columns])]
            top = TopK(at.to(r.device), logs.to(r.device), tail)
            found = linear_kl(hidden=own[0], weight=own[1], teacher=top, group=dist.group.WORLD, impl=r.impl, **options(direction))
            found.backward()
            slopes = [norms(x.grad, e) for x, e in zip(own, (exact[0].grad, exact[1].grad[columns]))]
            r.say(f"sparse linear {tail}", float(abs(found.detach().cpu() / expected.detach() - 1)), max(slopes))
    finally:
        linear.BUDGET = room


def temperatures_that_learn(r):
    """One for all rows, and one a row; the loss is multiplied by the former squared, which learns too."""
    student, teacher = logits(0.5, torch.float32)
    for direction in ("forward", "js", "skew"):
        for name, start in (("one", torch.tensor(1.5)), ("each", TEMPERATURES)):
            scaled = name == "one"
            exact, own = start.double().requires_grad_(), start.clone().requires_grad_()
            each = truth(student, teacher, direction, exact[..., None]) * (exact**2 if scaled else 1.0)
            each.mean().backward()
            logits_here = r.own(student).requires_grad_()
            found = r.loss(logits_here, r.own(teacher), temperature=own, scale_t2=scaled, **options(direction))
            found.backward()
            value = float(abs(found.detach() / each.mean().detach() - 1))
            r.say(f"learns {name} {direction}", value, float((own.grad - exact.grad).norm() / exact.grad.norm()))
            assert logits_here.grad is not None


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
    raises(ValueError, "student has shape (2, 3, ", lambda: r.loss(student, teacher[:1]))
    more = torch.cat([teacher, teacher[..., : 2 * (r.rank == 0)]], -1)  # on one rank; all must raise, and none may wait
    words = f"teacher {more.shape[-1]}, and the rest" if r.rank == 0 else "called differently"
    raises(ValueError, words, lambda: r.loss(student, more))
    hidden, weight = torch.zeros(2, 3, 4), torch.zeros(student.shape[-1], 4)
    words = f"teacher_logits {more.shape[-1]}, and the rest" if r.rank == 0 else "another rank of the group has different numbers"
    raises(ValueError, words, lambda: linear_kl(hidden=hidden, weight=weight, teacher_logits=more, group=dist.group.WORLD))
    raises(TypeError, "group is 3", lambda: kl_loss(student=student, teacher=teacher, group=3))
    learnt = torch.ones((), requires_grad=True)
    raises(
        RuntimeError, "the temperature learns",
        lambda: kl_loss(student=student, teacher=teacher, temperature=learnt, group=dist.group.WORLD, impl="triton"),
    )  # fmt: skip
    top = TopK(torch.zeros(2, 3, 1, dtype=torch.int64), torch.full((2, 3, 1), -1.0))
    raises(ValueError, "called differently", lambda: r.loss(student, top._replace(tail=("bucket", "renormalize")[min(r.rank, 1)])))
    raises(ValueError, "hold 300: categories are 0 to 299", lambda: r.loss(student, top._replace(indices=top.indices + 300)))
    student.requires_grad_()
    for given in (teacher, top):
        raises(
            RuntimeError, "no second derivatives",
            lambda given=given: torch.autograd.grad(r.loss(student, given), student, create_graph=True),
        )  # fmt: skip
    few = 0 if r.rank == r.world - 1 else 2
    hidden, weight = (torch.ones(n, 4, device=student.device) for n in (3, few))
    for given in ({"teacher_logits": torch.ones(3, few, device=student.device)}, {"teacher_hidden": hidden, "teacher_weight": weight}):
        raises(
            ValueError, "a rank of the group has no categories",
            lambda given=given: linear_kl(hidden=hidden, weight=weight, group=dist.group.WORLD, **given),
        )  # fmt: skip
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
    for name, (where, placements) in layouts.items():
        exact, own = (torch.tensor(1.5, dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.float32))
        expected = truth(student, teacher, "forward", exact).mean()
        expected.backward()
        x, y = (distribute_tensor(z, where, placements) for z in (student, teacher))
        found = kl_loss(student=x, teacher=y, temperature=own)
        found.backward()
        r.say(f"DTensor {name} learns", float(abs(found.full_tensor() / expected - 1)), float(abs(own.grad / exact.grad - 1)))
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
    negative = torch.ones(student.shape[:-1])
    negative.view(-1)[1] = -1.0
    raises(ValueError, "weights hold -1 at", lambda: kl_loss(student=x, teacher=x, weights=negative))
    for several in (torch.ones(3, 2), [[1.0, 2.0]] * 3):
        raises(ValueError, "one number beside DTensors", lambda several=several: kl_loss(student=x, teacher=x, temperature=several))
    top = TopK(torch.zeros(3, 2, 1, dtype=torch.int64), torch.full((3, 2, 1), -1.0))
    raises(TypeError, "beside a TopK", lambda: kl_loss(student=x, teacher=top))
    r.say("DTensor mistakes", "all raised")


if __name__ == "__main__":
    world, impl, device = int(sys.argv[1]), (sys.argv[2:] or ["array"])[0], (sys.argv[3:] or ["cpu"])[0]
    if (impl, device) == ("triton", "cpu"):
        import triton_interpreter  # noqa: F401  # makes it faster
    with tempfile.TemporaryDirectory() as folder:
        # Forked where possible: PyTorch is imported once.
        mp.start_processes(
            run, (world, impl, device, os.path.join(folder, "store")), world, start_method="fork" if device == "cpu" else "spawn"
        )

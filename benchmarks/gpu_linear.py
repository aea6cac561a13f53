"""Losses over a vocabulary on a GPU: `losses.linear_kl` in times its matmuls, sparse teachers and `token_terms` in times their bytes.

    python benchmarks/gpu_linear.py            # speed and memory, on a GPU: benchmarks/results/gpu_linear.csv, docs/benchmarks.md
    python benchmarks/gpu_linear.py errors     # of gradients, beside PyTorch's own, anywhere: results/linear_errors.csv, docs/losses.md

bfloat16, loss and gradients. Floors are the three (with a projected teacher four) matmuls of the whole size, one after another; for the
rest, copies that read and write as many bytes. Each is measured in turns with what it is the floor of, since a GPU that has multiplied
matrices for a second does so more slowly than one that begins. Liger is measured where it is installed.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F

from kullback._kernels import linear_torch
from kullback.losses import TopK, kl_loss, linear_kl, token_terms

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
TOKENS, WIDTH, VOCABULARY, K = 8192, 4096, 128256, 64
ODD = 50257  # GPT-2's
Tensor = torch.Tensor


def in_turns(floor: Callable[[], object], step: Callable[[], object], rests: bool = True, rounds: int = 10) -> tuple[float, float]:
    """Medians, in milliseconds, after a second of the same, each as often after the other as after itself. Large matmuls without a rest
    bring the GPU to its power limit, where it lowers its clock; with short ones it goes to and fro, and so do the figures."""
    times: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while len(times[0]) < 2 * rounds:
        marks = [(which, *(torch.cuda.Event(enable_timing=True) for _ in range(2))) for which in (0, 1, 1, 0)]
        for i, (which, start, end) in enumerate(marks):
            if rests:
                torch.cuda.synchronize()
                time.sleep(0.05)
            if rests or i == 0:
                torch.cuda._sleep(20_000_000)  # so that the host is ahead of the GPU, as it is in training
            start.record()
            (floor, step)[which]()
            end.record()
        torch.cuda.synchronize()
        if time.perf_counter() - begun > 1:
            for which, start, end in marks:
                times[which].append(start.elapsed_time(end))
    return statistics.median(times[0]), statistics.median(times[1])


@contextmanager
def planned(plan: tuple[int, int, bool] | None) -> Iterator[None]:
    """Another choice of chunk, block and accumulation than `linear_torch.plan` makes."""
    usual = linear_torch.plan
    if plan is not None:
        linear_torch.plan = lambda *args, **options: linear_torch.Plan(*plan)
    try:
        yield
    finally:
        linear_torch.plan = usual


class Table:
    def __init__(self) -> None:
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        self.machine = {"gpu": torch.cuda.get_device_name(), "driver": driver.stdout.strip(), "torch": torch.__version__}
        self.rows: list[dict[str, object]] = []

    def record(
        self, what: str, floor: Callable[[], object], step: Callable[[], object], gradients: int, share: float = 1.0, rests: bool = True
    ) -> None:  # fmt: skip
        """`gradients`: bytes that are not extra; `share`: the part of the floor's time that is meant."""
        try:
            step()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            extra = torch.cuda.max_memory_allocated() - before - gradients
            found = in_turns(floor, step, rests, 10 if rests else 30)
        except torch.OutOfMemoryError:
            print(f"{what}: out of memory")
            return
        least, ms = share * found[0], found[1]
        self.rows.append({"what": what, "ms": round(ms, 3), "floor_ms": round(least, 3), "times_floor": round(ms / least, 3),
                          "extra_mib": round(extra / 2**20), **self.machine})  # fmt: skip
        print(self.rows[-1], flush=True)

    def write(self) -> None:
        with (RESULTS / "gpu_linear.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, self.rows[0])
            writer.writeheader()
            writer.writerows(self.rows)
        first = self.rows[0]
        lines = [
            f"{first['gpu']}, driver {first['driver']}, PyTorch {first['torch']}; bfloat16, {TOKENS} tokens, width {WIDTH}, "
            f"{VOCABULARY} categories, k = {K}.",
            "",
            "| what | ms | floor, ms | × floor | extra memory, MiB, beside the gradients |",
            "|---|---|---|---|---|",
            *(f"| {r['what']} | {r['ms']} | {r['floor_ms']} | {r['times_floor']} | {r['extra_mib']} |" for r in self.rows),
        ]
        document(HERE.parent / "docs" / "benchmarks.md", "gpu-linear", lines)


def document(path: Path, name: str, lines: list[str]) -> None:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}" + rest.split(end)[1])


def usual(hidden: Tensor, weight: Tensor, teacher: Tensor) -> Tensor:
    return F.kl_div((hidden @ weight.T).float().log_softmax(-1), teacher.float().log_softmax(-1), log_target=True, reduction="batchmean")


def fused_linear(table: Table) -> tuple[Tensor, TopK]:
    hidden = torch.randn(TOKENS, WIDTH, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH, device="cuda") / WIDTH**0.5).bfloat16().requires_grad_()
    teacher_weight = (weight.detach() + 0.1 * torch.randn_like(weight) / WIDTH**0.5).detach()
    teacher = (hidden @ teacher_weight.T).detach()
    h, w = hidden.detach(), weight.detach()
    gradients = 2 * (h.numel() + w.numel())
    logits, to_hidden, to_weight = torch.empty_like(teacher), torch.empty_like(h), torch.empty_like(w)

    def three(w: Tensor = w, logits: Tensor = logits) -> None:
        torch.mm(h, w.T, out=logits)
        torch.mm(logits, w, out=to_hidden)
        torch.mm(logits.T, h, out=to_weight[: w.shape[0]])

    def four() -> None:
        torch.mm(h, teacher_weight.T, out=logits)
        three()

    def grad(loss: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss(), (hidden, weight))

    given = {"hidden": hidden, "weight": weight, "teacher_logits": teacher}
    made = {"hidden": hidden, "weight": weight, "teacher_hidden": h, "teacher_weight": teacher_weight}
    for name, plan in (
        ("linear_kl", None),
        ("linear_kl, float32 sum by 1024 tokens", (1024, 1024, True)),
        ("linear_kl, float32 sum by 4096 tokens (more memory than promised)", (4096, 4096, True)),
        ("linear_kl, one block, projected by 1024 tokens", (1024, TOKENS, False)),
        ("linear_kl, accumulate='weight', by 1024 tokens", (1024, 1024, False)),
    ):
        with planned(plan):
            table.record(name, three, grad(lambda: linear_kl(**given)), gradients)
    table.record("linear_kl, GPU at its power limit", three, grad(lambda: linear_kl(**given)), gradients, rests=False)
    odd = weight.detach()[:ODD].clone().requires_grad_()
    known = teacher[:, :ODD].contiguous()
    table.record(
        f"linear_kl, {ODD} categories", lambda: three(odd.detach(), torch.empty_like(known)),
        lambda: torch.autograd.grad(linear_kl(hidden=hidden, weight=odd, teacher_logits=known), (hidden, odd)),
        2 * (h.numel() + odd.numel()),
    )  # fmt: skip
    for direction in ("reverse", "js"):
        table.record(f"linear_kl, {direction}", three, grad(lambda d=direction: linear_kl(**given, direction=d)), gradients)
    table.record("linear_kl, logit_dtype='float32'", three, grad(lambda: linear_kl(**given, logit_dtype="float32")), gradients)
    table.record("linear_kl, softcap", three, grad(lambda: linear_kl(**given, softcap=30.0)), gradients)
    for name, plan in (
        ("linear_kl, teacher projected", None),
        ("linear_kl, teacher projected, float32 sum by 1024 tokens", (1024, 1024, True)),
        ("linear_kl, teacher projected, one block, by 2048 tokens", (2048, TOKENS, False)),
    ):
        with planned(plan):
            table.record(name, four, grad(lambda: linear_kl(**made)), gradients)
    table.record("linear_kl, teacher projected, GPU at its power limit", four, grad(lambda: linear_kl(**made)), gradients, rests=False)
    top = TopK(*reversed(teacher.float().log_softmax(-1).topk(K)))
    table.record(f"linear_kl, top {K} of the teacher", three, grad(lambda: linear_kl(hidden=hidden, weight=weight, teacher=top)), gradients)
    table.record("PyTorch eager", three, grad(lambda: usual(hidden, weight, teacher)), gradients)
    compiled = torch.compile(usual)
    table.record("torch.compile of it", three, grad(lambda: compiled(hidden, weight, teacher)), gradients)
    try:
        from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

        liger = LigerFusedLinearJSD(jsd_beta=0.0)
        table.record(
            "Liger FusedLinearJSD, β = 0, teacher projected", four, grad(lambda: liger(hidden, weight, h, teacher_weight, None)), gradients
        )
    except ImportError:
        print("Liger is not installed: not measured")
    return teacher, top


def over_logits(table: Table, teacher: Tensor, top: TopK) -> None:
    student = (teacher + 0.3 * torch.randn_like(teacher)).requires_grad_()
    out = torch.empty_like(teacher)
    gradient = 2 * teacher.numel()

    def one() -> object:
        return out.copy_(teacher)

    def two() -> object:
        return torch.add(teacher, student.detach(), out=out)

    table.record(f"kl_loss, top {K} of the teacher (floor: 4 bytes an element)", one,
                 lambda: torch.autograd.grad(kl_loss(student=student, teacher=top), student), gradient)  # fmt: skip
    tokens = torch.randint(0, teacher.shape[1], teacher.shape[:1], device="cuda")

    def ours() -> object:
        terms = token_terms(student, teacher, tokens)
        return torch.autograd.grad((terms.kl + terms.k3).sum(), student)

    def theirs() -> object:
        log_p, log_q = (x.float().log_softmax(-1) for x in (student, teacher))
        logp, logp_ref = (x.gather(1, tokens[:, None])[:, 0] for x in (log_p, log_q))
        k3 = (logp_ref - logp).exp() - 1 - (logp_ref - logp)
        return torch.autograd.grad(((log_p.exp() * (log_p - log_q)).sum(-1) + k3).sum(), student)

    table.record("token_terms: kl and k3 (floor: 6 bytes an element)", two, ours, gradient)
    table.record("the same in PyTorch eager, float32", two, theirs, gradient)
    with torch.no_grad():
        table.record("token_terms, no gradient (floor: 4 bytes an element)", two, lambda: token_terms(student, teacher, tokens), 0, 2 / 3)


def errors() -> None:
    """Norm-wise, against float64 of the same bfloat16 numbers."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens, width, vocabulary = (4096, 1024, 32000) if device == "cuda" else (512, 128, 4000)
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=device).bfloat16()
    weight = (2 * torch.randn(vocabulary, width, device=device) / width**0.5).bfloat16()
    teacher = (hidden @ (weight + 0.5 * torch.randn_like(weight) / width**0.5).T).detach()

    def of(dtype: torch.dtype, loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        inputs = [x.to(dtype, copy=True).requires_grad_() for x in (hidden, weight)]
        value = loss(*inputs)
        return [x.double() for x in (value.detach(), *torch.autograd.grad(value, inputs))]

    def exact(h: Tensor, w: Tensor) -> Tensor:
        return F.kl_div((h @ w.T).log_softmax(-1), teacher.double().log_softmax(-1), log_target=True, reduction="batchmean")

    truth = of(torch.float64, exact)
    chunk = max(128, tokens // 8)
    found = {
        "PyTorch: bfloat16 projection, float32 loss": of(torch.bfloat16, lambda h, w: usual(h, w, teacher)),
        "linear_kl, one block": of(torch.bfloat16, lambda h, w: linear_kl(hidden=h, weight=w, teacher_logits=teacher)),
    }
    wide = of(torch.bfloat16, lambda h, w: linear_kl(hidden=h, weight=w, teacher_logits=teacher, logit_dtype="float32"))
    found["linear_kl, logit_dtype='float32'"] = wide
    for name, plan in (("float32 sum of 8 chunks", (chunk, chunk, True)), ("accumulate='weight', 8 chunks", (chunk, chunk, False))):
        with planned(plan):
            found[f"linear_kl, {name}"] = of(torch.bfloat16, lambda h, w: linear_kl(hidden=h, weight=w, teacher_logits=teacher))
    rows = [
        {
            "what": name,
            **{what: f"{(x - t).norm() / t.norm():.1e}" for what, x, t in zip(("value", "to_hidden", "to_weight"), values, truth)},
        }
        for name, values in found.items()
    ]
    with (RESULTS / "linear_errors.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    lines = [
        f"{tokens} tokens, width {width}, {vocabulary} categories, on a {'GPU' if device == 'cuda' else 'CPU'}.",
        "",
        "| bfloat16 | value | gradient to hidden | to weight |",
        "|---|---|---|---|",
        *("| " + " | ".join(row.values()) + " |" for row in rows),
    ]
    print("\n".join(lines))
    document(HERE.parent / "docs" / "losses.md", "linear-errors", lines)


def speed() -> None:
    torch.manual_seed(0)
    table = Table()
    over_logits(table, *fused_linear(table))
    table.write()


if __name__ == "__main__":
    errors() if sys.argv[1:] == ["errors"] else speed()

"""Speed on a GPU: `losses.kl_loss` beside PyTorch, torch.compile and Liger, in times it takes to read both arrays and write a gradient.

    python benchmarks/gpu.py

Loss and gradient to the student, bfloat16, mean over rows. The floor is torch.add of the two arrays into a third, six bytes an element, in
the same run. Times are the GPU's: the host queues each step while the GPU is still busy, as in training. Writes
benchmarks/results/gpu.csv, which names GPU, driver and versions, and the table in docs/benchmarks.md. Liger is measured where it is
installed.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import triton

from kullback.losses import kl_loss

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "gpu.csv"
DOCS = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- gpu:begin -->", "<!-- gpu:end -->"
SHAPES = [(8192, 128256), (8192, 32000), (8192, 65536), (8192, 151936), (4096, 262144), (1024, 128256), (32768, 32000)]


def milliseconds(function: Callable[[], object], rounds: int = 9) -> float:
    for _ in range(2):
        function()
    times = []
    for _ in range(rounds):
        torch.cuda._sleep(4_000_000)  # so that the host is ahead of the GPU, as it is in training
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def usual(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    log_s, log_t = (F.log_softmax(x.float(), -1) for x in (student, teacher))
    return F.kl_div(log_s, log_t, log_target=True, reduction="batchmean")


def candidates() -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    found = {
        "kullback": lambda s, t: kl_loss(student=s, teacher=t),
        "kullback, reverse": lambda s, t: kl_loss(student=s, teacher=t, direction="reverse"),
        "kullback, js": lambda s, t: kl_loss(student=s, teacher=t, direction="js"),
        "PyTorch eager, float32": usual,
        "torch.compile of it": torch.compile(usual),
    }
    try:
        from liger_kernel.ops.kl_div import LigerKLDivLossFunction

        found["Liger KLDivLoss on log_softmax"] = lambda s, t: LigerKLDivLossFunction.apply(
            F.log_softmax(s.float(), -1), F.log_softmax(t.float(), -1), "batchmean", True
        )
    except ImportError:
        print("Liger is not installed: not measured")
    return found


def measure() -> list[dict[str, object]]:
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "liger": importlib.metadata.version("liger-kernel") if importlib.util.find_spec("liger_kernel") else "",
    }
    return [row | machine for shape in SHAPES for row in measure_shape(*shape)]


def measure_shape(n: int, v: int) -> list[dict[str, object]]:
    teacher = (2 * torch.randn(n, v, device="cuda")).bfloat16()
    student = (teacher + 0.3 * torch.randn_like(teacher)).requires_grad_()
    out = torch.empty_like(teacher)
    floor = milliseconds(lambda: torch.add(teacher, student.detach(), out=out))
    out = None
    rows = []

    def record(name: str, step: Callable[[], object], floor: float) -> None:
        step()
        student.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ms = milliseconds(step)
        extra = (torch.cuda.max_memory_allocated() - before) / 2**30
        rows.append({"what": name, "rows": n, "columns": v, "ms": round(ms, 3), "floor_ms": round(floor, 3),
                     "times_floor": round(ms / floor, 2), "extra_gib": round(extra, 2)})  # fmt: skip
        print(rows[-1], flush=True)

    for name, loss in candidates().items():
        if name == "kullback" or (n, v) == SHAPES[0]:

            def step(loss: Callable[..., torch.Tensor] = loss) -> None:
                student.grad = None
                loss(student, teacher).backward()

            record(name, step, floor)
    with torch.no_grad():
        record("kullback, no gradient (floor: 4 bytes an element)", lambda: kl_loss(student=student, teacher=teacher), floor / 1.5)
    return rows


def write(rows: list[dict[str, object]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def table() -> str:
    with RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    lines = [
        f"{first['gpu']}, driver {first['driver']}, PyTorch {first['torch']}, Triton {first['triton']}, Liger {first['liger']}; bfloat16.",
        "",
        "| what | rows × columns | ms | × floor | extra memory, GiB |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r['what']} | {r['rows']} × {r['columns']} | {r['ms']} | {r['times_floor']} | {r['extra_gib']} |" for r in rows]
    return "\n".join(lines)


def document() -> None:
    text = DOCS.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    DOCS.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    write(measure())
    document()

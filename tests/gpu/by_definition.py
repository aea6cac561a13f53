"""What the tests of kernels over rows share: logits, and divergences of them by definition, in float64."""

from __future__ import annotations

import math
import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DIRECTIONS = ["forward", "reverse", "js", "skew", "reverse_skew"]
MIX = 0.3
# Half of the spacing of numbers next to 1.
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def reference(student, teacher, direction, temperature=1.0):
    """By definition, in float64, which is exact enough: KL 1e-8 leaves 8 digits of float64's 16."""
    log_s, log_t = (torch.log_softmax(x.double() / temperature, -1) for x in (student, teacher))

    def kl(log_p, log_q):
        p = log_p.exp()
        return torch.where(p > 0, p * (log_p - torch.where(p > 0, log_q, 0.0)), 0.0).sum(-1)

    def mixed(log_p, log_q):
        return torch.logaddexp(log_p + math.log(MIX), log_q + math.log1p(-MIX))

    return {
        "forward": lambda: kl(log_t, log_s),
        "reverse": lambda: kl(log_s, log_t),
        "js": lambda: MIX * kl(log_t, mixed(log_t, log_s)) + (1 - MIX) * kl(log_s, mixed(log_t, log_s)),
        "skew": lambda: kl(log_t, mixed(log_t, log_s)),
        "reverse_skew": lambda: kl(log_s, mixed(log_s, log_t)),
    }[direction]()


def options(direction):
    return {"direction": direction, "impl": "triton"} | ({} if direction in ("forward", "reverse") else {"mix": MIX})


def logits(rows, columns, distance, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    teacher = (2 * torch.randn(rows, columns, generator=generator)).to(dtype)
    student = (teacher.double() + distance * torch.randn(rows, columns, generator=generator, dtype=torch.float64)).to(dtype)
    return student.to(DEVICE), teacher.to(DEVICE)


def close(found, truth, dtype, arithmetic=1e-5):
    # Twice the rounding of the output, row by row and by norm.
    error = (found.double() - truth).norm(dim=-1) / truth.norm(dim=-1)
    assert (error <= 2 * ROUNDING[dtype] + arithmetic).all(), error  # 1e-5: the contract of the arithmetic, which is float32


def kl_and_gradient(student, teacher):
    """KL(T‖S) and its gradient to the student's logits, in float64 without cancellation: Σ p φ(v), q where p is absent."""
    student, teacher = student.double(), teacher.double()
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    v = torch.where(p > 0, log_q - log_p, 0.0)
    phi = torch.where(v.abs() < 1e-2, v * v * (1 / 2 + v * (1 / 6 + v * (1 / 24 + v / 120))), torch.expm1(v) - v)
    kl = torch.where(p > 0, torch.where(v > 30, q - p - p * v, p * phi), q)
    return kl.sum(-1), torch.where(p > 0, torch.where(v.abs() < 1, p * torch.expm1(v), q - p), q)

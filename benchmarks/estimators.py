"""What each policy estimator of KL(π‖ref) is good for: its bias and spread as a value, and which KL its gradient follows.

    python benchmarks/estimators.py

Nothing is sampled: a tabular policy over sequences of up to three tokens has 15 outcomes, and every mean and variance is a sum over them.
Writes benchmarks/results/estimators.csv and the tables between the `estimators` markers of docs/estimators.md. Needs PyTorch.
"""

from __future__ import annotations

import csv
import re
from itertools import product
from pathlib import Path

import torch

from kullback.estimators import per_token
from kullback.losses import policy_kl

ROOT = Path(__file__).resolve().parents[1]
TOKENS, STEPS = 3, 3
torch.set_default_dtype(torch.float64)


class Policies:
    """Token 0 ends a sequence. A policy is a table of logits, one row a prefix."""

    def __init__(self):
        every = [s for n in range(1, STEPS + 1) for s in product(range(TOKENS), repeat=n)]
        ends = [s for s in every if 0 not in s[:-1] and (s[-1] == 0 or len(s) == STEPS)]
        prefixes = sorted({s[:t] for s in ends for t in range(len(s))})
        self.rows = len(prefixes)
        self.mask = torch.tensor([[t < len(s) for t in range(STEPS)] for s in ends])
        self.row = torch.tensor([[prefixes.index(s[:t]) if t < len(s) else 0 for t in range(STEPS)] for s in ends])
        self.token = torch.tensor([[s[t] if t < len(s) else 0 for t in range(STEPS)] for s in ends])

    def logits(self, table):
        return table[self.row]

    def logp(self, table):
        return table.log_softmax(-1)[self.row, self.token] * self.mask

    def probs(self, table):
        return self.logp(table).sum(-1).exp()

    def token_kl(self, p, q, drawn):
        """KL of the next token at each prefix, as often as `drawn` gets there."""
        p, q = p.log_softmax(-1), q.log_softmax(-1)
        each = (p.exp() * (p - q)).sum(-1)
        return (self.probs(drawn).detach()[:, None] * each[self.row] * self.mask).sum()

    def sequence_kl(self, p, q):
        return (self.probs(p) * (self.logp(p) - self.logp(q)).sum(-1)).sum()


def gradient(value, table):
    return torch.autograd.grad(value, table, retain_graph=True)[0].ravel()


def arguments(policies, kind, level, table, ref, old):
    if kind == "full":
        made, extra = (policies.logits(table), policies.logits(ref)), {"logp_taken": policies.logp(table)} if level == "sequence" else {}
    else:
        made, extra = (policies.logp(table), policies.logp(ref)), {}
    return made, {"kind": kind, "level": level, "mask": policies.mask, "logp_old": None if old is None else policies.logp(old), **extra}


def one_gradient_each(policies, use, kind, level, table, ref, old):
    """For each outcome the gradient (to be descended) that a training step takes from the penalty there."""
    made, options = arguments(policies, kind, level, table, ref, old)
    if use == "reward":
        # The penalty is a reward: each token's log-prob is weighted by what it and its successors cost (off policy: with their ratios).
        cost = per_token(*made, **options).detach()
        score = (cost.flip(-1).cumsum(-1).flip(-1) * policies.logp(table)).sum(-1)
    else:
        score = policy_kl(*made, **options, gradient=use, reduction="none")
        score = score if level == "sequence" else score.sum(-1)
    return torch.stack([gradient(s, table) for s in score])


def follows(found, targets):
    """The KL whose gradient this is, to 1e-9, or how far off the nearest one it is."""
    if found.norm() < 1e-9:
        return "0"
    off = {name: ((found - target).norm() / target.norm()).item() for name, target in targets.items()}
    nearest = min(off, key=off.get)
    return f"∇{nearest}" if off[nearest] < 1e-9 else f"none ({100 * off[nearest]:.0f}% off ∇{nearest})"


def measure(name, policies, table, ref, old):
    """Rows of the table: each estimator in each use, on tokens of the policy itself and of an older one."""
    rows = []
    # Tokens drawn by the first, with ratios to the second.
    for data, source, ratio_to in (("on-policy", table, None), ("off-policy", old, old), ("off-policy, no ratio", old, None)):
        drawn = policies.probs(source).detach()
        # Names of the KLs, of tokens (at the prefixes visited) and of sequences.
        targets = {
            "KL(π‖ref), sequence": gradient(policies.sequence_kl(table, ref), table),
            "KL(π‖ref), token": gradient(policies.token_kl(table, ref, source), table),
            "KL(ref‖π), token": gradient(policies.token_kl(ref, table, source), table),
            "KL(ref‖π), sequence": gradient(policies.sequence_kl(ref, table), table),
        }
        for kind in ("k1", "k2", "k3", "abs", "full"):
            for use, level in (("reward", "sequence"), ("as_written", "token"), ("exact", "token"), ("exact", "sequence")):
                if (kind, use) == ("full", "reward"):
                    continue  # not a property of the token drawn
                if "no ratio" in data and use != "as_written":
                    continue  # the others have it; this is what GRPO does with a batch that has grown old
                made, options = arguments(policies, kind, level, table, ref, ratio_to)
                values = per_token(*made, **options).sum(-1).detach()
                kl = (policies.sequence_kl(table, ref) if level == "sequence" else policies.token_kl(table, ref, source)).item()
                mean = (drawn @ values).item()
                each = one_gradient_each(policies, use, kind, level, table, ref, ratio_to)
                average = drawn @ each
                target = targets[f"KL(π‖ref), {level}"]
                rows.append(
                    {
                        "problem": name,
                        "estimator": kind,
                        "use": use,
                        "level": level,
                        "data": data,
                        "KL": kl,
                        "bias/KL": mean / kl - 1,
                        "std/KL": (drawn @ (values - mean) ** 2).sqrt().item() / kl,
                        "gradient follows": follows(average, targets),
                        "gradient std": ((drawn @ ((each - average) ** 2).sum(-1)).sqrt() / target.norm()).item(),
                    }
                )
    return rows


USES = {"reward": "reward", "as_written": "loss, as written", "exact": "loss, exact"}


def table_of(rows):
    lines = ["| estimator | use | level | data | bias/KL | std/KL | gradient follows | gradient std |", "|---" * 8 + "|"]
    for r in rows:
        bias = "0" if abs(r["bias/KL"]) < 1e-9 else f"{100 * r['bias/KL']:+.0f}%"
        kind = "\\|k1\\|" if r["estimator"] == "abs" else r["estimator"]
        lines.append(
            f"| {kind} | {USES[r['use']]} | {r['level']} | {r['data']} | {bias} | {r['std/KL']:.2f} | {r['gradient follows']} "
            f"| {r['gradient std']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    policies = Policies()
    generator = torch.Generator().manual_seed(0)
    table, far, away = (torch.randn(policies.rows, TOKENS, generator=generator) for _ in range(3))
    table.requires_grad_()
    problems = {"nearby": 0.2, "far away": 1.0}
    rows, texts = [], []
    for name, distance in problems.items():
        ref, old = (table.detach() + distance * x for x in (far, 0.5 * away))
        found = measure(name, policies, table, ref, old)
        rows += found
        kl = policies.sequence_kl(table, ref).item()
        texts.append(f"A reference {name}: KL(π‖ref) = {kl:.2g}, of sequences.\n\n{table_of(found)}")
        print(texts[-1])
    results = ROOT / "benchmarks" / "results"
    with open(results / "estimators.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    page = ROOT / "docs" / "estimators.md"
    marked = r"(<!-- estimators:begin -->\n).*?(<!-- estimators:end -->)"
    page.write_text(re.sub(marked, lambda m: m[1] + "\n\n".join(texts) + "\n" + m[2], page.read_text(), flags=re.S))


if __name__ == "__main__":
    main()

"""kullback.torch.KLMetric: over batches, with torchmetrics and without, summed over processes."""

from __future__ import annotations

import copy
import io
import math
import pickle
import subprocess
import sys

import pytest
import torch

import kullback.torch as kt

WITHOUT_TORCHMETRICS = "import sys; sys.modules['torchmetrics'] = None\n"


def _textbook(p, q):
    return (p * (p.log() - q.log())).sum(-1)


def test_metric_over_batches():
    import torchmetrics

    assert issubclass(kt.KLMetric, torchmetrics.Metric)
    g = torch.Generator().manual_seed(4)
    p, q = (torch.randn(7, 5, generator=g, dtype=torch.float64).softmax(-1) for _ in range(2))
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 0.5, 3.0, 1.0], dtype=torch.float64)
    mean, total = kt.KLMetric(), kt.KLMetric(reduction="sum", base=2)
    weighted = kt.KLMetric()
    for rows in (slice(0, 2), slice(2, 7)):
        batch = mean(p[rows], q[rows])
        torch.testing.assert_close(batch, _textbook(p, q)[rows].mean())
        total.update(p[rows], q[rows])
        weighted.update(p[rows], q[rows], weights[rows])
    torch.testing.assert_close(mean.compute(), _textbook(p, q).mean())
    torch.testing.assert_close(total.compute(), _textbook(p, q).sum() / math.log(2))
    torch.testing.assert_close(weighted.compute(), (weights * _textbook(p, q)).sum() / weights.sum())
    again = pickle.loads(pickle.dumps(mean))
    torch.testing.assert_close(again.compute(), mean.compute())
    mean.reset()
    mean.update(p[:1], q[:1])
    torch.testing.assert_close(mean.compute(), _textbook(p, q)[0])
    with pytest.raises(ValueError, match="reduction is 'none'"):
        kt.KLMetric(reduction="none")
    assert copy.deepcopy(total).options["base"] == 2
    torch.save(mean.state_dict(), io.BytesIO())


def _run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout


def test_metric_without_torchmetrics():
    code = (
        WITHOUT_TORCHMETRICS
        + """
import torch, pickle
from kullback.torch import KLMetric
p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
metric = KLMetric()
print(metric(p[:1], q[:1]).item(), metric(p[1:], q[1:]).item(), metric.compute().item())
metric = pickle.loads(pickle.dumps(metric))
print(metric.compute().item())
metric.reset()
metric.update(p[1:], q[1:])
print(metric.compute().item())
metric.half()
for _ in range(2):
    metric.update(p[1:], q[1:], weights=torch.tensor([1e5]))
print(metric.compute().item())
"""
    )
    found = [float(x) for x in _run(code).split()]
    assert found == pytest.approx([0.0, math.log(2), math.log(2) / 2, math.log(2) / 2, math.log(2), math.log(2)], rel=1e-6)


@pytest.mark.parametrize("without", ["", WITHOUT_TORCHMETRICS], ids=["torchmetrics", "plain"])
def test_metric_is_summed_over_processes(without, tmp_path):
    code = (
        without
        + f"""
import sys, torch, torch.distributed as dist
from kullback.torch import KLMetric
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{tmp_path}/rendezvous", rank=rank, world_size=2)
metric = KLMetric()
certain, even = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
for _ in range(1 + 2 * rank):
    metric.update(certain if rank else even, even)
print(metric.compute().item(), metric.compute().item())
dist.destroy_process_group()
"""
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        # One even pair on rank 0, three of log 2 on rank 1.
        assert [float(x) for x in out.split()] == pytest.approx([0.75 * math.log(2)] * 2, rel=1e-6)


def test_import_does_not_load_torchmetrics():
    assert _run("import sys, kullback.torch; print('torchmetrics' in sys.modules)").strip() == "False"

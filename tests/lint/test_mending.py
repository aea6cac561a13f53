"""--fix and --diff: what is changed, what stays as it was, and that the result computes the KL."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from expectations import BAD, FIXTURES

from kullback_lint import RULES
from kullback_lint.run import lint_text


def test_fix_and_diff(here, run):
    Path("x.py").write_text(BAD)
    code, out, _ = run("--diff", ".")
    assert code == 1
    assert out.splitlines()[-2:] == ["-loss = F.kl_div(x, y)", '+loss = F.kl_div(x, y, reduction="batchmean")']
    assert Path("x.py").read_text() == BAD
    os.chmod("x.py", 0o755)
    assert run("--fix", ".") == (0, "1 mended, no findings in 1 file\n", "")
    assert Path("x.py").read_text() == BAD.replace("(x, y)", '(x, y, reduction="batchmean")')
    assert os.stat("x.py").st_mode & 0o777 == 0o755
    assert os.listdir() == ["x.py"]
    assert run("--diff", ".") == (0, "", "")


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.py")), ids=lambda p: p.stem)
def test_mending_keeps_everything_else(path):
    """What was mended parses, is found no more, brings nothing new, and mending again changes nothing; comments all stay."""
    text = path.read_text()
    rules = tuple(RULES)
    before = lint_text(text, path.name, rules)
    done = lint_text(text, path.name, rules, fix=True)
    if done.fixed is None:
        assert not any(f.edits for f in before.findings)
        return
    ast.parse(done.fixed)
    assert not any(f.edits for f in done.findings)
    left = sorted((f.line, f.rule) for f in done.findings)
    assert left == sorted((f.line, f.rule) for f in before.findings if not f.edits)
    assert lint_text(done.fixed, path.name, rules, fix=True).fixed is None
    old, new = text.splitlines(), done.fixed.splitlines()
    assert len(old) == len(new)
    touched = {f.line for f in before.findings if f.edits}
    for number, (a, b) in enumerate(zip(old, new), 1):
        # A flag may go where the loss object was made, on another line than its use.
        assert a == b or number in touched or "KLDivLoss(" in a
        assert re.findall("#.*", a) == re.findall("#.*", b)


FORMATTED = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

crit = nn.KLDivLoss()   # the loss
crit2 = nn.KLDivLoss(  # several lines
)
crit3 = nn.KLDivLoss()
used = crit3(F.log_softmax(s, dim=-1), F.log_softmax(t, dim=-1))
a = F.kl_div(
    F.log_softmax(s, dim=-1),   # student
    torch.log(  F.softmax( t, dim=-1 )  ),  # teacher
)
b = F.kl_div(x, (y),)
c = F.kl_div(x, y
             # why
             )
d = torch.exp( u ) - u - 1  # k3
e = F.kl_div(x, f(y for y in z))
"""
MENDED = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

crit = nn.KLDivLoss(reduction="batchmean")   # the loss
crit2 = nn.KLDivLoss(  # several lines
)
crit3 = nn.KLDivLoss(reduction="batchmean", log_target=True)
used = crit3(F.log_softmax(s, dim=-1), F.log_softmax(t, dim=-1))
a = F.kl_div(
    F.log_softmax(s, dim=-1),   # student
    F.log_softmax( t, dim=-1 ), reduction="batchmean", log_target=True,  # teacher
)
b = F.kl_div(x, (y), reduction="batchmean",)
c = F.kl_div(x, y, reduction="batchmean"
             # why
             )
d = torch.expm1(u) - u  # k3
e = F.kl_div(x, f(y for y in z), reduction="batchmean")
"""


def test_mending_keeps_formatting_and_comments():
    done = lint_text(FORMATTED, "x.py", tuple(RULES), fix=True)
    assert done.fixed == MENDED


@pytest.mark.parametrize(
    "text",
    [
        "import torch, torch.nn as nn\nclass A(nn.Module):\n    def __init__(self):\n        self.softmax = nn.Softmax(dim=-1)\n"
        "    def forward(self, x):\n        return torch.log(self.softmax(x))\n",
        "import tensorflow as tf\nfrom tensorflow.keras import backend as K\ndef f(x):\n    return K.log(K.softmax(x))\n",
    ],
)
def test_log_softmax_is_not_written_where_there_is_none(text):
    done = lint_text(text, "x.py", tuple(RULES), fix=True)
    assert [f.rule for f in done.findings] == ["KL008"]
    assert done.fixed is None


def test_a_loss_object_used_in_two_ways_is_not_mended():
    text = (
        "import torch.nn as nn, torch.nn.functional as F\nkl = nn.KLDivLoss(reduction='sum')\n"
        "def f(s, t, p):\n    return kl(F.log_softmax(s, 1), F.log_softmax(t, 1)) + kl(F.log_softmax(s, 1), p)\n"
    )
    done = lint_text(text, "x.py", tuple(RULES), fix=True)
    assert [f.rule for f in done.findings] == ["KL003"]
    assert done.fixed is None


def test_what_was_mended_computes_the_kl():
    """The oracle is the definition, by hand in float64."""
    torch = pytest.importorskip("torch")
    text = (
        "import torch, torch.nn as nn, torch.nn.functional as F\n"
        "def logs(s, t):\n    return F.kl_div(F.log_softmax(s, -1), torch.log(F.softmax(t, -1)))\n"
        "loss = nn.KLDivLoss()\n"
        "def module(s, t):\n    return loss(F.log_softmax(s, -1), F.softmax(t, -1))\n"
        "def k3(x):\n    return torch.exp(x) - x - 1\n"
    )
    fixed = lint_text(text, "x.py", tuple(RULES), fix=True).fixed
    names: dict = {}
    exec(fixed, names)
    s, t = (
        torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]], dtype=torch.float64),
        torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 1.0]], dtype=torch.float64),
    )
    p, q = t.exp() / t.exp().sum(-1, keepdim=True), s.exp() / s.exp().sum(-1, keepdim=True)
    true = float((p * (p / q).log()).sum() / 2)
    assert names["logs"](s, t).item() == pytest.approx(true, rel=1e-12)
    assert names["module"](s, t).item() == pytest.approx(true, rel=1e-12)
    # x²/2 to float32's spacing there: exp(x) - x - 1 gives 0.
    assert names["k3"](torch.tensor(1e-3)).item() == pytest.approx(5.0017e-7, rel=1e-3)

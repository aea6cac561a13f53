"""PyTorch's compilers and tracers on every function, and where the value check steps aside."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import kullback as kb
from cases import CASES, CHECKED, ONE_EACH, points

# --- compilers and tracers -------------------------------------------------------------------------------------------------------

_COLD = """
import {first}
import {second}
import torch
import kullback as kb

PUBLIC = {{
    "kl": kb.kl, "entropy": lambda p, q, **o: kb.entropy(p, **o), "cross_entropy": kb.cross_entropy, "js": kb.js,
    "jeffreys": kb.jeffreys, "renyi": lambda p, q, **o: kb.renyi(p, q, order=0.25, **o),
}}

def every(p, q, a, b):
    found = [PUBLIC[name](a, b, form="logits", temperature=2.0) for name in {logits}]
    found += [PUBLIC[name](p, q) for name in {probs}]
    return *found, kb.rel_entr(p, q).sum(-1), kb.kl_div(p, q).sum(-1)

torch.manual_seed(0)
logits = [torch.randn(4, 5, dtype=torch.float64) for _ in range(4)]
p, q = (z.softmax(-1) for z in logits[:2])
inputs = [z.detach().requires_grad_() for z in (p, q, *logits[2:])]

import kullback._ops
assert torch.Tensor not in kullback._ops._by_type  # the first call of all is the compiled one
compiled = torch.compile(every, fullgraph=True, backend="{backend}")
values = compiled(*inputs)
expected = every(*inputs)
for v, e in zip(values, expected):
    torch.testing.assert_close(v, e, rtol=1e-12, atol=0)
found = torch.autograd.grad(sum(v.sum() for v in values), inputs)
for f, e in zip(found, torch.autograd.grad(sum(e.sum() for e in expected), inputs)):
    torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-12)

# The check steps aside: same graph, one row that is no distribution, NaN there and nowhere else.
bad_p, bad_a = p.clone(), logits[2].clone()
bad_p[1, 2] = -1.0
bad_a[1, 2] = float("inf")
values = compiled(bad_p.requires_grad_(), inputs[1], bad_a.requires_grad_(), inputs[3])
for v in values[:-2]:
    assert v.isnan().tolist() == [False, True, False, False], v
for f, options in ((kb.kl, {{}}), (kb.kl, {{"form": "logits"}})):
    try:
        f(*((bad_p, q) if not options else (bad_a, logits[3])), **options)
    except ValueError as error:
        assert "row 1" in str(error)
    else:
        raise AssertionError("eager accepts an invalid row")
print("done")
"""


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("first", "second", "backend", "logits", "probs"),
    # Tracing, where a function may break, is what counts here; Inductor's values are in test_contract_functions' test_every_function.
    [
        ("kullback", "torch", "aot_eager", ["kl"], ["js"]),
        ("torch", "kullback", "aot_eager", ["entropy", "cross_entropy", "jeffreys"], ["kl", "js", "renyi"]),
    ],
    ids=["kullback-first", "torch-first"],
)
def test_compile_every_function_cold_with_backward(first, second, backend, logits, probs):
    """A process in which nothing of kullback has run: the first call of all is inside torch.compile(fullgraph=True)."""
    code = _COLD.format(first=first, second=second, backend=backend, logits=logits, probs=probs)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=600)
    assert done.stdout.strip().endswith("done"), done.stderr[-3000:]


# A tracer meets every function and both forms; not each function in each form, which the derivatives' tests have.
OF_PROBS, OF_LOGITS = ["kl", *ONE_EACH[1::2]], ONE_EACH[::2]


class Every(torch.nn.Module):
    """All checked functions, of probabilities or of logits, and the elementwise terms."""

    def forward(self, p, q, a, b):
        found = [CASES[name].call(p, q) for name in OF_PROBS]
        found += [CASES[name].call(a, b, form="logits") for name in OF_LOGITS]
        return *found, kb.rel_entr(p, q).sum(-1), kb.kl_div(p, q).sum(-1)


def _every_input():
    (p, q), (a, b) = points("probs"), points("logits")
    return tuple(torch.tensor(np.concatenate([z, z])) for z in (p, q, a, b))


def _every_invalid():
    p, q, a, b = (z.clone() for z in _every_input())
    p[1, 2], a[1, 2] = -1.0, float("inf")
    return p, q, a, b


def _nan_in_row_1_only(values):
    for name, v in zip([*OF_PROBS, *OF_LOGITS], values):
        assert v.isnan().tolist() == [i == 1 for i in range(len(v))], name


class Both(torch.nn.Module):
    def forward(self, p, q, a, b):
        return kb.kl(p, q), kb.kl(a, b, form="logits")


# Strict export traces as torch.compile does, above, every function.
@pytest.mark.parametrize(("strict", "model"), [(False, Every()), (True, Both())], ids=["not strict", "strict"])
def test_export_with_any_batch_size(strict, model):
    inputs = _every_input()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, inputs, strict=strict, dynamic_shapes=[{0: batch}] * 4).module()
    for rows in (6, 3):  # as exported, and another size
        some = [z[:rows] for z in inputs]
        for v, e in zip(program(*some), model(*some)):
            torch.testing.assert_close(v, e, rtol=1e-12, atol=0)
    _nan_in_row_1_only(program(*_every_invalid()))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    inputs = _every_input()
    graph = make_fx(lambda *z: Every()(*z), tracing_mode=mode)(*_every_invalid())  # traced with an invalid row: nobody looks
    for v, e in zip(graph(*inputs), Every()(*inputs)):
        torch.testing.assert_close(v, e, rtol=1e-12, atol=0)
    _nan_in_row_1_only(graph(*_every_invalid()))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_trace():
    inputs = _every_input()
    traced = torch.jit.trace(Every(), _every_invalid(), check_trace=False)
    for v, e in zip(traced(*inputs), Every()(*inputs)):
        torch.testing.assert_close(v, e, rtol=1e-12, atol=0)
    _nan_in_row_1_only(traced(*_every_invalid()))


def _shapes_and_dtypes(inputs):
    for v in Every()(*inputs):
        assert v.shape == (6,)
        assert v.dtype == torch.float64
        assert v.device == inputs[0].device


def test_meta_tensors():
    _shapes_and_dtypes([z.to("meta") for z in _every_invalid()])


def test_fake_tensors():
    with FakeTensorMode() as mode:
        _shapes_and_dtypes([mode.from_tensor(z) for z in _every_invalid()])


# --- where the value check steps aside -------------------------------------------------------------------------------------------

OTHER = torch.tensor([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]], dtype=torch.float64)
INVALID = torch.tensor([[0.2, 0.3, 0.5], [0.1, -0.6, 0.3]], dtype=torch.float64)


def _no_grad(f):
    with torch.no_grad():
        return f(INVALID, OTHER)


def _inference(f):
    with torch.inference_mode():
        return f(INVALID.clone(), OTHER.clone())


def _autocast(f):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return f(INVALID, OTHER)


def _dual(f):
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(INVALID, torch.ones_like(INVALID)), OTHER)


EAGER = {
    "plain": lambda f: f(INVALID, OTHER),
    "requires_grad": lambda f: f(INVALID.clone().requires_grad_(), OTHER),
    "nn.Parameter": lambda f: f(torch.nn.Parameter(INVALID), OTHER),
    "float32": lambda f: f(INVALID.float(), OTHER.float()),
    "no_grad": _no_grad,
    "inference_mode": _inference,
    "autocast": _autocast,
    "forward_ad": _dual,
}


@pytest.mark.parametrize("context", EAGER)
@pytest.mark.parametrize("name", CHECKED)
def test_eager_contexts_raise(context, name):
    with pytest.raises(ValueError, match=r"p row 1 holds -0\.6 at category 1"):
        EAGER[context](CASES[name].call)


def _own_rows(jacobian):
    """d value[i] / d row i; of the other rows' entries 0 * NaN is NaN."""
    return torch.stack([jacobian[i, i].sum() for i in range(len(jacobian))])


def _summed(f):
    return lambda p: f(p, OTHER).sum()


TRANSFORMS = {
    "vmap": lambda f: vmap(lambda p, q: f(p, q))(INVALID, OTHER),
    "vmap over a batch of batches": lambda f: vmap(lambda p: f(p, OTHER))(INVALID.expand(2, 2, 3))[1],
    "grad": lambda f: grad(_summed(f))(INVALID).sum(-1),
    "vmap(grad)": lambda f: vmap(grad(lambda p, q: f(p, q)))(INVALID, OTHER).sum(-1),
    "vjp": lambda f: vjp(lambda p: f(p, OTHER), INVALID)[0],
    "jvp": lambda f: jvp(lambda p: f(p, OTHER), (INVALID,), (torch.ones_like(INVALID),))[0],
    "jvp's tangent": lambda f: jvp(lambda p: f(p, OTHER), (INVALID,), (torch.ones_like(INVALID),))[1],
    "jacrev": lambda f: _own_rows(jacrev(lambda p: f(p, OTHER))(INVALID)),
    "jacfwd": lambda f: _own_rows(jacfwd(lambda p: f(p, OTHER))(INVALID)),
    "hessian": lambda f: hessian(_summed(f))(INVALID).sum((-1, -2, -3)),
    "make_fx": lambda f: make_fx(lambda p, q: f(p, q))(INVALID, OTHER)(INVALID, OTHER),
    "check=False": lambda f: f(INVALID, OTHER, check=False),
}


@pytest.mark.parametrize("context", TRANSFORMS)
@pytest.mark.parametrize("name", ONE_EACH)
def test_check_steps_aside(context, name):
    found = TRANSFORMS[context](CASES[name].call)
    assert found.isnan().tolist() == [False, True]


@pytest.mark.parametrize("context", ["vmap", "grad", "jvp", "make_fx"])
def test_check_true_looks_wherever_it_can_and_only_there(context):
    found = TRANSFORMS[context](lambda p, q: kb.kl(p, q, check=True))
    assert found.isnan().tolist() == [False, True]
    with pytest.raises(ValueError, match="row 1"):
        kb.kl(INVALID, OTHER, check=True)

"""`losses.linear_kl` in every framework, against `log_softmax` in float64; its chunks and memory; its kernels, interpreted.

Compiled and slow frameworks run one function of all losses over a vocabulary (linear_kl, sparse teachers, token_terms): a compiler takes
seconds for each.
"""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kullback.losses.linear as linear
from frameworks import ALL, Lazy
from kullback._kernels import linear_torch
from kullback.losses import TopK, kl_loss, linear_kl, token_terms
from with_triton import interpret, run_with_triton

jax = Lazy("jax")
jnp = Lazy("jax.numpy")
tf = Lazy("tensorflow")

DIRECTIONS = ["forward", "reverse", "js", "skew", "reverse_skew"]
MIX = 0.3
TOKENS, WIDTH, VOCABULARY = 6, 4, 11


def _kl(log_p, log_q):
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _reference(student, teacher, direction):
    """By definition, in float64."""
    log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
    mixed = lambda a, b: torch.logaddexp(a + np.log(MIX), b + np.log1p(-MIX))  # noqa: E731
    return {
        "forward": lambda: _kl(log_t, log_s),
        "reverse": lambda: _kl(log_s, log_t),
        "js": lambda: MIX * _kl(log_t, mixed(log_t, log_s)) + (1 - MIX) * _kl(log_s, mixed(log_t, log_s)),
        "skew": lambda: _kl(log_t, mixed(log_t, log_s)),
        "reverse_skew": lambda: _kl(log_s, mixed(log_s, log_t)),
    }[direction]()


def _inputs(rng, dtype=np.float64):
    shapes = [(2, 3, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,), (2, 3, VOCABULARY)]
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def _options(direction):
    return {"direction": direction} if direction in ("forward", "reverse") else {"direction": direction, "mix": MIX}


def _error(found, truth):
    return np.linalg.norm(np.asarray(found, np.float64) - np.asarray(truth)) / np.linalg.norm(np.asarray(truth))


@pytest.mark.parametrize("framework", [f for f in ALL if not f.costly], ids=repr)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_direction(monkeypatch, framework, rng, direction):
    monkeypatch.setattr(linear, "BUDGET", 16 * 8 * VOCABULARY * 4)  # four tokens at a time in NumPy and PyTorch
    hidden, weight, bias, teacher = _inputs(rng)
    weights = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 0.5]])
    student, t = (torch.tensor(x) for x in (hidden @ weight.T + bias, teacher))
    each = _reference(5 * torch.tanh(student / 2 / 5) / 2, 5 * torch.tanh(t / 2 / 5) / 2, direction)
    hidden[0, 1] = teacher[0, 1] = np.nan  # weight 0: may hold anything
    found = framework.run(
        lambda h, w, b, t: linear_kl(
            hidden=h, weight=w, bias=b, teacher_logits=t, softcap=5.0, logit_scale=0.5, temperature=2.0, scale_t2=True, weights=weights,
            **_options(direction),
        ),
        hidden, weight, bias, teacher,
    )  # fmt: skip
    assert found == pytest.approx(4 * float((each * torch.tensor(weights)).sum()) / weights.sum(), rel=1e-12)


class Pieces:
    """Each loss over a vocabulary as a function of hidden and weight, and what it must be."""

    def __init__(self, rng):
        self.teacher = rng.normal(size=(TOKENS, VOCABULARY)).astype(np.float32)
        logs = self.teacher - np.log(np.exp(self.teacher.astype(np.float64)).sum(-1, keepdims=True))
        self.places = np.argsort(-logs, -1)[:, :3]
        self.logs = np.take_along_axis(logs, self.places, -1).astype(np.float32)
        self.tokens = rng.integers(0, VOCABULARY, TOKENS)

    def linear(self, hidden, weight):
        return linear_kl(hidden=hidden, weight=weight, teacher_logits=self.teacher, direction="js", mix=MIX, reduction="none")

    def true_linear(self, logits):
        return _reference(logits, torch.tensor(self.teacher, dtype=torch.float64), "js")

    def sparse(self, hidden, weight):
        return linear_kl(hidden=hidden, weight=weight, teacher=TopK(self.places, self.logs), reduction="none")

    def true_sparse(self, logits):
        q, at, p = logits.softmax(-1), torch.tensor(self.places), torch.tensor(self.logs, dtype=torch.float64).exp()
        coarse_q = torch.cat([q.gather(-1, at), q.scatter(-1, at, 0.0).sum(-1, keepdim=True)], -1)
        return _kl(torch.cat([p, 1 - p.sum(-1, keepdim=True)], -1).log(), coarse_q.log())

    def uniform(self, hidden, weight):
        top = TopK(self.places, self.logs, "uniform")
        return kl_loss(student=_project(hidden, weight), teacher=top, direction="reverse", reduction="none")

    def true_uniform(self, logits):
        at, p = torch.tensor(self.places), torch.tensor(self.logs, dtype=torch.float64).exp()
        even = (1 - p.sum(-1, keepdim=True)) / (VOCABULARY - at.shape[-1])
        return _kl(logits.log_softmax(-1), even.expand(-1, VOCABULARY).scatter(-1, at, p).log())

    def terms(self, hidden, weight):
        terms = token_terms(_project(hidden, weight), self.teacher, self.tokens)
        return terms.kl + 3.0 * terms.k3 + terms.logp

    def true_terms(self, logits):
        log_s, log_t = logits.log_softmax(-1), torch.tensor(self.teacher, dtype=torch.float64).log_softmax(-1)
        logp, logp_ref = (x.gather(-1, torch.tensor(self.tokens)[:, None])[:, 0] for x in (log_s, log_t))
        l = logp_ref - logp
        return _kl(log_s, log_t) + 3 * (torch.expm1(l) - l) + logp


def _project(hidden, weight):
    return hidden @ (tf.transpose(weight) if tf.is_tensor(weight) else weight.T)


# One compiled function each: what a compiler meets that `kl_loss` does not have. In the variants of a framework (a loop in JAX run
# operation by operation, TensorFlow's graphs, float64) one loss. PyTorch's compiler has a test of its own below.
PIECES = {
    "jax-jit": ["linear", "sparse", "terms"], "jax": ["linear"], "jax-jit-x64": ["uniform"],
    "tensorflow-xla": ["sparse", "terms"], "tensorflow-function": ["uniform"],
    "tinygrad-jit": ["sparse", "terms"], "tinygrad": ["uniform"],
}  # fmt: skip


@pytest.mark.parametrize("framework", [f for f in ALL if f.costly and f.name != "torch-compiled"], ids=repr)
def test_compiled(monkeypatch, framework, rng):
    monkeypatch.setattr(linear, "BUDGET", 4 * VOCABULARY * 4)  # four of six tokens at a time in JAX, and a shorter chunk
    hidden, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((TOKENS, WIDTH), (VOCABULARY, WIDTH)))
    pieces = Pieces(rng)
    names = PIECES[framework.name]
    value, gradients = framework.value_and_gradients(lambda h, w: sum(getattr(pieces, name)(h, w) for name in names), hidden, weight)
    exact = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (hidden, weight)]
    expected = sum(getattr(pieces, f"true_{name}")(exact[0] @ exact[1].T) for name in names)
    # The array contract, and a float32 projection of four products in front of it.
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-5)
    for found, right in zip(gradients, torch.autograd.grad(expected.sum(), exact)):
        assert _error(found, right) < 2e-5


@pytest.mark.compiler
def test_torch_compile_breaks_the_graph_and_nothing_else(rng):
    # The capture is what matters here, not Inductor's code, which takes 20 s more.
    hidden, weight, _, teacher = (torch.tensor(x) for x in _inputs(rng))
    hidden.requires_grad_()

    def loss(h):
        return 2 * linear_kl(hidden=h * 1.5, weight=weight, teacher_logits=teacher) + h.sum()

    (found,) = torch.autograd.grad(torch.compile(loss, backend="eager")(hidden), hidden)
    (expected,) = torch.autograd.grad(2 * _reference(hidden * 1.5 @ weight.T, teacher, "forward").mean() + hidden.sum(), hidden)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)

    def others(h):
        terms = token_terms(h @ weight.T, teacher, torch.zeros(2, 3, dtype=torch.int64))
        top = TopK(torch.tensor([[[1, 2]] * 3] * 2), torch.full((2, 3, 2), -1.5, dtype=torch.float64))
        return (terms.kl + terms.k3).sum() + kl_loss(student=h @ weight.T, teacher=top)

    (found,) = torch.autograd.grad(torch.compile(others, backend="eager", fullgraph=True)(hidden), hidden)
    torch.testing.assert_close(found, torch.autograd.grad(others(hidden), hidden)[0], rtol=1e-11, atol=1e-13)


PLANS = [linear_torch.Plan(2, 2, True), linear_torch.Plan(2, 4, False), linear_torch.Plan(4, 4, True)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean", "none"])
def test_gradients_in_pytorch(monkeypatch, rng, plan, reduction):
    monkeypatch.setattr(linear_torch, "plan", lambda *args, **options: plan)
    hidden, weight, bias, _ = (torch.tensor(x) for x in _inputs(rng))
    teacher_weight = torch.tensor(rng.normal(size=(VOCABULARY, 2)))
    teacher_hidden = torch.tensor(rng.normal(size=(2, 3, 2)))
    weights = torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 0.5]], dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (hidden, weight, bias)]
    each = _reference(hidden @ weight.T + bias, teacher_hidden @ teacher_weight.T, "forward") * weights
    truth = {"mean": each.sum() / weights.sum(), "sum": each.sum(), "batchmean": each.sum() / 2, "none": each}[reduction]
    found = linear_kl(
        hidden=hidden, weight=weight, bias=bias, teacher_hidden=teacher_hidden, teacher_weight=teacher_weight, weights=weights,
        reduction=reduction,
    )  # fmt: skip
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-14)
    upstream = torch.tensor(rng.normal(size=truth.shape))
    wanted = torch.autograd.grad(truth, inputs, upstream)
    for factor in (1.0, 3.0):  # the second time, everything is made anew
        for one, right in zip(torch.autograd.grad(found, inputs, factor * upstream, retain_graph=True), wanted):
            torch.testing.assert_close(one, factor * right, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
@pytest.mark.parametrize("plan", [linear_torch.Plan(6, 6, False), linear_torch.Plan(2, 4, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_matmuls_in_parts(monkeypatch, rng, plan, reduction, dtype):
    """Of two tokens, of two categories, and what is left over of an odd number of either."""
    monkeypatch.setattr(linear_torch, "plan", lambda *args, **options: plan)
    for name in ("_ALIGNED", "_MANY", "_TOKENS_AT_ONCE", "_CATEGORIES_AT_ONCE"):
        monkeypatch.setattr(linear_torch, name, 2)
    assert linear_torch._categories(7, 2) == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    assert [x.stop - x.start for x in linear_torch._equal(5, 4)] == [4, 1]
    inputs = [torch.tensor(rng.normal(size=size)).to(dtype).requires_grad_() for size in ((3, 5, 3), (7, 3), 7)]
    teacher = torch.tensor(rng.normal(size=(3, 5, 7))).to(dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    each = _reference(exact[0] @ exact[1].T + exact[2], teacher.double(), "forward")
    truth = each.sum() / {"mean": 15, "sum": 1, "batchmean": 3}[reduction]
    wanted = torch.autograd.grad(truth, exact)
    hidden, weight, bias = inputs
    for logit_dtype in ("hidden", "float32"):
        found = linear_kl(
            hidden=hidden, weight=weight, bias=bias, teacher_logits=teacher, reduction=reduction, logit_dtype=logit_dtype
        )  # fmt: skip
        gradients = torch.autograd.grad(found, inputs)
        # bfloat16: logits near 4 are off by an hundredth, if rounded, and derivatives are rounded once more.
        bound = 1e-12 if dtype == torch.float64 else 0.03
        for one, right in zip((found.detach(), *gradients), (truth.detach(), *wanted)):
            assert _error(one.double(), right) < bound


def test_float16_gradients_that_add_up_over_many_tokens(rng):
    """A thousand tokens that want the same: their derivatives, large so that none vanishes, would sum up to more than float16 has."""
    hidden = torch.tensor(rng.normal(1.0, 1.0, (1000, 4))).half()
    inputs = [x.half().requires_grad_() for x in (torch.zeros(130, 4), torch.zeros(130))]
    teacher = torch.zeros(1000, 130).half()
    teacher[:, 0] = 12.0
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = torch.autograd.grad(_reference(hidden.double() @ exact[0].T + exact[1], teacher.double(), "forward").mean(), exact)
    for accumulate in ("float32", "weight"):
        loss = linear_kl(hidden=hidden, weight=inputs[0], bias=inputs[1], teacher_logits=teacher, accumulate=accumulate)
        for factor in (1.0, 1024.0):  # the second time they are made anew
            for one, right in zip(torch.autograd.grad(factor * loss, inputs, retain_graph=True), wanted):
                assert one.dtype == torch.float16
                assert _error(one.double(), factor * right) < 3 * 2.0**-11  # logits are exact here: derivatives and results are rounded


@pytest.mark.parametrize("reduction", ["mean", "batchmean", "sum"])
def test_no_tokens_are_what_kl_loss_makes_of_none(reduction):
    weight, teacher = torch.ones(130, 4).half().requires_grad_(), torch.zeros(0, 130).half()
    found = linear_kl(hidden=torch.zeros(0, 4).half(), weight=weight, teacher_logits=teacher, reduction=reduction)
    if reduction == "sum":
        assert found == 0.0
        assert not torch.autograd.grad(found, weight)[0].any()
    else:
        assert found.isnan()  # as PyTorch's own means of nothing
    np.testing.assert_equal(found.item(), kl_loss(student=teacher, teacher=teacher, reduction=reduction).item())


def test_weights_that_learn(rng):
    hidden, weight, _, teacher = (torch.tensor(x) for x in _inputs(rng))
    found = []
    for loss in (
        lambda h, w: linear_kl(hidden=h, weight=weight, teacher_logits=teacher, weights=w),
        lambda h, w: (w * _reference(h @ weight.T, teacher, "forward")).sum() / (2 * w.sum()),  # broadcast over two rows of tokens
    ):
        inputs = [hidden.clone().requires_grad_(), torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)]
        found.append(torch.autograd.grad(loss(*inputs), inputs))
    for one, right in zip(*found):
        torch.testing.assert_close(one, right, rtol=1e-11, atol=1e-13)


def test_second_derivatives_functorch_and_single_tokens(rng):
    hidden, weight, _, teacher = (torch.tensor(x) for x in _inputs(rng))
    loss = lambda h, w, t=teacher: linear_kl(hidden=h, weight=w, teacher_logits=t)  # noqa: E731
    assert torch.autograd.gradgradcheck(loss, (hidden.requires_grad_(), weight.requires_grad_()))
    h, w, t = hidden.detach()[0, 0], weight.detach(), teacher[0, 0]
    truth = _reference(h @ w.T, t, "forward")
    torch.testing.assert_close(loss(h, w, t), truth)
    torch.testing.assert_close(torch.func.grad(loss)(h, w, t), torch.func.grad(lambda h: _reference(h @ w.T, t, "forward"))(h))
    assert linear_kl(hidden=h.numpy(), weight=w.numpy(), teacher_logits=t.numpy()) == pytest.approx(truth.item(), rel=1e-12)


@pytest.mark.parametrize("accumulate", ["float32", "weight"])
def test_bfloat16_is_no_worse_than_pytorch(monkeypatch, rng, accumulate):
    monkeypatch.setattr(linear_torch, "plan", lambda *args, float32, **options: linear_torch.Plan(16, 16, float32))
    generator = torch.Generator().manual_seed(0)
    hidden, weight = ((scale * torch.randn(n, 32, generator=generator)).bfloat16() for n, scale in ((256, 1.0), (100, 0.3)))
    teacher = (2 * torch.randn(256, 100, generator=generator)).bfloat16()
    results = []
    for dtype, loss in (
        (torch.float64, lambda h, w: _reference(h @ w.T, teacher.double(), "forward").mean()),
        (torch.bfloat16, lambda h, w: _kl(teacher.float().log_softmax(-1), (h @ w.T).float().log_softmax(-1)).mean()),
        (torch.bfloat16, lambda h, w: linear_kl(hidden=h, weight=w, teacher_logits=teacher, accumulate=accumulate)),
        (torch.bfloat16, lambda h, w: linear_kl(hidden=h, weight=w, teacher_logits=teacher, logit_dtype="float32")),
    ):
        inputs = [x.to(dtype, copy=True).requires_grad_() for x in (hidden, weight)]
        value = loss(*inputs)
        results.append([value.detach(), *torch.autograd.grad(value, inputs)])
    for right, theirs, found, better in zip(*results):
        # Two draws of the same roundings; added up in 16 bits, sixteen more of them, of which each is half a spacing at most.
        extra = 16 * 2.0**-9 if accumulate == "weight" else 0.0
        assert _error(found.float(), right) <= 1.2 * _error(theirs.float(), right) + extra + 1e-6
        # Derivatives to the logits and the result are rounded, no more: half a spacing each at most.
        assert _error(better.float(), right) <= 2 * 2.0**-9


def test_never_holds_all_logits(monkeypatch, rng):
    """The largest array of a call, forward and backward, in PyTorch; and of the compiled program, in JAX."""
    monkeypatch.setattr(linear, "BUDGET", 16 * 4 * 1000 * 32)
    monkeypatch.setattr(linear_torch, "plan", lambda *args, plan=linear_torch.plan, **options: plan(*args, **{**options, "float32": False}))
    hidden, weight = torch.randn(512, 8).requires_grad_(), torch.randn(1000, 8).requires_grad_()
    teacher = torch.randn(512, 8)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend(x.untyped_storage().nbytes() for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
            return result

    with Watch():
        # Looking is forbidden under a dispatch mode, so that the formulas would run as a whole: see the loop itself.
        monkeypatch.setattr(sys.modules["kullback._ops.torch"], "can_look", lambda x: True)
        linear_kl(hidden=hidden, weight=weight, teacher_hidden=teacher, teacher_weight=torch.randn(1000, 8)).backward()
    assert max(sizes) <= 64 * 1000 * 8  # two chunks of 32 tokens in float64, where all logits are 512 tokens in float32
    arrays = [jnp.asarray(x.detach().numpy()) for x in (hidden, weight, teacher)]
    monkeypatch.setattr(linear, "BUDGET", 4 * 1000 * 32)
    step = jax.jit(jax.grad(lambda h, w, t: linear_kl(hidden=h, weight=w, teacher_hidden=t, teacher_weight=w), (0, 1)))
    memory = step.lower(*arrays).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 512 * 1000 * 4


def test_only_the_weights_gradient_takes_its_room():
    seen = []

    def step(logits, part, upstream, out):
        seen.append(len(logits))
        return logits.sum(-1)

    job = linear_torch.Job(step, linear_torch.Plan(8, 8, False), 2, False, None, None)
    hidden, weight, ones = torch.ones(8, 3), torch.ones(5, 3), torch.ones(8)
    for upstream, needs, expected in ((ones, (True, True, False), 8), (ones, (True, False, False), 2), (None, (False, False, False), 2)):
        seen.clear()
        linear_torch.run(hidden, weight, None, job, upstream, needs)
        assert max(seen) == expected


def test_the_plan_of_a_large_model():
    """Hidden 4096, 128256 categories, bfloat16: the figures in the docstring."""
    sizes = (128256, 4096, 2)
    options = {"budget": 256 << 20, "arrays": 1, "float32": True}
    assert linear_torch.plan(8192, *sizes, **options) == (8192, 8192, False)  # in the place of the accumulator
    assert linear_torch.plan(32768, *sizes, **options) == (1024, 1024, True)
    assert linear_torch.plan(8192, *sizes, **{**options, "float32": False}) == (1024, 1024, False)
    assert linear_torch.plan(8192, *sizes, **{**options, "budget": 512 << 20, "arrays": 2}) == (2048, 8192, False)
    assert linear_torch.plan(32768, *sizes, **{**options, "budget": 512 << 20, "arrays": 2}) == (1024, 1024, True)
    # float16's gradient is float32 until backward: half of the room is its own.
    assert linear_torch.plan(8192, *sizes, **options, kept=4) == (1024, 1024, True)
    assert linear_torch.plan(4096, *sizes, **options, kept=4) == (4096, 4096, False)
    # Rows of 4097 numbers take the room of 4160.
    assert linear_torch.plan(1000, 4097, 8, 2, budget=100 * 4097 * 2, arrays=1, float32=False).chunk == 98


def test_errors():
    x, w, t = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, 5)
    for change, what in (
        ({"weight": torch.zeros(3, 5)}, r"hidden has \(3,\) where weight has \(5,\): the widths"),
        ({"weight": torch.zeros(0, 3), "teacher_logits": torch.zeros(2, 0)}, r"weight has no categories: its shape is \(0, 3\)"),
        ({"weight": w.double()}, "hidden is torch.float32 and weight torch.float64"),
        ({"teacher_logits": torch.zeros(3, 5)}, r"teacher_logits has \(3,\) where hidden has \(2,\)"),
        ({"teacher_logits": None}, "pass one of teacher_logits, teacher .*none is given"),
        ({"teacher_hidden": x, "teacher_weight": w}, "teacher_logits and teacher_hidden are given"),
        ({"teacher_logits": None, "teacher_hidden": x}, "teacher_hidden and teacher_weight go together"),
        ({"teacher_bias": torch.zeros(5)}, "teacher_bias goes with teacher_hidden"),
        ({"teacher_logits": t.clone().requires_grad_()}, "teacher_logits asks for a gradient"),
        ({"temperature": torch.tensor(1.0, requires_grad=True)}, "temperature asks for a gradient"),
        ({"temperature": 0}, "temperature is 0"),
        ({"logit_scale": -1.0}, "logit_scale is -1.0"),
        ({"softcap": 0}, "softcap is 0"),
        ({"accumulate": "bfloat16"}, "accumulate is 'bfloat16'"),
        ({"impl": "cuda"}, "impl is 'cuda'"),
        ({"bias": torch.zeros(4)}, r"bias has \(4,\) where weight has \(5,\)"),
        ({"weights": torch.ones(3)}, r"weights has shape \(3,\): it must broadcast to the batch shape"),
    ):
        with pytest.raises(ValueError, match=what):
            linear_kl(**{"hidden": x, "weight": w, "teacher_logits": t, **change})
    with pytest.raises(TypeError, match="teacher is a Tensor: it must be a TopK"):
        linear_kl(hidden=x, weight=w, teacher=t)
    for framework in (torch, np):
        arrays = {"hidden": framework.zeros((2, 3)), "weight": framework.zeros((5, 3)), "teacher_logits": framework.zeros((2, 5))}
        with pytest.raises(RuntimeError, match="impl='triton' cannot run"):
            linear_kl(**arrays, impl="triton")


def test_the_examples_of_the_documentation():
    result = doctest.testfile(str(Path(__file__).resolve().parents[2] / "docs" / "losses.md"), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


@pytest.mark.compiler
def test_kernels_in_tritons_interpreter():
    assert re.search(r"\b4\d passed", interpret("test_linear.py", "test_sparse.py", "test_tokens.py"))


@pytest.mark.compiler
def test_kernels_compile_for_a_gpu(tmp_path):
    script = str(Path(__file__).resolve().parents[1] / "scripts/triton_compile_script.py")
    assert "22 compiled" in run_with_triton(script, TRITON_CACHE_DIR=str(tmp_path))

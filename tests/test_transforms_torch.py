"""PyTorch's transforms: derivatives of first and second order against mpmath, compilers and tracers, and where the value check steps aside.

The truth of this file (`truth`, `CASES`) serves the other frameworks' transform tests too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import kullback as kb
import oracle
from oracle import GRADIENT_BOUND, VALUE_BOUND

# --- every public function, and its value at 50 digits ---------------------------------------------------------------------------


def _kl(p, q):
    return mp.fsum(a * mp.log(a / b) for a, b in zip(p, q) if a > 0)


def _entropy(p, q):
    return -mp.fsum(a * mp.log(a) for a in p if a > 0)


def _js(w):
    def value(p, q):
        m = [(1 - w) * a + w * b for a, b in zip(p, q)]
        return (1 - w) * _kl(p, m) + w * _kl(q, m)

    return value


def _renyi(order):
    return lambda p, q: mp.log(mp.fsum(a**order * b ** (1 - order) for a, b in zip(p, q))) / (order - 1)


class Case(NamedTuple):
    """call(x, y, **options) in kullback, and the same of two normalised lists of mpf (of the lists as given, if `elementwise`)."""

    call: Callable[..., Any]
    value: Callable[[list, list], mp.mpf]
    forms: tuple[str, ...] = ("logits", "probs")


def _elementwise(function):
    return lambda x, y, **_: function(x, y)


CASES = {
    "kl": Case(kb.kl, _kl),
    "entropy": Case(lambda x, y, **options: kb.entropy(x, **options), _entropy),
    "cross_entropy": Case(kb.cross_entropy, lambda p, q: _entropy(p, q) + _kl(p, q)),
    "js": Case(kb.js, _js(mp.mpf("0.5"))),
    "js(mix=0.25)": Case(lambda x, y, **options: kb.js(x, y, mix=0.25, **options), _js(mp.mpf("0.25"))),
    "jeffreys": Case(kb.jeffreys, lambda p, q: _kl(p, q) + _kl(q, p)),
    "renyi(order=0.25)": Case(lambda x, y, **options: kb.renyi(x, y, order=0.25, **options), _renyi(mp.mpf("0.25"))),
    "renyi(order=2)": Case(lambda x, y, **options: kb.renyi(x, y, order=2.0, **options), _renyi(mp.mpf(2))),
    "rel_entr": Case(_elementwise(kb.rel_entr), _kl, ("elementwise",)),
    "kl_div": Case(_elementwise(kb.kl_div), lambda x, y: _kl(x, y) - mp.fsum(x) + mp.fsum(y), ("elementwise",)),
}
CHECKED = [name for name, case in CASES.items() if case.forms != ("elementwise",)]
CASE_FORMS = [(name, form) for name, case in CASES.items() for form in case.forms]


class Derivatives(NamedTuple):
    value: float
    gradient: np.ndarray
    hessian: np.ndarray


def _normalised(values: list, form: str) -> list:
    if form == "elementwise":
        return values
    values = [mp.exp(v) for v in values] if form == "logits" else values
    total = mp.fsum(values)
    return [v / total for v in values]


@cache
def _truth(name: str, form: str, x: tuple, y: tuple, temperature: float) -> Derivatives:
    k, t, h = len(x), mp.mpf(temperature), mp.mpf("1e-12")
    point = oracle.exact(np.array(x + y))

    def value(z):
        return CASES[name].value(*(_normalised([v / t for v in side], form) for side in (z[:k], z[k:])))

    def moved(*steps):
        z = list(point)
        for i, step in steps:
            z[i] += step
        return value(z)

    # Symmetric differences at 50 digits: h^2 is 1e-24 off, and rounding costs 1e-50/h^2 = 1e-26.
    n = 2 * k
    second = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            change = moved((i, h), (j, h)) - moved((i, h), (j, -h)) - moved((i, -h), (j, h)) + moved((i, -h), (j, -h))
            second[i, j] = second[j, i] = float(change / (4 * h * h))
    first = np.array([float((moved((i, h)) - moved((i, -h))) / (2 * h)) for i in range(n)])
    return Derivatives(float(value(point)), first, second)


def truth(name: str, form: str, x: np.ndarray, y: np.ndarray, temperature: float = 1.0) -> Derivatives:
    """Of one row: the value, and derivatives with respect to the concatenation of x and y."""
    return _truth(name, form, tuple(map(float, x)), tuple(map(float, y)), float(temperature))


def points(form: str, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Rows: ordinary, P nearly equal to Q (where automatic derivatives cancel), P peaked and Q broad."""
    a = np.array([[0.3, -1.2, 0.8], [2.0, 0.0, -1.0], [9.0, 0.0, -3.0]])
    b = np.array([[1.1, 0.2, -0.7], [2.001, -0.002, -1.0003], [0.4, 0.1, -0.2]])
    if form == "logits":
        return a.astype(dtype), b.astype(dtype)
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (a, b))
    # Sums that are off within what is accepted: the derivatives are those of the normalised numbers.
    return (p * [[1.0], [1.0004], [0.9997]]).astype(dtype), (q * [[1.0005], [1.0], [0.9996]]).astype(dtype)


def options(form: str) -> dict:
    return {} if form == "elementwise" else {"form": form}


def close(found: Any, expected: Any, bound: float, scale: Any = None) -> None:
    """Relative to the norm of `scale` (the expected array itself unless given)."""
    found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected if scale is None else scale)
    assert error <= bound, f"off by {error:.2e}, bound {bound:.0e}: {found} for {expected}"


# Second derivatives are automatic ones of the exact first derivative: a few dozen roundings, relative to the largest entry.
HESSIAN_BOUND = {np.float32: 2e-5, np.float64: 2e-12}


def close_hessian(name: str, form: str, found: Any, row: Any, direction: Any = None) -> None:
    """Of one row, (x, y); or the Hessian times `direction`."""
    expected = truth(name, form, *row)
    dtype = row[0].dtype.type
    # cross_entropy is entropy + kl, whose second derivatives to P cancel: rounding is that of the parts.
    scale = truth("kl", form, *row).hessian if name == "cross_entropy" else expected.hessian
    bound = HESSIAN_BOUND[dtype]
    if name.startswith("renyi") and form == "probs":
        # The second derivative to a small probability p is a difference of terms of size 1/p.
        bound = max(bound, float(np.finfo(dtype).eps / row[0].min()))
    close(found, expected.hessian if direction is None else expected.hessian @ direction, bound, scale=scale)


PROBS = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]], dtype=torch.float64)
OTHER = torch.tensor([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]], dtype=torch.float64)
INVALID = torch.tensor([[0.2, 0.3, 0.5], [0.1, -0.6, 0.3]], dtype=torch.float64)


def _row(x, y, i=0):
    return torch.tensor(x[i]), torch.tensor(y[i])


# --- derivatives -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form"), CASE_FORMS)
def test_value_gradient_and_hessian(name, form):
    call = CASES[name].call
    xs, ys = points(form)
    for i in range(len(xs)):
        expected = truth(name, form, xs[i], ys[i])
        x, y = _row(xs, ys, i)
        joint = lambda z: call(z[:3], z[3:], **options(form)).sum()  # noqa: E731
        z = torch.cat([x, y])
        close(joint(z), expected.value, VALUE_BOUND[np.float64])
        for derivative in (grad(joint)(z), jacrev(joint)(z), jacfwd(joint)(z), vjp(joint, z)[1](torch.tensor(1.0, dtype=z.dtype))[0]):
            close(derivative, expected.gradient, GRADIENT_BOUND[np.float64])
        for second in (hessian(joint)(z), jacrev(jacrev(joint))(z), jacrev(jacfwd(joint))(z)):
            close_hessian(name, form, second, (xs[i], ys[i]))


@pytest.mark.parametrize(("name", "form"), CASE_FORMS)
def test_autograd_twice_on_a_batch(name, form):
    xs, ys = points(form)
    x, y = torch.tensor(xs, requires_grad=True), torch.tensor(ys, requires_grad=True)
    total = CASES[name].call(x, y, **options(form)).sum()
    first = torch.autograd.grad(total, (x, y), create_graph=True, allow_unused=True, materialize_grads=True)
    direction = np.array([0.7, -1.3, 0.4, 1.1, 0.2, -0.9])
    along = sum((g * torch.tensor(d)).sum() for g, d in zip(first, (direction[:3], direction[3:])))
    second = torch.autograd.grad(along, (x, y), materialize_grads=True)
    for i in range(len(xs)):
        expected = truth(name, form, xs[i], ys[i])
        close(torch.cat([g[i].detach() for g in first]), expected.gradient, GRADIENT_BOUND[np.float64])
        close_hessian(name, form, torch.cat([g[i] for g in second]), (xs[i], ys[i]), direction)


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, form in CASE_FORMS if name not in ("js(mix=0.25)", "renyi(order=2)")])
def test_gradcheck_and_gradgradcheck(name, form):
    """Reverse, forward and batched derivatives agree with differences (PyTorch's own tolerances)."""
    xs, ys = points(form)
    x, y = (torch.tensor(z[:1], requires_grad=True) for z in (xs, ys))
    function = lambda x, y: CASES[name].call(x, y, **options(form))  # noqa: E731
    inputs = (x, y)
    if name == "entropy":
        function, inputs = lambda x: kb.entropy(x, form=form), (x,)
    if form == "probs":  # PyTorch's steps of 1e-6 leave the accepted sums alone
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    else:
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("name", CHECKED)
def test_learnable_temperature_to_second_order(name):
    a, b = points("logits")
    x, y = _row(a, b)
    temperature = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    function = lambda t: CASES[name].call(x, y, form="logits", temperature=t)  # noqa: E731
    value = lambda t: CASES[name].value(*(_normalised([mp.mpf(float(v)) / t for v in z], "logits") for z in (a[0], b[0])))  # noqa: E731
    t = mp.mpf(1.7)
    first, second = (float(mp.diff(value, t, n)) for n in (1, 2))
    close(function(temperature).detach(), float(value(t)), VALUE_BOUND[np.float64])
    (found,) = torch.autograd.grad(function(temperature), temperature, create_graph=True)
    close(found.detach(), first, GRADIENT_BOUND[np.float64])
    (again,) = torch.autograd.grad(found, temperature)
    close(again, second, HESSIAN_BOUND[np.float64])
    # and to the logits, at that temperature
    expected = truth(name, "logits", a[0], b[0], 1.7)
    z = torch.cat([x, y])
    joint = lambda z: CASES[name].call(z[:3], z[3:], form="logits", temperature=temperature.detach())  # noqa: E731
    close(grad(joint)(z), expected.gradient, GRADIENT_BOUND[np.float64])
    close(hessian(joint)(z), expected.hessian, HESSIAN_BOUND[np.float64])
    assert torch.autograd.gradcheck(function, (temperature,), check_forward_ad=True)


@pytest.mark.parametrize(("name", "form"), [("kl", "logits"), ("entropy", "probs"), ("kl_div", "elementwise")])
def test_forward_over_forward_is_right_or_refused(name, form):
    """PyTorch loses the second derivative of an autograd.Function there, without a word (pytorch issue 197867): 0 is not an answer."""
    xs, ys = points(form)
    z = torch.cat(_row(xs, ys))
    direction = torch.tensor([0.7, -1.3, 0.4, 1.1, 0.2, -0.9], dtype=z.dtype)
    joint = lambda z: CASES[name].call(z[:3], z[3:], **options(form)).sum()  # noqa: E731
    expected = truth(name, form, xs[0], ys[0]).hessian
    nested = {
        "jvp of jvp": lambda: jvp(lambda z: jvp(joint, (z,), (direction,))[1], (z,), (direction,))[1],
        "jacfwd of jacfwd": lambda: direction @ jacfwd(jacfwd(joint))(z) @ direction,
    }
    for found in nested.values():
        try:
            second = found()
        except (NotImplementedError, RuntimeError, ValueError):
            continue
        close(second, direction.numpy() @ expected @ direction.numpy(), HESSIAN_BOUND[np.float64])


def test_closed_form_hessians_of_kl():
    """From logits, to b: diag(q) - q q'. Across, to a and b: -(diag(p) - p p')."""
    a, b = (torch.tensor(z[0]) for z in points("logits"))
    p, q = a.softmax(0), b.softmax(0)
    close(hessian(lambda b: kb.kl(a, b, form="logits"))(b), torch.diag(q) - torch.outer(q, q), HESSIAN_BOUND[np.float64])
    across = jacrev(jacrev(lambda a, b: kb.kl(a, b, form="logits"), argnums=1), argnums=0)(a, b)
    close(across, torch.outer(p, p) - torch.diag(p), HESSIAN_BOUND[np.float64])


@pytest.mark.parametrize(("name", "form"), CASE_FORMS)
def test_vmap_of_grad_and_jvp_and_forward_mode(name, form):
    xs, ys = points(form)
    x, y = torch.tensor(xs), torch.tensor(ys)
    rows = [truth(name, form, *row) for row in zip(xs, ys)]
    function = lambda x, y: CASES[name].call(x, y, **options(form)).sum()  # noqa: E731
    close(vmap(function)(x, y), [r.value for r in rows], VALUE_BOUND[np.float64])
    found = torch.cat(vmap(grad(function, argnums=(0, 1)))(x, y), dim=-1)
    for f, r in zip(found, rows):
        close(f, r.gradient, GRADIENT_BOUND[np.float64])
    dx, dy = torch.tensor([0.7, -1.3, 0.4], dtype=x.dtype), torch.tensor([1.1, 0.2, -0.9], dtype=x.dtype)
    direction = np.concatenate([dx, dy])
    for i, r in enumerate(rows):
        value, change = jvp(function, (x[i], y[i]), (dx, dy))
        close(value, r.value, VALUE_BOUND[np.float64])
        close(change, r.gradient @ direction, GRADIENT_BOUND[np.float64], scale=r.gradient)
        with forward_ad.dual_level():
            dual = function(forward_ad.make_dual(x[i], dx), forward_ad.make_dual(y[i], dy))
            close(forward_ad.unpack_dual(dual).tangent, r.gradient @ direction, GRADIENT_BOUND[np.float64], scale=r.gradient)
            one_side = forward_ad.unpack_dual(function(forward_ad.make_dual(x[i], dx), y[i])).tangent
            close(one_side, r.gradient[:3] @ dx.numpy(), GRADIENT_BOUND[np.float64], scale=r.gradient)


@pytest.mark.parametrize("name", [n for n in CASES if n != "entropy"])
@pytest.mark.parametrize("side", [0, 1])
def test_gradient_to_one_side_only(name, side):
    form = CASES[name].forms[0]
    xs, ys = points(form)
    pair = [torch.tensor(xs), torch.tensor(ys)]
    pair[side].requires_grad_()
    value = CASES[name].call(*pair, **options(form)).sum()
    value.backward(retain_graph=True)
    once = pair[side].grad.clone()
    value.backward()  # a graph that is kept may be walked again
    assert torch.equal(pair[side].grad, 2 * once)
    assert pair[1 - side].grad is None
    for i in range(len(xs)):
        close(once[i], truth(name, form, xs[i], ys[i]).gradient[3 * side :][:3], GRADIENT_BOUND[np.float64])


@pytest.mark.parametrize(("name", "form"), CASE_FORMS)
def test_layout_does_not_matter(name, form):
    """Transposed, strided and broadcast views give what contiguous copies give, in value and gradient."""
    xs, ys = points(form)
    views = [torch.tensor(xs.T.copy()).T, torch.tensor(np.repeat(xs, 2, axis=1))[:, ::2], torch.tensor(np.stack([xs, xs], 1))[:, 1]]
    y = torch.tensor(ys)
    for x in views:
        assert not x.is_contiguous()
        x = x.requires_grad_()
        value = CASES[name].call(x, y, **options(form))
        value.sum().backward()
        rows = [truth(name, form, *row) for row in zip(xs, ys)]
        found = value.detach().sum(-1) if form == "elementwise" else value.detach()
        close(found, [r.value for r in rows], VALUE_BOUND[np.float64])
        for g, r in zip(x.grad, rows):
            close(g, r.gradient[:3], GRADIENT_BOUND[np.float64])
    # One row for all: its gradient is the sum over the rows.
    single = torch.tensor(xs[0], requires_grad=True)
    CASES[name].call(single.expand(3, 3), y, **options(form)).sum().backward()
    expected = sum(truth(name, form, xs[0], row).gradient[:3] for row in ys)
    close(single.grad, expected, GRADIENT_BOUND[np.float64])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CHECKED)
def test_half_precision_in_half_precision_gradients(name, half):
    a, b = points("logits")
    x, y = (torch.tensor(z[:1]).to(half).requires_grad_() for z in (a, b))
    value = CASES[name].call(x, y, form="logits")
    assert value.dtype == torch.float32
    value.sum().backward()
    expected = truth(name, "logits", x[0].detach().double().numpy(), y[0].detach().double().numpy()).gradient
    for z, e in ((x, expected[:3]),) if name == "entropy" else ((x, expected[:3]), (y, expected[3:])):
        assert z.grad.dtype == half
        # Rounded once, at the end.
        assert (np.abs(z.grad[0].double().numpy() - e) <= np.abs(e) * torch.finfo(half).eps + 1e-7).all()


@pytest.mark.parametrize("name", CHECKED)
def test_contexts_that_leave_values_alone(name):
    """no_grad, inference_mode, autocast, nn.Parameter: the same numbers, and the dtype of the contract."""
    xs, ys = points("logits")
    x, y = torch.tensor(xs), torch.tensor(ys)
    expected = CASES[name].call(x, y, form="logits")
    close(expected, [truth(name, "logits", *row).value for row in zip(xs, ys)], VALUE_BOUND[np.float64])
    with torch.no_grad():
        value = CASES[name].call(torch.nn.Parameter(x), y, form="logits")
        assert torch.equal(value, expected)
        assert not value.requires_grad
    with torch.inference_mode():
        value = CASES[name].call(x.clone(), y, form="logits")
        assert torch.equal(value, expected)
        assert value.is_inference()
    value = CASES[name].call(torch.nn.Parameter(x), y, form="logits")
    assert torch.equal(value.detach(), expected)
    assert type(value) is torch.Tensor
    assert value.requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = CASES[name].call(x.float(), y.float(), form="logits")
        assert value.dtype == torch.float32
        narrow = CASES[name].call(x.bfloat16(), y.bfloat16(), form="logits")
        assert narrow.dtype == torch.float32
    assert torch.equal(value, CASES[name].call(x.float(), y.float(), form="logits"))


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
    found = [f(a, b, form="logits", temperature=2.0) for f in list(PUBLIC.values()){logits}]
    found += [f(p, q) for f in list(PUBLIC.values()){probs}]
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


@pytest.mark.parametrize(
    ("first", "second", "backend"),
    [("kullback", "torch", "inductor"), ("torch", "kullback", "aot_eager")],
    ids=["kullback-first-inductor", "torch-first-aot_eager"],
)
def test_compile_every_function_cold_with_backward(first, second, backend):
    """A process in which nothing of kullback has run: the first call of all is inside torch.compile(fullgraph=True)."""
    # Each function and form costs 3 to 5 s: all of logits, one of probabilities, with the one compiler; the other way round with the other.
    logits, probs = ("", "[:1]") if backend == "inductor" else ("[:1]", "")
    code = _COLD.format(first=first, second=second, backend=backend, logits=logits, probs=probs)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=600)
    assert done.stdout.strip().endswith("done"), done.stderr[-3000:]


ONE_EACH = ["kl", "entropy", "cross_entropy", "js", "jeffreys", "renyi(order=0.25)"]


class Every(torch.nn.Module):
    """All checked functions, of probabilities and of logits."""

    def forward(self, p, q, a, b):
        found = [CASES[name].call(p, q) for name in ONE_EACH]
        found += [CASES[name].call(a, b, form="logits") for name in ONE_EACH]
        return *found, kb.rel_entr(p, q).sum(-1), kb.kl_div(p, q).sum(-1)


def _every_input():
    (p, q), (a, b) = points("probs"), points("logits")
    return tuple(torch.tensor(np.concatenate([z, z])) for z in (p, q, a, b))


def _every_invalid():
    p, q, a, b = (z.clone() for z in _every_input())
    p[1, 2], a[1, 2] = -1.0, float("inf")
    return p, q, a, b


def _nan_in_row_1_only(values):
    for name, v in zip([*ONE_EACH, *ONE_EACH], values):
        assert v.isnan().tolist() == [i == 1 for i in range(len(v))], name


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_any_batch_size(strict):
    inputs = _every_input()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Every(), inputs, strict=strict, dynamic_shapes=[{0: batch}] * 4).module()
    for rows in (6, 3):  # as exported, and another size
        some = [z[:rows] for z in inputs]
        for v, e in zip(program(*some), Every()(*some)):
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

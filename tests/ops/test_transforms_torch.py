"""PyTorch's derivatives, first and second order, reverse, forward and batched, against mpmath; layouts, half precision, contexts."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import kullback as kb
from cases import CASE_FORMS, CASES, CHECKED, HESSIAN_BOUND, close, close_hessian, normalised, options, points, truth
from oracle import GRADIENT_BOUND, VALUE_BOUND


def _row(x, y, i=0):
    return torch.tensor(x[i]), torch.tensor(y[i])


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
    value = lambda t: CASES[name].value(*(normalised([mp.mpf(float(v)) / t for v in z], "logits") for z in (a[0], b[0])))  # noqa: E731
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

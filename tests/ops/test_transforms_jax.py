"""JAX's transforms: derivatives of both orders against mpmath, inside jit, scan and checkpoint, and where the check steps aside."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import kullback as kb
from cases import CASES, CHECKED, ONE_EACH, close, close_hessian, options, points, truth
from oracle import GRADIENT_BOUND, VALUE_BOUND


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "x64"])
def precision(request):
    with jax.enable_x64(request.param == np.float64):
        yield request.param


# Compiling a second derivative costs 3 to 5 s: every function once, kl in both forms (PyTorch's tests have all of them).
SECOND_ORDER = [("kl", "logits"), ("kl", "probs"), ("entropy", "probs"), ("cross_entropy", "logits"), ("js", "logits"),
                ("jeffreys", "probs"), ("renyi(order=2)", "logits"), ("rel_entr", "elementwise"), ("kl_div", "elementwise")]  # fmt: skip


def _joint(name, form):
    """Of a row [x, y]."""
    return lambda z: CASES[name].call(z[:3], z[3:], **options(form)).sum()


def _rows(form, precision):
    """The rows as JAX has them, and as NumPy (exact) for the truth."""
    xs, ys = points(form, precision)
    return jnp.concatenate([jnp.asarray(xs), jnp.asarray(ys)], axis=-1), zip(xs, ys)


@pytest.mark.parametrize(("name", "form"), SECOND_ORDER)
def test_derivatives_of_both_orders_under_jit_and_vmap(name, form, precision):
    if precision == np.float32 and name not in ("kl", "rel_entr"):
        return  # first derivatives in float32 are below
    joint = _joint(name, form)
    z, rows = _rows(form, precision)
    assert z.dtype == precision
    together = jax.jit(jax.vmap(lambda z: (joint(z), jax.grad(joint)(z), jax.hessian(joint)(z))))(z)
    for row, value, first, second in zip(rows, *together):
        expected = truth(name, form, *row)
        assert value.dtype == precision
        close(value, expected.value, VALUE_BOUND[precision])
        close(first, expected.gradient, GRADIENT_BOUND[precision])
        close_hessian(name, form, second, row)


# Operation by operation, 4 s each: a divergence, and the elementwise terms; jit, above, has every function.
@pytest.mark.parametrize(("name", "form"), [("kl", "logits"), ("kl_div", "elementwise")])
def test_each_transform_without_jit(name, form):
    joint = _joint(name, form)
    z, rows = _rows(form, np.float32)
    direction = np.array([0.7, -1.3, 0.4, 1.1, 0.2, -0.9], np.float32)
    z, row = z[0], next(rows)
    expected = truth(name, form, *row)
    bound = GRADIENT_BOUND[np.float32]
    close(joint(z), expected.value, VALUE_BOUND[np.float32])
    close(jax.grad(joint)(z), expected.gradient, bound)
    close(jax.jacfwd(joint)(z), expected.gradient, bound)
    value, change = jax.jvp(joint, (z,), (direction,))
    close(value, expected.value, VALUE_BOUND[np.float32])
    close(change, expected.gradient @ direction.astype(float), bound, scale=expected.gradient)
    _, linear = jax.linearize(joint, z)
    close(linear(direction), expected.gradient @ direction.astype(float), bound, scale=expected.gradient)
    close(jax.grad(jax.checkpoint(joint))(z), expected.gradient, bound)


@pytest.mark.parametrize("name", ["kl", "js"])  # one function of JAX's carries them all, and scan sees only that
def test_scan_accumulates_values_and_gradients(name):
    z, rows = _rows("logits", np.float32)
    joint = _joint(name, "logits")

    def total(z):
        return jax.lax.scan(lambda carry, row: (carry + joint(row), None), jnp.zeros((), z.dtype), z)[0]

    value, found = jax.jit(jax.value_and_grad(total))(z)
    truths = [truth(name, "logits", *row) for row in rows]
    close(value, sum(t.value for t in truths), VALUE_BOUND[np.float32])
    for f, t in zip(found, truths):
        close(f, t.gradient, GRADIENT_BOUND[np.float32])


@pytest.mark.parametrize("name", ["kl", "js"])  # the cast stands in the one function that carries them all
def test_bfloat16_gradients_are_bfloat16(name):
    a, b = (jnp.asarray(z[:1]).astype(jnp.bfloat16) for z in points("logits"))
    function = lambda a, b: CASES[name].call(a, b, form="logits")[0]  # noqa: E731
    assert function(a, b).dtype == jnp.float32
    expected = truth(name, "logits", *(np.asarray(z[0], np.float64) for z in (a, b))).gradient
    found = jax.jit(jax.grad(function, argnums=(0, 1)))(a, b)
    for f, e in zip(found, (expected[:3], expected[3:])):
        assert f.dtype == jnp.bfloat16
        # Rounded once, at the end; bfloat16 has 8 bits.
        assert (np.abs(np.asarray(f[0], np.float64) - e) <= np.abs(e) * 2.0**-8 + 1e-7).all()


def test_temperature_is_learnable_to_second_order(precision):
    """d KL/dT against differences of the mpmath value along the temperature."""
    (a, b), t, h = points("logits", precision), 1.7, 1e-6
    function = lambda t: kb.kl(jnp.asarray(a[0]), jnp.asarray(b[0]), form="logits", temperature=t)  # noqa: E731
    t = float(np.asarray(t, precision))
    down, here, up = (truth("kl", "logits", a[0], b[0], t + step).value for step in (-h, 0.0, h))
    value, first, second = jax.jit(lambda t: (function(t), jax.grad(function)(t), jax.grad(jax.grad(function))(t)))(t)
    close(value, here, VALUE_BOUND[precision])
    # h^2 of the differences is 1e-12 at first order; at second, rounding of float64 values leaves 1e-16/h^2 = 1e-4.
    close(first, (up - down) / (2 * h), max(GRADIENT_BOUND[precision], 1e-9))
    h = 1e-3
    down, up = (truth("kl", "logits", a[0], b[0], t + step).value for step in (-h, h))
    close(second, (up - 2 * here + down) / h**2, 1e-5)


# --- where the value check steps aside -------------------------------------------------------------------------------------------

INVALID = np.array([[0.2, 0.3, 0.5], [0.1, -0.6, 0.3]], np.float32)
OTHER = np.array([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]], np.float32)


def _shard_map(f):
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("rows")
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(spec, spec), out_specs=spec))(INVALID, OTHER)


def _scan(f):
    return jax.lax.scan(lambda carry, row: (carry, f(*row)), 0, (jnp.asarray(INVALID), jnp.asarray(OTHER)))[1]


CONTEXTS = {
    "jit": lambda f: jax.jit(f)(INVALID, OTHER),
    "vmap": lambda f: jax.vmap(f)(INVALID, OTHER),
    "grad": lambda f: jax.grad(lambda p: f(p, OTHER).sum())(INVALID).sum(-1),
    "grad to the other side": lambda f: jax.grad(lambda q: f(jnp.asarray(INVALID), q).sum())(OTHER).sum(-1),
    "vmap(grad)": lambda f: jax.vmap(jax.grad(f))(INVALID, OTHER).sum(-1),
    "vjp": lambda f: jax.vjp(lambda p: f(p, OTHER), INVALID)[0],
    "jvp": lambda f: jax.jvp(lambda p: f(p, OTHER), (INVALID,), (np.ones_like(INVALID),))[1],
    "linearize": lambda f: jax.linearize(lambda p: f(p, OTHER), INVALID)[0],
    "checkpoint": lambda f: jax.checkpoint(f)(INVALID, OTHER),
    "scan": _scan,
    "map": lambda f: jax.lax.map(lambda row: f(*row), (jnp.asarray(INVALID), jnp.asarray(OTHER))),
    "make_jaxpr": lambda f: jax.core.eval_jaxpr(*(lambda j: (j.jaxpr, j.consts))(jax.make_jaxpr(f)(INVALID, OTHER)), INVALID, OTHER)[0],
    "pmap": lambda f: jax.pmap(f)(INVALID[None], OTHER[None])[0],
    "shard_map": _shard_map,
    "export": lambda f: jax.export.export(jax.jit(f))(INVALID, OTHER).call(INVALID, OTHER),
    "check=False": lambda f: f(jnp.asarray(INVALID), jnp.asarray(OTHER), check=False),
}


# Every context, and every function; they meet in one place, which asks whether it may look.
@pytest.mark.parametrize(("context", "name"), [*((c, "kl") for c in CONTEXTS), *(("jit", n) for n in ONE_EACH[1:])])
def test_check_steps_aside(context, name):
    found = CONTEXTS[context](lambda p, q, **given: CASES[name].call(p, q, **given))
    assert np.isnan(found).tolist() == [False, True]


@pytest.mark.parametrize("name", CHECKED)
def test_eval_shape_needs_no_values(name):
    shape = jax.eval_shape(CASES[name].call, INVALID, OTHER)
    assert (shape.shape, shape.dtype) == ((2,), np.float32)


@pytest.mark.parametrize("name", CHECKED)
def test_eager_raises(name, precision):
    with pytest.raises(ValueError, match=r"p row 1 holds -0\.6 at category 1"):
        CASES[name].call(jnp.asarray(INVALID.astype(precision)), jnp.asarray(OTHER.astype(precision)))


def test_check_true_looks_wherever_it_can_and_only_there():
    found = jax.jit(lambda p, q: kb.kl(p, q, check=True))(INVALID, OTHER)
    assert np.isnan(found).tolist() == [False, True]
    with pytest.raises(ValueError, match="row 1"):
        kb.kl(jnp.asarray(INVALID), jnp.asarray(OTHER), check=True)


def test_float64_input_without_x64_is_float32():
    xs, ys = points("logits")
    with jax.enable_x64(False):
        value = kb.kl(jnp.asarray(xs), jnp.asarray(ys), form="logits")
        assert value.dtype == np.float32
    close(value, [truth("kl", "logits", *(z.astype(np.float32) for z in row)).value for row in zip(xs, ys)], VALUE_BOUND[np.float32])

"""Values, gradients and collectives on eight devices, one line a measurement: run by test_jax_mesh.py, in a process that has them."""

from __future__ import annotations

import contextlib
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kullback as kb
import kullback.jax as kj
from kullback._ops import jax as jax_ops
from kullback.losses import kl_loss, linear, linear_kl

assert jax.device_count() == 8
ROWS, CATEGORIES = 16, 4096
rng = np.random.default_rng(5)
a = rng.standard_normal((ROWS, CATEGORIES)).astype(np.float32)
b = (a + 0.1 * rng.standard_normal(a.shape)).astype(np.float32)
p, q = (np.array(jax.nn.softmax(z)) for z in (a, b))
log_p, log_q = (np.array(jax.nn.log_softmax(z)) for z in (a, b))
FUNCTIONS = {
    "kl of probs": (kb.kl, p, q),
    "kl of logits": (lambda a, b: kb.kl(a, b, form="logits"), a, b),
    "rel_entr": (kj.rel_entr, p, q),
    "kl_div": (kj.kl_div, p, q),
    "kl_divergence": (kj.kl_divergence, log_q, p),
    "kl_divergence where": (lambda x, t: kj.kl_divergence(x, t, where=t > 1e-5), log_q, p),
    "kl_divergence_with_log_targets": (kj.kl_divergence_with_log_targets, log_q, log_p),
    "generalized_kl_divergence": (kj.generalized_kl_divergence, log_q, p),
}
LOSSES = {
    "kl_loss": (lambda s, t: kl_loss(student=s, teacher=t, reduction="none"), a, b),
    "kl_loss reverse": (lambda s, t: kl_loss(student=s, teacher=t, reduction="none", direction="reverse"), a, b),
    "kl_loss js": (lambda s, t: kl_loss(student=s, teacher=t, reduction="none", direction="js", temperature=2.0), a, b),
}
# As on accelerators, which compile other formulas.
ACCELERATED = {
    **{f"{name} accelerated": case for name, case in LOSSES.items() if name != "kl_loss reverse"},
    "kl_loss bfloat16": (LOSSES["kl_loss"][0], *(np.asarray(jnp.asarray(z, jnp.bfloat16)) for z in (a, b))),
}
PLAIN = tuple(FUNCTIONS)
FUNCTIONS |= LOSSES | ACCELERATED
MESHES = {"8": ((8,), ("k",), P(None, "k")), "2x4": ((2, 4), ("n", "k"), P("n", "k"))}
COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-to-all|all-reduce|reduce-scatter|collective-permute|collective-broadcast)(?:-start)?\(")


def collectives(compiled):
    """(operation, numbers in its largest result) of each."""
    for shapes, operation in COLLECTIVE.findall(compiled.as_text()):
        sizes = [math.prod(int(n) for n in dims.split(",") if n) for dims in re.findall(r"\w+\[([\d,]*)\]", shapes)]
        yield operation, max(sizes)


def measure(mesh_name, axis_type, functions=PLAIN):
    shape, names, spec = MESHES[mesh_name]
    mesh = jax.make_mesh(shape, names, axis_types=(axis_type,) * len(names))
    with jax.set_mesh(mesh) if axis_type == AxisType.Explicit else contextlib.nullcontext():
        for name in functions:
            function, *arrays = FUNCTIONS[name]
            gradient = jax.grad(lambda x, y, f=function: f(x, y).sum(), (0, 1))
            for what, f in (("value", function), ("gradient", gradient)):
                expected = jax.tree.leaves(plain[name, what])
                sharded = [jax.device_put(z, NamedSharding(mesh, spec)) for z in arrays]
                compiled = jax.jit(f).lower(*sharded).compile()
                found = jax.tree.leaves(compiled(*sharded))
                # Operation by operation on one kind of mesh: each is compiled for it.
                eager = [f(*sharded)] if what == "value" and (mesh_name, axis_type) == ("2x4", AxisType.Auto) and name in PLAIN else []
                # To the largest of the array: a gradient has elements near 0. Per row for the values of one number a row.
                worst = max(
                    float((np.abs(np.asarray(x, np.float32) - y) / (np.abs(y) if y.ndim == 1 else np.abs(y).max())).max())
                    for x, y in zip(found + eager, expected * 2)
                )
                assert len(found[0].sharding.device_set) == 8
                seen = list(collectives(compiled))
                print(name, what, mesh_name, axis_type.name, worst, ";".join(f"{op}:{size}" for op, size in seen), sep="|")


def as_floats(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float32), tree)


plain = {}


def measure_plain(name):
    function, *arrays = FUNCTIONS[name]
    wrapped = (lambda f: f) if name in PLAIN else jax.jit
    arrays = [jnp.asarray(z) for z in arrays]
    plain[name, "value"] = as_floats(wrapped(function)(*arrays))
    plain[name, "gradient"] = as_floats(wrapped(jax.grad(lambda x, y, f=function: f(x, y).sum(), (0, 1)))(*arrays))


for name in (*PLAIN, *LOSSES):
    measure_plain(name)
# With one axis instead of two XLA has less to choose from: a sum, and the exact formula.
measure("8", AxisType.Auto, ("kl of logits", "kl_divergence"))
measure("2x4", AxisType.Auto)
measure("2x4", AxisType.Explicit, (*PLAIN, *LOSSES))
looked_for, jax_ops.on_accelerator = jax_ops.on_accelerator, lambda x: True
for name in ACCELERATED:
    measure_plain(name)
measure("2x4", AxisType.Auto, tuple(ACCELERATED))
measure("2x4", AxisType.Explicit, ("kl_loss bfloat16",))
jax_ops.on_accelerator = looked_for


def measure_linear(mesh_name, tokens, directions):
    """`linear_kl` with the projection's rows, and the teacher's, on several devices; `tokens` at a time."""
    shape, names, spec = MESHES[mesh_name]
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))
    own = np.random.default_rng(6)
    sizes = {"hidden": (ROWS, 8), "weight": (CATEGORIES, 8), "teacher_hidden": (ROWS, 4), "teacher_weight": (CATEGORIES, 4)}
    arrays = [own.standard_normal(size).astype(np.float32) for size in sizes.values()]
    placed = [
        jax.device_put(x, NamedSharding(mesh, P(spec[1], None) if "weight" in name else P(spec[0], None)))
        for name, x in zip(sizes, arrays)
    ]  # fmt: skip
    linear.BUDGET = tokens * CATEGORIES * 4

    def losses(hidden, weight, teacher_hidden, teacher_weight):
        projected = {"teacher_hidden": teacher_hidden, "teacher_weight": teacher_weight}
        given = {"teacher_logits": teacher_hidden @ teacher_weight.T}  # which lie as the student's would
        return jnp.stack([
            linear_kl(hidden=hidden, weight=weight, direction=d, **(projected if d == "forward" else given)) for d in directions
        ])  # fmt: skip

    factors = jnp.arange(1.0, 1.0 + len(directions))
    step = jax.value_and_grad(lambda *given: ((found := losses(*given)) @ factors, found), (0, 1), has_aux=True)
    (_, expected), expected_slopes = jax.jit(step)(*arrays)
    compiled = jax.jit(step).lower(*placed).compile()
    (_, found), slopes = compiled(*placed)
    seen = ";".join(f"{op}:{size}" for op, size in collectives(compiled))
    for what, one, other in (("value", (found,), (expected,)), ("gradient", slopes, expected_slopes)):
        worst = max(float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(np.asarray(y)).max()) for x, y in zip(one, other))
        print(f"linear_kl by {tokens}", what, mesh_name, "Auto", worst, seen, sep="|")


measure_linear("8", 4, ("forward", "reverse", "js"))
measure_linear("2x4", ROWS, ("js",))

# By hand: each device its own categories, and a psum.
mesh = jax.make_mesh((8,), ("k",), axis_types=(AxisType.Auto,))
by_hand = jax.shard_map(lambda x, t: jax.lax.psum(kj.kl_divergence(x, t), "k"), mesh=mesh, in_specs=P(None, "k"), out_specs=P())
worst = float(np.abs(np.asarray(jax.jit(by_hand)(log_q, p)) / plain["kl_divergence", "value"] - 1).max())
print("shard_map|value|8|Manual", worst, "", sep="|")

# What is looked for, so that it is known to be found.
gather = jax.jit(lambda x: x + 1.0, out_shardings=NamedSharding(mesh, P()))
seen = list(collectives(gather.lower(jax.device_put(p, NamedSharding(mesh, P(None, "k")))).compile()))
print("gather|value|8|Auto|0.0", ";".join(f"{op}:{size}" for op, size in seen), sep="|")

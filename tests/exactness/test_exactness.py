"""Values and gradients against mpmath, on every framework: the bounds of the contract, from KL 1e-14 up to what the dtype can hold."""

from __future__ import annotations

from functools import lru_cache, partial

import ml_dtypes
import numpy as np
import pytest

import kullback as kb
import oracle
from frameworks import WITH_INDUCTOR
from oracle import GRADIENT_BOUND, VALUE_BOUND

# 100,000 categories are 1,000 different ones, each 100 times, in random order: the oracle needs 1,000 evaluations, not 100,000.
SIZES = {2: 1, 10: 1, 1000: 1, 100_000: 100}
# Root mean square differences of the logits; KL is about half their square, so from 1e-14 to far beyond where exp overflows.
STEPS = (2e-7, 1e-6, 1e-4, 1e-2, 0.3, 1.0, 4.0, 30.0, 1e3, 1e6)
SHIFTS = ((0, 0), (100, 0), (0, 100), (0, -100), (-100, 100))


def _rows(size, dtype, form, make):
    """make(rng, distinct, copies) yields pairs; rows with a true KL under 1e-14 are left out."""
    copies = SIZES[size]
    rng = np.random.default_rng((size, np.dtype(dtype).itemsize, len(str(form))))
    order = rng.permutation(size)
    xs, ys, values, to_xs, to_ys = [], [], [], [], []
    for pair in make(rng, size // copies, copies):
        x, y = (z.astype(dtype) for z in pair)
        truth = oracle.kl(x, y, form, copies=copies)
        if truth.value >= 1e-14:
            values.append(truth.value)
            for collected, z in ((xs, x), (ys, y), (to_xs, truth.to_x), (to_ys, truth.to_y)):
                collected.append(np.tile(z, copies)[order])
    assert len(values) >= 3
    return np.stack(xs), np.stack(ys), np.array(values), np.stack(to_xs), np.stack(to_ys)


@lru_cache(maxsize=1)
def logits(size, dtype):
    """P nearly uniform, moderate, and peaked; either side shifted by ±100."""

    def make(rng, distinct, copies):
        for i, step in enumerate(STEPS):
            for shift in SHIFTS if distinct < 1000 else (SHIFTS[i % len(SHIFTS)],):
                a = rng.normal(size=distinct) * (0.01, 1.0, 6.0)[i % 3]
                yield a + shift[0], a + step * rng.normal(size=distinct) + shift[1]

    return _rows(size, dtype, "logits", make)


@lru_cache(maxsize=1)
def log_probs(size, dtype):
    def make(rng, distinct, copies):
        for step in STEPS[:-2]:
            a = rng.normal(size=distinct) * 2
            b = a + step * rng.normal(size=distinct)
            yield tuple(z - np.log(copies * np.exp(z).sum()) for z in (a, b))

    return _rows(size, dtype, "log_probs", make)


@lru_cache(maxsize=1)
def probs(size, dtype):
    """Sums are off by rounding, and in some rows by nearly the 1e-3 that the contract accepts."""

    def make(rng, distinct, copies):
        for i, step in enumerate(STEPS[:-3]):
            for off in (1.0, 1.0009, 0.9992) if distinct < 1000 else ((1.0, 1.0009, 0.9992)[i % 3],):
                p = rng.dirichlet(np.full(distinct, 2.0))
                q = p * np.exp(step * rng.normal(size=distinct))
                # Below 1e-37 float32 is denormal, and XLA flushes denormals to zero.
                yield p / copies, np.maximum(q / q.sum() * off / copies, 1e-37)

    return _rows(size, dtype, "probs", make)


@lru_cache(maxsize=1)
def counts(size, dtype):
    def make(rng, distinct, copies):
        for step in (1e-6, 1e-3, 0.3, 3.0):
            p = rng.dirichlet(np.full(distinct, 2.0)) * 1e7 + 1
            yield p, p * np.exp(step * rng.normal(size=distinct)) * 3.7

    return _rows(size, dtype, "counts", make)


@lru_cache(maxsize=1)
def mixed(size, dtype, form):
    sides = {"probs": lambda z: z / z.sum(), "counts": lambda z: z * 1e5, "logits": np.log, "log_probs": lambda z: np.log(z / z.sum())}

    def make(rng, distinct, copies):
        for step in (1e-6, 1e-3, 0.3, 3.0):
            p = rng.dirichlet(np.full(distinct, 2.0))
            q = p * np.exp(step * rng.normal(size=distinct))
            yield sides[form[0]](p), sides[form[1]](q)

    return _rows(size, dtype, form, make)


# Everything on the frameworks that compile nothing.
FORMS = ("logits", "log_probs", "probs")
EVERYTHING = [(form, dtype, size) for form in FORMS for dtype in VALUE_BOUND for size in SIZES]
MIXED = ["counts", ("probs", "log_probs"), ("logits", "probs"), ("counts", "logits")]
EVERYTHING += [(form, dtype, size) for form in MIXED for dtype in VALUE_BOUND for size in (2, 1000)]
# The others take seconds a row. What a compiler may spoil is the formula (of logs, which log_probs share with logits, or of probabilities),
# in a dtype, summed over few categories, a thousand or many: every two of these meet below. Of the mixed forms each has one row.
COVERING = [
    ("logits", np.float64, 10), ("logits", np.float32, 1000), ("logits", np.float32, 100_000),
    ("probs", np.float32, 10), ("probs", np.float64, 1000), ("probs", np.float32, 100_000),
    ("log_probs", np.float64, 2), ("counts", np.float32, 1000), (("probs", "log_probs"), np.float64, 2),
    (("logits", "probs"), np.float32, 2), (("counts", "logits"), np.float64, 1000),
]  # fmt: skip
# Inductor takes half a minute a row: of logs and of probabilities, in either dtype, few and many.
INDUCTOR = [("logits", np.float64, 10), ("logits", np.float32, 100_000), ("probs", np.float64, 1000), ("probs", np.float32, 100_000)]
# Without x64 JAX has no float64: jax-jit-x64 has those rows. All frameworks take a case in turn, so that only its numbers are in memory.
GRID = [
    pytest.param(framework, *case, id="-".join([framework.name, str(case[0]), case[1].__name__, str(case[2])]))
    for case in EVERYTHING
    for framework in WITH_INDUCTOR
    if (case in COVERING or not framework.costly)
    and (framework.double or case[1] == np.float32)
    and not (framework.slow and case[2] > 10)
    and (framework.name != "torch-inductor" or case in INDUCTOR)
]


@pytest.mark.parametrize(("framework", "form", "dtype", "size"), GRID)
def test_kl_and_its_gradients(framework, form, dtype, size):
    data = {"logits": logits, "log_probs": log_probs, "probs": probs, "counts": counts}.get(form, partial(mixed, form=form))(size, dtype)
    x, y, truth, *slopes = data
    # `rounding` of the log-ratio, where it cannot be had exactly, moves KL by that times sqrt(KL), and the gradient likewise.
    rounding = 0.0
    if form in MIXED and not (framework.double and (dtype == np.float32 or form == "counts")):
        # A log or a quotient of this dtype rounds: 5e-6 KL + C eps max|log p| sqrt(KL), C = 2 for the two sides of a log-ratio.
        forms = (form, form) if isinstance(form, str) else form
        rounding = 2 * np.finfo(dtype).eps * max(np.abs(z if "log" in f else np.log(z)).max() for z, f in zip((x, y), forms))
    function = lambda x, y: kb.kl(x, y, form=form)  # noqa: E731
    if framework.differentiable:
        value, gradients = framework.value_and_gradients(function, x, y)
    else:
        value, gradients = framework.run(function, x, y), []
    assert value.dtype == dtype
    assert (value >= 0).all()
    error = np.abs(value.astype(np.float64) - truth)
    fine = error <= VALUE_BOUND[dtype] * truth + rounding * np.sqrt(truth)
    assert fine.all(), f"worst relative error {np.max(error / truth):.2e} at KL {truth[np.argmax(error / truth)]:.2e}"
    for found, expected in zip(gradients, slopes):
        for row, (f, e) in enumerate(zip(found, expected)):
            worst = oracle.relative_error(f, e)
            assert worst <= GRADIENT_BOUND[dtype] + rounding / np.sqrt(truth[row]), f"gradient off by {worst:.2e} at KL {truth[row]:.2e}"


@pytest.mark.parametrize("framework", WITH_INDUCTOR, ids=repr)
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_as_exact_as_float32_on_the_same_numbers(framework, half, rng):
    if framework.name == "array-api-strict":
        pytest.skip("the standard has no half precision")
    if framework.name == "tinygrad-jit" and half is ml_dtypes.bfloat16:
        pytest.skip("TinyJit stores its inputs, and tinygrad's bfloat16 stores do not compile with clang 14; eager tinygrad covers it")
    a = rng.normal(size=(6, 50)).astype(half)
    b = (a.astype(np.float32) + 0.05 * rng.normal(size=a.shape)).astype(half)
    value = framework.run(lambda x, y: kb.kl(x, y, form="logits"), a, b)
    assert value.dtype == np.float32
    truth = [oracle.kl(x, y, "logits").value for x, y in zip(a, b)]
    assert np.max(np.abs(value / truth - 1)) <= VALUE_BOUND[np.float32]

"""Every finite pair of one-dimensional families, in every framework, against the definition (`truths.csv`, made by `truths.py`)."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import torch

import densities
import kullback as kb
import truths
from frameworks import Lazy
from kullback import distributions
from truth_rows import BOUND, PAIRS, ROWS, columns, records, worst

jax = Lazy("jax")
jnp = Lazy("jax.numpy")
tf = Lazy("tensorflow")
tinygrad = Lazy("tinygrad")


def test_no_pair_is_missing():
    assert set(truths.finite_pairs()) == set(PAIRS)
    assert len(PAIRS) >= 280


def test_the_file_is_what_the_definition_says():
    """Three rows, other ones each time: what is stored was not made by hand."""
    rng = np.random.default_rng()
    for _ in range(3):
        pair = PAIRS[rng.integers(len(PAIRS))]
        a, b, kind, truth = ROWS[pair][rng.integers(len(ROWS[pair]))]
        with mp.workdps(20):
            found = densities.definition(pair[0], a, pair[1], b, 35 if kind == "near" else 20)
        assert float(found) == pytest.approx(truth, rel=1e-14), (pair, a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_numpy(dtype):
    wrong = {}
    for pair in PAIRS:
        first, second, truth = columns(pair, dtype)
        found = kb.kl(*records(pair, first, second))
        assert found.dtype == dtype
        assert (found >= 0).all(), pair
        if worst(found, truth) > BOUND[dtype]:
            wrong[pair] = (worst(found, truth), ROWS[pair][int(np.argmax(np.abs(found - truth) / truth))])
    assert not wrong


@pytest.mark.parametrize(
    ("p", "a", "q", "b"),
    [
        ("GeneralizedNormal", (0.0, 1.0, 2.0), "Normal", (0.0, 0.7071078)),
        ("Weibull", (2.0, 1.0), "Rayleigh", (0.7071078,)),
        ("Rayleigh", (0.7071078,), "Weibull", (2.0, 1.0)),
        ("GeneralizedGamma", (0.5, 2.0, 1.0), "HalfNormal", (0.7071079,)),
        ("Gamma", (1.0, 3.0), "Weibull", (1.0, 0.33333343)),
        ("Levy", (2.0,), "InverseGamma", (0.5, 1.0000001)),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_scales_of_one_family_beside_rates_of_another(p, a, q, b):
    """Nearly one law, at parameters that round: the logarithms of scales and rates cancel."""
    with mp.workdps(50):
        truth = densities.definition(p, a, q, b, 40)
    found = kb.kl(getattr(distributions, p)(*a), getattr(distributions, q)(*b))
    assert abs(found - truth) <= 1e-14 * truth  # a few roundings of 1e-16, squared


def test_torch_with_gradients():
    wrong = {}
    for pair in PAIRS:
        first, second, truth = columns(pair, np.float32)
        first, second = ([torch.tensor(x, requires_grad=True) for x in side] for side in (first, second))
        found = kb.kl(*records(pair, first, second))
        gradients = torch.autograd.grad(found.sum(), [*first, *second], allow_unused=True)
        # Where the closed form is for equal ones (or for a count of 1), a derivative to one of them has no meaning.
        tied = truths.condition(*(getattr(distributions, name) for name in pair)) is not None
        missing = any(g is None and not tied for g in gradients)
        if worst(found.detach(), truth) > BOUND[np.float32] or missing or any(g is not None and not g.isfinite().all() for g in gradients):
            wrong[pair] = (worst(found.detach(), truth), gradients)
    assert not wrong


AT_AN_EDGE = {("HalfCauchy", "Cauchy", 1), ("Pareto", "Pareto", 1), ("Pareto", "Pareto", 3)}


def test_torch_gradients_are_right():
    """Against differences of values, which are right, at the moderate row."""
    for pair in PAIRS:
        row = ROWS[pair][[row[2] for row in ROWS[pair]].index("moderate")]
        inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (*row[0], *row[1])]
        n = len(row[0])
        free = [
            i
            for i, x in enumerate((*truths.PARAMETERS[pair[0]].split(), *truths.PARAMETERS[pair[1]].split()))
            # At equal scales the KL of two Paretos is inf on one side: there are no differences.
            if x not in ("trials", "failures") and (*pair, i) not in AT_AN_EDGE
        ]
        tied = truths.SAME.get(pair)

        def value(*moved, pair=pair, n=n, inputs=inputs, free=free, tied=tied):
            all_of_them = list(inputs)
            for i, x in zip(free, moved):
                all_of_them[i] = x
            if tied is not None:  # the closed form is for equal ones
                all_of_them[n + tied] = all_of_them[tied]
            return kb.kl(*records(pair, all_of_them[:n], all_of_them[n:]))

        moved = tuple(inputs[i] for i in free)
        assert torch.autograd.gradcheck(value, moved, atol=1e-5, rtol=1e-3), pair


def test_jax_without_x64():
    assert not jax.config.jax_enable_x64
    wrong = {}
    for pair in PAIRS:
        first, second, truth = columns(pair, np.float32)
        n = len(first)
        arrays = [jnp.asarray(x) for x in (*first, *second)]

        def value(*xs, pair=pair, n=n):
            return kb.kl(*records(pair, xs[:n], xs[n:]))

        found = value(*arrays)
        assert found.dtype == jnp.float32
        if worst(found, truth) > BOUND[np.float32]:
            wrong[pair] = worst(found, truth)
    assert not wrong


def test_tensorflow():
    wrong = {}
    for pair in PAIRS:
        first, second, truth = columns(pair, np.float32)
        first, second = ([tf.constant(x) for x in side] for side in (first, second))
        found = kb.kl(*records(pair, first, second)).numpy()
        if worst(found, truth) > BOUND[np.float32]:
            wrong[pair] = worst(found, truth)
    assert not wrong


# One of each formula: tinygrad compiles every one for seconds.
FEW = [
    ("Gamma", "Gamma"),
    ("Gamma", "Weibull"),
    ("Beta", "Normal"),
    ("VonMises", "VonMises"),
    ("ContinuousBernoulli", "ContinuousBernoulli"),
    ("Uniform", "Gamma"),
    ("Normal", "Laplace"),
    ("LogNormal", "Gamma"),
    ("Gamma", "LogNormal"),
    ("Bernoulli", "Poisson"),
    ("Logistic", "Logistic"),
    ("Pareto", "Gamma"),
]


@pytest.mark.parametrize("pair", FEW, ids="-".join)
def test_tinygrad(pair):
    first, second, truth = columns(pair, np.float32)
    first, second = ([tinygrad.Tensor(x) for x in side] for side in (first, second))
    assert worst(kb.kl(*records(pair, first, second)).numpy(), truth) <= BOUND[np.float32]

"""Sparse teachers (`losses.TopK`): every convention and direction against its definition at 50 digits; what is wrong is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpmath import mp

import oracle
from frameworks import ALL
from kullback.losses import TopK, kl_loss
from kullback.losses.sparse import TAILS

DIRECTIONS = ["forward", "reverse", "js", "skew", "reverse_skew"]
MIX = 0.3
CASES = [(tail, direction) for tail in TAILS for direction in TAILS[tail]]
V, K = 9, 3
# The others are compiled for seconds, and run one function of everything: test_linear_kl.py.
QUICK = [f for f in ALL if not f.costly]


def _divergence(s, t, direction):
    w = mp.mpf(MIX)
    kl = lambda p, q: mp.fsum(a * mp.log(a / b) for a, b in zip(p, q) if a)  # noqa: E731
    mix = lambda p, q: [w * a + (1 - w) * b for a, b in zip(p, q)]  # noqa: E731
    return {
        "forward": lambda: kl(t, s),
        "reverse": lambda: kl(s, t),
        "js": lambda: w * kl(t, mix(t, s)) + (1 - w) * kl(s, mix(t, s)),
        "skew": lambda: kl(t, mix(t, s)),
        "reverse_skew": lambda: kl(s, mix(s, t)),
    }[direction]()


def truth(student, places, log_probs, tail, direction, temperature=1):
    """As the docstring of TopK defines it."""
    weights = [mp.exp(mp.mpf(v) / temperature) for v in student]
    q = [w / mp.fsum(weights) for w in weights]
    p = [mp.exp(mp.mpf(float(v))) for v in log_probs]
    chosen = [q[i] for i in places]
    m, mq = mp.fsum(p), mp.fsum(chosen)
    others = [i for i in range(len(q)) if i not in set(places)]
    if tail == "bucket":
        return _divergence([*chosen, mp.fsum(q[i] for i in others)], [*p, 1 - m], direction)
    if tail == "renormalize":
        return _divergence([a / mq for a in chosen], [a / m for a in p], direction)
    if tail == "ignore":
        return mp.fsum(a * mp.log(a / b) for a, b in zip(p, chosen))
    full = [mp.mpf(0) if tail == "renormalize_teacher" else (1 - m) / len(others)] * len(q)
    for i, a in zip(places, p):
        full[i] = a / m if tail == "renormalize_teacher" else a
    return _divergence(q, full, direction)


def _case(rng, distance, dtype, rows=2):
    teacher = 2 * rng.normal(size=(rows, V))
    student = (teacher + distance * rng.normal(size=(rows, V))).astype(dtype)
    logs = teacher - np.log(np.exp(teacher).sum(-1, keepdims=True))
    places = np.argsort(-logs, -1)[:, :K]
    return student, places, np.take_along_axis(logs, places, -1).astype(dtype)


def _options(direction):
    return {"direction": direction} if direction in ("forward", "reverse") else {"direction": direction, "mix": MIX}


@pytest.mark.parametrize("framework", QUICK, ids=repr)
@pytest.mark.parametrize(("tail", "direction"), CASES)
def test_every_convention_and_direction(framework, rng, tail, direction):
    student, places, logs = _case(rng, 1.0, np.float64)
    found = framework.run(
        lambda s: kl_loss(student=s, teacher=TopK(places, logs, tail, 2.0), temperature=2.0, reduction="none", **_options(direction)),
        student,
    )
    expected = [float(truth(s, p, lp, tail, direction, 2)) for s, p, lp in zip(student, places, logs)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)  # the array contract, in float64


@pytest.mark.parametrize(("tail", "direction"), CASES)
def test_gradients(rng, tail, direction):
    student, places, logs = _case(rng, 1.0, np.float64, 1)
    x = torch.tensor(student, requires_grad=True)
    kl_loss(student=x, teacher=TopK(places, logs, tail), **_options(direction)).backward()
    expected = oracle.central_difference(lambda s: truth(s, places[0], logs[0], tail, direction), student[0])
    assert oracle.relative_error(x.grad[0], expected) < 1e-11


@pytest.mark.parametrize("distance", [1e-2, 1e-4])
@pytest.mark.parametrize("tail", ["bucket", "renormalize"])
def test_small_divergences_keep_their_digits(rng, tail, distance):
    """float32 logits and log-probs: the log-probs of a student close by cancel against them to KL 1e-9."""
    teacher = 2 * rng.normal(size=(1, 400))
    student = (teacher + distance * rng.normal(size=teacher.shape)).astype(np.float32)
    logs = teacher - np.log(np.exp(teacher).sum())
    places = np.argsort(-logs)[:, :50]
    logs = np.take_along_axis(logs, places, -1).astype(np.float32)
    expected = float(truth([float(v) for v in student[0]], list(places[0]), logs[0], tail, "forward"))
    assert expected < distance**2
    found = kl_loss(student=torch.tensor(student), teacher=TopK(torch.tensor(places), torch.tensor(logs), tail))
    assert found.item() == pytest.approx(expected, rel=5e-6)  # the array contract
    assert found.dtype == torch.float32


def test_the_bucket_is_a_lower_bound_that_a_whole_vocabulary_reaches(rng):
    student, teacher = rng.normal(size=(2, 1, V))
    logs = teacher - np.log(np.exp(teacher).sum())
    order = np.argsort(-logs)
    full = kl_loss(student=student, teacher=teacher)
    found = [kl_loss(student=student, teacher=TopK(order[:, :k], np.take_along_axis(logs, order[:, :k], -1))) for k in range(1, V + 1)]
    assert (np.diff(found) >= -1e-15).all()
    assert found[-1] == pytest.approx(full, rel=1e-12)


def test_masked_rows_may_hold_anything(rng):
    student, places, logs = _case(rng, 1.0, np.float64)
    expected = float(truth(student[0], places[0], logs[0], "bucket", "forward"))
    student[1], places[1], logs[1] = np.nan, -100, np.nan
    x = torch.tensor(student, requires_grad=True)
    value = kl_loss(student=x, teacher=TopK(places, logs), weights=[2.0, 0.0])
    value.backward()
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert (x.grad[1] == 0).all()
    assert torch.isfinite(x.grad).all()


def test_valid(rng):
    student, places, logs = _case(rng, 1.0, np.float64)
    expected = [float(truth(s, p, l, "bucket", "forward")) for s, p, l in zip(student, places, logs)]
    padded = np.concatenate([student, np.full((len(student), 3), 7.0)], -1)
    found = kl_loss(student=padded, teacher=TopK(places, logs), valid=V, reduction="none")
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(ValueError, match=f"valid is {V + 4}: .* from 1 to the {V + 3} there are"):
        kl_loss(student=padded, teacher=TopK(places, logs), valid=V + 4)


def test_edges(rng):
    logs = np.log([[0.5, 0.5]])
    certain = kl_loss(student=np.array([[1.0, 2.0, 0.0]]), teacher=TopK([[0, 1]], logs))
    q = np.exp([1.0, 2.0, 0.0]) / np.exp([1.0, 2.0, 0.0]).sum()
    assert certain == pytest.approx(-np.log(2) - 0.5 * np.log(q[:2]).sum())
    assert kl_loss(student=np.array([[1.0, 2.0, 0.0]]), teacher=TopK([[0, 1]], logs), direction="reverse") == np.inf
    # The student has nothing where the teacher has a rest.
    assert kl_loss(student=np.array([[1.0, 2.0, -np.inf]]), teacher=TopK([[0, 1]], logs - 0.1)) == np.inf
    assert np.isnan(kl_loss(student=np.array([[1.0, np.nan, 0.0]]), teacher=TopK([[0, 1]], logs)))


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_categories_of_probability_0_alone(make):
    """Regression: NaN without a reason. What the k are divided by is 0; where nothing is divided, they say nothing."""
    x = make(np.array([[1.0, 2.0, 0.0]]))
    q = np.exp([1.0, 2.0, 0.0]) / np.exp([1.0, 2.0, 0.0]).sum()
    for k in (1, 2):
        top = TopK(make(np.arange(k)[None]), make(np.full((1, k), -np.inf)))
        for tail in ("renormalize", "renormalize_teacher"):
            with pytest.raises(ValueError, match=rf"^log_probs of row 0 are -inf everywhere, and tail='{tail}' divides by their sum"):
                kl_loss(student=x, teacher=top._replace(tail=tail))
            assert kl_loss(student=x, teacher=top._replace(tail=tail), weights=[0.0]) == 0
        assert kl_loss(student=x, teacher=top._replace(tail="ignore")) == 0  # Σ p log(p/q) over them
        assert float(kl_loss(student=x, teacher=top)) == pytest.approx(-np.log(q[k:].sum()), rel=1e-12)


def test_other_errors():
    x = np.zeros((2, 5))
    top = TopK(np.array([[0, 1], [2, 3]]), np.full((2, 2), -1.0))
    for change, what in (
        ({"indices": np.array([[0, 1], [2, 5]])}, "indices of row 1 hold 5: categories are 0 to 4"),
        ({"indices": np.array([[0, 1], [2, -1]])}, "indices of row 1 hold -1"),
        ({"indices": np.array([[0, 1], [2, 2]])}, "indices of row 1 name a category twice"),
        ({"log_probs": np.array([[-1.0, -1.0], [2.0, 1.0]])}, "log_probs of row 1 have exponentials that sum to 10.1073, above 1: logits"),
        ({"log_probs": np.zeros((2, 3))}, r"log_probs have shape \(2, 3\)"),
        ({"indices": np.zeros((2, 6), int), "log_probs": np.zeros((2, 6))}, "a TopK of 6 among 5 categories"),
        ({"tail": "drop"}, "tail is 'drop': it must be one of 'bucket'"),
        ({"temperature": 2.0}, "temperature is 1.0 and the teacher's log_probs were taken at 2.0"),
    ):
        with pytest.raises(ValueError, match=what):
            kl_loss(student=x, teacher=top._replace(**change))
    with pytest.raises(TypeError, match="indices have dtype float64"):
        kl_loss(student=x, teacher=top._replace(indices=np.zeros((2, 2))))
    with pytest.raises(ValueError, match="tail='ignore' has no direction='reverse'"):
        kl_loss(student=x, teacher=top._replace(tail="ignore"), direction="reverse")
    with pytest.raises(RuntimeError, match="these are NumPy arrays"):
        kl_loss(student=x, teacher=top, impl="triton")

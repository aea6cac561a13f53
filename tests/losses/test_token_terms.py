"""`losses.token_terms`: log-probs, exact KL and k1, k2, k3 of drawn tokens, against 50 digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpmath import mp

import oracle
from frameworks import ALL
from kullback.losses import token_terms

# The others are compiled for seconds, and run one function of everything: test_linear_kl.py.
QUICK = [f for f in ALL if not f.costly]
NAMES = ["logp", "logp_ref", "kl", "k1", "k2", "k3"]


def truth(logits, logits_ref, token, temperature=1):
    sides = [[v / temperature for v in map(_number, x)] for x in (logits, logits_ref)]
    logp, logq = ([v - mp.log(mp.fsum(map(mp.exp, x))) for v in x] for x in sides)
    l = logq[token] - logp[token]
    return [logp[token], logq[token], mp.fsum(mp.exp(a) * (a - b) for a, b in zip(logp, logq)), -l, l * l / 2, mp.exp(l) - 1 - l]


def _number(v):
    return v if isinstance(v, mp.mpf) else mp.mpf(float(v))


@pytest.mark.parametrize("framework", QUICK, ids=repr)
@pytest.mark.parametrize("distance", [1.0, 1e-4])
def test_values(framework, rng, distance):
    x = rng.normal(size=(2, 3, 7)).astype(np.float32)
    y = (x + distance * rng.normal(size=x.shape)).astype(np.float32)
    tokens = rng.integers(0, 7, (2, 3))
    for i, name in enumerate(NAMES):
        found = framework.run(lambda x, y, name=name: getattr(token_terms(x, y, tokens, temperature=2.0), name), x, y)
        expected = [[float(truth(x[j], y[j], tokens[j], 2)[i]) for j in ((a, b) for b in range(3))] for a in range(2)]
        # The array contract; log-probs are differences of numbers of size 5.
        np.testing.assert_allclose(found, expected, rtol=5e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(rng, name):
    x, y = rng.normal(size=(2, 5))
    leaf = torch.tensor(x[None], requires_grad=True)
    term = getattr(token_terms(leaf, torch.tensor(y[None]), torch.tensor([3])), name)
    if name == "logp_ref":
        assert not term.requires_grad
        return
    term.sum().backward()
    expected = oracle.central_difference(lambda row: truth(row, y, 3)[NAMES.index(name)], x)
    assert oracle.relative_error(leaf.grad[0], expected) < 1e-11


def test_masks_absent_tokens_and_padding(rng):
    x, y = rng.normal(size=(2, 3, 5))
    tokens = np.array([1, 4, -100])
    expected = [float(v) for v in truth(x[0], y[0], 1)]
    x[2], y[1, 4] = np.nan, -np.inf
    leaf = torch.tensor(x, requires_grad=True)
    terms = token_terms(leaf, torch.tensor(y), tokens, mask=[True, True, False])
    assert [float(t.detach()[0]) for t in terms] == pytest.approx(expected, rel=1e-12)
    assert [float(t.detach()[2]) for t in terms] == [0.0] * 6
    assert all(float(t.detach()[1]) == np.inf for t in terms[2:])  # the reference cannot produce token 4
    sum(t[[0, 2]].sum() for t in terms).backward()
    assert torch.isfinite(leaf.grad[0]).all()
    assert (leaf.grad[2] == 0).all()
    wider = token_terms(torch.tensor(x[:1]), torch.nn.functional.pad(torch.tensor(y[:1]), (0, 3), value=-np.inf), tokens[:1])
    assert [float(t[0]) for t in wider] == pytest.approx(expected, rel=1e-12)


def test_errors():
    x = np.zeros((2, 5))
    with pytest.raises(ValueError, match="tokens hold 5 at 1: categories are 0 to 4; mask what is padding"):
        token_terms(x, x, [0, 5])
    with pytest.raises(ValueError, match=r"tokens have shape \(3,\)"):
        token_terms(x, x, [0, 1, 2])
    with pytest.raises(TypeError, match="tokens have dtype float64"):
        token_terms(x, x, [0.0, 1.0])
    with pytest.raises(ValueError, match="logits have shape"):
        token_terms(x, x[:1], [0, 1])
    with pytest.raises(RuntimeError, match="impl='triton' cannot run"):
        token_terms(x, x, [0, 1], impl="triton")

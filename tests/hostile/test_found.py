"""What the search for hostile input has found, each with its smallest input. The truth is mpmath's (`judge`)."""

from __future__ import annotations

import judge
import ml_dtypes
import mpmath as mp
import numpy as np
import pytest
import tensorflow as tf
import torch

import kullback as kb
from kullback.losses import kl_loss

P, Q = [0.3, -1.0, 2.0], [0.1, 0.4, -2.0]


def kl(p, q, form="logits", temperature=1.0):
    with mp.workdps(60):
        return float(judge.kl(*(judge.log_normalised(row, form, mp.mpf(temperature), None) for row in (p, q))))


MAKERS = pytest.mark.parametrize(
    "make", [lambda x: torch.tensor(x, dtype=torch.float64), lambda x: tf.constant(x, tf.float64)], ids=["torch", "tensorflow"]
)


@MAKERS
def test_numbers_beside_float64_tensors_keep_their_digits(make):
    """PyTorch and TensorFlow read Python's numbers as float32: results in float64 were good to 1e-8 only."""
    exact = pytest.approx(kl(P, Q), rel=1e-12)
    assert float(kb.kl(make(P), Q, form="logits")) == exact
    assert float(kb.kl(P, make(Q), form="logits")) == exact
    warm = pytest.approx(kl(P, Q, temperature=0.9), rel=1e-12)
    assert float(kb.kl(make(P), make(Q), form="logits", temperature=0.9)) == warm
    assert float(kb.kl(make(P), make(Q), form="logits", temperature=np.float64(0.9))) == warm
    assert float(kl_loss(student=make(Q), teacher=make(P), temperature=0.9)) == warm
    assert float(kb.kl(make([P]), make([Q]), form="logits", weights=[0.1])[0]) == pytest.approx(0.1 * kl(P, Q), rel=1e-12)


@MAKERS
def test_numbers_out_of_the_range_of_float32_join_float64_tensors(make):
    """TensorFlow refused 1e300 beside float64, and PyTorch took it for infinity."""
    assert float(kb.rel_entr(make(2.0), 1e300)) == pytest.approx(2 * np.log(2 / 1e300), rel=1e-12)


@pytest.mark.parametrize("dtype", [">f4", ">f8"])
def test_lists_beside_big_endian_arrays(dtype):
    """The list was given the other byte order, and then refused for it."""
    found = kb.kl(np.array([0.25, 0.75], dtype), [0.5, 0.5])
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    assert float(found) == pytest.approx(kl([0.25, 0.75], [0.5, 0.5], "probs"), rel=5e-6)


def test_bfloat16_stays_half_precision_beside_lists_and_weights():
    """Both made float64 of it, where half precision gives float32."""
    x = np.array([[0.25, 0.75]], ml_dtypes.bfloat16)
    assert kb.kl(x, [[0.5, 0.5]]).dtype == np.float32
    assert kb.kl(x, x[:, ::-1], weights=[2.0]).dtype == np.float32


def test_tensors_whose_sign_is_a_bit():
    """The imaginary part of a conjugate is a view that PyTorch negates on the fly: the check of its values, and its halves, raised."""
    z = torch.complex(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[-0.25, -0.75], [-0.4, -0.6]], dtype=torch.float64)).conj().imag
    assert z.is_neg()
    assert float(kb.kl(z, z.flip(-1))[0]) == pytest.approx(kl([0.25, 0.75], [0.75, 0.25], "probs"), rel=1e-12)
    assert float(kb.js(z, z.flip(-1).clone())[0]) > 0
    with pytest.raises(ValueError, match="row 0 sums to 2"):
        kb.kl(z * 2, z)
    doubled = torch.complex(torch.zeros(2), torch.tensor([-0.5, -1.5])).conj().imag
    with pytest.raises(ValueError, match="sums to 2, not 1"):
        kb.kl(doubled, doubled.clone())

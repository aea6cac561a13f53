"""Faults that the search for hostile input has found, each with its smallest input. mpmath gives the truth (`judge`)."""

from __future__ import annotations

import warnings

import judge
import ml_dtypes
import mpmath as mp
import numpy as np
import pytest
import torch

import kullback as kb
from kullback.losses import kimi_k15, kl_loss

P, Q = [0.3, -1.0, 2.0], [0.1, 0.4, -2.0]


def kl(p, q, form="logits", temperature=1.0):
    with mp.workdps(60):
        return float(judge.kl(*(judge.log_normalised(row, form, mp.mpf(temperature), None) for row in (p, q))))


def tensorflow(x, dtype=None):
    import tensorflow as tf

    return tf.constant(x, dtype)


MAKERS = pytest.mark.parametrize(
    "make", [lambda x: torch.tensor(x, dtype=torch.float64), lambda x: tensorflow(x, "float64")], ids=["torch", "tensorflow"]
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


@pytest.mark.parametrize("make", [np.array, lambda x: torch.tensor(x, dtype=torch.float64)], ids=["numpy", "torch"])
def test_counts_whose_shares_have_a_quotient_beyond_float64(make):
    """KL and JS were -inf: a share of 2e-309 was only rescaled if its count was small too."""
    p, q = [0.2, 1e308], [13.0, 6.0]
    mean = [6.5 / 19, 12.5 / 19]  # a share of 2e-309 changes no digit
    js = (kl([0.0, 1.0], mean, "probs") + kl([13 / 19, 6 / 19], mean, "probs")) / 2
    x, y = make([p, p]), make([q, q])
    for function, a, b, truth in ((kb.kl, x, y, kl(p, q, "counts")), (kb.kl, y, x, kl(q, p, "counts")), (kb.js, x, y, js)):
        exact = pytest.approx(truth, rel=1e-12)
        assert [float(v) for v in function(a, b, form="counts")] == [exact, exact]
        assert float(function(a[0], b[0], form="counts")) == exact


@MAKERS
def test_numbers_out_of_the_range_of_float32_join_float64_tensors(make):
    """TensorFlow refused 1e300 beside float64, and PyTorch took it for infinity."""
    assert float(kb.rel_entr(make(2.0), 1e300)) == pytest.approx(2 * np.log(2 / 1e300), rel=1e-12)


@pytest.mark.parametrize("make", [torch.tensor, tensorflow], ids=["torch", "tensorflow"])
def test_numbers_beside_whole_numbers_keep_their_digits(make):
    """The result is float64, but the list was read as float32."""
    p, q = [3, 5, 1], [0.1, 0.7, 1.3]
    assert float(kb.kl(make(p), q, form="counts")) == pytest.approx(kl(p, q, "counts"), rel=1e-12)
    assert float(kb.cross_entropy(q, make(p), form="counts")) == pytest.approx(
        kl(q, p, "counts") - sum(x / 2.1 * np.log(x / 2.1) for x in q), rel=1e-12
    )


@pytest.mark.parametrize("make", [np.array, lambda x: torch.tensor(x, dtype=torch.float64)], ids=["numpy", "torch"])
def test_kimi_averages_responses_in_a_batch(make):
    """`reduction="batchmean"` gave their sum: a response is one term there, and the batch was taken for one sequence."""
    logp, reference = make([[-1.0, -2.0], [-0.5, -3.0], [-1.0, -1.0]]), make([[-1.5, -1.9], [-0.6, 0.0], [-1.0, -2.0]])
    # ½ (Σ log π − Σ log π_i)² of each response
    each = [0.5 * 0.4**2, 0.5 * 2.9**2, 0.5 * 1.0**2]
    mean = pytest.approx(sum(each) / 3, rel=1e-12)
    for reduction in ("mean", "batchmean", "sequence_mean"):
        assert float(kimi_k15(logp, reference, reduction=reduction)) == mean
    assert [float(x) for x in kimi_k15(logp, reference, reduction="none")] == pytest.approx(each, rel=1e-12)
    # A response without a token counts in the batch, not in the mean over those that have any.
    mask = make([[1, 1], [0, 1], [0, 0]])
    kept = [0.5 * 0.4**2, 0.5 * 3.0**2]
    assert float(kimi_k15(logp, reference, mask=mask)) == pytest.approx(sum(kept) / 2, rel=1e-12)
    assert float(kimi_k15(logp, reference, mask=mask, reduction="batchmean")) == pytest.approx(sum(kept) / 3, rel=1e-12)


def test_what_has_no_rows_of_one_length_is_no_side_of_a_comparison():
    """Sparse and nested tensors, and ragged lists, ended in the words of PyTorch and NumPy."""
    whole = np.full((2, 2), 0.5)
    nested = torch.nested.nested_tensor([torch.tensor([0.5, 0.5]), torch.tensor([1.0])])
    for odd in (torch.tensor(whole).to_sparse(), torch.tensor(whole).to_sparse_csr(), nested):
        with pytest.raises(ValueError, match=r"^P is a sparse or nested tensor: compare takes \["):
            kb.compare(odd, whole)
    with pytest.raises(ValueError, match=r"^Q holds rows of different lengths: compare takes \["):
        kb.compare(whole, [[0.5, 0.5], [1.0]])


def test_divergences_whose_squares_overflow():
    """The command printed NumPy's warning beside its figures."""
    p, q = np.zeros((2, 2)), np.array([[0.0, 1e200], [0.0, 3.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kb.compare(p, q, form="logits")
    assert found.kl_pq.mean == pytest.approx(2.5e199, rel=1e-10)
    assert found.kl_pq.deviation == np.inf


def test_a_comparison_that_is_left_without_rows_names_its_files(tmp_path):
    np.save(tmp_path / "p.npy", np.zeros((1, 3)))
    data = (tmp_path / "p.npy").read_bytes()
    (tmp_path / "q.npy").write_bytes(data[:-8])
    with pytest.raises(ValueError, match=r"p\.npy and .*q\.npy: no rows were compared$"):
        kb.compare(tmp_path / "p.npy", tmp_path / "q.npy", form="logits", allow_partial=True)


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

"""Comparing model outputs: the figures against extended precision, every kind of file against every other, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

import kullback as kb
from dumps import softmax, truth, write_llama
from kullback._compare import models
from kullback._compare.llama import open_llama
from kullback._compare.models import compare_models
from kullback._compare.sources import host, open_source
from kullback._compare.tables import profile
from kullback._kernels import comparison, cpu
from kullback._kernels.comparison import compare_rows
from kullback._read import ReadError

CONTEXT, CHUNKS, VOCABULARY = 32, 4, 101
ROWS = CHUNKS * (CONTEXT - 1 - CONTEXT // 2)
# What a row's figures promise, whatever the form and the size.
PROMISE = 1e-5


def pair(rng, rows, categories, noise, spread=2.0, dtype=np.float32):
    p = spread * rng.normal(size=(rows, categories))
    return p.astype(dtype), (p + noise * rng.normal(size=p.shape)).astype(dtype)


def close(found, expected, floor=0.0):
    # Extended precision, summed by hand, is itself good to about 1e-17: `floor` is what that leaves of the smallest.
    np.testing.assert_allclose(found, expected, rtol=PROMISE, atol=floor)


@pytest.mark.parametrize("categories", [2, 7, 256, 257, 5000])
@pytest.mark.parametrize("noise", [1e-4, 0.01, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_from_logits(monkeypatch, rng, categories, noise, dtype):
    monkeypatch.setattr(comparison, "SMALL", 0)  # in the arrays' own dtype, as if there were more rows
    p, q = pair(rng, 40, categories, noise, dtype=dtype)
    q += np.linspace(-50, 50, 40, dtype=dtype)[:, None]  # a constant changes nothing but the rounding of q, which is the caller's
    found = compare_rows(p, q, ("logits", "logits"), (1e-3, 1e-3))
    sure = found.decided
    assert sure.mean() > 0.7 or noise < 1e-3
    for values, expected in zip(found[:3], truth(softmax(p), softmax(q))):
        close(values[sure], expected[sure], floor=1e-18)
    np.testing.assert_array_equal(found.top_p, p.argmax(1))
    with np.errstate(divide="ignore"):
        logs = np.log(softmax(q))[np.arange(40), p.argmax(1)].astype(np.float64)
    # float32 differences of logits up to 60 apart.
    np.testing.assert_allclose(found.log_q, logs, atol=1e-5)


@pytest.mark.parametrize(
    "forms", [("probs", "probs"), ("log_probs", "logits"), ("probs", "logits"), ("counts", "probs"), ("logits", "counts")]
)
@pytest.mark.parametrize("noise", [0.02, 0.5])
def test_rows_from_every_form(rng, forms, noise):
    p, q = (softmax(x) for x in pair(rng, 60, 300, noise))
    as_form = {
        "probs": lambda x: x, "log_probs": np.log, "logits": lambda x: np.log(x) + 3.0, "counts": lambda x: 1000 * x,
    }  # fmt: skip
    x, y = (as_form[form](side).astype(np.float64) for form, side in zip(forms, (p, q)))
    record = kb.compare(x, y, form=forms)
    expected = truth(p, q)
    for statistic, values in zip((record.kl_pq, record.kl_qp, record.js), expected):
        close(statistic.mean, values.mean())
        close(statistic.maximum, values.max())
        close(statistic.minimum, values.min())
    x, y = x.astype(np.float32), y.astype(np.float32)
    if forms == ("probs", "probs"):
        close(
            kb.compare(x, y).js.mean,
            truth(x / x.astype(np.longdouble).sum(1, keepdims=True), y / y.astype(np.longdouble).sum(1, keepdims=True))[2].mean(),
        )


def test_zeros_on_either_side():
    p = [[0.5, 0.5, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]
    q = [[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]
    found = kb.compare(np.array(p), np.array(q))
    rows = {w.row: w for w in found.worst}
    log = np.log
    assert [rows[i].kl_pq for i in range(3)] == [0.0, np.inf, pytest.approx(log(2), rel=1e-15)]
    assert [rows[i].kl_qp for i in range(3)] == [0.0, pytest.approx(log(2), rel=1e-15), np.inf]
    assert rows[1].js == pytest.approx(0.5 * (0.5 * log(2 / 3) + 0.5 * log(2)) + 0.5 * log(4 / 3), rel=1e-14)
    assert found.kl_pq.mean == np.inf
    assert np.isnan(found.kl_pq.standard_error)
    assert found.kl_pq.percentiles["50"] == pytest.approx(log(2), rel=1e-15)
    as_json = json.loads(found.to_json())
    assert as_json["kl_pq"]["mean"] == "inf"
    with np.errstate(divide="ignore"):
        logs = kb.compare(np.log(p), np.log(q), form="logits")
    assert [w.row for w in logs.worst] == [w.row for w in found.worst]


def test_close_models_go_through_the_exact_formula(rng):
    """KL of 1e-12 and below, where first-order sums have no digits left: the library's own kl and js, row by row."""
    p, _ = pair(rng, 12, 400, 0.0, dtype=np.float64)
    q = p + 1e-7 * rng.normal(size=p.shape)
    found = kb.compare(p, q, form="logits")
    d = (q - p).astype(np.longdouble)
    weights = softmax(p)
    # Second order in d: the variance of d under P, over 2, and over 8 for JS; the third order is 1e-7 of it.
    variance = (weights * d**2).sum(1) - (weights * d).sum(1) ** 2
    assert found.kl_pq.mean == pytest.approx(float(variance.mean() / 2), rel=1e-6)
    assert found.js.mean == pytest.approx(float(variance.mean() / 8), rel=1e-6)


def test_the_record_by_hand(rng):
    p, q = pair(rng, 200, 50, 0.4)
    tokens = rng.integers(0, 50, 200)
    found = kb.compare(p, q, form="logits", tokens=tokens, base=2)
    x, y = softmax(p), softmax(q)
    kl_pq, kl_qp, js = (values / np.log(2) for values in truth(x, y))
    assert found.unit == "bits"
    close(found.kl_pq.mean, kl_pq.mean())
    close(found.kl_pq.standard_error, kl_pq.std(ddof=1) / np.sqrt(200))
    for percent, value in found.kl_qp.percentiles.items():
        close(value, np.percentile(kl_qp, float(percent)))
    close(found.js.maximum, js.max())
    a, b = (np.log(side[np.arange(200), tokens].astype(np.float64)) for side in (x, y))
    change = np.exp(b) - np.exp(a)
    # Δp near 0 are differences of float32 numbers: 1e-7 of p, which is at most 1.
    assert found.delta_p.mean == pytest.approx(change.mean(), abs=1e-7)
    assert found.rms_delta_p == pytest.approx(np.sqrt((change**2).mean()), rel=1e-5)
    ppl = found.perplexity
    assert (ppl.p, ppl.q) == (pytest.approx(np.exp(-a.mean()), rel=1e-5), pytest.approx(np.exp(-b.mean()), rel=1e-5))
    assert ppl.ratio == pytest.approx(np.exp((a - b).mean()), rel=1e-5)
    assert ppl.log_ratio_error == pytest.approx((a - b).std(ddof=1) / np.sqrt(200), rel=1e-5)
    assert ppl.correlation == pytest.approx(np.corrcoef(a, b)[0, 1], rel=1e-4)
    same = (p.argmax(1) == q.argmax(1)).mean()
    assert found.same_top.value == pytest.approx(same, rel=1e-12)
    assert [w.row for w in found.worst] == list(np.argsort(-kl_pq)[:20])
    assert found.worst[0].token == tokens[found.worst[0].row]
    for b in found.calibration:
        inside = (x[np.arange(200), tokens] >= b.low) & (x[np.arange(200), tokens] < b.high)
        assert b.rows == inside.sum()
    assert sum(b.rows for b in found.calibration) == 200
    assert sum(n for _, n in found.sizes) == 200


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same two models' logits in every kind of file."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(5)
    p, q = pair(rng, ROWS, VOCABULARY, 0.3, spread=4.0)
    p, q = (x.astype(np.float16).astype(np.float32) for x in (p, q))  # what every kind can hold
    tokens = rng.integers(0, VOCABULARY, (CHUNKS, CONTEXT))
    chosen = tokens[:, CONTEXT // 2 + 1 :].reshape(-1)
    for name, x in (("p", p), ("q", q)):
        np.save(folder / f"{name}.npy", x)
        np.save(folder / f"{name}_3d.npy", x.reshape(CHUNKS, -1, VOCABULARY))
        np.save(folder / f"{name}_half.npy", x.astype(np.float16))
        np.save(folder / f"{name}_fortran.npy", np.asfortranarray(x))
        np.savez(folder / f"{name}.npz", logits=x, tokens=chosen.reshape(CHUNKS, -1))
        np.savez_compressed(folder / f"{name}_packed.npz", logits=x)
        save_file({"logits": x, "tokens": chosen}, folder / f"{name}.safetensors")
        save_torch_file({"logits": torch.tensor(x).half()}, folder / f"{name}_half.safetensors")
        torch.save(torch.tensor(x), folder / f"{name}.pt")
        torch.save({"logits": torch.tensor(x).half(), "tokens": torch.tensor(chosen)}, folder / f"{name}_dict.pt")
        write_llama(folder / f"{name}.kld", x, tokens)
        (folder / f"{name}_shards").mkdir()
        for i, part in enumerate(np.split(x, [7, 30, 31])):
            np.save(folder / f"{name}_shards" / f"part{9 + i}.npy", part)
    return folder, p, q, chosen


KINDS = [
    ".npy", "_3d.npy", "_half.npy", "_fortran.npy", ".npz", "_packed.npz", ".safetensors", "_half.safetensors", ".pt", "_dict.pt", ".kld",
    "_shards", "_shards/part*.npy",
]  # fmt: skip


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
def test_each_against_each(files, left, right):
    folder, p, q, chosen = files
    found = kb.compare(f"{folder}/p{left}", f"{folder}/q{right}", form="logits")
    expected = truth(softmax(p), softmax(q))
    # The codes of llama.cpp are off by up to 1.2e-4 in the logarithm, at random.
    tolerance = {"rtol": 1e-3} if ".kld" in (left, right) else {"rtol": PROMISE}
    for statistic, values in zip((found.kl_pq, found.kl_qp, found.js), expected):
        np.testing.assert_allclose(statistic.mean, values.mean(), **tolerance)
    assert found.rows == ROWS
    assert found.tokens_known == any(kind in (".npz", ".safetensors", "_dict.pt", ".kld") for kind in (left, right))
    if found.tokens_known:
        nll = -np.log(softmax(p)[np.arange(ROWS), chosen].astype(np.float64))
        # A token that llama.cpp clipped counts as what it was clipped to; there are few.
        np.testing.assert_allclose(np.log(found.perplexity.p), nll.mean(), rtol=5e-2 if left == ".kld" else 1e-5)
    assert (found.llama_cpp is not None) == (left == ".kld")
    assert (found.bucket is not None) == (".kld" in (left, right))


@pytest.mark.parametrize("small", [True, False])
def test_bfloat16(tmp_path, rng, monkeypatch, small):
    if not small:
        monkeypatch.setattr(comparison, "SMALL", 0)
    p, q = (torch.tensor(x).bfloat16() for x in pair(rng, 30, 64, 0.3))
    save_torch_file({"logits": p}, tmp_path / "p.safetensors")
    torch.save(q, tmp_path / "q.pt")
    found = kb.compare(tmp_path / "p.safetensors", tmp_path / "q.pt", form="logits")
    close(found.kl_pq.mean, truth(softmax(p.float().numpy()), softmax(q.float().numpy()))[0].mean())
    assert kb.compare(p, q, form="logits").kl_pq.mean == pytest.approx(found.kl_pq.mean, rel=1e-12)
    tokens = rng.integers(0, 64, (2, 32))
    write_llama(tmp_path / "q.kld", q.float().numpy(), tokens)
    against = kb.compare(tmp_path / "p.safetensors", tmp_path / "q.kld", form="logits")
    assert against.kl_pq.mean == pytest.approx(found.kl_pq.mean, rel=1e-3)  # the codes are off by up to 1.2e-4 in the logarithm, at random
    q[7, 3] = torch.nan
    torch.save(q, tmp_path / "q.pt")
    with pytest.raises(ReadError, match=r"q.pt: row 7 holds NaN"):
        kb.compare(tmp_path / "p.safetensors", tmp_path / "q.pt", form="logits")
    # Probabilities of half precision may sum to 1 but for 5e-2, also where rows go through the exact formula.
    probs = torch.softmax(p.float(), -1).bfloat16()
    assert kb.compare(probs, probs).kl_pq.maximum == 0.0


class TestLlama:
    """The bucket, against the distributions the files were made from."""

    def make(self, folder, rng, spread, noise, window=16.0):
        p, q = pair(rng, ROWS, VOCABULARY, noise, spread=spread)
        tokens = rng.integers(0, VOCABULARY, (CHUNKS, CONTEXT))
        for name, x in (("p", p), ("q", q)):
            write_llama(folder / f"{name}.kld", x, tokens, window=window)
        return p, q

    @pytest.mark.parametrize("spread", [3.0, 8.0])
    @pytest.mark.parametrize(("left", "right"), [("kld", "npy"), ("npy", "kld")])
    def test_a_model_beside_itself_with_more_digits(self, tmp_path, rng, spread, left, right):
        """The codes leave the bucket's mass open, but the other side's is among what they allow."""
        p, _ = self.make(tmp_path, rng, spread, 1.0)
        np.save(tmp_path / "p.npy", p)
        found = kb.compare(tmp_path / f"p.{left}", tmp_path / f"p.{right}", form="logits")
        # Half the square of a rounding by 1.2e-4 at most, and that of e^low in float32.
        for divergence in (found.kl_pq, found.kl_qp, found.js):
            assert 0.0 < divergence.maximum < 2e-8

    @pytest.mark.parametrize("window", [16.0, 24.0])
    @pytest.mark.parametrize(("left", "right"), [("kld", "kld"), ("kld", "npy"), ("npy", "kld")])
    def test_it_is_the_kl_of_the_coarser_pair(self, tmp_path, rng, window, left, right):
        p, q = self.make(tmp_path, rng, 8.0, 1.0, window)
        for name, x in (("p", p), ("q", q)):
            np.save(tmp_path / f"{name}.npy", x)
        found = kb.compare(tmp_path / f"p.{left}", tmp_path / f"q.{right}", form="logits")
        hidden = np.zeros(p.shape, bool)
        for kind, x in ((left, p), (right, q)):
            if kind == "kld":
                # As the file has it: what rounds to code 0 is hidden with what was clipped.
                hidden |= np.asarray(open_llama(tmp_path / f"{'p' if x is p else 'q'}.kld").read(0, ROWS).codes) == 0
        pooled = [
            np.concatenate([np.where(hidden, 0.0, s), np.where(hidden, s, 0.0).sum(1, keepdims=True)], 1) for s in (softmax(p), softmax(q))
        ]
        expected = truth(*pooled)
        assert hidden.mean() > 0.2
        # Codes are rounded: 1.2e-4 (1.8e-4 at a window of 24) in each logarithm; a mean KL near 0.3, some of whose terms are larger.
        np.testing.assert_allclose(found.kl_pq.mean, expected[0].mean(), rtol=2e-3)
        np.testing.assert_allclose(found.kl_qp.mean, expected[1].mean(), rtol=2e-3)
        full = truth(softmax(p), softmax(q))[0]
        assert expected[0].mean() <= full.mean()
        np.testing.assert_array_less(np.asarray([w.kl_pq for w in found.worst]), full[[w.row for w in found.worst]] * 1.002)

    def test_their_own_figure(self, tmp_path, rng):
        """llama.cpp: the sum of p (log p - log q) over log p > -16, p as stored, q as it is."""
        _, q = self.make(tmp_path, rng, 8.0, 1.0)
        np.save(tmp_path / "q.npy", q)
        found = kb.compare(tmp_path / "p.kld", tmp_path / "q.npy", form=("log_probs", "logits"))
        stored = open_llama(tmp_path / "p.kld").read(0, ROWS)
        log_p = stored.scale[:, None].astype(np.float64) * stored.codes + stored.low[:, None]
        log_q = np.log(softmax(q)).astype(np.float64)
        sums = np.where(log_p > -16.0, np.exp(log_p) * (log_p - log_q), 0.0).sum(1)
        # The stored logarithms are float32 numbers up to 20.
        assert found.llama_cpp[0] == pytest.approx(sums.mean(), rel=1e-5)
        assert found.llama_cpp[1] == pytest.approx(sums.std(ddof=1) / np.sqrt(ROWS), rel=1e-5)

    def test_nothing_clipped_nothing_hidden(self, tmp_path, rng):
        p, q = self.make(tmp_path, rng, 1.0, 0.3)
        found = kb.compare(tmp_path / "p.kld", tmp_path / "q.kld")
        assert found.bucket == (0.0, 0.0)
        np.testing.assert_allclose(found.kl_pq.mean, truth(softmax(p), softmax(q))[0].mean(), rtol=1e-3)

    def test_the_same_file_twice(self, tmp_path, rng):
        self.make(tmp_path, rng, 8.0, 1.0)
        found = kb.compare(tmp_path / "p.kld", tmp_path / "p.kld")
        assert found.kl_pq.maximum == found.kl_qp.maximum == found.js.maximum == 0.0
        assert found.same_top.value == 1.0

    def test_other_text(self, tmp_path, rng):
        self.make(tmp_path, rng, 4.0, 0.3)
        stored = bytearray((tmp_path / "q.kld").read_bytes())
        place = 20 + 4 * (CONTEXT + CONTEXT // 2 + 3)  # the token that row 2 of chunk 1 predicts
        stored[place : place + 4] = ((int.from_bytes(stored[place : place + 4], "little") + 1) % VOCABULARY).to_bytes(4, "little")
        (tmp_path / "q.kld").write_bytes(stored)
        with pytest.raises(ReadError, match=rf"are not about the same text: in row {ROWS // CHUNKS + 2} the token is"):
            kb.compare(tmp_path / "p.kld", tmp_path / "q.kld")
        found = kb.compare(tmp_path / "p.kld", tmp_path / "q.kld", allow_partial=True)
        lost = ROWS // CHUNKS - 2  # the rows after it in the chunk are of another text too
        assert found.rows == ROWS - lost
        assert found.missing_rows == lost


# 16 MiB of both sides are mapped in each of two threads; of two categories the figures take more than the rows.
@pytest.mark.parametrize(
    ("dtype", "rows", "categories", "most"),
    [(np.float32, 2560, 32768, 110), (np.float64, 1280, 32768, 110), (np.float16, 1280, 32768, 110), (np.float32, 2_000_000, 2, 110)],
)
def test_memory_does_not_grow_with_rows(tmp_path, dtype, rows, categories, most):
    """Blocks of two files and what threads work in, in MiB above what importing takes; the files have 640, 640, 160 and 30."""
    block = np.random.default_rng(0).normal(size=(64, categories)).astype(dtype)
    for name, shift in (("p", dtype(0.0)), ("q", dtype(0.5))):
        out = np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", dtype, (rows, categories))
        for i in range(0, rows, 64):
            out[i : i + 64] = block + shift * block[:, ::-1]
        del out
    code = (
        # Not ru_maxrss: a child inherits that of its parent.
        "import re, sys, kullback as kb, kullback._compare.models\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "before = peak()\n"
        "found = kb.compare(sys.argv[1], sys.argv[2], form='logits')\n"
        "print(found.rows, peak() - before)"
    )
    arguments = [sys.executable, "-c", code, tmp_path / "p.npy", tmp_path / "q.npy"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    count, grown = map(int, done.stdout.split())
    assert count == rows
    assert grown < most * 1024  # KiB


@pytest.fixture
def small_blocks(monkeypatch):
    """Of eight rows of VOCABULARY categories each: many of them, and enough for threads."""
    monkeypatch.setattr(comparison, "_BLOCK", 4 * 8 * VOCABULARY)
    monkeypatch.setattr(comparison, "SMALL", 0)
    monkeypatch.setattr(cpu, "_THREADS_FROM", 0)
    monkeypatch.setattr(cpu, "_pool", None)


@pytest.mark.parametrize("kind", ["npy", "npz", "llama", "torch"])
def test_the_number_of_threads_changes_nothing(tmp_path, rng, monkeypatch, small_blocks, kind):
    p, q = pair(rng, ROWS, VOCABULARY, 0.5)
    q[::3] = p[::3] + 0.01 * q[::3]  # close rows and others
    p, q = (np.log(softmax(side)).astype(np.float32) for side in (p, q))
    sides = []
    for name, x in (("p", p), ("q", q)):
        path = tmp_path / f"{name}.{kind}"
        if kind == "npy":
            np.save(path, x)
        elif kind == "npz":
            np.savez_compressed(path, log_probs=x)
        elif kind == "llama":
            write_llama(path, x, np.zeros((CHUNKS, CONTEXT), int))
        sides.append(torch.from_numpy(x) if kind == "torch" else path)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(cpu, "thread_count", lambda threads=threads: threads)
        monkeypatch.setattr(cpu, "_pool", None)
        form = {} if kind in ("npz", "llama") else {"form": "log_probs"}
        found.append(kb.compare(*sides, **form).to_json())
    assert found[0] == found[1] == found[2]


def test_the_first_row_that_is_wrong_is_named(tmp_path, rng, monkeypatch, small_blocks):
    """Whatever thread was there first."""
    monkeypatch.setattr(cpu, "thread_count", lambda: 3)
    p, q = (softmax(x).astype(np.float32) for x in pair(rng, 200, VOCABULARY, 0.5))
    p[60, 5] = np.nan
    q[70, 5] = -0.25
    q[9] *= 1.5
    done = []
    for wrong, where in ((9, "q.npy: row 9 "), (60, "p.npy: row 60 holds NaN"), (70, "q.npy: row 70 ")):
        np.save(tmp_path / "p.npy", p)
        np.save(tmp_path / "q.npy", q)
        with pytest.raises(ReadError) as error:
            compare_models(tmp_path / "p.npy", tmp_path / "q.npy", progress=lambda n, rows: done.append(n))
        assert where in str(error.value)
        assert done == sorted(done)
        assert max(done, default=0) <= wrong
        p[wrong], q[wrong] = p[0], q[0]
        done.clear()
    assert kb.compare(p, q).rows == 200


def test_a_first_block_with_nothing_to_compare(tmp_path, rng, small_blocks):
    p, q = pair(rng, ROWS, VOCABULARY, 0.5)
    tokens = np.arange(ROWS) % VOCABULARY
    other = np.where(np.arange(ROWS) < 20, tokens + 1, tokens)
    np.savez(tmp_path / "p.npz", logits=p, tokens=tokens)
    np.savez(tmp_path / "q.npz", logits=q, tokens=other)
    found = kb.compare(tmp_path / "p.npz", tmp_path / "q.npz", allow_partial=True)
    assert found.rows == ROWS - 20
    close(found.kl_pq.mean, truth(softmax(p), softmax(q))[0][20:].mean())


def test_arrays_of_a_framework_are_read_by_the_caller(rng, monkeypatch, small_blocks):
    monkeypatch.setattr(cpu, "thread_count", lambda: 3)
    readers = set()
    monkeypatch.setattr(models, "host", lambda x: readers.add(threading.get_ident()) or host(x))
    p, q = (torch.from_numpy(side) for side in pair(rng, 100, VOCABULARY, 0.5))
    kb.compare(p, q, form="logits")
    assert readers == {threading.get_ident()}


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_many_categories(rng, form):
    p, q = pair(rng, 6, 300_000, 0.4)
    if form == "probs":
        p, q = (softmax(side).astype(np.float32) for side in (p, q))
    found = compare_rows(p, q, (form, form), (1e-3, 1e-3))
    assert found.decided.all()
    sides = [softmax(side) if form == "logits" else side / side.astype(np.longdouble).sum(1, keepdims=True) for side in (p, q)]
    for values, expected in zip(found[:3], truth(*sides)):
        close(values, expected)


def test_signs_of_probabilities(rng, monkeypatch):
    """Where both are negative, their ratio tells nothing. Minus zero is zero."""
    monkeypatch.setattr(comparison, "SMALL", 0)
    p, q = (softmax(x).astype(np.float32) for x in pair(rng, 40, 300, 1.0))
    p[3, 7], q[3, 7] = -1e-4, -1.5e-4
    p[5, 7] = q[5, 7] = -0.0
    p[6, 7] = q[6, 7] = 0.0
    found = compare_rows(p, q, ("probs", "probs"), (1e-3, 1e-3))
    assert list(np.flatnonzero(~found.decided)) == [3]
    np.testing.assert_array_equal(found.top_q, q.argmax(1))
    sound = np.arange(40) != 3
    sides = [side[sound] / side[sound].astype(np.longdouble).sum(1, keepdims=True) for side in (p, q)]
    for values, expected in zip(found[:3], truth(*sides)):
        close(values[sound], expected)


def cut(path, share=0.6):
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])


class TestRefused:
    """Each bad input, and the sentence it gets."""

    @pytest.fixture
    def here(self, tmp_path, rng, monkeypatch):
        monkeypatch.chdir(tmp_path)
        self.p, self.q = pair(rng, ROWS, VOCABULARY, 0.3)
        np.save("p.npy", self.p)
        return tmp_path

    def refused(self, q, sentence, **options):
        with pytest.raises(ReadError) as error:
            kb.compare("p.npy", q, **{"form": "logits", **options})
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)

    def test_names(self, here):
        Path("folder").mkdir()
        Path("empty.npy").touch()
        Path("x.xyz").write_text("1")
        Path("bare").touch()
        self.refused("nope.npy", "there is no file nope.npy")
        self.refused("folder", "folder is a directory with no files in it")
        self.refused("no*.npy", "no file matches no*.npy")
        self.refused("empty.npy", "empty.npy is empty")
        self.refused("bare", "bare is empty")
        self.refused("x.xyz", "x.xyz: cannot tell what it is from its name; model outputs are .npy")
        self.refused({1, 2}, "a set cannot be compared")
        self.refused("", "the name of a file is empty")
        for name in ("nope.csv", "nope.json", "nope.parquet"):  # whatever it would be
            self.refused(name, f"there is no file {name}")

    def test_pipes(self, here):
        """Which would be read to their end by whoever looks at them first, or not end."""
        for name in ("q.npy", "q.csv", "q.json", "q.kld"):
            os.mkfifo(name)
            self.refused(name, f"{name} is a pipe or a device, and is read more than once: save what comes out of it as a file")
        self.refused(self.q, "q.npy is a pipe or a device", tokens="q.npy")
        with pytest.raises(ReadError, match=r"^q\.csv is a pipe or a device"):
            profile("q.csv")
        done = subprocess.run(
            ["bash", "-c", f'"{sys.executable}" -m kullback compare p.npy <(cat p.npy)'], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert re.fullmatch(r"kullback compare: /dev/fd/\d+ is a pipe or a device.*\n", done.stderr)

    def test_folders_of_several_kinds(self, here):
        Path("mixed").mkdir()
        np.save("mixed/a.npy", self.q)
        save_file({"logits": self.q}, "mixed/a.safetensors")
        kinds = "stands for .npy and .safetensors files: name those of one kind, by a pattern such as 'mixed/*.npy'"
        self.refused("mixed", f"mixed {kinds}")
        self.refused("mixed/*", f"mixed/* {kinds}")
        Path("mixed/t.csv").write_text("a\n1\n")
        Path("mixed/notes.md").write_text("of the run")
        self.refused("mixed", "mixed stands for .npy, .safetensors and .csv files")
        write_llama("mixed/q.kld", self.q, np.zeros((CHUNKS, CONTEXT), int))
        self.refused("mixed", "mixed stands for .npy, .safetensors, llama.cpp logits and .csv files")
        kb.compare("p.npy", "mixed/*.npy", form="logits")

    def test_shapes(self, here):
        np.save("none.npy", np.zeros((0, VOCABULARY)))
        np.save("one.npy", np.zeros(VOCABULARY))
        np.save("wide.npy", np.zeros((ROWS, VOCABULARY + 1)))
        np.save("short.npy", self.q[:-3])
        np.save("complex.npy", self.q.astype(complex))
        np.savez("two.npz", a=self.q, b=self.q)
        self.refused("none.npy", f"none.npy has shape (0, {VOCABULARY}): no rows in it")
        self.refused("one.npy", "one.npy has shape (101,): compare takes [rows, categories]; for one distribution, use kullback explain")
        self.refused("wide.npy", "p.npy has 101 categories and wide.npy 102: these are not outputs over the same vocabulary")
        self.refused("wide.npy", "categories", allow_partial=True)
        self.refused("short.npy", f"p.npy has {ROWS} rows and short.npy {ROWS - 3}: allow_partial=True compares the first {ROWS - 3}")
        self.refused("complex.npy", "complex.npy has dtype complex128")
        self.refused("two.npz", "two.npz holds several arrays ('a', 'b'): name the one to compare probs, log_probs, logits or counts")
        found = kb.compare("p.npy", "short.npy", form="logits", allow_partial=True)
        assert (found.rows, found.missing_rows) == (ROWS - 3, 3)
        close(found.kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0][:-3].mean())

    @pytest.mark.parametrize("kind", ["npy", "safetensors", "kld"])
    def test_cut_short(self, here, kind):
        name = f"q.{kind}"
        if kind == "npy":
            np.save(name, self.q)
        elif kind == "safetensors":
            save_file({"logits": self.q}, name)
        else:
            write_llama(name, self.q, np.zeros((CHUNKS, CONTEXT), int))
        cut(Path(name))
        self.refused(name, f"{name} is cut short: ")
        found = kb.compare("p.npy", name, form="logits", allow_partial=True)
        # 60 % of the bytes, less those of the header and of a row begun.
        assert 0.5 * ROWS < found.rows <= 0.6 * ROWS
        assert found.missing_rows == ROWS - found.rows
        assert any("is cut short" in note for note in found.notes)
        expected = truth(softmax(self.p), softmax(self.q))[0][: found.rows].mean()
        np.testing.assert_allclose(found.kl_pq.mean, expected, rtol=1e-3 if kind == "kld" else PROMISE)
        cut(Path(name), 0.002)
        self.refused(name, "cut short", allow_partial=True)

    def test_cut_archives(self, here):
        np.savez("q.npz", logits=self.q)
        torch.save(torch.tensor(self.q), "q.pt")
        for name in ("q.npz", "q.pt"):
            cut(Path(name))
            self.refused(name, f"{name} is no .{name[2:]}")

    def test_a_shard_cut_short_keeps_the_others_in_place(self, here):
        Path("shards").mkdir()
        for i, part in enumerate(np.split(self.q, 3)):
            np.save(f"shards/{i}.npy", part)
        cut(Path("shards/1.npy"), 0.5)
        self.refused("shards", f"shards/1.npy is cut short: {ROWS // 3 // 2 - 1} of its {ROWS // 3} rows are there")
        found = kb.compare("p.npy", "shards", form="logits", allow_partial=True)
        kept = np.r_[: ROWS // 3 + ROWS // 6 - 1, 2 * ROWS // 3 : ROWS]
        assert found.rows == len(kept)
        close(found.kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0][kept].mean())

    def shards(self, folder, x, name="s-{}.npy", left_out=(), parts=5):
        Path(folder).mkdir()
        for i, part in enumerate(np.split(x, parts)):
            if i not in left_out:
                np.save(f"{folder}/{name.format(i)}", part)

    @pytest.mark.parametrize("name", ["s-{}.npy", "q4-0000{}-of-00005.npy"])
    @pytest.mark.parametrize("lost_p", [(), (3,)])
    def test_a_missing_shard_shifts_nothing(self, here, name, lost_p):
        """Whether shards are called the same on both sides, or only numbered the same."""
        self.shards("p", self.p, left_out=lost_p)
        self.shards("q", self.q, name, left_out=(1,))
        with pytest.raises(ReadError) as error:
            kb.compare("p", "q", form="logits")
        assert str(error.value) == "q has no counterpart of p/s-1.npy; allow_partial=True compares the shards that both have"
        part = ROWS // 5
        kept = np.concatenate([np.arange(i * part, (i + 1) * part) for i in range(5) if i != 1 and i not in lost_p])
        expected = truth(softmax(self.p), softmax(self.q))[0][kept]
        for p, q in (("p", "q"), ("p/*", "q/*.npy")):
            found = kb.compare(p, q, form="logits", allow_partial=True)
            assert (found.rows, found.missing_rows) == (len(kept), ROWS - len(kept))
            close(found.kl_pq.mean, expected.mean())
            assert found.worst[0].row == kept[np.argmax(expected)]
            assert (found.p.files, found.q.files) == (5 - len(lost_p), 4)
            assert found.notes[0] == f"{q} has no counterpart of p/s-1.npy: {part} rows were left out."
            assert len(found.notes) == 1 + len(lost_p)
        # Tokens by the same numbers of rows.
        np.save("t.npy", np.arange(ROWS) % VOCABULARY)
        found = kb.compare("p", "q", form="logits", allow_partial=True, tokens="t.npy")
        assert all(row.token == row.row % VOCABULARY for row in found.worst)

    def test_one_shard_of_many(self, here):
        self.shards("p", self.p)
        self.shards("q", self.q, left_out=(0, 1, 3, 4))
        self.refused_pair("p", "q", "q has no counterpart of p/s-0.npy and 3 more shards of p; allow_partial=True")
        found = kb.compare("p", "q", form="logits", allow_partial=True)
        part = ROWS // 5
        close(found.kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0][2 * part : 3 * part].mean())

    def refused_pair(self, p, q, sentence):
        with pytest.raises(ReadError) as error:
            kb.compare(p, q, form="logits")
        assert sentence in str(error.value)

    def test_a_shard_with_fewer_rows_shifts_nothing(self, here):
        self.shards("p", self.p)
        self.shards("q", self.q)
        part = ROWS // 5
        np.save("q/s-1.npy", self.q[part : 2 * part - 2])
        self.refused_pair(
            "p", "q", f"p/s-1.npy has {part} rows and q/s-1.npy {part - 2}: allow_partial=True compares the first {part - 2} of them"
        )
        found = kb.compare("p", "q", form="logits", allow_partial=True)
        kept = np.r_[: 2 * part - 2, 2 * part : ROWS]
        assert (found.rows, found.missing_rows) == (len(kept), 2)
        assert found.notes == (f"p/s-1.npy has {part} rows and q/s-1.npy {part - 2}: the first {part - 2} of them were compared.",)
        close(found.kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0][kept].mean())

    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("s-{}.npy", 3),  # cut differently
            ("s-{}.npy", 10),
            ("part-{}1.npy", 5),  # other names, and other numbers
            ("{0}{0}{0}.npy", 5),
        ],
    )
    def test_names_that_say_nothing(self, here, name, parts):
        self.shards("p", self.p)
        self.shards("q", self.q, name, parts=parts)
        close(kb.compare("p", "q", form="logits").kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0].mean())
        os.remove(f"q/{name.format(parts - 1)}")
        rows = ROWS - ROWS // parts
        if name == "s-{}.npy" and parts == 10:
            self.refused_pair("p", "q", f"p has {ROWS} rows and q {rows}: allow_partial=True compares the first {rows}")
            found = kb.compare("p", "q", form="logits", allow_partial=True)
            assert found.rows == rows
            close(found.kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0][:rows].mean())

    def test_counted_from_0_and_from_1(self, here):
        self.shards("p", self.p, "f16-{}.npy")
        Path("q").mkdir()
        for i, part in enumerate(np.split(self.q, 5), 1):
            np.save(f"q/q4-{i}.npy", part)
        close(kb.compare("p", "q", form="logits").kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0].mean())

    def test_numbers_of_other_machines(self, here):
        """In their order of bytes they are converted, so that a block of as many bytes would take more memory."""
        np.save("swapped.npy", self.q.astype(self.q.dtype.newbyteorder()))
        assert open_source("swapped.npy", "Q").pieces[0].width > open_source("p.npy", "P").pieces[0].width
        close(kb.compare("p.npy", "swapped.npy", form="logits").kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0].mean())

    def test_a_file_that_shrinks_while_it_is_read(self, here):
        source = open_source("p.npy", "P")
        cut(Path("p.npy"))
        with pytest.raises(ReadError, match=r"^p\.npy has become shorter since it was opened$"):
            source.read(0, ROWS)

    def test_damaged_files(self, here):
        Path("text.npy").write_text("0.5,0.5")
        Path("text.npz").write_text("hello")
        Path("text.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0hello world")
        Path("long.safetensors").write_bytes(b"\xff" * 20)
        header = json.dumps({"logits": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 8]}}).encode()
        Path("lies.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
        Path("text.pt").write_text("hello")
        Path("short.kld").write_bytes(b"_logits_\x01\0")
        Path("none.kld").write_bytes(b"_logits_" + np.array([32, 5, 0], "<i4").tobytes())
        np.savez_compressed("flip.npz", logits=self.q)
        data = bytearray(Path("flip.npz").read_bytes())
        data[len(data) // 2] ^= 0xFF
        Path("flip.npz").write_bytes(data)
        self.refused("text.npy", "text.npy is no .npy array")
        self.refused("text.npz", "text.npz is no .npz archive")
        self.refused("text.safetensors", "text.safetensors is no .safetensors file: its header is not JSON")
        self.refused("long.safetensors", "long.safetensors is no .safetensors file, or is cut short within its header")
        self.refused("lies.safetensors", "the header gives 'logits' 8 bytes, which is not what its shape (2, 3) takes")
        self.refused("text.pt", "text.pt is no .pt file of PyTorch")
        self.refused("short.kld", "short.kld is a llama.cpp logits file cut short within its header")
        self.refused("none.kld", "no rows in it")
        self.refused("flip.npz", "flip.npz is damaged")

    def test_what_would_run_is_not_run(self, here):
        class Bomb:
            def __reduce__(self):
                return Path.touch, (Path("EXPLODED"),)

        torch.save(Bomb(), "bomb.pt")
        torch.save({"logits": torch.tensor(self.q), "extra": Bomb()}, "hidden.pt")
        np.save("bomb.npy", np.array([[Bomb()]], dtype=object), allow_pickle=True)
        np.savez("bomb.npz", logits=np.array([[Bomb()]], dtype=object))
        Path("EXPLODED").unlink(missing_ok=True)
        self.refused("bomb.pt", "bomb.pt holds more than tensors; what it would run was not run")
        self.refused("hidden.pt", "hidden.pt holds more than tensors; what it would run was not run")
        self.refused("bomb.npy", "bomb.npy holds pickled objects, which are never unpickled")
        self.refused("bomb.npz", "bomb.npz, array 'logits', holds pickled objects, which are never unpickled")
        assert not Path("EXPLODED").exists()

    def test_pt_without_pytorch(self, here):
        torch.save(torch.tensor(self.q), "q.pt")
        code = "import sys; sys.modules['torch'] = None; import kullback as kb; kb.compare('p.npy', 'q.pt', form='logits')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "ReadError: q.pt: reading .pt needs PyTorch (pip install torch); or save the array as .npy or .safetensors" in done.stderr

    def test_nan(self, here):
        self.q[17, 3] = np.nan
        np.save("q.npy", self.q)
        self.refused("q.npy", "q.npy: row 17 holds NaN; allow_partial=True leaves such rows out")
        found = kb.compare("p.npy", "q.npy", form="logits", allow_partial=True)
        assert (found.rows, found.nan_rows) == (ROWS - 1, 1)
        kept = np.arange(ROWS) != 17
        close(found.kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0][kept].mean())
        np.save("q.npy", np.full_like(self.q, np.nan))
        self.refused("q.npy", f"no rows were compared: all {ROWS} hold NaN", allow_partial=True)

    def test_values(self, here):
        np.save("p.npy", softmax(self.p).astype(np.float32))
        np.save("q.npy", self.q)
        self.refused("q.npy", "q.npy: row 0 ", form="probs")
        self.refused("q.npy", "logits? pass form='logits'", form="probs")
        bad = softmax(self.q).astype(np.float32)
        bad[23] *= 1.5
        Path("shards").mkdir()
        np.save("shards/a.npy", bad[:20])
        np.save("shards/b.npy", bad[20:])
        self.refused("shards", "shards: row 23 (shards/b.npy, row 3) sums to 1.5, not 1", form="probs")
        write_llama("p.kld", self.p, np.zeros((CHUNKS, CONTEXT), int))
        with pytest.raises(ReadError, match=r"row 23 sums to 1\.5"):
            kb.compare("p.kld", bad, form=("log_probs", "probs"))

    def test_forms_and_tokens(self, here):
        np.savez("q.npz", logits=self.q)
        np.save("t.npy", np.zeros(ROWS - 1, int))
        np.save("f.npy", np.zeros(ROWS))
        np.save("v.npy", np.full(ROWS, VOCABULARY))
        self.refused("q.npz", "q.npz holds logits, and the form given is probs", form="probs")
        self.refused("q.npz", f"t.npy: {ROWS - 1} numbers of type int64, for {ROWS} rows", tokens="t.npy")
        self.refused("q.npz", "f.npy: 60 numbers of type float64", tokens="f.npy")
        self.refused("q.npz", "v.npy: token 101 of row 0 is no category; there are 101, counted from 0", tokens="v.npy")
        with pytest.raises(ValueError, match="form is 'logit'"):
            kb.compare("p.npy", "q.npz", form="logit")

    def test_an_archive_of_two_forms(self, here):
        np.savez("q.npz", logits=self.q, probs=softmax(self.q[::-1]).astype(np.float32), tokens=np.zeros(ROWS, int))
        self.refused("q.npz", "q.npz holds logits and probs: say which to compare, e.g. form='logits'", form=None)
        self.refused("q.npz", "q.npz holds logits and probs: say which to compare", form="counts")
        close(kb.compare("p.npy", "q.npz", form="logits").kl_pq.mean, truth(softmax(self.p), softmax(self.q))[0].mean())
        found = kb.compare("p.npy", "q.npz", form=("logits", "probs"))
        close(found.kl_pq.mean, truth(softmax(self.p), softmax(self.q[::-1]))[0].mean())

    def test_a_table_and_a_model(self, here):
        Path("t.csv").write_text("a\n1\n")
        self.refused("t.csv", "t.csv is a table and the other side a model's output: compare two of a kind")


def test_zip_members_of_any_offset(tmp_path, rng):
    """The data of a stored member begins after a local header whose length the table of contents does not tell."""
    p, q = pair(rng, 20, 30, 0.3)
    np.savez(tmp_path / "p.npz", other=np.arange(3), logits=p)
    with zipfile.ZipFile(tmp_path / "q.npz", "w") as archive:
        np.save(tmp_path / "x.npy", q)
        entry = zipfile.ZipInfo("logits.npy")
        entry.extra = b"\x99\x99\x05\x00hello"
        archive.writestr(entry, (tmp_path / "x.npy").read_bytes())
    close(kb.compare(tmp_path / "p.npz", tmp_path / "q.npz").kl_pq.mean, truth(softmax(p), softmax(q))[0].mean())

"""Comparing model outputs: the figures against extended precision, every kind of file against every other, memory and threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

import kullback as kb
from dumps import CHUNKS, CONTEXT, PROMISE, ROWS, VOCABULARY, close, pair, softmax, truth, write_llama
from kullback._compare import models
from kullback._compare.models import compare_models
from kullback._compare.sources import host
from kullback._kernels import comparison, cpu
from kullback._kernels.comparison import compare_rows


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
    with pytest.raises(kb.NotComparable, match=r"q.pt: row 7 holds NaN") as raised:
        kb.compare(tmp_path / "p.safetensors", tmp_path / "q.pt", form="logits")
    found = raised.value.complaint
    assert (found.side, found.row, found.problem, found.form) == ("q", (7,), "nan", "logits")
    # Probabilities of half precision may sum to 1 but for 5e-2, also where rows go through the exact formula.
    probs = torch.softmax(p.float(), -1).bfloat16()
    assert kb.compare(probs, probs).kl_pq.maximum == 0.0


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
        with pytest.raises(kb.NotComparable) as error:
            compare_models(tmp_path / "p.npy", tmp_path / "q.npy", progress=lambda n, rows: done.append(n))
        assert where in str(error.value)
        assert error.value.complaint.row == (wrong,)
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

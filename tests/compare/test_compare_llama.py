"""llama.cpp's logits files, against the distributions they were made from."""

from __future__ import annotations

import numpy as np
import pytest

import kullback as kb
from dumps import CHUNKS, CONTEXT, ROWS, VOCABULARY, pair, softmax, truth, write_llama
from kullback._compare.llama import open_llama
from kullback._read import ReadError


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


class TestDamagedRows:
    """A row's scale and lowest log-probability may be any number then."""

    @pytest.mark.parametrize("left", ["p.kld", "p.npy"])
    @pytest.mark.parametrize(
        ("place", "number", "sentence"),
        [
            (0, np.inf, "it holds no distribution; allow_partial=True leaves such rows out"),
            (0, np.nan, "it holds no distribution; allow_partial=True leaves such rows out"),
            (0, 1e38, "it has exponentials that sum to inf, not 1"),
            (0, -1.0, r"it has exponentials that sum to \S+, not 1"),
            (1, np.inf, "it holds no distribution; allow_partial=True leaves such rows out"),
            (1, 3e38, "it holds no distribution; allow_partial=True leaves such rows out"),
            (1, -np.inf, "it is -inf everywhere"),
            (1, -800.0, "it has exponentials that sum to 0, not 1"),
        ],
    )
    def test_the_file_is_named(self, tmp_path, monkeypatch, rng, left, place, number, sentence):
        """And no form is advised, which the file has."""
        monkeypatch.chdir(tmp_path)
        p, q = pair(rng, ROWS, VOCABULARY, 0.3)
        np.save("p.npy", p)
        for name, x in (("p.kld", p), ("q.kld", q)):
            write_llama(name, x, np.zeros((CHUNKS, CONTEXT), int))
        data = bytearray((tmp_path / "q.kld").read_bytes())
        row = 20 + 4 * CHUNKS * CONTEXT + 3 * (8 + 2 * (VOCABULARY + VOCABULARY % 2))
        data[row + 4 * place : row + 4 * place + 4] = np.float32(number).tobytes()
        (tmp_path / "q.kld").write_bytes(data)
        for a, b in ((left, "q.kld"), ("q.kld", left)):
            with pytest.raises(kb.NotComparable, match=rf"^q\.kld: row 3 is damaged: {sentence}$"):
                kb.compare(a, b, form="logits")
            if "leaves" in sentence:
                assert kb.compare(a, b, form="logits", allow_partial=True).nan_rows == 1

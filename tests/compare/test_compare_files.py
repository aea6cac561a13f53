"""Files of model outputs that do not belong together, change while they are read, cannot be looked into, or lie column by column."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kullback as kb
from dumps import CHUNKS, CONTEXT, ROWS, VOCABULARY, write_llama
from kullback._compare import models, shards
from kullback._compare.tables import profile
from kullback._read import ReadError


@pytest.fixture
def sides(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    p = 2 * rng.normal(size=(ROWS, VOCABULARY)).astype(np.float32)
    return p, p + 0.5 * rng.normal(size=p.shape).astype(np.float32)


def refused(p, q, sentence, **options):
    with pytest.raises(ReadError, match=sentence) as error:
        kb.compare(p, q, **options)
    assert "\n" not in str(error.value)


class TestTextOfLlamaFiles:
    """A row's distribution is about the tokens before it in its chunk, of which those in the first half are no row's own."""

    def write(self, sides, place):
        """p.kld and q.kld, of tokens that differ in one place; and which rows have nothing that differs before them, nor as their own."""
        tokens = np.arange(CHUNKS * CONTEXT).reshape(CHUNKS, CONTEXT) % VOCABULARY
        other = tokens.copy()
        other[place] += 1
        for name, logits, text in zip("pq", sides, (tokens, other)):
            write_llama(f"{name}.kld", logits, text)
        return np.array(
            [np.array_equal(tokens[c, : i + 2], other[c, : i + 2]) for c in range(CHUNKS) for i in range(CONTEXT // 2, CONTEXT - 1)]
        )

    @pytest.mark.parametrize("place", [(0, 0), (2, 3), (1, CONTEXT // 2), (3, CONTEXT // 2 + 1), (2, CONTEXT - 4), (3, CONTEXT - 1)])
    @pytest.mark.parametrize("rows", [1, 7, 1000])
    def test_rows_after_other_tokens(self, sides, monkeypatch, place, rows):
        monkeypatch.setattr(models, "stream_rows", lambda columns, width, left: rows)
        kept = self.write(sides, place)
        lost = int(ROWS - kept.sum())
        refused("p.kld", "q.kld", rf"^p\.kld and q\.kld are not about the same text: .*row {np.argmin(kept)} .*allow_partial=True")
        record = kb.compare("p.kld", "q.kld", allow_partial=True, top=ROWS)
        assert (record.rows, record.missing_rows) == (ROWS - lost, lost)
        assert f"{lost:,} rows whose tokens, or those before them, differ were left out." in record.notes
        assert {w.row for w in record.worst} == set(np.flatnonzero(kept))
        full = kb.compare("p.kld", sides[1], form="logits", top=ROWS)  # of no text: row by row it is the same but for the codes
        for w in record.worst:
            assert w.kl_pq == pytest.approx(next(x.kl_pq for x in full.worst if x.row == w.row), rel=1e-2, abs=1e-3)

    def test_no_row_is_left(self, sides):
        self.write(sides, (slice(None), 0))
        refused("p.kld", "q.kld", "no rows were compared", allow_partial=True)

    def test_a_shard_in_the_middle(self, sides):
        """Of two shards on one side and four on the other."""
        for name, logits, parts in zip("pq", sides, (2, 4)):
            Path(name).mkdir()
            tokens = np.arange(CHUNKS * CONTEXT).reshape(CHUNKS, CONTEXT) % VOCABULARY
            tokens[2, 5] += name == "q"
            for i, (rows, text) in enumerate(zip(np.split(logits, parts), np.split(tokens, parts))):
                write_llama(f"{name}/{i}.kld", rows, text)
        refused("p", "q", "^p and q are not about the same text: row 30 comes after other tokens;")
        assert kb.compare("p", "q", allow_partial=True).missing_rows == ROWS // 4

    def test_other_chunks(self, sides):
        self.write(sides, (0, 0))
        # 31 tokens a chunk have as many rows as 32, and 62 in half as many chunks; 64 have others.
        for context, chunks in ((CONTEXT - 1, CHUNKS), (2 * CONTEXT - 2, CHUNKS // 2), (2 * CONTEXT, 2)):
            rows = chunks * (context - 1 - context // 2)
            write_llama("q.kld", np.resize(sides[1], (rows, VOCABULARY)), np.zeros((chunks, context), int))
            for allow_partial in (False, True):
                refused("p.kld", "q.kld", rf"^p\.kld has chunks of 32 tokens and q\.kld of {context} \(", allow_partial=allow_partial)
        Path("shards").mkdir()
        for i, context in enumerate((CONTEXT, CONTEXT - 1)):
            write_llama(f"shards/{i}.kld", sides[1][: ROWS // 2], np.zeros((CHUNKS // 2, context), int))
        refused("p.kld", "shards", "^shards/1.kld has chunks of 31 tokens and shards/0.kld of 32: shards must agree$")


@pytest.mark.parametrize("without", [0, 1])
def test_shards_of_which_some_have_tokens(sides, without):
    """Those of the others were passed over, and text that differs with them."""
    for name, x in zip("pq", sides):
        Path(name).mkdir()
        for i, part in enumerate(np.split(x, 2)):
            tokens = {} if (name, i) == ("q", without) else {"tokens": np.full(len(part), ord(name) % 7)}
            np.savez(f"{name}/{i}.npz", logits=part, **tokens)
    for allow_partial in (False, True):
        sentence = rf"^q/{without}.npz has no tokens and q/{1 - without}.npz has some: shards must agree$"
        refused("p", "q", sentence, allow_partial=allow_partial)


CHANGES = {
    "replaced": lambda path: (np.save("new.npy", np.load(path)[::-1]), os.replace("new.npy", path)),
    "written again": lambda path: path.write_bytes(path.read_bytes()),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"0"),
    "gone": os.unlink,
}


class TestChangedWhileRead:
    """Blocks are read one after another, by the file's name."""

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("which", ["p.npy", "q.npy", "t.npy"])
    def test_it_is_refused(self, sides, change, which):
        def act(done, _):
            if done == ROWS:  # there is one block, which has been read
                CHANGES[change](Path(which))

        for allow_partial in (False, True):
            for name, x in zip("pqt", (*sides, np.zeros(ROWS, int))):
                np.save(f"{name}.npy", x)
                os.utime(f"{name}.npy", (1, 1))  # long ago: a clock's tick may be longer than the test
            options = {"form": "logits", "tokens": "t.npy", "progress": act, "allow_partial": allow_partial}
            if not allow_partial:
                refused("p.npy", "q.npy", rf"^{which} was changed while it was read: compare again", **options)
            else:
                assert kb.compare("p.npy", "q.npy", **options).notes == (f"{which} was changed while it was read.",)

    @pytest.mark.parametrize("change", CHANGES)
    def test_what_lies_beside_it(self, sides, change):
        """A log that grows, in a folder of which only the shards are read."""
        for name, x in zip("pqt", (*sides, np.zeros(ROWS, int))):
            Path(name).mkdir()
            np.save(f"{name}/0.npy", x)
            np.save(f"{name}/eval.log.npy", x)
            Path(f"{name}/eval.log.npy").rename(f"{name}/eval.log")
            os.utime(f"{name}/eval.log", (1, 1))

        def act(*_):
            for name in "pqt":
                CHANGES[change](Path(f"{name}/eval.log"))

        assert kb.compare("p", "q", form="logits", tokens="t", progress=act).notes == ()

    def test_it_is_left_alone(self, sides):
        for name, x in zip("pq", sides):
            np.save(f"{name}.npy", x)
        assert kb.compare("p.npy", "q.npy", form="logits", progress=lambda *_: Path("p.npy").read_bytes()).notes == ()


def test_what_lies_below_a_folder(sides):
    """Tables are looked for there, and shards are not."""
    for name, x in zip("pq", sides):
        Path(f"{name}/logs").mkdir(parents=True)
        np.save(f"{name}/logs/x.npy", x)
    refused("p", "q", r"^p is a directory with no files in it, but below it: name those by a pattern, such as 'p/\*\*/\*\.npy'$")
    assert kb.compare("p/**/*.npy", "q/**/*.npy", form="logits").rows == ROWS
    for name, x in zip("pq", sides):
        np.save(f"{name}/x.npy", x)
    assert kb.compare("p", "q", form="logits").rows == ROWS
    for name in "pq":
        Path(f"{name}/logs/metrics.csv").write_text("a\n1\n")
    refused("p", "q", r"^p stands for \.npy and \.csv files: name those of one kind, by a pattern such as 'p/\*\.npy'$")


@pytest.mark.parametrize("kind", ["npy", "kld"])
@pytest.mark.parametrize("folder", [".cache", ".ipynb_checkpoints", "_x", "a/.b", "a/_b/c"])
def test_hidden_tables_below_shards(sides, kind, folder):
    """Are passed over, as where tables are looked for."""
    for name, x in zip("pq", sides):
        Path(f"{name}/{folder}").mkdir(parents=True)
        Path(f"{name}/{folder}/x.csv").write_text("a\n1\n")
        Path(f"{name}/.x.csv").write_text("a\n1\n")
        if kind == "npy":
            Path(f"{name}/_x.csv").write_text("a\n1\n")
            np.save(f"{name}/0.npy", x)
        else:
            write_llama(f"{name}/0.kld", x, np.zeros((CHUNKS, CONTEXT), int))
    for p in ("p", Path("p"), f"p/*.{kind}"):
        assert kb.compare(p, "q", form="logits").rows == ROWS
    Path("q/a").mkdir(exist_ok=True)
    Path("q/a/x.csv").write_text("a\n1\n")
    refused("p", "q", rf"^q stands for {'.npy' if kind == 'npy' else 'llama.cpp logits'} and \.csv files", form="logits")


class TestFoldersThatCannotBeLookedInto:
    """glob and Path pass over them without a word."""

    @pytest.fixture
    def locked(self, sides, monkeypatch):
        for name, x in zip("pqt", (*sides, None)):
            for folder in (f"{name}/a", f"{name}/b/deep", f"{name}/.hidden"):
                Path(folder).mkdir(parents=True)
            for folder in (name, f"{name}/a", f"{name}/b/deep"):
                if x is None:
                    Path(f"{folder}/x.csv").write_text("a\n1\n2\n")
                else:
                    np.save(f"{folder}/x.npy", x)
        shut = []
        access, scandir = os.access, os.scandir

        def refuse(folder="."):
            if folder in shut:
                raise PermissionError(13, "Permission denied", folder)
            return scandir(folder)

        # Whoever runs the tests may be root, who may look into any.
        monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in shut and access(path, mode))
        monkeypatch.setattr(os, "scandir", refuse)
        return shut.append

    @pytest.mark.parametrize("source", ["q/**/x.npy", "q/*/*.npy", "q/*/deep/*.npy", "q/b/*.npy"])
    def test_shards(self, sides, locked, source):
        locked("q/b")
        for folder in ("q", "q/a", "q/a/*.npy", "q/a/x.npy", "q/*.npy"):  # below a folder no shards are read
            assert kb.compare("p/a", folder, form="logits").rows == ROWS
        refused("p/a", source, r"^q/b may not be looked into \(no permission\)", form="logits")

    def test_shards_right_in_it(self, sides, locked):
        locked("q")
        refused("p/a", "q", r"^q may not be looked into \(no permission\)", form="logits")

    @pytest.mark.parametrize("source", ["t", "t/**/x.csv", "t/*/*.csv", "t/b/**/*.csv"])
    def test_tables(self, sides, locked, source):
        assert kb.compare("t/x.csv", source).q.rows in (2, 4, 6)
        locked("t/b")
        refused("t/x.csv", source, r"^t/b may not be looked into \(no permission\)")
        with pytest.raises(ReadError, match=r"^t/b may not be looked into"):
            profile(source)

    def test_hidden_ones_are_passed_over(self, sides, locked):
        locked("q/.hidden")
        locked("t/.hidden")
        assert kb.compare("p", "q", form="logits").rows == ROWS
        assert kb.compare("t", "t").q.rows == 6


class TestFortranOrder:
    """Whose rows lie across the whole file."""

    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int32])
    @pytest.mark.parametrize("bytes_together", [1, 20_000, 1 << 25])
    def test_all_rows_in_their_order(self, sides, monkeypatch, dtype, bytes_together):
        monkeypatch.setattr(shards, "_COLUMN_BYTES", bytes_together)
        x = (100 * sides[0]).astype(dtype)
        np.save("x.npy", np.asfortranarray(x))
        piece = shards.open_array(Path("x.npy"))
        for step in (1, 7, ROWS):
            found = [piece.read(i, min(ROWS, i + step)) for i in range(0, ROWS, step)]
            np.testing.assert_array_equal(np.concatenate(found), x)
        np.testing.assert_array_equal(piece.read(40, 50), x[40:50])
        np.testing.assert_array_equal(piece.read(3, 9), x[3:9])
        piece = shards.open_array(Path("x.npy"))
        Path("x.npy").write_bytes(Path("x.npy").read_bytes()[:-8])
        with pytest.raises(ReadError, match=r"^x\.npy has become shorter since it was opened$"):
            piece.read(0, ROWS)

    def test_memory_does_not_grow_with_rows(self, tmp_path):
        """160 MiB a side; mapped, they took 600."""
        block = np.random.default_rng(0).normal(size=(64, 4096)).astype(np.float32)
        for name, shift in (("p", 0), ("q", 1)):
            out = np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.float32, (10240, 4096), fortran_order=True)
            out.T[:] = np.tile(block + shift * np.float32(0.5) * block[:, ::-1], (160, 1)).T
            del out
        code = (
            "import re, sys, kullback as kb, kullback._compare.models\n"
            "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
            "before = peak()\n"
            "kb.compare(sys.argv[1], sys.argv[2], form='logits')\n"
            "print(peak() - before)"
        )
        arguments = [sys.executable, "-c", code, tmp_path / "p.npy", tmp_path / "q.npy"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
        # 32 MiB of either side, and for a moment those before them; blocks of rows in two threads.
        assert int(done.stdout) < 160 * 1024

"""What a comparison of models refuses, and the sentence that it gets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import kullback as kb
from dumps import CHUNKS, CONTEXT, PROMISE, ROWS, VOCABULARY, close, pair, softmax, truth, write_llama
from kullback._compare.sources import open_source
from kullback._compare.tables import profile
from kullback._read import ReadError
from kullback_command import main


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

    @pytest.mark.parametrize("dtype", [complex, np.longdouble, "S3", "U3", "M8[s]", "m8[s]", "V8", [("a", "f4"), ("b", "i4")]])
    def test_what_is_no_number(self, here, dtype):
        """However it lies in the file. Beside an array of numbers it does no harm."""
        x = np.zeros((ROWS, VOCABULARY), dtype)
        np.save("c.npy", x)
        np.save("fortran.npy", np.asfortranarray(x))
        np.savez("stored.npz", logits=x)
        np.savez_compressed("packed.npz", logits=x)
        for name, what in (("c.npy", ""), ("fortran.npy", ""), ("stored.npz", ", array 'logits',"), ("packed.npz", ", array 'logits',")):
            self.refused(name, f"{name}{what} has dtype {x.dtype.name}: use float16, bfloat16, float32, float64 or an integer type")
        np.save("t.npy", np.zeros(ROWS, dtype))
        self.refused(self.q, f"t.npy: {ROWS} numbers of type {x.dtype.name}, for {ROWS} rows; it must hold a whole number", tokens="t.npy")
        for save in (np.savez, np.savez_compressed):
            save("both.npz", logits=self.q, about=x[0])
            assert kb.compare("p.npy", "both.npz", form="logits").rows == ROWS

    def test_what_numpy_has_not(self, here):
        x = torch.tensor(self.q)
        for tensor in (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), x.to(torch.float8_e4m3fn), x.to(torch.complex64)):
            torch.save(tensor, "q.pt")
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.refused("q.pt", f"{dtype}: use float16, bfloat16, float32, float64 or an integer type")
            self.refused("q.pt", "q.pt ")

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

    def test_one_damaged_byte(self, here):
        """Regression: zipfile's, zlib's and Python's own exceptions came through, with the exit code of a verdict."""
        np.savez("p.npz", logits=self.p)
        np.savez_compressed("packed.npz", logits=self.p)
        torch.save({"logits": torch.tensor(self.p)}, "p.pt")
        found = set()
        for name, places in (
            ("p.npy", [5, 8, 20, Path("p.npy").read_bytes().index(b"}")]),
            ("p.npz", [2, 8, 10, 27, *range(-30, -1, 3)]),
            ("packed.npz", [10, 60, 500, 5000, -60, -20]),
            ("p.pt", [3, 70, 90, 110, 130, -70, -30, -10]),
        ):
            data = Path(name).read_bytes()
            for place in places:
                damaged = bytearray(data)
                damaged[place] = ord(" ") if name == "p.npy" and place > 20 else damaged[place] ^ 0xFF
                bad = f"bad{Path(name).suffix}"
                Path(bad).write_bytes(damaged)
                try:
                    sentence = ""
                    assert kb.compare("p.npy", bad, form="logits").rows == ROWS  # the byte did not matter
                except ReadError as error:
                    sentence = str(error)
                    found.add(name)
                assert not sentence or (bad in sentence and "\n" not in sentence)
        assert found == {"p.npy", "p.npz", "packed.npz", "p.pt"}

    @pytest.mark.parametrize("weights", ["model.safetensors", "model-00001-of-00001.safetensors", "pytorch_model.bin", "wte.pt"])
    def test_models(self, here, capsys, weights):
        """Regression: of two folders of Hugging Face's, the rows of the embedding were compared as distributions."""
        Path("gpt").mkdir()
        Path("gpt/config.json").write_text('{"model_type": "gpt2"}')
        if weights.endswith("safetensors"):
            save_file({"wte.weight": self.q}, f"gpt/{weights}")
        else:
            torch.save({"wte.weight": torch.tensor(self.q)}, f"gpt/{weights}")
        for p, q in (("gpt", "p.npy"), ("p.npy", "gpt/"), ("gpt", "gpt"), (Path("gpt"), self.p)):
            with pytest.raises(ReadError, match=r"^gpt/? is a model \(weights, with a config\.json\), and compare takes what models give"):
                kb.compare(p, q, form="logits")
        assert main(["compare", "p.npy", "gpt", "--form", "logits"]) == 2
        assert capsys.readouterr().err.startswith("kullback compare: gpt is a model")
        if weights == "wte.pt":  # no name of a model's weights; the error tells this way
            self.refused("gpt/*.pt", "gpt/wte.pt holds 'wte.weight', a parameter of a model")
            torch.save({"x": torch.tensor(self.q)}, f"gpt/{weights}")
            assert kb.compare("p.npy", "gpt/*.pt", form="logits").rows == ROWS
        else:
            for name in (f"gpt/{weights}", "g*/*"):
                self.refused(name, f"gpt/{weights} is part of a model")

    @pytest.mark.parametrize(
        ("beside", "weights", "kind"),
        [
            ("adapter_config.json", "adapter_model.safetensors", "an adapter of a model (weights, with an"),
            ("adapter_config.json", "adapter_model.bin", "an adapter of a model (weights, with an"),
            ("model.safetensors.index.json", "model-00001-of-00002.safetensors", "a model (weights, with a"),
            ("pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "a model (weights, with a"),
            ("model_index.json", "diffusion_pytorch_model.safetensors", "a diffusion model (weights, with a"),
            ("model_index.json", "unet/diffusion_pytorch_model.safetensors", "a diffusion model (weights, with a"),
        ],
    )
    def test_parts_of_models(self, here, beside, weights, kind):
        """Regression: an adapter or a model without a config.json was read as an array of numbers."""
        (Path("m") / weights).parent.mkdir(parents=True)
        Path("m", beside).write_text("{}")
        if weights.endswith("safetensors"):
            save_file({"x": self.q}, Path("m", weights))
        else:
            torch.save({"x": torch.tensor(self.q)}, Path("m", weights))
        self.refused("m", f"m is {kind} {beside}), and compare takes what models give: save the logits of each")
        if "/" not in weights:
            self.refused(f"m/{weights}", f"m/{weights} is part of {kind} {beside})")

    @pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight", "weight", "params/Dense_0/kernel", "head.bias"])
    def test_parameters_of_models(self, here, name):
        """Regression: rows of an embedding were compared as rows of logits."""
        save_file({name: self.q}, "model.safetensors")
        torch.save({name: torch.tensor(self.q), "other": torch.tensor(self.q)}, "model.pt")
        np.savez("model.npz", **{name.replace("/", "."): self.q})
        for file in ("model.safetensors", "model.pt", "model.npz"):
            shown = name.replace("/", ".") if file == "model.npz" else name
            self.refused(
                file,
                f"{file} holds {shown!r}, a parameter of a model, and compare takes what models give: save the logits of each; an array of "
                "outputs is called probs, log_probs, logits or counts",
            )
        save_file({name: self.q, "logits": self.q}, "q.safetensors")
        assert kb.compare("p.npy", "q.safetensors", form="logits").rows == ROWS

    @pytest.mark.parametrize("name", ["q4.gguf", "renamed.bin", "model.onnx", "pytorch_model.bin", "m.keras", "m.tflite", "saved_model.pb"])
    def test_formats_of_models(self, here, name):
        """Regression: the sentence said that nothing could tell what they are."""
        Path("m").mkdir()
        Path("m", name).write_bytes(b"GGUF\3\0\0\0" if name in ("q4.gguf", "renamed.bin") else b"\x08\x07\x12\x07pytorch")
        Path("m/README.md").write_text("A model.")
        sentence = f"m/{name} is a model, and compare takes what models give: save the logits of each"
        for given in ("m", f"m/{name}"):
            self.refused(given, sentence)

    def test_headers_that_lie(self, here):
        """Regression: of a negative length, "the first -4" were to be compared."""
        data = Path("p.npy").read_bytes()
        own = str(self.p.shape).encode()

        def lying(name, shape):
            Path(name).write_bytes(data.replace(own, shape.ljust(len(own)).encode()))

        lying("negative.npy", "(-4, 101)")
        lying("minus.npy", "(4, -10)")
        self.refused("negative.npy", "negative.npy has a damaged header: no array has the shape (-4, 101)")
        self.refused("minus.npy", "minus.npy has a damaged header: no array has the shape (4, -10)", allow_partial=True)
        lying("true.npy", "(True,9)")
        self.refused("true.npy", "true.npy has a damaged header: no array has the shape (True, 9)")
        header = data[10 : 10 + int.from_bytes(data[8:10], "little")]
        huge = header.replace(own, f"({2**40}, {2**40})".encode()).rstrip(b" \n").ljust(len(header) - 1) + b"\n"
        Path("huge.npy").write_bytes(data.replace(header, huge))
        self.refused("huge.npy", f"huge.npy has a damaged header: no array has the shape ({2**40}, {2**40})", allow_partial=True)

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

    def test_versions_of_npy_that_do_not_exist(self, here):
        """Version 255 was read as if it were 2."""
        data = bytearray(Path("p.npy").read_bytes())
        header = data[10 : 10 + int.from_bytes(data[8:10], "little")]
        Path("odd.npy").write_bytes(data[:6] + b"\xff\0" + len(header).to_bytes(4, "little") + header + data[10 + len(header) :])
        self.refused("odd.npy", "odd.npy is no .npy array, or its header is cut short or damaged (there is no version 255.0)")

    @pytest.mark.parametrize(
        "odd",
        [{"data_offsets": ["0", "24"]}, {"shape": ["2", "3"]}, {"shape": [2.0, 3.5]}, {"data_offsets": [False, 24]}, {"dtype": ["F32"]}],
    )
    def test_headers_of_safetensors_hold_whole_numbers(self, here, odd):
        """Texts and fractions were made whole numbers, and a list for a type ended in a TypeError."""
        header = json.dumps({"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | odd}).encode()
        Path("odd.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + np.ones(6, "<f4").tobytes())
        self.refused("odd.safetensors", "the entry of 'x' in its header is not as .safetensors has it")

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

    @pytest.mark.parametrize("token", [VOCABULARY, -1])
    def test_tokens_beyond_the_vocabulary(self, here, token):
        """Regression: allow_partial=True left such rows out, as ones whose tokens differ. Those before the first row were not looked at."""
        text = np.arange(CHUNKS * CONTEXT).reshape(CHUNKS, CONTEXT) % VOCABULARY
        np.savez("p.npz", logits=self.p, tokens=text[:, CONTEXT // 2 + 1 :].reshape(-1))
        for chunk, place in ((0, 3), (2, 0), (CHUNKS - 1, CONTEXT - 1)):
            bad = text.copy()
            bad[chunk, place] = token
            write_llama("q.kld", self.q, bad)
            sentence = f"q.kld is a damaged llama.cpp logits file: token {token} at place {place} of chunk {chunk} is no category"
            for partial in (False, True):
                for p in ("p.npy", "p.npz"):
                    with pytest.raises(ReadError, match=f"^{sentence}; there are 101, counted from 0$"):
                        kb.compare(p, "q.kld", form=("logits", "log_probs"), allow_partial=partial)
        wrong = np.zeros(ROWS, int)
        wrong[7] = token
        np.savez("q.npz", logits=self.q, tokens=wrong)
        with pytest.raises(ReadError, match=rf"^q\.npz: token {token} of row 7 is no category; there are 101, counted from 0$"):
            kb.compare("p.npz", "q.npz", allow_partial=True)

    def test_damaged_pt_files(self, here):
        """Regression: PyTorch's own "index out of range" was quoted."""
        torch.save({"logits": torch.tensor(self.q)}, "q.pt")
        data = Path("q.pt").read_bytes()
        start = data.index(b"\x80\x02}")
        found = set()
        for place in range(start, start + 120):
            Path("q.pt").write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
            try:
                kb.compare("p.npy", "q.pt", form="logits")
            except ReadError as error:
                found.add(str(error))
        assert "q.pt is damaged, cut short or a TorchScript program: save a tensor, or a dict of tensors" in found
        assert not [sentence for sentence in found if not sentence.startswith(("q.pt ", "p.npy has"))]
        assert not any("out of range" in sentence or "Expected" in sentence or "assert" in sentence for sentence in found), found

    def test_more_tokens_than_rows(self, here):
        """Those of the longer side are taken, and it is said; more than that are about something else."""
        np.save("q.npy", self.q[:-3])
        t = np.arange(ROWS + 1) % VOCABULARY
        for name, tokens in (("t.npy", "t.npy"), ("tokens", t)):
            np.save("t.npy", t)
            sentence = f"{name}: {ROWS + 1} numbers of type int64, for {ROWS} rows; it must hold a whole number a row"
            self.refused("q.npy", sentence, tokens=tokens, allow_partial=True)
            for count in (ROWS, ROWS - 2, ROWS - 3):
                np.save("t.npy", t[:count])
                given = "t.npy" if name == "t.npy" else t[:count]
                found = kb.compare("p.npy", "q.npy", form="logits", allow_partial=True, tokens=given, top=ROWS)
                assert all(row.token == row.row % VOCABULARY for row in found.worst)
                note = f"{name} holds {count} numbers: the first {ROWS - 3} were used."
                assert (note in found.notes) == (count > ROWS - 3)
            np.save("t.npy", t[: ROWS - 4])
            sentence = f"{name}: {ROWS - 4} numbers of type int64, for {ROWS - 3} rows"
            self.refused("q.npy", sentence, tokens="t.npy" if name == "t.npy" else t[: ROWS - 4], allow_partial=True)

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

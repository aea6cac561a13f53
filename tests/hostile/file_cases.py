"""Generated files of model outputs: whole ones, and ones that are cut, flipped, or say wrong things in their headers.

What a file holds is read here by NumPy's reader, PyTorch's, or a few lines of our own, never by kullback's. The truth follows from that. A
command may refuse a damaged file, with its name; if it gives figures, these must be right for the numbers that lie in the file.
"""

from __future__ import annotations

import base64
import copy
import functools
import io
import json
import math
import random
import shlex
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import judge
import mpmath as mp
import numpy as np
from numpy.lib import _format_impl
from outcome import RIGHT, Outcome, failure

import commands

Case = dict[str, Any]

FORMATS = ("npy", "npy", "npz", "npz", "safetensors", "safetensors", "pt", "kld")
DTYPES = ("float32", "float32", "float64", "float16")
FLAG = "executed"


# ---- making files


def numbers(side: Case) -> np.ndarray:
    """The array of a side, before anything is done to its file."""
    rng = np.random.default_rng(side["numbers"])
    shape, form = (side["rows"], side["categories"]), side["form"]
    base = np.random.default_rng(side["shared"]).normal(size=shape) * 2
    x = base + 10.0 ** rng.uniform(-4, 0.5) * rng.normal(size=shape)
    if form != "logits":
        x = x - np.log(np.exp(x).sum(-1, keepdims=True))
        x = x if form == "log_probs" else np.exp(x)
        x = np.floor(x * 1000 + 1) if form == "counts" else x
    dtype = side["dtype"] if form != "counts" or side["dtype"] == "float64" else "int64" if side["dtype"] == "float16" else "int32"
    return x.astype(dtype)


def tokens_of(side: Case) -> np.ndarray:
    return np.random.default_rng(side["shared"] + 1).integers(side["categories"], size=side["rows"])


def made(side: Case) -> bytes:
    """The file's bytes, before they are damaged."""
    x, file = numbers(side), io.BytesIO()
    kind, name = side["format"], side["form"] if side["named"] else "x"
    if kind == "npy":
        version = tuple(side["version"])
        np.lib.format.write_array(file, np.asfortranarray(x) if side["fortran"] else x, version=version)
    elif kind == "npz":
        arrays = {name: x, **({"tokens": tokens_of(side)} if side["tokens"] else {})}
        (np.savez_compressed if side["packed"] else np.savez)(file, **arrays)
    elif kind == "safetensors":
        from safetensors.numpy import save

        return save({name: x, **({"tokens": tokens_of(side)} if side["tokens"] else {})})
    elif kind in ("pt", "pth"):
        import torch

        tensors = {name: torch.tensor(x), **({"tokens": torch.tensor(tokens_of(side))} if side["tokens"] else {})}
        torch.save(tensors if side["named"] or side["tokens"] else torch.tensor(x), file, _use_new_zipfile_serialization=not side["old"])
    else:
        return _llama(x.astype(np.float64), side)
    return file.getvalue()


def _llama(x: np.ndarray, side: Case) -> bytes:
    """As llama.cpp writes it; rows come in chunks of 3, of 8 tokens each."""
    rows = x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)
    chunks = max(1, len(rows) // 3)
    tokens = np.random.default_rng(side["shared"] + 1).integers(side["categories"], size=(chunks, 8)).astype("<i4")
    out = [b"_logits_", struct.pack("<3i", 8, side["categories"], chunks), tokens.tobytes()]
    for row in np.resize(rows, (3 * chunks, side["categories"])):
        low = max(row.min(), row.max() - 16)
        scale = np.float32((row.max() - low) / 65535)
        codes = np.where(row > low, np.rint((row - low) / scale if scale else 0), 0).astype("<u2")
        out.append(struct.pack("<2f", scale, low) + codes.tobytes() + b"\0\0" * (side["categories"] % 2))
    return b"".join(out)


# ---- damaging them


class _Runs:
    """A pickle that would leave a trace if anyone unpickled it."""

    def __reduce__(self):
        return (open, (FLAG, "w"))


def damaged(data: bytes, side: Case) -> bytes:
    for step in side["damage"]:
        data = _DAMAGE[step[0]](data, side, *step[1:])
    return data


def _cut(data, side, share):
    return data[: int(len(data) * share)]


def _cut_end(data, side, n):
    return data[: max(0, len(data) - n)]


def _flip(data, side, share, bit):
    if not data:
        return data
    i = min(len(data) - 1, int(len(data) * share))
    return data[:i] + bytes([data[i] ^ (1 << bit)]) + data[i + 1 :]


def _flip_at(data, side, place, bit):
    return _flip(data, side, (place % max(1, len(data))) / max(1, len(data)) + 1e-12, bit)


def _insert(data, side, share, text):
    i = int(len(data) * share)
    return data[:i] + base64.b64decode(text) + data[i:]


def _delete(data, side, share, n):
    i = int(len(data) * share)
    return data[:i] + data[i + n :]


def _append(data, side, n):
    return data + b"\xa5" * n


def _npy_with_header(header: str, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    text = header.encode("latin1", "replace")
    size = len(text) if length is None else length
    start = b"\x93NUMPY" + bytes([version, 0])
    return start + (struct.pack("<H", size & 0xFFFF) if version == 1 else struct.pack("<I", size & 0xFFFFFFFF)) + text + data


def _npy_header(data, side, header, version, length):
    """Another header over the same numbers."""
    body = numbers(side).tobytes()
    new = _npy_with_header(header, body, version, length)
    return _in_archive(new, side) if side["format"] == "npz" else new


def _in_archive(member: bytes, side: Case) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if side["packed"] else zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{side['form'] if side['named'] else 'x'}.npy", member)
    return file.getvalue()


def _pickle(data, side):
    """Objects that run code when they are unpickled."""
    x = np.empty(3, object)
    x[:] = [_Runs() for _ in range(3)]
    file = io.BytesIO()
    if side["format"] in ("pt", "pth"):
        import torch

        torch.save({"logits": _Runs()}, file, _use_new_zipfile_serialization=not side["old"])
        return file.getvalue()
    np.lib.format.write_array(file, x, allow_pickle=True)
    return _in_archive(file.getvalue(), side) if side["format"] == "npz" else file.getvalue()


def _bomb(data, side, rows, lies):
    return _packed_zeros(rows, lies, side["form"] if side["named"] else "x")


@functools.cache
def _packed_zeros(rows: int, lies: str, name: str) -> bytes:
    """Kilobytes that unpack to as many numbers as the header says, or to more, or to fewer."""
    columns = 1000
    header = repr({"descr": "<f4", "fortran_order": False, "shape": (rows if lies != "more" else 1, columns)})
    member = _npy_with_header(header + "\n", b"\0" * (0 if lies == "fewer" else 4 * rows * columns))
    return _in_archive(member, {"packed": True, "named": True, "form": name})


def _zip_field(data, side, where, offset, value):
    """A field of a zip archive's local header or of its table of contents."""
    place = data.find({"local": b"PK\3\4", "central": b"PK\1\2", "end": b"PK\5\6"}[where])
    if place < 0 or place + offset + 4 > len(data):
        return data
    return data[: place + offset] + struct.pack("<I", value & 0xFFFFFFFF) + data[place + offset + 4 :]


def _safetensors_header(data, side, header, length):
    text = header.encode()
    return struct.pack("<Q", (len(text) if length is None else length) % 2**64) + text + numbers(side).tobytes()


def _llama_field(data, side, place, value):
    return data[: 8 + 4 * place] + struct.pack("<i", value) + data[12 + 4 * place :]


def _llama_row(data, side, row, scale, low):
    words = 2 * ((side["categories"] + 1) // 2) + 4
    begin = 20 + 4 * 8 * max(1, side["rows"] // 3) + 2 * words * row
    return data if begin + 8 > len(data) else data[:begin] + struct.pack("<2f", float(scale), float(low)) + data[begin + 8 :]


_DAMAGE = {
    "cut": _cut, "cut_end": _cut_end, "flip": _flip, "flip_at": _flip_at, "insert": _insert, "delete": _delete, "append": _append,
    "npy_header": _npy_header, "pickle": _pickle, "bomb": _bomb, "zip_field": _zip_field, "safetensors_header": _safetensors_header,
    "llama_field": _llama_field, "llama_row": _llama_row,
}  # fmt: skip


def _damage(rng: random.Random, side: Case) -> list[Any]:
    general = [
        lambda: ["cut", rng.random()],
        lambda: ["cut_end", rng.choice([1, 2, 3, 4, 8, 22, 40])],
        lambda: ["flip", rng.random(), rng.randrange(8)],
        lambda: ["flip_at", rng.randrange(160), rng.randrange(8)],
        lambda: ["flip_at", -1 - rng.randrange(200), rng.randrange(8)],
        lambda: ["insert", rng.random(), base64.b64encode(rng.randbytes(rng.choice([1, 4, 100]))).decode()],
        lambda: ["delete", rng.random(), rng.choice([1, 2, 4, 64])],
        lambda: ["append", rng.choice([1, 4, 4096])],
    ]
    special: list[Any] = []
    kind = side["format"]
    if kind in ("npy", "npz"):
        special += [lambda: ["npy_header", *_odd_npy_header(rng, side)]] * 5 + [lambda: ["pickle"]]
    if kind == "npz":
        special += [lambda: ["bomb", rng.choice([1000, 1000, 100_000]), rng.choice(["", "more", "fewer"])]]
        places = {"local": (6, 8, 14, 18, 22, 26), "central": (8, 10, 16, 20, 24, 28, 42), "end": (8, 12, 16)}
        fields = [(where, offset) for where, offsets in places.items() for offset in offsets]
        special += [
            lambda: ["zip_field", *rng.choice(fields), rng.choice([0, 1, 99, 0xFFFFFFFF, 0x7FFFFFFF, 2**31, rng.getrandbits(32)])]
        ] * 5
    if kind == "safetensors":
        special += [lambda: ["safetensors_header", *_odd_safetensors(rng, side)]] * 6
    if kind == "pt":
        special += [lambda: ["pickle"]] * 2
    if kind == "kld":
        special += [lambda: ["llama_field", rng.randrange(3), rng.choice([0, 1, 2, 3, 7, 9, -1, -(2**31), 2**31 - 1, 65536, 2**30])]] * 4
        odd = ["nan", "inf", "-inf", "-1.0", "0.0", "1e30", "-1e30", "1e-42", "3e38"]
        special += [lambda: ["llama_row", rng.randrange(3), rng.choice(odd), rng.choice([*odd, "-3.0"])]] * 3
    return [rng.choice(general + special)() for _ in range(rng.choice([1, 1, 1, 2, 4]))]


def _odd_npy_header(rng: random.Random, side: Case) -> list[Any]:
    x = numbers({**side, "rows": 1, "categories": 2})
    rows, categories = side["rows"], side["categories"]
    shape = rng.choice([
        (rows, categories), (rows, categories), (rows, categories), (-rows, categories), (rows, -categories), (-4,), (10**12, categories),
        (rows, 10**12), (2**63, 2), (2**64, 0), (rows,), (), (0, categories), (rows, 0), (1, rows, categories), (rows * categories,),
        (rows + 1, categories), (rows - 1, categories), (True, categories), (1.0, 2.0), "(3, 4)", [rows, categories], None,
        (rows, (categories,)), (10**400, 2), (rows, categories) + (1,) * 70,
    ])  # fmt: skip
    descr = rng.choice([x.dtype.str] * 8 + ["<f9", "|O", "O", ">f4", "<f4", "<i8", "|b1", "<U3", "|S0", "|V0", "<c8", "<M8[s]", "<f16",
                        "float32", [("a", "<f4")], [("a", "O")], ("<f4", (2,)), "", None, 3, "<f4,<f4", "|u1", "=f4", "<f2"])  # fmt: skip
    header: Any = {"descr": descr, "fortran_order": rng.choice([False] * 6 + [True, 0, 1, None, "no"]), "shape": shape}
    choice = rng.randrange(12)
    if choice == 0:
        header.pop(rng.choice(list(header)))
    elif choice == 1:
        header["more"] = 1
    text = repr(header)
    if choice == 2:
        text = text[: rng.randrange(len(text))]
    elif choice == 3:
        text = rng.choice(
            [
                "",
                "{",
                "}",
                "(" * 300,
                "[" * 5000,
                "{'a': " * 300,
                "__import__('os')",
                "1/0",
                "{" + "0" * 9000,
                "\0" * 20,
                "{1: 2}",
                "'x'",
                "\xff" * 30,
                "9" * 5000,
                "-" * 3000 + "1",
            ]
        )
    version = rng.choice([1, 1, 1, 2, 3, 4, 0, 255])
    length = rng.choice([None] * 5 + [0, 1, len(text) - 3, len(text) + 50, 65535, 2**31, 2**32 - 1])
    return [text + "\n", version, length]


def _odd_safetensors(rng: random.Random, side: Case) -> list[Any]:
    x = numbers(side)
    kind = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32"}[x.dtype.name]
    entry: Any = {"dtype": kind, "shape": list(x.shape), "data_offsets": [0, x.nbytes]}
    odd: dict[str, list[Any]] = {
        "dtype": ["F8_E4M3", "F4", "BOOL", "f32", None, 3, "", "BF16", "C64", "U64", "I8", ["F32"], {}],
        "shape": [[-1, -1], [2**62, 4], [2**64, 0], [0, 3], [], [x.size],
                  x.shape[::-1], "ab", None, [1.5, 2], ["3", "4"], [True, x.size], 7,
                  [10**400], [[3]], [x.shape[0] + 1, x.shape[1]], {"0": 1}, [float(x.shape[0]), float(x.shape[1])]],
        "data_offsets": [[0, 0], [8, x.nbytes + 8], [-8, x.nbytes - 8], [x.nbytes, 0], [0], [0, 1, 2], None, "ab", [0.0, float(x.nbytes)],
                         [0, 2**63], [2**64, 2**64 + x.nbytes], [True, False], ["0", str(x.nbytes)], [0, 1e400], [4, x.nbytes + 4]],
    }  # fmt: skip
    for _ in range(rng.choice([0, 1, 1, 2])):
        name = rng.choice(list(entry)) if entry else "dtype"
        if rng.random() < 0.15:
            entry.pop(name, None)
        else:
            value = rng.choice(odd[name])
            entry[name] = list(value) if isinstance(value, tuple) else value
    name = side["form"] if side["named"] else rng.choice(["x", "", "a" * 300, "\u0000", "logits"])
    header: Any = {name: entry}
    choice = rng.randrange(14)
    if choice == 0:
        header["__metadata__"] = rng.choice([None, 3, {"a": 1}, []])
    elif choice == 1:
        header = rng.choice([[], None, 3, {}, {name: None}, {name: [1]}, {name: "x"}, "x"])
    elif choice == 2:
        header["other"] = dict(entry)
    text = json.dumps(header)
    if choice == 3:
        text = rng.choice(["[" * 3000, '{"a":' * 3000, "{", "", "\0", "nan", "[1e999]", '{"x": {}}', '{"a":1,"a":2}', "9" * 6000])
    elif choice == 4:
        text = text[: rng.randrange(len(text))]
    elif choice == 5:
        text += " " * 100
    length = rng.choice([None] * 8 + [0, 1, 7, len(text) + 1000, 2**63 - 1, 2**64 - 1, 99_999_999, len(text) - 1])
    return [text, length]


# ---- cases


def generate(seed: int, _: str = "") -> Case:
    rng = random.Random(seed)
    shared, rows, categories = rng.getrandbits(30), rng.choice([1, 2, 3, 6, 9, 12]), rng.choice([2, 3, 4, 7])
    form = rng.choice(["logits", "logits", "probs", "log_probs", "counts"])
    sides = []
    for _side in range(2):
        kind = rng.choice(FORMATS)
        own = rng.choice(["logits", "probs", "log_probs", "counts"]) if rng.random() < 0.15 else form
        sides.append({
            "format": kind, "rows": rows + (rng.random() > 0.95), "categories": categories + (rng.random() > 0.97),
            "form": "logits" if kind == "kld" else own, "dtype": rng.choice(DTYPES), "shared": shared, "numbers": rng.getrandbits(30),
            "named": rng.random() < 0.5, "tokens": rng.random() < 0.2, "packed": rng.random() < 0.5, "fortran": rng.random() < 0.2,
            "old": rng.random() < 0.3, "version": rng.choice([[1, 0], [1, 0], [2, 0], [3, 0]]), "damage": [], "folder": rng.random() < 0.08,
        })  # fmt: skip
        if kind == "kld":
            sides[-1]["rows"] = 3 * max(1, rows // 3)
    if any(side["format"] == "kld" for side in sides):
        for side in sides:
            side["rows"] = 3 * max(1, rows // 3)
    if rng.random() < 0.85:
        side = rng.choice(sides)
        side["damage"] = _damage(rng, side)
    given = [side["form"] if side["format"] != "kld" else "log_probs" for side in sides]
    options: list[str] = ["--form", given[0] if given[0] == given[1] else ",".join(given)] if rng.random() < 0.9 else []
    if rng.random() < 0.3:
        options.append("--allow-partial")
    if rng.random() < 0.15:
        options += ["--base", rng.choice(["2", "10", "e"])]
    if rng.random() < 0.15:
        options += ["--fail-over", rng.choice(["0", "0.01", "1e300", "inf"])]
    return {"sides": sides, "options": options, "apart": rng.random() < 0.01}


class Read(NamedTuple):
    """What an independent reader finds: an array, how many rows are whole, the form that its name says, tokens, and half precision."""

    array: np.ndarray
    whole: int
    rows: int
    form: str | None
    tokens: np.ndarray | None
    half: bool
    clipped: bool = False
    is_llama: bool = False


class Unreadable(Exception):
    pass


def _partial(data: bytes, dtype: Any, shape: tuple[int, ...], fortran: bool = False) -> tuple[np.ndarray, int]:
    """As many rows as there are bytes for."""
    if len(shape) < 2 or min(shape) <= 0 or dtype.hasobject or math.prod(shape[1:]) > 10**9:
        raise Unreadable(f"shape {shape} of {dtype}")
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    if fortran:
        if len(data) < math.prod(shape) * dtype.itemsize:
            raise Unreadable("cut")
        x = np.frombuffer(data, dtype, math.prod(shape)).reshape(shape, order="F")
        return x.reshape(rows, columns), rows
    whole = min(rows, len(data) // (columns * dtype.itemsize))
    return np.frombuffer(data, dtype, whole * columns).reshape(whole, columns), rows


def _read_npy(data: bytes) -> tuple[np.ndarray, int]:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    shape, fortran, dtype = _format_impl._read_array_header(file, version)
    return _partial(file.read(), dtype, shape, fortran and len(shape) > 1)


def read(path: Path, wanted: str | None) -> Read:
    """By other means than kullback's."""
    data = path.read_bytes()
    if data[:8] == b"_logits_":
        try:
            return _read_llama(data)
        except (struct.error, ValueError) as error:
            raise Unreadable(str(error)) from None
    arrays: dict[str, tuple[np.ndarray, int]] = {}
    kind = path.suffix[1:]
    try:
        if kind == "npy":
            arrays = {"": _read_npy(data)}
        elif kind == "npz":
            archive = zipfile.ZipFile(io.BytesIO(data))
            for entry in archive.infolist():
                if entry.filename.endswith(".npy"):
                    with archive.open(entry) as member:
                        if entry.compress_type == zipfile.ZIP_STORED:
                            member._expected_crc = None  # type: ignore[attr-defined]  # documented: checksums of what is mapped are not looked at
                        name = entry.filename.removesuffix(".npy")
                        body = member.read(1 << 24)
                    arrays[name] = _flat_npy(body) if name == "tokens" else _read_npy(body)
        elif kind == "safetensors":
            arrays = _read_safetensors(data)
        else:
            import torch

            # Mapped: of archives whose directory and entries disagree, PyTorch's other way of reading makes other numbers.
            loaded = torch.load(path, weights_only=True, mmap=zipfile.is_zipfile(path))
            loaded = loaded if isinstance(loaded, dict) else {"": loaded}
            for name, x in loaded.items():
                y = x.detach().float().numpy() if x.dtype == torch.bfloat16 else x.detach().numpy()
                arrays[name] = (
                    y.reshape(-1, y.shape[-1]) if name != "tokens" else y,
                    math.prod(y.shape[:-1]) if name != "tokens" else len(y),
                )
        arrays = {name: found for name, found in arrays.items() if name == "tokens" or found[0].ndim == 2 or len(arrays) == 1}
        if any(x.ndim != 2 for name, (x, _) in arrays.items() if name != "tokens"):
            raise Unreadable("the array has not two axes")
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None
    named = [name for name in arrays if name in ("logits", "log_probs", "probs", "counts")]
    if len(named) > 1:
        named = [wanted] if wanted in named else []
    others = [name for name in arrays if name != "tokens"]
    if len(named) != 1 and len(others) != 1:
        raise Unreadable("no array or several")
    name = named[0] if len(named) == 1 else others[0]
    array, rows = arrays[name]
    if array.dtype.kind not in "biuf":
        raise Unreadable(f"an array of {array.dtype}")
    tokens = arrays["tokens"][0].reshape(-1) if "tokens" in arrays else None
    half = array.dtype == np.float16
    return Read(
        array.astype(np.float64), len(array), rows, name if name in ("logits", "log_probs", "probs", "counts") else None, tokens, half
    )


def _flat_npy(data: bytes) -> tuple[np.ndarray, int]:
    x = np.load(io.BytesIO(data), allow_pickle=False)
    return x, len(x)


def _read_safetensors(data: bytes) -> dict[str, tuple[np.ndarray, int]]:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    types = {
        "F32": "<f4",
        "F64": "<f8",
        "F16": "<f2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U8": "u1",
        "U16": "<u2",
        "U32": "<u4",
        "U64": "<u8",
    }
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        shape, body = tuple(entry["shape"]), data[8 + length :]
        if entry["dtype"] == "BF16":
            raw, rows = _partial(body[begin:end], np.dtype("<u2"), shape)
            found[name] = ((raw.astype(np.uint32) << 16).view(np.float32), rows)
        elif len(shape) == 1:
            x = np.frombuffer(body[begin:end], types[entry["dtype"]])
            found[name] = (x, len(x))
        else:
            found[name] = _partial(body[begin:end], np.dtype(types[entry["dtype"]]), shape)
    return found


def _read_llama(data: bytes) -> Read:
    context, vocabulary, chunks = struct.unpack("<3i", data[8:20])
    if context < 3 or vocabulary < 1 or chunks < 1 or max(context, vocabulary, chunks) > 10**6:
        raise Unreadable("header")
    per_chunk = context - 1 - context // 2
    words, begin = 2 * ((vocabulary + 1) // 2) + 4, 20 + 4 * chunks * context
    rows = per_chunk * chunks
    whole = max(0, min(rows, (len(data) - begin) // (2 * words)))
    block = np.frombuffer(data, "<u2", whole * words, begin).reshape(whole, words) if whole else np.zeros((0, words), "<u2")
    ends = np.ascontiguousarray(block[:, :4]).view("<f4").astype(np.float64)
    with np.errstate(all="ignore"):
        logs = ends[:, :1] * block[:, 4 : 4 + vocabulary] + ends[:, 1:2]
        # Codes of a row that spans its window hide what was clipped: one bucket, which the judge leaves to the tests of llama.cpp's files.
        clipped = bool((ends[:, 0] * 65535 >= 15.8).any()) or not np.isfinite(ends).all()
    if len(data) < begin:
        raise Unreadable("cut within its tokens")
    tokens = np.frombuffer(data, "<i4", chunks * context, 20).reshape(chunks, context)[:, context // 2 + 1 :].reshape(-1)
    return Read(logs, whole, rows, "log_probs", tokens, False, clipped, True)


# ---- running and judging


def _write(case: Case) -> list[str]:
    names = []
    for letter, side in zip("pq", case["sides"]):
        data = damaged(made(side), side)
        suffix = side["format"]
        if side["folder"]:
            Path(f"{letter}-shards").mkdir()
            Path(f"{letter}-shards/part-1.{suffix}").write_bytes(data)
            names.append(f"{letter}-shards")
        else:
            Path(f"{letter}.{suffix}").write_bytes(data)
            names.append(f"{letter}.{suffix}")
    return names


def _files(names: list[str]) -> list[Path]:
    return [next(Path(name).iterdir()) if Path(name).is_dir() else Path(name) for name in names]


def run(case: Case) -> Outcome:
    with commands.folder():
        names = _write(case)
        done = (commands.apart if case["apart"] else commands.here)(["compare", *names, "--json", *case["options"]])
        if Path(FLAG).exists():
            return failure("a pickle was run")
        if isinstance(done, Outcome):
            return done
        files = _files(names)
        # PyTorch's files from before 1.6 need not be read.
        whole = not any(side["damage"] or (side["format"] == "pt" and side["old"]) for side in case["sides"])
        limit = float(case["options"][case["options"].index("--fail-over") + 1]) if "--fail-over" in case["options"] else None
        try:
            expected = truth(case, files)
        except Unreadable as error:
            expected = None
            why = str(error)
        if done.code == 0 or (done.code == 1 and limit is not None and done.out):
            found = commands.printed(done)
            if isinstance(found, Outcome):
                return found
            if expected is None:
                return failure(f"figures of what cannot be read ({why}): {commands.shown(json.dumps(found['kl_pq']))}")
            if isinstance(expected, str):
                return failure(f"{expected}, and there were figures: {commands.shown(json.dumps(found['kl_pq']))}")
            wrong = wrong_figures(found, expected)
            if wrong is not None:
                return failure(wrong)
            if limit is not None and (commands.number(found["kl_pq"]["mean"]) > limit) != (done.code == 1):
                return failure(f"exit code {done.code} for a KL of {found['kl_pq']['mean']} and a limit of {limit}")
            return Outcome(RIGHT)
        outcome = commands.refusal(done, [str(file) for file in files] + names)
        # Without rows to compare, those that are left out may be refused.
        if not outcome.failed and whole and isinstance(expected, Expected) and (expected.rows or not expected.loose):
            return failure(f"whole files were refused: {outcome.why}")
        return outcome


def _text(file: Path) -> bytes:
    """A llama.cpp file's header and tokens."""
    data = file.read_bytes()
    context, _, chunks = struct.unpack("<3i", data[8:20])
    return data[: 20 + 4 * context * chunks]


class Expected(NamedTuple):
    rows: int
    kl_pq: mp.mpf
    kl_qp: mp.mpf
    js: mp.mpf
    slack: mp.mpf
    loose: bool


def truth(case: Case, files: list[Path]) -> Expected | str:
    """The means over the rows that are to be compared, or why there must be none."""
    options = case["options"]
    asked = options[options.index("--form") + 1].split(",") if "--form" in options else [None]
    partial = "--allow-partial" in options
    sides = [read(file, wanted) for file, wanted in zip(files, asked * 2 if len(asked) == 1 else asked)]
    forms = []
    for side, wanted, file in zip(sides, asked * 2 if len(asked) == 1 else asked, files):
        if side.form is not None and wanted not in (None, side.form):
            if side.form == "log_probs" and file.read_bytes()[:8] == b"_logits_" and len(asked) == 1:
                forms.append("log_probs")
                continue
            return f"{file} holds {side.form}"
        forms.append(side.form or wanted or "probs")
    if sides[0].array.shape[1] != sides[1].array.shape[1]:
        return "the categories differ"
    if not partial and (sides[0].rows != sides[1].rows or any(side.whole < side.rows for side in sides)):
        return "a file is cut short, or the rows differ in number"
    tokens = [side.tokens for side in sides]
    together = min(side.whole for side in sides)
    if any(
        t is not None and len(t[:together]) and not 0 <= min(t[:together]) <= max(t[:together]) < sides[0].array.shape[1] for t in tokens
    ):
        return "a token is no category"
    kept = range(together)
    if all(t is not None for t in tokens) and not np.array_equal(*(t[:together] for t in tokens)):  # type: ignore[index]
        if not partial:
            return "the tokens differ"
        return Expected(0, *[mp.mpf(0)] * 4, True)  # which rows are left is for the tests of tokens
    if all(side.is_llama for side in sides) and _text(files[0]) != _text(files[1]):
        # Rows are about the tokens before them, too: which are left is for the tests of llama.cpp's files.
        return Expected(0, *[mp.mpf(0)] * 4, True) if partial else "the text differs"
    values: list[list[mp.mpf]] = []
    slack = mp.mpf(0)
    loose = any(side.clipped for side in sides)
    scale = 1 / mp.log(mp.mpf(options[options.index("--base") + 1])) if "--base" in options and "e" not in options else mp.mpf(1)
    for i in kept:
        rows = [[float(v) for v in side.array[i]] for side in sides]
        complaints = [judge.complaint(r, form, 5e-2 if side.half else 1e-3) for r, form, side in zip(rows, forms, sides)]
        if "nan" in complaints:
            if not partial:
                return "a row holds NaN"
            continue
        if loose or "unsure" in complaints:
            loose = True
            continue
        if judge.INVALID in complaints:
            if partial and any(side.is_llama and c == judge.INVALID for side, c in zip(sides, complaints)):
                loose = True  # a damaged row of theirs overflows to NaN, and is left out
                continue
            return "a row is no distribution"
        with mp.workdps(judge.digits_for(rows, forms, 1.0)):
            p, q = (judge.log_normalised(r, form, mp.mpf(1), None) for r, form in zip(rows, forms))
            values.append([judge.kl(p, q), judge.kl(q, p), judge.js(p, q)])
            finite = [abs(v) for v in (*p, *q) if mp.isfinite(v)]
            largest = max([v for v in values[-1] if mp.isfinite(v)] or [mp.mpf(0)])
            # docs/compare.md: 1e-10 of few numbers; docs/numerics.md: a log that rounds adds 2 eps max|log p| sqrt(KL). llama.cpp's
            # files round to half a step, so the numbers in them sum to 1 only within 1e-4 or so.
            slack += mp.mpf("1e-10") * largest + 4 * judge.EPSILON["float64"] * max(finite) * mp.sqrt(largest) + mp.mpf("1e-18")
    if not values and not loose:
        return "there are no rows to compare"
    n = len(values) or 1
    means = [scale * mp.fsum(v[j] for v in values) / n for j in range(3)]
    llama = any(file.read_bytes()[:8] == b"_logits_" for file in files)
    extra = mp.mpf("2e-3") * max([m for m in means if mp.isfinite(m)] or [mp.mpf(0)]) + mp.mpf("1e-5") if llama else mp.mpf(0)
    return Expected(len(values), *means, scale * slack / n + extra, loose)


def wrong_figures(found: Case, expected: Expected) -> str | None:
    for name in ("kl_pq", "kl_qp", "js"):
        got, right = commands.number(found[name]["mean"]), getattr(expected, name)
        if math.isnan(got) or got < 0:
            return f"{name} is {got}"
        if expected.loose:
            continue
        if mp.isinf(right) != math.isinf(got) or (mp.isfinite(right) and abs(mp.mpf(got) - right) > expected.slack):
            return f"{name} is {got!r} where {mp.nstr(right, 17)} is right, and {mp.nstr(expected.slack, 3)} is allowed"
    if not expected.loose and found["rows"] != expected.rows:
        return f"{found['rows']} rows where {expected.rows} is right"
    return None


# ---- smaller cases


def smaller(case: Case) -> Iterator[Case]:
    for i, side in enumerate(case["sides"]):
        for j in range(len(side["damage"])):
            less = copy.deepcopy(case)
            del less["sides"][i]["damage"][j]
            yield less
    for i in range(len(case["options"])):
        if case["options"][i].startswith("--") and case["options"][i] != "--form":
            n = 1 if case["options"][i] == "--allow-partial" else 2
            yield {**copy.deepcopy(case), "options": case["options"][:i] + case["options"][i + n :]}
    for name, values in (
        ("rows", (1, 2, 3)),
        ("categories", (2, 3)),
        ("folder", (False,)),
        ("tokens", (False,)),
        ("fortran", (False,)),
        ("named", (False,)),
        ("packed", (False,)),
        ("old", (False,)),
    ):
        for value in values:
            if any(side[name] != value and (isinstance(value, bool) or value < side[name]) for side in case["sides"]):
                less = copy.deepcopy(case)
                for side in less["sides"]:
                    side[name] = value
                yield less
    for i, side in enumerate(case["sides"]):
        if not side["damage"] and side["format"] != "npy" and side["format"] != "kld":
            less = copy.deepcopy(case)
            less["sides"][i]["format"] = "npy"
            yield less


def command(case: Case) -> str:
    names = [f"{letter}.{side['format']}" for letter, side in zip("pq", case["sides"])]
    damage = "; ".join(f"{name}: {json.dumps(side['damage'])[:200]}" for name, side in zip(names, case["sides"]) if side["damage"])
    return f"kullback compare {' '.join(names)} {shlex.join(case['options'])}  # {damage}"

"""Generated tables, as files of every kind and as objects: whole ones with odd values, and damaged ones.

The bins and figures of docs/compare-tables.md are computed here from the values themselves, in a few lines of Python. Of a damaged file the
values are not known: it is refused with its name, or the figures follow from the counts that are shown and these add up to the rows.
"""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
import math
import random
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outcome import RIGHT, Outcome, failure, of_exception

import commands

Case = dict[str, Any]

FORMATS = ("csv", "csv", "csv", "tsv", "jsonl", "ndjson", "parquet", "parquet", "csv.gz", "jsonl.gz", "arrow", "pandas")
OBJECTS = ("arrow", "pandas")
BINS, LEVELS = 10, 50


# ---- making tables


def _values(rng: random.Random, kind: str, n: int, drift: float) -> list[Any]:
    if kind == "int":
        spread = rng.choice([3, 10, 1000, 10**17])
        found: list[Any] = [int(rng.gauss(drift, 1) * spread / 4) for _ in range(n)]
    elif kind == "float":
        found = [round(rng.gauss(drift, 1) * rng.choice([1, 1, 1, 1e3]), rng.choice([0, 1, 6])) + 0.5 for _ in range(n)]
        for i in range(n):
            if rng.random() < 0.06:
                found[i] = rng.choice([1e308, -1e308, 5e-324, -0.0, 0.0, 1e-310, math.inf, -math.inf, math.nan, 1.5, 1.5])
    elif kind == "bool":
        found = [rng.random() < 0.4 + drift / 5 for _ in range(n)]
    else:
        letters = [
            "a",
            "b",
            "c",
            "A",
            "é",
            "e\u0301",
            "x,y",
            'say "hi"',
            "tab\there",
            "two\nlines",
            " space",
            "nul?",
            "\u200b",
            "emoji \U0001f600",
            "'",
            "NaN?",
            "z" * 300,
            "0x1",
        ]
        found = [letters[min(len(letters) - 1, int(rng.expovariate(0.4 + drift / 10)))] for _ in range(n)]
        found[0] = found[-1] = "a"
    if rng.random() < 0.4:
        found = [None if rng.random() < 0.15 else v for v in found]
    if all(v is None for v in found):
        found[0] = {"int": 1, "float": 0.5, "bool": True, "text": "a"}[kind]
    return found


def generate(seed: int, _: str = "") -> Case:
    rng = random.Random(seed)
    kinds = [rng.choice(["int", "float", "float", "text", "text", "bool"]) for _ in range(rng.choice([1, 2, 3]))]
    names = rng.sample(
        ["a", "b", "with space", "é", "x,y", 'q"uote', "select", "a:b", "\u4e2d", "A" * 200, "1", "-", "total.sum", "%s", "{0}"], len(kinds)
    )
    sides = []
    for _ in range(2):
        n = rng.choice([1, 2, 5, 20, 60])
        drift = rng.choice([0.0, 0.0, 0.5, 3.0])
        columns = {name: [_text(v) for v in _values(rng, kind, n, drift)] for name, kind in zip(names, kinds)}
        sides.append({"format": rng.choice(FORMATS), "columns": columns, "kinds": dict(zip(names, kinds)), "damage": []})
    if rng.random() < 0.55:
        side = rng.choice(sides)
        if side["format"] not in OBJECTS:
            side["damage"] = [_damage(rng, side) for _ in range(rng.choice([1, 1, 2]))]
    options: list[str] = []
    if rng.random() < 0.15:
        options += ["--prior", rng.choice(["0", "1", "0.001", "1e9"])]
    if rng.random() < 0.15:
        options += ["--bins", rng.choice(["2", "3", "50", "1000"])]
    if rng.random() < 0.1:
        options += ["--levels", rng.choice(["1", "2", "1000"])]
    if rng.random() < 0.1:
        options += ["--common"]
    if rng.random() < 0.1:
        options += ["--fail-over", rng.choice(["0", "0.1", "inf"])]
    profiled = rng.random() < 0.12 and not any(side["format"] in OBJECTS for side in sides)
    return {"sides": sides, "options": options, "profile": profiled, "engine": "duckdb"}


def _text(v: Any) -> Any:
    """JSON has no NaN: floats are kept as texts that begin with f."""
    return f"f{v!r}" if isinstance(v, float) else ["t", v] if isinstance(v, str) else v


def _value(v: Any) -> Any:
    return float(v[1:]) if isinstance(v, str) else v[1] if isinstance(v, list) else v


def columns_of(side: Case) -> dict[str, list[Any]]:
    return {name: [_value(v) for v in values] for name, values in side["columns"].items()}


def _cell(v: Any) -> str:
    if v is None:
        return ""
    if isinstance(v, bool):
        return "true" if v else "false"
    return repr(v) if isinstance(v, float) else str(v)


def made(side: Case) -> bytes:
    columns = columns_of(side)
    names, kind = list(columns), side["format"].removesuffix(".gz")
    rows = list(zip(*columns.values()))
    if kind in ("csv", "tsv"):
        # A missing value is an empty field without quotes; a line of nothing else would be no row.
        delimiter = "," if kind == "csv" else "\t"
        quote = lambda text: '"' + text.replace('"', '""') + '"'  # noqa: E731
        lines = [delimiter.join(map(quote, names))]
        lines += [delimiter.join(quote(v) if isinstance(v, str) else _cell(v) for v in row) for row in rows]
        data = "\n".join([*lines, ""]).encode()
    elif kind in ("jsonl", "ndjson"):
        data = "".join(
            json.dumps({n: v for n, v in zip(names, row) if not (isinstance(v, float) and not math.isfinite(v))}) + "\n" for row in rows
        ).encode()
    else:
        import pyarrow.parquet as pq

        file = io.BytesIO()
        pq.write_table(_arrow(side), file)
        data = file.getvalue()
    return gzip.compress(data, mtime=0) if side["format"].endswith(".gz") else data


def _arrow(side: Case) -> Any:
    import pyarrow as pa

    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string()}
    return pa.table({name: pa.array(values, types[side["kinds"][name]]) for name, values in columns_of(side).items()})


def _object(side: Case) -> Any:
    return _arrow(side) if side["format"] == "arrow" else _arrow(side).to_pandas()


# ---- damaging them

# Texts that are inserted into a text file, or that replace the whole file.
PIECES = (
    "\0", "\xff", '"', "\n", "\r\n", "\r", ",", "\t", "\ufeff", "{", "}", "[", "]", "null", "1e400", "9" * 400, "NaN", "-", "e", "\u2028",
    " ", ",,", '""', "\\", "\\u0000", "\\ud800", "'", "{}\n", "[]\n", '{"a":{"b":1}}\n', '{"a":1,"a":2}\n', "\x1a", "x" * 100_000,
)  # fmt: skip
WHOLES = (
    b"", b"\n", b"a\n", b"\n\n\n", b"\xef\xbb\xbf", b"{}", b"[]\n", b"null\n", b"PAR1", b"PAR1PAR1", b"PAR1\0\0\0\0PAR1",
    b"PAR1\xff\xff\xff\x7fPAR1", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\0", b"a,a\n1,2\n", b"a\n" + b"[" * 5000, b"[" * 100_000 + b"\n",
    b'{"a":' * 3000 + b"1" + b"}" * 3000, b'"', b"\0" * 500, b"a\n" + b"1" * 5000 + b"\n",
)  # fmt: skip


def _damage(rng: random.Random, side: Case) -> list[Any]:
    text = rng.choice(PIECES)
    return rng.choice([
        lambda: ["cut", rng.random()],
        lambda: ["flip", rng.random(), rng.randrange(8)],
        lambda: ["flip_end", rng.randrange(1, 300), rng.randrange(8)],
        lambda: ["insert", rng.random(), base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()],
        lambda: ["insert", rng.choice([0.0, 1.0]), base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()],
        lambda: ["insert", rng.random(), base64.b64encode(rng.randbytes(3)).decode()],
        lambda: ["delete", rng.random(), rng.choice([1, 2, 10, 100])],
        lambda: ["repeat", rng.random(), rng.choice([2, 30])],
        lambda: ["bomb", rng.choice([1, 30])],
        lambda: ["replace", base64.b64encode(rng.choice(WHOLES)).decode()],
    ])()  # fmt: skip


def damaged(data: bytes, side: Case) -> bytes:
    for name, *rest in side["damage"]:
        i = int(len(data) * rest[0]) if rest and isinstance(rest[0], float) else 0
        if name == "cut":
            data = data[:i]
        elif name in ("flip", "flip_end") and data:
            i = min(i, len(data) - 1) if name == "flip" else max(0, len(data) - rest[0])
            data = data[:i] + bytes([data[i] ^ (1 << rest[1])]) + data[i + 1 :]
        elif name == "insert":
            data = data[:i] + base64.b64decode(rest[1]) + data[i:]
        elif name == "delete":
            data = data[:i] + data[i + rest[1] :]
        elif name == "repeat":
            data = data[:i] + data[i:] * rest[1]
        elif name == "replace":
            data = base64.b64decode(rest[0])
        elif name == "bomb" and side["format"].endswith(".gz"):
            # Megabytes in one field, or in one line.
            data = gzip.compress(b"a\n" + b"x" * (rest[0] << 20), mtime=0)
    return data


# ---- figures, by the definitions of docs/compare-tables.md


def cuts(values: list[Any], bins: int) -> tuple[list[float], set[float]]:
    """The edges, and those that have a bin of their own."""
    finite = sorted(0.0 if v == 0 else v for v in values if v is not None and not (isinstance(v, float) and not math.isfinite(v)))
    n = len(finite)
    ranks = sorted({-(-k * n // bins) for k in range(1, bins)} - {0})
    edges = [finite[r - 1] for r in ranks if r < n]
    return sorted(set(edges)), {e for e, times in Counter(edges).items() if times > 1}


def binned(kind: str, p: list[Any], q: list[Any], bins: int, levels: int) -> list[tuple[int, int]]:
    """(count in P, count in Q) of every bin that either side has anything in."""
    if all(v is None for v in p):
        place = lambda v: "missing" if v is None else "any"  # noqa: E731
    elif kind == "bool":
        place = lambda v: v  # noqa: E731
    elif kind == "text":
        counts = Counter(v for v in p if v is not None)
        ordered = sorted(counts.values(), reverse=True)
        least = max(2, ordered[levels] + 1 if len(ordered) > levels else 2)
        place = lambda v: ("missing",) if v is None else ("level", v) if counts.get(v, 0) >= least else ("other",)  # noqa: E731
    else:
        edges, own = cuts(p, bins)

        def place(v: Any) -> Any:
            if v is None or (isinstance(v, float) and not math.isfinite(v)):
                return repr(v)
            if v in own:
                return ("is", v)
            return ("up to", next((e for e in edges if v <= e), None))

    before, after = Counter(map(place, p)), Counter(map(place, q))
    return [(before[b], after[b]) for b in {**before, **after}]


def figures(counts: list[tuple[int, int]], prior: float) -> dict[str, float]:
    n, m, k = sum(a for a, _ in counts), sum(b for _, b in counts), len(counts)
    pairs = [((a + prior) / (n + k * prior), (b + prior) / (m + k * prior)) for a, b in counts]

    def kl(pairs: Any) -> float:
        return math.fsum(0.0 if x == 0 else math.inf if y == 0 else x * math.log(x / y) for x, y in pairs)

    middle = [((x + y) / 2, x, y) for x, y in pairs]
    forth, back = kl(pairs), kl([(y, x) for x, y in pairs])
    return {
        "kl_pq": forth,
        "kl_qp": back,
        "js": kl([(x, z) for z, x, _ in middle]) / 2 + kl([(y, z) for z, _, y in middle]) / 2,
        "psi": forth + back,
    }


# ---- running and judging


def _option(case: Case, name: str, default: Any) -> Any:
    return type(default)(case["options"][case["options"].index(name) + 1]) if name in case["options"] else default


def run(case: Case) -> Outcome:
    with commands.folder():
        sides, names = case["sides"], []
        for letter, side in zip("pq", sides):
            if side["format"] not in OBJECTS:
                Path(f"{letter}.{side['format']}").write_bytes(damaged(made(side), side))
            names.append(f"{letter}.{side['format']}")
        if any(side["format"] in OBJECTS for side in sides):
            return _in_python(case, names)
        if case["profile"]:
            done = commands.here(["profile", names[0], "-o", "p.json", *_only(case["options"], "--bins", "--levels")])
            if isinstance(done, Outcome):
                return done
            if done.code != 0:
                return commands.refusal(done, names[:1])
            names[0] = "p.json"
        options = case["options"] if not case["profile"] else _without(case["options"], "--bins", "--levels")
        done = commands.here(["compare", *names, "--json", *options])
        if isinstance(done, Outcome):
            return done
        limited = "--fail-over" in options
        if done.code == 0 or (done.code == 1 and limited and done.out):
            found = commands.printed(done)
            if isinstance(found, Outcome):
                return found
            wrong = wrong_table(case, found)
            if wrong is None and limited:
                worst = max([commands.number(c["kl_pq"]) for c in found["columns"]], default=0.0)
                if (worst > _option(case, "--fail-over", 0.0)) != (done.code == 1):
                    wrong = f"exit code {done.code} for a KL of {worst}"
            return Outcome(RIGHT) if wrong is None else failure(wrong)
        outcome = commands.refusal(done, names)
        if not outcome.failed and not any(side["damage"] for side in sides) and not may_be_refused(case):
            return failure(f"whole tables were refused: {outcome.why}")
        return outcome


def _only(options: list[str], *names: str) -> list[str]:
    return [x for i, x in enumerate(options) if x in names or (i and options[i - 1] in names)]


def _without(options: list[str], *names: str) -> list[str]:
    dropped = _only(options, *names)
    return [x for i, x in enumerate(options) if not (x in names or (i and options[i - 1] in names))] if dropped else options


def _in_python(case: Case, names: list[str]) -> Outcome:
    import kullback as kb

    options: Case = {"prior": _option(case, "--prior", 0.5)}
    for option in ("bins", "levels"):
        if f"--{option}" in case["options"]:
            options[option] = _option(case, f"--{option}", 0)
    if "--common" in case["options"]:
        options["common"] = True
    given = [_object(side) if side["format"] in OBJECTS else name for side, name in zip(case["sides"], names)]
    try:
        found = kb.compare(*given, **options)
    except Exception as error:
        outcome = of_exception(error)
        if not outcome.failed and not any(side["damage"] for side in case["sides"]) and not may_be_refused(case):
            return failure(f"whole tables were refused: {outcome.why}")
        return outcome
    wrong = wrong_table(case, json.loads(found.to_json()))
    return Outcome(RIGHT) if wrong is None else failure(wrong)


def may_be_refused(case: Case) -> bool:
    """What the documents refuse, or leave to how a file happens to look."""
    for name, kind in case["sides"][0]["kinds"].items():
        for side in case["sides"]:
            values = columns_of(side)[name]
            present = [v for v in values if v is not None]
            if side["format"] != "parquet" and side["format"] not in OBJECTS:
                # Of a text file the type is read off the values.
                if not present or (kind == "int" and max(map(abs, present)) >= 10**18):
                    return True
                if "json" in side["format"] and kind == "float" and not any(math.isfinite(v) for v in present):
                    return True
                if len(side["columns"]) == 1 and len(present) < len(values):
                    return True  # a line without anything is no row
            elif not present:
                return True
    return False


def wrong_table(case: Case, found: Case) -> str | None:
    prior = _option(case, "--prior", 0.5)
    whole = not any(side["damage"] for side in case["sides"]) and not may_be_refused(case)
    p, q = (columns_of(side) for side in case["sides"])
    columns = {column["name"]: column for column in found["columns"]}
    for name, column in columns.items():
        counts = [(b["p_count"], b["q_count"]) for b in column["bins"]]
        for which, side in enumerate("pq"):
            if sum(c[which] for c in counts) != found[side]["rows"]:
                return f"the counts of {side} in column {name!r} add up to {sum(c[which] for c in counts)}, of {found[side]['rows']} rows"
        wrong = _wrong_figures(column, figures([c for c in counts if c != (0, 0)], prior))
        if wrong is not None:
            return f"column {name!r}, from its counts: {wrong}"
    if not whole:
        return None
    left_out = {entry["name"] for entry in found["left_out"]}
    for name, kind in case["sides"][0]["kinds"].items():
        if name not in columns:
            values = [v for v in p[name] if v is not None]
            if name in left_out and len(set(values)) > 0.5 * len(values):
                continue  # an identifier, or a number that only counts the rows
            return f"column {name!r} is not compared"
        sides = [_as_stored(side, values[name]) for side, values in zip(case["sides"], (p, q))]
        right = figures(binned(kind, *sides, _option(case, "--bins", BINS), _option(case, "--levels", LEVELS)), prior)
        wrong = _wrong_figures(columns[name], right)
        if wrong is not None:
            return f"column {name!r} ({kind}): {wrong}"
    return None


def _as_stored(side: Case, values: list[Any]) -> list[Any]:
    """What the format makes of a value."""
    if "json" in side["format"]:  # these are left out when the line is written
        return [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]
    if side["format"] == "pandas":  # NaN is missing
        return [None if isinstance(v, float) and math.isnan(v) else v for v in values]
    return values


def _wrong_figures(column: Case, right: dict[str, float]) -> str | None:
    for name, value in right.items():
        got = commands.number(column[name])
        # Sums of at most some hundred terms in float64, whose sizes are up to 1.
        if got != value and not abs(got - value) <= 1e-9 * abs(value) + 1e-13:
            return f"{name} is {got!r} where {value!r} is right"
    return None


# ---- smaller cases


def smaller(case: Case) -> Iterator[Case]:
    def changed() -> Case:
        return copy.deepcopy(case)

    for i, side in enumerate(case["sides"]):
        for j in range(len(side["damage"])):
            less = changed()
            del less["sides"][i]["damage"][j]
            yield less
    if case["profile"]:
        yield {**changed(), "profile": False}
    for i, option in enumerate(case["options"]):
        if option.startswith("--"):
            yield {**changed(), "options": case["options"][:i] + case["options"][i + (1 if option == "--common" else 2) :]}
    if len(case["sides"][0]["columns"]) > 1:
        for name in case["sides"][0]["columns"]:
            less = changed()
            for side in less["sides"]:
                del side["columns"][name], side["kinds"][name]
            yield less
    for i, side in enumerate(case["sides"]):
        n = len(next(iter(side["columns"].values())))
        for a, b in ((0, n // 2), (n // 2, n), *((j, j + 1) for j in range(n if n <= 20 else 0))):
            if 0 < n - (b - a) < n:
                less = changed()
                for values in less["sides"][i]["columns"].values():
                    del values[a:b]
                yield less
        if side["format"] not in ("csv", *OBJECTS) and not side["damage"]:
            less = changed()
            less["sides"][i]["format"] = "csv"
            yield less


def command(case: Case) -> str:
    names = [f"{letter}.{side['format']}" for letter, side in zip("pq", case["sides"])]
    shown = []
    for name, side in zip(names, case["sides"]):
        try:
            data = repr(damaged(made(side), side)[:160]) if side["format"] not in OBJECTS else repr(columns_of(side))[:160]
        except Exception as error:
            data = str(error)
        shown.append(f"{name}: {data}")
    return f"kullback compare {' '.join(names)} {shlex.join(case['options'])}  # {'; '.join(shown)}"

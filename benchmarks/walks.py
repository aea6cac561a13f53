"""How far a reader walks: the files that one call enters, and how often it returns to a file that it has
left.

    python benchmarks/walks.py                 # everything, in four minutes or so
    python benchmarks/walks.py a f             # prints the walks of these letters, and writes nothing
    python benchmarks/walks.py lines           # prints the lines of code in src, and writes nothing
    python benchmarks/walks.py start           # prints how long `kullback lint` takes, and writes nothing

The script writes benchmarks/results/walks.csv and the table in docs/benchmarks.md. It keeps the column
`before` of the CSV, with which later figures are compared.

Each walk runs in a process of its own. The call is made once, to fill caches, and then again under a
profiler. The caller of a function is the nearest function of ours below it on the stack. A hop is a distinct
pair (calling function, called function) in two different files. A step back is a hop into a file that was
entered before. Modules are the files that were entered. Lines of code do not count blank lines, comments and
docstrings.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import os
import resource
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "walks.csv"
DOCS = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- walks:begin -->", "<!-- walks:end -->"
PACKAGES = ("kullback", "kullback_files", "kullback_lint", "kullback_command")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FIGURES = ("modules", "hops", "steps back")
WALKS = {
    "a": "`kb.kl(p, q)`, NumPy, 200 × 50 probabilities",
    "a-small": "the same with 4 × 50, which the general formula computes",
    "b": '`kb.kl(x, y, form="logits").sum().backward()`, PyTorch on a CPU, float32',
    "c": "`kb.kl(Gamma, Gamma)` of PyTorch, without a batch",
    "c-2": "the same, a batch of 2",
    "c-100": "the same, a batch of 100",
    "d": "`kl_loss(student=x, teacher=y).backward()`, PyTorch on a CPU",
    "d-triton": "the same in Triton's interpreter, without the functions of the kernels",
    "e": "`kullback compare a.npy b.npy --form logits`",
    "f": "`kullback lint file.py`, four lines with two findings",
}
STARTS = 40
WRONG = """import torch.nn.functional as F

def loss(x, t):
    return F.kl_div(x.softmax(-1), t.softmax(-1))
"""


def _folders() -> tuple[str, ...]:
    found = (find_spec(name) for name in PACKAGES)
    return tuple(os.path.dirname(spec.origin) + os.sep for spec in found if spec is not None and spec.origin)


def _kernels() -> set[tuple[str, str]]:
    """File and name of every function that Triton compiles, or interprets."""
    found = set()
    for module in [m for name, m in sys.modules.items() if name.startswith("kullback.")]:
        for value in vars(module).values():
            function = getattr(value, "fn", None)
            if type(value).__module__.startswith("triton.") and hasattr(function, "__code__"):
                found.add((function.__code__.co_filename, function.__name__))
    return found


def count(call: Callable[[], Any]) -> tuple[int, int, int]:
    """Modules, hops, and steps back."""
    call()
    folders, kernels = _folders(), _kernels()
    seen: set[str] = set()
    hops: dict[tuple[Any, ...], bool] = {}

    def ours(code: Any) -> bool:
        return code.co_filename.startswith(folders) and (code.co_filename, code.co_name) not in kernels

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or not ours(code):
            return
        caller = frame.f_back
        while caller is not None and not ours(caller.f_code):
            caller = caller.f_back
        source = caller and caller.f_code
        if source is None or source.co_filename != code.co_filename:
            start = (source.co_filename, source.co_firstlineno) if source else (None, None)
            hops.setdefault((*start, code.co_filename, code.co_firstlineno), code.co_filename in seen)
        seen.add(code.co_filename)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len(seen), len(hops), sum(hops.values())


def _command(*arguments: str) -> None:
    from kullback_command import main

    with contextlib.redirect_stdout(io.StringIO()):
        main(list(arguments))


def _on_arrays(kind: str, variant: str) -> Callable[[], Any]:
    import numpy as np

    import kullback as kb

    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.ones(50), 4 if variant == "small" else 200) for _ in range(2))
    if kind == "a":
        return lambda: kb.kl(p, q)
    if kind == "e":
        np.save("a.npy", np.log(p))
        np.save("b.npy", np.log(q))
        return lambda: _command("compare", "a.npy", "b.npy", "--form", "logits")
    import torch

    from kullback.losses import kl_loss

    x, y = (torch.tensor(np.log(z), dtype=torch.float32) for z in (p, q))
    x.requires_grad_()
    if kind == "b":
        return lambda: kb.kl(x, y, form="logits").sum().backward()
    if kind == "d":
        return lambda: kl_loss(student=x, teacher=y, impl=variant or "auto").backward()
    full = (lambda v: torch.full((int(variant),), v)) if variant else torch.tensor
    one, other = (torch.distributions.Gamma(*map(full, given)) for given in ((2.0, 1.0), (1.0, 1.5)))
    return lambda: kb.kl(one, other)


def _walk(name: str) -> tuple[int, int, int]:
    kind, _, variant = name.partition("-")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if kind != "f":
            return count(_on_arrays(kind, variant))
        Path("file.py").write_text(WRONG)
        return count(lambda: _command("lint", "file.py"))


def walk(name: str) -> list[tuple[str, str, int]]:
    """The figures of a walk, from a process of its own."""
    given = dict(os.environ)
    if name.endswith("-triton"):
        folder = os.environ.get("KULLBACK_TRITON", Path(sys.prefix) / "triton")
        given |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, __file__, "--count", name]
    out = subprocess.run(command, env=given, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [(name, figure, int(found)) for figure, found in zip(FIGURES, out.split())]


def start() -> float:
    """How many times the CPU time of `python -c pass` `kullback lint file.py` takes, by the best of many runs."""
    lint = [Path(sys.executable).with_name("kullback"), "lint", "file.py"]
    nothing = [sys.executable, "-c", "pass"]
    best = [float("inf")] * 2
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file.py").write_text(WRONG)
        for _ in range(STARTS):
            for i, command in enumerate((lint, nothing)):
                before = _seconds_of_children()
                subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
                best[i] = min(best[i], _seconds_of_children() - before)
    return round(best[0] / best[1], 1)


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lines() -> int:
    """The lines of Python in src that hold code."""
    return sum(_lines(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py"))


def _lines(text: str) -> int:
    without = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in without:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False):
            found.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(found)


def cases() -> int:
    """The test cases that pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests"]
    out = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(out.rpartition(" tests collected")[0].split()[-1])


def _write(found: list[tuple[str, str, float]]) -> None:
    before = {}
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            before = {(row["what"], row["figure"]): float(row["before"]) for row in csv.DictReader(file)}
    rows = [(what, figure, before.get((what, figure), now), now) for what, figure, now in found]
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["what", "figure", "before", "now"])
        writer.writerows((what, figure, f"{old:.12g}", f"{now:.12g}") for what, figure, old, now in rows)
    told = {row[:2]: " → ".join(dict.fromkeys(f"{x:,.12g}" for x in row[2:])) for row in rows}
    table = [f"| walk | what | {' | '.join(FIGURES)} |", "|---|---|---|---|---|"]
    for name, what in WALKS.items():
        table.append(f"| {name} | {what} | {' | '.join(told[name, figure] for figure in FIGURES)} |")
    table += ["", f"Lines of code in `src`: {told['src', 'lines']}. Test cases: {told['tests', 'cases']}."]
    times = told["kullback lint", "start"]
    table += [f"CPU time of `kullback lint file.py`, in times of `python -c pass`: {times}."]
    text = DOCS.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCS.write_text(text[:start] + "\n" + "\n".join(table) + "\n" + text[end:])


def main() -> None:
    given = sys.argv[1:]
    if given[:1] == ["--count"]:
        print(*_walk(given[1]))
    elif given in (["lines"], ["start"]):
        print(lines() if given == ["lines"] else start())
    elif given:
        for name in [name for name in WALKS if name in given or name.partition("-")[0] in given]:
            print(name, *(f"{found} {figure}" for _, figure, found in walk(name)))
    else:
        walks = [row for name in WALKS for row in walk(name)]
        others = [("kullback lint", "start", start()), ("src", "lines", lines()), ("tests", "cases", cases())]
        _write([*walks, *others])


if __name__ == "__main__":
    main()

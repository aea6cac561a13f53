"""Signals at chosen moments of the command, one JSON line each: run by test_faults.py, in a process of its own, since a signal that nobody
handles ends the process.

    python fault_moments.py SIGTERM writing|tables
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path

import duckdb as duckdb_library
import numpy as np

from kullback._compare.tables.engines import duckdb
from kullback_command import main

SOURCE = "import torch.nn.functional as F\nloss = F.kl_div(x, y)\n"
# The file that is written, the command that writes it, and the text that the file holds before.
COMMANDS = {
    "out.html": (["compare", "p.npy", "p.npy", "--report", "out.html"], "yesterday's"),
    "t.json": (["profile", "t.csv", "-o", "t.json"], "yesterday's"),
    "x.py": (["lint", "--fix", "x.py"], SOURCE),
}
# Functions of `os` and `Path` that replace a file, in their order.
MOMENTS = [(os, "fsync"), (os, "chmod"), (os, "replace"), (Path, "touch"), (Path, "unlink")]


@contextlib.contextmanager
def struck(module, name, number, when, times=1):
    """The function, with the signal right before or after the work, `times` times."""
    real = getattr(module, name)
    left = [times]

    def strike():
        while left[0]:
            left[0] -= 1
            os.kill(os.getpid(), number)

    def function(*arguments, **options):
        if when == "before":
            strike()
        try:
            return real(*arguments, **options)
        finally:
            strike()

    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, real)


def run(arguments):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    return code, err.getvalue()


def writing(number):
    np.save("p.npy", np.full((3, 2), 0.5))
    Path("t.csv").write_text("a\n1\n2\n")
    whole = {}
    for target, (arguments, before) in COMMANDS.items():
        Path(target).write_text(before)
        assert run(arguments)[0] == 0
        whole[target] = Path(target).read_text()
    inputs = {"p.npy", "t.csv", *COMMANDS}
    for target, (arguments, before) in COMMANDS.items():
        for module, name in MOMENTS:
            for when, times in (("before", 1), ("after", 1), ("after", 2)):
                Path(target).write_text(before)
                with struck(module, name, number, when, times):
                    code, err = run(arguments)
                text = Path(target).read_text()
                kept = "old" if text == before else "new" if text == whole[target] else text
                report(f"{target} {module.__name__}.{name} {when} {times}", code, err, sorted(set(os.listdir()) - inputs), kept)


def tables(number):
    Path("t.csv").write_text("a\n" + "1\n2\n" * 50)
    arguments = ["compare", "t.csv", "t.csv"]
    folder = os.environ["TMPDIR"]
    for module, name in ((os, "mkdir"), (duckdb_library, "connect"), (duckdb.DuckTable, "load"), (duckdb.DuckTable, "close")):
        with struck(module, name, number, "after"):
            code, err = run(arguments)
        report(f"{module.__name__}.{name}", code, err, os.listdir(folder), "old")

    def long(table, *_, **__):
        with duckdb._spoken(table._source, table._side):
            table._connection.execute("CREATE TEMP TABLE many AS SELECT i % 9973 AS i FROM range(2000000) AS t(i)")
            threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
            table._all("SELECT count(*) FROM many JOIN many AS again ON many.i = again.i")  # 400 million rows

    duckdb.DuckTable.edges = long
    code, err = run(arguments)
    report("a query", code, err, os.listdir(folder), "old")


def report(moment, code, err, left, kept):
    print(json.dumps({"moment": moment, "code": code, "err": err, "left": left, "kept": kept}), flush=True)


if __name__ == "__main__":
    {"writing": writing, "tables": tables}[sys.argv[2]](getattr(signal, sys.argv[1]))

"""Faults while the command works: a full disk, a reader that goes, signals, an input that changes, too little memory.

The old output stays whole, no temporary file remains, and the exit code is not 0.
"""

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kullback
from kullback._compare.tables.engines import duckdb
from kullback_command import main

HERE = Path(__file__).parent
SRC = str(Path(kullback.__file__).parents[1])
# Python 3.11 keeps bytecode that a full disk has cut off, and no later process can import those modules. So these write no bytecode.
WITHOUT_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
ENVIRONMENT = {**os.environ, "PYTHONPATH": SRC, "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1", **WITHOUT_BYTECODE}
BAD = "import torch.nn.functional as F\nloss = F.kl_div(x, y)\n"
FIXED = BAD.replace("(x, y)", '(x, y, reduction="batchmean")')


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("p.npy", np.full((3, 2), 0.5))
    np.save("q.npy", np.tile([0.9, 0.1], (3, 1)))
    Path("t.csv").write_text("a\n" + "1\n2\n" * 50)
    return tmp_path


def command(*arguments, **options):
    options = {"env": ENVIRONMENT, "capture_output": True, "text": True, "encoding": "utf-8", "timeout": 120} | options
    return subprocess.run([sys.executable, "-m", "kullback", *arguments], **options)


def small_files(size=2000):
    """For `preexec_fn`: a file that grows beyond this fails as on a full disk, with another name of the error."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


# A full disk.


@pytest.mark.parametrize(("target", "arguments"), [
    ("out.html", ("compare", "p.npy", "q.npy", "--report", "out.html")),
    ("new.html", ("compare", "t.csv", "t.csv", "--report", "new.html")),
    ("t.json", ("profile", "t.csv", "--columns", "a,long", "-o", "t.json")),
])  # fmt: skip
def test_a_full_disk_leaves_the_old_file(here, target, arguments):
    Path("t.csv").write_text("a,long\n" + "".join(f"{i % 7},{'x' * 300}{i % 9}\n" for i in range(100)))
    Path("out.html").write_text("yesterday's")
    Path("t.json").write_text("yesterday's")
    before = {name: Path(name).read_bytes() for name in os.listdir()}
    done = command(*arguments, preexec_fn=small_files())
    assert done.returncode == 2
    assert done.stderr == f"kullback {arguments[0]}: cannot write {target}: File too large; nothing was left there\n"
    assert {name: Path(name).read_bytes() for name in os.listdir()} == before


def test_lint_says_what_it_fixed_before_the_disk_was_full(here):
    """Regression: the error named neither the file nor the files that were fixed before it."""
    large = BAD + "# a comment\n" * 1000
    Path("a.py").write_text(BAD)
    Path("b.py").write_text(large)
    Path("c.py").write_text(BAD)
    names = sorted(os.listdir())
    done = command("lint", "--fix", ".", preexec_fn=small_files())
    assert done.returncode == 2
    assert done.stderr == "kullback lint: cannot write b.py: File too large; these files were fixed before: a.py\n"
    assert [Path(name).read_text() for name in ("a.py", "b.py", "c.py")] == [FIXED, large, BAD]
    assert sorted(os.listdir()) == names
    with open("/dev/full", "w") as full:
        done = command("lint", "--fix", ".", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    sentence = "kullback lint: cannot write the output: No space left on device; these files were fixed before: b.py, c.py\n"
    assert done.stderr == sentence


def test_lint_fixes_a_file_whose_name_is_as_long_as_can_be(here, capsys):
    """Regression: the temporary file had a longer name, which the system refused."""
    name = "x" * 252 + ".py"
    Path(name).write_text(BAD)
    assert main(["lint", "--fix", name]) == 0
    assert Path(name).read_text() == FIXED


def test_lint_names_the_file_that_it_cannot_write(here, monkeypatch, capsys):
    for name in ("a.py", "b.py"):
        Path(name).write_text(BAD)
    real = os.replace

    def refuse(source, target):
        if Path(target).name == "b.py":
            raise PermissionError(13, "Permission denied", source)
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    names = sorted(os.listdir())
    assert main(["lint", "--fix", "."]) == 2
    assert capsys.readouterr().err == "kullback lint: cannot write b.py: Permission denied; these files were fixed before: a.py\n"
    assert sorted(os.listdir()) == names


@pytest.mark.parametrize("arguments", [("--help",), ("compare", "p.npy", "q.npy", "--fail-over", "0"), ("explain", "nope.csv", "1")])
def test_an_output_that_is_full(here, arguments):
    """Regression: if standard error was full as well, a traceback ended the command with 1, which is a verdict."""
    with open("/dev/full", "w") as full:
        done = command(*arguments, capture_output=False, stdout=full, stderr=full)
    assert done.returncode == 2


# A reader that goes.


@pytest.mark.parametrize(("arguments", "code"), [
    (("pairs",), 141), (("lint", "."), 141), (("compare", "p.npy", "q.npy"), 141), (("compare", "p.npy", "q.npy", "--fail-over", "0"), 1),
])  # fmt: skip
def test_a_reader_that_goes_is_no_success(here, arguments, code):
    """The exit code is 141, as for a program that SIGPIPE ended. A verdict stands."""
    Path("x.py").write_text(BAD)
    read, write = os.pipe()
    os.close(read)
    done = command(*arguments, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (code, "")


# Signals.


def moments(tmp_path, name, what):
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [sys.executable, str(HERE / "fault_moments.py"), name, what],
        cwd=tmp_path / "work", env={**ENVIRONMENT, "TMPDIR": str(tmp_path / "temporary")}, capture_output=True, text=True, timeout=300,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # whoever started the tests may ignore it
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_in_the_middle_of_writing(tmp_path, name):
    """Regression: a signal after the file was in its place gave 2, and a signal at the wrong moment left a temporary file."""
    found = moments(tmp_path, name, "writing")
    assert len(found) == 3 * 5 * 3
    for each in found:
        assert (each["code"], each["err"], each["left"]) == (128 + getattr(signal, name), "", []), each
        assert each["kept"] in ("old", "new"), each
    kept = {each["moment"]: each["kept"] for each in found}
    assert kept["out.html os.fsync before 1"] == kept["x.py os.chmod after 2"] == "old"
    assert kept["t.json os.replace after 1"] == kept["x.py os.replace after 1"] == "new"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_during_a_comparison_of_tables(tmp_path, name):
    """Regression: SIGTERM left the folder into which DuckDB spills."""
    found = moments(tmp_path, name, "tables")
    assert len(found) == 5
    for each in found:
        assert (each["code"], each["err"], each["left"], each["kept"]) == (128 + getattr(signal, name), "", [], "old"), each


def test_what_the_caller_ignores_stays_ignored(here):
    """As under nohup."""
    code = (
        "import os, signal, sys\n"
        "import kullback._explain as module\n"
        "real = module.explain\n"
        "def explain(*arguments, **options):\n"
        "    for name in ('SIGINT', 'SIGTERM', 'SIGHUP'): os.kill(os.getpid(), getattr(signal, name))\n"
        "    return real(*arguments, **options)\n"
        "module.explain = explain\n"
        "from kullback_command import main\n"
        "sys.exit(main(['explain', '0.5,0.5', '0.5,0.5']))"
    )

    def ignore():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, preexec_fn=ignore)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("P and Q over 2 categories")


# An input that changes.


@pytest.mark.parametrize(
    "arguments", [("compare", "t.csv", "other.csv", "--report", "out.html"), ("profile", "t.csv", "-o", "out.html.json")]
)
def test_a_table_that_changes_while_it_is_read(here, monkeypatch, capsys, arguments):
    """Regression: counts were of the old file and of the new one. Parquet is read once for each question."""
    Path("other.csv").write_text(Path("t.csv").read_text())
    Path(arguments[-1]).write_text("yesterday's")
    real = duckdb.DuckTable.edges

    def edges(table, *given, **options):
        Path("t.csv").write_text("a\n5\n")
        return real(table, *given, **options)

    monkeypatch.setattr(duckdb.DuckTable, "edges", edges)
    assert main(list(arguments)) == 2
    err = capsys.readouterr().err
    assert "t.csv was changed while it was read" in err
    assert err.count("\n") == 1
    assert Path(arguments[-1]).read_text() == "yesterday's"


@pytest.mark.parametrize("change", [b"x = 1\n", b"# coding: nonsense\n", b"\xff\xfe"])
def test_a_source_that_changes_while_it_is_fixed(here, monkeypatch, capsys, change):
    """Regression: if what was there now could not be decoded, a traceback, or a sentence without the file's name, was the answer."""
    run = importlib.import_module("kullback_lint.run")
    Path("a.py").write_text(BAD)
    Path("x.py").write_text(BAD)
    real = run.lint_text

    def lint_text(text, path, *given, **options):
        if path == "x.py":
            Path("x.py").write_bytes(change)
        return real(text, path, *given, **options)

    monkeypatch.setattr(run, "lint_text", lint_text)
    assert main(["lint", "--fix", "a.py", "x.py"]) == 2
    sentence = "kullback lint: x.py changed while it was read; nothing was written to it; these files were fixed before: a.py\n"
    assert capsys.readouterr().err == sentence
    assert Path("x.py").read_bytes() == change


# Too little memory.


@pytest.mark.parametrize("arguments", [("explain", "large.npy", "large.npy"), ("compare", "rows.npy", "rows.npy", "--report", "out.html")])
def test_too_little_memory_is_one_sentence(here, arguments):
    Path("out.html").write_text("yesterday's")
    for name, shape in (("large.npy", (10**8,)), ("rows.npy", (2, 5 * 10**7))):
        with open(name, "wb") as file:  # 800 MB of zeros, none of them on the disk
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
            file.truncate(file.tell() + 8 * 10**8)
    names = sorted(os.listdir())
    code = (
        "import resource, sys\n"
        "from kullback_command import main\n"
        "import kullback._compare.models, kullback._explain, kullback._report.page, jinja2\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (200 << 20), now + (200 << 20)))\n"
        f"sys.exit(main({list(arguments)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr in (f"kullback {arguments[0]}: there is not enough memory\n", "kullback compare: rows.npy: Cannot allocate memory\n")
    assert Path("out.html").read_text() == "yesterday's"
    assert sorted(os.listdir()) == names

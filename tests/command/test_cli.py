"""The command, run as people run it: real processes, files, pipes and a pseudo-terminal."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import kullback
from kullback_command import main
from processes import ENVIRONMENT, command, on_a_terminal


@pytest.fixture
def run(capsys):
    """The command in this process: (exit code, standard output, standard error)."""

    def call(*arguments):
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(out):
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return found, {c["label"]: (c["p"], c["q"]) for c in found["categories"]}


def test_a_real_run():
    done = command("explain", "0.5,0.3,0.2", "0.1,0.4,0.5", "--labels", "cat,dog,owl", "--base", "2")
    assert (done.returncode, done.stderr) == (0, "")
    # By hand: 0.5 log2 5 + 0.3 log2 0.75 + 0.2 log2 0.4.
    assert f"KL(P‖Q)  {0.5 * math.log2(5) + 0.3 * math.log2(0.75) + 0.2 * math.log2(0.4):.10g}" in done.stdout
    assert "'cat', which P gives 0.5 and Q 0.1, adds 1.16 bits" in done.stdout
    assert "\x1b" not in done.stdout


def test_version_and_help(run):
    assert run("--version") == (0, f"kullback {kullback.__version__}\n", "")
    code, out, _ = run()
    assert code == 0
    assert "explain" in out
    code, out, _ = run("explain", "--help")
    assert code == 0
    assert "--temperature" in out


@pytest.mark.parametrize("p", ["-1.2,0.3", "-.5,0.3", "-inf,0.3", "[-1.2, 0.3]", "-1.2 0.3"])
def test_negative_numbers_are_not_options(run, p):
    code, out, err = run("explain", p, "-0.1,-0.2", "--form", "logits", "--json")
    assert (code, err) == (0, "")
    _, by_label = values(out)
    a, b = (float(x) for x in re.findall(r"-?(?:inf|[\d.]+)", p))
    assert by_label["0"][0] == pytest.approx(math.exp(a) / (math.exp(a) + math.exp(b)), rel=1e-14)
    assert by_label["0"][1] == pytest.approx(math.exp(-0.1) / (math.exp(-0.1) + math.exp(-0.2)), rel=1e-14)


@pytest.mark.parametrize(
    ("name", "content", "labels"),
    [
        ("row.csv", "5,3,2\n", None),
        ("row2.csv", "5, 3, 2", None),
        ("column.csv", "5\n3\n\n2\n", None),
        ("header.csv", "count\n5\n3\n2\n", None),
        ("labels.csv", "cat,5\ndog,3\nowl,2\n", "cat dog owl"),
        ("both.csv", "\ufefflabel,n_2024\ncat,5\r\ndog,3\r\nowl,2\r\n", "cat dog owl"),
        ("numbers.csv", "10,5\n11,3\n12,2\n", "10 11 12"),
        ("list.json", "[5, 3, 2]", None),
        ("object.json", '{"cat": 5, "dog": 3, "owl": 2}', "cat dog owl"),
    ],
)
def test_files(run, here, name, content, labels):
    Path(name).write_text(content, encoding="utf-8", newline="")
    code, out, err = run("explain", name, name, "--form", "counts", "--json")
    assert (code, err) == (0, "")
    found, by_label = values(out)
    assert by_label == dict(zip(labels.split() if labels else "012", ((0.5, 0.5), (0.3, 0.3), (0.2, 0.2))))
    assert found["given"]["p"]["sum"] == 10
    assert found["kl_pq"] == 0


def test_npy_and_two_forms(run, here):
    np.save("p.npy", np.array([[1, 1, 2]]))
    np.save("q.npy", np.log([0.25, 0.25, 0.5]).astype(np.float32))
    code, out, _ = run("explain", "p.npy", "q.npy", "--form", "counts,log_probs", "--json")
    found, by_label = values(out)
    assert code == 0
    assert by_label["2"] == (0.5, pytest.approx(0.5, rel=1e-6))
    assert [found["given"][side]["form"] for side in "pq"] == ["counts", "log_probs"]


def test_labelled_files_are_aligned(run, here):
    Path("a.csv").write_text("cat,3\ndog,1\n")
    Path("b.json").write_text('{"dog": 2, "owl": 2}')
    code, out, _ = run("explain", "a.csv", "b.json", "--form", "counts", "--json")
    found, by_label = values(out)
    assert code == 0
    assert by_label == {"cat": (0.75, 0), "dog": (0.25, 0.5), "owl": (0, 0.5)}
    assert (found["kl_pq"], found["kl_qp"]) == ("inf", "inf")
    code, out, _ = run("explain", "a.csv", "b.json", "--form", "counts", "--prior", "0.5", "--json")
    # README of kl: the same pair with the same prior.
    assert json.loads(out)["kl_pq"] == pytest.approx((3.5 * math.log(7) + 1.5 * math.log(0.6) + 0.5 * math.log(0.2)) / 5.5)


def test_labels_from_a_file_and_with_commas(run, here):
    Path("names.txt").write_text("a cat\n the\n", encoding="utf-8")
    _, out, _ = run("explain", "0.5,0.5", "0.9,0.1", "--labels", "names.txt", "--json")
    assert list(values(out)[1]) == ["a cat", " the"]
    _, out, _ = run("explain", "0.5,0.5", "0.9,0.1", "--labels", 'x,"y, z"', "--json")
    assert list(values(out)[1]) == ["x", "y, z"]


def test_infinite_logs_survive_json(run, here):
    Path("p.json").write_text('[0.0, "-inf"]')
    Path("q.json").write_text("[0.0, -Infinity]")
    code, out, _ = run("explain", "p.json", "q.json", "--form", "logits", "--json")
    assert code == 0
    assert values(out)[0]["categories"][1] == {"label": "1", "p": 0.0, "q": 0.0, "log_ratio": "nan", "term_pq": 0.0, "term_qp": 0.0}


def test_options_pass_through(run):
    _, out, _ = run("explain", "2,0", "0,0", "--form", "logits", "--temperature", "2", "--base", "e", "--json")
    p = math.e / (math.e + 1)
    assert json.loads(out)["kl_pq"] == pytest.approx(p * math.log(2 * p) + (1 - p) * math.log(2 - 2 * p), rel=1e-14)
    _, out, _ = run("explain", "1,0", "0,1", "--prior", "0.2", "--json")
    assert values(out)[1]["0"] == pytest.approx((0.9, 0.1))


def test_top_and_all(run):
    numbers = ",".join(str(i + 1) for i in range(30))
    backwards = ",".join(str(30 - i) for i in range(30))

    def rows(*options):
        code, out, _ = run("explain", numbers, backwards, "--form", "counts", *options)
        assert code == 0
        return len(re.findall(r"^\d+ ", out, re.M)) - ("more" in out), "more" in out, out[out.index("KL(P‖Q)") :].splitlines()[0]

    default, few, everything = rows(), rows("--top", "3"), rows("--all")
    assert [x[:2] for x in (default, few, everything)] == [(20, True), (3, True), (30, False)]
    assert len({x[2] for x in (default, few, everything)}) == 1


ERRORS = [
    (["nope.csv", "1,2"], "there is no file nope.csv"),
    ([".", "1,2"], ". is a directory, not a file"),
    (["folder.csv", "1,2"], "folder.csv is a directory, not a file"),
    (["pipe.csv", "1,2"], "pipe.csv is a pipe or a device: save its contents as a file"),
    (["pipe.npy", "1,2"], "pipe.npy is a pipe or a device: save its contents as a file"),
    (["empty.csv", "1,2"], "empty.csv is empty"),
    (["empty.json", "1,2"], "empty.json is empty"),
    (["empty.npy", "1,2"], "empty.npy is empty"),
    (["cell.csv", "1,2"], "cell.csv, line 3: 'x3' is not a number"),
    (["first.csv", "1,2"], "first.csv, line 1: '0.5x' is not a number"),
    (["missing.csv", "1,2"], "missing.csv, line 1: 'n/a' is not a number"),
    (["gap.csv", "1,2"], "gap.csv, line 1: an empty cell is not a number"),
    (["ragged.csv", "1,2"], "ragged.csv, line 2: 1 cells where line 1 has 2"),
    (["wide.csv", "1,2"], "wide.csv has 2 lines of 3 columns"),
    (["twice.csv", "1,2"], "twice.csv, line 3: the label 'cat' is there twice"),
    (["series.csv", "1,2"], "series.csv, line 1: the label is empty"),
    (["latin.csv", "1,2"], "latin.csv is not UTF-8 text"),
    (["nested.json", "1,2"], "nested.json: 'a' is nested"),
    (["rows.json", "1,2"], "rows.json: entry 1 is nested"),
    (["deep.json", "1,2"], "deep.json: entry 1 is nested"),
    (["word.json", "1,2"], "word.json: 'a' is \"x\", which is not a number"),
    (["true.json", "1,2"], "true.json: entry 1 is true, which is not a number"),
    (["twice.json", "1,2"], "twice.json: the label 'a' is there twice"),
    (["scalar.json", "1,2"], "scalar.json holds 3: it must be a list of numbers"),
    (["none.json", "1,2"], "none.json holds no values"),
    (["broken.json", "1,2"], "broken.json, line 1, column 4: not JSON"),
    (["pickled.npy", "1,2"], "pickled.npy holds pickled objects, which are never unpickled: save plain numbers"),
    (["text.npy", "1,2"], "text.npy is no .npy array, or its header is cut short or damaged (EOF"),
    (["brace.npy", "1,2"], "brace.npy is no .npy array, or its header is cut short or damaged ("),
    (["negative.npy", "1,2"], "negative.npy has a damaged header: no array has the shape (-3,)"),
    (["long.npy", "1,2"], "long.npy is cut short: its header says shape (9000000000000,), and fewer numbers follow"),
    (["digits.json", "1,2"], "digits.json: Exceeds the limit"),
    (["archive.npy", "1,2"], "archive.npy is an archive of several arrays"),
    (["two.npy", "1,2"], "P has shape (2, 3), several distributions: explain takes one, so pick a row"),
    (["file.parquet", "1,2"], "file.parquet: cannot tell its format from its name; use .csv, .json or .npy"),
    (["cats", "1,2"], "P is 'cats': neither numbers separated by commas, such as 0.5,0.3,0.2, nor the name of a file"),
    (["1,2", "0.5,,0.5"], "Q is '0.5,,0.5': its entry 2 is empty"),
    (["1,2", "0.5,1e"], "Q is '0.5,1e': its entry 2 is '1e', which is not a number"),
    (["labels.csv", "1,2"], "P has labels and Q has none: give both as label,value files, or neither"),
    (["labels.csv", "labels.csv", "--labels", "a,b", "--form", "counts"], "--labels was passed, but P and Q carry labels of their own"),
    (["0.5,0.5", "0.2,0.3,0.5"], "P has 2 and Q has 3 categories"),
    (["0.5,0.5", "1.5,-0.5"], "Q holds -0.5 at category 1: logits? pass --form logits"),
    (["0.5,0.5", "3,4"], "Q sums to 7, not 1: counts? pass --form counts"),
    (["1,2", "0,0", "--form", "counts"], "Q has no counts at all: pass --prior to add pseudo-counts"),
    (["0.5,0.5", "0.5,0.5", "--form", "prob"], "form is 'prob': it must be one of 'probs', 'log_probs', 'logits', 'counts'"),
    (["0.5,0.5", "0.5,0.5", "--base", "x"], "argument --base: 'x' is neither a number nor e"),
    (["0.5,0.5", "0.5,0.5", "--base", "1"], "base is 1.0: it must be a number above 1"),
    (["0.5,0.5", "0.5,0.5", "--prior", "-1"], "prior is -1.0"),
    (["0.5,0.5", "0.5,0.5", "--temperature", "2"], "temperature divides logits"),
    (["0.5,0.5", "0.5,0.5", "--top", "0"], "argument --top: '0' is not a whole number above 0"),
    (["0.5,0.5", "0.5,0.5", "--top", "3", "--all"], "argument --all: not allowed with argument --top"),
    (["0.5,0.5", "0.5,0.5", "--labels", "a,b,c"], "labels has 3 entries for 2 categories"),
    (["0.5,0.5", "0.5,0.5", "--labels", "no.txt"], "labels: there is no file no.txt"),
    (["0.5,0.5", "0.5,0.5", "--labels", "."], "labels: . is a directory"),
    (["0.5,0.5", "0.5,0.5", "--labels", "empty.csv"], "labels: empty.csv is empty"),
    ([f"0.5,x{'5' * 300}", "1,2"], "P is '0.5,x555"),
    (["0.5,0.5", "0.5,0.5", "--labels", "x" * 300], "labels has 1 entry for 2 categories"),
    (["0.5,0.5"], "the following arguments are required: Q"),
]


@pytest.fixture
def bad_files(here):
    texts = {
        "empty.csv": "", "empty.json": " \n", "cell.csv": "label,value\ncat,5\ndog,x3\n", "first.csv": "cat,0.5x\ndog,0.5\n",
        "missing.csv": "cat,n/a\ndog,0.5\n", "gap.csv": "0.5,0.3,,0.2\n", "ragged.csv": "cat,1\ndog\n", "wide.csv": "1,2,3\n4,5,6\n",
        "twice.csv": "cat,1\ndog,1\ncat,2\n", "series.csv": ",0\n0,0.5\n1,0.5\n",
        "nested.json": '{"a": {"b": 1}}', "rows.json": "[[1, 2], [3, 4]]",
        "deep.json": "[" * 100_000 + "]" * 100_000, "word.json": '{"a": "x"}', "true.json": "[true, 1]", "twice.json": '{"a": 1, "a": 2}',
        "scalar.json": "3", "none.json": "[]", "broken.json": "[1,]", "text.npy": "0.5,0.5",
        "file.parquet": "PAR1", "labels.csv": "cat,1\ndog,1\n",
    }  # fmt: skip
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("latin.csv").write_bytes("caf\xe9,1\nthe,1\n".encode("latin-1"))
    Path("empty.npy").touch()
    Path("folder.csv").mkdir()
    for name in ("pipe.csv", "pipe.npy"):
        os.mkfifo(name)
    np.save("pickled.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.save("two.npy", np.ones((2, 3)))
    np.save("one.npy", np.ones(3))
    one = Path("one.npy").read_bytes()
    Path("brace.npy").write_bytes(one.replace(b"}", b" "))
    Path("negative.npy").write_bytes(one.replace(b"(3,), ", b"(-3,),"))
    Path("long.npy").write_bytes(one.replace(b"(3,), }" + b" " * 12, b"(9000000000000,), }"))
    Path("digits.json").write_text(f"[1, {'9' * 5000}]")
    with open("archive.npy", "wb") as file:
        np.savez(file, a=np.ones(2), b=np.ones(2))


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[" ".join(a)[:40] for a, _ in ERRORS])
def test_errors_are_one_sentence(run, bad_files, arguments, message):
    code, out, err = run("explain", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"kullback explain: {message}"), err
    assert err.count("\n") == 1
    assert "(('" not in err  # regression: the arguments of an exception of Python's tokenizer, as a tuple


ENTRIES = [
    (("explain", "0.5,0.5", "0.9,0.1"), "kullback._explain.explained"),
    (("compare", "p.npy", "p.npy", "--fail-over", "0"), "kullback._compare.models.compare_models"),
    (("compare", "t.csv", "t.csv", "--fail-over", "0"), "kullback._compare.tables.compare_tables"),
    (("profile", "t.csv", "-o", "t.json"), "kullback._compare.tables.profile"),
    (("lint", "."), "kullback_command.lint.read_settings"),
    (("pairs",), "kullback_command.pairs.registered_pairs"),
]


@pytest.mark.parametrize(("arguments", "entry"), ENTRIES, ids=[f"{a[0]} {a[1]}" if len(a) > 1 else a[0] for a, _ in ENTRIES])
def test_what_nothing_foresaw_is_no_verdict(run, here, monkeypatch, arguments, entry):
    """Regression: an exception without a sentence of its own ended with 1, the code of --fail-over and of findings."""
    np.save("p.npy", np.full((3, 2), 0.5))
    Path("t.csv").write_text("a\n1\n2\n")
    for error, code, sentence in (
        (KeyError("a bug"), 70, "this is a bug in kullback; please report it with the lines below\nTraceback"),
        (AssertionError(), 70, "this is a bug in kullback"),
        (MemoryError(), 2, "there is not enough memory\n"),
    ):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(entry, fail)
        found, _, err = run(*arguments)
        assert found == code
        assert err.startswith(f"kullback {arguments[0]}: {sentence}")


def test_a_failure_of_the_import_is_no_verdict():
    code = "import sys; sys.modules['kullback_lint'] = sys.modules['numpy'] = None; from kullback_command import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "lint"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (70, "")
    assert "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr


def test_no_pickle_is_ever_loaded(run, here):
    class Boom:
        def __reduce__(self):
            return (os.mkdir, ("unpickled",))

    np.save("boom.npy", np.array([Boom()], dtype=object), allow_pickle=True)
    assert run("explain", "boom.npy", "boom.npy")[0] == 2
    assert not Path("unpickled").exists()


def test_unknown_command_and_a_real_error_exit():
    assert command("explian").returncode == 2
    done = command("explain", "nope.csv", "1,2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kullback explain: there is no file nope.csv\n"


def test_a_closed_pipe_is_quiet_and_no_success(tmp_path):
    np.save(tmp_path / "p.npy", np.ones(50_000))
    process = subprocess.Popen(
        [sys.executable, "-m", "kullback", "explain", "p.npy", "p.npy", "--form", "counts", "--all"],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline().startswith(b"P and Q over 50,000 categories")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141  # as of a program that SIGPIPE ends: not everything was delivered


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = command("explain", "0.5,0.5", "0.9,0.1", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith("kullback explain: cannot write the output: ")
    assert done.stderr.count("\n") == 1


def test_pipes_are_plain_and_never_cut():
    label = "a very long label " * 20
    done = command("explain", "0.5,0.5", "0.9,0.1", "--labels", f"{label},b", env={**ENVIRONMENT, "COLUMNS": "40", "FORCE_COLOR": "1"})
    assert any(line.startswith(label.rstrip()) and "0.5000" in line for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout


def test_a_closed_output():
    run = f'"{sys.executable}" -m kullback explain 0.5,0.5 0.9,0.1'
    done = subprocess.run(["sh", "-c", f"{run} >&-"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "kullback explain: cannot write the output: standard output is closed\n")
    done = subprocess.run(["sh", "-c", f"{run} >&- 2>&-"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    data = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "data")
    run = f'"{sys.executable}" -m kullback compare {data}/reference {data}/quantised --fail-over 0'
    done = subprocess.run(["sh", "-c", f"{run} 2>&-"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "kullback compare" not in done.stdout


def test_an_output_that_knows_no_greek():
    done = command("explain", "0.5,0.5", "0.9,0.1", "--labels", "日,b", env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "KL(P||Q)" in done.stdout
    assert "\\u65e5" in done.stdout
    assert "###" in done.stdout


EXAMPLE = ("-m", "kullback", "explain", "0.5,0.3,0.2", "0.1,0.4,0.5", "--labels", "[bold]cat,dog,owl")


def test_terminal_has_colours_unless_told_not_to():
    pytest.importorskip("rich")
    assert re.search(r"\x1b\[[\d;]*3\dm", on_a_terminal(100, *EXAMPLE))
    plain = on_a_terminal(100, *EXAMPLE, NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain)
    assert "[bold]cat" in plain  # a label is not markup
    assert "█" in plain


@pytest.mark.parametrize(("columns", "there", "gone"), [(80, "█", "Too narrow"), (60, "p·ln(p/q)", "█"), (36, "p·ln(p/q)", "% of KL ")])
def test_narrow_terminals_lose_columns_not_digits(columns, there, gone):
    pytest.importorskip("rich")
    text = re.sub(r"\x1b\[[\d;]*m", "", on_a_terminal(columns, *EXAMPLE))
    assert all(len(line.rstrip()) <= columns for line in text.splitlines())
    assert there in text
    assert gone not in text
    assert "+0.8047" in text


def test_without_rich_a_terminal_gets_plain_text():
    hide = "import sys; sys.modules['rich'] = None; from kullback_command import main; sys.exit(main(sys.argv[1:]))"
    text = on_a_terminal(100, "-c", hide, *EXAMPLE[2:])
    assert "\x1b" not in text
    assert "KL(P‖Q)  0.5351561881 nats" in text


def test_importing_stays_light():
    code = "import sys, kullback._explain, kullback_command.run; print(sorted({'rich', 'torch', 'jax', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


COMMANDS = [
    ("compare", "p.npy", "q.npy"), ("explain", "1", "1"), ("lint", "."), ("pairs",), ("profile", "t.csv", "-o", "t.json"),
]  # fmt: skip
LOADED = [
    (command, module)
    for command in COMMANDS
    for module in ("kullback_command.run", f"kullback_command.{command[0]}", *(
        ("argparse", "kullback_lint", "kullback_lint.rules") if command[0] == "lint" else ("numpy", "kullback", "kullback._dispatch")
    ))
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "module"), LOADED)
def test_an_interrupt_while_it_is_imported(arguments, module):
    """The installed script calls `kullback_command.main`; a signal comes when that imports a module."""
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from kullback_command import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a child of nohup, or of a shell's background job, ignores it
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_command_is_that():
    (script,) = entry_points(group="console_scripts", name="kullback")
    assert script.value == "kullback_command:main"

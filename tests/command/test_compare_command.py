"""`kullback compare` on model outputs, as people run it: what it prints and writes, its exit codes, and a disk that fills up."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
import threading
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import kullback as kb
import kullback_files
from dumps import softmax, truth, write_llama
from kullback._kernels import compiled
from kullback._read import ReadError
from kullback._report import files
from kullback_command import compare, main
from processes import ENVIRONMENT, command, on_a_terminal

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(resources.files("kullback._compare").joinpath("models.schema.json").read_text())


@pytest.fixture
def here(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    p = rng.normal(size=(40, 12)).astype(np.float32)
    q = p + 0.4 * rng.normal(size=p.shape).astype(np.float32)
    np.save("p.npy", p)
    np.save("q.npy", q)
    return p, q


@pytest.fixture
def run(capsys):
    def call(*arguments):
        try:
            code = main(["compare", *map(str, arguments)])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


def test_text(run, here):
    code, out, err = run("p.npy", "q.npy", "--form", "logits", "--top", "2")
    assert (code, err) == (0, "")
    mean = truth(*map(softmax, here))[0].mean()
    # Five digits are printed.
    assert float(re.search(r"^mean +([\d.]+)", out, re.M)[1]) == pytest.approx(mean, rel=1e-4)
    assert "40 rows of 12 categories, in nats" in out
    assert len(re.findall(r"^\d+ ", out.partition("Worst rows")[2], re.M)) == 2
    assert out.count("KL(P‖Q) = Σ p log(p/q)") == 1


def test_json_is_as_the_schema_says(run, here, tmp_path):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    tokens = np.zeros((4, 21), int)
    for name, x in zip("pq", here):
        write_llama(tmp_path / f"{name}.kld", x, tokens)
    np.save("zero.npy", np.array([[0.5, 0.5], [1.0, 0.0]]))
    np.save("other.npy", np.array([[1.0, 0.0], [1.0, 0.0]]))
    np.save("tokens.npy", np.arange(40) % 12)
    for arguments in (
        ("p.npy", "q.npy", "--form", "logits"),
        ("p.npy", "q.npy", "--form", "logits", "--tokens", "tokens.npy", "--base", "2"),
        ("p.kld", "q.kld"),
        ("p.npy", "q.kld", "--form", "logits"),
        ("zero.npy", "other.npy"),
    ):
        code, out, err = run(*arguments, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        jsonschema.validate(found, SCHEMA)
        assert sum(n for _, n in found["sizes"]) == found["rows"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "rows": -1}, SCHEMA)
    seen = kb.Comparison()
    seen.update(*here, form="logits")
    jsonschema.validate(seen.result().to_dict(), SCHEMA)


def test_fail_over(run, here):
    mean = truth(*map(softmax, here))[0].mean()
    code, out, err = run("p.npy", "q.npy", "--form", "logits", "--fail-over", mean / 2)
    assert code == 1
    assert "40 rows" in out
    assert err == f"kullback compare: the mean of KL(P‖Q), {mean:.6g} nats, is over {mean / 2:g}\n"
    assert run("p.npy", "q.npy", "--form", "logits", "--fail-over", mean * 2)[0] == 0
    # 2 is for errors, so that a pipeline can tell them apart.
    assert run("p.npy", "nope.npy", "--fail-over", "1")[0] == 2
    assert "is not a number of at least 0" in run("p.npy", "q.npy", "--fail-over", "x")[2]


def test_a_reader_that_leaves_changes_no_verdict(here):
    process = subprocess.Popen(
        [sys.executable, "-m", "kullback", "compare", "p.npy", "q.npy", "--form", "logits", "--fail-over", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip
    process.stdout.close()
    process.stderr.read()
    assert process.wait(timeout=60) == 1


def test_markdown(run, here):
    code, out, _ = run("p.npy", "q.npy", "--form", "logits", "--markdown")
    assert code == 0
    tables = re.findall(r"^\|( [^\n]*)\|$", out, re.M)
    assert {line.count("|") for line in tables if "mean" in line} == {4}
    assert out.startswith("**KL(P‖Q) is ")
    assert out.count("<details>") == out.count("</details>") == 1
    assert run("p.npy", "q.npy", "--markdown", "--json")[0] == 2


def test_what_is_said_of_clipped_files(run, here, tmp_path):
    for name, x in zip("pq", here):
        write_llama(tmp_path / f"{name}.kld", x, np.zeros((4, 21), int))
    for sides, mixed in (
        (("p.npy", "q.npy"), ""),
        (("p.kld", "q.kld"), ""),
        (("p.kld", "q.npy"), "a token that P's file has clipped counts there with the value it was clipped to, and in Q with its own"),
        (("p.npy", "q.kld"), "a token that Q's file has clipped counts there with the value it was clipped to, and in P with its own"),
    ):
        for kind in ("", "--markdown", "--json"):
            said = " ".join(run(*sides, "--form", "logits", *filter(None, [kind]))[1].split())
            clipped = sides != ("p.npy", "q.npy")
            assert ("is a lower bound, but for the rounding of the codes" in said) == clipped
            assert ("looks better by those tokens" in said) == bool(mixed)
            assert ("llama.cpp's own KLD is not given: that program computes it where P is such a file" in said) == (
                sides == ("p.npy", "q.kld")
            )
            if kind != "--json":
                assert said.count("llama.cpp's own KLD") == clipped  # the figure, or why there is none
            assert mixed in said
            if kind != "--json":  # which has no conventions
                assert ("Nothing is clipped" in said) == (not clipped)
                assert ("Nothing is smoothed; what llama.cpp's file has clipped is one bucket." in said) == clipped


@pytest.mark.parametrize("kind", ["models", "tables"])
def test_an_output_that_knows_no_greek(here, kind):
    """A bar of KL(P||Q) would end a cell; and \\x escapes are not JSON."""
    sides = ("p.npy", "é.npy", "--form", "logits") if kind == "models" else ("t.csv", "é.csv")
    Path("q.npy").rename("é.npy")
    for name in ("t.csv", "é.csv"):
        Path(name).write_text("a,b\n" + "1,x\n2,y\n" * 20)
    ascii_only = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    done = command("compare", *sides, "--markdown", env=ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\\u" not in done.stdout
    assert r"KL(P\|\|Q)" in done.stdout
    blocks = re.findall(r"(?:^\|.*\n)+", done.stdout, re.M)
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert len(blocks) == (3 if kind == "models" else 1)
    done = command("compare", *sides, "--json", env=ascii_only)
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["q"]["name"] == sides[1]


class TestReport:
    def test_it_is_written(self, run, here):
        code, _, err = run("p.npy", "q.npy", "--form", "logits", "--report", "out.html")
        assert (code, err) == (0, "")
        text = Path("out.html").read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>")
        assert "http" not in re.sub(r"http-equiv", "", text)
        assert Path("out.html").stat().st_mode & 0o777 == 0o666 & ~_umask()
        assert sorted(os.listdir()) == ["out.html", "p.npy", "q.npy"]

    def test_places_that_cannot_be_written(self, run, here):
        Path("folder").mkdir()
        for target, sentence in (("no/out.html", "there is no directory no"), ("folder", "it is a directory")):
            code, out, err = run("p.npy", "q.npy", "--form", "logits", "--report", target)
            assert (code, out) == (2, "")
            assert err == f"kullback compare: cannot write {target}: {sentence}\n"

    def test_names_of_directories(self, run, here):
        for there in (False, True):
            code, out, err = run("p.npy", "q.npy", "--form", "logits", "--report", "out.html/")
            assert (code, out) == (2, "")
            assert err == "kullback compare: cannot write out.html/: that is the name of a directory; a file's has no / at its end\n"
            assert os.path.exists("out.html") == there
            Path("out.html").write_text("yesterday's")

    def test_links_that_lead_to_themselves(self, run, here):
        for link, to in (("l1", "l1"), ("l2", "l3"), ("l3", "l2")):
            Path(link).symlink_to(to)
        for link in ("l1", "l2", "l3"):
            code, out, err = run("p.npy", "q.npy", "--form", "logits", "--report", link)
            assert (code, out) == (2, "")
            assert err == f"kullback compare: cannot write {link}: it is a link that leads to itself\n"
            assert os.path.islink(link)

    def test_nothing_is_left_of_a_look(self, here, monkeypatch):
        """Whether a file can be made there."""
        close = os.close

        def fail(handle):
            close(handle)
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(files.os, "close", fail)
        with pytest.raises(ReadError, match=r"^cannot write out\.html: Input/output error$"):
            files.check_target("out.html")
        assert sorted(os.listdir()) == ["p.npy", "q.npy"]

    @pytest.mark.parametrize("stage", ["write", "fsync", "replace"])
    def test_a_disk_that_fills_up_leaves_what_was_there(self, run, here, monkeypatch, stage):
        Path("out.html").write_text("yesterday's")

        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        if stage == "write":

            def opened(*arguments, **options):
                file = open(*arguments, **options)  # noqa: SIM115 (closed by the caller)
                file.write(b" " * 10)  # something gets through
                file.flush()
                return _Full(file, full)

            monkeypatch.setattr(kullback_files, "open", opened, raising=False)
        else:
            monkeypatch.setattr(files.os, stage, full)
        figures = {kind: run("p.npy", "q.npy", "--form", "logits", *kind)[1] for kind in ((), ("--json",), ("--markdown",))}
        for kind, expected in figures.items():
            code, out, err = run("p.npy", "q.npy", "--form", "logits", *kind, "--report", "out.html")
            assert code == 2
            assert out == expected  # what took the time is not lost
            assert err == "kullback compare: cannot write out.html: No space left on device; nothing was left there\n"
            assert Path("out.html").read_text() == "yesterday's"
            assert sorted(os.listdir()) == ["out.html", "p.npy", "q.npy"]

    @pytest.mark.parametrize("kind", ["models", "tables"])
    def test_a_folder_that_goes_while_it_works_takes_no_figures_along(self, run, here, monkeypatch, kind):
        Path("t.csv").write_text("a\n" + "1\n2\n" * 20)
        Path("reports").mkdir()
        sides = ("p.npy", "q.npy", "--form", "logits") if kind == "models" else ("t.csv", "t.csv")
        compared = compare._compare

        def work(arguments):
            found = compared(arguments)
            Path("reports").rmdir()
            return found

        monkeypatch.setattr(compare, "_compare", work)
        code, out, err = run(*sides, "--fail-over", "0", "--report", "reports/out.html")
        assert code == 2
        assert "mean" in out if kind == "models" else "noise floor" in out
        assert err.splitlines()[-1] == "kullback compare: cannot write reports/out.html: No such file or directory"
        assert len(err.splitlines()) == (2 if kind == "models" else 1)  # the verdict stays a figure

    def test_a_place_that_cannot_be_written_is_refused_before_the_work(self, run, here, monkeypatch):
        monkeypatch.setattr(compare, "_compare", lambda _: pytest.fail("it went to work"))
        name = "x" * 300 + ".html"
        assert run("p.npy", "q.npy", "--report", name) == (2, "", f"kullback compare: cannot write {name}: File name too long\n")
        for error in (errno.EROFS, errno.EACCES, errno.ENOSPC):

            def refuse(*_, error=error, **__):
                raise OSError(error, os.strerror(error))

            monkeypatch.setattr(files.Path, "touch", refuse)
            sentence = f"kullback compare: cannot write out.html: {os.strerror(error)}\n"
            assert run("p.npy", "q.npy", "--report", "out.html") == (2, "", sentence)

    def test_a_name_as_long_as_can_be(self, run, here):
        name = "x" * 250 + ".html"
        assert run("p.npy", "q.npy", "--form", "logits", "--report", name)[0] == 0
        assert sorted(os.listdir()) == ["p.npy", "q.npy", name]

    def test_a_link_stays_and_leads_to_the_report(self, run, here):
        Path("folder").mkdir()
        Path("folder/target.html").write_text("yesterday's")
        for link, to in (("link.html", "folder/target.html"), ("new.html", "folder/new.html")):  # the second leads to no file yet
            Path(link).symlink_to(to)
            assert run("p.npy", "q.npy", "--form", "logits", "--report", link)[0] == 0
            assert os.readlink(link) == to
            assert Path(to).read_text(encoding="utf-8").startswith("<!doctype html>")
        assert sorted(os.listdir("folder")) == ["new.html", "target.html"]
        Path("lost.html").symlink_to("nowhere/target.html")
        code, out, err = run("p.npy", "q.npy", "--form", "logits", "--report", "lost.html")
        assert (code, out) == (2, "")
        assert err.startswith("kullback compare: cannot write lost.html: there is no directory ")

    def test_a_pipe_is_written_to(self, run, here):
        os.mkfifo("pipe.html")
        read = []
        reader = threading.Thread(target=lambda: read.append(Path("pipe.html").read_text(encoding="utf-8")), daemon=True)
        reader.start()
        assert run("p.npy", "q.npy", "--form", "logits", "--report", "pipe.html")[0] == 0
        assert stat.S_ISFIFO(os.stat("pipe.html").st_mode)
        reader.join(timeout=60)
        assert read[0].startswith("<!doctype html>")
        assert read[0].rstrip().endswith("</html>")
        assert sorted(os.listdir()) == ["p.npy", "pipe.html", "q.npy"]

    def test_a_device_is_written_to(self, monkeypatch):
        leader, follower = os.openpty()  # a device any user may have made
        name = os.ttyname(follower)
        monkeypatch.setattr(files.os, "replace", lambda *_: pytest.fail("a device was to be replaced"))
        files.check_target(name)
        files.write_whole(name, "text")
        assert os.read(leader, 100) == b"text"
        assert stat.S_ISCHR(os.stat(name).st_mode)
        # A device that takes nothing, as a disk that is full.
        monkeypatch.setattr(files.os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(ReadError, match=f"^cannot write {name}: No space left on device$"):
            files.write_whole(name, "text")
        os.close(leader)
        os.close(follower)

    @pytest.mark.parametrize("to", ["file", "pipe"])
    def test_standard_output_has_the_report_before_the_text(self, here, to):
        arguments = [sys.executable, "-m", "kullback", "compare", "p.npy", "q.npy", "--form", "logits", "--report", "/dev/stdout"]
        if to == "pipe":
            out = subprocess.run(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, timeout=60, check=True).stdout
        else:
            with open("out.txt", "wb") as file:
                subprocess.run(arguments, env=ENVIRONMENT, stdout=file, timeout=60, check=True)
            out = Path("out.txt").read_bytes()
        assert out.startswith(b"<!doctype html>")
        assert b"40 rows of 12 categories, in nats" in out.partition(b"</html>")[2]

    def test_inputs_are_not_overwritten(self, run, here):
        Path("shards").mkdir()
        np.save("shards/1.npy", here[1])
        Path("shards/old.html").write_text("yesterday's")
        np.save("tokens.npy", np.zeros(40, int))
        Path("link.npy").symlink_to("p.npy")
        for q, target, source in (
            ("q.npy", "p.npy", "p.npy"),
            ("q.npy", "./q.npy", "q.npy"),
            ("q.npy", "link.npy", "p.npy"),
            ("q.npy", "tokens.npy", "tokens.npy"),
            ("shards", "shards/1.npy", "shards"),
            ("shards/*.npy", "shards/1.npy", "shards/*.npy"),
        ):
            before = Path(target).read_bytes()
            code, out, err = run("p.npy", q, "--form", "logits", "--tokens", "tokens.npy", "--report", target)
            assert (code, out) == (2, "")
            assert err == f"kullback compare: cannot write {target}: it is read, as {source}; choose another name\n"
            assert Path(target).read_bytes() == before
        assert run("p.npy", "shards", "--form", "logits", "--report", "shards/old.html")[0] == 0
        code, out, err = run("p.npy", "q.npy", "--form", "logits", "--report", "")
        assert (code, out) == (2, "")
        assert err == "kullback compare: cannot write to a file with no name: name it, e.g. out.html\n"

    def test_an_interrupt_leaves_nothing(self, here, monkeypatch):
        monkeypatch.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            files.write_whole("new.html", "text")
        assert sorted(os.listdir()) == ["p.npy", "q.npy"]

    def test_without_jinja(self, here):
        code = (
            "import sys; sys.modules['jinja2'] = None; from kullback_command import main; "
            "sys.exit(main(['compare', 'p.npy', 'q.npy', '--form', 'logits', '--report', 'out.html']))"
        )
        done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "kullback compare: a report needs Jinja: pip install 'kullback[cli]'\n"


class _Full:
    """A file on a disk with no room."""

    def __init__(self, file, full):
        self.file, self.write = file, full

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_errors_speak_of_options(run, here):
    np.save("short.npy", here[1][:5])
    for arguments, sentence in (
        (("p.npy", "q.npy"), "logits? pass --form logits"),
        (("p.npy", "short.npy", "--form", "logits"), "p.npy has 40 rows and short.npy 5: --allow-partial compares the first 5"),
        (("p.npy", "q.npy", "--form", "logit"), "form is 'logit'"),
        (("p.npy", "q.npy", "--form", "logits", "--top", "0"), "'0' is not a whole number above 0"),
        (("p.npy", "q.npy", "--form", "logits", "--prior", "0"), "--prior is for tables, and these are model outputs"),
        (("p.npy", "q.npy", "short.npy"), "unrecognized arguments: short.npy: quote a pattern, such as 'shards/*.npy'"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1
    assert run("p.npy", "short.npy", "--form", "logits", "--allow-partial")[0] == 0


def test_errors_speak_of_what_the_command_has(run, here):
    q = softmax(here[1]).astype(np.float32)
    q[3] = 0
    np.save("q.npy", q)
    for form, sentence in (
        ("logits,probs", "row 3 sums to 0, not 1: no category has any probability; take the row out of both sides\n"),
        ("logits,counts", "row 3 has no counts at all: take the row out of both sides\n"),
        ("logits,log_probs", "not 1: probabilities? pass --form logits,probs\n"),
    ):
        code, out, err = run("p.npy", "q.npy", "--form", form)
        assert (code, out) == (2, "")
        assert err.startswith("kullback compare: q.npy: row ")
        assert err.endswith(sentence)


@pytest.mark.parametrize("base", ["1", "0", "-2", "0.5", "nan", "inf"])
def test_bases_that_give_no_unit(run, here, base):
    Path("t.csv").write_text("a\n1\n2\n")
    for sides in (("p.npy", "q.npy"), ("t.csv", "t.csv")):
        code, out, err = run(*sides, "--base", base)
        assert (code, out) == (2, "")
        sentence = "it must be a number above 1, such as 2 for bits; without a base the unit is nats"
        assert err == f"kullback compare: base is {float(base)}: {sentence}\n"
        with pytest.raises(ValueError, match="it must be a number above 1"):
            kb.compare(*sides, base=float(base))


def test_a_file_that_may_not_be_read(run, here):
    Path("p.npy").chmod(0)
    if os.access("p.npy", os.R_OK):  # root may read anything: a directory in its place, then
        Path("p.npy").unlink()
        Path("p.npy").mkdir()
    code, _, err = run("p.npy", "q.npy", "--form", "logits")
    assert code == 2
    assert err.startswith("kullback compare: p.npy")


def test_progress_on_a_terminal(here):
    rows = np.tile(here[0], (1500, 15))
    np.save("p.npy", rows)
    np.save("q.npy", rows[::-1].copy())
    shown = on_a_terminal(100, "-m", "kullback", "compare", "p.npy", "q.npy", "--form", "logits", OMP_NUM_THREADS="1")
    assert re.search(r"60000/60000", shown)
    assert re.search(r"[\d,]+/s", shown)
    assert "left" in shown
    hide = "import sys; sys.modules['rich'] = None; from kullback_command import main; sys.exit(main(sys.argv[1:]))"
    assert "100% of 60,000 rows" in on_a_terminal(100, "-c", hide, "compare", "p.npy", "q.npy", "--form", "logits")


def test_the_readme_shows_what_is_printed():
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"```text\n\$ kullback (compare examples/data/.*?)\n(.*?)```", readme, re.DOTALL)
    done = command(*shown[1].split(), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    for expected, line in zip(shown[2].splitlines(), done.stdout.splitlines()):
        if expected == "...":
            break
        assert line == expected
    else:
        pytest.fail("README: the output ends with ...")
    assert "pip install '.[cli]' && kullback compare examples/data/reference examples/data/quantised" in readme
    assert (ROOT / "docs/compare_report.png").stat().st_size < 300_000


def test_plot_and_notebook(here):
    found = kb.compare(*here, form="logits")
    figure = found.plot()
    assert [axis.get_title() for axis in figure.axes] == ["Distribution", "Cumulative", "Calibration of Δp"]
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == 40
    assert figure.axes[1].lines[0].get_ydata()[-1] == pytest.approx(100)
    html = found._repr_html_()
    assert html.startswith("<div")
    assert "KL(P‖Q) is" in html
    assert "<script" not in html


def test_plot_without_matplotlib(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    Path("t.csv").write_text("a\n1\n2\n")
    for found in (kb.compare(*here, form="logits"), kb.compare("t.csv", "t.csv")):
        with pytest.raises(ImportError, match=r"^plot\(\) needs Matplotlib: pip install matplotlib$"):
            found.plot()


def test_errors_are_value_errors(here):
    assert issubclass(ReadError, ValueError)
    with pytest.raises(ValueError, match="there is no file nope"):
        kb.compare("nope", "q.npy")


def test_a_slow_comparison_without_the_compiled_kernel_is_explained(run, here, monkeypatch):
    monkeypatch.setattr(compiled, "kernels", None)
    assert run("p.npy", "q.npy", "--form", "logits")[2] == ""  # not slow
    monkeypatch.setattr(compare, "_LONG", 0.0)
    code, out, err = run("p.npy", "q.npy", "--form", "logits", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == 40
    assert re.fullmatch(r"kullback compare: installed without its compiled kernel.*C compiler.*\n", err)

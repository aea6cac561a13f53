"""The linter as people use it: files, notebooks, standard input, settings, formats. Mending and survival have files of their own."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from expectations import BAD, ENVIRONMENT, SRC

from kullback_lint import RULES, check
from kullback_lint.flake8 import Plugin

ROOT = Path(__file__).resolve().parents[2]
MEAN = (3, 8, "KL006")


def places(out):
    return [(f["path"], f["line"], f["column"], f["rule"]) for f in json.loads(out)]


# Output.


def test_text_shows_the_line_and_a_caret(here, run):
    Path("loss.py").write_text(BAD)
    code, out, err = run("loss.py")
    assert (code, err) == (1, "")
    first, line, caret, summary = out.splitlines()
    assert first.startswith("loss.py:3:8: KL006 warning: ")
    assert line == "    loss = F.kl_div(x, y)"
    assert caret == "           ^~~~~~~~~~~~~~"
    assert summary == "1 finding in 1 file, 1 of them fixable with --fix"


def test_carets_stand_under_wide_characters_and_tabs(here, run):
    Path("wide.py").write_text("import torch.nn.functional as F\nif 1:\n\ts = '损失é'; F.kl_div(x, y)\n", encoding="utf-8")
    _, out, _ = run("wide.py")
    line, caret = out.splitlines()[1:3]
    assert out.startswith("wide.py:3:13: KL006")
    # Two columns for each of the two wide characters.
    assert caret.index("^") == line.index("F.kl_div") + 2


def test_nothing_found(here, run):
    Path("fine.py").write_text("x = 1\n")
    assert run("fine.py") == (0, "no findings in 1 file\n", "")
    assert run("--json", "fine.py") == (0, "[]\n", "")
    assert run("--format", "github", "fine.py") == (0, "", "")


def test_json_is_a_list_of_findings(here, run):
    Path("loss.py").write_text(BAD)
    code, out, _ = run("--json", ".")
    (found,) = json.loads(out)
    assert code == 1
    assert {k: found[k] for k in ("path", "line", "column", "rule")} == {"path": "loss.py", "line": 3, "column": 8, "rule": "KL006"}
    assert "batchmean" in found["message"]
    assert (found["end_line"], found["end_column"], found["severity"], found["fixable"]) == (3, 22, "warning", True)


def test_sarif(here, run):
    Path("a b.py").write_text(BAD + "F.kl_div(F.softmax(x, -1), y, reduction='sum')\n")
    code, out, _ = run("--format", "sarif", ".")
    assert code == 1
    log = json.loads(out)
    assert log["version"] == "2.1.0"
    (done,) = log["runs"]
    ids = [rule["id"] for rule in done["tool"]["driver"]["rules"]]
    assert ids == [rule.code for rule in RULES]
    assert [(r["ruleId"], r["level"]) for r in done["results"]] == [("KL006", "warning"), ("KL001", "error")]
    (location,) = done["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "a%20b.py"
    assert location["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 8, "endLine": 3, "endColumn": 22}


def test_sarif_of_a_notebook_names_the_cell_and_no_line_of_the_json(here, run):
    Path("n.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": BAD}]}))
    (result,) = json.loads(run("--format", "sarif", "n.ipynb")[1])["runs"][0]["results"]
    assert result["message"]["text"].endswith("(cell 1, line 3)")
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}


def test_github_annotations(here, run):
    Path("a,b.py").write_text(BAD)
    _, out, _ = run("--format", "github", ".")
    assert out.startswith("::warning file=a%2Cb.py,line=3,endLine=3,col=8,endColumn=22,title=KL006::")
    assert out.count("\n") == 1


# What is read.


def test_directories_are_walked_and_given_files_taken_whatever_their_name(here, run):
    for name in ("b/two.py", "a/one.pyi", "c.txt", ".venv/lib.py", "__pycache__/x.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(BAD)
    _, out, _ = run("--json", ".")
    assert [p for p, *_ in places(out)] == [os.path.join("a", "one.pyi"), os.path.join("b", "two.py")]
    _, out, _ = run("--json", "c.txt", ".venv", ".", "b/two.py")
    assert sorted(p for p, *_ in places(out)) == sorted(
        ["c.txt", os.path.join(".venv", "lib.py"), os.path.join("a", "one.pyi"), os.path.join("b", "two.py")]
    )


def test_what_does_not_exist(here, run):
    code, out, err = run("nowhere.py")
    assert (code, out, err) == (2, "", "kullback lint: nowhere.py does not exist\n")


def test_files_that_do_not_parse_are_reported_and_the_run_goes_on(here, run):
    Path("1_syntax.py").write_text("def f(:\n    pass\n")
    Path("2_python2.py").write_text("print 'hello'\n")
    Path("3_null.py").write_bytes(b"x = 1\0\n")
    Path("4_bytes.py").write_bytes(b"x = '\xff'\n")
    Path("5_coding.py").write_bytes(b"# coding: nonsense\n")
    Path("6_deep.py").write_text("x = " + "(" * 5000 + ")" * 5000 + "\n")
    Path("7_good.py").write_text(BAD)
    code, out, err = run("--json", ".")
    assert (code, err) == (1, "")
    found = [(path, rule) for path, _, _, rule in places(out)]
    assert [p for p, rule in found if rule == "KL000"] == [f for f in sorted(os.listdir()) if f != "7_good.py"]
    assert found[-1] == ("7_good.py", "KL006")
    assert json.loads(out)[0]["line"] == 1


def test_a_rule_that_fails_hides_neither_itself_nor_the_others(monkeypatch):
    def fail(module):
        raise ValueError("of the test")
        yield

    monkeypatch.setattr(RULES[0], "check", fail)
    first, second = check(BAD, "x.py")
    assert (first.rule, first.line) == ("KL000", 1)
    assert first.message.startswith("could not be checked: KL001 failed (ValueError: of the test)")
    assert second.rule == "KL006"


def test_a_fault_of_ours_is_no_verdict(monkeypatch, here, run):
    """Regression: an exception in a rule ended with the exit code of findings."""

    def fail(module):
        raise ValueError("of the test")
        yield

    Path("x.py").write_text(BAD)
    monkeypatch.setattr(RULES[0], "check", fail)
    code, out, _ = run(".")
    assert code == 70
    assert "KL006" in out


def test_a_file_that_cannot_be_read_is_no_finding(monkeypatch, here, run):
    Path("x.py").write_text(BAD)
    Path("gone.py").write_text(BAD)
    read = Path.read_bytes

    def refuse(path):
        if path.name == "gone.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    code, out, _ = run(".")
    assert code == 2
    assert "gone.py:1:1: KL000 error: does not parse: cannot be read (Permission denied)" in out
    assert "x.py:3:8: KL006" in out


def test_what_is_no_regular_file_is_not_waited_for(here):
    """Regression: a named pipe below a folder, or in the place of a file, was waited for without end."""
    Path("x.py").write_text(BAD)
    os.mkfifo("pipe.py")
    Path("lost.py").symlink_to("nowhere.py")
    lint = [sys.executable, "-m", "kullback", "lint", "--json"]
    done = subprocess.run([*lint, "."], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, places(done.stdout)) == (1, [("x.py", *MEAN)])
    done = subprocess.run([*lint, "pipe.py"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    sentence = "kullback lint: pipe.py is a pipe or a device: pass - and redirect it to standard input\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)


def test_other_encodings_and_line_ends(here, run):
    Path("latin.py").write_bytes("# coding: latin-1\nimport torch.nn.functional as F\ns = 'é'; F.kl_div(x, y)\n".encode("latin-1"))
    Path("bom.py").write_bytes(b"\xef\xbb\xbf" + BAD.replace("\n", "\r\n").encode())
    _, out, _ = run("--json", ".")
    assert places(out) == [("bom.py", *MEAN), ("latin.py", 3, 10, "KL006")]
    before = {name: Path(name).read_bytes() for name in ("latin.py", "bom.py")}
    assert run("--fix", ".")[0] == 0
    for name, data in before.items():
        assert Path(name).read_bytes() == data.replace(b"F.kl_div(x, y)", b'F.kl_div(x, y, reduction="batchmean")')


def test_standard_input():
    done = subprocess.run(
        [sys.executable, "-m", "kullback", "lint", "-", "--json"], input=BAD, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert places(done.stdout) == [("<stdin>", *MEAN)]
    fix = [sys.executable, "-m", "kullback", "lint", "-", "--fix", "--stdin-name", "loss.py"]
    done = subprocess.run(fix, input=BAD, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout == BAD.replace("(x, y)", '(x, y, reduction="batchmean")')
    assert done.stderr == "1 mended, no findings in 1 file\n"


def notebook(*cells, **extra):
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": c.splitlines(keepends=True)} for c in cells
    ]
    cells.insert(1, {"cell_type": "markdown", "metadata": {}, "source": ["# KL(é)\n"]})
    return json.dumps({"cells": cells, "metadata": extra, "nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"


def test_notebooks_follow_values_from_cell_to_cell(here, run):
    Path("train.ipynb").write_text(
        notebook(
            "%matplotlib inline\nimport torch.nn.functional as F\n!pip install torch",
            "p = F.softmax(x, dim=-1)\nthis does not parse",
            "%%bash\nls",
            "%%time\np = F.softmax(x, dim=-1)\n",
            "loss = F.kl_div(\n    p, y, reduction='sum')  # KL(é)",
            "torch_info?\nF.kl_div(x, y)",
        )
    )
    code, out, _ = run("--json", ".")
    assert code == 1
    assert [(f["cell"], f["line"], f["column"], f["rule"]) for f in json.loads(out)] == [
        (3, 2, 6, "KL000"),
        (6, 2, 5, "KL001"),
        (7, 2, 1, "KL006"),
    ]
    _, out, _ = run("train.ipynb")
    assert "train.ipynb:cell 6:2:5: KL001 error" in out
    assert "\n    p, y, reduction='sum')  # KL(é)\n    ^\n" in out


def test_notebooks_are_mended_without_touching_the_rest(here, run):
    text = notebook("import torch.nn.functional as F", "loss = F.kl_div(x, y)  # é")
    Path("n.ipynb").write_text(text, encoding="utf-8")
    assert run("--fix", "n.ipynb")[0] == 0
    assert Path("n.ipynb").read_text(encoding="utf-8") == text.replace("(x, y)", '(x, y, reduction=\\"batchmean\\")')
    # Written by something else: mending it would rewrite every line.
    other = json.dumps(json.loads(text), indent=3)
    Path("n.ipynb").write_text(other)
    assert run("--fix", "n.ipynb")[0] == 1
    assert Path("n.ipynb").read_text() == other


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', "null"])
def test_what_is_no_notebook(here, run, text):
    Path("n.ipynb").write_text(text)
    code, out, _ = run("--json", "n.ipynb")
    assert code == 1
    assert places(out) == [("n.ipynb", 1, 1, "KL000")]


def test_notebooks_of_other_languages_are_left_alone(here, run):
    Path("r.ipynb").write_text(notebook("x <- 1", kernelspec={"language": "R"}))
    assert run("r.ipynb")[0] == 0


# Choosing.


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("# kullback: ignore", True),
        ("# kullback: ignore[KL006]", True),
        ("# kullback:ignore[KL001, kl006] why", True),
        ("# kullback: ignore[KL001]", False),
        ("# noqa", False),
        ('; s = "# kullback: ignore"', False),
    ],
)
def test_comments_silence_a_line(comment, silent):
    assert (check(BAD.rstrip() + "  " + comment + "\n", "x.py") == []) == silent


def test_a_comment_anywhere_on_the_expression_silences_it():
    text = "import torch.nn.functional as F\nloss = F.kl_div(\n    x,  # kullback: ignore[KL006]\n    y,\n)\nF.kl_div(x, y)\n"
    assert [f.line for f in check(text, "x.py")] == [6]


def test_select_and_ignore(here, run):
    Path("x.py").write_text(BAD + "F.kl_div(F.softmax(x), y)\n")
    rules = lambda *options: sorted(r for *_, r in places(run("--json", *options, ".")[1]))  # noqa: E731
    assert rules() == ["KL001", "KL006", "KL006", "KL009"]
    assert rules("--select", "KL001,KL009") == ["KL001", "KL009"]
    assert rules("--select", "KL00", "--ignore", "kl006") == ["KL001", "KL009"]
    assert rules("--select", "KL001", "--select", "KL006", "--ignore", "KL001") == ["KL006", "KL006"]
    code, out, err = run("--select", "KL999", ".")
    assert (code, out) == (2, "")
    assert err == "kullback lint: --select names KL999, which is no rule (they are KL001 to KL025)\n"


def test_information_fails_only_where_selected(here, run):
    Path("x.py").write_text("import torch\nk = torch.expm1(x) - x\nloss = policy_loss + k\n")
    code, out, _ = run("x.py")
    assert "KL025 information" in out
    assert code == 0
    assert run("--select", "KL025", "x.py")[0] == 1
    assert run("--select", "KL", "x.py")[0] == 0


def test_pyproject_section(here, run):
    Path("sub").mkdir()
    Path("old").mkdir()
    Path("sub/x.py").write_text(BAD + "F.kl_div(F.softmax(x), y)\n")
    Path("old/y.py").write_text(BAD)
    Path("pyproject.toml").write_text('[tool.kullback.lint]\nignore = ["KL006"]\nexclude = ["old"]\n')
    assert sorted(r for *_, r in places(run("--json", ".")[1])) == ["KL001", "KL009"]
    os.chdir("sub")
    assert sorted(r for *_, r in places(run("--json", "--ignore", "KL009", "x.py")[1])) == ["KL001"]


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ('ignore = "KL006"', "must be a list of rule numbers"),
        ('select = ["E501"]', "names E501, which is no rule"),
        ("line-length = 3", "has no setting 'line-length'"),
        ("exclude = [3]", "must be a list of patterns"),
        ("oops", "pyproject.toml: "),
    ],
)
def test_pyproject_mistakes_are_one_sentence(here, run, section, sentence):
    Path("x.py").write_text("")
    Path("pyproject.toml").write_text(f"[tool.kullback.lint]\n{section}\n")
    code, out, err = run("x.py")
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_explain_prints_the_page(here, run):
    code, out, _ = run("--explain", "kl006")
    assert code == 0
    assert out == (ROOT / "src/kullback_lint/pages/KL006.md").read_text()
    assert run("--explain", "KL999")[0] == 2


# Where else it runs.


def test_flake8_runs_the_plugin(here):
    """As installed: the entry point of pyproject.toml, found by flake8 through a distribution's metadata."""
    declared = re.search(r'^KL = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    info = here / "site" / "lint_entry-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lint-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[flake8.extension]\nKL = {declared}\n")
    # An installed kullback declares it already; a second declaration would report everything twice.
    installed = any(entry.name == "KL" for entry in importlib.metadata.entry_points(group="flake8.extension"))
    Path("x.py").write_text(BAD + "F.kl_div(x, y)  # noqa: KL006\nF.kl_div(x, y)  # kullback: ignore\n")
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([SRC] if installed else [str(here / "site"), SRC])}
    done = subprocess.run(
        [sys.executable, "-m", "flake8", "--select", "KL", "x.py"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert re.fullmatch(r"x\.py:3:8: KL006 .*\n", done.stdout)


def test_flake8_plugin_class():
    (found,) = Plugin(ast.parse(BAD), BAD.splitlines(keepends=True), "x.py").run()
    assert found[:2] == (3, 7)


def test_pre_commit_hook_names_the_command():
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "id: kullback-lint" in text
    assert "entry: kullback lint" in text
    assert "types_or: [python, pyi, jupyter]" in text

"""Every example in README.md and docs/ is run: prompts, and the rows of tables that say what a call gives. (Rules' pages: tests/lint.)"""

from __future__ import annotations

import doctest
import math
import re
import shlex
import warnings

import pytest

from documents import PAGES, ROOT, commands, examples, gives, rows
from frameworks import needed_by
from kullback_command.run import parser
from kullback_lint.check import check
from kullback_lint.rules import RULES

LOSS = '    loss = F.kl_div(F.softmax(student, dim=-1), target, reduction="batchmean")'
TRAIN = "\n".join(["import torch.nn.functional as F", *11 * [""], "def step(student, target):", LOSS, "    return loss", ""])


def run(test: doctest.DocTest) -> doctest.TestResults:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong, and shown to be, warns
        return doctest.DocTestRunner(verbose=False).run(test)


@pytest.mark.parametrize("page", [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=pytest.mark.needs(*needed_by(page.read_text())))
    for page in PAGES if examples(page).examples
])  # fmt: skip
def test_examples(page, monkeypatch, tmp_path):
    # They name files that come with the repository, and one that anyone could have.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    assert run(examples(page)).failed == 0


def test_commands_that_are_not_run_exist():
    """Of files that nobody has, at least every option is one."""
    blocks = [block for page in PAGES for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)]
    lines = [
        line for block in blocks for part in block.splitlines() for line in re.split(r"&&|>>", part) if line.strip().startswith("kullback ")
    ]
    assert len(lines) > 8
    for line in lines:
        _, *arguments = shlex.split(line, comments=True)
        assert parser(arguments).parse_args(arguments).run, line


def test_pages_have_examples():
    attempted = {page.name: len(examples(page).examples) for page in PAGES}
    assert attempted["README.md"] > 10
    assert not [
        page
        for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        if ">>>" not in block
    ]
    assert attempted["start.md"] > 10
    assert [arguments.split()[0] for _, arguments, _ in commands((ROOT / "README.md").read_text())] == ["compare", "explain", "lint"]


def test_rows_are_examples(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("| a | gives | b | gives |\n|---|---|---|---|\n| `1 / 3` | 0.33 | `2` | 2.0 |\n\n| a | b |\n|---|---|\n| `1` | 2 |\n")
    assert list(rows(page.read_text())) == [(2, "1 / 3", "0.33", "2.0"), (2, "2", "2.0", "2.0")]
    assert run(examples(page)) == (0, 2)
    page.write_text(page.read_text().replace("0.33", "0.34"))
    assert run(examples(page)) == (1, 2)
    capsys.readouterr()
    right = ((math.nan, "NaN"), (-1.26e-9, "-1.3e-9"), (3e12, "3e12"), (True, "true"), (-3e-7, "~2e-7"), (0.0, "~0"))
    wrong = ((5.5e-9, "~2e-7"), (1e-3, "~2e-7"), (0.5, "0.51"), (1.0, "ValueError"))
    for value, shown in (*right, *wrong):
        gives(lambda value=value: value, shown, "5.49e-9")
        assert (capsys.readouterr().out == f"{shown}\n") == ((value, shown) in right)


SECTIONS = re.split(r"^(?=#+ )", (ROOT / "docs/pitfalls.md").read_text(), flags=re.MULTILINE)
PITFALLS = {found[1]: section for section in SECTIONS if (found := re.search(r"^\[(KL\d+)\]\(.*/\1\.md\)", section, re.MULTILINE))}


@pytest.mark.parametrize("rule", PITFALLS)
def test_the_linter_finds_each_pitfall(rule):
    """Below "wrong", and nothing below "right" or before either."""
    lines = re.findall(r"^(?:>>>|\.\.\.) (.*)$", SECTIONS[1] + PITFALLS[rule], re.MULTILINE)
    found = {"setup": set(), "wrong": set(), "right": set()}
    marks = [line.strip().removeprefix("# ") if line.strip() in ("# wrong", "# right") else "" for line in lines]
    assert marks.index("wrong") < marks.index("right")
    for finding in check("\n".join(lines), "pitfall.py"):
        found[next(filter(None, marks[: finding.line][::-1]), "setup")].add(finding.rule)
    assert found == {"setup": set(), "wrong": {rule}, "right": set()}


def test_every_rule_has_a_pitfall():
    assert set(PITFALLS) == {rule.code for rule in RULES}

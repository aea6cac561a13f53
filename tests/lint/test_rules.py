"""Every rule against its fixtures, to the line and column; the traps; the recall set; the pages."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from expectations import FIXTURES, expected

from frameworks import needed_by
from kullback_lint import RULES, SEVERITIES, check, page
from kullback_lint.rules.base import Rule

ROOT = Path(__file__).resolve().parents[2]
LINT = ROOT / "src" / "kullback_lint"
ALL = sorted(FIXTURES.glob("*.py"))


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.stem)
def test_fixture(path):
    text = path.read_text()
    found = sorted((f.line, f.column, f.rule) for f in check(text, path.name))
    assert found == expected(text)


@pytest.mark.parametrize("path", [p for p in ALL if p.stem.endswith("_good")], ids=lambda p: p.stem)
def test_good_fixtures_expect_nothing(path):
    assert expected(path.read_text()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_every_rule_has_its_fixtures_and_page(rule):
    assert re.fullmatch(r"KL\d{3}", rule.code)
    assert rule.severity in SEVERITIES
    assert rule.code in {code for _, _, code in expected((FIXTURES / f"{rule.code}_bad.py").read_text())}
    assert (FIXTURES / f"{rule.code}_good.py").exists()
    text = page(rule.code)
    assert text.startswith(f"# {rule.code}: {rule.name}\n")
    assert f"Severity: {rule.severity}." in text
    assert ("Mended by `--fix`" in text) == rule.fixable
    for part in ("## What is wrong", "## The arithmetic", "## The fix"):
        assert part in text


def test_one_class_a_file_and_numbers_without_gaps():
    assert [rule.code for rule in RULES] == [f"KL{n:03}" for n in range(1, len(RULES) + 1)]
    files = [p for p in (LINT / "rules").glob("*.py") if p.stem not in ("__init__", "base")]
    assert len(files) == len(RULES)
    for path in files:
        classes = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
        assert len(classes) == 1, path.name
    assert all((type(rule).check is Rule.check) != (type(rule).look is Rule.look) for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_a_rule_names_the_events_it_asks_for(rule):
    """It is not called for files without them."""
    text = inspect.getsource(type(rule))
    asked = set(re.findall(r"module\.of\((\w+)\)", text))
    if "module.divergences()" in text:
        asked |= {"KlCall", "KlFormula"}
    if type(rule).look is not Rule.look:
        assert asked == set()
        asked = set(inspect.signature(type(rule).look).parameters["event"].annotation.split(" | "))
    assert {event.__name__ for event in rule.events} == asked


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.code, marks=pytest.mark.needs(*needed_by(page(rule.code)))) for rule in RULES])
def test_the_arithmetic_on_the_page_is_true(rule):
    """The examples run. Figures there are rounded to what float32 gives on any machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several pages show what warns
        parsed = doctest.DocTestParser().get_doctest(page(rule.code), {}, rule.code, None, 0)
        runner = doctest.DocTestRunner(verbose=False)
        result = runner.run(parsed)
    assert result.attempted >= 2
    assert result.failed == 0


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_the_page_says_what_the_linter_says(rule):
    """`wrong` on the page is found, where it carries its evidence; `right` never is."""
    wrong, right = re.search(r"# wrong\n(.*?)\n\n# right\n(.*?)\n```", page(rule.code), re.DOTALL).groups()
    assert rule.code not in {f.rule for f in check(right, "right")}
    ast.parse(wrong)


def test_recall_of_the_hand_written_set():
    """Questions and projects as other people write them: at least 8 of 10 defects are found, and the misses are listed."""
    found = missed = 0
    rules = Counter()
    for path in FIXTURES.glob("recall_*.py"):
        text = path.read_text()
        found += len(expected(text))
        missed += len(re.findall(r"# MISSED KL\d{3}", text))
        rules.update(rule for _, _, rule in expected(text))
    assert found + missed >= 40
    assert found / (found + missed) >= 0.8
    assert len(rules) >= 20


def test_the_docs_list_every_rule():
    text = (ROOT / "docs" / "lint.md").read_text()
    rows = re.findall(r"^\| \[(KL\d{3})\]\((\S+)\) \| (\S+) \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    assert [(code, severity, summary) for code, _, _, severity, summary in rows] == [
        (r.code, r.severity, r.summary + (" (`--fix`)" if r.fixable else "")) for r in RULES
    ]
    for code, link, name, _, _ in rows:
        assert name == next(r.name for r in RULES if r.code == code)
        assert (ROOT / "docs" / link).resolve() == LINT / "pages" / f"{code}.md"


def test_only_the_standard_library_is_imported():
    for path in set(LINT.rglob("*.py")) - {LINT / "__main__.py"}:  # runs the command
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                depth = len(path.relative_to(LINT).parts)
                assert node.level <= depth, f"{path.name} reaches outside kullback_lint"
                names = [] if node.level else [node.module]
            for name in names:
                # tomli is tomllib for Python 3.10.
                assert name.split(".")[0] in sys.stdlib_module_names | {"tomli"}, f"{path.name} imports {name}"

"""Every example in README.md and docs/ is run: prompts, and the rows of tables that say what a call gives. (The linter's pages: tests/lint.)"""

from __future__ import annotations

import doctest
import warnings

import pytest

from documents import PAGES, ROOT, examples, gives, rows


def run(test: doctest.DocTest) -> doctest.TestResults:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong, and shown to be, warns
        return doctest.DocTestRunner(verbose=False).run(test)


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page).examples], ids=lambda page: str(page.relative_to(ROOT)))
def test_examples(page, monkeypatch):
    monkeypatch.chdir(ROOT)  # they name files from there
    assert run(examples(page)).failed == 0


def test_pages_have_examples():
    attempted = {page.name: len(examples(page).examples) for page in PAGES}
    assert attempted["README.md"] > 10
    assert attempted["start.md"] > 10


def test_rows_are_examples(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("| a | gives | b | gives |\n|---|---|---|---|\n| `1 / 3` | 0.33 | `2` | 2.0 |\n\n| a | b |\n|---|---|\n| `1` | 2 |\n")
    assert list(rows(page.read_text())) == [(2, "1 / 3", "0.33", "2.0"), (2, "2", "2.0", "2.0")]
    assert run(examples(page)) == (0, 2)
    page.write_text(page.read_text().replace("0.33", "0.34"))
    assert run(examples(page)) == (1, 2)
    capsys.readouterr()
    for value, shown, right in (
        (float("nan"), "NaN", "1"), (-1.26e-9, "-1.3e-9", "1"), (3e12, "3e12", "1"), (True, "true", "1"), (-3e-7, "~2e-7", "5.49e-9"), (0.0, "~0", "5e-9"),
    ):  # fmt: skip
        gives(lambda value=value: value, shown, right)
        assert capsys.readouterr().out == f"{shown}\n"
    for value, shown, right in ((5.5e-9, "~2e-7", "5.49e-9"), (1e-3, "~2e-7", "5.49e-9"), (0.5, "0.51", "0.51"), (1.0, "ValueError", "1")):
        gives(lambda value=value: value, shown, right)
        assert capsys.readouterr().out != f"{shown}\n"

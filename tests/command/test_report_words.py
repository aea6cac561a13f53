"""What stands in Markdown is the name, and no link: read back by a parser of GitHub's Markdown that is not ours."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

import kullback as kb
from kullback._report.markdown import escaped as markdown

NAMES = [
    "@octocat", "a @octocat b", "(@org/team)", "me@example.com", "`@octocat`", "a`b", "``@x``", "a|@b|c", r"a\|b", r"\@x\`", "x_@y_",
    "*@a*", "www.example.com", "see https://example.com/x_y*z?a=1&b=2", "'http://a.b'", "<https://a.b>", "<img src=x onerror=alert(1)>",
    "#12", "org/repo#12", "gh-7", "run-0123abc.npy", "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "a_b_c", "**bold**", "[x](http://a.b)", "~~x~~", "$x$", "&amp;",
]  # fmt: skip
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def read(text):
    """The words of an inline token, and those of them that are not code."""
    token = next(t for t in READER.parse(text) if t.type == "inline")
    assert {child.type for child in token.children} <= {"text", "code_inline", "text_special", "strong_open", "strong_close"}
    return "".join(c.content for c in token.children), "".join(c.content if c.type != "code_inline" else " " for c in token.children)


def assert_inert(text):
    text = re.sub(r"(?<![^\s(])\d+(\.\d+)?(?![^\s),;:.%])", "", text)  # numbers by themselves, such as a seed
    assert not re.search(r"@|://|www\.|#\d|gh-\d|\b[0-9a-f]{7,40}\b", text, re.IGNORECASE)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_name_and_nothing_else(name):
    for text in (markdown(name), f"**{markdown(name)}**", f"- {markdown(name)}"):
        words, live = read(text)
        assert words == name
        assert_inert(live)
    rows = [t for t in READER.parse(f"| a | b |\n|---|---|\n| {markdown(name)} | 1 |\n") if t.type == "inline"]
    assert len(rows) == 4  # two headings, two cells
    assert "".join(c.content for c in rows[2].children) == name


@pytest.mark.parametrize(
    "number", ["12345678", "0.1234567", "-0.1234567", "1234567.", "12345678.25", "1.2345678e-05", "1234567e+10", "99.1234567%", "1,234,567"]
)
def test_numbers_are_no_commits(number):
    for text in (number, f"row {number} ({number}), {number}: of", f"a;{number}"):
        assert markdown(text) == text
    assert markdown(f"run-{number.replace(',', '')}").startswith("`")


@pytest.mark.parametrize("letter", ["a", "#", "_", "1", "a-", "a.", "é", "gh-", "<", " "])
def test_long_names_take_no_longer_by_the_letter(letter):
    """It took 14 s, and four times as long for twice as many."""
    text = letter * (32_000 // len(letter))
    begin = time.process_time()
    markdown(text)
    assert time.process_time() - begin < 1  # 0.03 s


def test_of_comparisons(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    x = rng.normal(size=(20, 5)).astype(np.float32)
    for name in ("@octocat.npy", "b@example.com.npy"):
        np.save(name, x)
    np.save("b@example.com.npy", x[:10])
    models = kb.compare("@octocat.npy", "b@example.com.npy", form="logits", allow_partial=True).to_markdown()
    header = "@octocat,www.example.com,only @me"
    Path("@a.csv").write_text(f"{header}\n" + "1,2,3\n2,3,4\n" * 20)
    Path("@b.csv").write_text(header.replace("only @me", "only @you") + "\n" + "5,2,3\n6,3,4\n" * 20)
    tables = kb.compare("@a.csv", "@b.csv", common=True).to_markdown()
    for text, names in ((models, ["@octocat.npy", "b@example.com.npy"]), (tables, ["@octocat", "www.example.com", "@a.csv", "@me"])):
        every = [t for t in READER.parse(text) if t.type == "inline"]
        assert all(any(name in c.content for t in every for c in t.children if c.type == "code_inline") for name in names)
        for token in every:
            assert_inert("".join(c.content for c in token.children if c.type not in ("code_inline", "html_inline")))

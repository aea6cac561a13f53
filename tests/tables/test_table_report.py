"""The record as text, Markdown, JSON, HTML and a picture; the page in a real Chromium."""

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pytest

from kullback._compare.tables import compare_tables

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked=2'>|`*_[x](javascript:1)\x1b[31m"


@pytest.fixture(scope="module")
def example():
    return compare_tables(DATA / "last_month.csv", DATA / "this_month.csv", pairs=["device:country"])


@pytest.fixture(scope="module")
def hostile():
    p = pa.table({HOSTILE: [HOSTILE] * 60 + ["$x$"] * 40, "n": range(100), "only P": range(100)})
    q = pa.table({HOSTILE: [HOSTILE] * 10 + ["$x$"] * 90, "n": range(50, 150)})
    return compare_tables(p, q, prior=0, common=True)


def test_text(example):
    text = str(example)
    assert text.startswith(
        f"P  {DATA}/last_month.csv, 2,000 rows\nQ  {DATA}/this_month.csv, 1,800 rows\n\n3 of 7 columns and 1 of 1 pair differ"
    )
    lines = text.split("\n")
    assert max(map(len, lines)) <= 100
    first = next(i for i, line in enumerate(lines) if line.startswith("---")) + 1
    lines = lines[first : first + 7]
    assert [line.split()[0] for line in lines] == [column.name for column in example.columns]
    assert [line.endswith("*") for line in lines] == [column.p_adjusted < 0.01 for column in example.columns]
    assert "... and 5 more columns" in example.to_text(top=2)
    assert repr(example) == f"<TableComparison of 7 columns: most in 'age', KL(P‖Q) = {example['age'].figures.kl_pq:.6g} nats>"
    same = compare_tables(DATA / "last_month.csv", DATA / "last_month.csv")
    assert "Nothing beyond chance: of 7 columns, none differs" in str(same)


def test_figures_can_be_reproduced_from_the_json(example):
    """With the conventions in it and nothing else."""
    found = json.loads(example.to_json())
    assert found["schema"] == "kullback.compare.tables/1"
    assert any("0.5 is added to the count of each bin" in line for line in found["conventions"])
    for column in found["columns"] + found["pairs"]:
        c, d = ([b[key] for b in column["bins"]] for key in ("p_count", "q_count"))
        p, q = ([(x + 0.5) / (sum(side) + 0.5 * len(side)) for x in side] for side in (c, d))
        assert column["kl_pq"] == pytest.approx(math.fsum(a * math.log(a / b) for a, b in zip(p, q)), rel=1e-9)  # the terms cancel
        assert column["psi"] == pytest.approx(math.fsum((a - b) * math.log(a / b) for a, b in zip(p, q)), rel=1e-12)
        assert [b["p"] for b in column["bins"]] == pytest.approx(p, rel=1e-14)
    assert [c["kl_pq"] for c in found["columns"]] == sorted((c["kl_pq"] for c in found["columns"]), reverse=True)


def test_not_finite_in_json(hostile):
    found = json.loads(hostile.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    by_name = {column["name"]: column for column in found["columns"]}
    assert by_name["n"]["kl_pq"] == "inf"
    assert found["left_out"] == [{"name": "only P", "reason": "only P has it"}]


def test_what_a_p_value_comes_from():
    """A pair's may be that of its columns by χ²: no 9,999 tables say 1e-94. Of a column, the least they can say is 1/10,000."""
    p = pa.table({"b": [True] * 900 + [False] * 2, "x": [i + 0.5 for i in range(902)], "few": [True] * 902})
    q = pa.table({"b": [True] * 200 + [False] * 100, "x": [i + 0.5 for i in range(300)], "few": [True] * 290 + [False] * 10})
    record = compare_tables(p, q, pairs=["b:x"])
    page = record.to_html()
    told = {}
    for name in ("b", "x", "few", "b:x"):
        detail = page[page.index(f">{name}</h2>") :]
        told[name] = re.search(r"p, no drift at all</dt>.*?; by (.*?)</span>", detail, re.DOTALL)[1]
    assert (record["b:x"].test.drawn, record["few"].test.drawn) == (9_999, 9_999)
    assert record["b:x"].p_value < 1e-50
    assert told == {
        "b": "χ² with 1 degree of freedom",
        "x": "χ² with 9 degrees of freedom",
        "few": "9,999 drawn tables, none of them as far apart",
        "b:x": "its columns&#39; p-values and 9,999 drawn tables",
    }


def test_over(example, hostile):
    assert example.over(1.0) is None
    assert (
        example.over(0.04)
        == f"KL(P‖Q) is over 0.04 nats in 1 of 8 columns; the largest, {example['age'].figures.kl_pq:.6g}, is that of 'age'"
    )
    assert "inf" in hostile.over(1e9)


def test_bits(example):
    bits = compare_tables(DATA / "last_month.csv", DATA / "this_month.csv", base=2, columns=["age"])["age"]
    nats = example["age"]
    assert bits.figures.kl_pq * math.log(2) == pytest.approx(nats.figures.kl_pq, rel=1e-15)
    assert bits.test.floor.js * math.log(2) == pytest.approx(nats.test.floor.js, rel=1e-15)
    assert (bits.figures.psi, bits.p_value) == (nats.figures.psi, nats.p_value)


def test_names_stay_names(hostile):
    markdown = hostile.to_markdown()
    assert "<script" not in markdown
    assert "\n| **&lt;script" in markdown
    row = next(line for line in markdown.split("\n") if "script" in line and line.startswith("| "))
    assert len(re.findall(r"(?<!\\)\|", row)) == 9  # eight cells: no bar of the name made a ninth
    for text in (markdown, hostile.to_text(), hostile._repr_html_(), hostile.to_html()):
        assert "\x1b" not in text
    for html in (hostile._repr_html_(), hostile.to_html()):
        assert "<script>window" not in html
        assert "<img" not in html


def test_picture(example, hostile):
    import matplotlib as mpl

    mpl.use("Agg")
    assert len(example.plot().axes) == 4
    figure = hostile.plot()
    figure.canvas.draw()  # a dollar sign in a name is not mathematics


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A page, with what it wrote to the console and asked the network for; both must be empty at the end."""
    contexts, said, asked = [], [], []

    def call(record, **options):
        (tmp_path / "report.html").write_text(record.to_html(), encoding="utf-8")
        contexts.append(browser.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "report.html").as_uri())
        return page

    yield call
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def first_column(page):
    return page.locator("section").first.locator("tbody tr:visible td:first-child").all_inner_texts()


def test_page_sorts_and_filters(opened, example):
    page = opened(example)
    assert "3 of 7 columns and 1 of 1 pair differ beyond chance" in page.inner_text(".lead")
    every = sorted((*example.columns, *example.pairs), key=lambda column: -column.figures.kl_pq)
    assert first_column(page) == [column.name for column in every]
    section = page.locator("section").first
    section.locator("th button", has_text="p, adjusted").click()
    assert first_column(page) == [column.name for column in sorted(every, key=lambda column: -column.p_adjusted)]
    section.locator("th button", has_text="p, adjusted").click()
    assert first_column(page)[0] == min(every, key=lambda column: column.p_adjusted).name
    section.locator("th button", has_text="column").click()
    assert first_column(page) == sorted(column.name for column in every)
    section.locator("input").fill("number")
    assert first_column(page) == ["age", "amount", "items"]
    section.locator("input").fill("no such column")
    assert first_column(page) == []
    # One picture of both histograms and one of the contributions for each column, and its bins in a table.
    for i, column in enumerate(every):
        detail = page.locator(f"#c{i}")
        assert detail.locator("h2").inner_text() == column.name
        assert detail.locator("svg").nth(0).locator("rect").count() == 2 * len(column.labels)
        assert detail.locator("svg").nth(1).locator("rect").count() == len(column.labels)
    detail = page.locator("#c0")
    detail.locator("summary").click()
    detail.locator("th button", has_text="adds to PSI").click()
    assert detail.locator("tbody td").first.inner_text() == every[0].labels[int(every[0].terms.psi.argmax())]


def test_page_on_a_phone_in_the_dark(opened, example):
    page = opened(example, viewport={"width": 360, "height": 740}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    red, green, blue = map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3])
    assert max(red, green, blue) < 60


@pytest.mark.parametrize("width", [1000, 1280])
def test_page_in_a_window(opened, example, width):
    page = opened(example, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Every column is in sight: nothing is left to scroll to.
    assert page.evaluate("[...document.querySelectorAll('section:first-of-type .scroll')].map(s => s.scrollWidth - s.clientWidth)") == [0]
    # No word is broken: every row is one line of text, as high as the others but for a line between them.
    heights = page.evaluate(
        "[...document.querySelectorAll('section:first-of-type tbody tr')].map(row => Math.round(row.getBoundingClientRect().height))"
    )
    assert max(heights) - min(heights) <= 1


def test_page_with_hostile_names(opened, hostile):
    page = opened(hostile)
    assert page.evaluate("window.hacked") is None
    assert "<script>window.hacked = 1</script>" in page.locator("section").first.inner_text()
    assert "only P has it" in page.inner_text("main")
    assert page.locator("img").count() == 0


def test_bars_beside_long_names(opened):
    """On a phone, too: names are cut, bars are not."""
    long = {f"customer_lifetime_value_in_the_last_{i}_days_of_the_quarter": range(i, i + 100) for i in (30, 60)}
    record = compare_tables(pa.table(long), pa.table({name: range(90) for name in long}))
    for width in (390, 1000):
        page = opened(record, viewport={"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide, names, tracks, bars = (
            page.evaluate(f"[...document.querySelectorAll('{of}')].map(e => e.getBoundingClientRect().width)")
            for of in (".bars", ".bars .name", ".bars .track", ".bars .bar")
        )
        assert min(tracks) > 0.3 * wide[0]
        assert min(names) > 0.25 * wide[0]
        assert max(bars) == pytest.approx(max(tracks), abs=1)


def test_page_sorts_what_is_not_finite(opened):
    """inf is more than all numbers, and what has no value is last both ways."""
    p = pa.table({"inf": [1] * 50 + [2] * 50, "much": range(100), "little": range(100), "constant": [1] * 100})
    q = pa.table({"inf": [1] * 100, "much": [min(99, 13 * i // 10) for i in range(100)], "little": range(1, 101), "constant": [1] * 100})
    record = compare_tables(p, q, prior=0)
    page = opened(record)
    section = page.locator("section").first

    def ordered(title):
        section.locator("th button", has_text=title).click()
        return first_column(page)

    assert ordered("KL(P‖Q)") == ["inf", "much", "little", "constant"]
    assert ordered("KL(P‖Q)") == ["constant", "little", "much", "inf"]
    section.locator("th button", has_text="column").click()
    without = {column.name for column in record.columns if not 0 < column.test.floor.kl_pq < math.inf}  # nothing to be divided by
    assert "constant" in without
    assert without != {column.name for column in record.columns}
    for _ in range(2):
        assert set(ordered("× floor")[-len(without) :]) == without

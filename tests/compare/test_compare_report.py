"""The report of two models, in a real Chromium: sorting, filtering, both colour schemes, a phone, hostile names, and no network."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import kullback as kb
from browser import Watched, chromium

HOSTILE = "<img src=x onerror=alert(1)>\"'{{ 7*7 }}</title><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    rng = np.random.default_rng(1)
    p = 3 * rng.normal(size=(400, 120))
    q = p + (0.1 + rng.random((400, 1)) ** 3) * rng.normal(size=p.shape)
    record = kb.compare(p, q, form="logits", tokens=rng.integers(0, 120, 400))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(record.to_html(), encoding="utf-8")
    return path, record


def number(text):
    return float(text.replace(",", "").replace("%", ""))


def test_sorting(browser, report):
    watched = Watched(browser, report[0])
    worst = report[1].worst
    assert [number(x) for x in watched.column(0)] == [w.row for w in worst]
    heading = watched.page.locator("table.sortable th button", has_text="KL(Q‖P)")
    heading.click()
    assert [number(x) for x in watched.column(0)] == [w.row for w in sorted(worst, key=lambda w: -w.kl_qp)]
    assert watched.page.locator("th[aria-sort=descending]").count() == 1
    heading.click()
    assert [number(x) for x in watched.column(0)] == [w.row for w in sorted(worst, key=lambda w: w.kl_qp)]
    # By the keyboard, and by numbers below 0.
    watched.page.locator("table.sortable th button", has_text="Δp").focus()
    watched.page.keyboard.press("Enter")
    assert [number(x) for x in watched.column(0)] == [w.row for w in sorted(worst, key=lambda w: w.p - w.q)]
    watched.assert_quiet()


def test_what_is_infinite_or_no_number(browser, report, tmp_path):
    """inf is above all numbers; what is no number is below them, whichever way they go. Equals stay as they were."""
    values = [0.5, np.nan, np.inf, 0.25, np.nan, -np.inf, np.inf, 3.0]
    worst = tuple(w._replace(js=x) for w, x in zip(report[1].worst, values))
    path = tmp_path / "report.html"
    path.write_text(dataclasses.replace(report[1], worst=worst).to_html(), encoding="utf-8")
    watched = Watched(browser, path)
    heading = watched.page.locator("table.sortable th button", has_text="JS")
    for order in ([2, 6, 7, 0, 3, 5, 1, 4], [5, 3, 0, 7, 2, 6, 1, 4]):
        heading.click()
        assert [number(x) for x in watched.column(0)] == [worst[i].row for i in order]
    watched.assert_quiet()


def test_long_names_on_a_phone(browser, tmp_path):
    for name in ("Llama-3.1-405B-Instruct-" * 8, "quantised_iq4_xs_wikitext_2_raw_" * 7):
        np.save(tmp_path / f"{name}.npy", np.array([[0.5, 0.5], [0.25, 0.75]]))
    p, q = sorted(tmp_path.glob("*.npy"))
    path = tmp_path / "report.html"
    path.write_text(kb.compare(p, q).to_html(), encoding="utf-8")
    watched = Watched(browser, path, viewport={"width": 390, "height": 844})
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert p.name in watched.page.inner_text("h1")
    # The square of a side's colour, which a long name squeezed.
    squares = watched.page.eval_on_selector_all(
        ".key", "all => all.map(k => { const s = getComputedStyle(k, '::before'); return [s.width, s.height] })"
    )
    assert len(squares) == 2
    assert all(width == height for width, height in squares)
    boxes = watched.page.eval_on_selector_all("h1, .lead, .key, .card", "all => all.map(e => e.getBoundingClientRect().right)")
    assert max(boxes) <= 390
    watched.assert_quiet()


def test_long_names_of_columns_on_a_phone(browser, tmp_path):
    names = ["customer_lifetime_value_in_the_last_twelve_months_adjusted", "Another Long Column Name With Spaces In It And More"]
    for name, shift in (("p", 0), ("q", 1)):
        rows = "\n".join(f"{i % 7 + shift},{i % 5}" for i in range(200))
        (tmp_path / f"{name}.csv").write_text(f"{','.join(names)}\n{rows}\n")
    path = tmp_path / "report.html"
    path.write_text(kb.compare(tmp_path / "p.csv", tmp_path / "q.csv").to_html(), encoding="utf-8")
    watched = Watched(browser, path, viewport={"width": 390, "height": 844})
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390
    # There is room for the bars, and a figure beside the names before one scrolls.
    assert min(watched.page.eval_on_selector_all(".track", "all => all.map(e => e.getBoundingClientRect().width)")) > 80
    assert watched.page.locator("table.sortable").first.locator("td:nth-child(3)").first.bounding_box()["x"] < 320
    watched.assert_quiet()


def test_filtering(browser, report):
    watched = Watched(browser, report[0])
    wanted = str(report[1].worst[3].row)
    watched.page.fill("input[type=search]", wanted)
    shown = watched.column(0)
    assert wanted in shown
    assert 1 <= len(shown) < 20
    assert watched.page.inner_text(".shown") == f"{len(shown)} of 20"
    watched.page.fill("input[type=search]", "no such thing")
    assert watched.column(0) == []
    watched.page.fill("input[type=search]", "")
    assert len(watched.column(0)) == 20
    watched.assert_quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (1000, 800), (360, 740)])
def test_it_fits_and_can_be_read(browser, report, scheme, width, height):
    watched = Watched(browser, report[0], viewport={"width": width, "height": height}, color_scheme=scheme)
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # tables scroll, the page does not
    assert page.evaluate("Math.min(...[...document.querySelectorAll('.tick')].map(t => parseFloat(getComputedStyle(t).fontSize)))") >= 11
    # WCAG's contrast of text and card: at least 4.5 for body and for grey text.
    contrast = page.evaluate(
        """() => {
        const linear = x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
        const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => linear(x / 255));
            return .2126 * v[0] + .7152 * v[1] + .0722 * v[2] };
        const style = s => getComputedStyle(document.querySelector(s));
        const back = light(style('.card').backgroundColor);
        return ['.value', '.card dt'].map(s => light(style(s).color)).map(x => (Math.max(x, back) + .05) / (Math.min(x, back) + .05));
        }"""
    )
    assert min(contrast) >= 4.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(17, 19, 21)") == (scheme == "dark")
    watched.assert_quiet()


def test_pictures_show_the_figures(browser, report):
    watched = Watched(browser, report[0])
    titles = watched.page.eval_on_selector_all("rect title", "all => all.map(t => t.textContent)")
    assert sum(int(title.split(": ")[1].split()[0].replace(",", "")) for title in titles) == 400
    points = watched.page.get_attribute("polyline.stroke:not(.faint):not(.q)", "points").split()
    heights = [100 - float(point.split(",")[1]) for point in points]
    assert heights == sorted(heights)
    assert heights[-1] == pytest.approx(100, abs=1e-6)
    dots = watched.page.eval_on_selector_all("line.dot", "all => all.map(d => [d.getAttribute('x1'), d.getAttribute('y1')].map(Number))")
    assert dots == [[pytest.approx(100 * b.p, abs=2e-3), pytest.approx(100 - 100 * b.q, abs=2e-3)] for b in report[1].calibration]
    boxes = watched.page.eval_on_selector_all(".plot svg", "all => all.map(s => s.getBoundingClientRect().height)")
    assert len(boxes) == 3
    assert min(boxes) > 100


def test_names_are_text(browser, tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    name = folder / HOSTILE.replace("/", "∕")
    np.save(f"{name}.npy", np.array([[0.5, 0.5]]))
    path = tmp_path / "hostile.html"
    record = kb.compare(f"{name}.npy", np.array([[0.25, 0.75]]))
    path.write_text(record.to_html(), encoding="utf-8")
    watched = Watched(browser, path)
    assert "onerror=alert(1)" in watched.page.inner_text("h1")
    assert "{{ 7*7 }}" in watched.page.inner_text("h1")
    assert watched.page.locator("img").count() == 0
    watched.assert_quiet()
    for text in (record.to_markdown(), record._repr_html_()):
        assert "<img" not in text
        assert "<script" not in text


def test_one_row_equal_rows_and_infinite_ones(browser, tmp_path):
    same, other = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    for i, (p, q) in enumerate(((same, same), (same, other), (np.vstack([same, same]), np.vstack([same, [[0.4, 0.6]]])))):
        path = tmp_path / f"{i}.html"
        path.write_text(kb.compare(p, q).to_html(), encoding="utf-8")
        watched = Watched(browser, path)
        assert "KL(P‖Q) is" in watched.page.inner_text(".lead")
        watched.assert_quiet()

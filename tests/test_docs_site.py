"""The site is built strictly, as `make docs` does, and is what it says it is: whole, offline, readable, and in agreement with the code."""

from __future__ import annotations

import fcntl
import html.parser
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urldefrag, urlparse

import mpmath
import pytest
from sphinx.util.inventory import InventoryFile

import kullback
from browser import Watched, chromium
from documents import ROOT
from test_architecture import LAYERS

PUBLIC = [
    "kullback",
    *(f"kullback.{name}" for name in ("distributions", "estimators", "losses", "torch", "jax", "keras", "tensorflow", "tinygrad")),
]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site, and what building it printed. Workers of one run share it: the first builds, the others wait."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    log = folder.with_suffix(".log")
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", str(ROOT / "docs"), str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
            log.write_text(f"{done.returncode}\n{done.stdout}{done.stderr}")
    code, _, said = log.read_text().partition("\n")
    return SimpleNamespace(folder=folder, code=int(code), said=said)


class Page(html.parser.HTMLParser):
    """What a page has (ids), leads to (links), needs to be shown (needs), and says (text)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.needs: list[str] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = "".join(self.words)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif "src" in found or (tag == "link" and found["rel"] in ("stylesheet", "icon")):
            self.needs.append(found.get("src") or found["href"])

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="session")
def pages(site):
    return {path: Page(path) for path in sorted(site.folder.rglob("*.html"))}


def test_it_builds_without_a_warning(site):
    assert (site.code, re.findall(r".*: (?:WARNING|ERROR): .*", site.said)) == (0, []), site.said


def broken(pages, folder):
    """(page, link) of every link, script, style and picture that leads nowhere, or out of the folder."""
    for path, page in pages.items():
        for link in page.links + page.needs:
            if urlparse(link).scheme in ("http", "https") and link not in page.needs:
                continue  # other sites are not followed
            name, anchor = urldefrag(link)
            target = (path.parent / unquote(urlparse(name).path)).resolve() if name else path
            ok = not urlparse(link).scheme and target.is_file() and target.is_relative_to(folder)
            if not ok or (anchor and target in pages and unquote(anchor) not in pages[target].ids and target.name != "genindex.html"):
                yield str(path.relative_to(folder)), link


def test_no_link_is_broken_and_nothing_comes_from_a_network(site, pages):
    assert len(pages) > 50
    assert list(broken(pages, site.folder)) == []


def test_broken_links_are_seen(tmp_path):
    (tmp_path / "a.html").write_text('<p id="x"><a href="#x">1</a><a href="#y">2</a><a href="b.html">3</a><a href="https://x.org/">4</a>')
    (tmp_path / "c.html").write_text(
        '<script src="https://x.org/x.js"></script><a href="a.html#z">5</a><a href="a.html#x">6</a><a href="/etc/passwd">7</a>'
    )
    found = {path: Page(path) for path in tmp_path.glob("*.html")}
    assert sorted(link for _, link in broken(found, tmp_path)) == ["#y", "/etc/passwd", "a.html#z", "b.html", "https://x.org/x.js"]


def test_ids_are_unique(pages):
    twice = {path.name: {name for name in page.ids if page.ids.count(name) > 1} for path, page in pages.items()}
    assert {name: found for name, found in twice.items() if found} == {}


def test_every_public_name_is_in_the_reference(site):
    with open(site.folder / "objects.inv", "rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, uri: uri)
    known = {name for kind, found in inventory.items() if kind.startswith("py:") for name in found}
    for module in PUBLIC:
        public = importlib.import_module(module)
        missing = [name for name in public.__all__ if f"{module}.{name}" not in known]
        assert missing == [], module


def squeezed(text):
    return re.sub(r"\s+", "", text)


def test_readme_and_site_agree(site, pages):
    """Every block of code in the README stands in the site; there is no second source it could differ from."""
    text = squeezed("".join(pages[site.folder / name].text for name in ("index.html", "tour.html")))
    blocks = re.findall(r"^```\w+\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 15
    assert [block for block in blocks if squeezed(block) not in text] == []
    for page in (ROOT / "docs").rglob("*.md"):
        assert not [b for b in blocks if len(b) > 80 and squeezed(b) in squeezed(page.read_text())] or page.name == "lint.md", page


def test_support_table_is_that_of_the_requirements():
    text = (ROOT / "docs/numerics.md").read_text().partition("## Support")[2]
    tested = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements-test.txt").read_text(), re.MULTILINE))
    lower = dict(re.findall(r'"([a-z]+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text()))
    names = {"PyTorch": "torch", "TensorFlow": "tensorflow-cpu"}
    rows = re.findall(r"^\| ([\w-]+) \| (\S+) \| (\S*) ?\|", text, re.MULTILINE)
    assert len(rows) == 7
    for name, version, bound in rows:
        key = names.get(name, name.lower())
        assert version == tested[key], name
        assert bound == lower.get(key.removesuffix("-cpu"), ""), name
    others = re.findall(r"([\w-]+) ([\d.]+\w+)(?=[,.]\s)", text.partition("replaced too: ")[2])
    assert len(others) == 7
    assert [(name, version) for name, version in others if tested[name.lower()] != version] == []


def test_the_import_graph_is_that_of_the_code(pages, site):
    text = (site.folder / "design.html").read_text()
    arcs = re.findall(r'd="M \d+ (\d+) A \S+ \S+ 0 0 0 \d+ (\d+)"><title>(\w+) imports (\w+)</title>', text)
    assert all(int(start) > int(end) for start, end, _, _ in arcs)  # upwards
    assert {(a, b) for _, _, a, b in arcs} >= {
        ("_divergences", "_calculus"),
        ("kullback_command", "kullback_lint"),
        ("estimators", "_divergences"),
        ("torch", "_literal"),
    }
    # By another way than the drawing's: the text of the import statements that run when a module is loaded.
    above, drawn = Path(kullback.__file__).parents[1], {(a, b) for _, _, a, b in arcs}
    for path in above.glob("kullback*/**/*.py"):
        package, *folders, _ = path.relative_to(above).parts
        own = package if package != "kullback" else folders[0] if folders else path.stem
        start = r"\." * (len(folders) + 1) if package == "kullback" else r"kullback\."
        found = set(re.findall(rf"^from (?:{start}|(?=kullback_))(\w+)", path.read_text(), re.MULTILINE))
        found &= set(LAYERS) - {own}
        assert own == "__init__" or {(own, name) for name in found} <= drawn, path


def test_spelling():
    wanted = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples/README.md", "src"]
    done = subprocess.run([sys.executable, "-m", "codespell_lib", *wanted], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# In a real browser.


@pytest.fixture(scope="module")
def browser(site):
    with chromium() as found:
        yield found


class Opened(Watched):
    """A page of the site: it may load what lies beside it, and nothing else."""

    def assert_quiet(self):
        assert self.said == []
        assert [url for url in self.asked if not url.startswith(("file://", "data:"))] == []


def numbers(page):
    """What the figure shows: p and q, the terms of both directions, their sums, each in full and as printed."""
    table = page.eval_on_selector_all(
        ".kl-terms tbody tr", "rows => rows.map(r => [...r.querySelectorAll('td')].map(c => [Number(c.dataset.value), c.textContent]))"
    )
    totals = page.eval_on_selector_all(".kl-result output", "all => all.map(o => [Number(o.dataset.value), o.textContent])")
    return table, totals


def assert_right(page, unit="nats"):
    """Every number is what mpmath makes of the probabilities shown."""
    table, totals = numbers(page)
    *rows, sums = table
    p, q = ([mpmath.mpf(row[k][0]) for row in rows] for k in (0, 1))
    scale = mpmath.log(2) if unit == "bits" else mpmath.mpf(1)

    def term(x, y):
        return mpmath.mpf(0) if x == 0 else mpmath.inf if y == 0 else x * mpmath.log(x / y) / scale

    def shown(text):
        return mpmath.inf if text.startswith("∞") else mpmath.mpf(text.split()[0].replace("−", "-"))

    expected = [[term(x, y) for x, y in zip(p, q)], [term(y, x) for x, y in zip(p, q)]]
    # p and q are float64 and sum to 1 within a few of their last digits; the divergence takes that as it is.
    for k, (terms, total, side) in enumerate(zip(expected, totals, (sums[2], sums[3]))):
        for row, truth in zip(rows, terms):
            value, text = row[2 + k]
            assert value == pytest.approx(float(truth), rel=1e-13, abs=1e-15)
            assert abs(shown(text) - truth) <= mpmath.mpf("0.500001e-4") or truth == shown(text) == mpmath.inf
        truth = mpmath.fsum(terms)
        for value, text in (total, side):
            assert value == pytest.approx(float(truth), rel=1e-12, abs=1e-15)
            assert abs(shown(text) - truth) <= mpmath.mpf("0.500001e-4") or truth == shown(text) == mpmath.inf
    assert float(mpmath.fsum(p)) == pytest.approx(1, abs=1e-14)
    assert float(mpmath.fsum(q)) == pytest.approx(1, abs=1e-14)
    assert all(text.endswith(unit) for _, text in totals)


def assert_all_moved(before, after):
    (rows, totals), (new_rows, new_totals) = before, after
    assert all(a[0] != b[0] for a, b in zip(totals, new_totals))
    assert all(row[k][0] != new[k][0] for row, new in zip(rows[:-1], new_rows[:-1]) for k in (2, 3))


def test_the_figure_follows_the_keyboard(browser, site):
    opened = Opened(browser, site.folder / "start.html")
    page = opened.page
    assert_right(page)
    for side in ("P", "Q"):
        slider = page.get_by_role("slider", name=f"{side} of b", exact=True)
        slider.focus()
        for key, step in (("ArrowUp", 0.01), ("ArrowDown", -0.01), ("PageUp", 0.1)):
            before, value = numbers(page), float(slider.get_attribute("aria-valuenow"))
            page.keyboard.press(key)
            assert float(slider.get_attribute("aria-valuenow")) == pytest.approx(value + step, abs=1e-3)
            assert_all_moved(before, numbers(page))
            assert_right(page)
    # To the ends: certainty, and what Q rules out.
    page.keyboard.press("Home")
    assert_right(page)
    assert numbers(page)[1][0][1].startswith("∞")
    page.keyboard.press("End")
    assert_right(page)
    page.keyboard.press("ArrowDown")  # from certainty back: the rest is shared out evenly
    assert_right(page)
    opened.assert_quiet()


def test_the_figure_follows_the_pointer(browser, site):
    opened = Opened(browser, site.folder / "start.html")
    page = opened.page
    page.locator(".kl-bars").scroll_into_view_if_needed()
    for name, levels in (("P of c", (0.25, 0.5)), ("Q of a", (0.75,))):
        box = page.get_by_role("slider", name=name, exact=True).locator(".kl-column").bounding_box()
        # The column reaches 8 of 262 units beyond 0 and 1 on either side.
        height = lambda level, box=box: box["y"] + box["height"] * (8 + (1 - level) * 246) / 262  # noqa: E731
        x = box["x"] + box["width"] / 2
        page.mouse.move(x, height(0.1))
        page.mouse.down()
        for level in levels:
            before = numbers(page)
            page.mouse.move(x, height(level), steps=4)
            assert_all_moved(before, numbers(page))
            assert_right(page)
            slider = page.get_by_role("slider", name=name, exact=True)
            assert float(slider.get_attribute("aria-valuenow")) == pytest.approx(level, abs=0.0101)  # a pixel is about a hundredth
        page.mouse.up()
        settled = numbers(page)
        page.mouse.move(x, height(0.1))
        assert numbers(page) == settled  # let go
    opened.assert_quiet()


def test_the_figures_examples_and_units(browser, site):
    opened = Opened(browser, site.folder / "start.html")
    page = opened.page
    for i in range(page.locator(".kl-controls button").count()):
        page.locator(".kl-controls button").nth(i).click()
        for unit in ("bits", "nats"):
            page.get_by_role("radio", name=unit).check()
            assert_right(page, unit)
    page.get_by_role("button", name="Equal").click()
    assert [value for value, _ in numbers(page)[1]] == [0, 0]
    page.wait_for_function("document.querySelector('.kl-spoken').textContent.includes('0.0000 nats')")  # and it is said
    opened.assert_quiet()


CONTRAST = """selectors => {
    const linear = x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
    const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(x => linear(x / 255));
    const light = c => { const [r, g, b] = rgb(c); return .2126 * r + .7152 * g + .0722 * b };
    const back = light(getComputedStyle(document.body).backgroundColor);
    const colour = e => getComputedStyle(e)[e instanceof SVGElement ? 'fill' : 'color'];
    const found = selectors.map(s => [...document.querySelectorAll(s)].slice(0, 3)).flat().map(e => light(colour(e)));
    return found.map(x => (Math.max(x, back) + .05) / (Math.min(x, back) + .05));
}"""


# Of pictures' text, in pixels of the screen; some of it is turned.
SIZES = """[...document.querySelectorAll('figure.drawing text')].map(text => {
    const matrix = text.getScreenCTM();
    return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (360, 740)])
def test_pages_fit_and_can_be_read(browser, site, scheme, width, height):
    """Tables and code scroll, pages do not; text has the contrast that WCAG asks for, 4.5, and pictures' text is not tiny."""
    opened = Opened(browser, site.folder / "index.html", viewport={"width": width, "height": height}, color_scheme=scheme)
    page = opened.page
    for name in ("start", "which-call", "coming-from", "pitfalls", "numerics", "benchmarks", "design", "reference/api", "rules/KL006"):
        page.goto(f"file://{site.folder / name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        contrast = page.evaluate(
            CONTRAST, ["article p", "article td", "figure.drawing text", ".kl-tick", ".kl-legend", "article a.reference"]
        )
        assert min(contrast) >= 4.5, (name, contrast)
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(x => x < 40)")
        assert dark == (scheme == "dark")
        sizes = page.evaluate(SIZES)
        assert min(sizes, default=9) >= 8, name
    opened.assert_quiet()


def test_the_theme_can_be_chosen(browser, site):
    """Whatever the system prefers, and drawings follow."""
    opened = Opened(browser, site.folder / "start.html", color_scheme="light")
    seen = {}
    for _ in range(3):  # the system's, light, dark, in some order
        opened.page.locator(".theme-toggle:visible").first.click()
        theme = opened.page.get_attribute("body", "data-theme")
        seen[theme] = opened.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.kl-bar.kl-p')).fill]"
        )
    assert set(seen) == {"auto", "light", "dark"}
    assert seen["auto"] == seen["light"]
    assert all(a != b for a, b in zip(seen["light"], seen["dark"]))
    assert all(line.startswith("Changed to ") for line in opened.said)  # the theme says what it does


def test_search_works_offline(browser, site):
    opened = Opened(browser, site.folder / "search.html")
    page = opened.page
    page.goto(f"file://{site.folder}/search.html?q=batchmean")
    page.wait_for_selector("#search-results li a")
    found = page.eval_on_selector_all("#search-results li a", "all => all.map(a => a.href)")
    assert any("pitfalls.html" in link for link in found)
    assert all(Path(unquote(urlparse(link).path)).is_file() for link in found)
    opened.assert_quiet()


def test_drawings_have_words(pages):
    """Each picture made when the site is built says what is to be seen."""
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert len(re.findall(r'<div role="img" aria-label="[^"]{40,}"', text)) == text.count('<figure class="drawing"'), path.name

"""A real Chromium for the tests of reports. Where there is none, tests fail and say how to get it: a report nobody opened is not tested."""

import shutil
from contextlib import contextmanager

import pytest
from playwright.sync_api import sync_playwright

MISSING = "the tests of reports need Chromium: apt-get install chromium (make test does so as root), or put chromium on the PATH"


@contextmanager
def chromium():
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.fail(MISSING)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # tests may run as root
        yield browser
        browser.close()


class Watched:
    """A page, and whatever it said or asked for: both lists must stay empty but for the page itself."""

    def __init__(self, browser, path, **options):
        self.page = browser.new_page(**options)
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"file://{path}")

    def assert_quiet(self):
        assert self.said == []
        assert [url for url in self.asked if not url.startswith("data:")] == self.asked[:1]
        assert self.asked[0].startswith("file://")

    def column(self, index):
        return self.page.eval_on_selector_all(
            f"table.sortable tbody tr:not([hidden]) td:nth-child({index + 1})", "cells => cells.map(c => c.textContent)"
        )

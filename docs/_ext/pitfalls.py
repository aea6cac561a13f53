"""`{pitfalls}`: a table of the page's own sections: each mistake, the wrong number, the right number, and the rule that finds it.

Read from the page itself, whose examples the tests run.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_SECTION = re.compile(r"^### (?P<title>.*?)\n\n\[(?P<rule>KL\d+)\]\((?P<page>.*?)\)(?P<body>.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)


def first_output(body: str, mark: str) -> str:
    """What the first example below the mark prints."""
    (below,) = re.findall(rf"^(?:>>>|\.\.\.) +# {mark}\n(.*?)^```", body, re.DOTALL | re.MULTILINE)[:1]
    return next(line for line in below.splitlines() if not line.startswith((">>>", "...")))


def table(text: str) -> list[str]:
    lines = ["| mistake | wrong | right | found by |", "|---|---|---|---|"]
    for found in _SECTION.finditer(text):
        anchor = re.sub(r"[^\w\- ]", "", found["title"].lower().replace(" ", "-"))
        wrong, right = (first_output(found["body"], mark).strip("'") for mark in ("wrong", "right"))
        lines.append(f"| [{found['title']}](#{anchor}) | {wrong} | {right} | [{found['rule']}]({found['page']}) |")
    return lines


class Pitfalls(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        text = Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8")
        return self.parse_text_to_nodes("\n".join(table(text)))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("pitfalls", Pitfalls)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

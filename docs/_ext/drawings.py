"""`{drawing}`: a picture drawn when the site is built, inline, in the colours of the theme in use.

It is drawn by a function of `pictures`, `plots` or `import_graph`, called without arguments, that returns SVG. The content is the caption,
and `:alt:` says in words what is to be seen. Where it comes from files, `:from:` names them, and a change of theirs draws it again.
"""

from __future__ import annotations

from html import escape
from importlib import import_module

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Drawing(SphinxDirective):
    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required, "from": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        if "alt" not in self.options:
            raise self.error("a drawing needs :alt:, what is to be seen, in words")
        for name in self.options.get("from", "").split():
            self.env.note_dependency(self.env.relfn2path(name)[1])
        module, function = self.arguments[0].split(".")
        svg = getattr(import_module(module), function)()
        opening = f'<figure class="drawing"><div role="img" aria-label="{escape(self.options["alt"])}">{svg}</div><figcaption>'
        caption = self.parse_content_to_nodes() if self.content else []
        return [nodes.raw("", opening, format="html"), *caption, nodes.raw("", "</figcaption></figure>", format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

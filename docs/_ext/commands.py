"""`{help-of}`: what `kullback COMMAND --help` prints, from the parser itself."""

from __future__ import annotations

import argparse
import os

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from kullback._cli import _parser


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (action.choices for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found)


class HelpOf(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "88"  # argparse wraps to it
        text = commands()[self.arguments[0]].format_help()
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("help-of", HelpOf)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

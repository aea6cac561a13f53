"""`{help-of}`: what `kullback COMMAND --help` prints, from the parser itself."""

from __future__ import annotations

import argparse
import os

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from kullback_command.run import parser


def help_of(command: str) -> str:
    actions = parser([command])._actions
    (choices,) = (action.choices for action in actions if isinstance(action, argparse._SubParsersAction))
    return choices[command].format_help()


class HelpOf(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "88"  # argparse wraps to it
        text = help_of(self.arguments[0])
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("help-of", HelpOf)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

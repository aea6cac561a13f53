"""The site: `make docs`, or `python -m sphinx -W -n docs build/site`. Nothing in the result is loaded from a network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT / "tests")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from docutils import nodes  # noqa: E402

import kullback  # noqa: E402

project = "kullback"
author = copyright = "The kullback developers"
version = release = kullback.__version__
html_title = f"kullback {version}"

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon",
    "elsewhere", "mathml", "drawings", "commands", "pitfalls",
]  # fmt: skip
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "_static"]
# Pages that live beside the code they describe, by their name on the site.
pages_elsewhere = {
    "contributing": ROOT / "CONTRIBUTING.md",
    "changes": ROOT / "CHANGELOG.md",
    "examples": ROOT / "examples" / "README.md",
    **{f"rules/{page.stem}": page for page in (ROOT / "src/kullback_lint/pages").glob("KL*.md")},
}

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

default_role = "code"  # in docstrings, `x` is code
autodoc_typehints = "none"  # docstrings say more than "Any"
autodoc_member_order = "bysource"
smartquotes = False  # quotes in docstrings are code
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False  # "p, q" are described once
# Docstrings describe types in words ("array_like", "a pair of these"), which are no references.
nitpick_ignore_regex = [("py:(class|data)", ".*")]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # would be fetched, which file:// forbids
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8", "color-brand-visited": "#6a3d9a"},
    "dark_css_variables": {"color-brand-primary": "#7db4ee", "color-brand-content": "#7db4ee", "color-brand-visited": "#c4a3ea"},
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def _escape_bars(app, what, name, thing, options, lines):
    """Docstrings are for help() too: |x| means what it says there, and a substitution in reStructuredText."""
    lines[:] = [line if line.lstrip().startswith(">>>") else re.sub(r"\|(?=\S)([^|`]*)\|", r"\\|\1\\|", line) for line in lines]


def _trim_examples(app, doctree):
    """A prompt's output ends with an empty line, which is for doctest and not to be seen."""
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip("\n")
        block.children = [nodes.Text(block.rawsource)]


def _mark_calls(app, doctree):
    """Tables of calls and what they give have a style of their own."""
    for table in doctree.findall(nodes.table):
        if any(entry.astext() == "gives" for entry in table.findall(nodes.entry)):
            table["classes"].append("calls")


def setup(app):
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("doctree-read", _trim_examples)
    app.connect("doctree-read", _mark_calls)

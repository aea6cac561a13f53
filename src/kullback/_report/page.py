"""Pages from templates.

`render` fills a template of `templates/` that extends base.html; everything is escaped, and the page's policy lets only its one script run.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from .._errors import Unwritable
from .._version import __version__


def jinja() -> Any:
    """The module, which a report needs."""
    try:
        import jinja2
    except ImportError:
        raise Unwritable("a report needs Jinja: pip install 'kullback[cli]'") from None
    return jinja2


def render(template: str, **values: Any) -> str:
    """The page as text. `title` is among the values; `version`, `style` and `script` are added."""
    jinja2 = jinja()

    folder = resources.files(__package__).joinpath("templates")

    def load(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = load("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page: str = environment.get_template(template).render(
        version=__version__, style=load("report.css"), script=script, script_hash=f"sha256-{digest}", **values
    )
    return page


def sortable(text: str, by: Any) -> dict[str, Any]:
    """A cell of a table that is sorted `by` what the text stands for."""
    return {"text": text, "sort": by}

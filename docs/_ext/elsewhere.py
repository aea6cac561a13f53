"""Pages whose source lies outside docs/, so that each has one source and its links work where it is read.

`pages_elsewhere` in conf.py names them. Sphinx keeps a two-way map of pages and paths; these are added to it.
"""

from __future__ import annotations

import os
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.project import Project


class WithPagesElsewhere(Project):
    elsewhere: dict[str, Path]

    def discover(self, *args, **options):
        super().discover(*args, **options)
        for name, path in self.elsewhere.items():
            self.docnames.add(name)
            self._docname_to_path[name] = Path(os.path.relpath(path, self.srcdir))
            self._path_to_docname[path] = name  # MyST asks by the full path
        return self.docnames


def _install(app: Sphinx) -> None:
    app.project.__class__ = WithPagesElsewhere
    app.project.elsewhere = app.config.pages_elsewhere


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("pages_elsewhere", {}, "env", types=[dict])
    app.connect("builder-inited", _install)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

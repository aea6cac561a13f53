"""An empty folder to work in, and the command in this process."""

from __future__ import annotations

import pytest

from kullback_command import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    """The command in this process: (exit code, standard output, standard error)."""

    def call(*arguments):
        try:
            code = main(["lint", *map(str, arguments)])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return call

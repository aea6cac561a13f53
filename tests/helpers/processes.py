"""The command in a process of its own, with pipes or a pseudo-terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kullback

SRC = str(Path(kullback.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SRC, "PYTHONIOENCODING": "utf-8"}


def command(*arguments, **options):
    options = {"env": ENVIRONMENT, "capture_output": True, "text": True, "encoding": "utf-8", "timeout": 60} | options
    return subprocess.run([sys.executable, "-m", "kullback", *arguments], **options)


def on_a_terminal(columns, *arguments, **environment):
    """What the command writes when its output is a terminal of that width."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment},
        stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return b"".join(chunks).decode()

"""The compiled kernels, built for one generation of processors. The installed library chooses among them when it is loaded."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from frameworks import CACHE
from kullback._kernels import compiled

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/kullback/_kernels/comparison.c"
FLAGS = re.findall(r'"([^"]+)"', re.search(r"^extra-compile-args = (.*)$", (ROOT / "pyproject.toml").read_text(), re.M)[1])
LEVELS = ["x86-64", "x86-64-v3", "x86-64-v4"] if platform.machine() == "x86_64" else []  # others have one


def _loader():
    """The system's own, which says what its processor is."""
    return next(iter(Path("/lib64").glob("ld-linux-x86-64.so*")), "true")


def built(level: str) -> compiled.Kernels:
    """Compiled once for each version of the source, whichever test, worker or run asks first."""
    supported = subprocess.run([_loader(), "--help"], capture_output=True, text=True).stdout
    if level != "x86-64" and not re.search(rf"{level} \(supported", supported):
        pytest.skip(f"this machine is not {level}")
    command = [shutil.which("cc"), *FLAGS, "-DKULLBACK_ONE_TARGET", f"-march={level}", "-shared", "-fPIC", SOURCE, "-o"]
    sources = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.glob("*.[ch]")))
    compiler = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(sources + compiler + repr(command).encode()).hexdigest()[:16]
    path = CACHE / "kernels" / f"{level}-{key}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, unfinished, "-lm"], check=True)
        unfinished.replace(path)  # at once: another worker may be building the same
    return compiled.load(path)

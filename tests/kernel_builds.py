"""The compiled kernels, built for one generation of processors: the installed library chooses among them when it is loaded."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kullback._kernels import compiled

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/kullback/_kernels/comparison.c"
FLAGS = re.findall(r'"([^"]+)"', re.search(r"^extra-compile-args = (.*)$", (ROOT / "pyproject.toml").read_text(), re.M)[1])
LEVELS = ["x86-64", "x86-64-v3", "x86-64-v4"] if platform.machine() == "x86_64" else []  # others have one


def _loader():
    """The system's own, which says what its processor is."""
    return next(iter(Path("/lib64").glob("ld-linux-x86-64.so*")), "true")


def built(folder: Path, level: str) -> compiled.Kernels:
    supported = subprocess.run([_loader(), "--help"], capture_output=True, text=True).stdout
    if level != "x86-64" and not re.search(rf"{level} \(supported", supported):
        pytest.skip(f"this machine is not {level}")
    path = folder / "kernel.so"
    command = [shutil.which("cc"), *FLAGS, "-DKULLBACK_ONE_TARGET", f"-march={level}", "-shared", "-fPIC", SOURCE, "-o", path, "-lm"]
    subprocess.run(command, check=True)
    return compiled.load(path)
